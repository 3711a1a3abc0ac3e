"""Files of strangers: every kind of file that is read, damaged by every change that fits it.

A target is made in a folder, a change damages a copy of it, and `opens` reads the copy: it must answer as the
undamaged one, or refuse by name.
"""

import contextlib
import json
import math
import random
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from safetensors.numpy import load_file, save_file

import paradigms
from paradigms.baselines.cross_attention import CrossAttention
from paradigms.data import Corpus
from paradigms.find import Store, kinds
from paradigms.generative.model import Generative
from paradigms.generative.retriever import GenerativeRetriever
from paradigms.retrieve import Indexed, Reranking
from tests.attack.harness import Attack, Crashed, Silent, copied, damaged
from tests.attack.indexes import KINDS, files, opened, results, sound_index, well_formed
from tests.tiny import write_checkpoint, write_seq2seq

Change = Callable[[random.Random, Path], None]
DEEP = "[" * 5000 + "]" * 5000
VALUES: list[Any] = [None, True, False, -1, 0, 1, 3, 10**7, 10**9, 10**12, -(10**12)]
VALUES += [0.5, -1e308, math.nan, math.inf]
VALUES += ["", "x", "../x", "/etc/passwd", "a" * 10_000, "\x1b[2J", "\ud800"]
VALUES += [[], {}, [1], ["x"], {"a": 1}, [[]]]


class Target(NamedTuple):
    """What is damaged: prepare(folder) makes it, opens(copy, sound) reads a copy of one of its parts."""

    prepare: Callable[[Path], object]
    opens: Callable[[Path, Path], None]
    parts: tuple[str, ...]
    named: tuple[str, ...] = ()  # what an error may name beside the folder
    fast: int = 12

    def attack(self, change: Change) -> Attack:
        def attempt(draw: random.Random, sound: Path, work: Path) -> None:
            folder = copied(sound / draw.choice(self.parts), work)
            change(draw, folder)
            self.opens(folder, sound)

        return Attack(lambda folder: self.prepare(folder) and None, attempt, self.named, self.fast)


# --- changes ------------------------------------------------------------------------------------------


def any_bytes(draw: random.Random, folder: Path) -> None:
    file = draw.choice(files(folder))
    file.write_bytes(damaged(draw, file.read_bytes()))


def hostile(draw: random.Random, value: Any) -> Any:
    """Replace, drop or double one part of a JSON value."""
    if isinstance(value, dict) and value and draw.random() < 0.9:
        key = draw.choice(list(value))
        if draw.random() < 0.15:
            return {name: part for name, part in value.items() if name != key}
        return value | {key: hostile(draw, value[key])}
    if isinstance(value, list) and value and draw.random() < 0.8:
        at = draw.randrange(len(value))
        return [*value[:at], hostile(draw, value[at]), *value[at + 1 :]]
    return draw.choice(VALUES)


def settings(draw: random.Random, folder: Path) -> None:
    """Other values in a small JSON file."""
    file = draw.choice([f for f in files(folder) if f.suffix == ".json" and f.stat().st_size < 5000])
    text = json.dumps(hostile(draw, json.loads(file.read_text())))
    file.write_text(draw.choice([text] * 8 + [DEEP, "1" * 5000, '{"a":' + "1" * 5000 + "}"]))


class Alarm:
    """Unpickling it writes a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return Path.write_text, (self.file, "ran")


def code(draw: random.Random, folder: Path) -> None:
    """Code and pickles beside the weights, in their place, and where modules.json points to."""
    canary, elsewhere = folder.parent / "ran", folder.parent / "elsewhere"
    for file in files(folder):
        if file.suffix == ".safetensors" and draw.random() < 0.7:
            file.unlink()
            torch.save({"weight": Alarm(canary)}, file.with_name("pytorch_model.bin"))
    elsewhere.mkdir()
    torch.save({"linear.weight": Alarm(canary)}, elsewhere / "pytorch_model.bin")
    if (folder / "modules.json").is_file():
        rows = json.loads((folder / "modules.json").read_text())
        rows[draw.randrange(len(rows))]["path"] = draw.choice(["../elsewhere", str(elsewhere), "a/b", "."])
        (folder / "modules.json").write_text(json.dumps(rows))
    config = next(file for file in files(folder) if file.name == "config.json")
    for home in {folder, config.parent}:
        (home / "code.py").write_text(f"open({str(canary)!r}, 'w')\nclass Own: pass\n")
    classes = draw.sample(["AutoConfig", "AutoModel", "AutoTokenizer"], draw.randrange(1, 4))
    more = draw.choice([{}, {"model_type": "stranger"}, {"attn_implementation": "stranger/kernel"}])
    for file in (config, config.with_name("tokenizer_config.json")):
        values = json.loads(file.read_text()) | {"auto_map": dict.fromkeys(classes, "code.Own")}
        file.write_text(json.dumps(values | (more if file == config else {"tokenizer_class": "Own"})))
    if draw.random() < 0.3:
        adapter = {"peft_type": "LORA", "base_model_name_or_path": str(elsewhere), "r": 2}
        (config.parent / "adapter_config.json").write_text(json.dumps(adapter))


def forged(draw: random.Random, folder: Path) -> None:
    """A file of an index with other values and the checksum that belongs to them."""
    manifest = json.loads((folder / "manifest.json").read_text())
    name = draw.choice([name for name in manifest["files"] if name != "tokens.faiss"] + ["manifest"] * 2)
    if name == "manifest":
        manifest = hostile(draw, manifest)
    else:
        file = folder / manifest["files"][name]["file"]
        if name == "codec.safetensors" and draw.random() < 0.8:
            forge_tensor(draw, file)
        elif file.name.endswith(".bin"):
            values = np.frombuffer(file.read_bytes(), np.uint8).copy()
            for _ in range(draw.randrange(1, 9) if len(values) else 0):
                at = draw.randrange(len(values))
                values[at : at + draw.choice([1, 2, 4, 8])] = draw.choice([0, 1, 127, 128, 255])
            file.write_bytes(values.tobytes())
        else:
            file.write_bytes(damaged(draw, file.read_bytes()))
        data = file.read_bytes()
        manifest["files"][name] |= {"bytes": len(data), "crc32": zlib.crc32(data)}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def forge_tensor(draw: random.Random, file: Path) -> None:
    """Another shape, type or number in one tensor."""
    tensors = load_file(file)
    key = draw.choice(list(tensors))
    values = np.array(tensors[key])
    forgeries: list[Any] = [values[:-1], values[:0], values.astype(np.float64), values[None]]
    if values.dtype == np.float32:
        values = values.copy()
        values[draw.randrange(len(values))] = draw.choice([math.nan, math.inf, -math.inf, 1e38, -1.0])
        forgeries += [values] * 6
    save_file(tensors | {key: np.ascontiguousarray(draw.choice(forgeries))}, file)


# --- what opens them ----------------------------------------------------------------------------------


def equal_index(folder: Path, sound: Path) -> None:
    """Damage is noticed by a checksum, or changes nothing."""
    if results(opened(folder)) != results(opened(sound / "index")):
        raise Silent("other results")


def any_index(folder: Path, sound: Path) -> None:
    """Forged values give results of documents that exist; forged vectors may also be refused."""
    store = opened(folder)
    same = [file.read_bytes() for file in folder.glob("vectors*")] == [
        file.read_bytes() for file in (sound / "index").glob("vectors*")
    ]
    with contextlib.nullcontext() if same else contextlib.suppress(ValueError):
        well_formed(results(store), store.ids)


BIRDS = Corpus(["d0"], ["a bird over the sea"], ["bird"])
MODELS = ("own", "published", "generative", "reranker")


def checkpoints(folder: Path) -> None:
    """A checkpoint of each kind, one of them a folder of sentence-transformers, and an index of the first."""
    write_checkpoint("bert", folder / "bert")
    torch.manual_seed(0)
    model = paradigms.PARADIGMS["colbert"](folder / "bert", dim=8, document_length=16, query_length=8)
    model.save_pretrained(folder / "own")
    Store.build(kinds.exact(), model, ["d0"], ["a bird"], folder / "index")
    dpr = paradigms.PARADIGMS["dpr"](folder / "bert", document_length=16, query_length=8)
    dpr.save_pretrained(folder / "published", layout="sentence-transformers")
    paradigms.RERANKERS["cross_attention"](folder / "bert").save_pretrained(folder / "reranker")
    generative = paradigms.GENERATIVE["genre"](write_seq2seq("t5", folder / "t5"), BIRDS, beams=2)
    generative.save_pretrained(folder / "generative")


def open_checkpoint(folder: Path, sound: Path) -> None:
    """Open a checkpoint and search with it. Non-finite vectors and changed weights must be reported.

    What asks whether code may run is answered yes.
    """
    try:
        with patch("builtins.input", lambda *_: "y"):
            model: Any = paradigms.load(folder)
        query, ids = {"q": "bird"}, ["d0"]
        if isinstance(model, Generative):
            rankings = GenerativeRetriever(model).search(query, 1)
            ids = model.identifiers.documents
        elif isinstance(model, CrossAttention):
            rankings = Reranking(model, BIRDS).rerank(query, {"q": {"d0": 1.0}})
        else:
            rankings = Indexed.build(model, {"d0": "a bird over the sea"}).search(query, 1)
            if model.name == "colbert":
                opened(sound / "index").check(model)
        well_formed(list(rankings.values()), ids)
    finally:
        if (folder.parent / "ran").exists():
            raise Crashed


NAMED = ("weights", "but not by this", "not finite", "dimensions", "positions", "must be at most")
CHECKPOINTS = Target(checkpoints, open_checkpoint, MODELS, NAMED, 10)
STRANGERS: dict[str, Attack] = {
    "bytes of a checkpoint": CHECKPOINTS.attack(any_bytes),
    "settings of a checkpoint": CHECKPOINTS.attack(settings),
    "code in a checkpoint": CHECKPOINTS.attack(code),
}
for kind in KINDS:
    prepare = partial(sound_index, kind=kind)
    STRANGERS[f"bytes of an index, {kind}"] = Target(prepare, equal_index, ("index",)).attack(any_bytes)
    STRANGERS[f"forged index, {kind}"] = Target(prepare, any_index, ("index",)).attack(forged)
