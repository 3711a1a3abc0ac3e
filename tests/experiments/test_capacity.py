"""experiments/capacity.py: both tasks end to end on tiny encoders, the law of projections, the claims."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import capacity
import capacity_claims as claims
import numpy as np
import pytest
from scipy import sparse
from studies.capacity_report import theory_rows
from studies.capacity_tasks import answer_benches, by_module, projected, read_answers, worth

from paradigms import Paradigm, load
from paradigms.data import Collection, Corpus, Problems
from paradigms.data import load as load_collection
from paradigms.data.collection import assemble
from paradigms.encoder.backbone import load_tokenizer
from paradigms.evaluate import Interval, per_query
from paradigms.index import ExactIndex
from paradigms.io.settings import from_command_line
from tests.tiny import WORDS

SYSTEMS = '["DE-BERT-8","ME-BERT-4","CROSS-ATTENTION"]'


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty articles of three paragraphs of 70 words each; a question for every paragraph, with answers."""
    folder, words, rng = tmp_path_factory.mktemp("texts"), WORDS.split(), random.Random(0)
    documents, queries, answers, qrels = [], [], [], {"train": [], "dev": [], "test": []}
    for n in range(60):
        text = [rng.choice(words) for _ in range(70)]
        documents.append({"_id": f"a{n // 3}#{n % 3}", "title": f"article {n // 3}", "text": " ".join(text)})
        queries.append({"_id": f"q{n}", "text": " ".join(text[20:26])})
        answers.append({"_id": f"q{n}", "answers": [" ".join(text[26:29]), "nowhere"]})
        split = ("test", "dev", "train")[min(n % 5, 2)]
        qrels[split].append(f"q{n}\ta{n // 3}#{n % 3}\t1\n")
    for name, rows in (("corpus", documents), ("queries", queries), ("answers", answers)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "qrels").mkdir()
    for split, lines in qrels.items():
        (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))
    return folder


def settings(collection: Path | str, backbone: Path | str, output: Path, **changes: Any) -> capacity.Settings:
    flags = {
        "collection": collection,
        "backbone": backbone,
        "output": output,
        "lengths": "[30,60]",
        "systems": SYSTEMS,
        "hybrids": '["ME-BERT-4"]',
        "vectors": 2,
        "seeds": "[0]",
        "train_queries": 12,
        "dev_queries": 6,
        "test_queries": 8,
        "tokens": 60,
        "depth": 12,
        "steps": 2,
        "batch_size": 4,
        "theory_queries": 4,
        "samples": 8,
        "keep_models": "true",
        "precision": "no",
        "tracker": "none",
    } | changes
    arguments = [f"--{name}={value}" for name, value in flags.items()]
    return from_command_line(capacity.Settings, "", arguments)


@pytest.fixture(scope="module")
def finished(texts: Path, tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("results") / "containing"
    capacity.main(settings(texts, tiny_bert, output))
    return output


def test_a_run_measures_every_system_at_every_length(finished: Path) -> None:
    for name in ("claims", "table_rerank", "table_retrieve", "theory", "collections", "weights", "training"):
        assert (finished / f"{name}.md").is_file()
    for name in ("rerank", "retrieve", "theory"):
        assert (finished / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    dense = ["DE-BERT-8", "ME-BERT-4"]
    rerank = json.loads((finished / "table_rerank.json").read_text())
    assert [row["system"] for row in rerank] == ["BM25-uni", "BM25-bi", *dense, "CROSS-ATTENTION"]
    assert all(set(row) == {"system", "30", "60"} for row in rerank)
    retrieve = json.loads((finished / "table_retrieve.json").read_text())
    hybrids = ["HYBRID-ME-BERT-4-uni", "HYBRID-ME-BERT-4-bi"]
    assert [row["system"] for row in retrieve] == ["BM25-uni", "BM25-bi", *dense, *hybrids]
    training = json.loads((finished / "training.json").read_text())
    assert all(row["τ"] > 0 for row in training)
    assert {(row["system"], row["numbers"]) for row in training} == {
        ("DE-BERT-8", 8),
        ("ME-BERT-4", 8),
        ("CROSS-ATTENTION", 0),
    }
    rows = json.loads((finished / "claims.json").read_text())
    said = {(row["the paper says"], row["stage"]) for row in rows}
    assert ("ME-BERT-4 is above DE-BERT-8 on the longest", "retrieval") in said
    assert ("the gain of HYBRID-ME-BERT-4-bi over ME-BERT-4 grows with length", "retrieval") in said
    assert ("CROSS-ATTENTION does not fall with length", "reranking") in said
    passages = json.loads((finished / "collections.json").read_text())
    assert [row["relevant among candidates"] for row in passages] == [1.0, 1.0]


def test_what_is_written_of_a_system_is_what_its_model_ranks(
    finished: Path, texts: Path, tiny_bert: Path, tmp_path: Path
) -> None:
    given = settings(texts, tiny_bert, tmp_path)
    tokenizer = load_tokenizer(tiny_bert)
    bench = capacity.TASKS["containing"](given, load_collection(texts), tokenizer)[1]
    test, corpus = bench.collection.split("test"), bench.collection.corpus
    model = load(finished / "length-60/seed-0/ME-BERT-4/checkpoint")
    assert isinstance(model, Paradigm)
    encoder = model.encoder.settings
    assert (encoder.first, encoder.dim, encoder.layer_norm, encoder.normalize) == (2, 4, True, False)
    assert encoder.document_length == 62
    index = ExactIndex.build(model, corpus.ids, corpus, tmp_path / "index")
    result = json.loads((finished / "length-60/seed-0/ME-BERT-4.json").read_text())
    for stage, run in (
        ("retrieve", index.search(model, test.queries, 12)),
        ("rerank", index.rerank(model, test.queries, bench.pool)),
    ):
        expected = per_query(run, test.judgements, ("RR@10",)).values["RR@10"].tolist()
        assert result["stages"]["ME-BERT-4"][stage] == expected
    assert not (finished / "length-60/seed-0/ME-BERT-4/training/checkpoints").exists()
    # Half of the candidates are BM25-bi's, half random, and the relevant one is there.
    for query, gold in test.judgements.items():
        own = bench.bm25["BM25-bi"].search({query: test.queries[query]}, 6)[query]
        assert own.keys() | gold.keys() <= bench.pool[query].keys()
        assert 12 <= len(bench.pool[query]) <= 13


def test_a_finished_system_is_kept_and_others_are_added(finished: Path, texts: Path, tiny_bert: Path) -> None:
    kept = finished / "length-30/seed-0/DE-BERT-8.json"
    before = kept.stat().st_mtime_ns
    capacity.main(settings(texts, tiny_bert, finished, systems='["DE-BERT-8","DE-BERT"]'))
    assert kept.stat().st_mtime_ns == before
    rows = json.loads((finished / "table_retrieve.json").read_text())
    assert [row["system"] for row in rows] == ["BM25-uni", "BM25-bi", "DE-BERT-8", "DE-BERT"]
    theory = json.loads((finished / "length-30/theory.json").read_text())
    assert {"8", "32"} <= theory["values"].keys()
    with pytest.raises(SystemExit, match=r"other settings \(steps: 2 then, 3 now\)"):
        capacity.main(settings(texts, tiny_bert, finished, steps=3))


def test_training_starts_from_scores_that_spread_by_the_temperature(
    texts: Path, tiny_bert: Path, tmp_path: Path
) -> None:
    """Whatever the width: inner products of layer-normed vectors spread by about √k."""
    given = settings(texts, tiny_bert, tmp_path, temperature=2.0)
    bench = capacity.TASKS["containing"](given, load_collection(texts), load_tokenizer(tiny_bert))[0]
    corpus, queries = bench.collection.corpus, list(bench.collection.split("train").queries.values())
    found = {}
    for name in ("DE-BERT-4", "DE-BERT-32", "ME-BERT-32"):
        model = capacity.build(name, bench.length, 2, given)
        assert isinstance(model, Paradigm)
        scores = model.score(model.encode_documents(list(corpus)), model.encode_queries(queries))
        found[name] = capacity.temperature(model, bench, given)
        # Not of all passages.
        assert found[name] == pytest.approx(2 * float(scores.std(-1).mean()), rel=0.35)
    assert found["DE-BERT-32"] > 1.5 * found["DE-BERT-4"]
    assert capacity.temperature(capacity.build("CROSS-ATTENTION", bench.length, 2, given), bench, given) == 1


# --- question answering -----------------------------------------------------------------------------


def test_answers_are_looked_for_in_a_fixed_number_of_tokens(
    texts: Path, tiny_bert: Path, tmp_path: Path
) -> None:
    changes = {"systems": '["DE-BERT-8"]', "hybrids": '["DE-BERT-8"]', "terms": "pieces", "lengths": "[30]"}
    capacity.main(settings(texts, tiny_bert, tmp_path / "out", task="answers", **changes))
    passages = json.loads((tmp_path / "out/collections.json").read_text())
    assert [row["measure"] for row in passages] == ["Success@2"]
    rows = json.loads((tmp_path / "out/table_retrieve.json").read_text())
    hybrids = ["HYBRID-DE-BERT-8-uni", "HYBRID-DE-BERT-8-bi"]
    assert [row["system"] for row in rows] == ["BM25-uni", "BM25-bi", "DE-BERT-8", *hybrids]
    result = json.loads((tmp_path / "out/length-30/seed-0/DE-BERT-8.json").read_text())
    assert set(result["stages"]["DE-BERT-8"]["rerank"]) <= {0.0, 1.0}


def test_a_question_learns_from_the_passage_of_its_own_paragraph(tiny_bert: Path, tmp_path: Path) -> None:
    words = WORDS.split()
    first, second = " ".join(words[:20]), " ".join([*words[20:38], words[5], words[6]])
    rows = [("a#0", "t", f"t {first}"), ("a#1", "t", f"t {second}"), ("b#0", "u", f"u {second}")]
    queries = [("q", "ask"), ("lost", "ask"), ("d", "ask"), ("e", "ask")]
    judged = {
        "train": [("q", "a#0", 1), ("lost", "a#1", 1)],
        "dev": [("d", "a#0", 1)],
        "test": [("e", "b#0", 1)],
    }
    answers = {"q": f"{words[5]} {words[6]}", "lost": f"{words[8]} {words[9]}"}
    answers |= {"d": words[0], "e": f"{words[5]} {words[6]}"}
    (tmp_path / "answers.jsonl").write_text(
        "".join(json.dumps({"_id": q, "answers": [a]}) + "\n" for q, a in answers.items())
    )
    given = settings(tmp_path, tiny_bert, tmp_path / "out", task="answers", lengths="[10]", tokens=20)
    (bench,) = answer_benches(given, assemble("qa", rows, queries, judged), load_tokenizer(tiny_bert))
    # a#1's passages hold the answer of q too, and b#0's; the answer of "lost" lies across a cut.
    assert bench.collection.split("train").judgements == {"q": {"a#0:0": 1}, "lost": {}}
    assert bench.collection.corpus.ids == ["a#0:0", "a#0:1", "a#0:2", "a#0:3", "b#0:0", "b#0:1"]
    assert bench.measure == "Success@2"
    held = bench.judged({"e": dict.fromkeys(bench.collection.corpus.ids, 0.0)}).judgements["e"]
    assert held == {"a#0:0": 1, "a#0:3": 1, "b#0:1": 1}


def test_answers_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"has no answers\.jsonl"):
        read_answers(tmp_path)
    (tmp_path / "answers.jsonl").write_text('{"_id": "q", "answers": ["x"]}\n{"_id": "r"}\n')
    with pytest.raises(ValueError, match=r"answers\.jsonl, line 2: no JSON object with _id and answers"):
        read_answers(tmp_path)


# --- random projections -----------------------------------------------------------------------------


def test_projected_ranks_are_those_under_explicit_matrices() -> None:
    """Documents above the relevant ones included, and at every k."""
    rng, samples, relevant = np.random.default_rng(0), 20_000, np.array([2, 5])
    documents, query = rng.standard_normal((9, 12)), rng.standard_normal(12)
    assert (documents @ query).argmax() not in relevant
    found = projected(sparse.csr_array(documents), query, relevant, [1, 3, 40], samples, rng)
    for k, ranks in zip([1, 3, 40], found, strict=True):
        A = rng.standard_normal((samples, k, 12))
        scores = np.einsum("sk,skn->sn", A @ query, A @ documents.T)
        explicit = 1 + (scores > scores[:, relevant].max(1, keepdims=True)).sum(1)
        for at in (1, 2, 4):
            share = np.array([(ranks <= at).mean(), (explicit <= at).mean()])
            error = np.sqrt((share * (1 - share)).sum() / samples)
            assert abs(share[0] - share[1]) < 4 * error + 1e-9
    none = projected(documents, query, np.array([], int), [3], 4, rng)
    assert worth(none, "RR@10").max() == worth(none, "Success@8").max() == 0


def test_a_ranks_worth_is_the_measure() -> None:
    for measure in ("RR@10", "Success@3"):
        for rank in (1, 3, 4, 10, 11):
            run = {"q": {f"d{n}": -float(n) for n in range(1, 20)}}
            expected = per_query(run, {"q": {f"d{rank}": 1}}, (measure,)).mean(measure)
            assert worth(np.array([float(rank)]), measure) == pytest.approx([expected])


# --- claims -----------------------------------------------------------------------------------------


def test_the_papers_side_of_a_claim_is_its_table() -> None:
    lengths = [50, 100, 200, 400]
    faster = claims.Claim("", "retrieve", claims.fall("DE-BERT") + claims.fall("BM25-uni", -1))
    assert claims.of_paper(faster, "containing", lengths) == pytest.approx((90.2 - 63.0 - 92.1 + 81.8) / 100)
    assert claims.of_paper(faster, "containing", [100, 200]) == pytest.approx(
        (85.6 - 72.9 - 88.6 + 84.6) / 100
    )
    mean = claims.Claim("", "rerank", claims.above("ME-BERT-64", "DE-BERT-512", "every"))
    assert claims.of_paper(mean, "answers", lengths) == pytest.approx((174.8 + 1.0 - 172.9) / 400)
    assert claims.of_paper(mean, "answers", [64, 128]) is None
    other = claims.Claim("", "retrieve", claims.above("DE-BERT-7", "BM25-uni", "longest"))
    assert claims.of_paper(other, "containing", lengths) is None


def test_every_claim_of_the_paper_has_its_sign_in_table_a1() -> None:
    """The statements, as they are tested here, hold of the paper's own numbers."""
    sizes = {"DE-BERT-32": 32, "DE-BERT-512": 512, "DE-BERT": 768, "ME-BERT-64": 512, "ME-BERT": 6144}
    for task, table in claims.TABLE_A1.items():
        measured: Any = {stage: {s: {} for s in table[stage]} for stage in claims.STAGES}
        made = claims.CLAIMS[task](measured, sizes)
        known = [c for c in made if claims.measurable(c, measured, claims.PAPER_LENGTHS)]
        assert len(known) >= 8
        for claim in known:
            paper = claims.of_paper(claim, task, claims.PAPER_LENGTHS)
            assert paper is not None, claim.statement
            # §5 says that multi-vector models exceed BM25-uni at all lengths; one of its two does not.
            says_otherwise = claim.statement == "ME-BERT-64 is above BM25-uni on the longest"
            assert (paper + claim.margin > 0) != says_otherwise, (task, claim.statement, paper)


def test_theory_stands_in_for_each_encoder_and_bm25_for_itself() -> None:
    measured: Any = {"retrieve": {"BM25-uni": {10: np.array([[0.9]]), 20: np.array([[0.7]])}}}
    predictions = {10: {"values": {"8": [0.5, 0.7]}}, 20: {"values": {"8": [0.2, 0.2]}}}
    faster = claims.fall("DE-BERT-8") + claims.fall("BM25-uni", -1)
    found = claims.of_theory(
        claims.Claim("", "retrieve", faster), measured, predictions, {"DE-BERT-8": 8}, [10, 20]
    )
    assert found == pytest.approx(0.6 - 0.2 - (0.9 - 0.7))
    for stage, terms in (("rerank", faster), ("retrieve", claims.above("HYBRID-X-uni", "BM25-uni", "every"))):
        claim = claims.Claim("", stage, terms)
        assert claims.of_theory(claim, measured, predictions, {"DE-BERT-8": 8}, [10, 20]) is None


@pytest.mark.parametrize(
    ("low", "high", "p", "margin", "paper", "learned", "expected"),
    [
        (0.01, 0.1, 0.01, 0.0, 0.2, True, "reproduced"),
        (0.01, 0.1, 0.2, 0.0, 0.05, True, "out of reach at this scale"),
        (0.01, 0.04, 0.2, 0.0, 0.05, True, "out of reach at this scale"),
        (-0.1, 0.1, 0.9, 0.0, 0.2, True, "not reproduced"),
        (-0.1, 0.3, 0.9, 0.0, 0.2, True, "out of reach at this scale"),
        (-0.01, 0.3, 0.01, 0.02, -0.003, True, "reproduced"),
        (-0.1, -0.05, 0.01, 0.02, -0.003, True, "not reproduced"),
        (-0.1, -0.01, 0.01, 0.0, None, True, "not reproduced"),
        (-0.2, 0.1, 0.01, 0.0, -0.3, True, "out of reach at this scale"),
        (0.01, 0.1, 0.01, 0.0, 0.2, False, "out of reach at this scale"),
    ],
)
def test_verdicts(
    low: float, high: float, p: float, margin: float, paper: float | None, learned: bool, expected: str
) -> None:
    claim = claims.Claim("", "retrieve", (), margin)
    assert claims.verdict(Interval((low + high) / 2, low, high), p, claim, paper, learned) == expected


def test_a_difference_is_tested_over_seeds_and_queries() -> None:
    rng = np.random.default_rng(0)
    base = rng.random((2, 40))
    measured: Any = {
        "rerank": {},
        "retrieve": {
            "BM25-uni": {10: base, 20: base},
            "DE-BERT-8": {10: base, 20: base - 0.3 - 0.1 * rng.random((2, 40))},
        },
    }
    predictions = {n: {"values": {"8": [0.5]}} for n in (10, 20)}
    rows = claims.claim_rows("containing", measured, predictions, {"DE-BERT-8": 8}, [10, 20])
    found = {row["the paper says"]: row for row in rows}
    assert set(found) == {
        "DE-BERT-8 falls faster than BM25-uni with length",
        "DE-BERT-8 is below BM25-uni on the longest passages",
    }
    faster = found["DE-BERT-8 falls faster than BM25-uni with length"]
    assert faster["verdict"] == "reproduced"
    assert faster["random projection"] == "+0.000"
    measured["retrieve"]["DE-BERT-8"][20] = 0.01 * base  # not learned
    rows = claims.claim_rows("containing", measured, predictions, {"DE-BERT-8": 8}, [10, 20])
    assert {row["verdict"] for row in rows} == {"out of reach at this scale"}
    predictions[20] = {"values": {"8": [0.004]}}  # no more can be asked of so few numbers
    rows = claims.claim_rows("containing", measured, predictions, {"DE-BERT-8": 8}, [10, 20])
    assert {row["verdict"] for row in rows} == {"reproduced"}


def test_what_has_learned_is_judged_by_its_retrieval_and_a_reranker_by_its_reranking() -> None:
    most, some, little = (np.full((1, 4), value) for value in (0.9, 0.3, 0.2))
    measured: Any = {
        "rerank": {"BM25-uni": {10: most}, "DE-BERT-8": {10: most}, "CROSS-ATTENTION": {10: little}},
        "retrieve": {"BM25-uni": {10: most}, "DE-BERT-8": {10: little}},
    }
    for prediction, learned in ((0.1, True), (0.25, False)):
        predictions = {10: {"values": {"8": [prediction]}}}
        assert claims.has_learned(measured, predictions, {"DE-BERT-8": 8}, "DE-BERT-8", [10]) == learned
    measured["retrieve"]["DE-BERT-8"][10] = some
    assert claims.has_learned(measured, predictions, {"DE-BERT-8": 8}, "DE-BERT-8", [10])
    assert not claims.has_learned(measured, predictions, {}, "CROSS-ATTENTION", [10])
    measured["rerank"]["CROSS-ATTENTION"][10] = some
    assert claims.has_learned(measured, predictions, {}, "CROSS-ATTENTION", [10])


def test_a_dimension_whose_error_is_as_large_is_not_given() -> None:
    measured: Any = {"retrieve": {name: {10: np.array([[0.5]])} for name in ("BM25-uni", "DE-BERT-8")}}
    for error, shown in ((30.0, "100 ± 30"), (100.0, "not determined"), (np.inf, "not determined")):
        predictions = {10: {"margin": 0.1, "k*": 100.0, "error of k*": error, "values": {"8": [0.25]}}}
        (row,) = theory_rows(measured, predictions, {"DE-BERT-8": 8}, [10])
        assert row["k*"] == shown
        assert row["DE-BERT-8: k = 8"] == "0.250, 0.500 measured"


# --- settings ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"systems": '["DE-BERT-x"]'}, "unknown system DE-BERT-x; there are DE-BERT-k"),
        ({"hybrids": '["CROSS-ATTENTION"]'}, "no hybrid of CROSS-ATTENTION"),
        ({"task": "other"}, "unknown task 'other'; there are containing, answers"),
        ({"terms": "letters"}, "terms must be words or pieces"),
        ({"seeds": "[]"}, "seeds must name at least one"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"negatives": 0}, "CROSS-ATTENTION learns from no others"),
        ({"task": "answers", "lengths": "[100]"}, r"lengths=\[100\]"),
        ({"temperature": 0}, "temperature must be positive"),
        ({"samples": 1}, "samples must be at least 2"),
        ({"train_queries": 5000}, "the corpus is too small for 5,014 queries"),
        ({"task": "answers", "collection": "pydocs", "documents": 20}, r"pydocs has no answers\.jsonl"),
    ],
)
def test_what_cannot_be_run_ends_with_a_line(
    texts: Path, tiny_bert: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    collection = changes.pop("collection", texts)
    with pytest.raises(SystemExit, match=message):
        capacity.main(settings(collection, tiny_bert, tmp_path / "out", **changes))


def test_pydocs_is_joined_by_module() -> None:
    corpus = Corpus(["m:a", "m:b", "n:a"], ["one", "two", "three"], ["m a", "m b", "n a"])
    joined = by_module(Collection("pydocs", corpus, {}, Problems(), ""))
    assert list(joined.titles) == ["m", "m", "n"]
