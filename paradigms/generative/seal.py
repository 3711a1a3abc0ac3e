"""From n-grams to documents: which documents the n-grams that a decoder wrote for a query speak for.

`seal_scores` is the score of SEAL (Bevilacqua et al. 2022, "Autoregressive Search Engines", NeurIPS,
arXiv:2204.10628, §3.2), by which T5-SEAL of Wu et al. 2024 (arXiv:2404.00684, §6.2) ranks documents too.

An n-gram is its state in an `NGramIndex`, so two sequences of clusters that read alike are one.
"""

from __future__ import annotations

import heapq
import string
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from paradigms.data import Corpus
from paradigms.encoder.text import Batch
from paradigms.generative.backbone import load_base_tokenizer
from paradigms.generative.constraints import ranges
from paradigms.generative.forced import sequence_scores
from paradigms.generative.identifiers import text, tokenize
from paradigms.generative.model import Generative
from paradigms.generative.ngrams import SEPARATOR, NGramIndex
from paradigms.generative.settings import GenerativeSettings

ALPHA = 2.0  # exponent of an n-gram's weight
BETA = 0.8  # share of the weight that tokens covered before lose
SMOOTHING = 5  # occurrences added to every n-gram's, and to the corpus
FREQUENT = 1500  # an n-gram of more occurrences makes no document a candidate
LONGEST = 3  # words of the query's own n-grams
NO_PROBABILITY = -1e-7  # log p at most: a float32 tells it from certainty, of which the odds are infinite
States = Int[np.ndarray, "n 3"]
Weights = Float[np.ndarray, " n"]
Scores = dict[int, float]  # number of the indexed text -> score


def seal(backbone: str | Path, corpus: Corpus, **settings: Any) -> Generative:
    """SEAL over `backbone`; settings are fields of `model.GenerativeSettings`."""
    options: dict[str, Any] = {"name": "seal", "beams": 15} | settings
    chosen = GenerativeSettings(**options)
    names = text(corpus, load_base_tokenizer(backbone), chosen.document_length)
    return Generative.build(chosen, backbone, names, corpus)


def distinct(
    states: States, log_p: Weights
) -> tuple[Int[np.ndarray, "different 3"], Float[np.ndarray, " different"]]:
    """Every n-gram once, with its largest log p."""
    found, numbers = np.unique(states, axis=0, return_inverse=True)
    best = np.full(len(found), -np.inf)
    np.maximum.at(best, numbers, log_p)
    return found, best


def query_states(tokenizer: Any, index: NGramIndex, query: str) -> States:
    """The query's own n-grams of 1 to `LONGEST` words that the corpus holds.

    Words are tried as they stand, in lower case and capitalised, without punctuation at their ends.
    """
    rows = sorted({tuple(row.ids) for row in tokenize(tokenizer, _phrases(query)) if row.ids})
    flat = np.array([token for row in rows for token in row], dtype=np.int64)
    states = index.find(flat, np.cumsum([0, *map(len, rows)]))
    return states[index.counts(states) > 0]


def query_grams(
    model: Generative, index: NGramIndex, queries: Sequence[str], sources: Batch
) -> list[tuple[States, Weights]]:
    """`query_states` of each query with log p(n | q).

    A decoder of clusters writes an n-gram as its first occurrence in the index's order has it.
    """
    found: list[States] = []
    sequences: list[list[list[int]]] = []
    for query in queries:
        states = query_states(model.tokenizer, index, query)
        begins = index.rows[states[:, 0]].astype(np.int64)
        begins -= np.searchsorted(index.starts, begins, side="right") - 1  # separators stand before it
        found.append(states)
        ends = begins + states[:, 2]
        sequences.append([model.target_tokens[a:b].tolist() for a, b in zip(begins, ends, strict=True)])
    scores = sequence_scores(model, sources, sequences, "log_probability")
    return list(zip(found, scores, strict=True))


def _phrases(query: str) -> set[str]:
    words = [stripped for word in query.split() if (stripped := word.strip(string.punctuation))]
    runs = (words[i : i + m] for m in range(1, LONGEST + 1) for i in range(len(words) - m + 1))
    return {case for run in runs for text in [" ".join(run)] for case in (text, text.lower(), text.title())}


def gram_weights(index: NGramIndex, states: States, log_p: Weights) -> Weights:
    """w(n, q) = max(0, ln [p(n|q) (1 − p(n)) / (p(n) (1 − p(n|q)))])^α: the query's odds over the corpus's.

    p(n) = (F + 5)/(N + 5) with F how often n occurs and N the tokens of the corpus.
    """
    total = index.counts(index.start())[0]
    prior = np.log((index.counts(states) + SMOOTHING) / (total + SMOOTHING))
    log_p = np.minimum(log_p, NO_PROBABILITY)
    with np.errstate(divide="ignore"):  # an n-gram that is all of the corpus has weight 0
        odds = log_p - np.log(-np.expm1(log_p)) - prior + np.log(-np.expm1(prior))
    return np.maximum(0, odds) ** ALPHA


def seal_scores(index: NGramIndex, states: States, log_p: Weights, depth: int) -> Scores:
    """W(d, q) = Σ_n w(n, q) (1 − β + β |n ∖ C| / |n|), n ∖ C the tokens of n not covered before.

    The sum runs over n-grams by falling weight, and takes those with an occurrence in d that overlaps with no
    occurrence of an n-gram taken before. |n| counts different tokens, and C holds those of the n-grams taken
    so far. Candidates are documents with an n-gram of at most `FREQUENT` occurrences; others add to these.

    Contains the `depth` best documents. Documents are scored by falling Σ w(n, q) over their n-grams, which
    bounds W, until none that is left can be among them.
    """
    states, log_p = distinct(states, log_p)
    weights = gram_weights(index, states, log_p)
    order = np.lexsort((states[:, 0], -states[:, 2], -weights))
    order = order[weights[order] > 0]
    states, weights = states[order], weights[order]
    begins = index.rows[states[:, 0]]
    grams = [index.text[a : a + m].tolist() for a, m in zip(begins, states[:, 2], strict=True)]
    found = _occurrences(index, states, grams)
    pairs = np.unique(found[:, :2], axis=0)
    documents, numbers = np.unique(pairs[:, 0], return_inverse=True)
    bounds = np.bincount(numbers, weights[pairs[:, 1]], len(documents)) * (1 + 1e-9)  # for rounding
    firsts = np.searchsorted(found[:, 0], [documents, documents + 1])
    scores: Scores = {}
    best: list[float] = []  # a heap of the `depth` largest
    for n in np.argsort(-bounds, kind="stable"):
        if len(best) == depth and bounds[n] < best[0]:
            break
        rows = found[firsts[0, n] : firsts[1, n], 1:].tolist()
        score = scores[int(documents[n])] = _document_score(rows, grams, weights)
        if len(best) < depth:
            heapq.heappush(best, score)
        else:
            heapq.heappushpop(best, score)
    return scores


def _occurrences(index: NGramIndex, states: States, grams: list[list[int]]) -> Int[np.ndarray, "o 3"]:
    """[document, place in `states`, position] of all n-grams in all candidates, ascending.

    Frequent ones are looked for in the candidates alone.
    """
    rare = np.flatnonzero(index.counts(states) <= FREQUENT)
    places = index.locate(states[rare])
    parts = [(places.documents, np.repeat(rare, np.diff(places.offsets)), places.positions)]
    candidates = np.unique(places.documents)
    offsets, at = ranges(index.starts[candidates], index.starts[candidates + 1])
    text = np.pad(index.text[at], (0, max(map(len, grams), default=0)), constant_values=SEPARATOR)
    for n in np.setdiff1d(np.arange(len(states)), rare):
        hits = np.flatnonzero(text == grams[n][0])
        for i, token in enumerate(grams[n][1:], start=1):
            hits = hits[text[hits + i] == token]
        which = np.searchsorted(offsets, hits, side="right") - 1
        parts.append((candidates[which], np.full(len(hits), n), hits - offsets[which]))
    found = np.stack([np.concatenate(column) for column in zip(*parts, strict=True)], axis=1)
    return found[np.lexsort(found.T[::-1])]


def _document_score(rows: list[list[int]], grams: list[list[int]], weights: Weights) -> float:
    """W of one document from the [n-gram, position] of its occurrences, by n-gram and position."""
    score = 0.0
    covered: set[int] = set()
    taken: set[int] = set()
    for n, occurrences in groupby(rows, key=itemgetter(0)):
        spans = [range(position, position + len(grams[n])) for _, position in occurrences]
        if not any(taken.isdisjoint(span) for span in spans):
            continue
        tokens = set(grams[n])
        score += float(weights[n]) * (1 - BETA + BETA * len(tokens - covered) / len(tokens))
        covered |= tokens
        taken.update(*spans)
    return score
