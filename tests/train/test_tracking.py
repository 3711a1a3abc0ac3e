"""The accelerator of every script: how long processes wait for one another, and what is refused."""

from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from paradigms.io.command_line import folder_name
from paradigms.io.files import locked
from paradigms.train import launcher, script


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
    monkeypatch.setattr(script, "lock_output", lambda *given: None)
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
    monkeypatch.setattr(script, "start_wandb", lambda *given: joined.append(given[-1]))
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


AS_LAUNCHED = {"ACCELERATE_DYNAMO_BACKEND": "NO", "ACCELERATE_MIXED_PRECISION": "no"}
GPUS, ONE = "configured for GPUs", "started one"


def launched_by(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a command appear as the parent of this process."""

    class Process:
        def parents(self) -> list[Any]:
            return [SimpleNamespace(cmdline=lambda line=line: line) for line in (["sh"], words, ["init"])]

    monkeypatch.setattr(launcher.psutil, "Process", Process)


@pytest.mark.parametrize(
    ("environment", "refused"),
    [
        ({"WORLD_SIZE": "1", "LOCAL_RANK": "0"}, GPUS),  # as gpu.yaml
        ({"WORLD_SIZE": "4", "LOCAL_RANK": "0"}, GPUS),  # as gpus.yaml
        ({"WORLD_SIZE": "2", "LOCAL_RANK": "0", "ACCELERATE_USE_CPU": "true"}, ""),  # as cpu_2.yaml
        ({"ACCELERATE_USE_CPU": "False"}, ""),  # as accelerate launch without a configuration
        ({}, ""),
        ({"MASTER_ADDR": "host"}, ""),  # as a cluster
        (AS_LAUNCHED | {"MASTER_ADDR": "host"}, ""),  # as accelerate launch on a cluster
        (AS_LAUNCHED | {"ACCELERATE_MIXED_PRECISION": "bf16"}, "--precision is auto: set --precision bf16"),
        ({"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4"}, "ACCUMULATION_STEPS=4, which this script would"),
        ({"ACCELERATE_USE_DEEPSPEED": "true"}, "ACCELERATE_USE_DEEPSPEED=true"),
    ],
)
def test_a_launch_that_a_script_would_not_follow_is_refused(environment, refused, monkeypatch):
    others = ("ACCELERATE_USE_CPU", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR")
    for name in [*launcher.RANKS, *launcher.REQUESTS, *AS_LAUNCHED, *others]:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    with pytest.raises(SystemExit, match=refused) if refused else nullcontext():
        launcher.check_launch()


@pytest.mark.parametrize(
    ("flags", "precision", "refused"),
    [
        ("--cpu --gradient_accumulation_steps 4", "auto", "--gradient_accumulation_steps 4, which"),
        ("--gradient_clipping=2 --zero_stage 2", "auto", "--gradient_clipping 2.0, --zero_stage 2"),
        ("--mixed_precision no", "auto", "set --precision no"),
        ("--mixed_precision bf16", "no", "--precision is no: set --precision bf16"),
        ("--cpu --mixed_precision bf16 --num_processes 1", "bf16", ""),
        ("--use_fsdp --fsdp_version 2 --num_machines 2 --machine_rank 1", "auto", ""),
        ("--use_fsdp --fsdp_auto_wrap_policy NO_WRAP", "auto", "--fsdp_auto_wrap_policy NO_WRAP"),
    ],
)
@pytest.mark.parametrize("how", ["bin/accelerate launch", "-m accelerate.commands.launch"])
def test_flags_that_accelerate_keeps_to_itself_are_refused_too(how, flags, precision, refused, monkeypatch):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    words = f"python {how} {flags} experiments/train.py --mixed_precision x --paradigm dpr".split()
    launched_by(words, monkeypatch)
    assert launcher.ignored(precision).count(refused or "x") == bool(refused)


@pytest.mark.parametrize(
    ("flags", "configured", "ranked", "refused"),
    [
        ("--cpu --num_processes 2", "", False, ONE),
        ("--cpu --num_processes 2", "", True, ""),  # as under mpirun
        ("--num_machines 2", "", False, ONE),
        ("--cpu --num_processes 1", "", False, ""),
        ("", "", False, ""),
        ("--config_file FILE", "num_processes: 2", False, ONE),
        ("--config_file FILE --num_processes 1", "num_processes: 2", False, ""),
        ("", "num_processes: 2", False, ONE),  # as `accelerate config` writes
        ("--cpu", "num_processes: 2", False, ""),  # accelerate then reads no configuration
    ],
)
def test_several_processes_that_became_one_are_refused(
    flags, configured, ranked, refused, tmp_path, monkeypatch
):
    """A launcher of one process passes the address on that a cluster has set."""
    file = tmp_path / "launch.yaml"
    if configured:
        file.write_text(f"distributed_type: MULTI_CPU\n{configured}\n")
    monkeypatch.setattr(launcher, "default_config_file", str(file))
    launched_by(f"accelerate launch {flags} train.py".replace("FILE", str(file)).split(), monkeypatch)
    for name in launcher.RANKS:
        monkeypatch.delenv(name, raising=False)
    environment = AS_LAUNCHED | {"MASTER_ADDR": "host", "ACCELERATE_USE_CPU": "true"}
    for name, value in (environment | ({"PMI_RANK": "0"} if ranked else {})).items():
        monkeypatch.setenv(name, value)
    assert launcher.wrong_processes().count(ONE) == bool(refused)
