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


@dataclass
class Settings:
    output: str = "unused"
    precision: str = "no"
    tracker: str = "none"


def test_processes_wait_while_one_searches_a_corpus_and_fp16_needs_a_gpu(monkeypatch) -> None:
    given: dict[str, Any] = {}

    class Recorder(Accelerator):
        is_main_process, mixed_precision, device = True, "no", torch.device("cpu")

        def __init__(self, **options: Any) -> None:
            given.update(options)

    monkeypatch.setattr(script, "Accelerator", Recorder)
    monkeypatch.setattr(script, "lock_output", lambda *_: None)
    with pytest.raises(SystemExit, match="fp16 needs a GPU"):
        script.begin(Settings(precision="fp16"))
    (group,) = given["kwargs_handlers"]
    assert group.timeout > timedelta(hours=24)


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


def test_results_are_named_after_the_collection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "v1.2").mkdir()  # what differs after a dot makes two folders
    names = ("pydocs", "data/scifact/", ".", "v1.2", "hf:BeIR/scifact", "irds:beir/scifact/test")
    expected = ["pydocs", "scifact", tmp_path.name, "v1.2", "hf-BeIR-scifact", "irds-beir-scifact-test"]
    assert [folder_name(name) for name in names] == expected


LAUNCHED = {"ACCELERATE_DYNAMO_BACKEND": "NO", "ACCELERATE_MIXED_PRECISION": "no", "MASTER_ADDR": "host"}
CPU = LAUNCHED | {"ACCELERATE_USE_CPU": "true"}
ONE = "started one"


@pytest.mark.parametrize(
    ("environment", "flags", "refused"),
    [
        ({"WORLD_SIZE": "1", "LOCAL_RANK": "0"}, "", "configured for GPUs"),  # as gpu.yaml
        ({"WORLD_SIZE": "2", "LOCAL_RANK": "0", "ACCELERATE_USE_CPU": "true"}, "", ""),  # as cpu_2.yaml
        ({"ACCELERATE_USE_CPU": "False"}, "", ""),  # as accelerate launch without a configuration
        (LAUNCHED, "--num_processes 1", ""),  # on a cluster
        ({"ACCELERATE_MIXED_PRECISION": "bf16"}, "", "--precision is auto: set --precision bf16"),
        (
            {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4"},
            "",
            "ACCUMULATION_STEPS=4, which this script",
        ),
        ({"ACCELERATE_USE_DEEPSPEED": "true"}, "", "ACCELERATE_USE_DEEPSPEED=true"),
        (CPU, "--cpu --gradient_accumulation_steps 4", "--gradient_accumulation_steps 4, which"),
        (CPU, "--cpu --gradient_clipping=2 --zero_stage 2", "--gradient_clipping 2.0, --zero_stage 2"),
        (CPU, "--cpu --mixed_precision bf16", "--precision is auto: set --precision bf16"),
        (CPU, "--cpu --use_fsdp --fsdp_auto_wrap_policy NO_WRAP", "--fsdp_auto_wrap_policy NO_WRAP"),
        (CPU, "--cpu --use_fsdp --fsdp_version 2", ""),
        (CPU, "--cpu --num_processes 2", ONE),
        (CPU | {"PMI_RANK": "0"}, "--cpu --num_processes 2", ""),  # as under mpirun
        (CPU, "--cpu --num_machines 2", ONE),
        (CPU, "--config_file FILE", ONE),
        (CPU, "--config_file FILE --num_processes 1", ""),
        (CPU, "", ONE),  # by what `accelerate config` has written, which --cpu does not read
    ],
)
@pytest.mark.parametrize("how", ["bin/accelerate launch", "-m accelerate.commands.launch"])
def test_a_launch_that_a_script_would_not_follow_is_refused(
    how, environment, flags, refused, tmp_path, monkeypatch
):
    """Flags that accelerate keeps to itself are read from the command that started this process."""
    file = tmp_path / "launch.yaml"
    file.write_text("distributed_type: MULTI_CPU\nnum_processes: 2\n")
    monkeypatch.setattr(launcher, "default_config_file", str(file))
    words = f"python {how} {flags} train.py --mixed_precision x".replace("FILE", str(file)).split()

    class Process:
        def parents(self) -> list[Any]:
            return [SimpleNamespace(cmdline=lambda line=line: line) for line in (["sh"], words, ["init"])]

    monkeypatch.setattr(launcher.psutil, "Process", Process)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    for name in [*launcher.RANKS, *launcher.REQUESTS, *CPU, "WORLD_SIZE", "LOCAL_RANK"]:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match=refused) if refused else nullcontext():
        launcher.check_launch()
