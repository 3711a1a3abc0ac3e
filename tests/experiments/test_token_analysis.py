"""experiments/token_retrieval.py: its measures against slow twins, its claims, a run on tiny encoders."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from papers.lee2023 import token_measures
from papers.lee2023.token_claims import TokenStudy
from papers.lee2023.token_measures import APART, GOLD, GOLD_AT, GOLD_RECALL, LEXICAL, LEXICAL_AT

from paradigms import PARADIGMS, Paradigm
from paradigms.data import Corpus, Split
from paradigms.evaluate import PerQuery
from paradigms.evaluate.claims import REPRODUCED, UNDECIDED
from paradigms.find import Index, Store, kinds
from paradigms.impute import IMPUTATIONS
from paradigms.retrieve import Indexed
from tests.experiments import scripts
from tests.experiments.scripts import around
from tests.near import assert_within_rounding, same_run
from tests.tiny import WORDS

WORD = WORDS.split()
TEXTS = [" ".join(WORD[(11 * n + 5 * w) % len(WORD)] for w in range(4 + n % 7)) for n in range(30)]
CORPUS = Corpus([f"d{n}" for n in range(30)], TEXTS)
QUERIES = {f"q{n}": " ".join(TEXTS[n].split()[1:4]) for n in range(5)} | {"blank": " "}
TEST = Split(QUERIES, {q: {f"d{n}": 1} for n, q in enumerate(QUERIES)} | {"q0": {"d0": 1, "d7": 2, "d9": 0}})
SEARCHED = [1, 6, 20, 1000]


@pytest.fixture(scope="module")
def made(tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Paradigm, Index]:
    torch.manual_seed(0)
    options: dict[str, Any] = {"special_tokens": False, "query_length": 16, "document_length": 16, "dim": 16}
    paradigm = PARADIGMS["xtr"](tiny_bert, search_tokens=6, **options)
    folder = tmp_path_factory.mktemp("index") / "i"
    return paradigm, Index(Store.build(kinds.exact(), paradigm, CORPUS.ids, CORPUS, folder, batch_size=7))


@pytest.fixture(scope="module")
def measured(made: tuple[Paradigm, Index]) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_measures, "DEEP", 2)
        patch.setattr(token_measures, "EXAMPLE", (QUERIES["q1"], QUERIES["q1"].split()[1]))
        ids = token_measures.stored_ids(*made, CORPUS)
        return token_measures.measure(*made, ids, TEST, SEARCHED, table_tokens=6)


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
    made: tuple[Paradigm, Index], measured: dict[str, Any]
) -> None:
    paradigm, index = made
    assert measured["queries"] == list(QUERIES)
    values = measured["values"]
    assert list(values[f"{GOLD_AT} at rank r"])[-1] == "r = 200"  # the corpus has fewer than 500
    for place, (name, query) in enumerate(list(QUERIES.items())[:-1]):
        relevant = {d for d, grade in TEST.judgements[name].items() if grade > 0}
        batch = paradigm.encoder.tokenize([query], "query")
        own, rows = batch.input_ids[0][batch.counts[0]].tolist(), everything(paradigm, index, query)
        gold = np.array([[document in relevant for _, document, _ in row] for row in rows])
        lexical = np.array([[word == mine for *_, word in row] for row, mine in zip(rows, own, strict=True)])
        for at, whole, hits in ((GOLD_AT, GOLD, gold), (LEXICAL_AT, LEXICAL, lexical)):
            ranks = {f"r = {r}": hits[:, r - 1].mean() for r in (1, 10, 100)}
            assert {r: values[f"{at} at rank r"][r][place] for r in ranks} == pytest.approx(ranks)
            assert values[whole][""][place] == pytest.approx(hits[:, :100].mean())
        if name == "q1":
            (word,) = paradigm.encoder.tokenizer(query.split()[1], add_special_tokens=False)["input_ids"]
            assert measured["example"] == pytest.approx(lexical[own.index(word), :100].mean())
        others = [s for row in rows for s, document, _ in row[:100] if document not in relevant]
        best = [max(s for s, document, _ in row if document == of) for row in rows for of in relevant]
        expected = np.mean(best) - np.mean(others)
        assert_within_rounding(values[APART][""][place], expected, torch.float32, 16, 1)
        assert 0 < values[GOLD_RECALL][""][place] <= 1
    assert values[GOLD][""][-1] == values[GOLD_RECALL][""][-1] == 0, "a query without tokens"


@pytest.mark.parametrize("imputation", IMPUTATIONS)
def test_imputed_runs_are_those_of_an_index(made: tuple[Paradigm, Index], imputation: str) -> None:
    paradigm, index = made
    for k in (1, 6, 20):
        recipe = replace(paradigm.recipe, search_tokens=k, imputation=imputation)
        expected = Indexed(index, Paradigm(recipe, paradigm.encoder)).search(QUERIES, 100)
        for of in token_measures.token_search(paradigm, index, QUERIES, 20):
            scores = token_measures.imputed(of, index, k, imputation)
            run = token_measures.best_documents(index, *scores)
            same_run({of.query: run}, {of.query: expected[of.query]})


def test_dev_queries_choose_among_the_xtrs_of_colberts_batch() -> None:
    """And claims compare the chosen one; what has not learned decides nothing."""
    kinds = [(None, 16), (8, 16), (64, 16), (8, 4), (64, 4)]
    sides = [f"{way}, k' = {k}" for way in (*IMPUTATIONS, "imputing", "gathering") for k in (10, 100)]
    results = [
        {"k_train": k_train, "batch_size": size, "seed": 0, "queries": [f"q{n}" for n in range(400)]}
        | {"dev": around(0.4 if k_train == 8 else 0.3), "kept step": None}
        | {
            "values": {
                m: {s: around(0.5 if k_train else 0.2) for s in sides} for m in token_measures.MEASURES
            }
        }
        for k_train, size in kinds
    ]

    def words(bm25: float) -> dict[str, str]:
        lexical = PerQuery(results[0]["queries"], {"RR@10": np.full(400, bm25)})
        study = TokenStudy("scifact", results, [10, 100], 100, lexical)
        assert study.xtr == "XTR (k_train = 8)"
        found = scripts.verdicts(study.study, "lee2023", "token retrieval")
        assert len(found) == 15
        return {verdict.claim.statement: verdict.word for verdict in found}

    assert words(0.2)["XTR “greatly improves the recall”"] == REPRODUCED
    assert words(0.2)["XTR “mostly favors” large batches in training"] == UNDECIDED  # they are equal
    assert set(words(1.1).values()) == {UNDECIDED}
    results[0]["queries"] = ["other"]
    with pytest.raises(SystemExit, match="on different queries"):
        words(0.2)
