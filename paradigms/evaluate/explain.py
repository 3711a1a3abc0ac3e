"""Which tokens made the score: S, A, Z of one query and one document, with readable tokens."""

from collections.abc import Sequence
from itertools import compress

import torch
from torch import Tensor

from paradigms.baselines.bm25 import BM25
from paradigms.core import Tokens, join_documents
from paradigms.data.by_document import Passages
from paradigms.encoder.text import Side
from paradigms.evaluate.report import SystemAlignment
from paradigms.generative.interaction import decompose
from paradigms.generative.model import Generative
from paradigms.index.base import TokenIndex
from paradigms.model import Paradigm

READS = {
    "similarity": "the similarities S within the document",
    "vectors": "the side of random planes on which each token lies",
    "pool": "the similarities of the whole candidate pool",
    "ids": "the token ids",
    "lengths": "the document's length",
    "salience": "the salience of each token",
}


def explain(paradigm: Paradigm, query: str, document: str, pool: Tokens | None = None) -> SystemAlignment:
    """S, A, Z of one pair. pool: the other candidates, [1, n, i, h], for an A that reads them (XTR)."""
    documents, queries = paradigm.encode_documents([document]), paradigm.encode_queries([query])
    joined = documents if pool is None else join_documents([documents, pool])
    with torch.inference_mode():
        interaction = paradigm.interact(joined, queries)
    d_mask, q_mask = documents.mask[0, 0], queries.mask[0, 0]
    whole = interaction.similarity, interaction.alignment
    S, A = (x[0, 0, : len(d_mask)][d_mask][:, q_mask] for x in whole)
    reads = sorted(READS[name] for name in paradigm.reads)
    return SystemAlignment(
        system=paradigm.recipe.name,
        reads=" and ".join(reads) if reads else "nothing: there is one pair",
        query_tokens=_labels(paradigm, query, "query", q_mask),
        document_tokens=_labels(paradigm, document, "document", d_mask),
        links=[(i, j, float(S[i, j]), float(A[i, j])) for i, j in A.nonzero().tolist()],
        Z=float(interaction.normaliser[0, 0]),
        rel=float(interaction.rel[0, 0]),
        query_salience=None if queries.salience is None else queries.salience[0, 0][q_mask].tolist(),
        document_salience=None if documents.salience is None else documents.salience[0, 0][d_mask].tolist(),
    )


def explain_found(
    index: TokenIndex,
    paradigm: Paradigm,
    query: str,
    document: str,
    others: Sequence[str],
    pieces: Passages,
) -> SystemAlignment:
    """`explain` of a document by its best passage, with the tokens of `others` for an A that reads them.

    pieces: what the index holds of the documents.
    """
    corpus, [best, *more] = pieces.corpus, pieces.of(document)
    if more:
        run = {"": dict.fromkeys([best, *more], 0.0)}
        best = next(iter(index.rerank(paradigm, {"": query}, run)[""]))
    pool = None
    if others and "pool" in paradigm.reads:
        rest = [piece for other in others for piece in pieces.of(other)]
        pool = index.tokens_of(rest, paradigm.encoder.device)
    return explain(paradigm, query, corpus[corpus.position(best)], pool)


def explain_generative(model: Generative, query: str, position: int) -> list[SystemAlignment]:
    """The exact identity of the decoder for the best name of a document, one row per token; [] without a
    name.

    The L·H document tokens of one place are one: A is their mean attention, and S·A the sum of theirs.
    """
    names = model.names(position)
    if not names:
        return []
    sources = model.tokenize([query]).to(model.device)
    targets = model.targets([names]).to(model.device)
    scorer = model.settings.score
    with model.evaluating(), torch.inference_mode():
        best = int(model(sources, targets, scorer).sum(-1)[0].argmax())
    targets = model.targets([[names[best]]]).to(model.device)
    places = targets.ids.shape[-1]
    interaction = decompose(model, sources, targets, scorer)[-1]
    A = interaction.alignment[0, 0].unflatten(0, (-1, places))
    shares = interaction.similarity[0, 0].unflatten(0, (-1, places)) * A
    mean, share = A.mean(0), shares.sum(0)
    assert interaction.rest is not None
    used = mean.nonzero().tolist()
    found = SystemAlignment(
        system=model.name,
        reads="the decoder's state: the query, and the identifier up to the token before",
        query_tokens=model.tokenizer.convert_ids_to_tokens(sources.input_ids[0].tolist()),
        document_tokens=model.labels(names[best]),
        links=[(i, j, float(share[i, j] / mean[i, j]), float(mean[i, j])) for i, j in used],
        Z=1.0,
        rel=float(interaction.rel[0, 0]),
        rest=float(interaction.rest[0, 0]),
    )
    return [found]


def explain_bm25(bm25: BM25, query: str, document_id: str, document: str) -> SystemAlignment:
    """BM25 as an alignment: each query word aligns to its first equal word, S is its weight in d, Z = 1."""
    query_words, document_words = bm25.terms(query), bm25.terms(document)
    weights = bm25.matrix()[[bm25.ids.index(document_id)]].toarray()[0]
    first = {word: i for i, word in reversed(list(enumerate(document_words)))}
    links = [
        (first[word], j, float(weights[bm25.vocabulary[word]]), 1.0)
        for j, word in enumerate(query_words)
        if word in first
    ]
    total = sum((s for _, _, s, _ in links), 0.0)
    return SystemAlignment("bm25", "the words", query_words, document_words, links, 1.0, total)


def _labels(paradigm: Paradigm, text: str, side: Side, mask: Tensor) -> list[str]:
    return list(compress(paradigm.encoder.labels(text, side), mask.tolist()))
