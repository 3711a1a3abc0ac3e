"""Read a decoder's cross-attention head by head, and measure how often alignments choose equal tokens.

A = softmax(S) and S = D W_QᵀW_K Qᵀ, where D contains the decoder's normalised states, Q the encoder's states,
and W_Q and W_K are the matrices of one head of T5, which does not scale scores (Lemmas 5.1 and 5.2 of Wu et
al. 2024, arXiv:2404.00684). Rates of equal tokens are measured for ColBERT's alignment in both directions and
for means over a decoder's heads.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from paradigms import Generative, Paradigm
from paradigms.align import DocumentToQuery
from paradigms.baselines.bm25 import STOPWORDS
from paradigms.core import Tokens
from paradigms.data import Corpus
from paradigms.encoder.batches import Batch
from paradigms.generative.decoder import Trace, decode, layers_of
from paradigms.generative.identifiers import Targets, tokenize
from paradigms.statistics import Statistics

Array = np.ndarray
BINS = (0, 2, 4, 6, 8, 15)  # limits of the IDF bins [low, high)
LAYERS = ("all layers", "last layer")  # layers whose mean is the decoder's A
HARD = "MVDR (q←d), hard"
NAMES = {f"GR, {layers}": f"GR on names, {layers}" for layers in LAYERS}
Rates = tuple[Int[np.ndarray, " x"], Float[np.ndarray, " x"]]  # ids and rates of tokens
# ids [n, x] of tokens (of n candidates, or of the query), rates, and where a match is possible
Part = tuple[Int[Tensor, "n x"], Float[Tensor, "n x"], Bool[Tensor, "n x"]]


@dataclass(frozen=True)
class Seen:
    """One query and the m tokens of one name, as inputs to L layers of H heads, in double precision."""

    states: Array  # D [L, m, h], after the norm before cross-attention
    memory: Array  # Q [n, h]
    read: tuple[Array, Array]  # W_Q and W_K of the model, [L, H, k, h] each
    attention: Array  # A as the decoder computed it, [L, H, m, n]

    @property
    def projected(self) -> tuple[Array, Array]:
        """Return W_Q d_i, [L, H, m, k], and W_K q_j, [L, H, n, k], whose inner products are S."""
        D = np.einsum("lhkx,lmx->lhmk", self.read[0], self.states)
        return D, np.einsum("lhkx,nx->lhnk", self.read[1], self.memory)


def best_name(model: Generative, query: str, document: int) -> list[int]:
    """Return the document's name with the largest rel. Raises ValueError if the document has no name."""
    names = model.names(document)
    if not names:
        raise ValueError(f"{model.name} has no name for document {model.identifiers.documents[document]!r}")
    ((scores,),) = model.sequence_scores(model.tokenize([query]), [names], model.settings.score)
    return names[int(scores.argmax())]


def seen(model: Generative, query: str, name: Sequence[int]) -> Seen:
    """Return the input of the attention heads for a query and a name."""
    crossing = [layer.cross_attention for layer in layers_of(model.decoder)]
    states: list[Tensor] = []
    hooks = [
        attention.q.register_forward_pre_hook(lambda _, inputs: states.append(inputs[0]))
        for attention in crossing
    ]
    try:
        memory, A = attended(model, model.tokenize([query]), model.targets([[name]]))
    finally:
        for hook in hooks:
            hook.remove()

    def double(x: Tensor) -> Array:
        return x.detach().double().cpu().numpy()

    def weights(side: str) -> Array:
        projections = [(getattr(attention, side).weight, attention.heads) for attention in crossing]
        return np.stack([double(weight.unflatten(0, (heads, -1))) for weight, heads in projections])

    D = double(torch.stack(states)[:, 0, 0])
    heads = np.swapaxes(double(A[:, 0]), 1, 2)
    return Seen(D, double(memory[0]), (weights("q"), weights("k")), heads)


def attended(
    model: Generative, source: Batch, targets: Targets
) -> tuple[Float[Tensor, "1 j h"], Float[Tensor, "layers n m heads j"]]:
    """Return the encoder's states for one query, and A as in `interaction.decompose` for the targets."""
    trace = Trace()
    with model.evaluating(), torch.no_grad():
        memory, past = model.begin(source.to(model.device))
        decode(model.decoder, model.embed(targets.to(model.device).inputs), past, trace)
    return memory, torch.stack(trace.attention)[:, 0]


def multivector_rates(mvdr: Paradigm, query: str, texts: Sequence[str]) -> Iterator[tuple[str, str, Part]]:
    """Yield (direction, series, rates) of a query's and its candidates' tokens; −1: masked."""
    queries = mvdr.encode_queries([query])
    documents = mvdr.encode_documents(texts)
    valid = (documents.mask[..., :, None] & queries.mask[..., None, :])[0]
    equal = valid & (numbered(documents)[:, :, None] == numbered(queries)[:, None, :])
    forward = mvdr.interact(documents, queries).alignment[0]
    backward = mvdr.with_alignment(DocumentToQuery()).interact(documents, queries).alignment[0]
    nothing = torch.zeros_like(forward)
    ids = numbered(queries).expand(len(texts), -1)
    possible = equal.any(-2)
    rates = {"MVDR hard": forward, "MVDR soft": softened(forward, valid, -2)}
    rates["uniform"] = softened(nothing, valid, -2)
    for series, weights in rates.items():
        yield "q→d", series, (ids, (weights * equal).sum(-2), possible)
    ids = numbered(documents)
    possible = equal.any(-1)
    for series, A in (("MVDR (q←d)", backward), ("uniform", nothing)):
        yield "d→q", series, (ids, (softened(A, valid, -1) * equal).sum(-1), possible)
    yield "d→q", HARD, (ids, (backward * equal).sum(-1), possible)


def numbered(tokens: Tokens) -> Int[Tensor, "n x"]:
    """Return the token ids of one query or n documents, with −1 at masked tokens."""
    assert tokens.ids is not None
    return tokens.ids.masked_fill(~tokens.mask, -1).flatten(0, 1)


def softened(A: Float[Tensor, "n i j"], valid: Bool[Tensor, "n i j"], axis: int) -> Float[Tensor, "n i j"]:
    """Return the softmax of A over `axis`; it is 0 at padding, even where the whole axis is padding."""
    return A.masked_fill(~valid, -torch.inf).softmax(axis).where(valid, 0)


def generative_rates(
    model: Generative, query: str, documents: Sequence[int], named: Bool[np.ndarray, " v"]
) -> Iterator[tuple[str, str, Part]]:
    """Yield rates of a decoder's cross-attention on documents' windows, whose overlaps count once."""
    source = model.tokenize([query]).to(model.device)
    owned = model.identifiers
    windows = [w for d in documents for w in owned.windows(d, model.settings.span)]
    if not windows:
        return
    targets = model.targets([[model.target_tokens[w].tolist() for w in windows]])
    ids = targets.ids[0].masked_fill(~targets.mask[0], -1)
    for row, before, here in zip(ids[1:], windows, windows[1:], strict=False):
        if before.start <= here.start < before.stop:
            row[: before.stop - here.start] = -1
    ids, targets = ids.to(model.device), targets.to(model.device)
    equal = ids[:, :, None] == source.input_ids[0]
    names = torch.from_numpy(named).to(model.device)[source.input_ids[0]]
    share = names.float().mean()
    _, attention = attended(model, source, targets)
    for layers, A in zip(LAYERS, (attention.mean((0, 3)), attention[-1].mean(2)), strict=True):
        yield "d→q", f"GR, {layers}", (ids, (A * equal).sum(-1), equal.any(-1))
        gained = (A * names).sum(-1) - share
        yield "d→q", NAMES[f"GR, {layers}"], (ids, gained, names.any().expand(ids.shape))


def averaged(part: Part, candidates: bool, conditional: bool) -> Rates:
    """Return the ids and rates of single tokens, or of query tokens averaged over candidates.

    candidates: average each query token over the candidates. conditional: use only tokens that can match or,
    for means, only the candidates in which a query token can match.
    """
    ids, rates, possible = part
    within = possible if conditional else torch.ones_like(possible)
    if not candidates:
        return ids[within].cpu().numpy(), rates[within].double().cpu().numpy()
    number = within.sum(0)
    mean = (rates * within).sum(0) / number.clamp(min=1)
    return ids[0][number > 0].cpu().numpy(), mean[number > 0].double().cpu().numpy()


def binned(
    ids: Int[np.ndarray, " x"], values: Float[np.ndarray, " x"], bins: Int[np.ndarray, " v"]
) -> Float[np.ndarray, "2 bins"]:
    """Return the sum and number of values in each bin of tokens; ids and bins of −1 are left out."""
    bin_of = np.where(ids < 0, -1, bins[ids])
    inside = bin_of >= 0
    size = len(BINS) - 1
    return np.stack([np.bincount(bin_of[inside], weights, size) for weights in (values[inside], None)])


def token_statistics(corpus: Corpus, tokenizer: Any) -> Statistics:
    """Count the tokens of whole documents."""
    rows = tokenize(tokenizer, corpus)
    return Statistics.of((torch.tensor(row.ids, dtype=torch.long) for row in rows), len(tokenizer))


def counted_tokens(tokenizer: Any) -> Bool[np.ndarray, " v"]:
    """Return a mask of measured tokens: with a letter or digit, not special, not (part of) a stop word."""
    words = [
        token.removeprefix("##").lstrip("▁").lower()
        for token in tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    ]
    counted = [any(c.isalnum() for c in word) and word not in STOPWORDS for word in words]
    special = set(tokenizer.all_special_ids)
    return np.array([counts and id not in special for id, counts in enumerate(counted)])
