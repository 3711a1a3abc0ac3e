"""experiments/term_matching.py: rates against loops, verdicts about planted numbers."""

from math import exp, log
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import term_matching
import torch
from papers.wu2024 import attention
from term_matching import KINDS, NAMES, SERIES, Sums, study_of

from paradigms.align import QueryToDocument, one
from paradigms.core import Tokens, interact
from paradigms.data import Corpus
from paradigms.encoder.backbone import load_tokenizer
from paradigms.evaluate.claims import CONTRADICTED, REPRODUCED, UNDECIDED
from paradigms.generative.identifiers import Targets
from tests.experiments.scripts import unmeasured, verdicts
from tests.near import assert_same, assert_within_rounding
from tests.tiny_generative import generative, texts

SPAN = 4
HARD, SOFT = ("q→d", "MVDR hard"), ("q→d", "MVDR soft")


def mvdr(documents: Tokens, queries: Tokens) -> Any:
    """The part of a ColBERT that `multivector_rates` uses, with these tokens."""

    def paradigm(align: Any) -> Any:
        return SimpleNamespace(
            encode_queries=lambda _: queries,
            encode_documents=lambda _: documents,
            interact=lambda d, q: interact(d, q, align, one),
            with_alignment=lambda align: paradigm(align),
        )

    return paradigm(QueryToDocument())


def test_rates_of_a_case_by_hand() -> None:
    # Documents (7, 8, 9) and (8, padding); the query is (8, 7, 5), its last token padding.
    documents = Tokens(
        torch.tensor([[[[1.0, 0], [0.9, 0.8], [0, 1]], [[1, 0], [9, 9], [9, 9]]]]),
        torch.tensor([[[True, True, True], [True, False, False]]]),
        torch.tensor([[[7, 8, 9], [8, 7, 7]]]),
    )
    queries = Tokens(
        torch.tensor([[[[1.0, 1], [1, 0], [5, 5]]]]),
        torch.tensor([[[True, True, False]]]),
        torch.tensor([[[8, 7, 5]]]),
    )
    hits = {
        (d, s): part for d, s, part in attention.multivector_rates(mvdr(documents, queries), "", ["", ""])
    }
    # S of the first document, query token 8: 1, 1.7, 1, so it takes the equal token; 7: 1, .9, 0, likewise.
    ids, rates, possible = hits[HARD]
    assert ids.tolist() == [[8, 7, -1]] * 2
    assert rates.tolist() == [[1, 1, 0], [1, 0, 0]]
    assert possible.tolist() == [[True, True, False], [True, False, False]]
    best = exp(1) / (exp(1) + 2)
    assert_within_rounding(hits[SOFT][1], [[best, best, 0], [1, 0, 0]], torch.float32, 3)
    assert_within_rounding(hits["q→d", "uniform"][1], [[1 / 3, 1 / 3, 0], [1, 0, 0]], torch.float32, 3)
    # d→q: 7 ties and takes the first query token, 8; 8 takes 8 (1.7 > .9); 9 is not in the query.
    ids, rates, possible = hits["d→q", "MVDR (q←d)"]
    best, other = exp(1) / (exp(1) + 1), 1 / (exp(1) + 1)
    assert ids.tolist() == [[7, 8, 9], [8, -1, -1]]
    assert_within_rounding(rates, [[other, best, 0], [best, 0, 0]], torch.float32, 3)
    assert possible.tolist() == [[True, True, False], [True, False, False]]
    assert_within_rounding(hits["d→q", "uniform"][1], [[0.5, 0.5, 0], [0.5, 0, 0]], torch.float32, 3)


def test_a_decoders_rates_against_loops(seq2seq: dict[str, Path]) -> None:
    tokenizer = load_tokenizer(seq2seq["t5"])
    query = "the lazy fox and the snow"
    ids = tokenizer(query)["input_ids"]
    rows = [[ids[0], 40, ids[1], 41, ids[2], ids[0]], [], [ids[4], 52]]  # a window of 4 and a rest
    model = generative(seq2seq["t5"], texts(rows), span=SPAN)
    source, named = model.tokenize([query]), np.zeros(len(tokenizer), dtype=bool)
    named[ids[1:3]] = True
    seen: dict[str, list[tuple[int, float, bool]]] = {name: [] for name in (*NAMES, *NAMES.values())}
    for _, series, (own, rates, possible) in attention.generative_rates(model, query, [0, 1, 2], named):
        kept = own >= 0
        seen[series] += zip(own[kept].tolist(), rates[kept].tolist(), possible[kept].tolist(), strict=True)
    expected: list[tuple[int, float, bool]] = []
    on_names: list[float] = []
    for document, row in enumerate(rows):
        names, at = model.names(document), 0
        for number, name in enumerate(names):
            alpha = attention.attended(model, source, Targets.pad([[name]]))[1][:, 0]
            first = 0 if number + 1 < len(names) else len(name) - (len(row) - at)
            for place in range(first, len(name)):
                weights = alpha[:, place].mean((0, 1)).tolist()
                equal = [w for w, id in zip(weights, ids, strict=True) if id == name[place]]
                expected.append((name[place], sum(equal), bool(equal)))
                rare = [named[id] for id in ids]
                on_names.append(sum(w for w, own in zip(weights, rare, strict=True) if own) - np.mean(rare))
            at += len(name)
    assert [x[0] for x in expected] == [*rows[0], *rows[2]]  # every token once
    for series in NAMES:
        assert [(x[0], x[2]) for x in seen[series]] == [(x[0], x[2]) for x in expected]
    sums = {"dtype": torch.float32, "terms": len(ids) + 4, "scale": 1}  # means over 4 heads
    assert_within_rounding([x[1] for x in seen["GR, all layers"]], [x[1] for x in expected], **sums)
    assert_within_rounding([x[1] for x in seen["GR on names, all layers"]], on_names, **sums)
    assert all(x[2] for x in seen["GR on names, all layers"])
    assert seen["GR, all layers"] != seen["GR, last layer"]


def test_documents_are_counted_and_words_are_words(seq2seq: dict[str, Path]) -> None:
    tokenizer = load_tokenizer(seq2seq["t5"])
    corpus = Corpus(["a", "b", "c"], ["fox fox snow", "fox", "the wind , of"])
    statistics = attention.token_statistics(corpus, tokenizer)
    number = tokenizer.convert_tokens_to_ids
    idf = [log(1 + 1.5 / 2.5), log(1 + 2.5 / 1.5), log(1 + 3.5 / 0.5)]
    assert statistics.idf(torch.tensor(number(["▁fox", "▁snow", "▁wolf"]))).tolist() == pytest.approx(idf)
    counted = attention.counted_tokens(tokenizer)
    assert counted[number(["▁fox", "▁snow", "k", "7"])].all()
    assert not counted[number(["▁the", "▁of", "a", ",", "▁(", "▁", "<pad>", "</s>", "<unk>"])].any()


def planted(rates: list[float], tokens: list[int], seeds: int = 3, queries: int = 300) -> Sums:
    """Rates by bin that vary a little over seeds and queries."""
    random = np.random.default_rng(0)
    counts = np.tile(tokens, (seeds, queries, 1))
    noise = random.uniform(0.9, 1.1, counts.shape)
    return Sums(counts * np.array(rates) * noise, counts)


def test_a_rate_is_over_tokens() -> None:
    random = np.random.default_rng(1)
    counts = random.integers(0, 9, (2, 200, 5))
    of = Sums(counts * random.random(counts.shape), counts)
    for bins in (range(5), [0], [1, 3]):
        top, below = (x[..., list(bins)].sum(-1) for x in (of.sums, of.counts))
        assert_same(of.rate(bins).mean(1), top.sum(1) / below.sum(1))
    assert of.tokens.tolist() == counts.sum(1).min(0).tolist()


def results(
    falling: list[float], rising: list[float], tokens: list[int], case: float = 0.6
) -> dict[Any, Sums]:
    """case: the hard rate of q←d; names gain 0.3 less."""
    fixed = {"uniform": 0.01, term_matching.HARD: case} | dict.fromkeys(NAMES.values(), case - 0.3)
    rates = {"q→d": falling, "d→q": rising}
    return {
        (d, s, kind): planted([fixed[s]] * 5 if s in fixed else rates[d], tokens)
        for d, s in SERIES
        for kind in KINDS
    }


def words(of: dict[Any, Sums], *poor: str) -> list[str]:
    return [verdict.word for verdict in verdicts(study_of(of, 50, poor), "wu2024", "terms")]


def test_verdicts_follow_the_numbers() -> None:
    yes, no, open_ = REPRODUCED, CONTRADICTED, UNDECIDED
    down, up, many = [0.2, 0.15, 0.1, 0.07, 0.05], [0.05, 0.1, 0.2, 0.3, 0.4], [5] * 5
    assert unmeasured(study_of(results(down, up, many), 50), "wu2024", "terms") == []
    assert words(results(down, up, many)) == [yes] * 18
    assert words(results(up, down, many, case=0.0)) == [yes] * 4 + [no] * 14
    both = [yes] * 2 + [open_] * 2  # MVDR's and GR's preference for exact matches
    assert words(results(down, up, many), "seal") == both + [yes] * 6 + [open_] * 8
    assert len(words(results(down, up, [0, 0, 5, 0, 0]))) == 8, "one bin shows no trend"
