"""experiments/token_retrieval.py: its measures against slow twins, its claims."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from papers.lee2023 import token_measures
from papers.lee2023.token_claims import TokenStudy
from papers.lee2023.token_measures import APART, GOLD, GOLD_AT, LEXICAL, LEXICAL_AT

from paradigms import PARADIGMS, Paradigm
from paradigms.data import Corpus, Split
from paradigms.evaluate import PerQuery
from paradigms.find import Index, Store, kinds
from tests.near import assert_within_rounding
from tests.tiny import WORDS

WORD = WORDS.split()
TEXTS = [" ".join(WORD[(11 * n + 5 * w) % len(WORD)] for w in range(4 + n % 7)) for n in range(30)]
CORPUS = Corpus([f"d{n}" for n in range(30)], TEXTS)
QUERIES = {f"q{n}": " ".join(TEXTS[n].split()[1:4]) for n in range(5)} | {"blank": " "}
TEST = Split(QUERIES, {q: {f"d{n}": 1} for n, q in enumerate(QUERIES)} | {"q0": {"d0": 1, "d7": 2, "d9": 0}})
SEARCHED = [1, 6, 20, 1000]


def everything(paradigm: Paradigm, index: Index, query: str) -> list[list[tuple[float, str, int]]]:
    """Each query token's list of all corpus tokens, best first: similarity, document, vocabulary id."""
    q = paradigm.encode_queries([query])
    found = []
    for vector in q.vectors[0, 0][q.mask[0, 0]]:
        row = []
        for n, id in enumerate(CORPUS.ids):
            document = index.store.tokens_of([id])
            tokens = document.vectors[0, 0][document.mask[0, 0]]
            ids = paradigm.encoder.tokenize([TEXTS[n]], "document")
            own = ids.input_ids[0][ids.counts[0]].tolist()
            row += [(float(s), id, word) for s, word in zip(tokens @ vector, own, strict=True)]
        found.append(sorted(row, key=lambda hit: -hit[0]))
    return found


def test_gold_and_lexical_tokens_are_counted_at_every_rank(
    tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    options: dict[str, Any] = {"special_tokens": False, "query_length": 16, "document_length": 16, "dim": 16}
    paradigm = PARADIGMS["xtr"](tiny_bert, search_tokens=6, **options)
    index = Index(Store.build(kinds.exact(), paradigm, CORPUS.ids, CORPUS, tmp_path / "i", batch_size=7))
    monkeypatch.setattr(token_measures, "DEEP", 2)
    ids = token_measures.stored_ids(paradigm, index, CORPUS)
    measured = token_measures.measure(paradigm, index, ids, TEST, SEARCHED, table_tokens=6)
    assert measured["queries"] == list(QUERIES)
    values = measured["values"]
    ranks = {kind: values[f"{name} at rank r"] for kind, name in (("gold", GOLD_AT), ("lexical", LEXICAL_AT))}
    assert list(ranks["gold"])[-1] == "r = 200"  # the corpus has fewer than 500
    for place, (name, query) in enumerate(QUERIES.items()):
        relevant = {d for d, grade in TEST.judgements[name].items() if grade > 0}
        batch = paradigm.encoder.tokenize([query], "query")
        own, rows = batch.input_ids[0][batch.counts[0]].tolist(), everything(paradigm, index, query)
        hits = np.zeros((len(own), int(index.store.offsets[-1]), 3))
        for n, (row, mine) in enumerate(zip(rows, own, strict=True)):
            hits[n] = [(d in relevant, word == mine, s) for s, d, word in row]
        for at, (kind, whole) in enumerate((("gold", GOLD), ("lexical", LEXICAL))):
            for condition, by_query in ranks[kind].items():
                rank = int(condition.removeprefix("r = "))
                expected = hits[:, rank - 1, at].mean() if len(own) else 0
                assert by_query[place] == pytest.approx(expected)
            expected = hits[:, :100, at].mean() if len(own) else 0
            assert values[whole][""][place] == pytest.approx(expected)
        others = [hit[2] for row in hits for hit in row[:100] if not hit[0]]
        best = [max(s for s, d, _ in row if d == of) for row in rows for of in relevant]
        expected = np.mean(best) - np.mean(others) if others else 0
        assert_within_rounding(values[APART][""][place], expected, torch.float32, 16, 1)


def test_dev_queries_choose_among_the_xtrs_of_colberts_batch(finished: Callable[[str], Path]) -> None:
    """And claims compare the chosen one; what has not learned decides nothing."""
    files = (finished("token_retrieval") / "results").glob("*/*/values.json")
    results = [json.loads(file.read_text()) | {"kept step": 2} for file in files]
    for result in results:
        result["dev"] = [0.4 if result["k_train"] == 0.3 else 0.3]

    def study(bm25: float) -> TokenStudy:
        queries = results[0]["queries"]
        lexical = PerQuery(queries, {"RR@10": np.full(len(queries), bm25)})
        return TokenStudy("x", results, [2, 200], 100, lexical)

    assert study(0.0).xtr == "XTR (k_train = 0.3)"
    sides = ["XTR (k_train = 0.3), imputing, k' = 2", "ColBERT, gathering, k' = 2"]
    assert study(0.0).undecided(sides) == {"unlearned": ""}
    assert study(1.1).undecided(sides) == {"unlearned": "ColBERT"}
