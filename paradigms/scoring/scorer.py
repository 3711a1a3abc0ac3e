"""Score with any alignment in the losses of PyLate and sentence-transformers.

    losses.Contrastive(model, score_metric=Scorer(TopK(k=2)))  # PyLate
    MultiVectorMultipleNegativesRankingLoss(model, similarity_fct=Scorer(PoolTopK(k=320), "retrieved"))

Both libraries pass Q as [x, j, h] and D as [y, n, i, h], with n documents for each of y queries. Masks have
the same axes except h; None means that all tokens are real.
"""

from jaxtyping import Bool, Float, Int
from torch import Tensor

from paradigms.align import Alignment
from paradigms.core import Tokens
from paradigms.recipe import Recipe
from paradigms.scoring.in_batch import in_batch_rel

Mask = Bool[Tensor, "..."] | Int[Tensor, "..."] | None


class Scorer:
    """Compute rel of all queries and documents [x, y·n]; document m of query y is in column y·n + m.

    Raises ValueError if the alignment depends on token ids, because these losses do not pass them.
    """

    def __init__(self, align: Alignment, normalise: str = "query_tokens") -> None:
        recipe = Recipe("the scorer", align, normalise)
        if recipe.align.reads & {"ids", "statistics"}:
            raise ValueError(f"the alignment {align} reads token ids, which these losses do not pass")
        self.align = recipe.align
        self.normalise = recipe.normalise_function

    def __call__(
        self,
        queries_embeddings: Float[Tensor, "x j h"],
        documents_embeddings: Float[Tensor, "y n i h"],
        queries_mask: Mask = None,
        documents_mask: Mask = None,
    ) -> Float[Tensor, "x m"]:
        queries = Tokens(queries_embeddings[:, None], _real(queries_embeddings, queries_mask)[:, None])
        documents = Tokens(documents_embeddings, _real(documents_embeddings, documents_mask))
        pool = documents.map(lambda t: t.flatten(0, 1)[None])
        return in_batch_rel(pool, queries, self.align, self.normalise)


def _real(vectors: Tensor, mask: Mask) -> Tensor:
    return vectors.new_ones(vectors.shape[:-1]).bool() if mask is None else mask.bool()
