"""experiments/hybrid.py and capacity.py: saved models, the law of projections, claims."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from papers.luan2021.capacity_claims import PAPER_LENGTHS, STAGES, TABLE_A1, CapacityStudy
from papers.luan2021.capacity_tasks import projected_ranks
from papers.luan2021.hybrid_claims import DE, ME, MEASURES, RR, HybridStudy, hybrid_name
from scipy import sparse
from studies.model_runs import some_queries

from paradigms import load
from paradigms.baselines.bm25 import BM25
from paradigms.data import Run, load_collection
from paradigms.evaluate import per_query
from paradigms.retrieve import Indexed, Reranking
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


def test_a_claim_about_a_system_that_has_not_learned_is_not_decided() -> None:
    """Retrieval decides, unless a random projection to the same size does no better."""
    poor = "DE-BERT-512"
    sizes = {poor: 512, "DE-BERT": 768, "ME-BERT": 6144}
    predictions = {n: {"values": {str(k): [0.2, 0.3] for k in sizes.values()}} for n in PAPER_LENGTHS}
    results = []
    for system, cells in TABLE_A1.items():
        for stage, row in zip(STAGES, cells.split("|"), strict=True):
            for length, cell in zip(PAPER_LENGTHS, row.split(), strict=False):
                changed = (system, stage, length) == (poor, "retrieve", 400)
                stages = {system: {stage: [0.2 if changed else float(cell) / 100] * 3}}
                results.append({"system": system, "length": length, "stages": stages})
    study = CapacityStudy([*PAPER_LENGTHS], results, predictions, sizes)
    assert study.undecided([f"{poor}, 50 tokens", "ME-BERT, 50 tokens"]) == {"unlearned": poor}
    predictions[400]["values"]["512"] = [0.1]
    assert study.undecided([f"{poor}, 50 tokens"]) == {"unlearned": ""}
