"""Training that is killed, fills the disk or finds damaged files resumes bit for bit and loses nothing."""

import errno
import os
import re
import resource
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from multiprocessing import resource_sharer
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from torch.utils.data import get_worker_info

from paradigms import Paradigm
from paradigms.io.checks import read_json
from paradigms.io.files import write_json
from paradigms.io.manifest import damage
from paradigms.train import state
from paradigms.train.checkpoints import (
    checkpoint_folder,
    checkpoint_steps,
    newest_checkpoint,
    read_progress,
    remove_checkpoints,
)
from paradigms.train.contrastive import Contrastive
from paradigms.train.loop import TrainingSettings, train
from tests.forks import Fork, fork
from tests.train.test_loop import (
    CORPUS,
    EXAMPLES,
    SETTINGS,
    Interrupted,
    build,
    fit,
    history,
    interrupted_after,
    weights,
)

STEPS = 8
OWN: dict[str, Any] = {"steps": STEPS, "batch_size": 4, "learning_rate": 2e-3}
OWN |= {"evaluate_every": 4, "save_every": 2, "log_every": 1}
Trap = Callable[[Contrastive, Path], None]


def dev(paradigm: Paradigm) -> np.ndarray:
    """A measure that draws from the generator that the dropout draws from."""
    return (paradigm.tokens(["the sea"], "query").vectors[0, 0, 1, :1] + torch.rand(())).numpy()


def go(backbone: Path, folder: Path, trap: Trap | None = None, **changes: Any) -> None:
    """Train in `folder`, or go on there from whatever weights: what a fork does."""
    torch.set_num_threads(1)
    paradigm = build(backbone, seed=len(checkpoint_steps(folder)))
    settings = TrainingSettings(**OWN | changes)
    objective = Contrastive(paradigm, CORPUS, EXAMPLES)
    if trap is not None:
        trap(objective, folder)
    train(paradigm, objective, settings, folder, accelerator=Accelerator(), dev=dev, progress=False)


def start(backbone: Path, folder: Path, trap: Trap | None = None, **changes: Any) -> Fork:
    """Start `go` in a separate process."""
    log = folder.with_suffix(".log")
    return fork(log, partial(go, **changes), backbone, folder, trap, ACCELERATE_USE_CPU="true")


def run(backbone: Path, folder: Path, trap: Trap | None = None, **changes: Any) -> tuple[int, str]:
    """Run `go` in a separate process; return its exit status and output."""
    return start(backbone, folder, trap, **changes).ended()


def same(folder: Path, other: Path) -> None:
    """AssertionError unless two runs logged the same and ended with the same bytes."""
    assert history(folder) == history(other)
    one, two = (read_json(checkpoint_folder(f, STEPS) / "manifest.json") for f in (folder, other))
    for manifest in (one, two):
        del manifest["progress.json"]  # which tells the time
    assert one == two
    assert {"optimizer.safetensors", "random.safetensors", "heads.safetensors"} <= one.keys()
    first, second = (read_progress(f) or {} for f in (folder, other))
    assert (first["best"], first["best_step"]) == (second["best"], second["best_step"])
    best, expected = (weights(Paradigm.from_pretrained(f / "best")) for f in (folder, other))
    assert torch.equal(best, expected)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def at(owner: Any, name: str, call: int, act: Callable[[], None], after: bool = False) -> None:
    """Act before, or after, the call of that number of a function."""
    function, calls = getattr(owner, name), 0

    def trapped(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call and not after:
            act()
        result = function(*arguments, **options)
        if calls == call and after:
            act()
        return result

    setattr(owner, name, trapped)


def in_step(step: int, objective: Contrastive, folder: Path) -> None:
    """Killed in the middle of a step, when its loss is computed, and of a line of the curve."""

    def die() -> None:
        with (folder / "history.jsonl").open("a") as file:
            file.write('{"step": 4, "lo')
        kill()

    at(objective, "loss", step, die)


def in_save(moment: str, objective: Contrastive, folder: Path) -> None:
    """Killed in the second save: that of step 4, which is to remove the one of step 2."""

    def half_removed() -> None:
        (checkpoint_folder(folder, 2) / "heads.safetensors").unlink()
        kill()

    name, act, after = {
        "before the rename": ("write_manifest", kill, True),
        "before the old one goes": ("remove_checkpoints", kill, False),
        "while the old one goes": ("remove_checkpoints", half_removed, False),
    }[moment]
    at(state, name, 2, act, after)


def deleted(step: int, objective: Contrastive, folder: Path) -> None:
    """Its folder is deleted, and it continues after another training has ended there."""

    def act() -> None:
        shutil.rmtree(folder)
        folder.with_suffix(".deleted").touch()
        while not folder.with_suffix(".trained").exists():
            time.sleep(0.01)

    at(objective, "loss", step, act)


def full_disk(objective: Contrastive, folder: Path) -> None:
    """From step 5 on, the disk has room for the weights but not for all of the larger optimizer file."""
    at(objective, "loss", 5, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000)))


def dead_worker(batch: int, objective: Contrastive, folder: Path) -> None:
    """The process that tokenises ahead is killed, as by a system without memory."""
    at(objective, "collate", batch, lambda: kill() if get_worker_info() else None)


def dead_sender(objective: Contrastive, folder: Path) -> None:
    """It is killed while it sends, and torch finds half a batch before it finds the worker dead."""
    receive = resource_sharer.DupFd.detach

    def reset(sent: Any) -> int:
        if checkpoint_steps(folder):
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        return receive(sent)

    patch.object(resource_sharer.DupFd, "detach", reset).start()


@pytest.fixture(scope="module")
def reference(tiny_bert, tmp_path_factory):
    """The folder of a run that nothing interrupted."""
    folder = tmp_path_factory.mktemp("resume") / "whole"
    assert run(tiny_bert, folder) == (0, "")
    assert [line["step"] for line in history(folder)] == [0, 1, 2, 3, 4, 4, 5, 6, 7, 8, 8]
    return folder


@pytest.mark.parametrize("step", [3, 6], ids=["before a checkpoint", "before a line of the curve"])
def test_a_training_whose_folder_was_deleted_leaves_the_next_one_alone(step, reference, tiny_bert, tmp_path):
    folder = tmp_path / "run"
    first = start(tiny_bert, folder, partial(deleted, step))
    first.until(folder.with_suffix(".deleted").exists)
    os.rename(first.log, log := tmp_path / "first.log")
    first.log = log
    assert run(tiny_bert, folder) == (0, "")
    folder.with_suffix(".trained").touch()
    code, output = first.ended()
    assert code == 1
    assert output.splitlines()[-1].startswith(f"BlockingIOError: {folder} was deleted or replaced while this")
    same(folder, reference)


KILLED = -signal.SIGKILL
# What happens in a run, its options, how it ends, what it prints, and the steps whose checkpoints it leaves.
INTERRUPTIONS: dict[str, tuple[Trap, dict[str, Any], int, str, list[int] | None]] = {
    "before the rename": (partial(in_save, "before the rename"), {"keep": 1}, KILLED, "", [2]),
    "before the old one goes": (partial(in_save, "before the old one goes"), {"keep": 1}, KILLED, "", [2, 4]),
    "while the old one goes": (partial(in_save, "while the old one goes"), {"keep": 1}, KILLED, "", [2, 4]),
    "full disk": (full_disk, {}, 1, "^OSError: .*step-6 cannot be written.*File too large", [2, 4]),
    "dead worker": (partial(dead_worker, 6), {"workers": 1}, 1, "^RuntimeError: .*DataLoader worker", None),
    "dead sender": (dead_sender, {"workers": 1}, 1, "^RuntimeError: .*DataLoader worker", None),
}


@pytest.mark.parametrize(
    ("trap", "options", "code", "message", "left"), INTERRUPTIONS.values(), ids=INTERRUPTIONS
)
def test_an_interrupted_run_ends_with_a_line_and_resumes(
    trap, options, code, message, left, reference, tiny_bert, tmp_path
):
    folder = tmp_path / "run"
    ended, output = run(tiny_bert, folder, trap, **options)
    assert ended == code, output
    assert re.search(message, output, re.M), output
    steps = checkpoint_steps(folder)
    assert steps == left if left else steps
    assert newest_checkpoint(folder) == steps[-1]
    if code != KILLED:  # what was half written is gone
        assert len(list((folder / "checkpoints").iterdir())) == len(steps)
    # Nothing to warn of: no half of a checkpoint has a name. And what has none goes, whatever is saved next.
    assert run(tiny_bert, folder, **options | {"save_every": STEPS}) == (0, "")
    same(folder, reference)
    assert f"step-{STEPS}" in {entry.name for entry in (folder / "checkpoints").iterdir()}
    assert all(entry.name.startswith("step-") for entry in (folder / "checkpoints").iterdir())


def truncated(folder: Path) -> None:
    file = folder / "optimizer.safetensors"
    os.truncate(file, file.stat().st_size // 2)


def flipped(folder: Path) -> None:
    content = bytearray((folder / "heads.safetensors").read_bytes())
    content[-5] ^= 1
    (folder / "heads.safetensors").write_bytes(content)


def test_the_newest_whole_checkpoint_is_gone_on_with(reference, tiny_bert, tmp_path):
    folder = tmp_path / "run"
    assert run(tiny_bert, folder, partial(in_step, 7), keep=3)[0] == -signal.SIGKILL
    assert checkpoint_steps(folder) == [2, 4, 6]
    truncated(checkpoint_folder(folder, 6))
    flipped(checkpoint_folder(folder, 4))
    code, output = run(tiny_bert, folder, keep=3)
    assert code == 0, output
    assert re.search(
        r"step-6 is damaged and is skipped: optimizer.safetensors has \d+ bytes, not the", output
    )
    assert "step-4 is damaged and is skipped: heads.safetensors is not what was written" in output
    assert "step-2 is" not in output
    same(folder, reference)
    assert checkpoint_steps(folder) == [4, 6, 8]  # written anew
    assert [damage(checkpoint_folder(folder, step)) for step in (4, 6, 8)] == [None] * 3


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda folder: (folder / "progress.json").unlink(), r"progress\.json is missing"),
        (lambda folder: write_json(folder / "manifest.json", []), r"manifest\.json or .* cannot be read"),
    ],
)
def test_damage_is_told(harm, message, reference, tmp_path):
    shutil.copytree(reference, tmp_path / "run")
    harm(checkpoint_folder(tmp_path / "run", STEPS))
    with pytest.warns(RuntimeWarning, match=rf"step-{STEPS} is damaged and is skipped: {message}"):
        assert newest_checkpoint(tmp_path / "run") == STEPS - 2


def test_what_somebody_put_into_a_checkpoint_stays(tiny_bert, reference, tmp_path):
    """A folder with a checkpoint's name that someone else made or changed is never deleted."""
    shutil.copytree(reference, tmp_path / "run")
    notes = checkpoint_folder(tmp_path / "run", STEPS - 2) / "notes.txt"
    notes.write_text("mine")
    with pytest.warns(RuntimeWarning, match=rf"step-{STEPS - 2} is not removed: .* holds notes\.txt"):
        remove_checkpoints(tmp_path / "run", 1, STEPS)
    assert notes.read_text() == "mine"
    strange = checkpoint_folder(tmp_path / "other", 6)
    strange.mkdir(parents=True)
    (strange / "config.json").write_text("{}")
    with pytest.raises(FileExistsError, match=r"step-6 would be replaced, but holds config\.json"):
        fit(tiny_bert, tmp_path / "other", replace(SETTINGS, steps=6, save_every=6))
    assert [file.name for file in strange.iterdir()] == ["config.json"]


def test_without_a_whole_checkpoint_training_starts_anew(tiny_bert, tmp_path):
    settings = replace(SETTINGS, steps=2, save_every=1)
    fit(tiny_bert, tmp_path, settings)
    expected = history(tmp_path)
    for step in checkpoint_steps(tmp_path):
        truncated(checkpoint_folder(tmp_path, step))
    with pytest.warns(RuntimeWarning, match="damaged") as warnings:
        fit(tiny_bert, tmp_path, settings)
    assert len(warnings) == 2
    assert history(tmp_path) == expected


def test_damaged_checkpoints_take_no_place_of_whole_ones(tiny_bert, tmp_path):
    fit(tiny_bert, tmp_path, replace(SETTINGS, save_every=2, keep=3))
    for step in (4, 6):
        truncated(checkpoint_folder(tmp_path, step))
    with pytest.warns(RuntimeWarning, match="damaged"):
        fit(tiny_bert, tmp_path, replace(SETTINGS, save_every=5, keep=3))
    assert checkpoint_steps(tmp_path) == [2, 5, 6]
    assert newest_checkpoint(tmp_path) == 6


def test_the_scale_of_fp16_starts_anew_and_goes_on(tiny_bert, tmp_path):
    settings = replace(SETTINGS, learning_rate=1e-4, save_every=3)

    def scaled(folder: Path, paradigm: Paradigm) -> dict[str, Any]:
        accelerator = Accelerator(cpu=True)
        accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=3.0)  # as an earlier run left it
        with suppress(Interrupted):
            fit(tiny_bert, folder, settings, paradigm=paradigm, accelerator=accelerator)
        last = read_progress(folder)
        return last["scaler"]

    expected = scaled(tmp_path / "whole", build(tiny_bert))
    assert expected["scale"] == torch.amp.GradScaler("cpu").get_scale()
    assert expected["_growth_tracker"] == settings.steps  # counted since the scale last changed
    assert scaled(tmp_path / "parts", interrupted_after(build(tiny_bert), 5))["_growth_tracker"] == 3
    assert scaled(tmp_path / "parts", build(tiny_bert, seed=1)) == expected
    assert history(tmp_path / "parts") == history(tmp_path / "whole")


def test_gradients_of_a_run_that_was_interrupted_are_none_of_the_next(tiny_bert, tmp_path):
    """In a notebook, a model may be trained again after Ctrl-C between its backward pass and its step."""
    fit(tiny_bert, tmp_path / "whole")
    paradigm, accelerator = build(tiny_bert), Accelerator(cpu=True)

    def interrupt() -> None:
        raise Interrupted

    at(accelerator, "clip_grad_norm_", 3, interrupt)
    for expected in (pytest.raises(Interrupted), nullcontext()):
        with expected:
            fit(tiny_bert, tmp_path / "parts", paradigm=paradigm, accelerator=accelerator)
    assert history(tmp_path / "parts") == history(tmp_path / "whole")
