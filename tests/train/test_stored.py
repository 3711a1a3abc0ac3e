"""Examples in files are those in memory, in every order, and training with them is the same."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import Accelerator

from paradigms.train import rows as rows_module
from paradigms.train.contrastive import Contrastive
from paradigms.train.loop import Paused, TrainingSettings, train
from paradigms.train.losses import candidate_count
from paradigms.train.order import mixed_batches
from paradigms.train.rows import examples_from_rows, stored_rows
from tests.tiny import WORDS
from tests.train.test_loop import build, history


def pairs(count: int, negatives: int = 0, seed: int = 0) -> list[dict]:
    """Rows whose queries and documents repeat."""
    draw = np.random.default_rng(seed)
    words = WORDS.split()[:40]
    rows = []
    for n in range(count):
        row: dict = {"query": " ".join(draw.choice(words, 2)), "positive": f"{draw.choice(words)} sea"}
        row |= {f"negative_{k}": f"{draw.choice(words)} land {n % 3}" for k in range(negatives)}
        rows.append(row | {"scores": draw.normal(size=1 + negatives).tolist()} if negatives else row)
    return rows


@pytest.mark.parametrize("negatives", [0, 2])
def test_stored_rows_are_the_examples_of_the_rows(tmp_path: Path, monkeypatch, negatives: int):
    monkeypatch.setattr(rows_module, "ROWS", 8)
    rows = pairs(50, negatives)
    corpus, examples = examples_from_rows(rows)
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    texts, results = stored_rows(str(file), tmp_path / "stored")
    assert list(texts) == list(corpus)
    assert list(results) == examples
    assert (len(results), results[-1], results.taught) == (50, examples[-1], negatives > 0)
    if negatives:
        assert candidate_count(results, "x", taught=True) == 3
    before = (tmp_path / "stored" / "examples.arrow").stat().st_mtime_ns
    assert stored_rows(str(file), tmp_path / "stored")[1].digest == results.digest
    assert (tmp_path / "stored" / "examples.arrow").stat().st_mtime_ns == before
    file.write_text(json.dumps(rows[0]) + "\n")
    assert list(stored_rows(str(file), tmp_path / "stored")[1]) == examples_from_rows(rows[:1])[1]


def test_bad_rows_are_named_and_leave_no_files(tmp_path: Path):
    rows = [{"query": "q", "positive": "a"}, {"query": "q", "positive": "b", "negative": "a"}]
    with pytest.raises(ValueError, match="row 2: a negative is relevant to the same query, 'q'"):
        stored_rows(rows, tmp_path / "stored")
    with pytest.raises(TypeError, match="rows are read twice"):
        stored_rows(iter(rows), tmp_path / "stored")
    assert not list(tmp_path.iterdir())


def test_training_from_files_is_training_from_memory_and_resumes(tiny_bert: Path, tmp_path: Path):
    rows = pairs(40)
    for name in ("memory", "files"):
        texts, examples = (
            examples_from_rows(rows) if name == "memory" else stored_rows(rows, tmp_path / "rows")
        )
        settings = TrainingSettings(steps=4, batch_size=4, save_every=2, log_every=1, learning_rate=1e-3)
        for minutes in (1e-9, 0.0) if name == "files" else (0.0,):
            model = build(tiny_bert, "dpr")
            objective = Contrastive(model, texts, examples)
            try:
                more = {"accelerator": Accelerator(cpu=True), "progress": False}
                train(model, objective, replace(settings, minutes=minutes), tmp_path / name, **more)
            except Paused:
                continue
    assert history(tmp_path / "files") == history(tmp_path / "memory")


def test_a_permutation_is_that_of_64_bits(monkeypatch):
    (batch,) = mixed_batches([10], [1.0], 10, 1, seed=3)
    assert batch == torch.randperm(10, generator=torch.Generator().manual_seed(3 * 1_000_003)).tolist()


@pytest.mark.parametrize(("count", "size", "world"), [(11, 4, 2), (12, 4, 4), (8, 8, 1)])
def test_steps_repeat_no_example_in_an_epoch_and_are_the_same_in_any_number_of_processes(count, size, world):
    def batches(start: int = 0, rank: int = 0, world: int = 1) -> np.ndarray:
        share = size // world
        options = {"start": start, "rank": rank, "world": world, "seed": 3}
        return np.array(list(mixed_batches([count], [1.0], share, 9, **options)))

    steps = batches()
    assert steps.shape == (9, size)
    epoch = count // size
    for begin in range(0, 10 - epoch, epoch):
        assert len(np.unique(steps[begin : begin + epoch])) == epoch * size
    assert not np.array_equal(steps[:epoch], steps[epoch : 2 * epoch])  # in another order
    processes = [batches(rank=rank, world=world) for rank in range(world)]
    assert np.array_equal(np.concatenate(processes, axis=1), steps)
    for start in range(9):
        assert np.array_equal(batches(start), steps[start:])
