"""A plan's memory and collectives are those of a training step as one of many processes."""

import shutil
from collections import Counter
from functools import partial
from types import SimpleNamespace
from typing import Any

import plan
import pytest
import torch
import torch.distributed as dist
from studies.counted import Living, score_bytes
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint
from transformers import BertConfig, BertModel

from paradigms import PARADIGMS
from paradigms.align import NORMALISERS, AllPairs, PoolTopK, QueryToDocument
from paradigms.core import Tokens
from paradigms.scoring import in_batch
from paradigms.train import parallel
from paradigms.train.contrastive import Contrastive
from paradigms.train.examples import Example
from paradigms.train.loop import TrainingSettings
from tests.tiny import WORDS

SIZES: dict[str, Any] = {"query_length": 16, "document_length": 64, "dim": 16}


class Sent(TorchDispatchMode):
    """Count the collectives and the bytes of their whole tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if DTensor in types:
            return NotImplemented  # operations on its local tensor follow
        if func.namespace == "c10d":
            sizes = [leaf.nbytes for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
            full = max(sizes) if "base" in func.__name__ else sum(sizes)
            if func.__name__ in ("allgather_.default", "reduce_scatter_.default"):
                world = dist.get_world_size()
                full = sum(sizes) * world // (world + 1)  # the own part is listed twice
            name = func.__name__.partition(".")[0]
            self.calls[name] += 1
            self.bytes[name] += full
        return func(*args, **(kwargs or {}))


@pytest.fixture
def processes(request):
    dist.init_process_group("fake", rank=0, world_size=request.param, store=FakeStore())
    yield request.param
    dist.destroy_process_group()


@pytest.fixture
def bert(tiny_bert, tmp_path):
    """A BERT of six layers, whose weights take about as many bytes as the activations of some texts."""
    shutil.copytree(tiny_bert, tmp_path, dirs_exist_ok=True)
    size = {"hidden_size": 256, "num_hidden_layers": 6, "intermediate_size": 1024}
    BertModel(BertConfig.from_pretrained(tiny_bert, **size)).save_pretrained(tmp_path)
    return tmp_path


def reduced(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Sum a bucket; the results of the group's own futures are empty."""
    dist.all_reduce(bucket.buffer())
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


BOTH = {"shards": True, "chunk": 2}
STEPS: list[tuple[int, dict[str, Any]]] = [(8, {}), (64, {"chunk": 2}), (8, {"shards": True})]
STEPS += [(64, BOTH | {"precision": "bf16"}), (8, BOTH | {"recompute": True})]


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "changes"), STEPS, ids=str, indirect=["processes"])
def test_a_step_is_as_planned(processes, bert, monkeypatch, changes):
    monkeypatch.setattr(in_batch, "CELLS", {})  # tiles as on a GPU
    settings = plan.Settings(
        model=str(bert), gpus=processes, batch=8 * processes, **{"precision": "no"} | SIZES | changes
    )
    backbone = plan.built(settings.model)
    query, document = (plan.counted(backbone, length, settings) for length in (16, 64))
    planned = {row["collective"]: row for row in plan.collectives(settings, query)}
    text = WORDS.replace("\n", " ")
    examples = [Example(text, n, (), (n,)) for n in range(8)]
    model = PARADIGMS["colbert"](bert, skip="", **SIZES).train()
    model.encoder.tokens = {}  # as on a GPU
    objective = Contrastive(model, [text] * 8, examples).configure(TrainingSettings(chunk=settings.chunk))
    batch = objective.collate(examples)
    full = sum(weight.nbytes for weight in model.parameters())
    for layer in model.layers:
        layer.gradient_checkpointing = settings.recompute  # type: ignore[assignment]
        layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)  # type: ignore[assignment]
    with Living() as living:
        living.ignore(*model.parameters())
        wrapped: torch.nn.Module
        if settings.shards:
            where: Any = SimpleNamespace(
                device=torch.device("cpu"), mixed_precision=settings.precision, is_main_process=True
            )
            plugin: Any = SimpleNamespace(reshard_after_forward=True)
            wrapped = parallel._shard(model, plugin, where, "float32")
        else:
            wrapped = DistributedDataParallel(model)
            wrapped.register_comm_hook(None, reduced)
        optimizer = torch.optim.AdamW(wrapped.parameters(), fused=True)
        for step in range(3):
            if step == 1:
                living.peak = living.now  # the model was whole until it was sharded
            with Sent() as sent:
                objective.loss(wrapped, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
    names = {"allgather_": "all-gather of documents"}
    names["reduce_scatter_"] = "reduce-scatter of documents' gradients"
    if settings.shards:
        names["_allgather_base_"] = "all-gather of weights"
        names["_reduce_scatter_base_"] = "reduce-scatter of gradients"
    else:
        names |= {"allreduce_": "all-reduce of gradients", "broadcast_": "broadcast of buffers"}
    assert sent.calls == {op: planned[name]["calls"] for op, name in names.items()}
    assert sent.bytes == {op: planned[name]["bytes"] for op, name in names.items()}
    parts = plan.parts_of(settings, query, document)
    copies = 0 if settings.shards else full  # which `living` ignores
    assert living.peak + copies == pytest.approx(parts["peak"], rel=0.1)
    own = [parallel.own_rows(weight)[0].nbytes for weight in model.parameters()]
    assert 2 * sum(own) == pytest.approx(parts["moments"], rel=0.01)


@pytest.mark.parametrize(
    "align", [None, PoolTopK(5), PoolTopK(0.01), AllPairs()], ids=lambda align: str(align)
)
def test_scores_are_counted_without_data(align, monkeypatch):
    """Tensors without data take as many bytes as tensors with data, on a device with the same tiles."""
    monkeypatch.setattr(in_batch, "CELLS", {})
    queries, documents, lengths, dim = 12, 10, (4, 24), 8

    def tokens(x: int, n: int, length: int) -> Tokens:
        mask = torch.ones(x, n, length, dtype=torch.bool)
        return Tokens(torch.randn(x, n, length, dim, requires_grad=True), mask)

    D, Q = tokens(1, documents, lengths[1]), tokens(queries, 1, lengths[0])
    with Living() as living:
        living.ignore(D.vectors, D.mask, Q.vectors, Q.mask)
        scores = in_batch._rel(D, Q, align or QueryToDocument(), NORMALISERS["one"], None, in_batch.BOUND)
        scores.logsumexp(1).sum().backward()
    counted = score_bytes(queries, documents, *lengths, dim, in_batch.BOUND, align)
    assert counted == pytest.approx(living.peak, rel=0.1)
