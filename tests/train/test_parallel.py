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
from paradigms.train.contrastive import Contrastive
from paradigms.train.parallel import prepare
from tests.tiny import FAMILIES
from tests.train.test_distributed import CORPUS, EXAMPLES

LENGTHS = {"query_length": 16, "document_length": 32}


def gradients(
    name: str, backbone: Path, *, options: dict[str, Any] | None = None, recompute: bool = False
) -> tuple[float, dict[str, Tensor], int]:
    """The loss, every gradient, and the numbers that were kept for the backward pass."""
    torch.manual_seed(0)
    paradigm = PARADIGMS[name](backbone, **LENGTHS, **(options or {}))
    model, _ = prepare(paradigm.train(), Accelerator(cpu=True), recompute=recompute)
    objective = Contrastive(paradigm, CORPUS, EXAMPLES)
    sizes: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        sizes.append(tensor.numel())
        return tensor

    batch = objective.collate(EXAMPLES)
    torch.manual_seed(1)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = objective.loss(model, batch)
    loss.backward()
    results = {n: weight.grad for n, weight in paradigm.named_parameters() if weight.grad is not None}
    return float(loss.detach()), results, sum(sizes)


@pytest.mark.parametrize("options", [{}, {"lora_rank": 2}, {"lora_rank": 2, "dora": True}], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_recomputed_layers_have_the_same_gradients(checkpoints, family, options):
    """Bit for bit, with dropout, and where no weight of a layer but its adapters takes part."""
    plain = gradients("colbert", checkpoints[family], options=options)
    anew = gradients("colbert", checkpoints[family], options=options, recompute=True)
    assert anew[0] == plain[0]
    assert anew[1].keys() == plain[1].keys()
    assert all(torch.equal(anew[1][name], plain[1][name]) for name in plain[1])
    assert any(float(gradient.abs().max()) > 0 for gradient in plain[1].values())
    assert anew[2] < plain[2] / 2


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
