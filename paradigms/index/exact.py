"""top-k_d rel(d, q) over a whole corpus, exactly: float16 token vectors on disk, read in blocks.

gather equals `core.rel` and impute `xtr.imputed_rel`, both on the stored vectors. Memory is bounded by the
encoded queries, a block of documents and a slice of queries, whatever the corpus.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paradigms.core import Tokens
from paradigms.index import base
from paradigms.index.base import LARGE_SIZES, TokenIndex
from paradigms.index.maxima import keeps_lengths, of_lengths, rel_of_maxima, score
from paradigms.index.threads import shared, worth
from paradigms.model import Recipe

IN_PLACE = 1 << 20  # tokens of a block of documents whose stored vectors are read in place
MAXIMA = 1 << 25  # of documents for query tokens, held at once: a block has many documents if they are short
PIECES = 4  # of a block for each thread, so that none waits long for another
TOKEN_BLOCK = 1 << 18  # document tokens that a token search reads at once
GROUP = 8  # similarities that a token search first takes the largest of


class ExactIndex(TokenIndex):
    """Search and reranking that miss nothing: every document, or every token, is looked at."""

    kind = "exact"

    def token_search(self, vectors: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k most similar stored tokens of each query token [t, h], in no order: similarities and rows."""
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        stored, wanted = self.fields["vectors"], min(k, self.living_tokens)
        dead = None if self.dead is None else torch.from_numpy(self.dead)
        _, cells = base.SIZES.get(vectors.device.type, LARGE_SIZES)
        slices = vectors.split(max(1, 16 * cells // max(1, min(TOKEN_BLOCK, len(stored)))))
        best = [(v.new_zeros((len(v), 0)), v.new_zeros((len(v), 0)).long()) for v in slices]
        for start in range(0, len(stored), TOKEN_BLOCK):
            block = torch.from_numpy(np.array(stored[start : start + TOKEN_BLOCK])).to(vectors)
            for n, (part, (scores, tokens)) in enumerate(zip(slices, best, strict=True)):
                S = part @ block.T
                if dead is not None:
                    S.masked_fill_(dead[start : start + TOKEN_BLOCK].to(S.device), -torch.inf)
                new, places = _largest(S, min(wanted, len(block)))
                scores, tokens = torch.cat([scores, new], 1), torch.cat([tokens, places + start], 1)
                scores, kept = scores.topk(min(wanted, scores.shape[1]), sorted=False)
                best[n] = scores, tokens.gather(1, kept)
        return torch.cat([s for s, _ in best]), torch.cat([t for _, t in best])

    def _gather(self, recipe: Recipe, parts: list[Tokens], k: int, bar: Any) -> list[list[Tensor]]:
        """For each part and query the keys of its k best documents, of all."""
        task = bar.add_task(f"search {recipe.name}", total=len(self))
        best = [torch.zeros((len(q.mask), 0), dtype=torch.long, device=q.mask.device) for q in parts]
        device = parts[0].mask.device
        limit, cells = base.SIZES.get(device.type, LARGE_SIZES)
        in_place = self._in_place(recipe, device)
        cells = MAXIMA if in_place else cells
        for block in self._slices() if in_place else self.blocks(limit):
            documents = None if in_place else self.tokens(block, device)
            for n, queries in enumerate(parts):
                held = len(block) if documents is None else documents.mask.numel()
                rows = max(1, cells // (held * queries.mask.shape[-1]))
                slices = [queries[start : start + rows] for start in range(0, len(queries.mask), rows)]
                scores = torch.cat(
                    [
                        self._maxima(recipe, q, block) if documents is None else score(recipe, documents, q)
                        for q in slices
                    ]
                )
                keys = torch.cat([best[n], self._keys(scores, block)], 1)
                best[n] = keys.topk(min(k, keys.shape[1])).values
            bar.advance(task, len(block))
        return [list(keys) for keys in best]

    def _score_rows(self, recipe: Recipe, query: Tokens, rows: np.ndarray) -> Tensor:
        if self._in_place(recipe, query.mask.device):
            return self._maxima(recipe, query, rows)
        return super()._score_rows(recipe, query, rows)

    def _in_place(self, recipe: Recipe, device: torch.device) -> bool:
        """Whether `kernels.maxima`, which reads the stored vectors as they lie, gives rel."""
        from paradigms.index.kernels import LANES

        plain = recipe.search == "gather" and keeps_lengths(recipe, self.manifest["fields"], self.longest)
        return plain and device.type == "cpu" and self.manifest["dim"] % LANES == 0

    def _maxima(self, recipe: Recipe, queries: Tokens, rows: np.ndarray) -> Tensor:
        """rel(d, q), [b, n], of the documents at `rows`."""
        from paradigms.index import kernels

        vectors = np.asarray(self.fields["vectors"]).view(np.uint16)
        packed = kernels.pack(queries.vectors.flatten(0, 2).numpy())
        lengths = self.offsets[rows + 1] - self.offsets[rows]
        threads = worth(int(lengths.sum()) * len(packed), torch.get_num_threads())
        best = np.empty((len(rows), len(packed) * kernels.LANES), np.float32)

        def maxima(part: slice) -> None:
            there = rows[part]
            kernels.maxima(vectors, self.offsets[there], self.offsets[there + 1], packed, best[part])

        edges = np.linspace(0, len(rows), (PIECES * threads if threads > 1 else 1) + 1).astype(int)
        shared(maxima, [slice(*edge) for edge in pairwise(edges)], threads)
        found = torch.from_numpy(best[:, : queries.mask.numel()])
        return rel_of_maxima(recipe, found, None, of_lengths(recipe, lengths), queries)

    def _slices(self) -> list[np.ndarray]:
        """Living documents by row, in blocks of some IN_PLACE tokens."""
        rows = np.flatnonzero(self.living)
        cuts = np.searchsorted(self.offsets[rows], range(IN_PLACE, int(self.offsets[-1]), IN_PLACE))
        return [block for block in np.split(rows, cuts) if len(block)]


def _largest(S: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """S.topk(k) along rows, in no order: the k largest lie in the k groups with the largest maxima."""
    groups = S.shape[1] // GROUP
    if groups <= k:
        return S.topk(k, sorted=False)
    whole, device = groups * GROUP, S.device
    maxima = S[:, :whole].view(-1, GROUP, groups).amax(1)
    chosen = maxima.topk(k, sorted=False).indices[:, None, :]
    members = (chosen + torch.arange(GROUP, device=device)[:, None] * groups).flatten(1)
    rest = torch.arange(whole, S.shape[1], device=device).expand(len(S), -1)
    members = torch.cat([members, rest], 1)
    values, kept = S.gather(1, members).topk(k, sorted=False)
    return values, members.gather(1, kept)
