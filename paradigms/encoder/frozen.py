"""hidden = upper(lower(text)): layers that are not trained run once a text, and what they gave is kept.

`Split` cuts a backbone in two; `LowerStates` keeps what its lower part gives on disk, in float16.
"""

import hashlib
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from paradigms.encoder.batches import Batch, by_length
from paradigms.io.files import atomic_folder
from paradigms.io.progress import progress_bar

SHARD = 1024  # texts of one file
TOKENS = 1 << 12  # padded tokens that the lower layers read at once
MOST = 64 << 30  # bytes of states that one `LowerStates.add` keeps; at most half of the disk's free space


class Split:
    """A backbone as upper(lower(text)): `trained` upper layers; the rest frozen, without gradients and
    dropout.

    What the lower layers use is frozen wherever it stands, such as T5's position bias. ValueError where the
    backbone has fewer layers, or computes something else once it is cut.
    """

    def __init__(self, backbone: Any, trained: int, probe: Batch) -> None:
        self.backbone, self.trained = backbone, trained
        self.store: LowerStates | None = None
        self.place, self.name, layers = _find_layers(backbone)
        if not 0 < trained <= len(layers):
            raise ValueError(
                f"trained_layers={trained}: the backbone has {len(layers)} layers; 0 trains all of them and "
                "the embeddings"
            )
        self._upper = list(layers[len(layers) - trained :])
        self._given = _Given(layers[0], self._upper[0])
        parameters = dict(backbone.named_parameters())
        leaves = {name: p.detach().requires_grad_() for name, p in parameters.items()}
        with _evaluating(backbone), torch.enable_grad():
            states = self._run_lower(probe, leaves)
            gradients = torch.autograd.grad(states.sum(), list(leaves.values()), allow_unused=True)
        used = [name for name, g in zip(parameters, gradients, strict=True) if g is not None]
        self.frozen = [parameters[name] for name in used if parameters[name].requires_grad]
        self._used = {name.removeprefix("base_model.model.").replace(".base_layer.", ".") for name in used}
        with _evaluating(backbone), torch.no_grad():
            whole, cut = backbone(**probe.inputs())[0], self.upper(self.lower(probe), probe)
        if not torch.allclose(whole, cut, rtol=1e-3, atol=1e-3 * float(whole.abs().max())):
            raise ValueError(f"the layers of {type(backbone).__name__} cannot be split: set trained_layers=0")
        for p in self.frozen:
            p.requires_grad_(False)

    def release(self) -> None:
        """Train all layers again."""
        for p in self.frozen:
            p.requires_grad_(True)

    def lower(self, batch: Batch) -> Float[Tensor, "x l w"]:
        """The states that enter the upper layers, from the store if there is one, and rounded as in it."""
        if self.store is None or batch.types is not None:
            return self.compute(batch)
        return self.store.find(batch, lambda missing: self.compute(missing).half())

    def compute(self, batch: Batch) -> Float[Tensor, "x l w"]:
        """The same by the lower layers, not rounded."""
        with _evaluating(self.backbone), torch.no_grad():
            return self._run_lower(batch.to(self.backbone.device)).float()

    def upper(self, states: Float[Tensor, "x l w"], batch: Batch) -> Float[Tensor, "x l w"]:
        """The backbone's first output, of what `lower` gave: the last hidden states, or an MLM's logits."""
        self._given.states = states
        whole = self.place._modules[self.name]
        self.place._modules[self.name] = nn.ModuleList([self._given, *self._upper])
        try:
            return self.backbone(**batch.inputs())[0]
        finally:
            self.place._modules[self.name] = whole

    def fingerprint(self, weights: dict[str, Tensor]) -> str:
        """Name for the states: it follows those weights that the lower layers use, and their precision."""
        found = hashlib.sha256(f"{self.trained} {precision(self.backbone.device)}".encode())
        for name in sorted(self._used & weights.keys()):
            found.update(name.encode() + weights[name].detach().cpu().contiguous().numpy().tobytes())
        return found.hexdigest()[:16]

    def _run_lower(self, batch: Batch, parameters: Mapping[str, Tensor] | None = None) -> Tensor:
        """The states of a batch. parameters: by name, in place of the backbone's own."""
        stop = self._upper[0].register_forward_pre_hook(_stop, with_kwargs=True)
        try:
            torch.func.functional_call(self.backbone, dict(parameters or {}), (), batch.inputs())
        except _Reached as reached:
            return reached.states
        finally:
            stop.remove()
        raise ValueError(f"{type(self.backbone).__name__} does not call its layers: set trained_layers to 0")


class LowerStates:
    """Hidden states by token ids, in memory-mapped files of `folder` that processes and trainings share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: set[str] = set()
        self._kept: set[bytes] = set()  # texts whose states are there, as `add` names them
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
        """Why not to keep the states of so many texts, from the lengths of SHARD of them; "" where to."""
        some = [texts[n] for n in range(0, len(texts), -(-len(texts) // SHARD) or 1)]
        if not some:
            return ""
        width, lengths = compute(tokenize(some[:1])).shape[-1], tokenize(some).lengths()
        needed = 2 * width * sum(lengths) * len(texts) // len(some)
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
        """Keep the states of the texts that are not there yet, of which this process computes its share.

        layout: how `tokenize` cuts and marks texts; those that were kept with it are not tokenised again.
        Every process calls this, waits for the others, and then calls `open`. ValueError for states beyond
        what float16 holds.
        """
        with progress_bar(progress and bool(texts)) as bar:
            starts = range(0, len(texts), SHARD)
            for number, start in enumerate(bar.track(starts, description="frozen layers")):
                some = texts[start : start + SHARD]
                asked = "\0".join([layout, *some]).encode("utf-8", "surrogatepass")
                told = hashlib.sha256(asked).digest()
                if told in self._kept:
                    continue
                batch = tokenize(some)
                new = {key: n for n, key in enumerate(keys(batch)) if key not in self._rows}
                name = hashlib.sha256(b"".join(new)).hexdigest()[:16]
                if new and number % processes == process and not (self.folder / name).exists():
                    self._write(name, list(new), _computed(batch, list(new.values()), compute), told)

    def open(self) -> None:
        """Read what was written since. A damaged file is deleted, with a warning: `add` makes it again."""
        for file in sorted(self.folder.glob("*/states.safetensors")):
            name = file.parent.name
            if name not in self._files:
                try:
                    with safe_open(file, "pt") as found:
                        states, lengths = found.get_tensor("states"), found.get_tensor("lengths").tolist()
                        held = found.get_tensor("keys").numpy()
                        told = found.get_tensor("texts").numpy().tobytes()
                except SafetensorError as error:
                    warnings.warn(f"{file} is damaged ({error}): its states are computed again", stacklevel=2)
                    shutil.rmtree(file.parent, ignore_errors=True)
                    continue
                self._kept.add(told)
                for key, rows in zip(held, states.split(lengths), strict=True):
                    self._rows[key.tobytes()] = rows
                self._files.add(name)

    def find(self, batch: Batch, compute: Callable[[Batch], Tensor]) -> Float[Tensor, "x l w"]:
        """[x, l, w] of a batch, padded with 0; `compute` gives those that are not there."""
        rows = [self._rows.get(key) for key in keys(batch)]
        missing = [n for n, row in enumerate(rows) if row is None]
        device, width = batch.input_ids.device, batch.input_ids.shape[1]
        if len(missing) == len(rows):
            return compute(batch).float()
        states = torch.zeros(len(rows), width, next(r for r in rows if r is not None).shape[-1])
        for n, row in enumerate(rows):
            if row is not None:
                states[n, : len(row)] = row
        states = states.to(device)
        if missing:
            places = torch.tensor(missing, device=device)
            states[places] = compute(batch.some(places, width)).float()
        return states

    def _write(self, name: str, held: list[bytes], rows: list[Tensor], texts: bytes) -> None:
        with torch.autocast(rows[0].device.type, enabled=False):  # which refuses to join float16 on a CPU
            states = torch.cat(rows)
        tensors = {
            "states": states,
            "lengths": torch.tensor([len(row) for row in rows]),
            "keys": torch.frombuffer(bytearray(b"".join(held)), dtype=torch.uint8).view(len(held), -1),
            "texts": torch.frombuffer(bytearray(texts), dtype=torch.uint8),
        }
        if not tensors["states"].isfinite().all():
            raise ValueError(
                "the lower layers give numbers beyond those of float16, in which they are kept: set "
                "trained_layers to 0"
            )
        with atomic_folder(self.folder / name, None) as place:
            save_file(tensors, place / "states.safetensors")


def keys(batch: Batch) -> list[bytes]:
    """Of each text what its states depend on: the ids of its tokens, and which of them are attended to."""
    ids, attention = batch.input_ids.cpu().numpy(), batch.attention_mask.cpu().numpy()
    rows = zip(ids, attention.astype(bool), batch.lengths(), strict=True)
    content = (own[:length].tobytes() + there[:length].tobytes() for own, there, length in rows)
    return [hashlib.blake2b(row, digest_size=16).digest() for row in content]


def _computed(batch: Batch, places: list[int], compute: Callable[[Batch], Tensor]) -> list[Tensor]:
    """float16 states of the texts at `places`, each cut to its length."""
    lengths = [batch.lengths()[place] for place in places]
    rows: list[Tensor] = [torch.empty(0)] * len(places)
    for part in by_length(lengths, TOKENS):
        texts = batch.some(torch.tensor([places[n] for n in part]), max(1, lengths[part[0]]))
        for n, states in zip(part, compute(texts).half().cpu(), strict=True):
            rows[n] = states[: lengths[n]]
    return rows


def _find_layers(backbone: nn.Module) -> tuple[nn.Module, str, list[nn.Module]]:
    """The module whose child is the one list of the backbone's layers, the child's name, the layers."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    found = [
        (module, name, list(child))
        for module in backbone.modules()
        for name, child in module.named_children()
        if isinstance(child, nn.ModuleList)
        and len(child)
        and all(isinstance(layer, GradientCheckpointingLayer) for layer in child)
    ]
    if len(found) != 1:
        raise ValueError(
            f"{type(backbone).__name__} has {len(found)} lists of layers, where trained_layers needs one to "
            "split: set trained_layers to 0"
        )
    return found[0]


class _Reached(Exception):
    def __init__(self, states: Tensor) -> None:
        super().__init__()
        self.states = states


def _stop(layer: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Before the first upper layer: ends the backbone's pass with the states that would enter it."""
    raise _Reached(given[0] if given else named["hidden_states"])


class _Given(nn.Module):
    """In place of a backbone's lower layers: gives the next one `states`, and T5's its position bias."""

    def __init__(self, bottom: nn.Module, following: nn.Module) -> None:
        super().__init__()
        self.attention_type = getattr(following, "attention_type", None)
        parts = getattr(bottom, "layer", None)
        attention = getattr(parts[0], "SelfAttention", None) if isinstance(parts, nn.ModuleList) else None
        self._bias = getattr(attention, "compute_bias", None)
        self.states = torch.empty(0)

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
    """Of matrix products under the autocast that is on, if one is."""
    on = torch.is_autocast_enabled(device.type)
    return str(torch.get_autocast_dtype(device.type) if on else torch.float32)
