"""experiments/token_retrieval.py: its measures against slow twins, its claims."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from papers.lee2023 import token_measures
from papers.lee2023.token_claims import TokenStudy
from papers.lee2023.token_measures import APART, COST, GOLD, GOLD_AT, LEXICAL, LEXICAL_AT
from torch.nn.utils.rnn import pad_sequence

from paradigms import PARADIGMS, Paradigm
from paradigms.align import QueryToDocument
from paradigms.data import Corpus, Split
from paradigms.evaluate import PerQuery
from paradigms.evaluate.claims import REPRODUCED, UNDECIDED
from paradigms.find import Index, Store, kinds
from paradigms.impute import IMPUTATIONS, imputed_rel
from tests.experiments import scripts
from tests.near import SCORES, assert_same, assert_within_rounding
from tests.tiny import WORDS
from theory.token_retrieval import imputed_scores

WORD = WORDS.split()
TEXTS = [" ".join(WORD[(11 * n + 5 * w) % len(WORD)] for w in range(4 + n % 7)) for n in range(30)]
CORPUS = Corpus([f"d{n}" for n in range(30)], TEXTS)
QUERIES = {f"q{n}": " ".join(TEXTS[n].split()[1:4]) for n in range(5)} | {"blank": " "}
TEST = Split(QUERIES, {q: {f"d{n}": 1} for n, q in enumerate(QUERIES)} | {"q0": {"d0": 1, "d7": 2, "d9": 0}})
SEARCHED = [1, 6, 20, 1000]


@pytest.fixture(scope="module")
def made(tiny_bert, tmp_path_factory):
    torch.manual_seed(0)
    options: dict[str, Any] = {"special_tokens": False, "query_length": 16, "document_length": 16, "dim": 16}
    paradigm = PARADIGMS["xtr"](tiny_bert, search_tokens=6, **options)
    folder = tmp_path_factory.mktemp("index") / "i"
    return paradigm, Index(Store.build(kinds.exact(), paradigm, CORPUS.ids, CORPUS, folder, batch_size=7))


@pytest.fixture(scope="module")
def measured(made):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_measures, "DEEP", 2)
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


def test_gold_and_lexical_tokens_are_counted_at_every_rank(made, measured):
    paradigm, index = made
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
        for at, (kind, complete) in enumerate((("gold", GOLD), ("lexical", LEXICAL))):
            for condition, by_query in ranks[kind].items():
                rank = int(condition.removeprefix("r = "))
                expected = hits[:, rank - 1, at].mean() if len(own) else 0
                assert by_query[place] == pytest.approx(expected)
            expected = hits[:, :100, at].mean() if len(own) else 0
            assert values[complete][""][place] == pytest.approx(expected)
        others = [hit[2] for row in hits for hit in row[:100] if not hit[0]]
        best = [max(s for s, d, _ in row if d == of) for row in rows for of in relevant]
        expected = np.mean(best) - np.mean(others) if others else 0
        assert_within_rounding(values[APART][""][place], expected, torch.float32, 16, 1)


def test_gathered_runs_score_the_candidates_in_full(made):
    paradigm, index = made
    full = paradigm.with_alignment(QueryToDocument(), "query_tokens")
    for of in token_measures.token_search(paradigm, index, QUERIES, 1000, gather=True):
        rows = everything(paradigm, index, QUERIES[of.query])
        for k in (1, 6, 1000):
            run = token_measures.best_documents(index, *token_measures.gathered(of, k))
            candidates = sorted({d for row in rows for _, d, _ in row[:k]})
            assert set(run) == set(candidates)
            if candidates:
                query = paradigm.encode_queries([QUERIES[of.query]])
                scores = full.score(index.store.tokens_of(candidates), query)
                assert_within_rounding(run, dict(zip(candidates, scores[0].tolist(), strict=True)), **SCORES)
                assert list(run.values()) == sorted(run.values(), reverse=True)


@pytest.mark.parametrize("imputation", IMPUTATIONS)
def test_imputed_scores_are_those_of_the_whole_corpus(made, imputation):
    """Eq. 4 for documents with a token among the k' best of a query token."""
    paradigm, index = made
    lengths = np.diff(index.store.offsets)
    owners = np.repeat(np.arange(len(lengths)), lengths)
    queries = {name: text for name, text in QUERIES.items() if text.strip()}
    for retrieved in token_measures.token_search(paradigm, index, queries, len(owners)):
        scores = retrieved.scores.double()
        P = torch.empty_like(scores).scatter_(1, torch.from_numpy(retrieved.rows), scores)
        documents = P.T.split(lengths.tolist())
        S = pad_sequence(documents, batch_first=True)[None]
        valid = pad_sequence([d.isfinite() for d in documents], batch_first=True)[None]
        for k in (1, 6, 20):
            places, found = token_measures.imputed(replace(retrieved, scores=scores), index, k, imputation)
            expected = imputed_rel(S, valid, k, imputation)[0].numpy()
            if imputation == "kth":
                assert_same(expected, imputed_scores(P.numpy(), owners, k))
            assert places.tolist() == sorted({int(n) for n in retrieved.owners[:, :k].flatten()})
            assert_same(found, expected[places])


def test_costs_count_the_candidates_and_their_tokens(made, measured):
    paradigm, index = made
    costs = measured["values"][COST]
    for place, query in enumerate(list(QUERIES.values())[:2]):
        rows = everything(paradigm, index, query)
        candidates = {document for row in rows for _, document, _ in row[:6]}
        tokens = sum(int(index.store.tokens_of([document]).mask.sum()) for document in candidates)
        additions = len(candidates) * len(rows)
        expected = {"candidates": len(candidates), "impute FLOPs": len(rows) * 6 + additions}
        expected["gather FLOPs"] = len(rows) * tokens * (2 * 16 + 1) + additions
        expected["gathered bytes"] = 4 * 16 * tokens
        assert_same({name: float(costs[name][place]) for name in expected}, expected)


def level(value: float) -> list[float]:
    return (value + np.random.default_rng(0).normal(0, 1e-3, 400)).tolist()


def test_dev_queries_choose_among_the_xtrs_of_colberts_batch():
    """Claims compare the chosen model; one that has not learned, or is like ColBERT, decides nothing."""
    kinds = [(None, 16), (8, 16), (64, 16), (8, 4), (64, 4)]
    sides = [f"{way}, k' = {k}" for way in (*IMPUTATIONS, "imputing", "gathering") for k in (10, 100)]
    results = [
        {"k_train": k_train, "batch_size": size, "seed": 0}
        | {"queries": [f"q{n}" for n in range(400)]}
        | {"dev": level(0.4 if k_train == 8 else 0.3), "kept step": None}
        | {"values": {m: {s: level(0.5 if k_train else 0.2) for s in sides} for m in token_measures.MEASURES}}
        for k_train, size in kinds
    ]

    def words(bm25: float, gold: float = 0.5) -> dict[str, str]:
        for result in results:
            result["values"][GOLD] = {"": level(gold if result["k_train"] else 0.2)}
        lexical = PerQuery(results[0]["queries"], {"RR@10": np.full(400, bm25)})
        study = TokenStudy("arguana", results, [10, 100], 100, lexical)
        assert study.xtr == "XTR (k_train = 8)"
        found = scripts.verdicts(study.study, "lee2023", "token retrieval")
        assert len(found) == 21
        return {verdict.claim.statement.partition(" [")[0]: verdict.word for verdict in found}

    assert words(0.2)["XTR “greatly improves the recall”"] == REPRODUCED
    assert words(0.2, gold=0.2)["XTR “greatly improves the recall”"] == UNDECIDED
    assert words(0.2)["XTR “mostly favors” large batches in training"] == UNDECIDED  # they are equal
    assert set(words(1.1).values()) == {UNDECIDED}
