"""Compute gradients over all processes, each with the whole model (DDP) or a shard of it (FSDP2).

DDP and FSDP2 average the processes' gradients, so their steps are equal up to rounding.
`distributed_type: FSDP` in accelerate's configuration selects shards. accelerate supports FSDP on GPUs
only; this module calls torch's FSDP2, which also runs on CPUs.
"""

import copy
import os
import secrets
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from accelerate import Accelerator, PartialState
from accelerate.utils import FullyShardedDataParallelPlugin, broadcast_object_list, gather_object
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

from paradigms.core import Tokens, pad_tokens
from paradigms.encoder.backbone import without_weights
from paradigms.encoder.batches import AGAIN
from paradigms.encoder.precision import autocast
from paradigms.encoder.text import TextEncoder
from paradigms.io.files import Contents, atomic_folder, locked
from paradigms.trainable import Trainable

Model = TypeVar("Model", bound=Trainable)
Result = TypeVar("Result")
# Errors that all processes raise with the main process's type; scripts print them.
RERAISED = (OSError, ValueError, FloatingPointError, KeyError, SystemExit)


def built(build: Callable[[], Model], accelerator: Accelerator) -> Model:
    """Build a model to train on this process's device or, if the launch shards it, in host memory.

    Shards come from the main process, so the other processes build the backbone on the meta device.
    """
    if not sharded():
        return build().to(accelerator.device)
    with nullcontext() if accelerator.is_main_process else without_weights():
        return build()


def prepare(
    paradigm: Model,
    accelerator: Accelerator,
    *,
    recompute: bool = False,
    gathered_weights: str = "float32",
    adapted_weights: str = "float32",
) -> tuple[nn.Module, Model]:
    """Return (module to call in training, paradigm to save and measure), prepared for this launch.

    The second item is the paradigm itself or, if the launch shards it, the main process's copy without
    weights, which `RunState.full_model` fills. Create the optimizer after this call. recompute: layers store
    only their inputs and recompute activations in the backward pass. gathered_weights,
    adapted_weights: as in `TrainingSettings`.
    """
    for layer in paradigm.layers:
        layer.gradient_checkpointing = recompute  # type: ignore[assignment]
        layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)  # type: ignore[assignment]
    if not sharded():
        unwrap(paradigm, accelerator)  # an earlier run that failed may have left it wrapped
        for layer in adapted(paradigm) if adapted_weights == "bf16" else ():
            layer.to(torch.bfloat16)
        return accelerator.prepare(paradigm), paradigm
    if isinstance(paradigm, FSDPModule):
        raise ValueError(f"this {paradigm.name} was sharded by an earlier run: load or build it again")
    plugin = _plugin(accelerator)
    full = paradigm
    if accelerator.is_main_process:
        shapes: dict[int, Any] = {
            id(weight): nn.Parameter(weight.detach().to("meta"), weight.requires_grad)
            for weight in paradigm.parameters()
        }
        full = copy.deepcopy(paradigm, shapes)
    return _shard(paradigm, plugin, accelerator, gathered_weights), full


def fill(paradigm: nn.Module, weight: Callable[[str], Tensor]) -> None:
    """Replace each parameter of `prepare`'s copy by `weight` of its name; meta tensors empty it again."""
    names = {id(tensor): name for name, tensor in paradigm.named_parameters()}
    exchange(paradigm, lambda tensor: weight(names[id(tensor)]) if id(tensor) in names else tensor)


def exchange(module: nn.Module, exchanged: Callable[[Tensor], Tensor]) -> None:
    """Replace every tensor of a module that is not sharded; tied tensors stay tied."""
    replaced: dict[int, tuple[Tensor, Tensor]] = {}  # the first keeps its id from being used again
    for part in module.modules():
        for name, old in [*part._parameters.items(), *part._buffers.items()]:
            if old is None or isinstance(old, DTensor):
                continue
            if id(old) not in replaced:
                new = exchanged(old)
                parameter = isinstance(old, nn.Parameter)
                replaced[id(old)] = old, nn.Parameter(new, old.requires_grad) if parameter else new
            tensors: dict[str, Any] = part._parameters if name in part._parameters else part._buffers
            tensors[name] = replaced[id(old)][1]


def unwrap(paradigm: Trainable, accelerator: Accelerator) -> None:
    """Undo `prepare`, because its precision applies to one training run only."""
    for layer in adapted(paradigm):
        layer.to(torch.promote_types(layer.weight.dtype, torch.float32))  # type: ignore[arg-type]
    accelerator.unwrap_model(paradigm, keep_fp32_wrapper=False)
    # accelerate keeps this mark, and would skip a model that has it.
    paradigm._is_accelerate_prepared = False  # type: ignore[assignment]


def adapted(paradigm: nn.Module) -> list[nn.Module]:
    return [part.base_layer for part in paradigm.modules() if hasattr(part, "lora_A")]  # type: ignore[misc]


def gathered(tensor: Tensor) -> Tensor:
    """Return a tensor in full, even if it is sharded. Every process calls this, in the same order."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def own_rows(tensor: Tensor) -> tuple[Tensor, slice]:
    """Return this process's part of a tensor and its place along the first axis; all of it, if unsharded."""
    if not isinstance(tensor, DTensor):
        return tensor, slice(None)
    each = -(-len(tensor) // tensor.device_mesh.size())
    rows = tensor.to_local()
    first = min(each * tensor.device_mesh.get_local_rank(), len(tensor))
    return rows, slice(first, first + len(rows))


def from_main(tensor: Tensor | None, like: Tensor, accelerator: Accelerator) -> Tensor:
    """Send the main process's tensor, of the shape and type of `like`, to the device of every process."""
    if tensor is not None and accelerator.is_main_process:
        sent = tensor.detach().to(accelerator.device, like.dtype).contiguous()
    else:
        sent = torch.empty(like.shape, dtype=like.dtype, device=accelerator.device)
    dist.broadcast(sent, 0)
    return sent


def sharded() -> bool:
    requested = os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"
    return requested and dist.is_available() and dist.is_initialized()


def _plugin(accelerator: Accelerator) -> FullyShardedDataParallelPlugin:
    """Return accelerate's FSDP settings. Raises ValueError if a setting would be ignored or fail."""
    plugin = getattr(accelerator.state, "fsdp_plugin", None) or FullyShardedDataParallelPlugin()
    for wrong, instead in (
        (plugin.fsdp_version != 2, "fsdp_version: 2"),
        # With it, transformers loads weights only in the first process, even when a checkpoint is opened.
        (plugin.cpu_ram_efficient_loading, "fsdp_cpu_ram_efficient_loading: false"),
        (plugin.activation_checkpointing, "fsdp_activation_checkpointing: false, and recompute in training"),
        (isinstance(plugin.cpu_offload, CPUOffloadPolicy), "fsdp_offload_params: false"),
    ):
        if wrong:
            raise ValueError(f"set {instead} in the configuration of accelerate, as fsdp.yaml does")
    return plugin


def _shard(
    paradigm: Trainable,
    plugin: FullyShardedDataParallelPlugin,
    accelerator: Accelerator,
    gathered_weights: str,
) -> Trainable:
    """Shard the main process's weights: layers are gathered when they run, others in the forward pass."""
    if getattr(paradigm, "clusters", None) is not None:
        raise ValueError(f"{paradigm.name} builds its clusters from full weights: train it without shards")
    layers = paradigm.layers
    if not layers:
        raise ValueError(f"transformers marks no layers in the backbone of {paradigm.name}")
    for module in paradigm.modules():
        if isinstance(module, TextEncoder):
            module.tokens = {}  # processes gather weights together: each runs every layer equally often
    # Autocast rounds the factors of products in any case. Besides them, this rounds norms' weights, biases
    # and each process's gradients; inputs, residual sums, shards and gradients' sums stay in float32.
    half = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    policy = half if gathered_weights == "bf16" else MixedPrecisionPolicy()

    def receive(tensor: Tensor) -> Tensor:
        return from_main(tensor, tensor, accelerator)  # as DDP does: equal weights in all processes

    for layer in layers:
        for norm in (part for part in layer.modules() if isinstance(part, nn.LayerNorm)):
            norm.forward = partial(_normalised, norm)  # type: ignore[method-assign]
        exchange(layer, receive)
        fully_shard(layer, reshard_after_forward=plugin.reshard_after_forward, mp_policy=policy)
        if plugin.reshard_after_forward:
            layer.register_forward_hook(_free_again)
    exchange(paradigm, receive)
    fully_shard(paradigm)
    warnings.filterwarnings("ignore", r"FSDP2-wrapped module .* returned a view")  # none is changed in place
    # Half precision by autocast, as on one process: sums and heads stay in float32. 16-bit copies of weights
    # live until the backward pass; with recomputed layers, as long as the weights gathered for a layer.
    forward = paradigm.forward

    def in_precision(*args: Any, **kwargs: Any) -> Any:
        with autocast(accelerator.device, accelerator.mixed_precision, copies=False):
            return forward(*args, **kwargs)

    paradigm.forward = in_precision
    return paradigm


def _free_again(layer: Any, inputs: tuple[Any, ...], _: object) -> None:
    """Free the gathered weights of a layer that encodes a part again; FSDP would hold all layers' at once.

    A layer whose input needs no gradient, as below adapters, stays gathered: FSDP does not gather it again.
    """
    if AGAIN.get() and any(isinstance(x, Tensor) and x.requires_grad for x in inputs):
        layer.reshard()


def _normalised(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    """Compute a layer norm in the type of its input, whatever the type in which its weights were gathered."""
    weight = None if norm.weight is None else norm.weight.to(x.dtype)
    bias = None if norm.bias is None else norm.bias.to(x.dtype)
    return nn.functional.layer_norm(x, norm.normalized_shape, weight, bias, norm.eps)


def world() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def gather_documents(documents: Tokens) -> Tokens:
    """Gather each process's documents [1, n, i, h] into [1, W·n, i', h], in rank order; i' is the largest i.

    The backward pass sums the gradients of all processes for this process's documents. As each loss is a mean
    over the process's queries, DistributedDataParallel's mean is the gradient of the whole batch. Raises
    ValueError if processes have different numbers of documents.
    """
    if world() == 1:
        return documents
    shape = torch.tensor(documents.mask.shape[1:], device=documents.mask.device)
    counts, lengths = torch.stack(_all_gather(shape)).T.tolist()
    if len(set(counts)) > 1:
        raise ValueError(f"processes bring different numbers of documents: {counts}")
    return pad_tokens(documents, max(lengths)).map(gather)


def gather(t: Tensor) -> Tensor:
    """Gather tensors of all processes along axis 1; floating-point tensors stay differentiable."""
    if world() == 1:
        return t
    return _Gather.apply(t) if t.is_floating_point() else torch.cat(_all_gather(t), 1)


def place_among(count: int) -> int:
    """Return the position of this process's first item if `count` items per process are gathered by rank."""
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
        parts = [part.contiguous() for part in gradient.chunk(dist.get_world_size(), 1)]
        part = torch.empty_like(parts[0])
        dist.reduce_scatter(part, parts)  # each process receives its own documents' gradient only
        return part


def check_shared(folder: Path, accelerator: Accelerator | PartialState) -> None:
    """Raise FileNotFoundError on every process unless all see a file that the main process writes."""
    if accelerator.num_processes == 1:
        return

    def write() -> str:
        file = folder / f".seen-{secrets.token_hex(8)}"
        file.touch()
        return file.name

    file = folder / by_main(write, accelerator)
    unseen = [n for n, seen in enumerate(gather_object([file.is_file()])) if not seen]
    by_main(lambda: file.unlink(missing_ok=True), accelerator)
    if unseen:
        raise FileNotFoundError(
            f"process {unseen[0]} of {accelerator.num_processes} does not see what process 0 writes to "
            f"{folder}: give all processes a folder on a disk that they share"
        )


@contextmanager
def locked_by_main(folder: Path, accelerator: Accelerator) -> Iterator[None]:
    """Create and lock a folder on the main process, and check that all processes see it (`check_shared`).

    All processes raise BlockingIOError while another run writes to the folder.
    """
    with ExitStack() as stack:
        by_main(lambda: stack.enter_context(locked(folder, make=True)), accelerator)
        check_shared(folder, accelerator)
        yield


@contextmanager
def folder_by_main(path: Path, written: Contents, accelerator: Accelerator) -> Iterator[Path]:
    """Yield a folder that all processes fill; the main process then moves it to `path` (`atomic_folder`)."""
    with ExitStack() as stack:
        yield by_main(lambda: stack.enter_context(atomic_folder(path, written)), accelerator)
        by_main(stack.pop_all().close, accelerator)


def by_each(action: Callable[[], None]) -> None:
    """Run `action` in every process; all raise OSError if it fails in one, with a full disk for example."""
    try:
        action()
        problem = ""
    except OSError as error:
        problem = f"process {dist.get_rank()}: {error}"
    if problems := "; ".join(filter(None, gather_object([problem]))):
        raise OSError(problems)


def by_main(action: Callable[[], Result], accelerator: Accelerator | PartialState) -> Result:
    """Run `action` on the main process while the others wait; all return the result or raise the error.

    The action must not call functions in which processes wait for each other.
    """
    failed: BaseException | None = None
    outcome: list[Any] = [None]
    if accelerator.is_main_process:
        try:
            outcome = [(action(), None, "")]
        except (Exception, SystemExit) as error:
            failed = error
            kinds = (kind for kind in RERAISED if isinstance(error, kind))
            outcome = [(None, next(kinds, RuntimeError), str(error))]
    broadcast_object_list(outcome)
    if failed is not None:
        raise failed
    result, kind, message = outcome[0]
    if kind is not None:
        raise kind(f"process 0 failed: {message}")
    return result


@contextmanager
def waiting_at_most(time: timedelta, device: torch.device) -> Iterator[None]:
    """Context in which a process fails that waits longer for the others, as when one of them hangs."""
    if world() == 1:
        yield
        return
    before = dist.distributed_c10d._get_default_group()._get_backend(device).options._timeout
    dist.distributed_c10d._set_pg_timeout(min(time, before))
    try:
        yield
    finally:
        dist.distributed_c10d._set_pg_timeout(before)


@contextmanager
def ending_all(accelerator: Accelerator, step: int) -> Iterator[None]:
    """Convert an error in one of several processes into a RuntimeError, so that the launcher ends them all.

    Otherwise, the other processes would wait forever. FloatingPointError is not converted: every process
    raises it.
    """
    try:
        yield
    except Exception as error:
        if accelerator.num_processes == 1 or isinstance(error, FloatingPointError):
            raise
        raise RuntimeError(
            f"process {accelerator.process_index} of {accelerator.num_processes} failed at step {step + 1}, "
            "which ends the training of all. A closed connection means that another process failed first: "
            f"{type(error).__name__}: {error}"
        ) from error
