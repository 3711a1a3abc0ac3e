"""More writers, killed and crowded: indexes by several processes, LanceDB, Qdrant, trainings, comparisons."""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import shutil
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from studies.system_runs import read_stage, write_runs

import paradigms
from paradigms.cli.arguments import main
from paradigms.cli.indexed import open_folder
from paradigms.data import Corpus
from paradigms.engines import LanceEngine, QdrantEdgeEngine
from paradigms.io.files import write_json
from paradigms.store import Store
from paradigms.train.contrastive import Contrastive
from paradigms.train.examples import Example
from paradigms.train.loop import TrainingSettings, train
from tests.attack.attacks import (
    DIM,
    KINDS,
    files,
    index_attack,
    limited,
    parts,
    queries,
    results,
    stop_at,
    well_formed,
)
from tests.attack.attacks import opened as opened_store
from tests.attack.harness import Attack, Crashed, Lost, Process, Silent, copied, damaged, succeed, together
from tests.experiments.scripts import from_command_line
from tests.tiny import write_checkpoint, write_collection

# --- two writers and two readers ----------------------------------------------------------------------


def crowd(draw: random.Random, sound: Path, work: Path, kind: str) -> None:
    """Two processes add, delete and compact while two others search: nothing fails and nothing is lost."""
    folder, until = copied(sound / "index", work), time.monotonic() + (SUSTAINED if FULL else 1)

    def write(name: str) -> None:
        turn = 0
        while time.monotonic() < until:
            first, turn = 100 + 12 * turn, turn + 1
            own = [f"{name}{n}" for n in range(first, first + 12)]
            insist(lambda store, first=first: store.add_from(parts(first, 12, name, kind)))
            insist(lambda store, own=own: store.delete(own[:-1]))
            if turn % 8 == 0:
                insist(lambda store: store.compact())
        (work / name).write_text(str(turn))

    def insist(change: Callable[[Store], object]) -> None:
        while True:
            with contextlib.suppress(BlockingIOError):
                change(opened_store(folder))
                return
            time.sleep(0.002)

    def read() -> None:
        while time.monotonic() < until:
            store = opened_store(folder)
            for _ in range(3):
                well_formed(results(store), store.ids)

    for error in filter(None, together(lambda: write("a"), lambda: write("b"), read, read)):
        raise Crashed("a writer or reader") from error
    last = {f"{name}{111 + 12 * n}" for name in "ab" for n in range(int((work / name).read_text()))}
    if set(opened_store(folder).rows_by_id) != last | {f"d{n}" for n in range(24)}:
        raise Lost("documents of a writer")


FULL = bool(os.environ.get("ATTACK_FULL"))
SUSTAINED = 120  # seconds of each kind of index: ten minutes together


# --- LanceDB and Qdrant -------------------------------------------------------------------------------

ENGINES: dict[str, Callable[[Path], Any]] = {
    "lancedb": lambda folder: LanceEngine(str(folder), DIM),
    "qdrant": lambda folder: QdrantEdgeEngine(folder, DIM),
}
PACKAGES = {"lancedb": "lancedb", "qdrant": "qdrant_edge"}
IDS = {f"d{n}" for n in range(400) if n % 6}


@contextlib.contextmanager
def opened(kind: str, folder: Path) -> Any:
    engine = ENGINES[kind](folder)
    try:
        yield engine
    finally:
        if kind == "qdrant":
            engine.close()


def fill(kind: str, folder: Path, first: int = 0, count: int = 24) -> None:
    """Documents with tokens, six numbers at a time."""
    with opened(kind, folder) as engine:
        for ids, tokens in parts(first, count):
            arrays = [v[m].numpy() for v, m in zip(tokens.vectors[0], tokens.mask[0], strict=True)]
            whole = [(id, of) for id, of in zip(ids, arrays, strict=True) if len(of)]
            engine.add(*map(list, zip(*whole, strict=True)))


def stored(kind: str, folder: Path) -> list[dict[str, float]]:
    """The scores of all documents for each of three queries."""
    with opened(kind, folder) as engine:
        found = [dict(engine.top(query.numpy(), 400)) for query in queries().vectors[:, 0]]
    well_formed(found, IDS)
    return found


def kept(kind: str, folder: Path, wanted: Path) -> None:
    """Check that `folder` holds all of `wanted`."""
    for new, old in zip(stored(kind, folder), stored(kind, wanted), strict=True):
        if not old.keys() <= new.keys() or any(abs(new[id] - score) > 1e-3 for id, score in old.items()):
            raise Lost("a document that was stored, or its vectors")


def engine_bytes(draw: random.Random, sound: Path, work: Path, kind: str) -> None:
    """Damage a file of the engine itself: whatever it returns must be one of the documents."""
    folder = copied(sound / "engine", work)
    file = draw.choice([file for file in files(folder) if file.stat().st_size])
    file.write_bytes(damaged(draw, file.read_bytes()))
    succeed(lambda: stored(kind, folder))


def engine_stopped(draw: random.Random, sound: Path, work: Path, kind: str) -> None:
    """kill -9 of an addition, or a full disk: what was there is there, and the addition can be repeated."""
    folder, most = copied(sound / "engine", work), draw.choice([0, int(10 ** draw.uniform(1, 4.5))])

    def add() -> None:
        (work / "begun").touch()
        if most:
            limited(most)
        fill(kind, folder, 0, 48)

    def again() -> None:
        kept(kind, folder, sound / "engine")
        fill(kind, folder, 0, 48)
        kept(kind, folder, sound / "larger")

    with Process(add) as child:
        while not (work / "begun").exists():
            time.sleep(0.001)
        if not most:
            time.sleep(draw.random() * 0.3)
        said = child.error() if most else None
    succeed(again)
    if said:
        raise said


def engine_crowd(draw: random.Random, sound: Path, work: Path, kind: str) -> None:
    """Two processes add documents while two others search: every addition that succeeded is there."""
    folder = copied(sound / "engine", work)
    said = together(
        *(partial(fill, kind, folder, first, 24) for first in (100, 200)),
        *[partial(stored, kind, folder)] * 2,
    )
    for error, first in zip(said, (100, 200), strict=False):
        if error is None:
            succeed(partial(holds, kind, folder, first))
    for error in filter(None, said):
        raise error


def holds(kind: str, folder: Path, first: int) -> None:
    if not {f"d{n}" for n in range(first, first + 24) if n % 6} <= stored(kind, folder)[0].keys():
        raise Lost(f"documents from {first} on")


def engines(folder: Path, kind: str) -> None:
    """An engine, and another of twice as many documents. What is imported here each fork has; used it is by
    forks alone, as LanceDB's threads do not survive one."""
    warnings.filterwarnings("ignore", "lancedb fork support is experimental")
    __import__(PACKAGES[kind])
    succeed(lambda: fill(kind, folder / "engine"))
    succeed(lambda: fill(kind, folder / "larger", 0, 48))


# --- updates of searchable folders --------------------------------------------------------------------


def searchable(folder: Path, kind: str) -> None:
    """A source, its index, the model that made it and another one."""
    write_checkpoint("bert", folder / "bert")
    for seed, name in enumerate(("model", "other")):
        torch.manual_seed(seed)
        model = paradigms.PARADIGMS["colbert"](folder / "bert", dim=8, query_length=8, document_length=24)
        model.save_pretrained(folder / name)
    (folder / "notes").mkdir()
    for n in range(12):
        (folder / "notes" / f"{n}.txt").write_text(f"a bird {n} flew over the sea")
    succeed(lambda: index_notes(folder, kind))


def silence() -> None:
    """Print nothing more in this process."""
    with open(os.devnull, "w") as nowhere:
        for stream in (1, 2):
            os.dup2(nowhere.fileno(), stream)


def index_notes(folder: Path, kind: str, model: str = "model") -> None:
    silence()
    options = {"model": folder / model, "kind": kind, "output": folder / "notes.index"}
    main(["index", f"{folder}/notes", *(f"--{name}={value}" for name, value in options.items())])


def edit(draw: random.Random, folder: Path) -> None:
    """Change, delete and add some files of a source; most stay."""
    for file in draw.sample(files(folder / "notes"), 3):
        if draw.random() < 0.3:
            file.unlink()
        else:
            file.write_text(f"the {draw.choice(['lion', 'river', 'fire'])} of {draw.randrange(99)} birds")
    for _ in range(draw.randrange(3)):
        (folder / "notes" / f"{draw.randrange(20, 99)}.txt").write_text(
            f"snow on {draw.randrange(99)} rivers"
        )


def update_stopped(draw: random.Random, sound: Path, work: Path, kind: str) -> None:
    """An update is refused, killed or out of disk space: a search finds all documents of the state before it
    or after it, and the update, also of a source that changed again, ends with what it does undisturbed."""
    folder, whole, full, number = copied(sound, work), work / "whole", draw.random() < 0.5, math.inf
    model, again = draw.choice(["model"] * 4 + ["other"]), draw.random() < 0.5
    edit(draw, folder)
    shutil.copytree(folder, whole)

    def update(folder: Path, model: str = "model") -> None:
        with stop_at(number, folder if full else None) as writes:
            index_notes(folder, kind, model)
            (work / "writes").write_text(str(writes()))

    def state(folder: Path) -> dict[str, tuple[str, float]]:
        def read() -> None:
            found = open_folder(folder / "notes.index")
            scores = found.retriever.search({"q": "a bird over the sea"}, 99)["q"]
            texts = {id: (found.corpus[found.corpus.position(id)], score) for id, score in scores.items()}
            (work / "state").write_text(json.dumps(texts))

        succeed(read)
        return json.loads((work / "state").read_text())

    def same(one: dict[str, tuple[str, float]], other: dict[str, tuple[str, float]]) -> bool:
        return one.keys() == other.keys() and all(
            one[id][0] == text and abs(one[id][1] - score) < 0.01 for id, (text, score) in other.items()
        )

    try:
        states = [state(folder)]
        succeed(lambda: update(whole))
        states.append(state(whole))
        number = draw.randrange(int((work / "writes").read_text())) if model == "model" else number
        with Process(lambda: update(folder, model)) as child:
            said = child.error()
        number = math.inf
        found = state(folder)
        if not any(same(found, one) for one in states[: 1 + (model == "model")]):
            raise Silent("neither the documents before the update nor those after it")
        if again:
            seed = draw.random()
            for place in (folder, whole):
                edit(random.Random(seed), place)
        succeed(lambda: update(folder))
        succeed(lambda: update(whole))
    except (OSError, ValueError, KeyError, SystemExit) as error:
        raise Lost("an index that was searchable") from error
    if not same(state(folder), state(whole)):
        raise Silent("other documents after the update was repeated")
    if said is not None and (full or model == "other"):
        raise said


# --- trainings and comparisons ------------------------------------------------------------------------

LENGTHS = json.dumps({"query_length": 8, "document_length": 12})
COMMON = {"steps": 6, "trained_layers": 1, "batch_size": 2, "evaluate_every": 2}
COMMON |= {"dev_queries": 2, "tracker": "none"}


def run(name: str, sound: Path, output: Path, **changes: Any) -> None:
    """A script of experiments, silently."""
    script = __import__(name)
    flags = COMMON | {"collection": sound / "collection", "backbone": sound / "bert", "options": LENGTHS}
    if name == "compare":
        flags |= {"systems": '{"dpr": {}}', "depth": 5, "seeds": [changes.pop("seed")]}
    else:
        flags |= {"paradigm": "dpr", "precision": "no"}
    flags |= {"output": output} | changes
    silence()
    script.main(from_command_line(script.Settings, "", [f"--{key}={value}" for key, value in flags.items()]))


def trainings(folder: Path, wanted: Sequence[tuple[str, int]]) -> None:
    """Run the scripts undisturbed, each with one seed; return what they write and how long they take."""
    write_checkpoint("bert", folder / "bert")
    texts = [f"a bird {n} over the sea" for n in range(26)]
    (folder / "collection").mkdir()
    splits = {"train": range(20), "test": range(20, 26)}
    write_collection(folder / "collection", texts, [f"bird {n}" for n in range(26)], splits)
    for name, seed in wanted:
        __import__(name)
        began = time.perf_counter()
        succeed(partial(run, name, folder, folder / f"{name}{seed}", seed=seed))
        (folder / f"{name}.s").write_text(str(time.perf_counter() - began))


def outcome(folder: Path) -> dict[str, bytes]:
    """Weights and runs, which have the same bytes however often a run was interrupted."""
    kinds = (".safetensors", ".run")
    kept = [f for f in files(folder) if f.suffix in kinds and not {"checkpoints", "index"} & {*f.parts}]
    return {str(file.relative_to(folder)): file.read_bytes() for file in kept}


def script_killed(draw: random.Random, sound: Path, work: Path, name: str) -> None:
    """kill -9 once or twice, and damaged states of frozen layers; then the bytes of an undisturbed run."""
    lasts = float((sound / f"{name}.s").read_text())
    for _ in range(draw.randrange(1, 3)):
        with Process(lambda: run(name, sound, work / "output", seed=0)):
            time.sleep(draw.random() * lasts)
        for states in (work / "output").rglob("states.safetensors"):
            if draw.random() < 0.5:
                states.write_bytes(damaged(draw, states.read_bytes()))
    succeed(lambda: run(name, sound, work / "output", seed=0))
    if list((work / "output").rglob("states")):
        raise Lost("the disk space of the states of frozen layers")
    if outcome(work / "output") != outcome(sound / f"{name}0"):
        raise Lost("other bytes than of a run that ended")


def backbone(folder: Path) -> None:
    write_checkpoint("bert", folder / "bert")


def trained_again(draw: random.Random, sound: Path, work: Path) -> None:
    """Train one model two or three times in one process, each time in the precision that is set."""
    precisions = [draw.choice(["no", "bf16"]) for _ in range(draw.randrange(2, 4))]

    def in_turn() -> None:
        model = paradigms.PARADIGMS["dpr"](sound / "bert", query_length=8, document_length=12)
        types: set[torch.dtype] = set()
        for module in model.modules():
            if isinstance(module, torch.nn.Linear):
                module.register_forward_hook(lambda module, inputs, output: types.add(output.dtype))
        corpus = Corpus(["d0", "d1"], ["", ""], ["a bird", "the sea"])
        examples = [Example("bird", 0, (), (0,)), Example("sea", 1, (), (1,))]
        for number, precision in enumerate(precisions):
            AcceleratorState._reset_state()
            accelerator = Accelerator(cpu=True, mixed_precision=precision)
            settings = TrainingSettings(steps=1, batch_size=2)
            objective = Contrastive(model, corpus, examples)
            train(model, objective, settings, work / str(number), accelerator=accelerator, progress=False)
            if types != {torch.float32 if precision == "no" else torch.bfloat16}:
                raise Silent(f"{precisions}: {types} in training {number}")
            types.clear()

    succeed(in_turn)


def two_trainings(draw: random.Random, sound: Path, work: Path) -> None:
    """Two trainings with different seeds share one folder: it holds one of them, whole; the other fails."""
    output, later = work / "output", draw.random() * 0.2

    def second() -> None:
        time.sleep(later)
        run("train", sound, output, seed=1)

    said = together(lambda: run("train", sound, output, seed=0), second)
    if None not in said:
        raise Lost("neither training ended")
    seed = json.loads((output / "config.json").read_text())["seed"]
    steps = [json.loads(line)["step"] for line in (output / "training" / "history.jsonl").open()]
    if outcome(output) != outcome(sound / f"train{seed}") or steps != sorted(steps) or said[seed]:
        raise Silent("settings of one training and weights of another")
    for error in filter(None, said):
        raise error
    raise Silent("both ended")


def deleted_training(draw: random.Random, sound: Path, work: Path) -> None:
    """The folder of a training is deleted while it runs, and another starts there: the second one's alone."""
    output, lasts = work / "output", float((sound / "train.s").read_text())
    with Process(lambda: run("train", sound, output, seed=0)) as first:
        time.sleep(draw.random() * lasts)
        shutil.rmtree(output, ignore_errors=True)
        with Process(lambda: run("train", sound, output, seed=1)) as second:
            refused, failed = first.error(), second.error()
    if failed and not refused:  # the first one locked the folder again before it had written anything
        refused, failed, seed = failed, None, 0
    else:
        seed = 1
    if failed:
        raise Lost("neither training ended") from failed
    if outcome(output) != outcome(sound / f"train{seed}"):
        raise Silent("settings of one training and weights of another")
    if refused:
        raise refused


def cut_run(draw: random.Random, sound: Path, work: Path) -> None:
    """A run file that ends anywhere, beside the costs of a system that has finished."""
    folder = copied(sound / "results", work)
    file = folder / "runs" / "dpr.retrieve.run"
    data = file.read_bytes()
    file.write_bytes(data[: draw.choice([0, draw.randrange(len(data)), data.rindex(b"\n", 0, -1) + 1])])
    if read_stage(folder, "dpr", "retrieve") != read_stage(sound / "results", "dpr", "retrieve"):
        raise Silent("fewer documents or queries, without a word")


def finished_run(folder: Path) -> None:
    run = {f"q{n}": {f"d{n}": 2.0, "d9": 1.0} for n in range(4)}
    rows = write_runs(folder / "results", "dpr", {"retrieve": run}, {"retrieve": run})
    write_json(folder / "results" / "dpr" / "costs.json", {"rows": rows})


SLOW: dict[str, Any] = {"fast": 0, "cost": 20, "forks": True, "seconds": 600}
TRAINED = partial(trainings, wanted=(("train", 0),))
BOTH_TRAINED = partial(trainings, wanted=(("train", 0), ("train", 1)))
COMPARED = partial(trainings, wanted=(("compare", 0),))
WRITERS: dict[str, Attack] = {
    f"two writers and two readers, {kind}": index_attack(
        kind, crowd, fast=1, cost=1000, forks=True, seconds=SUSTAINED
    )
    for kind in KINDS
}
for kind in [kind for kind in ENGINES if find_spec(PACKAGES[kind])]:
    fast, cost = (2, 4) if kind == "qdrant" else (0, 16)
    for title, attempt in {
        "bytes of an engine": engine_bytes,
        "killed writer or full disk": engine_stopped,
        "two writers and two readers": engine_crowd,
    }.items():
        WRITERS[f"{title}, {kind}"] = Attack(
            partial(engines, kind=kind),
            partial(attempt, kind=kind),
            fast=fast,
            cost=cost,
            forks=True,
            seconds=240,
        )
WRITERS |= {
    f"updates refused, {kind}": Attack(
        partial(searchable, kind=kind), partial(update_stopped, kind=kind), fast=1, cost=20, forks=True
    )
    for kind in ("exact", "faiss")
}
WRITERS |= {
    "cut run of a comparison": Attack(finished_run, cut_run, forks=True),
    "killed training": Attack(TRAINED, partial(script_killed, name="train"), **SLOW),
    "killed comparison": Attack(COMPARED, partial(script_killed, name="compare"), **SLOW),
    "trainings of one model": Attack(backbone, trained_again, **SLOW),
    "two trainings": Attack(BOTH_TRAINED, two_trainings, **SLOW),
    "deleted training": Attack(BOTH_TRAINED, deleted_training, **SLOW),
}
