"""Scores that examples carry or are filtered by: from a run or a model, of each pair once, never a guess."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from transformers import AutoTokenizer, BertForSequenceClassification

from paradigms import PARADIGMS
from paradigms.baselines.cross_attention import SequenceClassifier, cross_attention
from paradigms.data import Corpus, Problems, Run, Split, hold_out, load_collection, read_run, write_run
from paradigms.retrieve import Reranking
from paradigms.train.examples import build_examples
from paradigms.train.negatives import FalseNegatives, ScorePairs, pair_scores, scored_once
from tests.experiments.scripts import run as run_script
from tests.experiments.scripts import training
from tests.near import assert_same, assert_same_run
from tests.tiny import write_headed

CORPUS = Corpus([f"d{n}" for n in range(12)], [f"text {n}" for n in range(12)])
# d0 and d1 are relevant to q, d2 is judged and is not; d3 and d4 to r.
SPLIT = Split({"q": "the sea", "r": "a bird"}, {"q": {"d0": 1, "d1": 2, "d2": 0}, "r": {"d3": 1}})
RANKED: Run = {"q": {f"d{n}": -float(n) for n in range(8)}, "r": {f"d{n}": float(n) for n in range(12)}}
SCORES: Run = {
    "q": {f"d{n}": s for n, s in enumerate([10.0, 4.0, 9.5, 9.0, 8.0, 3.5, 0.0, -1.0])} | {"d9": 9.9},
    "r": {f"d{n}": -4.0 - n / 2 for n in range(12)},
}


def scorer(scores: Run) -> ScorePairs:
    return lambda pairs: scores


def ids(positions: tuple[int, ...]) -> set[str]:
    return {CORPUS.ids[p] for p in positions}


@pytest.mark.parametrize(
    ("rule", "query", "positive", "expected"),
    [
        ({"margin": 1.0}, "q", "d0", {"d2", "d3"}),  # 9 is 10 − 1: at the bound counts
        ({"margin": -4.0}, "q", "d1", {"d2", "d3", "d4"}),  # only what is clearly better
        ({"share": 0.9}, "q", "d0", {"d2", "d3"}),
        ({"share": 0.75}, "r", "d0", {"d2"}),  # below a negative score: −5 = −4 − 0.25 · 4
    ],
)
def test_documents_from_the_bound_on_are_taken_to_be_relevant(rule, query, positive, expected):
    candidates = [f"d{n}" for n in range(2, 8)]  # not d9, which has a score, too
    assert FalseNegatives(scorer(SCORES), **rule).of(query, positive, candidates, SCORES) == expected


def test_suspects_are_no_negatives_of_any_kind_and_are_counted():
    problems, calls = Problems(), {}

    def scores(pairs: Any) -> Run:
        calls.update(pairs)
        return SCORES

    examples = build_examples(
        CORPUS, SPLIT, RANKED, 3, depth=8, suspects=FalseNegatives(scores, margin=1.0), problems=problems
    )
    assert {query: set(documents) for query, documents in calls.items()} == {
        "q": {f"d{n}" for n in range(8)},
        "r": {f"d{n}" for n in range(4, 12)} | {"d3"},
    }
    first, second, third = examples
    assert ids(first.relevant) == {"d0", "d1", "d2", "d3"}
    assert ids(first.negatives) <= {"d4", "d5", "d6", "d7"}
    # The weaker relevant document takes more with it, so that two candidates are left.
    assert ids(second.relevant) == {"d0", "d1", "d2", "d3", "d4", "d5"}
    assert ids(second.negatives) > {"d6", "d7"}
    assert not ids(second.negatives) & ids(second.relevant)
    assert ids(third.relevant) == {"d3", "d4", "d5"}  # d0 to d2 are no candidates of r
    assert ids(third.negatives) <= {f"d{n}" for n in range(6, 12)}
    # d2 and d3; then d2 to d5; then d4 and d5.
    assert problems.counts == {
        "hard negative that may be relevant (left out)": 2 + 4 + 2,
        "example with too few hard negatives left (others drawn at random)": 1,
    }
    assert problems.examples["hard negative that may be relevant (left out)"][0] == "q -> d2"


def test_a_pair_without_a_score_is_named():
    complete: Run = {q: {d: float(SPLIT.judgements[q].get(d, 0)) for d in CORPUS.ids} for q in RANKED}
    missing = complete | {"r": {d: s for d, s in complete["r"].items() if d != "d3"}}
    infinite = complete | {"q": complete["q"] | {"d1": float("inf")}}
    for scores, message in (
        ({}, "no score of document .* for query 'q'"),
        (missing, "no score of document 'd3' for query 'r'"),
        (infinite, "infinite score of document 'd1' for query 'q'"),
    ):
        with pytest.raises(ValueError, match=f"the teacher has .*{message}"):
            build_examples(CORPUS, SPLIT, RANKED, 3, depth=8, teacher=scorer(scores))
    suspects = FalseNegatives(scorer(infinite), margin=0.5)
    with pytest.raises(ValueError, match="the false-negative filter has"):
        build_examples(CORPUS, SPLIT, RANKED, 3, depth=8, suspects=suspects)


def test_a_model_scores_a_pair_once_and_goes_on_after_an_interruption(tmp_path):
    calls: list[Run] = []

    def load_model() -> Any:
        def rerank(queries: dict[str, str], run: Run, *, progress: bool) -> Run:
            assert queries == {"q0": "?"}
            if len(calls) == 2:
                calls.append({})
                raise KeyboardInterrupt
            calls.append(run)
            return {q: {d: float(int(q[1:]) * 10 + int(d[1:])) for d in of} for q, of in run.items()}

        return SimpleNamespace(rerank=rerank)

    file = tmp_path / "teacher.run"
    scores = scored_once(file, load_model, {"q0": "?"}, Accelerator(cpu=True), pairs=3)
    pairs = {f"q{n}": ["d1", "d2"] for n in range(6)}
    with pytest.raises(KeyboardInterrupt):
        scores(pairs)
    assert [list(run) for run in calls[:2]] == [["q0", "q1"], ["q2", "q3"]]
    assert not file.exists()
    results = scores(pairs)
    assert list(calls[-1]) == ["q4", "q5"]
    assert results == {q: {"d2": int(q[1:]) * 10 + 2.0, "d1": int(q[1:]) * 10 + 1.0} for q in pairs}
    assert read_run(file) == results
    assert not file.with_suffix(".parts").exists()
    assert scores({"q1": ["d1"]}) == results
    assert list(calls[-1]) == ["q4", "q5"]  # nothing was missing
    more = scores({"q1": ["d1", "d7"], "q9": ["d3"]})
    assert calls[-1] == {"q1": {"d7": 0.0}, "q9": {"d3": 0.0}}
    assert more["q1"] == {"d7": 17.0, "d2": 12.0, "d1": 11.0}
    assert more["q9"] == {"d3": 93.0}


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A reranker as the hub has them, of pairs of at most 24 tokens."""
    settings = {"num_labels": 1, "max_position_embeddings": 24}
    return write_headed(BertForSequenceClassification, tmp_path_factory.mktemp("reranker"), **settings)


TEXTS = [
    "stone",
    "a quick fox ran in the garden; the dog was old and the wolf was young, and all of it long ago",
]
SHORT = Corpus(["a", "b"], TEXTS)
PAIRS: Run = {"x": {"a": 0.0, "b": 0.0}, "y": {"b": 0.0}}
QUERIES = {"x": "where is the fox", "y": "the old wolf"}


def test_a_published_reranker_scores_as_transformers_does(published):
    results = Reranking(SequenceClassifier(published).double(), SHORT).rerank(QUERIES, PAIRS)
    model = BertForSequenceClassification.from_pretrained(published, dtype=torch.float64).eval()
    tokenizer = AutoTokenizer.from_pretrained(published)
    for query, documents in PAIRS.items():
        for document in documents:
            text = SHORT[SHORT.position(document)]
            row = tokenizer(QUERIES[query], text, truncation=True, max_length=24, return_tensors="pt")
            with torch.no_grad():
                expected = float(model(**row).logits[0, 0])
            assert_same(results[query][document], expected)
    assert len({score for scores in results.values() for score in scores.values()}) == 3


def test_a_source_is_a_run_or_any_model(published, tiny_bert, tmp_path):
    accelerator, pairs = Accelerator(cpu=True), {q: list(of) for q, of in PAIRS.items()}

    def scores(source: Path | str) -> Run:
        file = tmp_path / f"{Path(source).name}.kept"
        return pair_scores(str(source), file, QUERIES, SHORT, accelerator)(pairs)

    write_run(tmp_path / "given.run", PAIRS)
    expected = {q: pytest.approx(of, abs=1e-40) for q, of in PAIRS.items()}  # a file has no ties
    assert scores(tmp_path / "given.run") == expected
    assert scores(published) == read_run(tmp_path / f"{published.name}.kept")
    torch.manual_seed(0)
    models = {"dense": PARADIGMS["dpr"](tiny_bert), "pairs": cross_attention(tiny_bert)}
    for name, model in models.items():
        model.save_pretrained(tmp_path / name)
        results, expected = scores(tmp_path / name), Reranking(model, SHORT).rerank(QUERIES, PAIRS)
        assert_same_run(results, expected)


def test_the_script_distils_from_a_model_and_filters_by_it(words, tiny_bert, tmp_path, capsys):
    torch.manual_seed(0)
    cross_attention(tiny_bert, query_length=8, document_length=12).save_pretrained(tmp_path / "cross")
    candidates = [f"d{n}" for n in range(6)]
    write_run(tmp_path / "first.run", {f"q{n}": dict.fromkeys(candidates, 1.0) for n in range(30)})
    flags = training(words, tiny_bert, tmp_path / "out", options="{}", paradigm="dpr", steps=2)
    flags |= {
        "run": tmp_path / "first.run",
        "negatives": 2,
        "filter": tmp_path / "cross",
        "filter_margin": 0.0,
    }
    flags |= {"teacher": tmp_path / "cross", "distil": "margin_mse"}
    run_script("train", **flags)
    assert "hard negative that may be relevant (left out): " in capsys.readouterr().out
    scored = tmp_path / "out" / "training" / "teacher.run"
    queries = hold_out(load_collection(words).split("train"), share=0.1)[0].queries
    results = read_run(scored)
    assert results.keys() == queries.keys()
    assert all(set(results[query]) >= {*candidates, f"d{query[1:]}"} for query in queries)
    assert not (tmp_path / "out" / "training" / "filter.run").exists()
    run_script("train", **flags)  # goes on with the same examples, and is at its end
    # The same from that run, which has every score.
    again = flags | {"output": tmp_path / "again", "teacher": scored, "filter": scored}
    run_script("train", **again)
    curves = [(tmp_path / name / "training" / "history.jsonl").read_text() for name in ("out", "again")]
    assert curves[0] == curves[1]
    assert {"loss", "dev"} <= {key for line in curves[0].splitlines() for key in json.loads(line)}
