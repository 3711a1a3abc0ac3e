"""What one process prepares for a run: recomputed layers; and what a sharded launch refuses."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import Tensor

from paradigms import PARADIGMS
from paradigms.train.parallel import prepare
from tests.encoder.test_batches import build, same, step
from tests.tiny import FAMILIES


def gradients(backbone: Path, recompute: bool, **options: Any) -> tuple[dict[str, Tensor], int]:
    """The loss and every gradient with dropout, and the numbers that were kept for the backward pass."""
    paradigm = build("colbert", backbone, dropout=True, **options)
    model, _ = prepare(paradigm, Accelerator(cpu=True), recompute=recompute)
    sizes: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        return step(model), sum(sizes)


@pytest.mark.parametrize("options", [{}, {"lora_rank": 2}, {"lora_rank": 2, "dora": True}], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_recomputed_layers_have_the_same_gradients(checkpoints, family, options):
    """Bit for bit, with dropout, and where no weight of a layer but its adapters takes part."""
    plain, kept = gradients(checkpoints[family], recompute=False, **options)
    anew, fewer = gradients(checkpoints[family], recompute=True, **options)
    assert same(anew, plain)
    assert any(float(gradient.abs().max()) > 0 for name, gradient in plain.items() if name != "loss")
    assert fewer < kept / 2


@pytest.fixture
def one_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Accelerator]:
    """The only process of a launch that asks for shards."""
    accelerator = Accelerator(cpu=True)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    yield accelerator
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "set fsdp_version: 2"),
        ({"FSDP_VERSION": "2", "FSDP_CPU_RAM_EFFICIENT_LOADING": "true"}, "efficient_loading: false"),
        ({"FSDP_VERSION": "2", "FSDP_ACTIVATION_CHECKPOINTING": "true"}, "and recompute in training"),
        ({"FSDP_VERSION": "2", "FSDP_OFFLOAD_PARAMS": "true"}, "set fsdp_offload_params: false"),
    ],
)
def test_settings_of_fsdp_that_would_go_wrong(tiny_bert, one_of_one, monkeypatch, environment, message):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message):
        prepare(PARADIGMS["dpr"](tiny_bert), one_of_one)
