"""Refuse what a launcher is given and a script would ignore: processes, precision and other flags."""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import torch
from accelerate.commands.config import default_config_file, load_config_from_file
from accelerate.commands.launch import launch_command_parser

from paradigms.encoder.precision import AUTO, VARIABLE

RANKS = ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")  # variables of launchers
# Flags of `accelerate launch` that start processes, compile the trained model, or choose FSDP, whose values
# `parallel._plugin` checks.
ACTING = """
    config_file quiet module no_python debug cpu multi_gpu num_processes num_machines gpu_ids same_network
    num_cpu_threads_per_process enable_cpu_affinity machine_rank main_process_ip main_process_port tee log_dir
    role rdzv_backend rdzv_conf max_restarts monitor_interval mpirun_hostfile training_script
    training_script_args mixed_precision use_fsdp fsdp_version fsdp_reshard_after_forward fsdp_offload_params
    fsdp_cpu_ram_efficient_loading fsdp_activation_checkpointing dynamo_backend dynamo_mode
    dynamo_use_fullgraph dynamo_use_dynamic dynamo_use_regional_compilation
""".split()  # noqa: SIM905
# Variables with which launchers ask for what no script does, and the values that ask for nothing.
REQUESTS = {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "1"}
REQUESTS |= {f"ACCELERATE_USE_{name}": "false" for name in ("DEEPSPEED", "MEGATRON_LM", "PARALLELISM_CONFIG")}
ON_CPU = "two with ACCELERATE_USE_CPU=true and --config_file experiments/configs/cpu_2.yaml"


def check_launch(precision: str = AUTO, *, shards: bool = False) -> None:
    """Raise SystemExit if the launcher of this process was given something that the script would not do.

    precision: the script's setting. shards: whether the script trains shards.
    """
    problem = wrong_processes() or ignored(precision)
    if not shards and os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true":
        problem = problem or "only train.py trains shards: launch this script with gpus.yaml"
    if not problem:
        return
    if os.environ.get("LOCAL_RANK", "0") != "0":
        time.sleep(2)  # only the first process prints; the launcher then ends the others
        raise SystemExit(1)
    raise SystemExit(problem)


def wrong_processes() -> str:
    """Describe what is wrong with the launched processes, or return "".

    Processes for GPUs on a machine without one would train on the CPU, each as if it were alone. For a CPU,
    `accelerate launch --num_processes 2` starts one process, and tells it no rank. A launch of one process
    without a configuration sets no LOCAL_RANK; it uses a GPU or the CPU.
    """
    cpu = os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("true", "1")
    if not cpu and not torch.accelerator.is_available() and "LOCAL_RANK" in os.environ:
        return (
            "accelerate launch is configured for GPUs, and torch finds none on this machine: launch one "
            f"process without --config_file, or {ON_CPU}"
        )
    if "ACCELERATE_DYNAMO_BACKEND" in os.environ and not {*RANKS} & os.environ.keys() and several_requested():
        return (
            "accelerate launch was asked for several processes (--num_processes) and started one: launch one "
            f"for each GPU with --config_file experiments/configs/gpus.yaml, or {ON_CPU}"
        )
    return ""


def several_requested() -> bool:
    flags = launcher_flags()
    file = Path(flags.get("config_file") or ("" if "cpu" in flags else default_config_file))
    requested = (vars(load_config_from_file(str(file))) if file.is_file() else {}) | flags
    return max(requested.get(name) or 1 for name in ("num_processes", "num_machines")) > 1


def ignored(precision: str) -> str:
    """Describe what the launcher asks for and the script would ignore, or return ""."""
    flags = launcher_flags()
    requested = flags.get("mixed_precision") or os.environ.get(VARIABLE, "no")
    if requested != precision and (requested != "no" or "mixed_precision" in flags):
        return (
            f"the launcher asks for mixed_precision {requested}, and this script's --precision is "
            f"{precision}: set --precision {requested} after the script's name"
        )
    useless = [f"--{name} {value}" for name, value in flags.items() if name not in ACTING]
    variables = {name: os.environ.get(name, nothing) for name, nothing in REQUESTS.items()}
    useless += [f"{name}={value}" for name, value in variables.items() if value.lower() != REQUESTS[name]]
    if useless:
        return (
            f"the launcher is given {', '.join(useless)}, which this script would ignore: leave it out, and "
            "see the script's own settings with --help, such as --batch_size and --chunk of train.py"
        )
    return ""


def launcher_flags() -> dict[str, Any]:
    """Return the flags given to the `accelerate launch` that started this process, or {} without one.

    It passes only some of them on, so they are read from its command line.
    """
    with suppress(psutil.Error):
        for parent in psutil.Process().parents():
            words = parent.cmdline()
            for n, word in enumerate(words):
                command = Path(word).name == "accelerate" and words[n + 1 : n + 2] == ["launch"]
                if command or Path(word).name in ("accelerate-launch", "accelerate.commands.launch"):
                    parsed = launch_command_parser().parse_args(words[n + 1 + command :])
                    return {name: getattr(parsed, name) for name in sorted(parsed.nondefault)}
    return {}
