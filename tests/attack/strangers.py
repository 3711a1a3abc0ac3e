"""Files of strangers: absurd numbers, pipes and headers, text bombs, links, modules, damaged states."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import paradigms
from paradigms.data import Problems, load_collection, read_judgements, read_run
from paradigms.data.texts import json_lines, text_passages
from paradigms.encoder.batches import Batch
from paradigms.encoder.frozen import LowerStates
from paradigms.io.command_line import command_line
from paradigms.saving.hub import model_card
from tests.attack.attacks import MODELS, VALUES, checkpoints, collections, files, hostile, opens
from tests.attack.harness import Attack, Crashed, Lost, Silent, copied, damaged

# --- checkpoints --------------------------------------------------------------------------------------


def numbers_of(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of the integers in a JSON value."""
    if isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from numbers_of(part, (*path, key))
    elif isinstance(value, int) and not isinstance(value, bool):
        yield path


def large_numbers(draw: random.Random, sound: Path, work: Path) -> None:
    """A setting of 10⁷ or 10⁹: refused, or of no consequence, but never hours or all of the memory."""
    folder = copied(sound / "models" / draw.choice(MODELS), work)
    names = ("encoder.json", "paradigm.json", "generative.json", "config.json", "sentence_bert_config.json")
    file = draw.choice([file for file in files(folder) if file.name in names])
    value = json.loads(file.read_text())
    paths = list(numbers_of(value))
    if paths and draw.random() < 0.8:
        *above, last = draw.choice(paths)
        part = value
        for key in above:
            part = part[key]
        part[last] = draw.choice([10**7, 10**9])
    else:  # a number where there was none
        value[draw.choice(["lora_rank", "iterations", "layers", "num_labels", *value])] = 10**9
    file.write_text(json.dumps(value))
    opens(folder, sound)


def pipe(draw: random.Random, backbone: Path) -> None:
    os.mkfifo(backbone / draw.choice(["z.safetensors", "pytorch_model.bin", "a.json", "added_tokens.txt"]))


def device(draw: random.Random, backbone: Path) -> None:
    name = draw.choice(["z.safetensors", "model-2.safetensors", "vocab.json.txt"])
    (backbone / name).symlink_to(draw.choice(["/dev/zero", "/dev/random", "/dev/tty"]))


def absurd_header(draw: random.Random, backbone: Path) -> None:
    file = backbone / draw.choice(["z.safetensors", "model.safetensors"])
    size = draw.choice([1 << 24, 1 << 32, 1 << 48, 1 << 63, (1 << 64) - 1])
    file.write_bytes(struct.pack("<Q", size) + b'{"x":' * draw.randrange(2000))


def many_tensors(draw: random.Random, backbone: Path) -> None:
    tensor = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    header = json.dumps({f"tensor{n}": tensor for n in range(120_000 + draw.randrange(9))}).encode()
    (backbone / "z.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)


def shards_outside(draw: random.Random, backbone: Path) -> None:
    outside = backbone.parents[1] / "outside.safetensors"
    weights = backbone / "model.safetensors"
    (shutil.move if draw.random() < 0.5 else shutil.copy)(weights, outside)
    name = draw.choice(["../../outside.safetensors", str(outside), "x/../../../outside.safetensors"])
    index = {"metadata": {}, "weight_map": {"x": "model.safetensors", "y": name}}
    (backbone / "model.safetensors.index.json").write_text(json.dumps(index))


HARMS: list[Callable[[random.Random, Path], None]] = [
    *(pipe, device, absurd_header, many_tensors, shards_outside)
]


def checkpoint_files(draw: random.Random, sound: Path, work: Path) -> None:
    """Files that no checkpoint has, beside its weights."""
    folder = copied(sound / "models" / draw.choice(MODELS), work)
    config = draw.choice([file for file in files(folder) if file.name == "config.json"])
    draw.choice(HARMS)(draw, config.parent)
    opens(folder, sound)
    raise Silent("opened")


def card_lines(draw: random.Random, sound: Path, work: Path) -> None:
    """Names, values and collections with line breaks begin no line of a model's card."""
    lines = [
        f"x{end}license: mit" for end in ("\n", "\r\n", "\r", "\u2028", "\x85", "\x0b", "\n---\n", "|\n")
    ]
    folder = copied(sound / "models" / "own", work)
    if draw.random() < 0.3:
        file = folder / "paradigm.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"name": draw.choice(lines)}))
    results = work / "results"
    results.mkdir()
    for name in ("config.json", "environment.json"):
        value: Any = {"collection": draw.choice(lines), "steps": 3, "options": {"a": [1, "x"]}}
        value |= {draw.choice(lines): draw.choice([*VALUES, *lines]), "note": [draw.choice(lines)]}
        (results / name).write_text(json.dumps(hostile(draw, value) if draw.random() < 0.5 else value))
    card = model_card(paradigms.load(folder), results)
    if any(line.lstrip(" |").startswith("license") for line in card.splitlines()):
        raise Silent("a line of the card is the stranger's")


# --- texts --------------------------------------------------------------------------------------------

MEMBER = 1 << 24  # bytes of one gzip member; a file is several
BOMB = 10  # members: beyond the longest line that is read, and quick


def gzip_bombs(draw: random.Random, sound: Path, work: Path) -> None:
    """A line of 160 MB in a gzipped file of 160 kB is named before it is read as a whole."""
    start, letter = (
        draw.choice([b"", b'{"_id": "d", "text": "', b"q1 Q0 d1 1 "]),
        draw.choice([b"a", b"[", b"\0"]),
    )
    data = gzip.compress(start) + gzip.compress(letter * MEMBER, 1) * BOMB
    copied(sound, work)
    names = ["copy/corpus.jsonl.gz", "copy/queries.jsonl.gz", "notes/x.jsonl.gz", "x.jsonl.gz", "x.run.gz"]
    file = work / draw.choice(names)
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(data)
    problems = Problems()
    try:
        if file.parent.name == "copy":
            file.with_suffix("").unlink()
            load_collection(file.parent)
        elif file.parent.name == "notes":
            list(text_passages(file.parent, problems))
            raise ValueError(next(iter(problems.examples.values()))[0])
        elif file.name == "x.run.gz":
            draw.choice([read_run, read_judgements])(file)
        else:
            list(json_lines(file, problems))
    except ValueError as error:
        if "longer than" not in str(error):
            raise Silent(f"read as a whole: {error}") from error
        raise
    raise Silent("read")


def linked_notes(draw: random.Random, sound: Path, work: Path) -> None:
    """Links among notes, some of them out of the folder: nothing from outside is read, nothing read twice."""
    notes, outside = work / "notes", work / "outside"
    (notes / "deep").mkdir(parents=True)
    (outside / "inner").mkdir(parents=True)
    inside = [notes / "a.txt", notes / "deep" / "b.md", notes / "deep" / "c.jsonl"]
    for file in (*inside, outside / "x.txt", outside / "inner" / "y.md", work / "notes.txt"):
        secret = "" if notes in file.parents else "secret "
        text = f"{secret}a bird over the sea"
        file.write_text(json.dumps({"text": text}) if file.suffix == ".jsonl" else text)
    targets = [*inside, notes, notes / "deep", outside, outside / "inner", outside / "x.txt"]
    targets += [work / "notes.txt", outside / "inner" / "y.md", Path("/etc/hostname"), notes / "link0.txt"]
    for n in range(draw.randrange(1, 6)):
        link = draw.choice([notes, notes / "deep"]) / draw.choice([f"link{n}.txt", f"link{n}"])
        target = draw.choice(targets)
        link.symlink_to(os.path.relpath(target, link.parent) if draw.random() < 0.5 else target)
    source = notes
    if draw.random() < 0.3:
        source = work / "linked"
        source.symlink_to(notes)
    passages = list(text_passages(source, Problems()))
    if any("secret" in text or "hostname" in text for _, _, text in passages):
        raise Silent("a note from outside of the folder")
    if len({id for id, _, _ in passages}) != len(passages) or len(passages) < len(inside):
        raise Lost("a note of the folder, or one name for two")


@dataclass
class Settings:
    steps: int = 1
    options: dict[str, Any] = field(default_factory=dict)


def deep_yaml(draw: random.Random, sound: Path, work: Path) -> None:
    """Settings that are nested deeply: one line that names the file or the flag."""
    depth = int(10 ** draw.uniform(2, 3.7))
    text = draw.choice(
        ["[" * depth + "]" * depth, "[" * depth, "{a: " * depth + "}" * depth, "- " * depth + "x"]
    )
    file = work / "settings.yaml"
    file.write_text(draw.choice(["", "options: ", "steps: ", "options:\n  "]) + text)
    words = draw.choice(
        [["--config", str(file)], [f"--config={file}"], ["--options", text], [f"--options={text}"]]
    )
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            command_line(Settings, "", words)
    except SystemExit:
        if "Traceback" in printed.getvalue():
            raise Crashed from None
        if str(file) not in printed.getvalue() and "--options" not in printed.getvalue():
            raise Silent(f"neither file nor flag is named: {printed.getvalue():.300}") from None


def modules(draw: random.Random, sound: Path, work: Path) -> None:
    """Modules in the current folder are not imported."""
    here = work / "downloaded"
    here.mkdir()
    names = ["numpy", "torch", "rich", "argparse", "json", "random", "yaml", "safetensors", "sitecustomize"]
    for name in draw.sample(names, 5):
        (here / f"{name}.py").write_text(f"open({str(work / 'ran')!r}, 'w')")
    (here / "notes.txt").write_text("a bird over the sea")
    script = Path(sys.executable).with_name("paradigms")
    commands = [[sys.executable, "-m", "paradigms"]] + [[str(script)]] * script.is_file()
    words = draw.choice(
        [["search", "nowhere", "bird"], ["index", "notes.txt", "--model", "nowhere"], ["--help"]]
    )
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [*draw.choice(commands), *words], cwd=here, capture_output=True, env=os.environ | {"PYTHONPATH": root}
    )
    if (work / "ran").exists() or b"Traceback" in done.stderr:
        raise Crashed(done.stderr.decode())


# --- states of frozen layers --------------------------------------------------------------------------


def tokenize(texts: Any) -> Batch:
    """A token for each of a text's words, by its length."""
    rows = [torch.tensor([len(word) for word in text.split()]) for text in texts]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    return Batch(ids, (ids > 0).long(), ids > 0)


def compute(batch: Batch) -> Tensor:
    return torch.sin(batch.input_ids[..., None] * torch.arange(1, 9)).half()


GROUPS = [[f"{'a' * (n + 1)} {'b' * m} sea" for m in range(1, 5)] for n in range(3)]


def states(folder: Path) -> None:
    store = LowerStates(folder / "states")
    for texts in GROUPS:
        store.add(texts, tokenize, compute)
        store.open()


def state_bytes(draw: random.Random, sound: Path, work: Path) -> None:
    """Damaged states are computed again: a training reads what an undisturbed one reads."""
    folder = copied(sound / "states", work)
    damage = draw.choice(files(folder))
    harm = draw.random()
    if harm < 0.1:
        damage.unlink()
    elif harm < 0.2:
        damage.write_bytes(draw.choice(files(folder)).read_bytes())
    else:
        damage.write_bytes(damaged(draw, damage.read_bytes()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        store = LowerStates(folder)
        for texts in GROUPS:
            batch = tokenize(texts)
            if not torch.equal(
                store.find(batch, compute), LowerStates(sound / "states").find(batch, compute)
            ):
                raise Silent(damage.name)
            store.add(texts, tokenize, compute)
            store.open()
    if len(store) != sum(map(len, GROUPS)) or len(LowerStates(folder)) != len(store):
        raise Lost("states that were to be computed again")


NAMED = (
    "weights",
    "but not by this",
    "not finite",
    "dimensions",
    "license",
    "positions",
    "lora_rank",
    "must be at most",
)
STRANGERS: dict[str, Attack] = {
    "absurd numbers in a checkpoint": Attack(checkpoints, large_numbers, NAMED, 8),
    "strange files in a checkpoint": Attack(checkpoints, checkpoint_files, fast=10),
    "line breaks in a card": Attack(
        checkpoints, card_lines, ("license", "config.json", "environment.json"), 10
    ),
    "gzip bombs": Attack(collections, gzip_bombs, ("q1",), 1, cost=20),
    "links among notes": Attack(lambda folder: None, linked_notes),
    "deep YAML": Attack(lambda folder: None, deep_yaml, fast=3, cost=5),
    "modules in the current folder": Attack(lambda folder: None, modules, fast=0, cost=40),
    "bytes of frozen states": Attack(states, state_bytes),
}
