"""A paradigm in MTEB, evaluated by mteb's own classes on local tasks."""

from pathlib import Path

import pytest

pytest.importorskip("mteb", reason="needs mteb: pip install 'retrieval-paradigms[mteb]'")

import mteb
from datasets import Dataset
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.mocks.mock_tasks.retrieval import MockRetrievalTask

from paradigms import PARADIGMS, RERANKERS
from paradigms.engines.mteb import MTEBModel
from paradigms.retrieve import Indexed

TEXTS = {"d1": "a black cat", "d2": "the bank of a river", "q2": "warm wood in the sea"}
QUERIES = {"q1": "black cat", "q2": "warm wood in the sea"}


def task(top_ranked: dict[str, list[str]] | None = None, identical: bool = False):
    """A retrieval task with rows in memory, or a reranking task of these candidates."""
    more = {"type": "Reranking" if top_ranked else "Retrieval", "name": "Local", "eval_splits": ["test"]}

    class Local(AbsTaskRetrieval):
        metadata = MockRetrievalTask.metadata.model_copy(update=more)
        ignore_identical_ids = identical

        def load_data(self, **_: object) -> None:
            part = {
                "corpus": Dataset.from_list([{"id": d, "title": "", "text": t} for d, t in TEXTS.items()]),
                "queries": Dataset.from_list([{"id": q, "text": t} for q, t in QUERIES.items()]),
                "relevant_docs": {"q1": {"d1": 1}, "q2": {"d2": 1}},
                "top_ranked": top_ranked,
            }
            self.dataset = {"default": {"test": part}}
            self.data_loaded = True

    return Local()


def evaluated(model: object, task: object) -> dict:
    [result] = mteb.evaluate(model, [task], cache=None, show_progress_bar=False).task_results
    return result.scores["test"][0]


@pytest.mark.parametrize("name", ["dpr", "colbert"])
def test_mteb_measures_what_our_search_finds(tiny_bert: Path, name: str):
    paradigm = PARADIGMS[name](str(tiny_bert), query_length=8, document_length=12)
    model = MTEBModel(paradigm)
    results = evaluated(model, task())
    run = Indexed.build(paradigm, TEXTS).search(QUERIES)
    ranks = [list(run[q]).index(d) + 1 for q, d in (("q1", "d1"), ("q2", "d2"))]
    assert round(results["mrr_at_10"], 5) == round(sum(1 / r for r in ranks) / 2, 5)
    assert model.mteb_model_meta.name == f"retrieval-paradigms/{name}"
    without = evaluated(model, task(identical=True))
    assert without["mrr_at_10"] >= results["mrr_at_10"]


def test_a_reranker_orders_the_candidates_alone(tiny_bert: Path):
    model = MTEBModel(RERANKERS["cross_attention"](str(tiny_bert)), name="mine")
    results = evaluated(model, task(top_ranked={"q1": ["d1"], "q2": ["d1", "q2"]}))
    assert results["recall_at_10"] == 0.5
    with pytest.raises(ValueError, match="cannot search, it only scores pairs"):
        model.search([{"id": "q", "text": "cat"}], top_k=1, encode_kwargs={})
