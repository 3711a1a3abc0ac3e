"""top-k_d rel(d, q) over a whole corpus, exactly: float16 token vectors on disk, read in blocks.

gather equals `core.rel` and impute `impute.imputed_rel`, both on the stored vectors, in bounded memory.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from paradigms.core import Tokens
from paradigms.index import base
from paradigms.index.base import LARGE_SIZES, TokenIndex
from paradigms.recipe import Recipe
from paradigms.scoring.stored import Packed, score, slices

IN_PLACE = 1 << 20  # tokens of a block of documents whose stored vectors are read in place
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
        scanned = self._scanned(recipe, device)
        packed = [[Packed(q) for q in slices(queries)] for queries in parts] if scanned else []
        limit, _ = base.SIZES.get(device.type, LARGE_SIZES)
        for block in self._in_place() if scanned else self.blocks(limit):
            documents = None if scanned else self.tokens(block, device)
            for n, queries in enumerate(parts):
                if scanned:
                    scores = torch.cat([scanned.relevance(recipe, q, block) for q in packed[n]])
                else:
                    assert documents is not None
                    scores = score(recipe, documents, queries)
                keys = torch.cat([best[n], self._keys(scores, block)], 1)
                best[n] = keys.topk(min(k, keys.shape[1])).values
                bar.advance(task, len(block) / len(parts))
        return [list(keys) for keys in best]

    def _impute(self, recipe: Recipe, parts: list[Tokens], k: int, bar: Any) -> list[list[Tensor]]:
        """As `TokenIndex` has it, in one pass over the stored vectors for a slice of the queries."""
        scanned = self._scanned(recipe, parts[0].mask.device)
        if not scanned:
            return super()._impute(recipe, parts, k, bar)
        task = bar.add_task(f"search {recipe.name}", total=sum(len(q.mask) for q in parts))
        rows = np.flatnonzero(self.living)
        found: list[list[Tensor]] = []
        for queries in parts:
            found.append([])
            for some in slices(queries):
                scores, owns = scanned.imputed(recipe, Packed(some), rows, self.living_tokens)
                for row, own in zip(scores, owns, strict=True):
                    found[-1].append(self._best(row[torch.from_numpy(own)], rows[own], k))
                    bar.advance(task)
        return found

    def _in_place(self) -> list[np.ndarray]:
        """Documents that a search may find by row, in blocks of some IN_PLACE tokens."""
        rows = self._with_tokens()
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
