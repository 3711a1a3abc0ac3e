"""The launch configurations that ship: accelerate reads each, and those of a processor really train."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from accelerate.commands.config import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import DistributedType

from paradigms import load
from tests.test_experiments_train import EXPERIMENTS, ROOT, collection, training  # noqa: F401 - a fixture

CONFIGS = EXPERIMENTS / "configs"
# file -> kind, processes, machines
LAUNCHES = {
    "gpu.yaml": ("NO", 1, 1),
    "gpus.yaml": ("MULTI_GPU", 8, 1),
    "nodes_2.yaml": ("MULTI_GPU", 16, 2),
    "fsdp.yaml": ("FSDP", 8, 1),
    "cpu_2.yaml": ("MULTI_GPU", 2, 1),
}


def test_no_launch_configuration_is_forgotten() -> None:
    files = {file.name: yaml.safe_load(file.read_text()) for file in CONFIGS.glob("*.yaml")}
    assert {name for name, content in files.items() if "distributed_type" in content} == LAUNCHES.keys()


@pytest.mark.parametrize("name", LAUNCHES)
def test_accelerate_takes_it_as_it_is_meant(name: str) -> None:
    config = load_config_from_file(str(CONFIGS / name))
    kind, processes, machines = LAUNCHES[name]
    assert config.distributed_type == DistributedType(kind)
    assert (config.num_processes, config.num_machines) == (processes, machines)
    parser = launch_command_parser()
    arguments = parser.parse_args(["--config_file", str(CONFIGS / name), "experiments/train.py"])
    arguments, _, _ = _validate_launch_command(arguments)
    assert (arguments.multi_gpu, arguments.use_fsdp) == (kind == "MULTI_GPU", kind == "FSDP")
    assert (arguments.num_processes, arguments.num_machines) == (processes, machines)
    assert arguments.mixed_precision == "no"
    if kind == "FSDP":
        assert int(arguments.fsdp_version) == 2
        assert str(arguments.fsdp_cpu_ram_efficient_loading).lower() == "false"


@pytest.fixture
def settings(collection: Path, tiny_bert: Path, tmp_path: Path) -> Path:  # noqa: F811
    """The settings of a training of two steps, whose output is out/ beside this file."""
    flags = training(collection, tiny_bert, tmp_path / "out", steps=2, options={"dim": 16}, recompute=True)
    (tmp_path / "train.yaml").write_text(json.dumps(flags, default=str))  # JSON is YAML
    return tmp_path / "train.yaml"


def test_two_machines(settings: Path) -> None:
    """Of one process each. (Two of one machine: test_experiments_train.py; of shards: test_fsdp.py.)"""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-m", "accelerate.commands.launch"]
    command += ["--config_file", str(CONFIGS / "nodes_2.yaml"), "--num_processes", "2"]
    command += ["--main_process_port", port, "--machine_rank"]
    script = [str(EXPERIMENTS / "train.py"), "--config", str(settings)]
    environment = os.environ | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    machines = [
        subprocess.Popen(
            [*command, rank, *script], env=environment, cwd=ROOT, stderr=subprocess.PIPE, text=True
        )
        for rank in ("0", "1")
    ]
    try:
        errors = [machine.communicate(timeout=150)[1] for machine in machines]
    finally:
        for machine in machines:
            machine.terminate()
    assert [machine.returncode for machine in machines] == [0, 0], "".join(errors)[-4000:]
    output = settings.parent / "out"
    environment = json.loads((output / "environment.json").read_text())
    assert (environment["processes"], environment["sharded"]) == (2, False)
    assert load(output / "checkpoint").name == "colbert"
