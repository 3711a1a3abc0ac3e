"""What the first of two processes does alone, and fails at, ends both with the same error: neither waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import capacity
import hybrid
import pytest
import token_retrieval
import train
from accelerate import Accelerator
from studies import model_runs
from studies.model_runs import Job

from paradigms.data import Collection, Corpus, Problems, Split
from paradigms.train import job, teacher
from paradigms.train.state import by_main
from tests import launch

COLLECTION: Any = SimpleNamespace(name="none", corpus=Corpus(["d"], ["text"]))


def full_disk(*given: Any, **named: Any) -> Any:
    raise OSError("no space left")


def fails_for_both(action: Callable[[], Any], accelerator: Accelerator) -> None:
    """In the order in which processes meet, so that both are where they were."""
    begins = "no space" if accelerator.is_main_process else "process 0 failed: no space"
    with pytest.raises(OSError, match=begins):
        action()


# --- checks that each of two processes runs: (accelerator, backbone, folder) -------------------------


def one_acts(accelerator: Accelerator, backbone: Path, folder: Path) -> None:
    """The result reaches both; so does every kind of error, the last word of a script included."""
    assert by_main(lambda: accelerator.process_index + 7, accelerator) == 7
    for kind in (OSError, ValueError, FloatingPointError, KeyError, SystemExit):

        def fail(kind: type[BaseException] = kind) -> None:
            raise kind("other settings")

        with pytest.raises(kind, match="other settings"):
            by_main(fail, accelerator)

    def unheard_of() -> None:
        raise LookupError("lost")

    with pytest.raises(LookupError if accelerator.is_main_process else RuntimeError, match="lost"):
        by_main(unheard_of, accelerator)


def pairs_cannot_be_kept(accelerator: Accelerator, backbone: Path, folder: Path) -> None:
    def load() -> Any:
        return lambda run, progress: {q: dict.fromkeys(of, 1.0) for q, of in run.items()}

    scores = teacher.scored_once(folder / "teacher.run", load, accelerator)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(teacher.shutil, "rmtree", full_disk)
        fails_for_both(lambda: scores({"q": ["d"]}), accelerator)
    assert scores({"q": ["d"]}) == {"q": {"d": 1.0}}


def small_models_cannot_be_made(accelerator: Accelerator, backbone: Path, folder: Path) -> None:
    nothing = Split({}, {})
    collection = Collection("none", COLLECTION.corpus, {"train": nothing, "dev": nothing}, Problems(), "")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job, "small_t5", full_disk)
        fails_for_both(lambda: job.t5_folder("small", collection, folder / "t5", 0, accelerator), accelerator)


def negatives_cannot_be_mined(accelerator: Accelerator, backbone: Path, folder: Path) -> None:
    nothing = Split({}, {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "load", full_disk)
        fails_for_both(
            lambda: train.mined_run(str(backbone), COLLECTION, nothing, folder, accelerator), accelerator
        )


def capacity_cannot_measure(accelerator: Accelerator, backbone: Path, folder: Path) -> None:
    model = SimpleNamespace(to=lambda device: model)
    settings = capacity.Settings(output=str(folder / "capacity"))
    with pytest.MonkeyPatch.context() as patch:
        for name in ("build", "fit"):
            patch.setattr(capacity, name, lambda *given: model)
        for name in ("temperature", "numbers_of"):
            patch.setattr(capacity, name, lambda *given: 1)
        patch.setattr(capacity, "measure", full_disk)
        collection = SimpleNamespace(split=lambda name: None)
        bench: Any = SimpleNamespace(length=30, collection=collection, mined=None)
        run = (bench, 0, "DE-BERT", 2, settings, folder / "capacity", accelerator)
        fails_for_both(lambda: capacity.run_system(*run), accelerator)


def studies_cannot_save_or_measure(accelerator: Accelerator, backbone: Path, folder: Path) -> None:
    settings = token_retrieval.Settings(output=str(folder / "tokens"), backbone=str(backbone), tracker="none")
    bench: Any = SimpleNamespace(collection=COLLECTION, train=None, mined=None, dev=None, dev_run=None)
    model: Any = SimpleNamespace(to=lambda device: model, eval=lambda: model, save_pretrained=full_disk)
    job = Job("one", folder / "one", 0, lambda: model, full_disk, load=lambda checkpoint: model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_runs, "fit", lambda *given: model)
        fails_for_both(lambda: model_runs.run_job(job, bench, settings, accelerator), accelerator)
        patch.setattr(model_runs.ExactIndex, "build", lambda *given, **how: None)
        saved = replace(job, checkpoint=folder)
        fails_for_both(lambda: model_runs.run_job(saved, bench, settings, accelerator), accelerator)


def hybrid_cannot_measure(accelerator: Accelerator, backbone: Path, folder: Path) -> None:
    """Each process ends with its own word of it: the script goes on after no error."""
    with pytest.MonkeyPatch.context() as patch:
        bench = SimpleNamespace(collection=SimpleNamespace(name="none", fingerprint=""))
        patch.setattr(hybrid, "open_bench", lambda *given: bench)
        patch.setattr(hybrid, "begin", lambda settings: (accelerator, SimpleNamespace(print=print)))
        patch.setattr(hybrid, "train_all", lambda *given: None)
        patch.setattr(hybrid, "measure", full_disk)
        with pytest.raises(SystemExit, match=r"none, seed 0: .*no space left"):
            hybrid.main(hybrid.Settings(output=str(folder / "hybrid"), seeds=[0]))


CHECKS = (
    one_acts,
    pairs_cannot_be_kept,
    small_models_cannot_be_made,
    negatives_cannot_be_mined,
    capacity_cannot_measure,
    studies_cannot_save_or_measure,
    hybrid_cannot_measure,
)


@pytest.fixture(scope="module")
def outcomes(tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which two processes noted how the checks ended."""
    folder = tmp_path_factory.mktemp("main")
    launch.forked(CHECKS, tiny_bert, folder)
    return folder


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_two_processes(outcomes: Path, check: Callable[..., None]) -> None:
    launch.passed(check, outcomes)
