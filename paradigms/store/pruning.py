"""Replace D by D′ with fewer tokens, by salience or by pooling, and measure the distance between D′ and D.

Pruning by salience applies to documents and queries (Qian et al. 2022, §3.2): a share β^d of each document's
tokens is stored, and a share β^q of each query's tokens is used in searches. Both shares may be smaller than
the α that trained the gate. A pruned text is a `Tokens` with fewer unmasked tokens, so rel, the alignment A
and the normaliser Z are computed from the kept tokens alone: top-p counts the kept tokens, and Z = Σ A sums
over them. Saliences are still computed from the whole text. Pooling stores the mean of each cluster of a
document's tokens (Clavié et al. 2024, arXiv:2409.14683). To refine results with all vectors, rerank with an
index of all tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from paradigms.core import Tokens
from paradigms.io.checks import Range, check_types
from paradigms.relax import token_budget


def most_salient(tokens: Tokens, ratio: float) -> Tokens:
    """Keep the ⌈ratio · length⌉ tokens of each text that have the largest salience.

    Ties are resolved in favour of the earlier token, so texts without salience are truncated, which is the
    baseline for comparing saliences. The kept tokens are moved together, in text order, and the padding
    shrinks. Raises ValueError if ratio is outside (0, 1], for single weights (SPLADE, uniCOIL), and for
    tokens of several kinds, some of which have ids below 0 (BGE-M3, COIL with a pooled vector).
    """
    if not 0 < ratio <= 1:
        raise ValueError(f"a pruning ratio is a share of a text's tokens, in (0, 1], got {ratio}")
    if ratio == 1:
        return tokens
    if tokens.ids is not None and tokens.salience is None:
        if tokens.vectors.shape[-1] == 1:
            raise ValueError(
                "single weights (SPLADE, uniCOIL) have no salience to keep them by: SPLADE has most_terms"
            )
        if (tokens.ids < 0).any():
            raise ValueError(
                "no salience says which of these to keep: words, and vectors of the whole text (BGE-M3, COIL)"
            )
    salience = torch.ones_like(tokens.mask, dtype=torch.float) if tokens.salience is None else tokens.salience
    ranked = salience.masked_fill(~tokens.mask, -1.0)  # a salience is at least 0
    rank = ranked.argsort(dim=-1, descending=True, stable=True).argsort(-1)
    stays = tokens.mask & (rank < token_budget(ratio, tokens.mask)[..., None])
    longest = int(stays.sum(-1).max()) if stays.numel() else 0
    place = (~stays).int().argsort(dim=-1, stable=True)[..., : max(1, longest)]

    def together(t: torch.Tensor) -> torch.Tensor:
        return t.take_along_dim(place if t.ndim == 3 else place[..., None], 2)

    return replace(tokens, mask=stays).map(together)


@dataclass(frozen=True)
class TokenReduction:
    """Reduce the document tokens that an index stores: keep the `most_salient` tokens, then pool them.

    keep: β^d, the share of tokens to keep. pool: average number of tokens per pooled token; 1 disables
    pooling. pooling: method of grouping tokens (`pooled`).
    """

    keep: Annotated[float, Range(0, 1, above=True)] = 1.0
    pool: Annotated[int, Range(1, 1 << 31)] = 1
    pooling: Literal["ward", "sequential"] = "ward"

    def __post_init__(self) -> None:
        check_types(self)

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any]) -> "TokenReduction":
        """The reduction that a store's manifest records."""
        return cls(*(manifest[field.name] for field in fields(cls)))

    def __call__(self, tokens: Tokens) -> Tokens:
        return pooled(most_salient(tokens, self.keep), self.pool, self.pooling)


def pooled(tokens: Tokens, pool: int, pooling: str) -> Tokens:
    """Pool each document [1, n, i, h] to ⌈length / pool⌉ tokens: cluster means of vectors and saliences.

    pooling: "ward" makes clusters by Ward's hierarchical clustering of unit vectors, whose squared distances
    are 2 − 2 cosine, and orders the clusters by their first tokens. "sequential" groups every run of `pool`
    tokens. As in the publication, means are not normalised. Ids have no mean and are left out.
    """
    if pool == 1:
        return tokens
    cluster = torch.zeros_like(tokens.mask[0], dtype=torch.long)
    lengths = tokens.mask[0].sum(-1)
    for n, length in enumerate(lengths.tolist()):
        used = tokens.mask[0, n]
        vectors = tokens.vectors[0, n][used].float()
        groups = _ward(vectors, -(-length // pool)) if pooling == "ward" else np.arange(length) // pool
        cluster[n, used] = torch.from_numpy(groups).to(cluster)
    count = int(cluster.max()) + 1 if cluster.numel() else 1
    member = torch.nn.functional.one_hot(cluster, count) * tokens.mask[0][..., None]  # [n, i, clusters]
    size = member.sum(1)
    share = (member / size.clamp(min=1)[:, None]).to(tokens.vectors).transpose(1, 2)
    real = tokens.mask[0][..., None]  # padding may hold anything
    vectors = (share @ tokens.vectors[0].where(real, 0))[None]
    if tokens.salience is None:
        return Tokens(vectors, (size > 0)[None])
    salience = share @ tokens.salience[0][..., None].where(real, 0)
    return Tokens(vectors, (size > 0)[None], salience=salience[None, ..., 0])


def _ward(vectors: Tensor, clusters: int) -> np.ndarray:
    """Return each vector's cluster; clusters are numbered in the order of their first members."""
    from scipy.cluster.hierarchy import fcluster, linkage

    if len(vectors) <= clusters:
        return np.arange(len(vectors))
    unit = torch.nn.functional.normalize(vectors.detach(), dim=-1).cpu().double().numpy()
    labels = fcluster(linkage(unit, "ward"), clusters, "maxclust")
    _, first, cluster = np.unique(labels, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[cluster]


def directed_distances(documents: Tokens, reduced: Tokens) -> Float[Tensor, "n 2"]:
    """maxᵢ minᵢ′ ‖dᵢ − d′ᵢ′‖ and maxᵢ′ minᵢ ‖dᵢ − d′ᵢ′‖ for documents [1, n, i, h].

    The larger distance is the Hausdorff distance between D and D′. Both are 0 for documents without tokens.
    With the two distances a and b, maxᵢ dᵢᵀq − ‖q‖ · a ≤ maxᵢ′ d′ᵢ′ᵀq ≤ maxᵢ dᵢᵀq + ‖q‖ · b for every q.
    """
    D = documents.vectors[0].double()  # squares lose fewer digits in float64
    E = reduced.vectors[0].double()
    far = torch.cdist(D, E, compute_mode="use_mm_for_euclid_dist")
    both = documents.mask[0][:, :, None] & reduced.mask[0][:, None, :]
    nearest = far.masked_fill(~both, torch.inf)
    above = nearest.amin(2).masked_fill(~documents.mask[0], 0).amax(1)
    below = nearest.amin(1).masked_fill(~reduced.mask[0], 0).amax(1)
    return torch.stack([above, below], 1).float()
