"""experiments/hybrid.py and capacity.py: saved models, the law of projections, claims."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from papers.luan2021.capacity_claims import PAPER_LENGTHS, STAGES, TABLE_A1, CapacityStudy
from papers.luan2021.capacity_tasks import projected_ranks
from papers.luan2021.hybrid_claims import DE, ME, MEASURES, RR, HybridStudy, hybrid_name
from scipy import sparse
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
        found = index.search(test.queries, 10)
        assert measured["retrieve"][system] == measured["rounds"][system][chosen] == values(found)
        run: Run = {}
        for query in test.queries:
            candidates = {query: dict.fromkeys([*found[query], *lexical[query]], 0.0)}
            dense = index.rerank(test.queries, candidates)[query]
            sparse = bm25.rerank(test.queries, candidates)[query]
            run[query] = {document: dense[document] + λ * sparse[document] for document in dense}
        assert measured["retrieve"][mixture] == values(run)
    reranker = load(own / "cross_attention-first" / "checkpoint")
    heads = {query: dict(list(documents.items())[:5]) for query, documents in lexical.items()}
    anew = Reranking(reranker, corpus).rerank(test.queries, heads)
    assert measured["rerank"]["BM25-bi"]["5"] == values(anew)[RR]


def test_claims_of_hybrids_are_about_models_that_learned(finished: Callable[[str], Path]) -> None:
    """Hybrids use the BM25 that is better on dev queries."""
    seed = json.loads((finished("hybrid") / "results" / "seed-0" / "measured.json").read_text())
    seed["dev"] |= {"BM25-uni": [0.3], "BM25-bi": [0.4]}
    seed["retrieve"]["BM25-bi"][RR] = [0.5] * len(seed["queries"])
    seed["retrieve"][ME][RR] = [0.6] * len(seed["queries"])
    seed["retrieve"][DE][RR] = [0.2] * len(seed["queries"])
    seed["rerank"]["BM25-bi"]["5"] = [0.7] * len(seed["queries"])
    study = HybridStudy([seed])
    assert study.ours["ME-HYBRID"] == hybrid_name(ME, "BM25-bi")
    assert study.undecided([ME, "BM25-bi", f"{ME}, 5 reranked"]) == {"unlearned": ""}
    assert study.undecided([hybrid_name(DE, "BM25-bi"), ME]) == {"unlearned": DE}
    seed["rerank"]["BM25-bi"]["5"] = [0.4] * len(seed["queries"])
    assert study.undecided([f"{ME}, 5 reranked"]) == {"unlearned": "cross-attention"}


def test_projected_ranks_are_those_under_explicit_matrices() -> None:
    """Documents above the relevant ones included, and at every k."""
    rng, samples, relevant = np.random.default_rng(0), 20_000, np.array([2, 5])
    documents, query = rng.standard_normal((9, 12)), rng.standard_normal(12)
    assert (documents @ query).argmax() not in relevant
    rows = [sparse.csr_array(documents), sparse.csr_array(query[None])]
    problem = Problem(*rows, (documents @ query)[:, None], [np.arange(9)])
    found = projected_ranks(problem, 0, relevant, [1, 3, 40], problem.draw(samples, rng), rng)
    for k, ranks in zip([1, 3, 40], found, strict=True):
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
    found = verdicts(study.study(), "luan2021", "containing")
    return [verdict for verdict in found if "Figure 1" not in verdict.claim.place]


def test_every_claim_holds_of_the_papers_own_table_but_for_some() -> None:
    """Table A.1 contradicts two claims at 400 tokens, and has differences too small to matter."""
    study = planted()
    assert unmeasured(study.study(), "luan2021", "containing") == []
    found = of_table(study)
    assert len(found) >= 10
    assert all(float(v.claim.printed) == pytest.approx(v.interval.mean, abs=0.01) for v in found)
    against = {(v.claim.quantity.split(": ")[-1], v.word) for v in found if v.word != REPRODUCED}
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
