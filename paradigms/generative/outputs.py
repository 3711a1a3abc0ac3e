"""logit_v = s · h_iᵀ w_v and what is made of it: probabilities, and the vectors that D is made of."""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from paradigms.generative.pawa import Pawa

Scorer = Literal["log_probability", "logit", "centred_logit"]


@dataclass(frozen=True)
class Outputs:
    """Decoder states s·h_i and the vectors w_v they are compared with: one table, or PAWA's E_v a_i."""

    states: Float[Tensor, "b n m h"]
    adapted: Float[Tensor, "b n m r"] | None  # a_i of PAWA
    table: Float[Tensor, "v h"] | None
    pawa: Pawa | None

    def __getitem__(self, places: slice) -> "Outputs":
        adapted = None if self.adapted is None else self.adapted[:, :, places]
        return replace(self, states=self.states[:, :, places], adapted=adapted)

    def logits(self, candidates: Int[Tensor, " c"] | None = None) -> Float[Tensor, "b n m c"]:
        """Of the candidates alone (None: the vocabulary)."""
        if self.pawa is not None:
            assert self.adapted is not None
            return self.pawa.logits(self.states, self.adapted, candidates)
        assert self.table is not None
        return self.states @ (self.table if candidates is None else self.table[candidates]).mT

    def log_probabilities(self, candidates: Int[Tensor, " c"] | None = None) -> Float[Tensor, "b n m c"]:
        """log softmax over the candidates (None: the vocabulary), in float32 at least: bfloat16 is too
        coarse.
        """
        logits = self.logits(candidates)
        return logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))

    def score(
        self, ids: Int[Tensor, "b n m"], scorer: Scorer, candidates: Int[Tensor, " c"] | None = None
    ) -> Float[Tensor, "b n m"]:
        """The part of rel of one token per place.

        logit: s·h_iᵀw_v (Wu et al. 2024, Eq. 11), which a constant vector added to every w_v changes, though
        no loss sees that. log_probability: what is trained, and ranks by default; −∞ for a token that is no
        candidate. centred_logit: the logit less its mean over the candidates.
        """
        if scorer == "logit":
            return (self.states * self.vectors(ids)).sum(-1)
        if scorer == "centred_logit":
            return (self.states * (self.vectors(ids) - self.mean(candidates))).sum(-1)
        log_p = self.log_probabilities(candidates)
        if candidates is None:
            return log_p.gather(-1, ids[..., None])[..., 0]
        places = torch.searchsorted(candidates, ids.contiguous()).clamp(max=len(candidates) - 1)
        found = log_p.gather(-1, places[..., None])[..., 0]
        return found.masked_fill(candidates[places] != ids, -torch.inf)

    def vectors(self, ids: Int[Tensor, "b n m"]) -> Float[Tensor, "b n m h"]:
        """w of one token per place."""
        if self.pawa is not None:
            assert self.adapted is not None
            return self.pawa.vectors(self.adapted, ids)
        assert self.table is not None
        return torch.nn.functional.embedding(ids, self.table)

    def mean(self, candidates: Int[Tensor, " c"] | None = None) -> Float[Tensor, "#b #n #m h"]:
        """The mean of w over the candidates (None: the vocabulary)."""
        if self.pawa is not None:
            assert self.adapted is not None
            return self.pawa.mean(self.adapted, candidates)
        assert self.table is not None
        table = self.table if candidates is None else self.table[candidates]
        return table.mean(0)[None, None, None]
