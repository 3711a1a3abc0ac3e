"""w_dᵀ Σⱼ ψ(qⱼ) ≈ Σⱼ maxᵢ dᵢᵀqⱼ: one fitted vector per document predicts its MaxSim score.

Jääsaari, Hyvönen & Roos 2026 (arXiv:2601.21853): LEMUR. MaxSim sums g_d(x) = maxᵢ dᵢᵀx over the query tokens
x. LEMUR predicts g_d from a layer of features that all documents share,

    ψ(x) = (1, GELU(LayerNorm(Wx + b))) ∈ R^w,

and from a vector w_d for each document. Tokens x of the corpus stand in for query tokens. There are two
steps:

1. Features. W, b and LayerNorm's scale and shift minimise, by Adam, over `TOKENS` sampled tokens X and
   `TARGETS` sampled documents T, with a temporary vector v_d for each of these documents,

       Σ_{x ∈ X} Σ_{d ∈ T} (v_dᵀ GELU(LayerNorm(Wx + b)) − (g_d(x) − μ)/σ)²,

   where μ and σ are the mean and the standard deviation of all g_d(x).
2. Weights. For every document, by least squares with ψ fixed, over `SAMPLE` of these tokens,

       w_d = argmin_w Σ_{x ∈ X'} (wᵀψ(x) − g_d(x))² + λ ‖w‖²,

   where λ is `RIDGE` times the mean of ‖ψ_k‖² over features k, and the constant has no penalty.

The authors' code has no constant, uses λ = 0, and also standardises g_d(x) in the second step, which does not
change rankings within one index. With the constant, w_dᵀ Σⱼ ψ(qⱼ) predicts the score itself.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, mse_loss, pad

from paradigms.core import Tokens

TOKENS = 1 << 15
TARGETS = 1 << 10
SAMPLE = 1 << 13
RIDGE = 1e-4
BATCH, RATE, LONGEST = 512, 3e-3, 0.5  # tokens of a step of Adam, its rate, the longest gradient
SIMILARITIES = 1 << 24  # of tokens with tokens that are held at once


@dataclass(frozen=True)
class Features:
    """The features ψ. weight: W [w−1, h]. bias, scale, shift: b, and LayerNorm's parameters, [w−1]."""

    weight: Tensor
    bias: Tensor
    scale: Tensor
    shift: Tensor

    def __call__(self, vectors: Float[Tensor, "*x h"]) -> Float[Tensor, "*x w"]:
        """Compute ψ of token vectors."""
        return pad(self._hidden(vectors), (1, 0), value=1.0)

    def queries(self, tokens: Tokens) -> Float[Tensor, "b w"]:
        """Compute Σⱼ ψ(qⱼ) of queries [b, 1, j, h], weighted by the tokens' salience if they have any."""
        weights = tokens.mask.to(tokens.vectors)
        if tokens.salience is not None:
            weights = weights * tokens.salience.where(tokens.mask, 0)
        vectors = tokens.vectors.where(tokens.mask[..., None], 0)
        return (self(vectors) * weights[..., None]).sum(2)[:, 0]

    def _hidden(self, vectors: Tensor) -> Tensor:
        hidden = vectors @ self.weight.T + self.bias
        return gelu(layer_norm(hidden, hidden.shape[-1:], self.scale, self.shift))


def token_maxima(documents: Tokens, vectors: Float[Tensor, "t h"]) -> Float[Tensor, "t n"]:
    """Compute g_d(x) = maxᵢ dᵢᵀx for documents [1, n, i, h]; 0 for a document without tokens.

    With salience, the similarity of the most similar token is multiplied by that token's salience.
    """
    count, length = documents.mask.shape[1:]
    largest = vectors.new_zeros((len(vectors), count))
    step = max(1, SIMILARITIES // max(1, length * len(vectors)))
    for first in range(0, count if length else 0, step):
        chosen = slice(first, first + step)
        part = documents.map(lambda t, chosen=chosen: t[:, chosen])  # type: ignore[misc]
        mask = part.mask[0, ..., None]
        S = (part.vectors[0] @ vectors.T).masked_fill(~mask, -torch.inf)  # [n, i, t]
        most = S.max(1)
        values = most.values
        if part.salience is not None:
            values = values * part.salience[0].gather(1, most.indices.flatten(1)).view_as(values)
        largest[:, chosen] = values.where(mask.any(1), 0).T
    return largest


def fit_features(
    targets: Float[Tensor, "t n"], vectors: Float[Tensor, "t h"], width: int, epochs: int, seed: int
) -> Features:
    """Minimise step 1 over g_d(x) for n documents and t tokens.

    epochs: number of passes over the tokens; with 0, the features are those of a random layer. seed: seed for
    the layer's initial weights and for the order of tokens.
    """
    random = torch.Generator().manual_seed(seed)
    dim = vectors.shape[1]
    hidden = width - 1

    def uniform(rows: int, columns: int) -> Tensor:
        """Draw the initial weights of a linear layer, as torch does."""
        return (torch.rand(rows, columns, generator=random).to(vectors) * 2 - 1) * columns**-0.5

    first = uniform(hidden, dim)
    last = uniform(targets.shape[1], hidden)
    layer = [first, uniform(hidden, dim)[:, 0], vectors.new_ones(hidden), vectors.new_zeros(hidden)]
    if epochs and targets.shape[1]:
        with torch.inference_mode(False), torch.enable_grad():
            layer = [p.clone().requires_grad_() for p in layer]
            last = last.clone().requires_grad_()
            features = Features(*layer)
            parameters = [*layer, last]
            standard = (targets - targets.mean()) / targets.std(correction=0).clamp(min=1e-12)
            optimizer = torch.optim.Adam(parameters, lr=RATE)
            for _ in range(epochs):
                for chosen in torch.randperm(len(vectors), generator=random).split(BATCH):
                    loss = mse_loss(features._hidden(vectors[chosen]) @ last.T, standard[chosen])
                    optimizer.zero_grad()
                    loss.backward()
                    torch.nn.utils.clip_grad_norm_(parameters, LONGEST)
                    optimizer.step()
    return Features(*(p.detach() for p in layer))


@dataclass(frozen=True)
class Regression:
    """Step 2: compute w_d for any document by regression on token vectors.

    vectors: [t, h], the tokens x. solved: [w, t], the matrix that maps g_d(x) to w_d.
    """

    vectors: Tensor
    solved: Tensor

    @classmethod
    def of(cls, features: Features, vectors: Float[Tensor, "t h"]) -> "Regression":
        """Solve the normal equations of step 2 in float64."""
        design = features(vectors).double()
        square = design.T @ design
        penalty = torch.full_like(square[0], RIDGE * float(square.diagonal().mean()))
        penalty[0] = 0  # of the constant
        factor = torch.linalg.cholesky(square + penalty.diag())
        return cls(vectors, torch.cholesky_solve(design.T, factor).to(vectors))

    def weights(self, documents: Tokens) -> Float[Tensor, "n w"]:
        """Fit w_d for documents [1, n, i, h]."""
        return (self.solved @ token_maxima(documents, self.vectors)).T
