"""From n-grams to documents: which documents the n-grams that a decoder wrote for a query speak for.

`seal_scores` is the score of SEAL (Bevilacqua et al. 2022, NeurIPS, arXiv:2204.10628, §3.2) as its public
code computes it (facebookresearch/SEAL, `aggregate_evidence`). Wu et al. 2024 (arXiv:2404.00684, §6.2) rank
T5-SEAL by that code, with 5 beams and without titles. An n-gram is its state in an `NGramIndex`.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
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
from paradigms.generative.decoder import decode
from paradigms.generative.identifiers import text, tokenize
from paradigms.generative.model import Generative
from paradigms.generative.ngrams import SEPARATOR, NGramIndex, ranges
from paradigms.generative.settings import GenerativeSettings

ALPHA = 2.0  # exponent of an n-gram's weight
BETA = 0.8  # share of the weight that tokens covered before lose
SMOOTHING = 5  # occurrences added to every n-gram's, and to the corpus
FREQUENT = 1500  # an n-gram of more occurrences makes no document a candidate
LONGEST = 3  # words of the query's own n-grams
LIKELY = 5000  # tokens whose first-step probability counts
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


def query_states(tokenizer: Any, index: NGramIndex, query: str) -> States:
    """The query's own n-grams of 1 to `LONGEST` words that the corpus holds.

    Words lose punctuation at their ends; each is tried as it stands and with a capital first letter.
    """
    words = [stripped for word in query.split() if (stripped := word.strip(string.punctuation))]
    cases = [dict.fromkeys([word, word[0].upper() + word[1:]]) for word in words]
    runs = (cases[i : i + m] for m in range(1, LONGEST + 1) for i in range(len(words) - m + 1))
    phrases = {" ".join(chosen) for run in runs for chosen in product(*run)}
    phrases |= {f" {phrase}" for phrase in phrases}  # as byte-level tokenizers write it after a word
    grams = sorted({tuple(row.ids) for row in tokenize(tokenizer, phrases) if row.ids})
    states = index.find(grams)
    return states[index.counts(states) > 0]


def query_grams(
    model: Generative, index: NGramIndex, queries: Sequence[str], sources: Batch
) -> list[tuple[States, Weights]]:
    """`query_states` of each query with log p(n | q); of clusters, those of the first occurrence."""
    found, sequences = [query_states(model.tokenizer, index, query) for query in queries], []
    for states in found:
        begins = index.rows[states[:, 0]].astype(np.int64)
        begins -= np.searchsorted(index.starts, begins, side="right") - 1  # separators stand before it
        ends = begins + states[:, 2]
        sequences.append([model.target_tokens[a:b].tolist() for a, b in zip(begins, ends, strict=True)])
    scores = model.sequence_scores(sources, sequences, "log_probability")
    return [(states, own[0]) for states, own in zip(found, scores, strict=True)]


def first_step(model: Generative, sources: Batch) -> Float[np.ndarray, "b v"]:
    """log p(v | q) of every token as the first one written; of a decoder of clusters the best cluster's."""
    sources = sources.to(model.device)
    start = torch.full((len(sources.input_ids), 1, 1), model.start, device=model.device)
    with model.evaluating(), torch.inference_mode():
        _, memory = model.begin(sources)
        states = decode(model.decoder, model.embed(start), memory)
        log_p = model.next_log_probabilities(states, start)[:, 0].cpu().double().numpy()
    if model.clusters is None:
        return log_p
    found = np.full((model.identifiers.vocabulary, len(log_p)), -np.inf)
    np.maximum.at(found, model.clusters.surface, log_p.T)
    return found.T


def gram_weights(index: NGramIndex, states: States, log_p: Weights, exponent: float = ALPHA) -> Weights:
    """w(n, q) = max(0, ln [p(n|q) (1 − p(n)) / (p(n) (1 − p(n|q)))])^α: the query's odds over the corpus's.

    p(n) = (F + 5)/(N + 5) with F how often n occurs and N the tokens of the corpus.
    """
    total = index.counts(index.start())[0]
    prior = np.log((index.counts(states) + SMOOTHING) / (total + SMOOTHING))
    log_p = np.minimum(log_p, NO_PROBABILITY)
    with np.errstate(divide="ignore"):  # an n-gram that is all of the corpus has weight 0
        odds = log_p - np.log(-np.expm1(log_p)) - prior + np.log(-np.expm1(prior))
    return np.maximum(0, odds) ** exponent


def seal_scores(
    index: NGramIndex, states: States, log_p: Weights, unigrams: Float[np.ndarray, " v"] | None = None
) -> Scores:
    """W(d, q) = Σ_n w(n, q) (1 − β + β |n ∖ C| / |n|), n ∖ C the tokens of n not covered before.

    The sum runs over keys by falling weight, then by tokens. A key is taken where all places of some
    occurrence in d are free; all its free occurrences, left to right, then take their places. |n| counts
    different tokens, and C holds those of the keys taken so far. Candidates are documents with a key of at
    most `FREQUENT` occurrences. unigrams: log p(v | q) of every first token. Of the `LIKELY` likeliest, those
    that are no keys have weights without the exponent; the best, as many as there are keys, become keys, and
    each other adds its weight once at a place that is still free. The public code scores only the 1,500 best
    candidates; here all are.
    """
    states, numbers = np.unique(states, axis=0, return_inverse=True)  # once each, with its largest log p
    best_log_p = np.full(len(states), -np.inf)
    np.maximum.at(best_log_p, numbers, log_p)
    weights = gram_weights(index, states, best_log_p)
    late = np.zeros(1)
    if unigrams is not None:
        tokens, own, values = _unigrams(index, states, unigrams)
        late = np.zeros(len(unigrams))
        late[tokens] = values
        best = np.argsort(-values, kind="stable")[: len(states)]
        states, weights = np.concatenate([states, own[best]]), np.concatenate([weights, values[best]])
    order = np.lexsort((states[:, 2], states[:, 0], -weights))
    order = order[weights[order] > 0]
    states, weights = states[order], weights[order]
    offsets, places = ranges(index.rows[states[:, 0]], index.rows[states[:, 0]] + states[:, 2])
    grams = index.text[places]
    found = _occurrences(index, states, np.split(grams, offsets[1:-1]) if len(states) else [])
    documents, firsts = np.unique(found[:, 0], return_index=True)
    bounds = np.append(firsts, len(found))
    starts = index.starts[documents], index.starts[documents + 1] - 1
    size = int(index.branches(index.start()).tokens[-1]) + 1
    found = np.ascontiguousarray(found[:, 1:])
    from paradigms.generative import compiled

    given = bounds, *starts, index.text, grams, offsets, weights, late, size, BETA
    scores = compiled.score(found, *given)
    return dict(zip(documents.tolist(), scores.tolist(), strict=True))


def _unigrams(
    index: NGramIndex, keys: States, log_p: Float[np.ndarray, " v"]
) -> tuple[Int[np.ndarray, " u"], Int[np.ndarray, "u 3"], Float[np.ndarray, " u"]]:
    """Tokens of the corpus that are likely first ones and no keys: their states and weights."""
    branches = index.branches(index.start())
    likely = np.zeros(len(log_p), dtype=bool)
    likely[np.argsort(-log_p, kind="stable")[:LIKELY]] = True
    kept = likely[branches.tokens] & ~np.isin(branches.states[:, 0], keys[keys[:, 2] == 1, 0])
    tokens, states = branches.tokens[kept], branches.states[kept]
    return tokens, states, gram_weights(index, states, log_p[tokens], exponent=1.0)


def _occurrences(index: NGramIndex, states: States, grams: list[Any]) -> Int[np.ndarray, "o 3"]:
    """[document, place in `states`, position] of all n-grams in all candidates, ascending."""
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
    of, which, at = (np.concatenate(column).astype(np.int64) for column in zip(*parts, strict=True))
    count, length = max(1, len(states)), int(np.diff(index.starts).max())
    rows, positions = np.divmod(np.sort((of * count + which) * length + at), length)  # one key sorts faster
    return np.stack([*np.divmod(rows, count), positions], axis=1)
