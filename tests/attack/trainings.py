"""Trainings and comparisons that are killed, doubled, or lose their folder."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from functools import partial
from pathlib import Path
from typing import Any

from tests.attack.harness import Attack, Lost, Process, Silent, damaged, succeed, together
from tests.attack.indexes import files
from tests.experiments.scripts import from_command_line
from tests.tiny import write_checkpoint, write_collection

LENGTHS = json.dumps({"query_length": 8, "document_length": 12})
COMMON = {"steps": 6, "trained_layers": 1, "batch_size": 2, "evaluate_every": 2}
COMMON |= {"dev_queries": 2, "tracker": "none"}


def silence() -> None:
    """Print nothing more in this process."""
    with open(os.devnull, "w") as nowhere:
        for stream in (1, 2):
            os.dup2(nowhere.fileno(), stream)


def run(name: str, sound: Path, output: Path, seed: int) -> None:
    """A script of experiments, silently."""
    script = __import__(name)
    flags = COMMON | {"collection": sound / "collection", "backbone": sound / "bert", "options": LENGTHS}
    if name == "compare":
        flags |= {"systems": '{"dpr": {}}', "depth": 5, "seeds": [seed]}
    else:
        flags |= {"paradigm": "dpr", "precision": "no", "seed": seed}
    words = [f"--{key}={value}" for key, value in (flags | {"output": output}).items()]
    silence()
    script.main(from_command_line(script.Settings, "", words))


def prepare(folder: Path, name: str, seeds: tuple[int, ...]) -> None:
    """Run a script undisturbed, once with each seed; note how long the last run takes."""
    write_checkpoint("bert", folder / "bert")
    texts = [f"a bird {n} over the sea" for n in range(26)]
    (folder / "collection").mkdir()
    splits = {"train": range(20), "test": range(20, 26)}
    write_collection(folder / "collection", texts, [f"bird {n}" for n in range(26)], splits)
    __import__(name)
    for seed in seeds:
        began = time.perf_counter()
        succeed(partial(run, name, folder, folder / str(seed), seed))
        (folder / "seconds").write_text(str(time.perf_counter() - began))


def outcome(folder: Path) -> dict[str, bytes]:
    """Weights and runs, which have the same bytes however often a run was interrupted."""
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in files(folder)
        if file.suffix in (".safetensors", ".run") and not {"checkpoints", "index"} & {*file.parts}
    }


def killed(draw: random.Random, sound: Path, work: Path, name: str) -> None:
    """kill -9 once or twice, and damaged states of frozen layers; then the bytes of an undisturbed run."""
    output, seconds = work / "output", float((sound / "seconds").read_text())
    for _ in range(draw.randrange(1, 3)):
        with Process(lambda: run(name, sound, output, 0)):
            time.sleep(draw.random() * seconds)
        for states in output.rglob("states.safetensors"):
            if draw.random() < 0.5:
                states.write_bytes(damaged(draw, states.read_bytes()))
    succeed(lambda: run(name, sound, output, 0))
    if list(output.rglob("states")):
        raise Lost("the disk space of the states of frozen layers")
    if outcome(output) != outcome(sound / "0"):
        raise Lost("other bytes than of a run that ended")


def doubled(draw: random.Random, sound: Path, work: Path) -> None:
    """Two trainings with different seeds share one folder: it holds one of them, whole; the other fails."""
    output, later = work / "output", draw.random() * 0.2

    def second() -> None:
        time.sleep(later)
        run("train", sound, output, 1)

    errors = together(lambda: run("train", sound, output, 0), second)
    if None not in errors:
        raise Lost("neither training ended")
    seed = json.loads((output / "config.json").read_text())["seed"]
    steps = [json.loads(line)["step"] for line in (output / "training" / "history.jsonl").open()]
    if outcome(output) != outcome(sound / str(seed)) or steps != sorted(steps) or errors[seed]:
        raise Silent("settings of one training and weights of another")
    for error in filter(None, errors):
        raise error
    raise Silent("both ended")


def deleted(draw: random.Random, sound: Path, work: Path) -> None:
    """The folder of a training is deleted while it runs, and another starts there: it holds one of them."""
    output, seconds = work / "output", float((sound / "seconds").read_text())
    with Process(lambda: run("train", sound, output, 0)) as first:
        time.sleep(draw.random() * seconds)
        shutil.rmtree(output, ignore_errors=True)
        with Process(lambda: run("train", sound, output, 1)) as second:
            errors = [first.error(), second.error()]
    seed = 1 if errors[1] is None else 0  # the first may lock the folder again before it writes
    if errors[seed]:
        raise Lost("neither training ended") from errors[1]
    if outcome(output) != outcome(sound / str(seed)):
        raise Silent("settings of one training and weights of another")
    if error := errors[1 - seed]:
        raise error


SLOW: dict[str, Any] = {"fast": 0, "cost": 20, "seconds": 600}
TRAINED = partial(prepare, name="train", seeds=(0, 1))
TRAININGS: dict[str, Attack] = {
    "killed training": Attack(TRAINED, partial(killed, name="train"), **SLOW),
    "killed comparison": Attack(
        partial(prepare, name="compare", seeds=(0,)), partial(killed, name="compare"), **SLOW
    ),
    "two trainings": Attack(TRAINED, doubled, **SLOW),
    "deleted training": Attack(TRAINED, deleted, **SLOW),
}
