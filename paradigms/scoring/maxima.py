"""rel from a recipe alone, without an encoder; where one document token is kept, without forming A.

`max_rel` equals `core.rel` for query_to_document, equal_ids and top_k with k = 1. S is formed tokens-major,
[n, i, b·j] in one product, so that the maximum over i runs along contiguous memory.
"""

from __future__ import annotations

from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from paradigms.align import ALIGNMENTS, NORMALISERS
from paradigms.core import Interaction, Tokens, rel, similarity
from paradigms.impute import imputed_rel
from paradigms.recipe import Recipe


def score(recipe: Recipe, documents: Tokens, queries: Tokens) -> Float[Tensor, "b n"]:
    """rel(d, q) for documents of axes [1, n, i, h] as an index scores them.

    `core.rel`; of a recipe that imputes `impute.imputed_rel`, whose pool is the n documents.
    """
    if recipe.search == "impute":
        return imputed_rel(*similarity(documents, queries), recipe.search_tokens, recipe.imputation)
    if keeps_maxima(recipe):
        return max_rel(recipe, documents, queries)
    align = partial(ALIGNMENTS[recipe.align].function, **recipe.align_knobs)
    return rel(documents, queries, align, NORMALISERS[recipe.normalise])


def reads_pool(recipe: Recipe) -> bool:
    """Whether the score of a document depends on which other candidates there are."""
    return recipe.search == "impute" or "pool" in ALIGNMENTS[recipe.align].reads


def keeps_maxima(recipe: Recipe) -> bool:
    """Whether `max_rel` can stand for `core.rel`."""
    align, knobs = recipe.align, recipe.align_knobs
    return align in ("query_to_document", "equal_ids") or (align == "top_k" and knobs["k"] == 1)


def max_rel(recipe: Recipe, documents: Tokens, queries: Tokens) -> Float[Tensor, "b n"]:
    """rel(d, q) for documents of axes [1, n, i, h], where `keeps_maxima`."""
    (_, n, i, h), (b, _, j, _) = documents.vectors.shape, queries.vectors.shape
    S = (documents.vectors.reshape(n * i, h) @ queries.vectors.reshape(b * j, h).T).view(n, i, b * j)
    S.masked_fill_(~documents.mask[0, :, :, None], -torch.inf)
    if recipe.align == "equal_ids":
        if documents.ids is None or queries.ids is None:
            raise ValueError("the alignment equal_ids needs token ids on both sides; Tokens.ids is None")
        S.masked_fill_(documents.ids[0, :, :, None] != queries.ids.reshape(b * j), -torch.inf)
    if documents.salience is None:
        best, kept = S.amax(1), None
    else:
        best, place = S.max(1)
        kept = documents.salience[0].gather(1, place)
    A = (best > -torch.inf) & queries.mask.reshape(b * j)
    best = best.where(A, 0)
    weights = A.to(best.dtype) if kept is None else A * kept
    if queries.salience is not None:
        weights = weights * queries.salience.reshape(b * j)
    best, weights = (t.view(n, b, j).transpose(0, 1)[:, :, None] for t in (best, weights))
    return Interaction(best, weights, NORMALISERS[recipe.normalise](weights, documents, queries)).rel
