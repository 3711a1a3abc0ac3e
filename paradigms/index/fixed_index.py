"""Candidates by one inner product of fixed-dimensional encodings, then rel exactly: MUVERA.

Dhulipala et al. 2024 (arXiv:2405.19504). Beside an exact index's float16 store lies a FAISS index of one
vector a document (`fixed.FixedEncoding`), made from the stored tokens. The documents whose vectors have the
largest inner products with the query's are scored on all of their tokens: by `core.rel`, or for an imputing
paradigm as in a rerank of them.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paradigms.core import Tokens
from paradigms.fixed import FixedEncoding
from paradigms.index.base import Found
from paradigms.index.columns import Writer
from paradigms.index.exact import exact_token_search
from paradigms.index.faiss_index import Entries, FaissIndex, FaissSettings
from paradigms.index.grow import Advance
from paradigms.index.store import LENGTHS
from paradigms.recipe import Recipe

WIDE = 1 << 20  # dimensions of an encoding, at most

CENTRE = "centre.bin"
READ = 1 << 16  # padded tokens that are read at once


@dataclass(frozen=True)
class FixedSettings(FaissSettings, FixedEncoding):
    """How documents are encoded, and FAISS's settings for one vector a document. centre: whether the mean of
    all tokens is subtracted, which changes no order by MaxSim and parts vectors that have much in common."""

    centre: bool = True


class FixedIndex(FaissIndex):
    """`probes` and `candidates` may be set at any time, and trade speed for recall."""

    kind = "fixed"
    Settings = FixedSettings
    candidates: int = 0
    """documents that are scored in full, but no fewer than are asked for; 0: 64, or 4 for each of these"""
    token_search = exact_token_search  # FAISS holds no tokens

    @classmethod
    def _check_settings(cls, settings: Any, dim: int) -> None:
        width = settings.width(dim)
        if max(width, settings.repetitions << settings.planes) > WIDE:
            raise ValueError(f"encodings of {width:,} dimensions are wider than {WIDE:,}")
        super()._check_settings(settings, width)

    def _derive(self, writer: Writer, start: int) -> None:
        vectors = writer.array("vectors.bin", self._columns()["vectors"])
        if self.settings.centre and len(vectors) and writer.path(CENTRE) is None:
            parts = [vectors[n : n + READ].sum(0, dtype=np.float64) for n in range(0, len(vectors), READ)]
            writer.append(CENTRE, (np.sum(parts, 0) / len(vectors)).astype(np.float32))
        super()._derive(writer, start)

    def _entries(self, writer: Writer) -> tuple[int, Entries]:
        state = copy.copy(self)  # with the rows that are not committed yet
        lengths = writer.array(LENGTHS, "int32")
        state.offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        state.fields = {name: writer.array(f"{name}.bin", of) for name, of in self._columns().items()}
        centre = _first(writer.array(CENTRE, ("float32", (self.manifest["dim"],))))

        def encode(rows: np.ndarray) -> np.ndarray:
            blocks = [self.settings.documents(state.tokens(b), centre) for b in state.blocks(READ, rows)]
            return torch.cat(blocks).numpy()

        return len(lengths), encode

    @property
    def _entry_shape(self) -> tuple[int, int]:
        return len(self.ids), self.settings.width(self.manifest["dim"])

    def nearest(self, queries: Tokens, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The k documents with the largest inner products, of each query [b, 1, j, h]: these, and rows.

        Rows are −1 where FAISS finds fewer.
        """
        hidden = np.ones(len(self.ids), bool)
        hidden[there := self._with_tokens()] = False
        encoded = self.settings.queries(queries.map(lambda t: t.cpu()), self._centre).numpy()
        return self._nearest(encoded, min(k, len(there)), hidden if hidden.any() else None)

    def _gather(self, recipe: Recipe, parts: list[Tokens], k: int, advance: Advance) -> Found:
        """As of `TokenIndex`, of the documents among the nearest."""
        found = []
        for queries in parts:
            _, near = self.nearest(queries, max(k, self.candidates or max(64, 4 * k)))
            for n, rows in enumerate(near):
                rows = np.sort(rows[rows >= 0])
                found.append(self._best(self._scores([recipe], queries[n : n + 1], rows)[0], rows, k))
                advance(1)
        return found

    _impute = _gather

    def _map(self, manifest: Mapping[str, Any]) -> None:
        super()._map(manifest)
        centre = self._table.array(CENTRE, ("float32", (manifest["dim"],)))
        if len(centre) > 1 or not np.isfinite(centre).all():
            raise self._table.damaged(CENTRE, "not one finite vector")
        self._centre = _first(centre)


def _first(rows: np.ndarray) -> Tensor | None:
    return torch.from_numpy(np.array(rows[0])) if len(rows) else None
