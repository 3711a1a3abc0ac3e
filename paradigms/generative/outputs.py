"""logit_v = s · h_iᵀ w_v: a decoder's output vectors, token probabilities, and the vectors that form D."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from paradigms.encoder.packed import product

PLACES = 512  # positions that the adaptor distinguishes


class Pawa(nn.Module):
    """logit_v = s · h_iᵀ E_v a_i: prefix-aware output vectors with E ∈ R^{V×h×r} and an adaptor a_i ∈ R^r.

    Wang et al. 2022 (Neural Corpus Indexer), §3.3; Wu et al. 2024, Eq. 17 to 19, without the vector that NCI
    adds to E_v a_i. A small transformer with one learned memory vector computes a_i from the tokens before
    position i. NCI has r = h; a smaller r fits a text vocabulary.
    """

    def __init__(self, vocabulary: int, width: int, rank: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.matrices = nn.Parameter(torch.randn(vocabulary, width, rank) * rank**-0.5)
        self.memory = nn.Parameter(torch.randn(1, 1, width))
        self.places = nn.Parameter(torch.randn(PLACES, width) * 0.02)
        layer = nn.TransformerDecoderLayer(
            width, math.gcd(width, 8), 2 * width, dropout, batch_first=True, norm_first=True
        )
        self.adaptor = nn.TransformerDecoder(layer, layers, norm=nn.LayerNorm(width))
        self.reduce = nn.Identity() if rank == width else nn.Linear(width, rank, bias=False)

    def adapt(self, prefix: Float[Tensor, "b n m h"]) -> Float[Tensor, "b n m r"]:
        """Compute a_i from the embeddings of the tokens before each position, start token first."""
        rows = nn.functional.normalize(prefix.flatten(0, 1), dim=-1) * prefix.shape[-1] ** 0.5
        places = rows.shape[1]
        causal = torch.ones(places, places, dtype=torch.bool, device=rows.device).triu(1)
        memory = self.memory.expand(len(rows), 1, -1)
        # Without tgt_is_causal, torch inspects the mask, which synchronises with a GPU.
        adapted = self.adaptor(rows + self.places[:places], memory, tgt_mask=causal, tgt_is_causal=True)
        return self.reduce(adapted).unflatten(0, prefix.shape[:2])


ScoreName = Literal["log_probability", "logit", "centred_logit", "query_part", "pointwise_mutual_information"]


LINEAR = ("logit", "query_part")


@dataclass(frozen=True)
class Outputs:
    """States s·h_i, output vectors (a table of w_v, or PAWA's E_v a_i), and the softmax's tokens."""

    states: Float[Tensor, "b n m h"]
    table: Float[Tensor, "v h"] | Float[Tensor, "v h r"]  # w, or E
    adapted: Float[Tensor, "b n m r"] | None = None  # a_i of PAWA
    candidates: Int[Tensor, " c"] | None = None  # tokens of the softmax, ascending; None = the vocabulary
    allowed: Bool[Tensor, "m c"] | None = None  # candidates at each position; None = all

    @cached_property
    def logits(self) -> Float[Tensor, "b n m c"]:
        """s·h_iᵀw_v for the candidates.

        PAWA computes (h_iᵀ E_v) a_i if there are fewer than h candidates. Otherwise, it computes one product
        over h ⊗ a, to save memory.
        """
        table = self.table if self.candidates is None else self._rows(self.candidates)
        if self.adapted is None:
            return product(self.states, table) if self.candidates is None else self.states @ table.mT
        count, width, _ = table.shape
        if count < width:
            read = self.states @ table.transpose(0, 1).flatten(1)
            return torch.einsum("...cr,...r->...c", read.unflatten(-1, (count, -1)), self.adapted)
        outer = self.states[..., :, None] * self.adapted[..., None, :]
        return outer.flatten(-2) @ table.flatten(1).mT

    def scores(self, scorer: ScoreName) -> Float[Tensor, "b n m c"]:
        """Return every candidate's contribution to rel at every position; −∞ if it is not allowed there.

        logit: s·h_iᵀw_v (Wu et al. 2024, Eq. 11). Adding one vector to every w_v changes the logit but not
        the loss. log_probability: the trained score and the default, in float32 or wider. centred_logit: the
        logit minus its mean over the candidates. query_part: s·c_iᵀw_v, the logit of the states c_i
        (`Generative.readings`). pointwise_mutual_information: log p(v | q) − log p(v | ""); the model
        subtracts the second term, and this method returns the log-probability.
        """
        logits = self.logits
        if self.allowed is not None:
            logits = logits.masked_fill(~self.allowed, -torch.inf)
        if scorer in LINEAR:
            return logits
        if scorer == "centred_logit":
            if self.allowed is None:
                return logits - logits.mean(-1, keepdim=True)
            total = logits.where(self.allowed, 0).sum(-1, keepdim=True)
            return logits - total / self.allowed.sum(-1, keepdim=True)
        return logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))

    def score(self, ids: Int[Tensor, "b n m"], scorer: ScoreName) -> Float[Tensor, "b n m"]:
        """Return each target token's contribution to rel."""
        if scorer in LINEAR:
            return (self.states * self.vectors(ids)).sum(-1)
        scores = self.scores(scorer)
        if self.candidates is None:
            return scores.gather(-1, ids[..., None])[..., 0]
        places = torch.searchsorted(self.candidates, ids.contiguous()).clamp(max=len(self.candidates) - 1)
        chosen = scores.gather(-1, places[..., None])[..., 0]
        return chosen.masked_fill(self.candidates[places] != ids, -torch.inf)

    def vectors(self, ids: Int[Tensor, "b n m"]) -> Float[Tensor, "b n m h"]:
        """Return each token's output vector w, from which D is computed."""
        rows = self._rows(ids)
        return rows if self.adapted is None else torch.einsum("...hr,...r->...h", rows, self.adapted)

    def _rows(self, ids: Int[Tensor, "*x"]) -> Tensor:
        """table[ids], whose gradient is several times faster than that of plain indexing."""
        return nn.functional.embedding(ids, self.table.flatten(1)).unflatten(-1, self.table.shape[1:])
