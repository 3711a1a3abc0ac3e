"""SEAL's document scores: an example worked by hand, and a slow twin over lists of tokens."""

from __future__ import annotations

import math
import random
from itertools import product

import numpy as np
import pytest
import torch

from paradigms.generative import forced, seal
from paradigms.generative.forced import sequence_scores
from paradigms.generative.ngrams import NGramIndex
from paradigms.generative.seal import gram_weights, query_grams, seal_scores
from paradigms.generative.targets import Targets
from tests.generative.test_trie import csr
from tests.tiny_generative import Sequences, generative, texts

Gram = tuple[int, ...]
A, B, C = [1, 2, 3, 4, 2], [2, 3, 6, 7, 8], [9] * 5  # N = 15
GENERATED: dict[Gram, float] = {(1, 2): 0.9, (2, 3): 0.65, (2,): 0.6, (9,): 0.5}  # p(n | q)


def index_of(documents: Sequences) -> NGramIndex:
    return NGramIndex.build(*csr(documents))


def log(probabilities: dict[Gram, float]) -> dict[Gram, float]:
    return {gram: math.log(p) for gram, p in probabilities.items()}


def arrays(index: NGramIndex, grams: dict[Gram, float]) -> tuple[np.ndarray, np.ndarray]:
    return index.find(*csr([list(gram) for gram in grams])), np.array(list(grams.values()))


def occurrences(document: list[int], gram: Gram) -> list[int]:
    m = len(gram)
    return [i for i in range(len(document) - m + 1) if tuple(document[i : i + m]) == gram]


def slow_weight(documents: Sequences, gram: Gram, log_p: float) -> float:
    N, F = sum(map(len, documents)), sum(len(occurrences(d, gram)) for d in documents)
    s, p = log_p, math.log((F + 5) / (N + 5))
    return max(0.0, s + math.log(1 - math.exp(p)) - p - math.log(1 - math.exp(s))) ** 2


def slow_seal(documents: Sequences, log_p: dict[Gram, float], frequent: int) -> dict[int, float]:
    """As the paper defines it: W(d) = Σ over K(d) of w · (1 − β + β |n ∖ C| / |n|), β = 0.8.

    K(d): the n-grams with an occurrence in d that overlaps with none of a better one of K(d). C: the tokens
    of the better ones of K(d).
    """
    w = {gram: slow_weight(documents, gram, s) for gram, s in log_p.items()}
    # Equal weights: the longer first, then the one that reads smaller.
    order = sorted((g for g in w if w[g] > 0), key=lambda g: (-w[g], -len(g), g))
    counts = {gram: sum(len(occurrences(d, gram)) for d in documents) for gram in order}
    scores = {}
    for d, document in enumerate(documents):
        if not any(occurrences(document, gram) and counts[gram] <= frequent for gram in order):
            continue
        places = {g: [set(range(i, i + len(g))) for i in occurrences(document, g)] for g in order}
        kept: list[Gram] = []
        for gram in order:
            if any(not any(own & other for k in kept for other in places[k]) for own in places[gram]):
                kept.append(gram)
        scores[d] = 0.0
        for n, gram in enumerate(kept):
            new = set(gram) - {token for better in kept[:n] for token in better}
            scores[d] += w[gram] * (0.2 + 0.8 * len(new) / len(set(gram)))
    return scores


# --- by hand ----------------------------------------------------------------------------------------


def test_weights_by_hand():
    """The prior of an n-gram is (F + 5)/20, as N + 5 = 20."""
    index = index_of([A, B, C])
    found = gram_weights(index, *arrays(index, log(GENERATED)))
    expected = [
        math.log((0.9 / 0.1) / (0.3 / 0.7)) ** 2,  # (1, 2) occurs once
        math.log((0.65 / 0.35) / (0.35 / 0.65)) ** 2,  # (2, 3) twice
        math.log((0.6 / 0.4) / (0.4 / 0.6)) ** 2,  # (2) three times
        0.0,  # (9) five times: as likely with the query as without
    ]
    np.testing.assert_allclose(found, expected, atol=1e-12)
    np.testing.assert_allclose(expected, [9.269117, 1.532838, 0.657608, 0], atol=1e-6)


def test_document_scores_by_hand():
    index = index_of([A, B, C])
    scores = seal_scores(index, *arrays(index, log(GENERATED)), depth=3)
    # A: (1, 2) takes places 0 and 1; (2, 3) overlaps with it; (2) is free at place 4, but covered: a fifth.
    # B: (2, 3) takes the only place of (2). C: of weight 0 alone.
    assert scores == pytest.approx({0: 9.269117 + 0.2 * 0.657608, 1: 1.532838}, abs=1e-6)


def test_single_tokens_stand_in_order_of_weight_and_every_occurrence_blocks():
    documents = [[1, 2, 1, 3], [7] * 40]
    index = index_of(documents)
    # (1) is best and takes both of its places, so that (1, 2) and (1, 3) have no free occurrence.
    grams: dict[Gram, float] = {(1,): math.log(0.9), (1, 2): math.log(0.5), (1, 3): math.log(0.6)}
    weight = slow_weight(documents, (1,), math.log(0.9))
    assert seal_scores(index, *arrays(index, grams), depth=9) == pytest.approx({0: weight})


def test_half_covered_ngrams_lose_half_of_beta():
    documents = [[1, 2, 5, 2, 3], [7] * 40]
    index = index_of(documents)
    grams: dict[Gram, float] = {(1, 2): math.log(0.9), (2, 3): math.log(0.5)}
    first, second = (slow_weight(documents, gram, s) for gram, s in grams.items())
    assert seal_scores(index, *arrays(index, grams), depth=9) == pytest.approx({0: first + 0.6 * second})


def test_certainty_and_impossibility_have_finite_weights():
    index = index_of([[1] * 30])
    states, _ = arrays(index, {(1,): 0.0, (1, 1): 0.0})
    found = gram_weights(index, states, np.array([0.0, -1e4]))
    assert found.tolist() == [0.0, 0.0], "an n-gram that is all of the corpus says nothing"
    assert np.isfinite(gram_weights(index_of([A]), index_of([A]).find(*csr([[1]])), np.zeros(1))).all()


# --- slow twins -------------------------------------------------------------------------------------


def drawn(seed: int) -> tuple[Sequences, dict[Gram, float]]:
    """Documents of five tokens, and log p of some n-grams that occur in them."""
    random_ = random.Random(seed)
    documents = [[random_.randrange(5) for _ in range(random_.randrange(12))] for _ in range(15)]
    grams = [g for m in (1, 2, 3) for g in product(range(5), repeat=m)]
    there = [g for g in grams if any(occurrences(d, g) for d in documents)]
    chosen = random_.sample(there, min(25, len(there)))
    return documents, {gram: math.log(random_.uniform(0.01, 0.999)) for gram in chosen}


@pytest.mark.parametrize("frequent", [0, 3, 8, 1500])
@pytest.mark.parametrize("seed", range(6))
def test_seal_scores_are_those_of_the_slow_twin(monkeypatch, seed, frequent):
    monkeypatch.setattr(seal, "FREQUENT", frequent)
    documents, log_p = drawn(seed)
    index = index_of(documents)
    expected = slow_seal(documents, log_p, frequent)
    everything = seal_scores(index, *arrays(index, log_p), depth=100)
    assert everything == pytest.approx(expected)
    for depth in (1, 4):
        best = sorted(expected, key=lambda d: (-expected[d], d))[:depth]
        scores = seal_scores(index, *arrays(index, log_p), depth=depth)
        found = sorted(scores, key=lambda d: (-scores[d], d))[:depth]
        assert [scores[d] for d in found] == pytest.approx([expected[d] for d in best])


def test_fewer_documents_are_scored_than_there_are(monkeypatch):
    documents, log_p = drawn(0)
    index = index_of(documents)
    assert len(seal_scores(index, *arrays(index, log_p), depth=1)) < len(slow_seal(documents, log_p, 1500))


def test_an_ngram_written_in_two_ways_counts_once_with_the_better():
    index = index_of([A, B, C])
    states, log_p = arrays(index, log(GENERATED))
    twice = np.concatenate([states, states]), np.concatenate([log_p, log_p - 1])
    assert seal_scores(index, *twice, depth=5) == seal_scores(index, states, log_p, depth=5)


def test_no_ngram_no_document():
    index = index_of([A])
    states, log_p = np.empty((0, 3), dtype=np.int64), np.empty(0)
    assert seal_scores(index, states, log_p, depth=5) == {}


# --- the query's own --------------------------------------------------------------------------------


def test_query_grams_are_those_of_the_corpus_with_their_teacher_forced_probability(seq2seq):
    folder = seq2seq["t5"]
    model = generative(folder, texts([[5]]))
    the, lazy, dog = model.tokenizer("the lazy dog", add_special_tokens=False)["input_ids"]
    model = generative(folder, texts([[lazy, dog, the, 9], [the, 9]]))
    index = NGramIndex.build(model.identifiers.tokens, model.identifiers.offsets)
    queries = ["The lazy dog, the LAZY?", "", "corn"]  # words are tried in lower case, too
    sources = model.tokenize(queries)
    found = query_grams(model, index, queries, sources)
    expected = sorted([(the,), (lazy,), (dog,), (lazy, dog), (dog, the), (lazy, dog, the)])
    states, scores = found[0]
    assert states.tolist() == index.find(*csr([list(gram) for gram in expected])).tolist()
    targets = Targets.pad([[list(gram) for gram in expected]] * 3)
    with torch.inference_mode():
        expected_scores = model.token_scores(sources, targets, "log_probability").sum(-1)
    np.testing.assert_allclose(scores, expected_scores[0].numpy(), atol=1e-6)
    assert [len(states) for states, _ in found[1:]] == [0, 0]


@pytest.mark.parametrize("scorer", ["log_probability", "logit", "centred_logit"])
def test_sequence_scores_are_token_scores_however_they_are_batched(seq2seq, monkeypatch, scorer):
    model = generative(seq2seq["t5-v1.1"], texts([[5]]))
    sources = model.tokenize(["the lazy dog", "", "corn and milk for a cow"])
    sequences = [[[7], [8, 9, 10], [3] * 6, [4, 4]], [], [[9, 9]]]
    with torch.inference_mode():
        filled = [own + [[1]] * (4 - len(own)) for own in sequences]
        expected = model.token_scores(sources, Targets.pad(filled), scorer).sum(-1).numpy()
    for places in (1, 7, 1000):
        monkeypatch.setattr(forced, "PLACES", {"cpu": places})
        batches = [[sequences[0][n] for n in batch] for batch in forced._batches(sequences[0], places)]
        assert all(len(batch) == 1 or len(batch) * max(map(len, batch)) <= places for batch in batches)
        found = sequence_scores(model, sources, sequences, scorer)
        for own, row in zip(found, expected, strict=True):
            np.testing.assert_allclose(own, row[: len(own)], atol=1e-6)
