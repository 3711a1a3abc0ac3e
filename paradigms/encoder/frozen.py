"""hidden = upper(lower(text)): frozen lower layers run once per text, and their output is stored.

`SplitBackbone` cuts a backbone in two; `LowerStates` stores the lower part's output on disk, in float16, and
the output of a whole untrained backbone, which paradigms share. Encoders read these states, so this module is
part of `encoder`; `train.states` decides what to store and where.
"""

import hashlib
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from paradigms.core import at_least_float32
from paradigms.encoder.backbone import configuration
from paradigms.encoder.batches import Batch, by_length
from paradigms.encoder.weights import state_of
from paradigms.io.files import atomic_folder, contents, remove_folder
from paradigms.io.manifest import MANIFEST, damage, write_manifest
from paradigms.io.progress import progress_bar

SHARD = 1024  # texts per file
SAMPLE = 128  # texts that are tokenised to estimate the size of all states
TOKENS = 1 << 12  # padded tokens per pass of the lower layers
KEPT = contents("states.safetensors", MANIFEST, f"{'[0-9a-f]' * 16}/")  # what `LowerStates` writes
SCALE = 2.0**-6  # of stored states: T5's lower layers give states beyond float16's largest number, 65,504
MOST = 64 << 30  # maximum bytes of states per `LowerStates.add`, and never more than half of the free space


class SplitBackbone:
    """A backbone as upper(lower(text)), with `trained` upper layers; the lower layers are frozen.

    Frozen layers have neither gradients nor dropout. All parameters that the lower layers use are frozen;
    these include T5's shared position bias. Raises ValueError if `trained` is not between 1 and the number of
    layers, or if the cut changes the backbone's output.
    """

    def __init__(self, backbone: Any, trained: int, probe: Batch) -> None:
        self.backbone, self.trained = backbone, trained
        self.store: LowerStates | None = None
        self.outputs: LowerStates | None = None  # of `hidden`, for an encoder that is not trained afterwards
        self.place, self.name, layers = _find_layers(backbone)
        if not 0 < trained <= len(layers):
            raise ValueError(
                f"trained_layers={trained}: the backbone has {len(layers)} layers; 0 trains all of them and "
                "the embeddings"
            )
        self._lower = len(layers) - trained
        self._upper = list(layers[len(layers) - trained :])
        self._source = _Source(layers[0], self._upper[0])
        parameters = dict(backbone.named_parameters())
        leaves = {name: p.detach().requires_grad_() for name, p in parameters.items()}
        with _evaluating(backbone), torch.enable_grad():
            states = self._run_lower(probe, leaves)
            gradients = torch.autograd.grad(states.sum(), list(leaves.values()), allow_unused=True)
        used = [name for name, g in zip(parameters, gradients, strict=True) if g is not None]
        self.frozen = [parameters[name] for name in used if parameters[name].requires_grad]
        self._names = frozenset(used)
        self._used = {name.removeprefix("base_model.model.").replace(".base_layer.", ".") for name in used}
        with _evaluating(backbone), torch.no_grad():
            uncut, cut = backbone(**probe.inputs())[0], self.upper(self.lower(probe), probe)
        self.has_head = uncut.shape[-1] != states.shape[-1]  # the first output is MLM logits
        if not torch.allclose(uncut, cut, rtol=1e-3, atol=1e-3 * float(uncut.abs().max())):
            raise ValueError(f"the layers of {type(backbone).__name__} cannot be split: set trained_layers=0")
        for p in self.frozen:
            p.requires_grad_(False)

    def release(self) -> None:
        """Make all layers trainable again."""
        for p in self.frozen:
            p.requires_grad_(True)

    def hidden(self, batch: Batch) -> Float[Tensor, "x l v"]:
        """Compute the backbone's first output (hidden states or MLM logits), or read it from `outputs`."""
        if self.outputs is None or batch.types is not None:
            return self.upper(self.lower(batch), batch)
        return self.outputs.find(batch, self.untrained, self.backbone.parameters())

    def untrained(self, batch: Batch) -> Float[Tensor, "x l v"]:
        """Compute `hidden` for `outputs`, without gradients and dropout."""
        with _evaluating(self.backbone), torch.no_grad():
            batch = batch.to(self.backbone.device)
            return at_least_float32(self.upper(self.lower(batch), batch))

    def lower(self, batch: Batch) -> Float[Tensor, "x l w"]:
        """Return the upper layers' input, rounded to float16, from the store if there is one."""
        if self.store is None or batch.types is not None:
            return self.compute(batch)
        return self.store.find(batch, self.compute, self._lower_weights())

    def compute(self, batch: Batch) -> Float[Tensor, "x l w"]:
        """Compute the input of the upper layers, without rounding."""
        with _evaluating(self.backbone), torch.no_grad():
            return at_least_float32(self._run_lower(batch.to(self.backbone.device)))

    def upper(self, states: Float[Tensor, "x l w"], batch: Batch) -> Float[Tensor, "x l v"]:
        """Compute the backbone's first output (last hidden states or MLM logits) from `lower`'s output."""
        self._source.states = states
        if not self._lower:  # nothing to leave out but the embeddings
            hook = self._upper[0].register_forward_pre_hook(self._source.replace_input, with_kwargs=True)
            try:
                return self.backbone(**batch.inputs())[0]
            finally:
                hook.remove()
        # In each lower layer's place, because decoders choose a layer's attention by its number.
        below = [self._source] * self._lower
        layers = self.place._modules[self.name]
        self.place._modules[self.name] = nn.ModuleList(below + self._upper)
        try:
            return self.backbone(**batch.inputs())[0]
        finally:
            self.place._modules[self.name] = layers

    def keep_states(
        self, folder: Path, weights: Mapping[str, Tensor], outputs: bool = False
    ) -> "LowerStates":
        """Read `lower`, or `hidden` if `outputs`, from `folder`. weights: those without adapters."""
        read = weights if outputs else {name: weights[name] for name in self._used & weights.keys()}
        current = self.backbone.parameters() if outputs else self._lower_weights()
        opened = self.outputs if outputs else self.store
        kept = kept_states(folder, self.backbone, read, current, f"{self.trained} {SCALE}", opened)
        if outputs:
            self.outputs = kept
        else:
            self.store = kept
        return kept

    def _lower_weights(self) -> Iterator[Tensor]:
        return (weight for name, weight in self.backbone.named_parameters() if name in self._names)

    def _run_lower(self, batch: Batch, parameters: Mapping[str, Tensor] | None = None) -> Tensor:
        """Run the lower layers. parameters: replacements for the backbone's parameters, by name."""
        stop = self._upper[0].register_forward_pre_hook(_stop, with_kwargs=True)
        try:
            torch.func.functional_call(self.backbone, dict(parameters or {}), (), batch.inputs())
        except _Reached as reached:
            return reached.states
        finally:
            stop.remove()
        raise ValueError(f"{type(self.backbone).__name__} does not call its layers: set trained_layers to 0")


class LowerStates:
    """Hidden states keyed by token ids, in memory-mapped files shared by processes and training runs.

    weights: the weights that compute the states. After they change, no state is read.
    """

    def __init__(self, folder: Path, weights: Iterable[Tensor] = ()) -> None:
        self.folder = folder
        self._made_by = state_of(weights)[1:]  # values; a copy on another device has the same
        self._files: set[str] = set()
        self._stored: set[bytes] = set()  # hashes of the text groups that `add` has stored
        self._rows: dict[bytes, Tensor] = {}
        self.open()

    def __len__(self) -> int:
        return len(self._rows)

    def too_large(
        self,
        texts: Sequence[str],
        tokenize: Callable[[Sequence[str]], Batch],
        compute: Callable[[Batch], Tensor],
    ) -> str:
        """Return why the texts' states do not fit, estimated from SAMPLE texts, or "" if they fit."""
        sample = [texts[n] for n in range(0, len(texts), -(-len(texts) // SAMPLE) or 1)]
        if not sample:
            return ""
        width, lengths = compute(tokenize(sample[:1])).shape[-1], tokenize(sample).lengths()
        needed = 2 * width * sum(lengths) * len(texts) // len(sample)
        held = sum(rows.nbytes for rows in self._rows.values())
        free = shutil.disk_usage(next(place for place in self.folder.parents if place.is_dir())).free
        if needed <= MOST and needed - held <= free // 2:
            return ""
        return (
            f"the states of {len(texts):,} texts would take {needed / 1e9:,.0f} GB, more than "
            f"{MOST / 1e9:,.0f} GB or half of the {free / 1e9:,.0f} GB that are free"
        )

    def add(
        self,
        texts: Sequence[str],
        tokenize: Callable[[Sequence[str]], Batch],
        compute: Callable[[Batch], Tensor],
        *,
        layout: str = "",
        process: int = 0,
        processes: int = 1,
        progress: bool = False,
    ) -> None:
        """Compute and store this process's share of the texts' missing states.

        layout: description of how `tokenize` cuts and marks texts; texts stored with the same layout are not
        tokenised again. Every process calls this, waits for the others, and then calls `open`. Raises
        ValueError if a state divided by 64 exceeds the range of float16.
        """
        with progress_bar(progress and bool(texts)) as bar:
            starts = range(0, len(texts), SHARD)
            for number, start in enumerate(bar.track(starts, description="frozen layers")):
                group = texts[start : start + SHARD]
                joined = "\0".join([layout, *group]).encode("utf-8", "surrogatepass")
                digest = hashlib.sha256(joined).digest()
                if digest in self._stored:
                    continue
                batch = tokenize(group)
                new = {key: n for n, key in enumerate(keys(batch)) if key not in self._rows}
                name = hashlib.sha256(b"".join(new)).hexdigest()[:16]
                if new and number % processes == process and not (self.folder / name).exists():
                    self._write(name, list(new), _computed(batch, list(new.values()), compute), digest)

    def open(self) -> None:
        """Map the files written since the last call; delete damaged files, with a warning.

        `add` computes deleted states again.
        """
        for place in sorted(self.folder.glob("[0-9a-f]*/")):
            if place.name not in self._files:
                if wrong := damage(place):
                    warnings.warn(
                        f"{place} is damaged ({wrong}): its states are computed again", stacklevel=2
                    )
                    remove_folder(place, KEPT)
                    continue
                with safe_open(place / "states.safetensors", "pt") as file:
                    states, lengths = file.get_tensor("states"), file.get_tensor("lengths").tolist()
                    held = file.get_tensor("keys").numpy()
                    self._stored.add(file.get_tensor("texts").numpy().tobytes())
                for key, rows in zip(held, states.split(lengths), strict=True):
                    self._rows[key.tobytes()] = rows
                self._files.add(place.name)

    def find(
        self, batch: Batch, compute: Callable[[Batch], Tensor], weights: Iterable[Tensor] = ()
    ) -> Float[Tensor, "x l w"]:
        """Return the states of a batch, padded with 0; `compute` computes any missing states.

        weights: the current weights that compute the states; training changes none of them.
        """
        current = torch.is_grad_enabled() or state_of(weights)[1:] == self._made_by
        rows = [self._rows.get(key) if current else None for key in keys(batch)]
        missing = [n for n, row in enumerate(rows) if row is None]
        device, width = batch.input_ids.device, batch.input_ids.shape[1]
        if len(missing) == len(rows):
            return scaled(compute(batch)).float() / SCALE
        states = torch.zeros(len(rows), width, next(r for r in rows if r is not None).shape[-1])
        for n, row in enumerate(rows):
            if row is not None:
                states[n, : len(row)] = row
        states = states.to(device)
        if missing:
            places = torch.tensor(missing, device=device)
            states[places] = scaled(compute(batch.some(places, width))).float()
        return states / SCALE

    def _write(self, name: str, held: list[bytes], rows: list[Tensor], texts: bytes) -> None:
        with torch.autocast(rows[0].device.type, enabled=False):  # autocast cannot join float16 on a CPU
            states = torch.cat(rows)
        tensors = {
            "states": states,
            "lengths": torch.tensor([len(row) for row in rows]),
            "keys": torch.frombuffer(bytearray(b"".join(held)), dtype=torch.uint8).view(len(held), -1),
            "texts": torch.frombuffer(bytearray(texts), dtype=torch.uint8),
        }
        if not tensors["states"].isfinite().all():
            raise ValueError(
                f"a backbone's states exceed {65504 / SCALE:,.0f}, and are stored in float16: set "
                "trained_layers to 0"
            )
        with atomic_folder(self.folder / name, KEPT) as place:
            save_file(tensors, place / "states.safetensors")
            write_manifest(place)


def kept_states(
    folder: Path,
    module: nn.Module,
    weights: Mapping[str, Tensor],
    current: Iterable[Tensor],
    how: str = "",
    opened: LowerStates | None = None,
) -> LowerStates:
    """Open the states of a module in a subfolder named after everything that makes them.

    weights: the weights that make the states, by name. current: the same weights in the module. how: other
    settings that change the states. opened: returned if it holds the same states.
    """
    made = sorted(configuration(module).items())  # a model with adapters and its merged copy have the same
    digest = hashlib.sha256(f"{how} {precision(next(module.parameters()).device)} {made}".encode())
    for name, weight in sorted(weights.items()):
        digest.update(name.encode() + weight.detach().cpu().contiguous().numpy().tobytes())
    place = folder / digest.hexdigest()[:16]
    return opened if opened is not None and opened.folder == place else LowerStates(place, current)


def scaled(states: Float[Tensor, "*x w"]) -> Float[Tensor, "*x w"]:
    """Multiply states by SCALE and convert them to float16: numbers above .004 keep 11 significant bits."""
    return (states.float() * SCALE).half()


def keys(batch: Batch) -> list[bytes]:
    """Hash each text's token ids and attention mask, which determine the text's states."""
    ids, attention = batch.input_ids.cpu().numpy(), batch.attention_mask.cpu().numpy()
    rows = zip(ids, attention.astype(bool), batch.lengths(), strict=True)
    content = (row[:length].tobytes() + attended[:length].tobytes() for row, attended, length in rows)
    return [hashlib.blake2b(row, digest_size=16).digest() for row in content]


def _computed(batch: Batch, places: list[int], compute: Callable[[Batch], Tensor]) -> list[Tensor]:
    """Compute the states to store for the texts at `places`, without padding."""
    lengths = [batch.lengths()[place] for place in places]
    rows: list[Tensor] = [torch.empty(0)] * len(places)
    for part in by_length(lengths, TOKENS):
        texts = batch.some(torch.tensor([places[n] for n in part]), max(1, lengths[part[0]]))
        for n, states in zip(part, scaled(compute(texts)).cpu(), strict=True):
            rows[n] = states[: lengths[n]]
    return rows


def _find_layers(backbone: nn.Module) -> tuple[nn.Module, str, list[nn.Module]]:
    """Find the backbone's list of layers: (parent module, name of the list in it, layers).

    Raises ValueError unless there is exactly one list.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    lists = [
        (module, name, list(child))
        for module in backbone.modules()
        for name, child in module.named_children()
        if isinstance(child, nn.ModuleList)
        and len(child)
        and all(isinstance(layer, GradientCheckpointingLayer) for layer in child)
    ]
    if len(lists) != 1:
        raise ValueError(
            f"{type(backbone).__name__} has {len(lists)} lists of layers, but trained_layers needs exactly "
            "one: set trained_layers to 0"
        )
    return lists[0]


class _Reached(Exception):
    def __init__(self, states: Tensor) -> None:
        super().__init__()
        self.states = states


def _stop(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Stop the backbone before the first upper layer, and report the layer's input."""
    raise _Reached(args[0] if args else kwargs["hidden_states"])


class _Source(nn.Module):
    """Stand-in for a backbone's lower layers that returns `states` and, for T5, the position bias."""

    def __init__(self, bottom: nn.Module, following: nn.Module) -> None:
        super().__init__()
        self.attention_type = getattr(following, "attention_type", None)
        parts = getattr(bottom, "layer", None)
        attention = getattr(parts[0], "SelfAttention", None) if isinstance(parts, nn.ModuleList) else None
        self._bias = getattr(attention, "compute_bias", None)
        self.states = torch.empty(0)

    def replace_input(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args:
            return (self.states, *args[1:]), kwargs
        return args, kwargs | {"hidden_states": self.states}

    def forward(self, hidden_states: Tensor, *_: Any, **__: Any) -> Any:
        states = self.states
        if self._bias is None:
            return states
        return states, self._bias(states.shape[1], states.shape[1], device=states.device), None


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(training)


def precision(device: torch.device) -> str:
    """Return the dtype of matrix products under the current autocast, if any."""
    on = torch.is_autocast_enabled(device.type)
    return str(torch.get_autocast_dtype(device.type) if on else torch.float32)
