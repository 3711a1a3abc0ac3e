"""The attacks by name: damaged and forged files, hostile arguments, killed and crowded writers."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import math
import os
import random
import resource
import shutil
import signal
import threading
import time
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis.stateful import run_state_machine_as_test
from safetensors.numpy import load_file, save_file

import paradigms
from paradigms.align import EqualIds, PoolTopK, QueryToDocument
from paradigms.baselines.bm25 import BM25
from paradigms.baselines.cross_attention import CrossAttention
from paradigms.cli import show
from paradigms.cli.queries import from_file
from paradigms.core import Tokens
from paradigms.data import (
    Collection,
    Corpus,
    Problems,
    Split,
    load_collection,
    read_judgements,
    read_run,
    write_folder,
)
from paradigms.data.texts import json_lines
from paradigms.encoder.frozen import KEPT
from paradigms.find import Index, Store, kinds, lists, open_index
from paradigms.generative.model import Generative
from paradigms.generative.retriever import GenerativeRetriever
from paradigms.io.files import remove_folder, write_json
from paradigms.io.terminal import Terminal
from paradigms.recipe import Recipe
from paradigms.retrieve import Indexed, Reranking
from paradigms.store import view
from paradigms.store.columns import FolderWriter
from paradigms.train import state
from tests.attack.harness import Attack, Crashed, Lost, Process, Silent, copied, damaged, succeed, together
from tests.test_kept import World
from tests.tiny import write_checkpoint, write_collection, write_seq2seq

DIM, COUNT = 32, 24
GATHER = Recipe("colbert", QueryToDocument(), "one")
IMPUTE = Recipe("xtr", PoolTopK(k=8), "retrieved", search="impute", search_tokens=12)
KINDS = {"exact": kinds.exact(), "compressed": kinds.compressed(lists=4), "faiss": kinds.faiss("Flat")}
KINDS |= {"inverted": kinds.inverted()}
KINDS |= {"lemur": kinds.lemur(width=8, factory="Flat")}
TERMS = Recipe("splade", EqualIds(), "one")
Result = list[dict[str, float]]


# --- indexes ------------------------------------------------------------------------------------------


def parts(
    first: int = 0, count: int = COUNT, name: str = "d", kind: str = "exact"
) -> list[tuple[list[str], Tokens]]:
    """Documents of 0 to 5 tokens, six at a time, that depend on their number alone."""
    found = []
    for start in range(first, first + count, 6):
        numbers = range(start, min(start + 6, first + count))
        vectors = torch.stack(
            [torch.randn(5, DIM, generator=torch.Generator().manual_seed(n + 1)) for n in numbers]
        )
        lengths = torch.tensor([n % 6 for n in numbers])
        mask = (torch.arange(5) < lengths[:, None])[None]
        tokens = Tokens(vectors[None], mask)
        found.append(([f"{name}{n}" for n in numbers], as_terms(tokens) if kind == "inverted" else tokens))
    return found


def as_terms(tokens: Tokens) -> Tokens:
    """Treat the first number of each vector as the weight of a term that no other vector has."""
    ids = torch.arange(tokens.mask.shape[-1]).expand(tokens.mask.shape)
    return Tokens(tokens.vectors[..., :1].abs(), tokens.mask, ids)


def queries() -> Tokens:
    return Tokens(
        torch.randn(3, 1, 4, DIM, generator=torch.Generator().manual_seed(0)), torch.ones(3, 1, 4) > 0
    )


def build(folder: Path, kind: str, given: Iterable[Any] | None = None) -> Store:
    made, terms = parts(kind=kind) if given is None else given, kind == "inverted"
    dim, fields = (1, ("vectors", "ids")) if terms else (DIM, ("vectors",))
    return Store.build_from(KINDS[kind], made, folder, paradigm="colbert", dim=dim, fields=fields)


def opened(folder: Path, **options: bool) -> Store:
    return open_index(folder, **options).store


def results(store: Store) -> Result:
    index = Index(store)
    if store.kind.name == "inverted":
        return index.search_tokens(TERMS, as_terms(queries()), 5)
    return [*index.search_tokens(GATHER, queries(), 5), *index.search_tokens(IMPUTE, queries(), 5)]


def well_formed(found: Result, ids: Iterable[str]) -> None:
    known = set(ids)
    for row in found:
        scores = list(row.values())
        if not row.keys() <= known or scores != sorted(scores, reverse=True) or not np.isfinite(scores).all():
            raise Silent(f"{row}")


def sound_index(folder: Path, kind: str) -> None:
    build(folder / "index", kind)


def index_attack(kind: str, attempt: Callable[..., None], **settings: Any) -> Attack:
    return Attack(partial(sound_index, kind=kind), partial(attempt, kind=kind), **settings)


def files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file())


def same_bytes(folder: Path, whole: Path) -> None:
    found, wanted = ({f.name: f.read_bytes() for f in files(of)} for of in (folder, whole))
    if found != wanted:
        raise Lost("other bytes than of a build that ended")


def index_bytes(draw: random.Random, sound: Path, work: Path, kind: str) -> None:
    """Bytes of a file: its checksum tells, or nothing changes."""
    folder = copied(sound / "index", work)
    file = draw.choice(files(folder))
    file.write_bytes(damaged(draw, file.read_bytes()))
    if results(opened(folder)) != results(opened(sound / "index")):
        raise Silent(file.name)


def index_forged(draw: random.Random, sound: Path, work: Path, kind: str) -> None:
    """A file with other values and the checksum that belongs to them: results of documents that exist."""
    folder = copied(sound / "index", work)
    manifest = json.loads((folder / "manifest.json").read_text())
    name = draw.choice([name for name in manifest["files"] if name != "tokens.faiss"] + ["manifest"] * 2)
    if name == "manifest":
        manifest = hostile(draw, manifest)
    else:
        file = folder / manifest["files"][name]["file"]
        if name == "codec.safetensors" and draw.random() < 0.8:
            tensors = load_file(file)
            key = draw.choice(list(tensors))
            values = np.array(tensors[key])
            special: list[Any] = [values[:-1], values[:0], values.astype(np.float64), values[None]]
            if values.dtype == np.float32:
                full = values.copy()
                full[draw.randrange(len(full))] = draw.choice([math.nan, math.inf, -math.inf, 1e38, -1.0])
                special += [full] * 6
            save_file(tensors | {key: np.ascontiguousarray(draw.choice(special))}, file)
        elif file.name.endswith(".bin"):
            values = np.frombuffer(file.read_bytes(), np.uint8).copy()
            for _ in range(draw.randrange(1, 9)):
                if len(values):
                    at = draw.randrange(len(values))
                    values[at : at + draw.choice([1, 2, 4, 8])] = draw.choice([0, 1, 127, 128, 255])
            file.write_bytes(values.tobytes())
        else:
            file.write_bytes(damaged(draw, file.read_bytes()))
        data = file.read_bytes()
        manifest["files"][name] |= {"bytes": len(data), "crc32": zlib.crc32(data)}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    store = opened(folder, verify=draw.random() < 0.5)
    if name == "vectors.bin":  # other vectors are others: only that nothing breaks
        with contextlib.suppress(ValueError):
            results(store)
        return
    well_formed(results(store), store.ids)


def killed(draw: random.Random, sound: Path, work: Path, kind: str) -> None:
    """kill -9 of a build; then the same again: the bytes that an undisturbed one makes."""
    folder = work / "index"
    with Process(lambda: build(folder, kind)):
        time.sleep(draw.random() * 0.06)
    build(folder, kind)
    same_bytes(folder, sound / "index")


def limited(most: int) -> None:
    """Limit the size of every file that this process writes."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


def disk_full(draw: random.Random, sound: Path, work: Path, kind: str) -> None:
    """Build with a limit on file sizes; then build without one."""
    folder = work / "index"
    with Process(lambda: build(folder, kind), lambda: limited(draw.randrange(1, 6000))) as child:
        said = child.error()
    build(folder, kind)
    same_bytes(folder, sound / "index")
    if said:
        raise said


def changes_of(draw: random.Random, kind: str) -> list[Callable[[Store], Store]]:
    """Additions, deletions and compactions; some rewrite the lists, some train new centroids."""
    there, changes = [f"d{n}" for n in range(COUNT)], []
    for turn in range(draw.randrange(2, 6)):
        if turn and draw.random() < 0.4:
            changes.append(Store.compact)
        elif draw.random() < 0.5:
            first, count = 100 + 20 * turn, draw.randrange(1, 19)
            changes.append(partial(added, first=first, count=count, kind=kind))
            there += [f"d{n}" for n in range(first, first + count)]
        else:
            gone = draw.sample(there, draw.randrange(1, 4))
            changes.append(partial(Store.delete, ids=gone))
            there = [id for id in there if id not in gone]
    return changes


def added(store: Store, first: int, count: int, kind: str) -> Store:
    return store.add_from(parts(first, count, kind=kind))


@contextlib.contextmanager
def stop_at(number: float, full: Path | None) -> Iterator[Callable[[], int]]:
    """Stop at write `number` and each later one, after half of the bytes; yield a count of the writes.

    full: a folder whose disk is full; None stops by kill -9. Other file operations than writes are counted
    too, unless a disk is full, which does not hinder them.
    """
    count, append = 0, FolderWriter.append

    def stop() -> None:
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(full))
        os.kill(os.getpid(), signal.SIGKILL)

    def counted() -> bool:
        nonlocal count
        count += 1
        return count > number

    def appended(self: FolderWriter, name: str, rows: bytes | np.ndarray) -> None:
        if counted():
            data = rows if isinstance(rows, bytes) else rows.tobytes()
            append(self, name, data[: len(data) // 2])
            self.array(name, "uint8")  # flushes
            stop()
        append(self, name, rows)

    def stopping(of: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given, **named: (stop() if counted() else None) or of(*given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FolderWriter, "append", appended)
        for name in ("fsync", "replace") if full else ("fsync", "replace", "unlink", "truncate"):
            patch.setattr(os, name, stopping(getattr(os, name)))
        yield lambda: count


def changed(draw: random.Random, sound: Path, work: Path, kind: str) -> None:
    """kill -9 or a full disk at any write of a series of changes: one of its states, and the rest goes on."""
    full, changes = draw.random() < 0.5, changes_of(draw, kind)
    few, unlisted = draw.choice([1, 1 << 10]), draw.choice([0, 1 << 20])
    folder, log, number = copied(sound / "index", work), work / "log", math.inf

    def run(folder: Path, changes: list[Callable[[Store], Store]]) -> None:
        """Log the state before and after each change, and the number of writes until then."""
        view.FEW, view.GROWN, lists.UNLISTED = few, 1, unlisted
        warnings.simplefilter("ignore")
        with log.open("w") as states, stop_at(number, folder if full else None) as writes:
            print(json.dumps([0, state(opened(folder))]), file=states, flush=True)
            for change in changes:
                reached = state(change(opened(folder)))
                print(json.dumps([writes(), reached]), file=states, flush=True)

    def state(store: Store) -> list[Any]:
        return [sorted(store.rows_by_id), results(store)]

    def logged() -> list[Any]:
        return [json.loads(line) for line in log.read_text().splitlines()]

    shutil.copytree(folder, work / "whole")
    succeed(lambda: run(work / "whole", changes))
    states = logged()
    number = draw.randrange(states[-1][0])
    with Process(lambda: run(folder, changes)) as child:
        said = child.error()
    done, number = len(logged()) - 1, math.inf
    try:
        found = state(opened(folder))
        if said is None or found not in [of for _, of in states[done : done + 2]]:
            raise Silent("neither the state before the stopped change nor the one after it")
        succeed(lambda: run(folder, changes[done + (found != states[done][1]) :]))
    except (OSError, ValueError, KeyError) as error:
        raise Lost(f"the state after change {done} of {len(changes)}") from error
    if logged()[-1][1] != states[-1][1]:
        raise Silent("other results after the rest of the changes")
    if full:
        raise said


def two_builds(draw: random.Random, sound: Path, work: Path, kind: str) -> None:
    """Two processes build different documents into one folder, which then holds one of the two, whole."""
    folder = work / "index"

    def slow(name: str, pause: float) -> Iterable[Any]:
        for part in parts(name=name, kind=kind):
            time.sleep(pause)
            yield part

    first, second = draw.random() * 0.01, draw.random() * 0.01
    later = draw.random() * 0.01
    said = together(
        lambda: build(folder, kind, slow("a", first)),
        lambda: time.sleep(later) or build(folder, kind, slow("b", second)),  # type: ignore[func-returns-value]
    )
    if all(said):
        raise Lost("neither build ended")
    made = opened(folder)
    names = {id[0] for id in made.ids}
    if len(names) != 1 or len(made.ids) != COUNT:
        raise Silent(f"documents of {names}")
    if results(made) != [
        {f"{next(iter(names))}{id[1:]}": score for id, score in row.items()}
        for row in results(opened(sound / "index"))
    ]:
        raise Silent("tokens of one and ids of another")
    if refused := next(filter(None, said), None):
        raise refused


def threads(draw: random.Random, sound: Path, work: Path, kind: str) -> None:
    """One thread searches while another adds, deletes and compacts: each search sees a single state."""
    store = opened(copied(sound / "index", work))
    failed: list[BaseException] = []
    done = threading.Event()

    def search() -> None:
        try:
            while not done.is_set():
                well_formed(results(store), [f"d{n}" for n in range(400)])
        except BaseException as error:
            failed.append(error)

    other = threading.Thread(target=search)
    other.start()
    for turn in range(draw.randrange(2, 6)):
        store = store.add_from(parts(100 + 20 * turn, draw.randrange(1, 13), kind=kind))
        store = store.delete(draw.sample(sorted(store.rows_by_id), 3))
        if draw.random() < 0.6:
            store = store.compact()
    done.set()
    other.join()
    if failed:
        raise failed[0]


def replaced(draw: random.Random, sound: Path, work: Path, kind: str) -> None:
    """An index is opened repeatedly while builds replace it: each time it is one of them, whole."""
    folder, done = copied(sound / "index", work), threading.Event()

    def replace() -> None:
        for _ in range(draw.randrange(2, 6)):
            build(folder, kind)
        done.set()

    other = threading.Thread(target=replace)
    other.start()
    try:
        while not done.is_set():
            if (store := opened(folder)).kind.name != kind or len(store) != COUNT:
                raise Silent(store.kind.name)
    except (ValueError, OSError) as error:
        raise Crashed("a reader") from error
    finally:
        other.join()


# --- folders of others --------------------------------------------------------------------------------

BIRDS = Corpus(["d0"], ["a bird over the sea"], ["bird"])
BIRD = Split({"q0": "bird"}, {"q0": {"d0": 1}})


def saved_bm25(folder: Path) -> None:
    BM25(BIRDS).save(folder)


# Kind of folder -> how to make one, and how it is replaced or removed.
REPLACED: dict[str, tuple[Callable[[Path], Any], Callable[[Path], Any]]] = {
    kind: (partial(build, kind=kind), partial(build, kind=kind)) for kind in KINDS
}
REPLACED |= {
    "copy": (
        lambda f: build(f, "exact"),
        lambda f: build(f.with_name("whole"), "exact").copy(KINDS["exact"], f),
    ),
    "collection": (
        lambda folder: collections(folder.mkdir(parents=True) or folder),
        lambda folder: write_folder(Collection("birds", BIRDS, {"test": BIRD}, Problems(), "0"), folder),
    ),
    "bm25": (saved_bm25, saved_bm25),
    "checkpoint": (
        lambda folder: write_json(folder / "progress.json", {}),
        lambda folder: remove_folder(folder, state.WRITTEN),
    ),
    "training": (
        lambda folder: write_json(folder / "best" / "paradigm.json", {}),
        lambda folder: remove_folder(folder, state.TRAINED),
    ),
    "states": (
        lambda folder: write_json(folder / ("0" * 16) / "states.safetensors", []),
        lambda folder: remove_folder(folder, KEPT),
    ),
}
THEIRS = ("notes.txt", "thesis.docx", "src/app.js", "photos.bin", "annotations.xlsx", ".git/HEAD")
THEIRS += ("shards/a.npy",)
MARKS = ("manifest.json", "corpus.jsonl", "params.index.json", "config.json")


def strangers(draw: random.Random, sound: Path, work: Path) -> None:
    """Files of somebody else stay, in a folder of ours or beside a file of theirs that has a name of ours."""
    kind = draw.choice(sorted(REPLACED))
    folder, (make, replace) = work / kind, REPLACED[kind]
    names = draw.sample(THEIRS, draw.randrange(1, 4))
    if draw.random() < 0.5:
        make(folder)
    else:
        names.append(draw.choice(MARKS))
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(draw.choice(['{"name": "app"}', "{}", "mine"]))
    before = {name: (folder / name).read_text() for name in names}
    try:
        replace(folder)
    finally:
        if any(
            not (folder / name).is_file() or (folder / name).read_text() != before[name] for name in names
        ):
            raise Lost(f"a file of {sorted(names)} in a folder of the kind {kind}")
    raise Silent("replaced or removed, though their files are there")


# --- checkpoints --------------------------------------------------------------------------------------

DEEP = "[" * 5000 + "]" * 5000
VALUES: list[Any] = [None, True, False, -1, 0, 1, 3, 10**7, 10**9, 10**12, -(10**12)]
VALUES += [0.5, -1e308, math.nan, math.inf]
VALUES += ["", "x", "../x", "/etc/passwd", "a" * 10_000, "\x1b[2J", "\ud800"]
VALUES += [[], {}, [1], ["x"], {"a": 1}, [[]]]
MODELS = ("own", "published", "generative", "reranker")


def hostile(draw: random.Random, value: Any) -> Any:
    """Replace, drop or double one part of a JSON value."""
    if isinstance(value, dict) and value and draw.random() < 0.9:
        key = draw.choice(list(value))
        if draw.random() < 0.15:
            return {name: of for name, of in value.items() if name != key}
        return value | {key: hostile(draw, value[key])}
    if isinstance(value, list) and value and draw.random() < 0.8:
        at = draw.randrange(len(value))
        return [*value[:at], hostile(draw, value[at]), *value[at + 1 :]]
    return draw.choice(VALUES)


def checkpoints(folder: Path) -> None:
    """A checkpoint of each kind, one of them a folder of sentence-transformers, and an index of the first."""
    write_checkpoint("bert", folder / "bert")
    torch.manual_seed(0)
    model = paradigms.PARADIGMS["colbert"](folder / "bert", dim=8, document_length=16, query_length=8)
    model.save_pretrained(folder / "models" / "own")
    Store.build(kinds.exact(), model, ["d0"], ["a bird"], folder / "index")
    dpr = paradigms.PARADIGMS["dpr"](folder / "bert", document_length=16, query_length=8)
    dpr.save_pretrained(folder / "models" / "published", layout="sentence-transformers")
    paradigms.RERANKERS["cross_attention"](folder / "bert").save_pretrained(folder / "models" / "reranker")
    generative = paradigms.GENERATIVE["genre"](write_seq2seq("t5", folder / "t5"), BIRDS, beams=2)
    generative.save_pretrained(folder / "models" / "generative")


def opens(folder: Path, sound: Path) -> None:
    """Open the checkpoint and search with it. Non-finite vectors and changed weights must be reported."""
    model: Any = paradigms.load(folder)
    if isinstance(model, Generative):
        found = GenerativeRetriever(model).search({"q": "bird"}, 1)
        well_formed(list(found.values()), model.identifiers.documents)
    elif isinstance(model, CrossAttention):
        well_formed(list(Reranking(model, BIRDS).rerank({"q": "bird"}, {"q": {"d0": 1.0}}).values()), ["d0"])
    else:
        made = Indexed.build(model, {"d0": "a bird over the sea"})
        well_formed(list(made.search({"q": "bird"}, 1).values()), ["d0"])
        if model.name == "colbert":
            opened(sound / "index").check(model)


def checkpoint_bytes(draw: random.Random, sound: Path, work: Path) -> None:
    folder = copied(sound / "models" / draw.choice(MODELS), work)
    file = draw.choice(files(folder))
    file.write_bytes(damaged(draw, file.read_bytes()))
    opens(folder, sound)


def checkpoint_settings(draw: random.Random, sound: Path, work: Path) -> None:
    folder = copied(sound / "models" / draw.choice(MODELS), work)
    file = draw.choice(
        [file for file in files(folder) if file.suffix == ".json" and file.stat().st_size < 5000]
    )
    text = json.dumps(hostile(draw, json.loads(file.read_text())))
    file.write_text(draw.choice([text] * 8 + [DEEP, "1" * 5000, '{"a":' + "1" * 5000 + "}"]))
    opens(folder, sound)


class Alarm:
    """Unpickling it writes a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return Path.write_text, (self.file, "ran")


def checkpoint_code(draw: random.Random, sound: Path, work: Path) -> None:
    """Code and pickles beside the weights, in their place, and where modules.json points to."""
    folder, canary = copied(sound / "models" / draw.choice(MODELS), work), work / "ran"
    for file in files(folder):
        if file.suffix == ".safetensors" and draw.random() < 0.7:
            file.unlink()
            torch.save({"weight": Alarm(canary)}, file.with_name("pytorch_model.bin"))
    (work / "elsewhere").mkdir()
    torch.save({"linear.weight": Alarm(canary)}, work / "elsewhere" / "pytorch_model.bin")
    if (folder / "modules.json").is_file():
        rows = json.loads((folder / "modules.json").read_text())
        rows[draw.randrange(len(rows))]["path"] = draw.choice(
            ["../elsewhere", str(work / "elsewhere"), "a/b", "."]
        )
        (folder / "modules.json").write_text(json.dumps(rows))
    config = next(file for file in files(folder) if file.name == "config.json")
    for home in {folder, config.parent}:
        (home / "code.py").write_text(f"open({str(canary)!r}, 'w')\nclass Own: pass\n")
    kinds = draw.sample(["AutoConfig", "AutoModel", "AutoTokenizer"], draw.randrange(1, 4))
    more = draw.choice([{}, {"model_type": "stranger"}, {"attn_implementation": "stranger/kernel"}])
    for file in (config, config.with_name("tokenizer_config.json")):
        found = json.loads(file.read_text()) | {"auto_map": dict.fromkeys(kinds, "code.Own")}
        file.write_text(json.dumps(found | (more if file == config else {"tokenizer_class": "Own"})))
    if draw.random() < 0.3:
        adapter = {"peft_type": "LORA", "base_model_name_or_path": str(work / "elsewhere"), "r": 2}
        (config.parent / "adapter_config.json").write_text(json.dumps(adapter))
    stdin, asked = os.dup(0), os.pipe()
    os.write(asked[1], b"y\n1\ny\n")
    os.close(asked[1])
    os.dup2(asked[0], 0)
    try:
        opens(folder, sound)
    finally:
        os.dup2(stdin, 0)
        os.close(stdin)
        os.close(asked[0])
        if canary.exists():
            raise Crashed


# --- texts --------------------------------------------------------------------------------------------


def lines(draw: random.Random, good: list[str]) -> bytes:
    """Lines of which some are doubled, dropped, damaged or strange."""
    found = [line.encode() for line in good]
    for _ in range(draw.randrange(1, 4)):
        at = draw.randrange(len(found))
        strange = draw.choice([DEEP, "1" * 5000, "{}", "null", '{"_id": true, "text": "x"}', "", "q0"])
        strange = draw.choice(
            [strange, '{"_id": [1], "text": "x"}', '{"_id": "a b", "text": "\\ud800"}', "\t\t"]
        )
        found[at] = draw.choice([damaged(draw, found[at]), strange.encode(), found[at] + b"\n" + found[at]])
    return b"\n".join(found) + draw.choice([b"", b"\n", b"\r\n"])


def counted(data: bytes) -> int:
    """Lines that are not blank."""
    return sum(bool(line.strip()) for line in data.split(b"\n"))


def read_json_lines(draw: random.Random, sound: Path, work: Path) -> None:
    data = lines(draw, [json.dumps({"_id": f"d{n}", "title": "t", "text": f"a bird {n}"}) for n in range(6)])
    (work / "x.jsonl").write_bytes(data)
    problems = Problems()
    rows = list(json_lines(work / "x.jsonl", problems))
    doubled = problems.counts.get("duplicate document id (first one kept)", 0)
    if len(rows) + doubled != counted(data) or any(id in ("True", "[1]") for id, _, _ in rows):
        raise Silent(f"{len(rows)} documents of {counted(data)} lines")


def read_queries(draw: random.Random, sound: Path, work: Path) -> None:
    data = lines(draw, [json.dumps({"_id": f"q{n}", "text": "bird"}) for n in range(6)])
    (work / "x").write_bytes(data)
    found = from_file(str(work / "x"))
    if len(found) != counted(data) or any(id in ("True", "[1]") for id in found):
        raise Silent(f"{len(found)} queries of {counted(data)} lines")
    for text in found.values():
        text.encode()


def read_trec(draw: random.Random, sound: Path, work: Path) -> None:
    form, read = draw.choice([("q{n} Q0 d{n} 1 {g}.5 x", read_run), ("q{n} 0 d{n} {g}", read_judgements)])
    numbers = ["1", "0", "-1", "9223372036854775808", "1e400", "nan", "inf", "1" * 5000, "٣", "1_0"]
    data = lines(draw, [form.format(n=n, g=draw.choice(numbers)) for n in range(6)])
    (work / "x").write_bytes(data)
    problems = Problems()
    found: Any = read(work / "x", problems=problems)
    values = [value for row in found.values() for value in row.values()]
    if len(values) + sum(problems.counts.values()) != counted(data) or any(
        value != value or abs(value) >= 1 << 63 for value in values if isinstance(value, int)
    ):
        raise Silent(f"{len(values)} rows of {counted(data)}")


def collections(folder: Path) -> None:
    write_collection(
        folder, [f"a bird {n}" for n in range(6)], [f"bird {n}" for n in range(6)], {"test": range(6)}
    )


def read_beir(draw: random.Random, sound: Path, work: Path) -> None:
    folder = copied(sound, work)
    file = draw.choice([folder / "corpus.jsonl", folder / "queries.jsonl", folder / "qrels" / "test.tsv"])
    good = file.read_text().splitlines()
    header = file.suffix == ".tsv" and draw.random() < 0.7
    data = lines(draw, good[(file.suffix == ".tsv") * (1 - header) :])
    file.write_bytes(data)
    found = load_collection(folder)
    rows = {
        "corpus.jsonl": len(found.corpus),
        "queries.jsonl": counted(data),
        "test.tsv": sum(map(len, found.split("test").judgements.values())),
    }[file.name]
    told = sum(found.problems.counts.values())
    headers = data.replace(b"\r", b"").split(b"\n").count(b"query-id\tcorpus-id\tscore")
    if rows + told < counted(data) - headers:
        raise Silent(f"{rows} rows and {told} problems of {counted(data)} lines: {found.problems}")
    if any(abs(g) >= 1 << 63 for grades in found.split("test").judgements.values() for g in grades.values()):
        raise Silent("a grade that no integer of 64 bits holds")


# --- arguments ----------------------------------------------------------------------------------------


def arguments(draw: random.Random, sound: Path, work: Path) -> None:
    """Arguments that a caller may pass by mistake: the error names the argument."""
    torch.manual_seed(0)
    model = paradigms.PARADIGMS["colbert"](sound / "bert", dim=8, document_length=16, query_length=8)
    index = open_index(sound / "index")
    nan = Tokens(torch.full((1, 2, 3, 8), math.nan), torch.ones(1, 2, 3) > 0)
    size, stored = draw.choice([-1, 0, -64]), partial(Store.build, kinds.exact())
    tries: list[Callable[[], Any]] = [
        lambda: model.encode_queries("how do I sort a list"),  # type: ignore[arg-type]
        lambda: model.encode_documents(["a", None]),  # type: ignore[list-item]
        lambda: model.encode_documents(["a \ud800 bird"]),
        lambda: stored(model, ["a", "b"], ["x", "y"], batch_size=size),
        lambda: stored(model, "ab", ["x", "y"]),
        lambda: stored(model, ["a", "b"], "xy"),
        lambda: stored(model, iter(["a", 1]), iter(["x", "y"])),  # type: ignore[list-item]
        lambda: stored(model, ["a"], ["x \udc80"]),
        lambda: stored(model, ["a"], ["x"], keep=draw.choice([0, -1, math.nan])),
        lambda: Indexed(index, model).search({"q": "bird"}, draw.choice([0, -3])),
        lambda: Indexed(index, model).search({"q": "bird \ud800"}),
        lambda: index.store.tokens_of("d0"),
        lambda: index.store.delete("d0"),
        lambda: Store.build_from(kinds.exact(), [(["a", "b"], nan)], paradigm="x", dim=8),
        lambda: Store.build_from(kinds.exact(), [], paradigm="x", dim=draw.choice([0, -1, 2**40])),
        lambda: paradigms.load(work / "nowhere"),
        lambda: paradigms.PARADIGMS["colbert"](sound / "bert", dmi=8),
        lambda: paradigms.PARADIGMS["dpr"](sound / "bert", lora_rank=2, lora_targets=r"(.|..)+\d"),
    ]
    draw.choice(tries)()
    raise Silent


NAMED = ("text", "batch_size", "document", "ids", "keep", "k must", "dim", "dmi", "lora_targets")


def terminal(draw: random.Random, sound: Path, work: Path) -> None:
    """Only the program's own colour codes reach the terminal."""
    escapes = ["\x1b]52;c;ZXZpbA==\x07", "\x1b[2J", "\x9b2J", "\x07", "\x1b]0;title\x1b\\"]
    escapes += ["\r", "\x08", "\u202e", "[/b]"]
    text = "".join(draw.choice([*escapes, "bird ", "sea "]) for _ in range(12))
    corpus = Corpus([f"d{text}"], [f"{text} bird"], [text])
    out = io.StringIO()
    problems = Problems()
    problems.add("file that is not UTF-8 text (left out)", text)
    with contextlib.redirect_stdout(out):
        Terminal().print(f"{problems}")
        show.results({"q": text}, {"q": {f"d{text}": 1.0}}, corpus, "table")
        show.side_by_side({"q": text}, {text: {"q": {f"d{text}": 1.0}}})
        show.results({"q": text}, {"q": {f"d{text}": 1.0}}, corpus, "jsonl")
        with contextlib.suppress(ValueError):
            show.results({"q": "q"}, {"q": {"d\x1b[2J": 1.0}}, corpus, "trec")
    if any(c in "\x1b\x9b\x07\r\x08\u202e" for c in out.getvalue()):
        raise Silent("a control character was printed")


def identities(draw: random.Random, sound: Path, work: Path) -> None:
    """Change, keep and open (`tests.test_kept`): all answers as what is made anew, or is refused."""
    machine = hypothesis.seed(draw.getrandbits(64))(type("Drawn", (World,), {}))
    how = hypothesis.settings(
        max_examples=3,
        stateful_step_count=15,
        derandomize=False,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            run_state_machine_as_test(machine, settings=how)
    except AssertionError as error:
        raise Silent(str(error)) from error


ATTACKS: dict[str, Attack] = {
    f"{title}, {kind}": index_attack(kind, of, **settings)
    for title, (of, settings) in {
        "bytes of an index": (index_bytes, {"reads": True}),
        "forged index": (index_forged, {"reads": True}),
        "search while written": (threads, {"fast": 1, "cost": 4}),
        "killed writer": (killed, {"fast": 1, "cost": 3, "forks": True}),
        "full disk": (disk_full, {"fast": 1, "cost": 3, "forks": True}),
        "stopped changes": (changed, {"fast": 1, "cost": 3, "forks": True}),
        "two builds": (two_builds, {"fast": 1, "cost": 3, "forks": True}),
        "opened while replaced": (replaced, {"fast": 1, "cost": 3}),
    }.items()
    for kind in KINDS
}
ATTACKS |= {
    "bytes of a checkpoint": Attack(checkpoints, checkpoint_bytes, ("weights", "not finite"), 10),
    "settings of a checkpoint": Attack(
        checkpoints, checkpoint_settings, ("but not by this", "dimensions", "not finite"), 10
    ),
    "code in a checkpoint": Attack(checkpoints, checkpoint_code, ("weights",), 10),
    "JSON lines": Attack(lambda folder: None, read_json_lines, reads=True),
    "queries": Attack(lambda folder: None, read_queries, reads=True),
    "runs and judgements": Attack(lambda folder: None, read_trec, reads=True),
    "BEIR folders": Attack(collections, read_beir, reads=True),
    "arguments": Attack(checkpoints, arguments, NAMED, 18),
    "folders of others": Attack(lambda folder: None, strangers),
    "terminal": Attack(lambda folder: None, terminal, fast=5),
    "identities": Attack(lambda folder: None, identities, fast=1, cost=40),
}
