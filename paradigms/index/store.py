"""The token vectors of a corpus under one paradigm, as float16 files that are read in place.

What every index shares: how documents become a folder, and how their tokens come back.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from paradigms.core import Tokens
from paradigms.files import atomic_folder, settle, write_json
from paradigms.index.pruning import most_salient
from paradigms.model import Paradigm
from paradigms.progress import progress_bar

WINDOW = 4096  # documents whose lengths are sorted together, so that batches hold little padding
PRUNED_BLOCK = 1 << 16  # padded tokens that are pruned at once
MANIFEST = {"paradigm", "fields", "documents", "tokens", "dim"}
FIELDS = {"vectors": np.float16, "ids": np.int32, "salience": np.float32}
Store = TypeVar("Store", bound="TokenStore")


class TokenStore:
    """The tokens of a corpus under one paradigm, on disk. Make with `build`, read with `open`."""

    def __init__(self, folder: Path) -> None:
        settle(folder)
        self.folder = folder
        if not (folder / "manifest.json").is_file():
            raise FileNotFoundError(f"{folder / 'manifest.json'} is missing: {folder} is not an index")
        self.manifest: dict[str, Any] = self._read("manifest.json", _read_json)
        if self.manifest.keys() != MANIFEST:
            raise self._damaged("manifest.json", f"its entries should be {', '.join(sorted(MANIFEST))}")
        self.ids: list[str] = self._read("documents.json", _read_json)
        self._positions = {id: n for n, id in enumerate(self.ids)}
        self.offsets: np.ndarray = self._read("offsets.npy", lambda file: np.load(file, allow_pickle=False))
        n, tokens = int(self.manifest["documents"]), int(self.manifest["tokens"])
        if len(self._positions) != n:
            raise self._damaged("documents.json", f"{len(self._positions)} different ids")
        if self.offsets.shape != (n + 1,) or self.offsets[0] != 0 or self.offsets[-1] != tokens:
            raise self._damaged("offsets.npy", f"not {n + 1} offsets from 0 to {tokens}")
        self.fields = {name: self._map(name) for name in self.manifest["fields"]}

    @classmethod
    def open(cls: type[Store], folder: str | Path) -> Store:
        """What `build` wrote. ValueError names the file that is damaged."""
        return cls(Path(folder))

    @classmethod
    def build(
        cls: type[Store],
        paradigm: Paradigm,
        ids: Sequence[str],
        texts: Sequence[str],
        folder: str | Path,
        *,
        keep: float = 1.0,
        batch_size: int = 64,
        precision: str = "no",
        progress: bool = False,
    ) -> Store:
        """Encode the documents and store their tokens; the folder appears complete or not at all.

        keep: β^d, the share of each document's tokens that are stored, the most salient ones (`pruning`).
        precision "bf16" (or "fp16", on a GPU) encodes under autocast; vectors are stored as float16 anyway.
        ValueError where ids repeat or a vector does not fit float16.
        """
        if len(ids) != len(texts) or len(set(ids)) != len(ids):
            raise ValueError(
                f"{len(texts)} texts need as many different ids, not {len(set(ids))} among {len(ids)}"
            )
        with progress_bar(progress) as bar:
            task = bar.add_task(f"encode {paradigm.recipe.name}", total=len(ids))

            def encoded() -> Iterator[tuple[list[str], Tokens]]:
                for batch in _batches(texts, batch_size):
                    with _autocast(paradigm, precision):
                        tokens = paradigm.encode_documents([texts[n] for n in batch])
                    yield [ids[n] for n in batch], most_salient(tokens, keep)
                    bar.advance(task, len(batch))

            manifest = {"paradigm": paradigm.recipe.name, "fields": _fields(paradigm)}
            _write(Path(folder), encoded(), manifest | {"dim": paradigm.encoder.dim})
        return cls(Path(folder))

    def prune(self: Store, keep: float, folder: str | Path) -> Store:
        """A store in `folder` of the `keep` · length most salient tokens of each document, as `build` makes.

        Nothing is encoded again. Errors as in `pruning.most_salient`.
        """
        names = ("paradigm", "fields", "dim")
        blocks = self.blocks(PRUNED_BLOCK)
        kept = ((self.ids[b.start : b.stop], most_salient(self.tokens(b), keep)) for b in blocks)
        _write(Path(folder), kept, {name: self.manifest[name] for name in names})
        return type(self)(Path(folder))

    @property
    def bytes_per_document(self) -> float:
        """Bytes on disk of vectors, ids, salience and offsets, per document."""
        size = sum(f.nbytes for f in self.fields.values()) + self.offsets.nbytes
        return size / max(1, len(self.ids))

    def tokens(self, positions: Sequence[int] | range, device: torch.device | str = "cpu") -> Tokens:
        """The stored tokens of documents, by position in `ids`: axes [1, n, i, h], float32."""
        at = np.asarray(positions, dtype=np.int64)
        lengths = self.offsets[at + 1] - self.offsets[at]
        longest = max(1, int(lengths.max(initial=0)))
        mask = np.arange(longest) < lengths[:, None]
        consecutive = isinstance(positions, range) and positions.step == 1 and len(positions) > 0
        rows: Any = (
            slice(self.offsets[at[0]], self.offsets[at[-1] + 1])
            if consecutive
            else (self.offsets[at][:, None] + np.arange(longest))[mask]
        )
        there = torch.from_numpy(mask).to(device)
        padded: dict[str, Tensor] = {}
        for name, values in self.fields.items():
            flat = torch.from_numpy(np.array(values[rows])).to(device)
            flat = flat.float() if flat.is_floating_point() else flat.long()
            full = flat.new_zeros((*mask.shape, *flat.shape[1:]))
            full[there] = flat
            padded[name] = full[None]
        return Tokens(padded["vectors"], there[None], padded.get("ids"), padded.get("salience"))

    def tokens_of(self, ids: Sequence[str], device: torch.device | str = "cpu") -> Tokens:
        """The stored tokens of documents, by id, in the order of `ids`."""
        return self.tokens([self.position(id) for id in ids], device)

    def position(self, id: str) -> int:
        """The place of a document in `ids`. KeyError names an unknown one."""
        if id not in self._positions:
            raise KeyError(f"document {id!r} is not in the index {self.folder} of {len(self.ids)} documents")
        return self._positions[id]

    def blocks(self, tokens: int) -> Iterator[range]:
        """Consecutive documents that, padded to the longest of them, have at most `tokens` tokens."""
        lengths = np.diff(self.offsets)
        start, longest = 0, 1
        for n, length in enumerate(lengths):
            longest = max(longest, int(length))
            if n > start and (n + 1 - start) * longest > tokens:
                yield range(start, n)
                start, longest = n, max(1, int(length))
        if start < len(lengths):
            yield range(start, len(lengths))

    def _map(self, name: str) -> np.ndarray:
        file, count = self.folder / f"{name}.bin", int(self.manifest["tokens"])
        shape = (count, int(self.manifest["dim"])) if name == "vectors" else (count,)
        expected = int(np.prod(shape)) * np.dtype(FIELDS[name]).itemsize
        if not file.is_file() or file.stat().st_size != expected:
            size = file.stat().st_size if file.is_file() else "no"
            raise self._damaged(file.name, f"{size} bytes where {expected} belong")
        if not count:
            return np.zeros(shape, FIELDS[name])
        return np.memmap(file, FIELDS[name], "r", shape=shape)

    def _read(self, name: str, how: Callable[[Path], Any]) -> Any:
        try:
            return how(self.folder / name)
        except (OSError, ValueError, EOFError) as error:
            raise self._damaged(name, str(error)) from error

    def _damaged(self, name: str, what: str) -> ValueError:
        return ValueError(f"{self.folder / name} is damaged ({what}): build the index again")

    def check(self, paradigm: Paradigm) -> None:
        """ValueError where these are not tokens that `paradigm` can score."""
        missing = [name for name in _fields(paradigm) if name not in self.fields]
        if missing:
            raise ValueError(
                f"{self.folder}, made by {self.manifest['paradigm']}, holds no {' and no '.join(missing)} of "
                f"tokens, which {paradigm.recipe.name} reads"
            )
        if paradigm.encoder.dim != self.manifest["dim"]:
            raise ValueError(
                f"{self.folder} holds vectors of {self.manifest['dim']} dimensions of "
                f"{self.manifest['paradigm']}, not of {paradigm.encoder.dim} of {paradigm.recipe.name}"
            )


def _fields(paradigm: Paradigm) -> list[str]:
    """What is stored of a document's tokens: what the paradigm reads of them."""
    salience = ["salience"] if paradigm.encoder.settings.weighs("document") else []
    return ["vectors", *sorted(paradigm.reads & {"ids"}), *salience]


def _write(folder: Path, parts: Iterable[tuple[list[str], Tokens]], manifest: dict[str, Any]) -> None:
    """Store documents: of each part its ids and Tokens [1, n, i, h]; `manifest` has paradigm, fields, dim."""
    stored: list[str] = []
    lengths: list[int] = []
    with atomic_folder(folder) as temporary, ExitStack() as stack:
        names = manifest["fields"]
        files = {name: stack.enter_context((temporary / f"{name}.bin").open("wb")) for name in names}
        for ids, tokens in parts:
            mask = tokens.mask[0].cpu().numpy()
            for name, file in files.items():
                values = getattr(tokens, name)[0]
                values = values.float() if values.is_floating_point() else values
                with np.errstate(over="ignore"):  # the check below says it with a name
                    rows = values.cpu().numpy()[mask].astype(FIELDS[name])
                if not np.isfinite(rows).all():
                    raise ValueError(
                        f"the {name} of {manifest['paradigm']} do not fit {FIELDS[name].__name__} in "
                        f"documents {ids[:3]} …: not finite, or too large"
                    )
                file.write(rows.tobytes())
            stored += ids
            lengths += mask.sum(-1).tolist()
        offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        np.save(temporary / "offsets.npy", offsets)
        write_json(temporary / "documents.json", stored)
        write_json(temporary / "manifest.json", manifest | {"documents": len(stored), "tokens": sum(lengths)})


def _batches(texts: Sequence[str], size: int) -> Iterator[list[int]]:
    """Positions in batches of texts of like length, longest first in each window."""
    for start in range(0, len(texts), WINDOW):
        window = range(start, min(start + WINDOW, len(texts)))
        lengths = {n: len(texts[n]) for n in window}
        order = sorted(window, key=lambda n: (-lengths[n], n))
        yield from (order[i : i + size] for i in range(0, len(order), size))


def _autocast(paradigm: Paradigm, precision: str) -> AbstractContextManager[Any]:
    device = paradigm.encoder.device.type
    kinds = {"bf16": torch.bfloat16} | ({} if device == "cpu" else {"fp16": torch.float16})
    return torch.autocast(device, kinds.get(precision, torch.bfloat16), enabled=precision in kinds)


def _read_json(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))
