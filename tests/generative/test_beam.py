"""Beam search against its slow twin, and against scoring every identifier there is."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from paradigms.generative.beam import NOTHING, Hypotheses, beam_search
from paradigms.generative.decoder import decode
from paradigms.generative.identifiers import END, START
from paradigms.generative.model import Generative
from paradigms.generative.ngrams import NGramIndex
from tests.near import assert_same
from tests.tiny_generative import Sequences, generative, named, texts

QUERIES = ["the lazy dog", "a king lived in the house near that river, so they say", "", "corn"]
Scored = list[tuple[tuple[int, ...], float]]


def valid(model: Generative) -> NGramIndex:
    return NGramIndex.build(*model.identifiers.targets, trie=model.identifiers.end is not None)


def random_rows(seed: int) -> Sequences:
    """Draw rows from few tokens, so that prefixes are shared and some rows repeat or extend others."""
    drawn = random.Random(seed)
    return [[drawn.choice([2, 5, 9, 300]) for _ in range(drawn.randint(1, 4))] for _ in range(12)]


def successors(model: Generative, prefix: tuple[int, ...]) -> list[int]:
    """Tokens that may follow a prefix: of an identifier or, if identifiers are texts, of any n-gram."""
    rows = [tuple(model.target(n)) for n in range(len(model.identifiers))]
    m = len(prefix)
    last = 1 if model.identifiers.end is not None else model.identifiers.longest
    places = [(row, i) for row in rows for i in range(min(last, len(row) - m))]
    return sorted({row[i + m] for row, i in places if row[i : i + m] == prefix})


def slow_search(model: Generative, query: str, *, beams: int, length: int, keep: bool = False) -> Scored:
    """Beam search as it is defined: one query, no cache, a list of (prefix, score)."""
    with torch.inference_mode():
        _, memory = model.begin(model.tokenize([query]))

    @torch.inference_mode()
    def log_p(prefix: tuple[int, ...]) -> Tensor:
        inputs = torch.tensor([[[START, *prefix]]])
        states = decode(model.decoder, model.embed(inputs), memory.of_query(0))[..., -1:, :]
        return model.next_scores([states], inputs)[0, 0]

    def best(scored: Scored, k: int) -> Scored:
        return sorted(scored, key=lambda item: (-item[1], item[0]))[:k]

    live: Scored = [((), 0.0)]
    finished: Scored = []
    every: Scored = []
    for step in range(1, length + 1):
        longer = []
        for prefix, score in live:
            p = log_p(prefix).tolist()
            longer += [((*prefix, v), score + p[v]) for v in successors(model, prefix) if p[v] > -np.inf]
        ended = {tokens for tokens, _ in longer if step == length or not successors(model, tokens)}
        if keep:
            longer = best(longer, 2 * beams)
            every += longer
            longer = [item for item in longer if item[0] not in ended]
        pool = best(finished + longer, beams)
        finished = [item for item in pool if item in finished or item[0] in ended]
        live = [item for item in pool if item not in finished]
    return best(every if keep else finished, 10**9)


def sequences(hypotheses: Hypotheses) -> list[list[int]]:
    return [row[row != NOTHING].tolist() for row in hypotheses.tokens]


def assert_same_beams(hypotheses: Hypotheses, expected: Scored) -> None:
    assert sequences(hypotheses) == [list(tokens) for tokens, _ in expected]
    assert_same(hypotheses.scores.tolist(), [score for _, score in expected])


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("make", [named, texts])
def test_few_beams_are_those_of_the_slow_search_in_any_batch(seq2seq, make, keep):
    model = generative(seq2seq["t5-v1.1"], make(random_rows(1)), tokens="own")
    for beams in (1, 3):
        options: dict[str, Any] = {"beams": beams, "length": 3, "keep": keep}
        together = beam_search(model, model.tokenize(QUERIES), valid(model), **options)
        for n, query in enumerate(QUERIES):
            expected = slow_search(model, query, **options)
            assert_same_beams(together.of_query(n), expected)
            assert_same_beams(beam_search(model, model.tokenize([query]), valid(model), **options), expected)


def test_equal_scores_are_in_the_order_of_tokens(seq2seq):
    rows = [[7, 3], [4, 9], [8, 2], [4, 3], [3, 300]]
    model = generative(seq2seq["t5"], named(rows), tokens="own")
    model.table = torch.nn.Parameter(torch.zeros(310, model.width).double())  # every token is as likely
    sources = model.tokenize(QUERIES)
    hypotheses = beam_search(model, sources, valid(model), beams=3, length=3)
    for n in range(len(QUERIES)):
        assert sequences(hypotheses.of_query(n)) == [[3, 300, END], [4, 3, END], [4, 9, END]]
