"""experiments/capacity.py: both tasks end to end on tiny encoders, the law of projections, the claims."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import capacity
import numpy as np
import pytest
from papers.luan2021.capacity_claims import PAPER_LENGTHS, STAGES, TABLE_A1, CapacityStudy
from papers.luan2021.capacity_tasks import (
    open_task,
    projected_ranks,
    question_passages,
    worth,
)
from scipy import sparse

from paradigms import Paradigm, load
from paradigms.data import load_collection, write_folder
from paradigms.data.assembly import assemble
from paradigms.encoder.backbone import load_tokenizer
from paradigms.evaluate import per_query
from paradigms.evaluate.claims import CONTRADICTED, REPRODUCED, UNDECIDED, Verdict
from paradigms.find import Index, Store, kinds
from paradigms.retrieve import Indexed
from tests.experiments import scripts
from tests.experiments.scripts import SMALL, published, unmeasured, verdicts
from tests.tiny import WORDS
from theory.collection import Problem

BM25 = ("BM25-uni", "BM25-bi")
SYSTEMS = '["DE-BERT-8","ME-BERT-4","CROSS-ATTENTION","BERT-INIT"]'


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty articles of three paragraphs of 70 words each; a question for every paragraph, with answers."""
    folder, words, rng = tmp_path_factory.mktemp("texts"), WORDS.split(), random.Random(0)
    rows = [[rng.choice(words) for _ in range(70)] for _ in range(60)]
    documents = [(f"a{n // 3}#{n % 3}", f"article {n // 3}", " ".join(row)) for n, row in enumerate(rows)]
    queries = [(f"q{n}", " ".join(row[20:26])) for n, row in enumerate(rows)]
    judged = {
        split: [(f"q{n}", documents[n][0], 1) for n in range(60) if min(n % 5, 2) == at]
        for at, split in enumerate(("test", "dev", "train"))
    }
    write_folder(assemble("texts", documents, queries, judged), folder)
    answers = ({"_id": f"q{n}", "answers": [" ".join(row[26:29]), "nowhere"]} for n, row in enumerate(rows))
    (folder / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in answers))
    return folder


def settings(collection: Path | str, backbone: Path | str, output: Path, **changes: Any) -> capacity.Settings:
    flags = {"collection": collection, "backbone": backbone, "output": output, "lengths": "[30,60]"}
    flags |= {"systems": SYSTEMS, "hybrids": '["ME-BERT-4"]', "vectors": 2, "seeds": "[0]"}
    flags |= {"train_queries": 12, "dev_queries": 6, "test_queries": 8, "tokens": 60, "depth": 12}
    flags |= {"theory_queries": 4, "samples": 8, "keep_models": "true"}
    # All layers: states of frozen ones are rounded, which decides near ties.
    flags |= {"trained_layers": 0, "learning_rate": 1e-3}
    return scripts.settings("capacity", **SMALL | flags | changes)


def first_tasks(given: capacity.Settings) -> list[capacity.PassageTask]:
    return capacity.open_tasks(given, load_collection(given.collection))


@pytest.fixture(scope="module")
def finished(texts: Path, tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("results") / "containing"
    capacity.main(settings(texts, tiny_bert, output))
    return output


def test_a_run_measures_every_system_at_every_length(finished: Path) -> None:
    sections = {"claims", "training", "table_rerank", "table_retrieve", "figure1", "theory"}
    figures = {f"{name}.svg" for name in sections - {"claims", "training", "theory"}}
    assert published(finished) == sections | figures
    retrieve = json.loads((finished / "table_retrieve.json").read_text())
    hybrids = ["HYBRID-ME-BERT-4-uni", "HYBRID-ME-BERT-4-bi"]
    assert [row["system"] for row in retrieve] == [*BM25, "DE-BERT-8", "ME-BERT-4", *hybrids, "BERT-INIT"]
    said = [(row["claim"], row["place"]) for row in json.loads((finished / "claims.json").read_text())]
    for start in ("DE-BERT is worse than BM25-uni", "the hybrid is better than both"):
        assert any(claim.startswith(start) and place == "Luan et al. 2021, §5" for claim, place in said)


def test_what_is_written_of_a_system_is_what_its_model_ranks(
    finished: Path, texts: Path, tiny_bert: Path, tmp_path: Path
) -> None:
    given = settings(texts, tiny_bert, tmp_path)
    task = first_tasks(given)[1]
    test, corpus = task.collection.split("test"), task.collection.corpus
    model = load(finished / "length-60/seed-0/ME-BERT-4/checkpoint")
    assert isinstance(model, Paradigm)
    encoder = model.encoder.settings
    assert (encoder.vectors, encoder.dim, encoder.layer_norm, encoder.normalize) == (2, 4, True, False)
    assert encoder.document_length == 62
    index = Index(Store.build(kinds.exact(), model, corpus.ids, corpus, tmp_path / "index"))
    result = json.loads((finished / "length-60/seed-0/ME-BERT-4.json").read_text())
    for stage, run in (
        ("retrieve", Indexed(index, model).search(test.queries, 12)),
        ("rerank", Indexed(index, model).rerank(test.queries, task.pool)),
    ):
        expected = per_query(run, test.judgements, ("RR@10",)).values["RR@10"].tolist()
        assert result["stages"]["ME-BERT-4"][stage] == expected
    assert not (finished / "length-60/seed-0/ME-BERT-4/training/checkpoints").exists()
    # Half of the candidates are BM25-bi's, half random, and the relevant one is there.
    for query, gold in test.judgements.items():
        own = task.bm25["BM25-bi"].search({query: test.queries[query]}, 6)[query]
        assert own.keys() | gold.keys() <= task.pool[query].keys()
        assert 12 <= len(task.pool[query]) <= 13


def test_answers_are_looked_for_in_a_fixed_number_of_tokens(
    texts: Path, tiny_bert: Path, tmp_path: Path
) -> None:
    changes = {"systems": '["DE-BERT-8"]', "hybrids": '["DE-BERT-8"]', "lengths": "[30]"}
    capacity.main(settings(texts, tiny_bert, tmp_path / "out", task="answers", **changes))
    rows = json.loads((tmp_path / "out/table_retrieve.json").read_text())
    hybrids = ["HYBRID-DE-BERT-8-uni", "HYBRID-DE-BERT-8-bi"]
    assert [row["system"] for row in rows] == [*BM25, "DE-BERT-8", *hybrids]
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
    answers = {"q": [" ".join(words[5:7])], "lost": [" ".join(words[8:10])], "d": [words[0]]}
    collection, counts = assemble("qa", rows, queries, judged), {"train": 2, "dev": 1, "test": 1}
    answers["e"] = answers["q"]
    passages = question_passages(collection, answers, counts, [10], load_tokenizer(tiny_bert))[10]
    task = open_task(10, passages, "Success@2", "BM25-uni", 4, tmp_path)
    # a#1's passages hold the answer of q too, and b#0's; the answer of "lost" lies across a cut.
    assert task.collection.split("train").judgements == {"q": {"a#0:0": 1}, "lost": {}}
    assert task.collection.corpus.ids == ["a#0:0", "a#0:1", "a#0:2", "a#0:3", "b#0:0", "b#0:1"]
    held = task.judged({"e": dict.fromkeys(task.collection.corpus.ids, 0.0)}).judgements["e"]
    assert held == {"a#0:0": 1, "a#0:3": 1, "b#0:1": 1}


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
    none = projected_ranks(problem, 0, np.array([], int), [3], problem.draw(4, rng), rng)
    assert worth(none, "RR@10").max() == worth(none, "Success@8").max() == 0


SIZES = {"DE-BERT-32": 32, "DE-BERT-512": 512, "DE-BERT": 768, "ME-BERT-64": 512, "ME-BERT": 6144}


def planted(task: str = "containing", more: Sequence[Any] = (), **changes: float) -> CapacityStudy:
    """Simulate measurements: Table A.1 plus small noise. changes: retrieval at 400 tokens of a system."""
    predictions: dict[int, dict[str, Any]] = {
        n: {"k*": [100, 90, 120], "values": {str(k): [0.2, 0.3] for k in SIZES.values()}}
        for n in PAPER_LENGTHS
    }
    rng, results = np.random.default_rng(0), []
    for system, cells in TABLE_A1[task].items():
        for stage, row in zip(STAGES, cells.split("|"), strict=True):
            changed = (
                {400: changes[name]}
                if stage == "retrieve" and (name := system.replace("-", "_")) in changes
                else {}
            )
            for length, cell in zip(PAPER_LENGTHS, row.split(), strict=False):
                for values in changed.get(length, float(cell) / 100) + 0.01 * rng.standard_normal((3, 300)):
                    results.append(
                        {"system": system, "length": length, "stages": {system: {stage: values.tolist()}}}
                    )
    return CapacityStudy(task, [*PAPER_LENGTHS], [*results, *more], predictions, SIZES)


def of_table(study: CapacityStudy) -> list[Verdict]:
    """Verdicts but for those about Figure 1, whose values the paper does not print."""
    found = verdicts(study.study(), "luan2021", study.task)
    return [verdict for verdict in found if "Figure 1" not in verdict.claim.place]


@pytest.mark.parametrize("task", ["containing", "answers"])
def test_every_claim_holds_of_the_papers_own_table_but_for_some(task: str) -> None:
    """Table A.1 contradicts two claims at 400 tokens, and has differences too small to matter."""
    study = planted(task)
    assert unmeasured(study.study(), "luan2021", task) == []
    found = of_table(study)
    assert len(found) >= 10
    assert all(float(v.claim.printed) == pytest.approx(v.interval.mean, abs=0.01) for v in found)
    against = {(v.claim.quantity.split(": ")[-1], v.word) for v in found if v.word != REPRODUCED}
    if task == "containing":
        assert against >= {
            ("ME-BERT-64, 400 tokens − BM25-uni, 400 tokens", CONTRADICTED),
            ("BM25-bi, 400 tokens", CONTRADICTED),
        }
    assert len(against) < 8


def test_a_claim_about_a_system_that_has_not_learned_is_not_decided() -> None:
    """Retrieval decides, unless a random projection to the same size does no better."""
    system = "DE-BERT-512"
    study = planted(DE_BERT_512=0.2)
    assert not study.learned(system)
    about = [v for v in of_table(study) if system in v.claim.quantity]
    assert len(about) >= 2
    assert {v.word for v in about} == {UNDECIDED}
    assert about[0].reason == f"{system} has not learned enough"
    study.predictions[400]["values"]["512"] = [0.1]
    assert study.learned(system)
