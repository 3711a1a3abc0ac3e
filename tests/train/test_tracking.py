"""The accelerator of every script: how long processes wait for one another, and what is refused."""

from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from paradigms.io.command_line import folder_name
from paradigms.io.files import locked
from paradigms.train import script, tracking


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The arguments that `begin` passes to the Accelerator, without creating one; "device" is its device."""
    given: dict[str, Any] = {"device": "cpu"}

    class Recorder(Accelerator):
        is_main_process, mixed_precision = True, "no"

        def __init__(self, **options: Any) -> None:
            given.update(options)

        @property
        def device(self) -> torch.device:
            return torch.device(given["device"])

    monkeypatch.setattr(script, "Accelerator", Recorder)
    monkeypatch.setattr(tracking, "take", lambda *given: None)
    return given


@dataclass
class Settings:
    output: str = "unused"
    precision: str = "no"
    tracker: str = "none"


def test_fp16_on_a_processor_ends_with_a_line(given: dict[str, Any]) -> None:
    with pytest.raises(SystemExit, match="fp16 needs a GPU"):
        script.begin(Settings(precision="fp16"))


def test_a_run_of_wandb_is_joined_by_the_process_alone_that_holds_the_folder(tmp_path, monkeypatch):
    joined: list[Path] = []
    monkeypatch.setattr(tracking, "start_wandb", lambda *given: joined.append(given[-1]))
    settings = Settings(str(tmp_path), tracker="wandb")
    with locked(tmp_path), pytest.raises(SystemExit, match=f"{tmp_path} is being written by another process"):
        script.begin(settings)
    assert not joined
    script.begin(settings)
    assert joined == [tmp_path]
    with pytest.raises(BlockingIOError), locked(tmp_path):
        pass


def test_processes_wait_while_one_searches_a_corpus(given: dict[str, Any]) -> None:
    script.begin(Settings())
    (group,) = given["kwargs_handlers"]
    assert group.timeout > timedelta(hours=24)


def test_results_are_named_after_the_collection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "v1.2").mkdir()  # what differs after a dot makes two folders
    names = ("pydocs", "data/scifact/", ".", "v1.2", "hf:BeIR/scifact", "irds:beir/scifact/test")
    expected = ["pydocs", "scifact", tmp_path.name, "v1.2", "hf-BeIR-scifact", "irds-beir-scifact-test"]
    assert [folder_name(name) for name in names] == expected


@pytest.mark.parametrize(
    ("environment", "refused"),
    [
        ({"WORLD_SIZE": "1", "LOCAL_RANK": "0"}, True),  # as gpu.yaml
        ({"WORLD_SIZE": "4", "LOCAL_RANK": "0"}, True),  # as gpus.yaml
        ({"WORLD_SIZE": "2", "LOCAL_RANK": "0", "ACCELERATE_USE_CPU": "true"}, False),  # as cpu_2.yaml
        ({"ACCELERATE_USE_CPU": "False"}, False),  # as accelerate launch without a configuration
        ({}, False),
    ],
)
def test_a_launch_on_gpus_without_one_is_refused(environment, refused, monkeypatch):
    for name in ("ACCELERATE_USE_CPU", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="configured for GPUs") if refused else nullcontext():
        tracking.check_launch()
