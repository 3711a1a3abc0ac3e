"""The tokens of a text that its salience would keep: ALIGNER's pruning of documents and of queries.

Qian et al. 2022, §3.2: β^d of each document's tokens are stored and β^q of the query's tokens search; both
may be smaller than the α that trained the gate. A pruned text is the same `Tokens` with fewer that count, so
rel, its alignment and its Z are those of the kept tokens: top-p counts what is kept, Z = Σ A sums over it.
Saliences stay as the whole text gave them. Refinement with all vectors is a rerank by an unpruned index.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from paradigms.core import Tokens
from paradigms.relax import token_budget


def most_salient(tokens: Tokens, ratio: float) -> Tokens:
    """The ⌈ratio · length⌉ tokens of each text with the largest salience, at least one where there is one.

    Of equal saliences the earlier token is kept, so texts without salience are truncated: the baseline for
    every salience. Kept tokens move together, in the order of the text, which makes them cheaper to score.
    ValueError for a ratio outside (0, 1].
    """
    if not 0 < ratio <= 1:
        raise ValueError(f"a pruning ratio is a share of a text's tokens, in (0, 1], got {ratio}")
    if ratio == 1:
        return tokens
    salience = torch.ones_like(tokens.mask, dtype=torch.float) if tokens.salience is None else tokens.salience
    shown = salience.masked_fill(~tokens.mask, -1.0)  # a salience is at least 0
    rank = shown.argsort(dim=-1, descending=True, stable=True).argsort(-1)
    kept = tokens.mask & (rank < token_budget(ratio, tokens.mask)[..., None])
    longest = int(kept.sum(-1).max()) if kept.numel() else 0
    place = (~kept).int().argsort(dim=-1, stable=True)[..., : max(1, longest)]

    def together(t: torch.Tensor) -> torch.Tensor:
        return t.take_along_dim(place if t.ndim == 3 else place[..., None], 2)

    return replace(tokens, mask=kept).map(together)
