"""Rates of equal tokens under an alignment: ColBERT's in both directions, a decoder's cross-attention."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from paradigms import Generative, Paradigm
from paradigms.baselines.bm25 import STOPWORDS
from paradigms.core import Tokens
from paradigms.data import Corpus
from paradigms.encoder.batches import Batch
from paradigms.generative.decoder import Trace, decode
from paradigms.generative.identifiers import Targets, tokenize

BINS = (0, 2, 4, 6, 8, 15)  # limits of IDF, each bin without its upper one
LAYERS = ("all layers", "last layer")  # whose mean is A of a decoder
HARD, NAMES = "MVDR (q←d), hard", {f"GR, {layers}": f"GR on names, {layers}" for layers in LAYERS}
Values = tuple[Int[np.ndarray, " x"], Float[np.ndarray, " x"]]  # ids of tokens and their rates
# ids [n, x] of n candidates' or their query's tokens, their rates, and where a match is possible
Part = tuple[Int[Tensor, "n x"], Float[Tensor, "n x"], Bool[Tensor, "n x"]]


def multivector_rates(mvdr: Paradigm, query: str, texts: Sequence[str]) -> Iterator[tuple[str, str, Part]]:
    """(direction, series, rates) of a query's and its candidates' tokens; what does not count has id −1."""
    queries, documents = mvdr.encode_queries([query]), mvdr.encode_documents(texts)
    valid = (documents.mask[..., :, None] & queries.mask[..., None, :])[0]
    equal = valid & (numbered(documents)[:, :, None] == numbered(queries)[:, None, :])
    forward = mvdr.interact(documents, queries).alignment[0]
    backward = mvdr.with_alignment("document_to_query").interact(documents, queries).alignment[0]
    nothing = torch.zeros_like(forward)
    ids, possible = numbered(queries).expand(len(texts), -1), equal.any(-2)
    for series, weights in (
        ("MVDR hard", forward),
        ("MVDR soft", softened(forward, valid, -2)),
        ("uniform", softened(nothing, valid, -2)),
    ):
        yield "q→d", series, (ids, (weights * equal).sum(-2), possible)
    ids, possible = numbered(documents), equal.any(-1)
    for series, A in (("MVDR (q←d)", backward), ("uniform", nothing)):
        yield "d→q", series, (ids, (softened(A, valid, -1) * equal).sum(-1), possible)
    yield "d→q", HARD, (ids, (backward * equal).sum(-1), possible)


def numbered(tokens: Tokens) -> Int[Tensor, "n x"]:
    """The ids of one query's or n documents' tokens, −1 for those that do not count."""
    assert tokens.ids is not None
    return tokens.ids.masked_fill(~tokens.mask, -1).flatten(0, 1)


def softened(A: Float[Tensor, "n i j"], valid: Bool[Tensor, "n i j"], axis: int) -> Float[Tensor, "n i j"]:
    """The softmax of A over an axis: 0 at padding, and where all is padding."""
    return A.masked_fill(~valid, -torch.inf).softmax(axis).where(valid, 0)


def generative_rates(
    model: Generative, query: str, documents: Sequence[int], named: Bool[np.ndarray, " v"]
) -> Iterator[tuple[str, str, Part]]:
    """The same of a decoder's cross-attention, for every token of the documents' windows.

    What a window shares with the one before counts once.
    """
    source, owned = model.tokenize([query]).to(model.device), model.identifiers
    windows = [w for d in documents for n in owned.of(d) for w in owned.windows(n, model.settings.span)]
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
    attention = cross_attention(model, source, targets)
    for layers, A in zip(LAYERS, (attention.mean((0, 3)), attention[-1].mean(2)), strict=True):
        yield "d→q", f"GR, {layers}", (ids, (A * equal).sum(-1), equal.any(-1))
        gained = (A * names).sum(-1) - share
        yield "d→q", NAMES[f"GR, {layers}"], (ids, gained, names.any().expand(ids.shape))


def cross_attention(
    model: Generative, source: Batch, targets: Targets
) -> Float[Tensor, "layers n m heads j"]:
    """A of `interaction.decompose` for one query, its document tokens apart by layer, place and head."""
    with model.evaluating(), torch.no_grad():
        trace = Trace()
        _, memory = model.begin(source)
        decode(model.decoder, model.embed(targets.inputs), memory, trace)
    return torch.stack(trace.attention)[:, 0]


def over_candidates(
    ids: Int[Tensor, "n x"], rates: Float[Tensor, "n x"], possible: Bool[Tensor, "n x"], conditional: bool
) -> Values:
    """A query's tokens and the means of their rates over the n candidates, or those that can match."""
    within = possible if conditional else torch.ones_like(possible)
    number = within.sum(0)
    mean = (rates * within).sum(0) / number.clamp(min=1)
    return ids[0][number > 0].cpu().numpy(), mean[number > 0].double().cpu().numpy()


def each_token(
    ids: Int[Tensor, "n x"], rates: Float[Tensor, "n x"], possible: Bool[Tensor, "n x"], conditional: bool
) -> Values:
    """The documents' tokens, or those that can match, and their rates."""
    within = possible if conditional else torch.ones_like(possible)
    return ids[within].cpu().numpy(), rates[within].double().cpu().numpy()


def binned(
    ids: Int[np.ndarray, " x"], values: Float[np.ndarray, " x"], bins: Int[np.ndarray, " v"]
) -> Float[np.ndarray, "2 bins"]:
    """Sum and number of the values by the bin of their token; ids and bins of −1 are left out."""
    own = np.where(ids < 0, -1, bins[ids])
    kept, size = own >= 0, len(BINS) - 1
    return np.stack([np.bincount(own[kept], weights, size) for weights in (values[kept], None)])


def token_idf(corpus: Corpus, tokenizer: Any) -> Float[np.ndarray, " v"]:
    """ln(1 + (N − df + ½)/(df + ½)) of every token, over whole documents."""
    df = np.zeros(len(tokenizer))
    for row in tokenize(tokenizer, corpus):
        df[row.ids] += 1  # once, however often a document holds it
    return np.log1p((len(corpus) - df + 0.5) / (df + 0.5))


def counted_tokens(tokenizer: Any) -> Bool[np.ndarray, " v"]:
    """Which tokens are neither special, nor without letter and digit, nor a stop word (at a word's beginning
    or as a piece of one)."""
    words = [
        token.removeprefix("##").lstrip("▁").lower()
        for token in tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    ]
    counted = [any(c.isalnum() for c in word) and word not in STOPWORDS for word in words]
    special = set(tokenizer.all_special_ids)
    return np.array([own and id not in special for id, own in enumerate(counted)])
