"""experiments/hybrid.py and capacity.py: saved models, the law of projections, planted claims."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from papers.luan2021.capacity_claims import PAPER_LENGTHS, STAGES, TABLE_A1, CapacityStudy
from papers.luan2021.capacity_tasks import projected_ranks
from papers.luan2021.hybrid_claims import DE, ME, MEASURES, RR, SPARSE, HybridStudy, hybrid_name
from scipy import sparse
from studies.gains import DEV
from studies.model_runs import some_queries

from paradigms import load
from paradigms.baselines.bm25 import BM25
from paradigms.data import Run, load_collection
from paradigms.evaluate import per_query
from paradigms.evaluate.claims import CONTRADICTED, REPRODUCED, UNDECIDED, Verdict
from paradigms.retrieve import Indexed, Reranking
from tests.experiments.scripts import unmeasured, verdicts
from theory.collection import Problem


def test_the_numbers_are_those_of_the_saved_models(finished: Callable[[str], Path], words: Path) -> None:
    """Also of a mixture: dense + λ · BM25 of every document that one of the two has found."""
    own, collection = finished("hybrid") / "results" / "seed-0", load_collection(words)
    corpus, test = collection.corpus, some_queries(collection.split("test"), 0)
    measured = json.loads((own / "measured.json").read_text())

    def values(run: Run) -> dict[str, list[float]]:
        return {name: of.tolist() for name, of in per_query(run, test.judgements, MEASURES).values.items()}

    bm25 = BM25(corpus, ngrams=2)
    lexical = bm25.search(test.queries, 10)
    assert measured["retrieve"]["BM25-bi"] == values(lexical)
    for name, system in (("dpr", DE), ("me_bert", ME)):
        mixture = hybrid_name(system, "BM25-bi")
        λ, chosen = measured["weights"][mixture]["λ"], measured["weights"][mixture]["round"]
        index = Indexed.build(load(own / f"{name}-{chosen}" / "checkpoint"), corpus)
        hits = index.search(test.queries, 10)
        assert measured["retrieve"][system] == values(hits)
        run: Run = {}
        for query in test.queries:
            candidates = {query: dict.fromkeys([*hits[query], *lexical[query]], 0.0)}
            dense = index.rerank(test.queries, candidates)[query]
            sparse = bm25.rerank(test.queries, candidates)[query]
            run[query] = {document: dense[document] + λ * sparse[document] for document in dense}
        assert measured["retrieve"][mixture] == values(run)
    reranker = load(own / "cross_attention-first" / "checkpoint")
    heads = {query: dict(list(documents.items())[:5]) for query, documents in lexical.items()}
    anew = Reranking(reranker, corpus).rerank(test.queries, heads)
    assert measured["rerank"]["BM25-bi"]["5"] == values(anew)[RR]


MEANS = {"BM25-uni": 0.3, "BM25-bi": 0.4, DE: 0.5, ME: 0.6}  # RR@10 over queries
MEANS |= {hybrid_name(dense, s): mean for dense, mean in ((DE, 0.55), (ME, 0.58)) for s in SPARSE}


def planted_seed(seed: int, systems: dict = MEANS, moved: float = 0.1) -> dict[str, Any]:
    """A seed's file in which each system has its value plus small noise, for each of 400 queries."""
    random = np.random.default_rng(seed)

    def around(mean: float) -> list[float]:
        return (mean + random.normal(0, 0.005, 400)).tolist()

    return {
        "seed": seed,
        "queries": [f"q{n}" for n in range(400)],
        "training": {
            name: {"kept step": 2, DEV: {"untrained": [0.1] * 9, "trained": [0.1 + by] * 9}}
            for name, by in ((DE, moved), (ME, 0.1))
        },
        "dev": {"BM25-uni": 0.3, "BM25-bi": 0.4},
        "retrieve": {s: {m: around(v) for m in MEASURES} for s, v in systems.items()},
        "rerank": {s: {"2": around(v + 0.05), "20": around(v + 0.1)} for s, v in systems.items()},
    }


def hybrid_words(*seeds: dict[str, Any]) -> dict[str, str]:
    hits = verdicts(HybridStudy(seeds).study(), "luan2021", "hybrids")
    return {verdict.claim.quantity.removeprefix("RR@10: "): verdict.word for verdict in hits}


def test_claims_follow_the_numbers() -> None:
    seeds = [planted_seed(0), planted_seed(1)]
    de, me = hybrid_name(DE, "BM25-bi"), hybrid_name(ME, "BM25-bi")  # what the dev queries prefer
    expected = {
        f"{DE} − BM25-bi": REPRODUCED,
        f"{ME} − {DE}": REPRODUCED,
        f"{de} − {DE}": REPRODUCED,
        f"{me} − {ME}": CONTRADICTED,
        f"{ME} − {de}": REPRODUCED,
        f"{ME}, 2 reranked − BM25-bi, 2 reranked": REPRODUCED,
    }
    assert hybrid_words(*seeds).items() >= expected.items()
    assert unmeasured(HybridStudy(seeds).study(), "luan2021", "hybrids") == []
    # Every system gains alike from reranking: no lead shrinks.
    lead = f"{ME}, 2 reranked − BM25-bi, 2 reranked − {ME}, 20 reranked + BM25-bi, 20 reranked"
    assert hybrid_words(*seeds)[lead] != REPRODUCED
    for seed in seeds:
        seed["rerank"]["BM25-bi"]["20"] = (np.array(seed["rerank"]["BM25-bi"]["20"]) + 0.1).tolist()
    assert hybrid_words(*seeds)[lead] == REPRODUCED


def test_what_has_not_learned_proves_nothing() -> None:
    for seed in ({"moved": 0.0}, {"systems": MEANS | {DE: 0.15}}):
        hits = hybrid_words(planted_seed(0, **seed), planted_seed(1, **seed))
        assert {word for quantity, word in hits.items() if DE in quantity} == {UNDECIDED}
        assert REPRODUCED in {word for quantity, word in hits.items() if DE not in quantity}


def test_projected_ranks_are_those_under_explicit_matrices() -> None:
    """Documents above the relevant ones included, and at every k."""
    rng, samples, relevant = np.random.default_rng(0), 20_000, np.array([2, 5])
    documents, query = rng.standard_normal((9, 12)), rng.standard_normal(12)
    assert (documents @ query).argmax() not in relevant
    rows = [sparse.csr_array(documents), sparse.csr_array(query[None])]
    problem = Problem(*rows, (documents @ query)[:, None], [np.arange(9)])
    hits = projected_ranks(problem, 0, relevant, [1, 3, 40], problem.draw(samples, rng), rng)
    for k, ranks in zip([1, 3, 40], hits, strict=True):
        A = rng.standard_normal((samples, k, 12))
        scores = np.einsum("sk,skn->sn", A @ query, A @ documents.T)
        explicit = 1 + (scores > scores[:, relevant].max(1, keepdims=True)).sum(1)
        for at in (1, 2, 4):
            share = np.array([(ranks <= at).mean(), (explicit <= at).mean()])
            error = np.sqrt((share * (1 - share)).sum() / samples)
            assert abs(share[0] - share[1]) < 4 * error + 1e-9


SIZES = {"DE-BERT-32": 32, "DE-BERT-512": 512, "DE-BERT": 768, "ME-BERT-64": 512, "ME-BERT": 6144}


def planted(poor: str = "") -> CapacityStudy:
    """Simulate measurements: Table A.1 plus small noise, but .2 for retrieval by `poor` at 400 tokens."""
    predictions: dict[int, dict[str, Any]] = {
        n: {"k*": [100, 90, 120], "values": {str(k): [0.2, 0.3] for k in SIZES.values()}}
        for n in PAPER_LENGTHS
    }
    rng, results = np.random.default_rng(0), []
    for system, cells in TABLE_A1.items():
        for stage, row in zip(STAGES, cells.split("|"), strict=True):
            for length, cell in zip(PAPER_LENGTHS, row.split(), strict=False):
                changed = (system, stage, length) == (poor, "retrieve", 400)
                mean = 0.2 if changed else float(cell) / 100
                for values in mean + 0.01 * rng.standard_normal((3, 300)):
                    stages = {system: {stage: values.tolist()}}
                    results.append({"system": system, "length": length, "stages": stages})
    return CapacityStudy([*PAPER_LENGTHS], results, predictions, SIZES)


def of_table(study: CapacityStudy) -> list[Verdict]:
    """Verdicts but for those about Figure 1, whose values the paper does not print."""
    hits = verdicts(study.study(), "luan2021", "containing")
    return [verdict for verdict in hits if "Figure 1" not in verdict.claim.place]


def test_every_claim_holds_of_the_papers_own_table_but_for_some() -> None:
    """Table A.1 contradicts two claims at 400 tokens, and has differences too small to matter."""
    study = planted()
    assert unmeasured(study.study(), "luan2021", "containing") == []
    hits = of_table(study)
    assert len(hits) >= 10
    assert all(float(v.claim.printed) == pytest.approx(v.interval.mean, abs=0.01) for v in hits)
    against = {(v.claim.quantity.split(": ")[-1], v.word) for v in hits if v.word != REPRODUCED}
    assert against >= {
        ("ME-BERT-64, 400 tokens − BM25-uni, 400 tokens", CONTRADICTED),
        ("BM25-bi, 400 tokens", CONTRADICTED),
    }
    assert len(against) < 8


def test_a_claim_about_a_system_that_has_not_learned_is_not_decided() -> None:
    """Retrieval decides, unless a random projection to the same size does no better."""
    system = "DE-BERT-512"
    study = planted(poor=system)
    assert not study.learned(system)
    about = [v for v in of_table(study) if system in v.claim.quantity]
    assert len(about) >= 2
    assert {v.word for v in about} == {UNDECIDED}
    assert about[0].reason == f"{system} has not learned enough"
    study.predictions[400]["values"]["512"] = [0.1]
    assert study.learned(system)
