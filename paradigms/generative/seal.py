"""Compute W(d, q), SEAL's document score, from the n-grams that a decoder generates for a query.

`seal_scores` is the score of SEAL (Bevilacqua et al. 2022, NeurIPS, arXiv:2204.10628, §3.2) as its public
code computes it (facebookresearch/SEAL, `aggregate_evidence`). Wu et al. 2024 (arXiv:2404.00684, §6.2) rank
documents for T5-SEAL with that code, 5 beams and no titles. An n-gram is represented by its state in an
`NGramIndex`.
"""

import string
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int

from paradigms.data import Corpus
from paradigms.encoder.text import Batch
from paradigms.generative.backbone import load_base_tokenizer
from paradigms.generative.identifiers import text, tokenize
from paradigms.generative.model import Generative
from paradigms.generative.ngrams import SEPARATOR, NGramIndex, ranges
from paradigms.generative.settings import GenerativeSettings

ALPHA = 2.0  # exponent of an n-gram's weight
BETA = 0.8  # share of an n-gram's weight that is lost if its tokens are already covered
SMOOTHING = 5  # added to every n-gram's count and to the corpus's
FREQUENT = 1500  # n-grams with more occurrences do not add candidates
LONGEST = 3  # words of the n-grams taken from the query
LIKELY = 5000  # tokens whose first-step probability is used
NO_PROBABILITY = -1e-7  # upper bound of log p: float32 distinguishes it from 0, where the odds are infinite
States = Int[np.ndarray, "n 3"]
Weights = Float[np.ndarray, " n"]
Scores = dict[int, float]  # number of the indexed text -> score


def seal(backbone: str | Path, corpus: Corpus, **settings: Any) -> Generative:
    """Build SEAL over `backbone`. settings: fields of `GenerativeSettings`."""
    defaults: dict[str, Any] = {"name": "seal", "beams": 15}
    chosen = GenerativeSettings(**defaults | settings)
    names = text(corpus, load_base_tokenizer(backbone), chosen.document_length)
    return Generative.build(chosen, backbone, names, corpus)


def query_states(tokenizer: Any, index: NGramIndex, query: str) -> States:
    """Return the states of the query's n-grams of 1 to `LONGEST` words that occur in the corpus.

    Punctuation around words is stripped; each word is tried as written and with a capital first letter.
    """
    words = [stripped for word in query.split() if (stripped := word.strip(string.punctuation))]
    cases = [dict.fromkeys([word, word[0].upper() + word[1:]]) for word in words]
    runs = (cases[i : i + m] for m in range(1, LONGEST + 1) for i in range(len(words) - m + 1))
    phrases = {" ".join(variant) for run in runs for variant in product(*run)}
    phrases |= {f" {phrase}" for phrase in phrases}  # byte-level tokenizers distinguish a leading space
    grams = sorted({tuple(row.ids) for row in tokenize(tokenizer, phrases) if row.ids})
    states = index.find(grams)
    return states[index.counts(states) > 0]


def query_grams(
    model: Generative, index: NGramIndex, queries: Sequence[str], sources: Batch
) -> list[tuple[States, Weights]]:
    """Return each query's `query_states` with log p(n | q); with clusters, n's first occurrence is scored."""
    grams = [query_states(model.tokenizer, index, query) for query in queries]
    sequences = []
    for states in grams:
        begins = index.rows[states[:, 0]].astype(np.int64)
        begins -= np.searchsorted(index.starts, begins, side="right") - 1  # without the separators before it
        ends = begins + states[:, 2]
        sequences.append([model.target_tokens[a:b].tolist() for a, b in zip(begins, ends, strict=True)])
    scores = model.sequence_scores(sources, sequences, "log_probability")
    return [(states, log_p[0]) for states, log_p in zip(grams, scores, strict=True)]


def first_step(model: Generative, sources: Batch) -> Float[np.ndarray, "b v"]:
    """log p(v | q) for every token at position 1; with clusters, the maximum over the token's clusters."""
    sources = sources.to(model.device)
    start = torch.full((len(sources.input_ids), 1, 1), model.start, device=model.device)
    with model.evaluating(), torch.inference_mode():
        states = model.decode(model.memories(sources), start)
        log_p = model.next_scores(states, start)[:, 0].cpu().double().numpy()
    if model.clusters is None:
        return log_p
    largest = np.full((model.identifiers.vocabulary, len(log_p)), -np.inf)
    np.maximum.at(largest, model.clusters.surface, log_p.T)
    return largest.T


def gram_weights(index: NGramIndex, states: States, log_p: Weights, exponent: float = ALPHA) -> Weights:
    """w(n, q) = max(0, ln [p(n|q) (1 − p(n)) / (p(n) (1 − p(n|q)))])^α, a ratio of odds.

    p(n) = (F + 5)/(N + 5), where F is the number of occurrences of n and N the number of tokens in the
    corpus.
    """
    total = index.counts(index.start())[0]
    prior = np.log((index.counts(states) + SMOOTHING) / (total + SMOOTHING))
    log_p = np.minimum(log_p, NO_PROBABILITY)
    with np.errstate(divide="ignore"):  # an n-gram that makes up the whole corpus has weight 0
        odds = log_p - np.log(-np.expm1(log_p)) - prior + np.log(-np.expm1(prior))
    return np.maximum(0, odds) ** exponent


def seal_scores(
    index: NGramIndex, states: States, log_p: Weights, unigrams: Float[np.ndarray, " v"] | None = None
) -> Scores:
    """W(d, q) = Σ_n w(n, q) (1 − β + β |n ∖ C| / |n|), with n ∖ C the tokens of n that are not covered yet.

    The sum runs over the keys (n-grams) by descending weight, then by tokens. A key counts if all positions
    of some occurrence in d are free; its free occurrences, left to right, then occupy their positions. |n|
    counts distinct tokens, and C contains the tokens of the keys counted so far. Candidates are the documents
    that contain a key with at most `FREQUENT` occurrences.

    unigrams: log p(v | q) of every token at the first position. Among the `LIKELY` most likely tokens, the
    ones that are not keys get weights without the exponent. The best of these tokens (at most as many as
    there are keys) become keys, too. Every other token adds its weight once, at a position that is still
    free. The public code scores only the 1,500 best candidates; this function scores all.
    """
    states, numbers = np.unique(states, axis=0, return_inverse=True)  # each key once, with its largest log p
    best_log_p = np.full(len(states), -np.inf)
    np.maximum.at(best_log_p, numbers, log_p)
    weights = gram_weights(index, states, best_log_p)
    late = np.zeros(1)
    if unigrams is not None:
        tokens, single, values = _unigrams(index, states, unigrams)
        late = np.zeros(len(unigrams))
        late[tokens] = values
        additions = np.argsort(-values, kind="stable")[: len(states)]
        states = np.concatenate([states, single[additions]])
        weights = np.concatenate([weights, values[additions]])
    order = np.lexsort((states[:, 2], states[:, 0], -weights))
    order = order[weights[order] > 0]
    states, weights = states[order], weights[order]
    offsets, at = ranges(index.rows[states[:, 0]], index.rows[states[:, 0]] + states[:, 2])
    grams = index.text[at]
    occurrences = _occurrences(index, states, np.split(grams, offsets[1:-1]) if len(states) else [])
    documents, firsts = np.unique(occurrences[:, 0], return_index=True)
    bounds = np.append(firsts, len(occurrences))
    starts = index.starts[documents]
    ends = index.starts[documents + 1] - 1
    size = int(index.branches(index.start()).tokens[-1]) + 1
    places = np.ascontiguousarray(occurrences[:, 1:])
    from paradigms.generative.compiled import score

    scores = score(places, bounds, starts, ends, index.text, grams, offsets, weights, late, size, BETA)
    return dict(zip(documents.tolist(), scores.tolist(), strict=True))


def _unigrams(
    index: NGramIndex, keys: States, log_p: Float[np.ndarray, " v"]
) -> tuple[Int[np.ndarray, " u"], Int[np.ndarray, "u 3"], Float[np.ndarray, " u"]]:
    """Return the likely first tokens that are in the corpus and not keys, with states and weights."""
    branches = index.branches(index.start())
    likely = np.zeros(len(log_p), dtype=bool)
    likely[np.argsort(-log_p, kind="stable")[:LIKELY]] = True
    new = likely[branches.tokens] & ~np.isin(branches.states[:, 0], keys[keys[:, 2] == 1, 0])
    tokens = branches.tokens[new]
    states = branches.states[new]
    return tokens, states, gram_weights(index, states, log_p[tokens], exponent=1.0)


def _occurrences(index: NGramIndex, states: States, grams: list[Any]) -> Int[np.ndarray, "o 3"]:
    """Find the n-grams' occurrences in all candidates: sorted rows [document, row of `states`, position]."""
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
        texts = np.searchsorted(offsets, hits, side="right") - 1
        parts.append((candidates[texts], np.full(len(hits), n), hits - offsets[texts]))
    documents, keys, begins = (np.concatenate(column).astype(np.int64) for column in zip(*parts, strict=True))
    order = np.lexsort((begins, keys, documents))
    return np.stack([documents, keys, begins], axis=1)[order]
