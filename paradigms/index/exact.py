"""top-k_d rel(d, q) over a whole corpus, exactly: float16 token vectors on disk, read in blocks.

gather equals `core.rel` and impute `impute.imputed_rel`, both on the stored vectors, in bounded memory.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from paradigms.core import Tokens
from paradigms.index import base
from paradigms.index.base import LARGE_SIZES, Found, TokenIndex
from paradigms.index.grow import Advance
from paradigms.recipe import Recipe
from paradigms.scoring.stored import compiled, score, slices

IN_PLACE = 1 << 20  # tokens of a block of documents whose stored vectors are read in place
TOKEN_BLOCK = 1 << 18  # document tokens that a token search reads at once
GROUP = 8  # similarities that a token search first takes the largest of


def exact_token_search(index: TokenIndex, vectors: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k most similar stored tokens of each query token [t, h], in no order: similarities and rows."""
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    stored, wanted = index.fields["vectors"], min(k, index.living_tokens)
    dead = None if index.dead is None else torch.from_numpy(index.dead)
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


class ExactIndex(TokenIndex):
    """Search and reranking that miss nothing: every document, or every token, is looked at."""

    kind = "exact"

    token_search = exact_token_search

    def _gather(self, recipe: Recipe, parts: list[Tokens], k: int, advance: Advance) -> Found:
        """As of `TokenIndex`, of all documents."""
        device, total = parts[0].mask.device, sum(len(queries.mask) for queries in parts)
        scanned = self._scanned(device) if compiled(recipe) else None
        packed = [scanned.packed(some) for queries in parts for some in slices(queries)] if scanned else []
        limit, _ = base.SIZES.get(device.type, LARGE_SIZES)
        given: list[Any] = packed or parts
        best: dict[int, Tensor] = {}  # number of a part of the queries -> its k best keys so far
        for block in self._in_place() if scanned else self.blocks(limit):
            documents = None if scanned else self.tokens(block, device)
            for n, some in enumerate(given):  # the scores of one part at a time are held
                if documents is None:
                    assert scanned
                    scores = scanned.relevance(recipe, some, block)
                else:
                    scores = score(recipe, documents, some)
                keys = self._keys(scores, block)
                both = torch.cat([best[n], keys], 1) if n in best else keys
                best[n] = both.topk(min(k, both.shape[1])).values
            advance(total * len(block) / len(self))
        return [self._decoded(own) for some in best.values() for own in some]

    def _impute(self, recipe: Recipe, parts: list[Tokens], k: int, advance: Advance) -> Found:
        """As of `TokenIndex`, in one pass over the stored vectors for a slice of the queries."""
        scanned = self._scanned(parts[0].mask.device) if compiled(recipe) else None
        if not scanned:
            return super()._impute(recipe, parts, k, advance)
        rows, found = np.flatnonzero(self.living), []
        for some in (some for queries in parts for some in slices(queries)):
            scores, owns = scanned.imputed(recipe, scanned.packed(some), rows, self.living_tokens)
            for row, own in zip(scores, owns, strict=True):
                found.append(self._best(row[torch.from_numpy(own)], rows[own], k))
            advance(len(owns))
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
