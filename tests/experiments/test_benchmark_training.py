"""The training benchmark: what its worker answers about our trainer, and what its tables say."""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments" / "benchmarks"))

import training
from training_parts import pairs, tables, trainers

from paradigms import PARADIGMS
from paradigms.data import Collection, Corpus, Problems, Split
from paradigms.train.contrastive import Contrastive
from tests.tiny import WORDS

STEPS, BATCH = 3, 8  # one of them a warm-up


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty documents of six words; each query is three of a document's words."""
    folder, words = tmp_path_factory.mktemp("words"), WORDS.split()
    texts = [" ".join(words[(7 * n + 3 * w) % len(words)] for w in range(6)) for n in range(40)]
    documents = [{"_id": f"d{n}", "title": "", "text": text} for n, text in enumerate(texts)]
    queries = [{"_id": f"q{n}", "text": " ".join(text.split()[:3])} for n, text in enumerate(texts)]
    for name, rows in (("corpus", documents), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "qrels").mkdir()
    lines = "".join(f"q{n}\td{n}\t1\n" for n in range(40))
    (folder / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\n" + lines)
    return folder


@pytest.fixture(scope="module")
def settings(collection: Path, tiny_bert: Path) -> training.Settings:
    return training.Settings(
        batches=[BATCH], mini_batch=3, examples=(STEPS - 1) * BATCH, collection=str(collection),
        encoder=str(tiny_bert),
        dim=8, query_length=6, document_length=7, threads=torch.get_num_threads(), device="cpu",
    )  # fmt: skip


@pytest.fixture(scope="module")
def work(settings: training.Settings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pairs.prepare(settings, tmp_path_factory.mktemp("benchmark"))


@pytest.fixture(scope="module")
def answers(
    settings: training.Settings, work: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[int, tuple[dict, list]]:
    """mini_batch -> what the worker answers, in this process, and the batches that it made, as the number
    of texts encoded at once and the queries."""
    found = {}
    for mini_batch in (0, settings.mini_batch):
        row, made = tables.Row("ours", BATCH, mini_batch), []
        folder = tmp_path_factory.mktemp("job")
        (folder / "job.json").write_text(
            json.dumps(vars(training.job_of(settings, row, work)) | {"memory": 0})
        )
        with pytest.MonkeyPatch.context() as patch:
            collate = Contrastive.collate

            def spied(self: Contrastive, given: list, collate=collate, made: list = made) -> object:
                made.append((self.chunk, [example.query for example in given]))
                return collate(self, given)

            patch.setattr(Contrastive, "collate", spied)
            trainers.main(folder)
        found[mini_batch] = json.loads((folder / "answer.json").read_text()), made
    return found


# --- the worker ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mini_batch", [0, 3])
def test_our_trainer_takes_the_pairs_in_their_order(answers: dict, work: Path, mini_batch: int) -> None:
    queries = [json.loads(line)["query"] for line in (work / "pairs.jsonl").read_text().splitlines()]
    assert len(queries) == trainers.CHECKED > STEPS * BATCH
    wanted = [queries] + [queries[n * BATCH : (n + 1) * BATCH] for n in range(STEPS)]
    assert answers[mini_batch][1] == [(mini_batch, batch) for batch in wanted]


def test_the_loss_is_that_of_summed_maxima(answers: dict, work: Path, settings: training.Settings) -> None:
    lines = [json.loads(line) for line in (work / "pairs.jsonl").read_text().splitlines()]
    lengths = {"query_length": settings.query_length, "document_length": settings.document_length}
    model = PARADIGMS["colbert"](work / "encoder", dim=settings.dim, skip="", **lengths).eval()
    made = load_file(work / "projection.safetensors")["projection"]
    torch.testing.assert_close(made @ made.T, torch.eye(settings.dim), atol=1e-5, rtol=0.0)
    with torch.no_grad():
        model.encoder.projection.weight.copy_(made)

    def vectors(side: str) -> list[torch.Tensor]:
        encode = model.encode_queries if side == "query" else model.encode_documents
        return [encode([line[side]]).vectors.flatten(0, 2) for line in lines]

    documents = vectors("document")
    scores = torch.stack(
        [torch.stack([(d @ q.T).amax(0).sum() for d in documents]) for q in vectors("query")]
    )
    assert max(len(d) for d in documents) == settings.document_length  # some are cut
    wanted = torch.nn.functional.cross_entropy(scores / settings.temperature, torch.arange(len(lines)))
    assert answers[0][0]["loss"] == pytest.approx(wanted.item(), rel=1e-5)
    assert answers[3][0]["loss"] == pytest.approx(wanted.item(), rel=1e-5)


def test_an_answer_has_times_memory_and_versions(answers: dict) -> None:
    for answer, _ in answers.values():
        assert len(answer["seconds"]) == STEPS - 1
        assert all(0 < seconds < 30 for seconds in answer["seconds"] + answer["cpu_seconds"])
        assert 2**27 < answer["memory"] < 2**35
        assert answer["versions"]["torch"] == version("torch")
        assert 0 < answer["first_loss"] < 10


def test_the_clock_runs_from_step_to_step(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([5.0, 7.0, 10.0, 14.0])
    spent = iter([1.0, 5.0, 11.0, 19.0])
    monkeypatch.setattr(trainers.time, "perf_counter", lambda: next(moments))
    monkeypatch.setattr(trainers.time, "process_time", lambda: next(spent))
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.AdamW([weight])
    with trainers.Clock("cpu") as clock:
        for _ in range(4):
            optimizer.step()
    optimizer.step()  # no longer of interest: the hook is gone
    assert clock.answer(1)["seconds"] == [2.0, 3.0, 4.0]
    assert clock.answer(2) == {"seconds": [3.0, 4.0], "cpu_seconds": [6.0, 8.0], "memory": clock.peak}
    assert clock.peak > 0


def test_a_process_that_may_not_hold_more_is_a_cell(settings: training.Settings, work: Path) -> None:
    limited = training.Settings(**vars(settings) | {"memory": 0.001})
    answer = training.run_job(limited, tables.Row("ours", BATCH, 0), work, sys.executable)
    assert answer["failed"] == "out of memory", answer["errors"]


# --- pairs --------------------------------------------------------------------------------------------


def test_no_document_is_relevant_to_two_of_the_pairs() -> None:
    texts = ["one", "two", "three", "one", "five", "six"]  # the fourth repeats the first
    judged = {
        "a": {"0": 1, "1": 0}, "b": {"1": 1}, "c": {"1": 2, "2": 1}, "d": {"3": 1},
        "e": {"4": 0}, "f": {"5": 1},
    }  # fmt: skip
    split = Split({q: f"query {q}" for q in judged}, judged)
    whole = Collection("words", Corpus([str(n) for n in range(6)], texts), {"train": split}, Problems(), "")
    for seed in range(6):
        found = pairs.distinct_pairs(whole, 3, seed)
        assert sorted(found) in [
            sorted([(f"query {one}", "one"), (f"query {other}", text), ("query f", "six")])
            for one in "ad"
            for other, text in (("b", "two"), ("c", "three"))
        ]
    with pytest.raises(SystemExit, match=r"words has 3 training queries.*and 4 are"):
        pairs.distinct_pairs(whole, 4, 0)
    with pytest.raises(SystemExit, match="words has no training queries"):
        pairs.distinct_pairs(Collection("words", whole.corpus, {"test": split}, Problems(), ""), 3, 0)


# --- tables -------------------------------------------------------------------------------------------


def answer(seconds: list[float], gib: float, loss: float = 2.0) -> dict:
    return {
        "seconds": seconds, "cpu_seconds": [2 * s for s in seconds], "memory": gib * tables.GiB,
        "loss": loss, "first_loss": 3.0,
        "versions": {"torch": "2"},
    }  # fmt: skip


def test_a_row_is_the_mean_of_its_rounds() -> None:
    row = tables.summary(tables.Row("pylate", 30, 0), [answer([2.0, 4.0], 1.5), answer([10.0, 20.0], 2.5)])
    assert (row["slowest"], row["fastest"], row["examples_per_s"]) == (2, 10, 6)
    assert row["examples_per_cpu_s"] == 3
    assert (row["memory_gib"], row["name"], row["failed"]) == (2.5, "PyLate", "")


def test_a_row_that_fails_once_has_no_speed(settings: training.Settings) -> None:
    failed = {"failed": "out of memory", "errors": "..."}
    measured = {
        tables.Row("ours", 128, 0): [answer([64.0], 8.0)],
        tables.Row("pylate", 128, 0): [answer([1.0], 1.0), failed],
        tables.Row("pylate", 128, 32): [],
    }
    found = tables.report(settings, measured)
    assert [row["failed"] for row in found["rows"]] == ["", "out of memory"]
    assert found["rows"][0]["ratio"] is None  # no peer is left
    assert found["targets"] == []


def test_one_row_of_ours_has_to_meet_both_targets(settings: training.Settings) -> None:
    measured = {
        tables.Row("ours", 128, 0): [answer([128 / 10], 9.0, 2.1)],
        tables.Row("ours", 128, 32): [answer([128 / 7], 3.0)],
        tables.Row("sentence_transformers", 128, 0): [answer([128 / 3], 13.0)],
        tables.Row("sentence_transformers", 128, 32): [answer([128 / 4], 3.5)],
        tables.Row("pylate", 128, 0): [answer([128 / 2], 20.0)],
        tables.Row("ours", 32, 0): [answer([32 / 9], 4.0)],
        tables.Row("pylate", 32, 0): [answer([32 / 7.2], 4.0)],
        tables.Row("ours", 64, 0): [answer([8.0], 4.0)],
    }
    found = tables.report(settings, measured)
    assert [row["ratio"] for row in found["rows"]] == [
        pytest.approx(2.5), pytest.approx(1.75), None, None, None, pytest.approx(1.25), None, None,
    ]  # fmt: skip
    assert found["losses_differ_by"] == pytest.approx(0.05)
    assert [(t["target"], t["holds"]) for t in found["targets"]] == [
        ("batch 32: times faster", True),
        ("batch 128: times faster", False),
        ("batch 128: GiB, at most", True),
    ]
    speed, memory = found["targets"][1:]
    assert (speed["wanted"], speed["value"]) == (2, pytest.approx(1.75))
    assert speed["of"] == "ours, cached 32 against sentence-transformers, cached 32; 1.75 by CPU time"
    assert (memory["wanted"], memory["value"]) == (3.5, 3.0)
    measured[tables.Row("ours", 128, 32)] = [answer([128 / 7], 3.6)]  # now neither fits: the fastest counts
    speed, memory = tables.report(settings, measured)["targets"][1:]
    assert (speed["value"], speed["holds"], memory["holds"]) == (pytest.approx(2.5), True, False)


def test_tables_are_printed_with_failures_and_targets(
    settings: training.Settings, capsys: pytest.CaptureFixture
) -> None:
    measured = {
        tables.Row("ours", 32, 0): [answer([3.2], 4.0), answer([4.0], 4.0)],
        tables.Row("sentence_transformers", 32, 0): [answer([6.4], 4.0)],
        tables.Row("pylate", 32, 0): [{"failed": "out of memory", "errors": ""}],
    }
    settings.rounds = 2
    tables.show(Console(width=160), settings, tables.report(settings, measured))
    printed = capsys.readouterr().out
    assert "The rounds of a row lie up to 25% apart." in printed
    assert "PyLate, batch 32: out of memory" in printed
    assert "ours against sentence-transformers" in printed
    assert "had 2.00 to 2.00 processors at a time" in printed


# --- settings -----------------------------------------------------------------------------------------


def test_every_batch_size_is_timed_on_as_many_examples() -> None:
    settings = training.Settings(examples=200, device="cpu")
    assert [settings.steps(batch) for batch in (32, 100, 128, 200, 256)] == [6, 2, 2, 1, 1]


def test_caching_is_for_batches_of_more_than_one_mini_batch(settings: training.Settings) -> None:
    wide = training.Settings(batches=[32, 64], chunks=[32, 48], device="cpu")
    assert [(row.batch, row.name) for row in training.rows(wide, ["ours", "pylate"])] == [
        (32, "ours"), (32, "PyLate"), (64, "ours"), (64, "PyLate"),
        (64, "ours, cached 32"), (64, "PyLate, cached 32"), (64, "ours, cached 48"),
    ]  # fmt: skip
    wide.systems = ["PyLate, cached"]
    assert [row.batch for row in training.rows(wide, ["ours", "pylate"])] == [64]
    with pytest.raises(SystemExit, match="no row is called PyLate, cached"):
        training.rows(wide, ["ours"])


def test_environments_tell_what_they_have(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="not a virtual environment"):
        training.interpreters([str(tmp_path)])
    python = tmp_path / "bin" / "python"
    mark = tmp_path / "lib" / "python3.11" / "site-packages" / training.MARKS["pylate"]
    for file in (python, mark):
        file.parent.mkdir(parents=True)
        file.touch()
    assert training.interpreters([str(tmp_path)]) == {"ours": sys.executable, "pylate": str(python)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"examples": 0}, "examples must be at least 1"),
        ({"warmup": 0}, "warmup must be at least 1"),
        ({"batches": [1]}, "2 pairs or more"),
        ({"batches": []}, "2 pairs or more"),
        ({"precision": "fp16"}, "precision must be no or bf16"),
        ({"device": "tpu"}, "device must be auto, cpu or cuda"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        training.Settings(**changes)


@pytest.mark.parametrize(
    ("status", "errors", "wanted"),
    [
        (-9, "", "out of memory"),
        (1, "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried", "out of memory"),
        (1, "Traceback\ntorch.OutOfMemoryError: CUDA out of memory. Tried", "out of memory"),
        (1, "Traceback\nValueError: lengths differ\n", "ValueError: lengths differ"),
        (3, " \n", "exit status 3"),
    ],
)
def test_why_a_process_failed(status: int, errors: str, wanted: str) -> None:
    assert training.reason(status, errors) == wanted
