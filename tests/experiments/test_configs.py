"""The configurations that ship: accelerate and the scripts take each as it is meant.

Training with them on the CPU: nodes_2.yaml in test_examples.py, fsdp.yaml in test_fsdp.py.
"""

from importlib import import_module
from pathlib import Path

import pytest
import yaml
from accelerate.commands.config import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import DistributedType
from papers.wu2024.trained_pairs import TRAINING

from tests.experiments.scripts import from_command_line, settings

CONFIGS = Path(__file__).parents[2] / "experiments" / "configs"
# file -> kind, processes, machines
LAUNCHES = {
    "gpu.yaml": ("MULTI_GPU", 1, 1),
    "gpus.yaml": ("MULTI_GPU", 8, 1),
    "nodes_2.yaml": ("MULTI_GPU", 16, 2),
    "fsdp.yaml": ("FSDP", 8, 1),
    "cpu_2.yaml": ("MULTI_GPU", 2, 1),
}


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


TAKEN = dict.fromkeys(("aligner_full", "several_collections", "xtr_multilingual"), "train")
TAKEN |= {"trained_paradigms": "compare", "trainings_of_each": "compare"}


@pytest.mark.parametrize(("name", "script"), TAKEN.items())
def test_a_script_takes_its_configuration(script: str, name: str) -> None:
    values = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())
    taken = settings(script, f"--config={CONFIGS / name}.yaml")
    assert all(getattr(taken, option) == value for option, value in values.items())


@pytest.mark.parametrize("name", ["generative_encoder.yaml", "generative_nq320k.yaml"])
def test_the_generative_studies_share_models_under_one_file(name: str) -> None:
    """All scripts accept the file and train their models with the same settings."""
    scripts = ("document_encoding", "alignment_directions", "term_matching", "low_rank")
    given = [f"--config={CONFIGS / name}", "--collection=words", "--models=results/models"]
    results = [from_command_line(import_module(script).Settings, "", given) for script in scripts]
    for setting in (*TRAINING, "models"):
        assert len({getattr(settings, setting) for settings in results}) == 1, setting
