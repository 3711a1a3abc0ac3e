"""experiments/hybrid.py: a run beside its saved models, verdicts on planted numbers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from papers.luan2021.hybrid_claims import DE, ME, MEASURES, RR, SPARSE, HybridStudy, hybrid_name
from studies.gains import DEV
from studies.model_runs import some_queries

from paradigms import load
from paradigms.baselines.bm25 import BM25
from paradigms.data import Run, load_collection
from paradigms.evaluate import per_query
from paradigms.evaluate.claims import CONTRADICTED, REPRODUCED, UNDECIDED
from paradigms.retrieve import Indexed, Reranking
from tests.experiments import scripts


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


SYSTEMS = {  # mean RR@10 of every query
    "BM25-uni": 0.3,
    "BM25-bi": 0.4,
    DE: 0.5,
    ME: 0.6,
    **{hybrid_name(DE, sparse): 0.55 for sparse in SPARSE},
    **{hybrid_name(ME, sparse): 0.58 for sparse in SPARSE},
}


def planted(seed: int, systems: dict = SYSTEMS, moved: float = 0.1) -> dict[str, Any]:
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


def words(*seeds: dict[str, Any]) -> dict[str, str]:
    found = scripts.verdicts(HybridStudy(seeds).study(), "luan2021", "hybrids")
    return {verdict.claim.quantity.removeprefix("RR@10: "): verdict.word for verdict in found}


def test_claims_follow_the_numbers() -> None:
    seeds = [planted(0), planted(1)]
    de, me = hybrid_name(DE, "BM25-bi"), hybrid_name(ME, "BM25-bi")  # what the dev queries prefer
    expected = {
        f"{DE} − BM25-bi": REPRODUCED,
        f"{ME} − {DE}": REPRODUCED,
        f"{de} − {DE}": REPRODUCED,
        f"{me} − {ME}": CONTRADICTED,
        f"{ME} − {de}": REPRODUCED,
        f"{ME}, 2 reranked − BM25-bi, 2 reranked": REPRODUCED,
    }
    assert words(*seeds).items() >= expected.items()
    assert scripts.unmeasured(HybridStudy(seeds).study(), "luan2021", "hybrids") == []
    # Every system gains alike from reranking: no lead shrinks.
    lead = f"{ME}, 2 reranked − BM25-bi, 2 reranked − {ME}, 20 reranked + BM25-bi, 20 reranked"
    assert words(*seeds)[lead] != REPRODUCED
    for seed in seeds:
        seed["rerank"]["BM25-bi"]["20"] = (np.array(seed["rerank"]["BM25-bi"]["20"]) + 0.1).tolist()
    assert words(*seeds)[lead] == REPRODUCED


def test_what_has_not_learned_proves_nothing() -> None:
    for seed in ({"moved": 0.0}, {"systems": SYSTEMS | {DE: 0.15}}):
        found = words(planted(0, **seed), planted(1, **seed))
        assert {word for quantity, word in found.items() if DE in quantity} == {UNDECIDED}
        assert REPRODUCED in {word for quantity, word in found.items() if DE not in quantity}
