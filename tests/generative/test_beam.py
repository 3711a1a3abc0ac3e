"""Beam search against its slow twin, and against scoring every identifier there is."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from paradigms.generative.beam import Hypotheses, beam_search
from paradigms.generative.decoder import Memory, decode
from paradigms.generative.identifiers import END, START
from paradigms.generative.model import Generative
from paradigms.generative.ngrams import NGramIndex
from tests.near import assert_same
from tests.tiny_generative import Sequences, generative, named, texts

QUERIES = ["the lazy dog", "a king lived in the house near that river, so they say", "", "corn"]
Found = list[tuple[list[int], float]]
Allowed = Callable[[tuple[int, ...]], list[int]]


def valid(model: Generative) -> NGramIndex:
    return NGramIndex.build(*model.identifiers.targets, whole=model.identifiers.end is not None)


def random_rows(seed: int, count: int = 12) -> Sequences:
    """Draw rows from few tokens, so that prefixes are shared and some rows repeat or extend others."""
    drawn = random.Random(seed)
    return [[drawn.choice([2, 5, 9, 300]) for _ in range(drawn.randint(1, 4))] for _ in range(count)]


def continuations(whole: set[tuple[int, ...]]) -> Allowed:
    return lambda p: sorted({s[len(p)] for s in whole if len(s) > len(p) and s[: len(p)] == p})


def named_next(model: Generative) -> Allowed:
    return continuations({tuple(model.target(n)) for n in range(len(model.identifiers))})


def text_next(model: Generative) -> Allowed:
    rows = [tuple(model.identifiers[n].tolist()) for n in range(len(model.identifiers))]

    def follow(prefix: tuple[int, ...]) -> list[int]:
        m = len(prefix)
        return sorted({r[i + m] for r in rows for i in range(len(r) - m) if r[i : i + m] == prefix})

    return follow


def slow_search(
    model: Generative, query: str, allowed: Allowed, beams: int, length: int, keep: bool = False
) -> Found:
    """Beam search as it is defined: one query, no cache, a list of (prefix, score)."""
    with torch.inference_mode():
        _, begun = model.begin(model.tokenize([query]))

    @torch.inference_mode()
    def log_p(prefix: tuple[int, ...]) -> Tensor:
        memory = Memory(begun.mask, begun.crossed, [])
        inputs = torch.tensor([[[START, *prefix]]])
        states = decode(model.backbone.decoder, model.embed(inputs), memory)[..., -1:, :]
        return model.next_scores([states], inputs)[0, 0]

    def best(found: list[tuple[tuple[int, ...], float]], k: int) -> list[tuple[tuple[int, ...], float]]:
        return sorted(found, key=lambda item: (-item[1], item[0]))[:k]

    live: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    finished: list[tuple[tuple[int, ...], float]] = []
    kept = []
    for step in range(1, length + 1):
        found = []
        for prefix, score in live:
            p = log_p(prefix).tolist()
            found += [((*prefix, v), score + p[v]) for v in allowed(prefix) if p[v] > -np.inf]
        ended = {s for s, _ in found if step == length or not allowed(s)}
        if keep:
            found = best(found, 2 * beams)
            kept += found
            found = [item for item in found if item[0] not in ended]
        pool = best(finished + found, beams)
        finished = [item for item in pool if item in finished or item[0] in ended]
        live = [item for item in pool if item not in finished]
    return [(list(s), score) for s, score in best(kept if keep else finished, 10**9)]


def as_lists(hypotheses: Hypotheses) -> Found:
    return list(zip(hypotheses.sequences(), hypotheses.scores.tolist(), strict=True))


def assert_same_beams(found: Found, expected: Found) -> None:
    assert [tokens for tokens, _ in found] == [tokens for tokens, _ in expected]
    assert_same([s for _, s in found], [s for _, s in expected])


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize(("make", "allowed"), [(named, named_next), (texts, text_next)])
def test_few_beams_are_those_of_the_slow_search_in_any_batch(seq2seq, make, allowed, keep):
    model = generative(seq2seq["t5-v1.1"], make(random_rows(1)), tokens="own")
    for beams in (1, 3):
        search: dict[str, Any] = {"beams": beams, "length": 3, "keep": keep}
        together = beam_search(model, model.tokenize(QUERIES), valid(model), **search)
        for n, query in enumerate(QUERIES):
            expected = slow_search(model, query, allowed(model), **search)
            assert_same_beams(as_lists(together.of_query(n)), expected)
            alone = beam_search(model, model.tokenize([query]), valid(model), **search)
            assert_same_beams(as_lists(alone), expected)


def test_equal_scores_are_in_the_order_of_tokens(seq2seq):
    rows = [[7, 3], [4, 9], [8, 2], [4, 3], [3, 300]]
    model = generative(seq2seq["t5"], named(rows), tokens="own")
    model.table = torch.nn.Parameter(torch.zeros(310, model.width).double())  # every token is as likely
    sources = model.tokenize(QUERIES)
    found = beam_search(model, sources, valid(model), beams=3, length=3)
    for n in range(len(QUERIES)):
        assert found.of_query(n).sequences() == [[3, 300, END], [4, 3, END], [4, 9, END]]
