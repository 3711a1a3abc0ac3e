"""experiments/hybrid.py: a run beside its saved models, verdicts on planted numbers."""

import json
from pathlib import Path
from typing import Any

import hybrid
import numpy as np
import pytest
from hybrid import Settings
from papers.luan2021.hybrid_claims import DE, ME, MEASURES, RR, SPARSE, HybridStudy, hybrid_name
from studies.gains import DEV
from studies.model_runs import some_queries

from paradigms import CrossAttention, Paradigm, load
from paradigms.baselines.bm25 import BM25
from paradigms.data import Collection, Run, load_collection
from paradigms.evaluate import per_query
from paradigms.evaluate.claims import CONTRADICTED, REPRODUCED, UNDECIDED
from paradigms.retrieve import Indexed, Reranking
from tests.experiments import scripts
from tests.experiments.scripts import SMALL, published

TEXT = {"query_length": 12, "document_length": 24}


def settings(folder: Path, backbone: Path, output: Path, **changes: object) -> Settings:
    flags = {"collection": folder, "backbone": backbone, "output": output, "seeds": "[3]", "negatives": 1}
    flags |= {"learning_rate": 1e-3, "rerank_steps": 2, "rerank_negatives": 2, "depth": 10}
    flags |= {"rerank_depths": "[2,5]", "trained_layers": 1}
    return scripts.settings("hybrid", **SMALL | flags | TEXT | changes)


@pytest.fixture(scope="module")
def collection(words: Path) -> Collection:
    return load_collection(words)


@pytest.fixture(scope="module")
def finished(words: Path, tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    given = settings(words, tiny_bert, tmp_path_factory.mktemp("results") / "hybrid")
    hybrid.main(given)
    return given


@pytest.fixture(scope="module")
def measured(finished: Settings) -> dict[str, Any]:
    return json.loads((Path(finished.output) / "seed-3" / "measured.json").read_text())


def test_tables_and_figures_are_there(finished: Settings) -> None:
    output = Path(finished.output)
    drawn = {"retrieve", "rerank"}
    assert published(output) == {"claims", "training", "mining", *drawn, *(f"{name}.svg" for name in drawn)}
    systems = [row["system"] for row in json.loads((output / "retrieve.json").read_text())]
    assert systems == [*SPARSE, DE, ME, *(hybrid_name(of, sparse) for of in (DE, ME) for sparse in SPARSE)]
    trained = {folder.name for folder in (output / "seed-3").iterdir() if folder.is_dir()}
    dense = {f"{name}-{round}" for name in ("dpr", "me_bert") for round in ("first", "again", "mined")}
    assert trained == dense | {"cross_attention-first"}


def test_the_numbers_are_those_of_the_saved_models(
    finished: Settings, measured: dict[str, Any], collection: Collection, tmp_path: Path
) -> None:
    corpus, test = collection.corpus, some_queries(collection.split("test"), 0)
    own = Path(finished.output) / "seed-3"
    chosen = {name: of["round"] for name, of in measured["weights"].items()}
    bm25 = BM25(corpus, ngrams=2)
    lexical = bm25.search(test.queries, 10)
    assert measured["retrieve"]["BM25-bi"] == values(lexical, test.judgements)
    for name, system in (("dpr", DE), ("me_bert", ME)):
        mixture = hybrid_name(system, "BM25-bi")
        model = load(own / f"{name}-{chosen[mixture]}" / "checkpoint")
        assert isinstance(model, Paradigm)
        assert model.encoder.settings.vectors == 3 or name == "dpr"
        index = Indexed.build(model, corpus)
        found = index.search(test.queries, 10)
        assert measured["retrieve"][system] == values(found, test.judgements)
        assert measured["rounds"][system][chosen[mixture]] == measured["retrieve"][system]
        assert measured["dev"][system][chosen[mixture]] == max(measured["dev"][system].values())
        # dense + λ · BM25 of every document that one of the two has found.
        λ = measured["weights"][mixture]["λ"]
        run: Run = {}
        for query in test.queries:
            candidates = {query: dict.fromkeys([*found[query], *lexical[query]], 0.0)}
            dense = index.rerank(test.queries, candidates)[query]
            sparse = bm25.rerank(test.queries, candidates)[query]
            run[query] = {document: dense[document] + λ * sparse[document] for document in dense}
        assert measured["retrieve"][mixture] == values(run, test.judgements)
    reranker = load(own / "cross_attention-first" / "checkpoint")
    assert isinstance(reranker, CrossAttention)
    for depth in (2, 5):
        heads = {query: dict(list(documents.items())[:depth]) for query, documents in lexical.items()}
        anew = Reranking(reranker, corpus).rerank(test.queries, heads)
        assert measured["rerank"]["BM25-bi"][str(depth)] == values(anew, test.judgements)[RR]


def values(run: Run, judgements: dict[str, dict[str, int]]) -> dict[str, list[float]]:
    return {name: of.tolist() for name, of in per_query(run, judgements, MEASURES).values.items()}


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
        "rerank": {s: {str(d): around(v + more) for d, more in added.items()} for s, v in systems.items()},
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
    (first, *_) = scripts.verdicts(HybridStudy(seeds).study(), "luan2021", "hybrids")
    assert first.claim.printed == "+0.135/+0.039"
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
    worse = words(planted(0, added={2: -0.05, 20: -0.1}))
    assert {word for quantity, word in worse.items() if "reranked" in quantity} == {UNDECIDED}
