"""∇ of the loss of all processes, each with the whole model (DDP) or with a shard of it (FSDP2).

Both average the processes' gradients, so the steps are the same up to rounding. `distributed_type: FSDP` in a
configuration of accelerate chooses shards. accelerate knows FSDP on GPUs only; what is done here is torch's,
and the same on CPUs.
"""

import copy
import os
import warnings
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import FullyShardedDataParallelPlugin
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils.checkpoint import checkpoint

from paradigms.core import Tokens, pad_tokens
from paradigms.encoder.text import TextEncoder
from paradigms.model import Trainable, autocast

Model = TypeVar("Model", bound=Trainable)


def prepare(paradigm: Model, accelerator: Accelerator, *, recompute: bool = False) -> tuple[nn.Module, Model]:
    """(what is called in training, the paradigm that is written and measured), of one paradigm.

    The second is the paradigm itself, unless this launch shards it: then a copy on the CPU of the main
    process, which `RunState.full_model` fills. Make the optimizer after this call. recompute: layers keep
    their inputs only, and compute the rest again in the backward pass.
    """
    for layer in paradigm.layers:
        layer.gradient_checkpointing = recompute  # type: ignore[assignment]
        layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)  # type: ignore[assignment]
    if not sharded():
        return accelerator.prepare(paradigm), paradigm
    if isinstance(paradigm, FSDPModule):
        raise ValueError(f"this {paradigm.name} was sharded by a run before this one: load or build it anew")
    plugin = _plugin(accelerator)
    paradigm.cpu()  # each module goes back to the device when it is sharded
    for tensor in (*paradigm.parameters(), *paradigm.buffers()):
        sent = tensor.data.to(accelerator.device)
        dist.broadcast(sent, 0)  # as DDP does: shards of different initial weights are no model
        tensor.data.copy_(sent)
    whole = copy.deepcopy(paradigm) if accelerator.is_main_process else paradigm
    return _shard(paradigm, plugin, accelerator), whole


def gathered(tensor: Tensor) -> Tensor:
    """The whole of a tensor, sharded or not. Every process calls this, in the same order."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def spread(tensor: Tensor, like: Tensor) -> Tensor:
    """A whole tensor, equal on every process, on the device of `like` and sharded as that is."""
    if isinstance(like, DTensor):
        mesh = like.device_mesh
        return distribute_tensor(tensor.to(mesh.device_type), mesh, like.placements).to(like.device)
    return tensor.to(like.device)


def sharded() -> bool:
    """Whether this launch asks for shards of the model in place of copies."""
    asked = os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"
    return asked and dist.is_available() and dist.is_initialized()


def _plugin(accelerator: Accelerator) -> FullyShardedDataParallelPlugin:
    """accelerate's settings of FSDP. ValueError for those that would be ignored or go wrong."""
    plugin = getattr(accelerator.state, "fsdp_plugin", None) or FullyShardedDataParallelPlugin()
    for wrong, instead in (
        (plugin.fsdp_version != 2, "fsdp_version: 2"),
        # transformers would load weights in the first process alone, here and when a checkpoint is opened.
        (plugin.cpu_ram_efficient_loading, "fsdp_cpu_ram_efficient_loading: false"),
        (plugin.activation_checkpointing, "fsdp_activation_checkpointing: false, and recompute in training"),
        (isinstance(plugin.cpu_offload, CPUOffloadPolicy), "fsdp_offload_params: false"),
    ):
        if wrong:
            raise ValueError(f"set {instead} in the configuration of accelerate, as fsdp.yaml does")
    return plugin


def _shard(
    paradigm: Trainable, plugin: FullyShardedDataParallelPlugin, accelerator: Accelerator
) -> Trainable:
    """Each layer is gathered when it is run; all that is no layer, with the step's first forward pass."""
    if getattr(paradigm, "clusters", None) is not None:
        raise ValueError(f"{paradigm.name} makes its clusters from whole weights: train it without shards")
    layers = paradigm.layers
    if not layers:
        raise ValueError(f"the backbone of {paradigm.name} has no layers that transformers marks as such")
    for module in paradigm.modules():
        if isinstance(module, TextEncoder):
            module.tokens = {}  # processes gather weights together: each passes its layers equally often
    for layer in layers:
        fully_shard(layer, reshard_after_forward=plugin.reshard_after_forward)
    fully_shard(paradigm)
    warnings.filterwarnings("ignore", r"FSDP2-wrapped module .* returned a view")  # none is changed in place
    # Gradients are put together in every batch: kept until the optimizer's step, they would be whole.
    accelerator.gradient_state.plugin_kwargs["sync_each_batch"] = True
    # Half precision as on one process, by autocast, which leaves sums and heads in float32; weights travel in
    # float32 for it. With FSDP's own policy for it, norms and what is added up over layers would be rounded.
    forward = paradigm.forward

    def in_precision(*given: Any, **named: Any) -> Any:
        with autocast(accelerator.device, accelerator.mixed_precision):
            return forward(*given, **named)

    paradigm.forward = in_precision
    return paradigm


def world() -> int:
    """The number of processes."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def gather_documents(documents: Tokens) -> Tokens:
    """[1, n, i, h] of this process → [1, W·n, i', h] of all W, in rank order, i' the longest i.

    The backward pass sums the gradients that every process has for this one's documents; with each loss a
    mean over its own queries, the mean that DistributedDataParallel takes is the gradient of the whole batch.
    Every process must bring the same number of documents.
    """
    if world() == 1:
        return documents
    shape = torch.tensor(documents.mask.shape[1:], device=documents.mask.device)
    shapes = _all_gather(shape)
    if any(int(s[0]) != int(shape[0]) for s in shapes):
        raise ValueError(f"processes bring different numbers of documents: {[int(s[0]) for s in shapes]}")
    padded = pad_tokens(documents, max(int(s[1]) for s in shapes))
    return padded.map(gather)


def gather(t: Tensor) -> Tensor:
    """The tensors of all processes, joined along axis 1; differentiable for floating-point ones."""
    if world() == 1:
        return t
    return _Gather.apply(t) if t.is_floating_point() else torch.cat(_all_gather(t), 1)


def place_among(count: int) -> int:
    """Where this process's `count` items begin among those of all processes, gathered in rank order."""
    return count * dist.get_rank() if world() > 1 else 0


def _all_gather(t: Tensor) -> list[Tensor]:
    parts = [torch.empty_like(t, memory_format=torch.contiguous_format) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, t.contiguous())
    return parts


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t: Tensor) -> Tensor:
        return torch.cat(_all_gather(t), 1)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient.chunk(dist.get_world_size(), 1)[dist.get_rank()]
