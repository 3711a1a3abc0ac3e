"""experiments/hybrid.py: a run beside its saved models, verdicts on planted numbers."""

from typing import Any

import numpy as np
from papers.luan2021.hybrid_claims import DE, ME, MEASURES, SPARSE, HybridStudy, hybrid_name
from studies.model_runs import DEV

from paradigms.evaluate.claims import CONTRADICTED, REPRODUCED, UNDECIDED
from tests.experiments import scripts
from tests.experiments.scripts import around, dev_values

SYSTEMS = {  # mean RR@10 of every query
    "BM25-uni": 0.3,
    "BM25-bi": 0.4,
    DE: 0.5,
    ME: 0.6,
    **{hybrid_name(DE, sparse): 0.55 for sparse in SPARSE},
    **{hybrid_name(ME, sparse): 0.58 for sparse in SPARSE},
}
RERANKED = {2: 0.05, 20: 0.1}  # what cross-attention adds


def planted(seed: int, systems: dict = SYSTEMS, added: dict = RERANKED, moved: float = 0.1) -> dict[str, Any]:
    """A seed's file in which each system has its value plus small noise, for each of 400 queries."""
    return {
        "seed": seed,
        "queries": [f"q{n}" for n in range(400)],
        "training": {
            name: {"kept step": 2, DEV: dev_values(gain)} for name, gain in ((DE, moved), (ME, 0.1))
        },
        "dev": {"BM25-uni": 0.3, "BM25-bi": 0.4},
        "retrieve": {s: {m: around(v, seed=seed) for m in MEASURES} for s, v in systems.items()},
        "rerank": {
            s: {str(d): around(v + more, seed=seed) for d, more in added.items()} for s, v in systems.items()
        },
    }


def words_of(*seeds: dict[str, Any]) -> dict[str, str]:
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
    assert words_of(*seeds).items() >= expected.items()
    assert scripts.unmeasured(HybridStudy(seeds).study(), "luan2021", "hybrids") == []
    # Every system gains alike from reranking: no lead shrinks.
    lead = f"{ME}, 2 reranked − BM25-bi, 2 reranked − {ME}, 20 reranked + BM25-bi, 20 reranked"
    assert words_of(*seeds)[lead] != REPRODUCED
    for seed in seeds:
        seed["rerank"]["BM25-bi"]["20"] = (np.array(seed["rerank"]["BM25-bi"]["20"]) + 0.1).tolist()
    assert words_of(*seeds)[lead] == REPRODUCED


def test_what_has_not_learned_proves_nothing() -> None:
    for seed in ({"moved": 0.0}, {"systems": SYSTEMS | {DE: 0.15}}):
        found = words_of(planted(0, **seed), planted(1, **seed))
        assert {word for quantity, word in found.items() if DE in quantity} == {UNDECIDED}
        assert REPRODUCED in {word for quantity, word in found.items() if DE not in quantity}
    worse = words_of(planted(0, added={2: -0.05, 20: -0.1}))
    assert {word for quantity, word in worse.items() if "reranked" in quantity} == {UNDECIDED}
