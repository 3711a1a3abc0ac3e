"""Pool the hidden states of a text's n tokens to one vector, to k = min(m, n) vectors, or to terms."""

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from paradigms.core import Tokens, at_least_float32

CELLS = 8  # cells per vector in the grid of `LearnedPooling`


def pool(
    hidden: Float[Tensor, "x l w"], attention: Int[Tensor, "x l"], pooling: str
) -> Float[Tensor, "x 1 w"]:
    """Pool all attended tokens into one vector. pooling: cls, last, max or mean."""
    if pooling == "cls":
        return hidden[:, :1]
    if pooling == "last":
        return hidden[torch.arange(len(hidden)), attention.sum(-1) - 1][:, None]
    if pooling == "max":
        padding = (attention == 0) & attention.any(-1, keepdim=True)  # a text without tokens stays finite
        return hidden.masked_fill(padding[..., None], -torch.inf).amax(1, keepdim=True)
    weight = attention[..., None].float()  # half precision would lose a mean over many tokens
    return (hidden * weight).sum(1, keepdim=True) / weight.sum(1, keepdim=True).clamp(min=1)


def spans(counts: Bool[Tensor, "x l"], m: int) -> Int[Tensor, "x l"]:
    """Return the span of each token: ⌊(r + ½) · k/n⌋ for the r-th of n counted tokens, with k = min(m, n).

    The k spans follow the order of the text and differ in length by at most one token. Tokens that do not
    count have span −1.

    >>> spans(torch.tensor([[True, True, False, True, True, True]]), 2)
    tensor([[ 0,  0, -1,  1,  1,  1]])
    """
    return _places(counts, counts.sum(-1, keepdim=True).clamp(max=m)).where(counts, -1)


def _places(counts: Bool[Tensor, "x l"], k: Int[Tensor, "x 1"] | int) -> Int[Tensor, "x l"]:
    """Compute ⌊(r + ½) · k/n⌋ for the r-th of n tokens that count."""
    rank = counts.cumsum(-1) - 1
    n = counts.sum(-1, keepdim=True)
    return (2 * rank + 1).clamp(min=1) * k // (2 * n).clamp(min=1)


def mean_of_spans(
    hidden: Float[Tensor, "x l w"], counts: Bool[Tensor, "x l"], m: int
) -> tuple[Float[Tensor, "x k w"], Bool[Tensor, "x k"]]:
    """Average each span's tokens; return the vectors and their mask. A text of n < m tokens has n vectors."""
    inside = spans(counts, m)[:, None] == torch.arange(min(m, counts.shape[1]), device=counts.device)[:, None]
    return _sum(hidden, inside) / inside.sum(-1, keepdim=True).clamp(min=1), inside.any(-1)


class LearnedPooling(nn.Module):
    """v_c = m/n · Σ_r W_{c, g(r)} h_r for c < m, where token r of n has place g(r) = ⌊(r + ½) · G/n⌋.

    ConstBERT (MacAvaney et al. 2025, arXiv:2504.01818) maps a document's tokens to a fixed number of vectors
    with a linear layer. Its weights belong to absolute positions in texts padded to one length. Here, W has G
    = 8 m places, and a text of any length is spread over the places. W is initialised to the 0/1 weights of
    `spans`. Texts of at most m tokens keep their token states, as with spans.
    """

    def __init__(self, m: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(m).repeat_interleave(CELLS, 1))

    def forward(
        self, hidden: Float[Tensor, "x l w"], counts: Bool[Tensor, "x l"]
    ) -> tuple[Float[Tensor, "x k w"], Bool[Tensor, "x k"]]:
        m, cells = self.weight.shape
        n = counts.sum(-1, keepdim=True)
        k = min(m, counts.shape[1])
        places = _places(counts, cells).clamp(max=cells - 1)
        weights = nn.functional.embedding(places, self.weight.T).mT  # [x, m, l]
        weights = weights.where(counts[:, None], 0)[:, :k]
        inside = spans(counts, m)[:, None] == torch.arange(k, device=counts.device)[:, None]
        weights = torch.where((n > m)[..., None], weights, inside.to(weights.dtype))
        return _sum(hidden, weights) * m / n.clamp(min=m)[..., None], inside.any(-1)


def as_terms(weights: Float[Tensor, "x v"]) -> Tokens:
    """Convert term weights ≥ 0 to tokens [1, x, l, 1] with ids; keep weights above 0, in id order."""
    used = ~(weights <= 0)  # NaN stays, so that a diverged model does not look like an empty text
    row, id = used.nonzero(as_tuple=True)
    at = row, used.cumsum(-1)[row, id] - 1
    shape = len(weights), max(1, int(used.sum(-1).max())) if len(weights) else 1
    vectors = weights.new_zeros(shape).index_put(at, weights[row, id])
    ids = id.new_zeros(shape).index_put(at, id)
    return Tokens(vectors[None, ..., None], ~(vectors <= 0)[None], ids[None])


def _sum(hidden: Float[Tensor, "x l w"], weights: Shaped[Tensor, "x k l"]) -> Float[Tensor, "x k w"]:
    with torch.autocast(hidden.device.type, enabled=False):  # as in `pool`
        hidden = at_least_float32(hidden)
        return weights.to(hidden.dtype) @ hidden
