"""top-k_d rel(d, q) over a whole corpus, exactly: float16 token vectors on disk, read in blocks.

Two ways to score (a paradigm's `Recipe.search`):

- gather: every document's tokens are read and `core.rel` is computed; equal to it on the stored vectors;
- impute: an exact token search gives the k' best document tokens of each query token, and documents are
  scored from those alone; equal to `xtr.imputed_rel` on the stored vectors (Lee et al. 2023, Eq. 4).

Memory is bounded by a block of documents and a slice of queries, whatever the corpus.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paradigms.core import Tokens, join_queries, similarity
from paradigms.data import Run
from paradigms.files import atomic_folder, write_json
from paradigms.model import Paradigm
from paradigms.progress import progress_bar
from paradigms.xtr import imputed_rel

WINDOW = 4096  # documents whose lengths are sorted together, so that batches hold little padding
BLOCK_TOKENS = 1 << 15  # padded tokens of a block of documents
CELLS = 1 << 23  # entries of S at once
FIELDS = {"vectors": np.float16, "ids": np.int32, "salience": np.float32}


class ExactIndex:
    """The tokens of a corpus under one paradigm, on disk. Make with `build`, read with `open`."""

    def __init__(self, folder: Path) -> None:
        manifest = folder / "manifest.json"
        if not manifest.is_file():
            raise FileNotFoundError(f"{manifest} is missing: {folder} is not an index")
        self.folder = folder
        self.manifest: dict[str, Any] = json.loads(manifest.read_text())
        self.ids: list[str] = json.loads((folder / "documents.json").read_text())
        self._positions = {id: n for n, id in enumerate(self.ids)}
        self.offsets: np.ndarray = np.load(folder / "offsets.npy", allow_pickle=False)
        self._fields = {name: self._map(name) for name in self.manifest["fields"]}

    @classmethod
    def open(cls, folder: str | Path) -> ExactIndex:
        return cls(Path(folder))

    @classmethod
    def build(
        cls,
        paradigm: Paradigm,
        ids: Sequence[str],
        texts: Sequence[str],
        folder: str | Path,
        *,
        batch_size: int = 64,
        precision: str = "no",
        progress: bool = False,
    ) -> ExactIndex:
        """Encode the documents and store their tokens; the folder appears complete or not at all.

        precision "bf16" encodes under autocast; vectors are stored as float16 either way.
        """
        if len(ids) != len(texts):
            raise ValueError(f"{len(ids)} ids for {len(texts)} texts")
        fields = ["vectors", *sorted(paradigm.reads & {"ids", "salience"})]
        stored, lengths = [], []
        with atomic_folder(folder) as temporary, progress_bar(progress) as bar:
            task = bar.add_task(f"encode {paradigm.recipe.name}", total=len(ids))
            files = {name: (temporary / f"{name}.bin").open("wb") for name in fields}
            try:
                for batch in _batches(texts, batch_size):
                    with _autocast(paradigm, precision):
                        tokens = paradigm.encode_documents([texts[n] for n in batch])
                    keep = tokens.mask[0].cpu().numpy()
                    for name, file in files.items():
                        values = getattr(tokens, name)[0].cpu().numpy()[keep]
                        file.write(values.astype(FIELDS[name]).tobytes())
                    stored += [ids[n] for n in batch]
                    lengths += keep.sum(-1).tolist()
                    bar.advance(task, len(batch))
            finally:
                for file in files.values():
                    file.close()
            offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
            np.save(temporary / "offsets.npy", offsets)
            write_json(temporary / "documents.json", stored)
            manifest = {"kind": "exact", "paradigm": paradigm.recipe.name, "fields": fields}
            shape = {"documents": len(stored), "tokens": int(offsets[-1]), "dim": paradigm.encoder.dim}
            write_json(temporary / "manifest.json", manifest | shape)
        return cls(Path(folder))

    @property
    def bytes_per_document(self) -> float:
        """Bytes on disk of vectors, ids, salience and offsets, per document."""
        size = sum(f.nbytes for f in self._fields.values()) + self.offsets.nbytes
        return size / max(1, len(self.ids))

    def search(
        self, paradigm: Paradigm, queries: Mapping[str, str], k: int = 100, *, progress: bool = False
    ) -> Run:
        """The k best documents of every query; fewer where the index, or what was retrieved, has fewer."""
        self._check(paradigm)
        if not queries or not self.ids:
            return {query_id: {} for query_id in queries}
        encoded = _encode_queries(paradigm, list(queries.values()))
        how = self._impute if paradigm.recipe.search == "impute" else self._gather
        with torch.inference_mode(), progress_bar(progress) as bar:
            rows = how(paradigm, encoded, min(k, len(self.ids)), bar)
        return dict(zip(queries, rows, strict=True))

    def rerank(
        self, paradigm: Paradigm, queries: Mapping[str, str], run: Run, *, progress: bool = False
    ) -> Run:
        """New scores for the documents that `run` holds for each query.

        An imputing paradigm takes the query's candidates as its pool: k' tokens of theirs are retrieved.
        """
        self._check(paradigm)
        result: Run = {}
        with torch.inference_mode(), progress_bar(progress) as bar:
            task = bar.add_task(f"rerank {paradigm.recipe.name}", total=len(queries))
            for query_id, text in queries.items():
                candidates = sorted(run.get(query_id, {}), key=self._position)
                scores: list[float] = []
                if candidates:
                    q = paradigm.encode_queries([text])
                    documents = self.tokens_of(candidates, q.vectors.device)
                    scores = self._score(paradigm, documents, q)[0].tolist()
                result[query_id] = dict(zip(candidates, scores, strict=True))
                bar.advance(task)
        return result

    def tokens(self, positions: Sequence[int] | range, device: torch.device | str = "cpu") -> Tokens:
        """The stored tokens of documents, by position in `ids`: axes [1, n, i, h], float32."""
        at = np.asarray(positions, dtype=np.int64)
        lengths = self.offsets[at + 1] - self.offsets[at]
        longest = max(1, int(lengths.max(initial=0)))
        mask = np.arange(longest) < lengths[:, None]
        rows = (self.offsets[at][:, None] + np.arange(longest))[mask]
        padded: dict[str, Tensor] = {}
        for name, values in self._fields.items():
            flat = torch.from_numpy(np.ascontiguousarray(values[rows]))
            flat = flat.float() if flat.is_floating_point() else flat.long()
            full = flat.new_zeros((*mask.shape, *flat.shape[1:]))
            full[torch.from_numpy(mask)] = flat
            padded[name] = full[None].to(device)
        return Tokens(
            padded["vectors"],
            torch.from_numpy(mask)[None].to(device),
            padded.get("ids"),
            padded.get("salience"),
        )

    def tokens_of(self, ids: Sequence[str], device: torch.device | str = "cpu") -> Tokens:
        """The stored tokens of documents, by id, in the order of `ids`."""
        return self.tokens([self._position(id) for id in ids], device)

    def _position(self, id: str) -> int:
        if id not in self._positions:
            raise KeyError(f"document {id!r} is not in the index {self.folder} of {len(self.ids)} documents")
        return self._positions[id]

    def _score(self, paradigm: Paradigm, documents: Tokens, queries: Tokens) -> Tensor:
        if paradigm.recipe.search == "impute":
            S, valid = similarity(documents, queries)
            return imputed_rel(S, valid, paradigm.recipe.search_tokens)
        return paradigm.score(documents, queries)

    def _gather(self, paradigm: Paradigm, queries: Tokens, k: int, bar: Any) -> list[dict[str, float]]:
        b, device = len(queries.mask), queries.vectors.device
        best = torch.full((b, 0), 0.0, device=device)
        places = torch.zeros((b, 0), dtype=torch.long, device=device)
        task = bar.add_task(f"search {paradigm.recipe.name}", total=len(self.ids))
        for block in self._blocks():
            documents = self.tokens(block, device)
            cells = documents.mask.numel() * queries.mask.shape[-1]
            rows = max(1, CELLS // cells)
            scores = torch.cat([paradigm.score(documents, queries[s : s + rows]) for s in range(0, b, rows)])
            new = torch.arange(block.start, block.stop, device=device).expand(b, -1)
            best, places = torch.cat([best, scores], 1), torch.cat([places, new], 1)
            best, kept = best.topk(min(k, best.shape[1]))
            places = places.gather(1, kept)
            bar.advance(task, len(block))
        return [
            {self.ids[n]: s for n, s in zip(row, scores, strict=True)}
            for row, scores in zip(places.tolist(), best.tolist(), strict=True)
        ]

    def _impute(self, paradigm: Paradigm, queries: Tokens, k: int, bar: Any) -> list[dict[str, float]]:
        task = bar.add_task(f"search {paradigm.recipe.name}", total=len(queries.mask))
        wanted = min(paradigm.recipe.search_tokens, int(self.offsets[-1]))
        step = max(1, CELLS // (queries.mask.shape[-1] * (BLOCK_TOKENS + wanted)))
        rows = []
        for start in range(0, len(queries.mask), step):
            part = queries[start : start + step]
            scores, tokens = self._token_search(part.vectors[:, 0].flatten(0, 1), wanted)
            shape = (*part.mask[:, 0].shape, -1)
            for q_scores, q_tokens, mask in zip(
                scores.view(shape), tokens.view(shape), part.mask[:, 0], strict=True
            ):
                rows.append(self._imputed(q_scores[mask], q_tokens[mask], k))
            bar.advance(task, len(part.mask))
        return rows

    def _token_search(self, vectors: Tensor, wanted: int) -> tuple[Tensor, Tensor]:
        """The `wanted` most similar document tokens of each query token [t, h]: similarities and places."""
        scores = vectors.new_zeros((len(vectors), 0))
        tokens = torch.zeros((len(vectors), 0), dtype=torch.long, device=vectors.device)
        stored = self._fields["vectors"]
        for start in range(0, len(stored), BLOCK_TOKENS):
            block = torch.from_numpy(np.array(stored[start : start + BLOCK_TOKENS])).to(vectors)
            new = torch.arange(start, start + len(block), device=vectors.device).expand(len(vectors), -1)
            scores = torch.cat([scores, vectors @ block.T], 1)
            scores, kept = scores.topk(min(wanted, scores.shape[1]))
            tokens = torch.cat([tokens, new], 1).gather(1, kept)
        return scores, tokens

    def _imputed(self, scores: Tensor, tokens: Tensor, k: int) -> dict[str, float]:
        """Eq. 4 for one query from its retrieved tokens: scores and places [j, k']."""
        if not tokens.numel():
            return {}
        owners = np.searchsorted(self.offsets, tokens.cpu().numpy(), side="right") - 1
        candidates, inverse = np.unique(owners, return_inverse=True)
        missing = scores.amin(1, keepdim=True)
        filled = missing.repeat(1, len(candidates))
        places = torch.from_numpy(inverse.reshape(owners.shape)).to(scores.device)
        filled.scatter_reduce_(1, places, scores, "amax")
        best, kept = filled.mean(0).topk(min(k, len(candidates)))
        return {self.ids[candidates[n]]: s for n, s in zip(kept.tolist(), best.tolist(), strict=True)}

    def _blocks(self) -> Iterator[range]:
        """Consecutive documents that, padded to the longest of them, have at most BLOCK_TOKENS tokens."""
        lengths = np.diff(self.offsets)
        start, longest = 0, 1
        for n, length in enumerate(lengths):
            longest = max(longest, int(length))
            if n > start and (n + 1 - start) * longest > BLOCK_TOKENS:
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
            raise ValueError(f"{file} is damaged: {size} bytes, the manifest says {expected}; build it again")
        if not count:
            return np.zeros(shape, FIELDS[name])
        return np.memmap(file, FIELDS[name], "r", shape=shape)

    def _check(self, paradigm: Paradigm) -> None:
        if paradigm.encoder.dim != self.manifest["dim"]:
            raise ValueError(
                f"{self.folder} holds vectors of {self.manifest['dim']} dimensions of "
                f"{self.manifest['paradigm']}, not of {paradigm.encoder.dim} of {paradigm.recipe.name}"
            )


def _batches(texts: Sequence[str], size: int) -> Iterator[list[int]]:
    """Positions in batches of texts of like length, longest first in each window."""
    for start in range(0, len(texts), WINDOW):
        window = range(start, min(start + WINDOW, len(texts)))
        lengths = {n: len(texts[n]) for n in window}
        order = sorted(window, key=lambda n: (-lengths[n], n))
        yield from (order[i : i + size] for i in range(0, len(order), size))


def _encode_queries(paradigm: Paradigm, texts: list[str], size: int = 256) -> Tokens:
    """Q of many queries, encoded in batches and padded to one length."""
    return join_queries([paradigm.encode_queries(texts[i : i + size]) for i in range(0, len(texts), size)])


def _autocast(paradigm: Paradigm, precision: str) -> AbstractContextManager[Any]:
    return torch.autocast(paradigm.encoder.device.type, torch.bfloat16, enabled=precision == "bf16")
