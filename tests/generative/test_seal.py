"""SEAL's document scores: examples worked by hand, and a slow twin that works as the public code does, by a
heap of matches over a list of free places."""

import heapq
import math
import random
from itertools import product

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from paradigms.generative import seal
from paradigms.generative.ngrams import NGramIndex
from paradigms.generative.seal import gram_weights, query_states, seal_scores
from tests.generative.test_ngrams import csr
from tests.near import assert_same
from tests.tiny_generative import Sequences

Gram = tuple[int, ...]
A, B, C = [1, 2, 3, 4, 2], [2, 3, 6, 7, 8], [9] * 5  # N = 15
GENERATED: dict[Gram, float] = {(1, 2): 0.9, (2, 3): 0.65, (2,): 0.6, (9,): 0.5}  # p(n | q)


def index_of(documents: Sequences) -> NGramIndex:
    return NGramIndex.build(*csr(documents))


def log(probabilities: dict[Gram, float]) -> dict[Gram, float]:
    return {gram: math.log(p) for gram, p in probabilities.items()}


def arrays(index: NGramIndex, grams: dict[Gram, float]) -> tuple[np.ndarray, np.ndarray]:
    return index.find(grams), np.array(list(grams.values()))


def occurrences(document: list[int], gram: Gram) -> list[int]:
    m = len(gram)
    return [i for i in range(len(document) - m + 1) if tuple(document[i : i + m]) == gram]


def slow_weight(documents: Sequences, gram: Gram, log_p: float) -> float:
    N, F = sum(map(len, documents)), sum(len(occurrences(d, gram)) for d in documents)
    s, p = log_p, math.log((F + 5) / (N + 5))
    return max(0.0, s + math.log(1 - math.exp(p)) - p - math.log(1 - math.exp(s))) ** 2


def slow_seal(
    documents: Sequences, log_p: dict[Gram, float], frequent: int, first: list[float] | None = None
) -> dict[int, float]:
    """W(d): pop matches from a heap, best key first. A match whose places are all free takes them, and the
    first one of its key counts, w · (1 − β + β |n ∖ C| / |n|) with β = 0.8. Then tokens at free places."""
    w = {gram: slow_weight(documents, gram, s) for gram, s in log_p.items()}
    counts = {gram: sum(len(occurrences(d, gram)) for d in documents) for gram in w}
    late: dict[int, float] = {}
    if first is not None:
        likely = sorted(range(len(first)), key=lambda v: -first[v])[: seal.LIKELY]
        results = {v: sum(d.count(v) for d in documents) for v in likely if (v,) not in log_p}
        results = {v: count for v, count in results.items() if count}
        late = {v: math.sqrt(slow_weight(documents, (v,), first[v])) for v in results}
        best = sorted(late, key=lambda v: (-late[v], v))[: len(log_p)]
        w |= {(v,): late[v] for v in best}
        counts |= {(v,): results[v] for v in best}
    scores = {}
    for d, document in enumerate(documents):
        heap = [(-w[n], n, i) for n in w if w[n] > 0 for i in occurrences(document, n)]
        if not any(counts[n] <= frequent for _, n, _ in heap):
            continue
        heapq.heapify(heap)
        free, covered, previous, scores[d] = [True] * len(document), set[int](), None, 0.0
        while heap:
            _, n, i = heapq.heappop(heap)
            if not all(free[i : i + len(n)]):
                continue
            free[i : i + len(n)] = [False] * len(n)
            if n != previous:
                scores[d] += w[n] * (0.2 + 0.8 * len(set(n) - covered) / len(set(n)))
                covered |= set(n)
            previous = n
        for token in {t for t, left in zip(document, free, strict=True) if left}:
            scores[d] += late.get(token, 0.0) * (0.2 if token in covered else 1.0)
    return scores


def test_document_scores_by_hand():
    """The prior of an n-gram is (F + 5)/20, N + 5 = 20: w(1, 2) = log² ((0.9/0.1)/(0.3/0.7)) = 9.269117."""
    index = index_of([A, B, C])
    scores = seal_scores(index, *arrays(index, log(GENERATED)))
    # A: (1, 2) takes places 0 and 1; (2, 3) overlaps with it; (2) is free at place 4, but covered: a fifth.
    # B: (2, 3) takes the only place of (2). C: of weight 0 alone.
    assert scores == pytest.approx({0: 9.269117 + 0.2 * 0.657608, 1: 1.532838}, abs=1e-6)  # six decimals


def drawn(seed: int) -> tuple[Sequences, dict[Gram, float]]:
    """Documents of five tokens, and log p of some n-grams that occur in them."""
    random_ = random.Random(seed)
    documents = [[random_.randrange(5) for _ in range(random_.randrange(12))] for _ in range(15)]
    grams = [g for m in (1, 2, 3) for g in product(range(5), repeat=m)]
    in_corpus = [gram for gram in grams if any(occurrences(d, gram) for d in documents)]
    chosen = random_.sample(in_corpus, min(25, len(in_corpus)))
    return documents, {gram: math.log(random_.uniform(0.01, 0.999)) for gram in chosen}


@pytest.mark.parametrize("likely", [0, 2, 5000])
@pytest.mark.parametrize("frequent", [0, 3, 1500])
@pytest.mark.parametrize("seed", range(3))
def test_seal_scores_are_those_of_the_slow_twin(monkeypatch, seed, frequent, likely):
    monkeypatch.setattr(seal, "FREQUENT", frequent)
    monkeypatch.setattr(seal, "LIKELY", likely)
    documents, log_p = drawn(seed)
    index = index_of(documents)
    first = np.log(np.random.default_rng(seed).dirichlet(np.ones(6))) if likely else None
    expected = slow_seal(documents, log_p, frequent, None if first is None else first.tolist())
    assert_same(seal_scores(index, *arrays(index, log_p), first), expected)


def test_ngrams_that_are_repeated_absent_or_certain():
    index = index_of([A, B, C])
    states, log_p = arrays(index, log(GENERATED))
    twice = np.concatenate([states, states]), np.concatenate([log_p, log_p - 1])
    assert seal_scores(index, *twice) == seal_scores(index, states, log_p), "it counts once, with the better"
    nothing = np.empty((0, 3), dtype=np.int64), np.empty(0)
    assert seal_scores(index_of([A]), *nothing, np.log(np.full(9, 1 / 9))) == {}
    index = index_of([[1] * 30])
    states, _ = arrays(index, {(1,): 0.0, (1, 1): 0.0})
    assert gram_weights(index, states, np.array([0.0, -1e4])).tolist() == [0.0, 0.0], "all of the corpus"


def test_keys_are_found_after_a_space_which_byte_level_tokenizers_write_into_tokens():
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.train_from_iterator(["the red fish"] * 9, trainers.BpeTrainer(show_progress=False))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe)
    assert tokenizer.tokenize("the red fish") == ["the", "Ġred", "Ġfish"]
    the, red, fish = tokenizer("the red fish")["input_ids"]
    index = index_of([[the, red, fish]])
    states = query_states(tokenizer, index, "red fish")
    assert sorted(states.tolist()) == sorted(index.find([[red], [fish], [red, fish]]).tolist())
