"""top-k_d Σ_t w_t(d) · w_t(q), exactly: an inverted index of one weight a token (SPLADE, uniCOIL, BM25).

On disk lie ids and weights of each document's tokens, as in every index. Postings are made of them when the
index is first searched, a second for some 10⁸ weights, and held in memory: `postings`. Scores equal
`core.rel` on the stored weights. Documents that share no term with the query are not found.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike
from torch import Tensor

from paradigms.core import Tokens
from paradigms.index.base import Found, TokenIndex
from paradigms.index.grow import Advance
from paradigms.index.store import Rows
from paradigms.recipe import Recipe
from paradigms.scoring.machine import shared

# 8 bits of a float16 above 0: 16 weights for each power of two, from 2^−8 (code 1) to 248.
LOW, DROPPED = 7 << 4, 6
LARGEST = 0x7BFF  # the largest finite float16, as its bits
TERMS = 1 << 24  # of a vocabulary, at most


@dataclass(frozen=True)
class InvertedSettings:
    """bits: of a weight: 16, float16, or 8, rounded by at most 3%. Weights above 248 need 16."""

    bits: int = 8


class InvertedIndex(TokenIndex):
    """Search that misses nothing, by block-max pruning; weights are at least 0 on both sides."""

    kind = "inverted"
    Settings = InvertedSettings

    def token_search(self, vectors: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """ValueError: tokens are found by their ids, not by vectors."""
        raise ValueError(f"{self.folder} finds tokens by their ids: it imputes nothing")

    @classmethod
    def _check_settings(cls, settings: InvertedSettings, dim: int) -> None:
        if settings.bits not in (8, 16):
            raise ValueError(f"bits must be 8 or 16, got {settings.bits}")
        if dim != 1:
            raise ValueError(f"an inverted index holds one number for each token, not vectors of {dim}")

    def _columns(self) -> dict[str, DTypeLike]:
        weights = "uint8" if self.settings.bits == 8 else "uint16"
        return {"weights": weights, "ids": "int32"}

    def _encode(self, rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if "ids" not in rows:
            raise ValueError(f'{self.folder} needs the ids of terms: set fields=("vectors", "ids")')
        if "salience" in rows:
            raise ValueError(f"{self.folder} holds no salience of terms: take an exact index")
        weights = rows["vectors"][:, 0] + np.float16(0)  # -0 becomes 0
        if (weights < 0).any() or (rows["ids"] < 0).any() or (rows["ids"] >= TERMS).any():
            raise ValueError(f"{self.folder} holds weights of at least 0 and ids from 0 to {TERMS - 1}")
        codes = weights.view(np.uint16)
        if self.settings.bits == 8:
            rounded = (codes.astype(np.int32) + (1 << DROPPED >> 1) >> DROPPED) - LOW
            if (rounded > 255).any():
                raise ValueError(
                    f"{self.folder} has no 8 bits for a weight of {weights.max()}: set bits to 16"
                )
            codes = np.where(weights > 0, rounded.clip(1), 0).astype(np.uint8)
        return {"weights": codes, "ids": rows["ids"]}

    def _decode(self, rows: Rows) -> dict[str, np.ndarray]:
        return {
            "vectors": self._weights[self.fields["weights"][rows]][:, None],
            "ids": np.array(self.fields["ids"][rows]),
        }

    def _map(self, manifest: Mapping[str, Any]) -> None:
        super()._map(manifest)
        ids, weights = self.fields["ids"], self.fields["weights"]
        if len(ids) and not 0 <= ids.min() <= ids.max() < TERMS:
            raise self._table.damaged("ids.bin", f"terms that are not from 0 to {TERMS - 1}")
        if self.settings.bits == 16 and weights.max(initial=0) > LARGEST:
            raise self._table.damaged("weights.bin", "weights below 0, or not finite")
        codes = np.arange(1 << self.settings.bits, dtype=np.uint16)
        if self.settings.bits == 8:
            codes = np.where(codes > 0, codes + LOW << DROPPED, 0).astype(np.uint16)
        self._weights = codes.view(np.float16).astype(np.float32)

    def _checked(self, recipe: Recipe, queries: Tokens) -> Tokens:
        if "ids" not in recipe.alignment.reads or recipe.normalise != "one":
            raise ValueError(
                f"{self.folder} scores equal ids with Z = 1, not {recipe.align} with Z = {recipe.normalise}"
            )
        queries = super()._checked(recipe, queries)
        if queries.salience is not None:
            raise ValueError(
                f"{recipe.name} weighs terms of queries by salience, which {self.folder} does not"
            )
        if (queries.vectors.squeeze(-1).where(queries.mask, 0) < 0).any():
            raise ValueError(
                f"{recipe.name} gives a query a weight below 0, which {self.folder} cannot prune"
            )
        return queries

    def _gather(self, recipe: Recipe, parts: list[Tokens], k: int, advance: Advance) -> Found:
        from paradigms.index.postings import best, inverted

        ids, codes, table = self.fields["ids"], self.fields["weights"], self._weights
        postings = self._kept_once("postings", lambda: inverted(ids, codes, table, self.offsets, self.living))

        def found(query: Tokens) -> dict[str, float]:
            assert query.ids is not None
            mask = (
                query.mask
                & (query.ids >= 0)
                & (query.ids < len(postings.terms) - 1)
                & (query.vectors[..., 0] > 0)
            )
            terms, places = np.unique(query.ids[mask].cpu().numpy(), return_inverse=True)
            weights = np.zeros(len(terms), np.float32)
            np.add.at(weights, places, query.vectors[..., 0][mask].cpu().numpy())
            rows, scores = np.empty(len(self.ids), np.int64), np.empty(len(self.ids), np.float32)
            count = best(postings, table, terms, weights, k, rows, scores)
            advance(1)
            return self._best(torch.from_numpy(scores[:count]), rows[:count], k)

        each = [queries[n : n + 1] for queries in parts for n in range(len(queries.mask))]
        return shared(found, each, torch.get_num_threads())
