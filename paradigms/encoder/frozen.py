"""Store the states of a backbone's frozen layers on disk, in float16; encoders read them instead of layers.

`split` cuts the backbone; `train.fit` decides what to store and where.
"""

import hashlib
import shutil
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import torch
from jaxtyping import Float
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from paradigms.encoder.backbone import configuration
from paradigms.encoder.batches import Batch, ahead, by_length
from paradigms.encoder.precision import product_precision
from paradigms.encoder.weights import state_of
from paradigms.io.files import atomic_folder, contents, remove_folder
from paradigms.io.manifest import MANIFEST, damage, write_manifest
from paradigms.io.progress import progress_bar

SHARD = 1024  # texts per file
SAMPLE = 128  # texts that are tokenised to estimate the size of all states
TOKENS = 1 << 12  # padded tokens per pass of the lower layers
WRITTEN = contents("states.safetensors", MANIFEST, f"{'[0-9a-f]' * 16}/")  # what `LowerStates` writes
SCALE = 2.0**-6  # of stored states: T5's lower layers give states beyond float16's largest number, 65,504
MOST = 64 << 30  # maximum bytes of states per `LowerStates.add`, and never more than half of the free space


class LowerStates:
    """Hidden states keyed by token ids, in memory-mapped files shared by processes and training runs.

    weights: the weights that compute the states. After they change, no state is read.
    """

    def __init__(self, folder: Path, weights: Iterable[Tensor] = ()) -> None:
        self.folder = folder
        self._made_by = state_of(weights)[1:]  # values; a copy on another device has the same
        self._files: set[str] = set()
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
        width = compute(tokenize(sample[:1])).shape[-1]
        lengths = tokenize(sample).lengths()
        needed = 2 * width * sum(lengths) * len(texts) // len(sample)
        stored = sum(rows.nbytes for rows in self._rows.values())
        free = shutil.disk_usage(next(place for place in self.folder.parents if place.is_dir())).free
        if needed <= MOST and needed - stored <= free // 2:
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
        process: int = 0,
        processes: int = 1,
        progress: bool = False,
    ) -> None:
        """Compute and store this process's share of the texts' missing states.

        Every process calls this, waits for the others, and then calls `open`.
        """
        shards = [texts[start : start + SHARD] for start in range(0, len(texts), SHARD)]
        with progress_bar(progress and len(shards) > 1) as bar:
            batches = bar.track(ahead(tokenize, shards), total=len(shards), description="frozen layers")
            for number, batch in enumerate(batches):
                new = {key: n for n, key in enumerate(keys(batch)) if key not in self._rows}
                name = hashlib.sha256(b"".join(new)).hexdigest()[:16]
                if new and number % processes == process and not (self.folder / name).exists():
                    self._write(name, list(new), _computed(batch, list(new.values()), compute))

    def open(self) -> None:
        """Map the files written since the last call; delete damaged ones, with a warning."""
        for place in sorted(self.folder.glob("[0-9a-f]*/")):
            if place.name in self._files:
                continue
            if wrong := damage(place):
                warnings.warn(f"{place} is damaged ({wrong}): its states are computed again", stacklevel=2)
                remove_folder(place, WRITTEN)
                continue
            with safe_open(place / "states.safetensors", "pt") as file:
                states = file.get_tensor("states")
                lengths = file.get_tensor("lengths").tolist()
                names = file.get_tensor("keys").numpy()
            for key, rows in zip(names, states.split(lengths), strict=True):
                self._rows[key.tobytes()] = rows
            self._files.add(place.name)

    def find(
        self, batch: Batch, compute: Callable[[Batch], Tensor], weights: Iterable[Tensor] = ()
    ) -> Float[Tensor, "x l w"]:
        """Return the states of a batch, padded with 0; `compute` computes any missing states.

        weights: the current weights that compute the states; training changes none of them.
        """
        current = torch.is_grad_enabled() or state_of(weights)[1:] == self._made_by
        stored = {n: self._rows[key] for n, key in enumerate(keys(batch)) if current and key in self._rows}
        if not stored:
            return scaled(compute(batch)).float() / SCALE
        width = batch.input_ids.shape[1]
        states = torch.zeros(len(batch), width, next(iter(stored.values())).shape[-1])
        for n, row in stored.items():
            states[n, : len(row)] = row
        states = states.to(batch.input_ids.device)
        if missing := [n for n in range(len(batch)) if n not in stored]:
            places = torch.tensor(missing, device=states.device)
            states[places] = scaled(compute(batch.select(places, width))).float()
        return states / SCALE

    def _write(self, name: str, names: list[bytes], rows: list[Tensor]) -> None:
        with torch.autocast(rows[0].device.type, enabled=False):  # autocast cannot join float16 on a CPU
            states = torch.cat(rows)
        if not states.isfinite().all():
            most = f"{65504 / SCALE:,.0f}, and are stored in float16"
            raise ValueError(f"a backbone's states exceed {most}: set trained_layers to 0")
        tensors = {
            "states": states,
            "lengths": torch.tensor([len(row) for row in rows]),
            "keys": torch.frombuffer(bytearray(b"".join(names)), dtype=torch.uint8).view(len(names), -1),
        }
        with atomic_folder(self.folder / name, WRITTEN) as place:
            save_file(tensors, place / "states.safetensors")
            write_manifest(place)


def open_states(
    folder: Path,
    module: nn.Module,
    weights: Mapping[str, Tensor],
    current: Iterable[Tensor],
    settings: str = "",
    current_states: LowerStates | None = None,
) -> LowerStates:
    """Open the states of a module in a subfolder named after everything that makes them.

    weights: the weights that make the states, by name. current: the same weights in the module. settings:
    other settings that change the states. current_states: returned if it holds the same states.
    """
    fields = sorted(configuration(module).items())  # a model with adapters and its merged copy have the same
    precision = product_precision(next(module.parameters()).device)
    digest = hashlib.sha256(f"{settings} {precision} {fields}".encode())
    for name, weight in sorted(weights.items()):
        digest.update(name.encode() + weight.detach().cpu().contiguous().numpy().tobytes())
    place = folder / digest.hexdigest()[:16]
    if current_states is not None and current_states.folder == place:
        return current_states
    return LowerStates(place, current)


def scaled(states: Float[Tensor, "*x w"]) -> Float[Tensor, "*x w"]:
    """Multiply states by SCALE and convert them to float16: numbers above .004 keep 11 significant bits."""
    return (states.float() * SCALE).half()


def keys(batch: Batch) -> list[bytes]:
    """Hash each text's token ids and attention mask, which determine the text's states."""
    ids = batch.input_ids.cpu().numpy()
    attention = batch.attention_mask.cpu().numpy()
    rows = zip(ids, attention.astype(bool), batch.lengths(), strict=True)
    content = (row[:length].tobytes() + attended[:length].tobytes() for row, attended, length in rows)
    return [hashlib.blake2b(row, digest_size=16).digest() for row in content]


def _computed(batch: Batch, places: list[int], compute: Callable[[Batch], Tensor]) -> list[Tensor]:
    """Compute the states to store for the texts at `places`, without padding."""
    lengths = [batch.lengths()[place] for place in places]
    rows: list[Tensor] = [torch.empty(0)] * len(places)
    for part in by_length(lengths, TOKENS):
        texts = batch.select(torch.tensor([places[n] for n in part]), max(1, lengths[part[0]]))
        for n, states in zip(part, scaled(compute(texts)).cpu(), strict=True):
            rows[n] = states[: lengths[n]]
    return rows
