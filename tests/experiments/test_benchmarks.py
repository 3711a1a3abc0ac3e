"""The benchmarks of scale and of training: each on a tiny collection, and what they compare."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments" / "benchmarks"))
import scale
import training
from parts import composed, stages, systems
from training import PEER, Case, Round

from paradigms.train.order import mixed_batches
from tests import needs
from tests.near import assert_within_rounding
from tests.tiny import TERMS, WORDS, write_collection


@pytest.mark.slow
def test_every_stage_is_measured_once(words, tiny_bert, tmp_path, monkeypatch):
    measured = []

    def worker(name, job, threads, python, limit):
        measured.append((job["stage"], job["form"], job["documents"]))
        return json.loads(json.dumps(systems.measure(json.loads(json.dumps(job)))))

    monkeypatch.setattr(stages, "in_worker", worker)
    settings = scale.Settings(
        collections={str(words): 0}, sizes=[40, 1100], queries=6, tokens=8, splade=0,
        backbone=str(tiny_bert), most={"exact": 40, "XTR, exact": 40},
        systems=["compressed", "exact", "XTR", "one vector", "BM25", "LEMUR, 256"],
        output=str(tmp_path / "out"),
    )  # fmt: skip
    scale.main(settings)
    once = list(measured)
    scale.main(settings)
    assert measured == once  # a second start measures nothing again
    scale.main(replace(settings, report=True, sizes=[40, 1100, 2000]))
    assert measured == once
    study = json.loads((tmp_path / "out" / "study.json").read_text())
    searches = study["sections"]["searches"]["rows"]
    exact = [row for row in searches if row["system"].endswith("exact")]
    assert len(exact) == 6
    assert all(row["recall@10"].startswith("1.000") for row in exact)  # XTR's too: it retrieves every token
    assert not list((tmp_path / "out" / "indexes").iterdir())


@pytest.fixture
def real(tmp_path):
    random = np.random.default_rng(0)
    lengths = random.integers(1, 9, 600)
    values = random.standard_normal((lengths.sum(), 8)) + 3 * random.standard_normal(8)
    values = (values / np.linalg.norm(values, axis=1, keepdims=True)).astype(np.float16)
    queries = values[:6].astype(np.float32), np.array([2, 4])
    composed.write(tmp_path, "tokens", (values, lengths), np.arange(600) % 3, queries, 0)
    return tmp_path


def test_documents_do_not_depend_on_the_range_they_are_drawn_in(real):
    documents = composed.Composed(str(real), "tokens")
    full = list(documents.parts(0, 3000))
    assert [id for names, _ in full for id in names] == [str(n) for n in range(3000)]
    [(names, tokens)] = documents.parts(2100, 2104)
    assert names == full[2][0][52:56]
    there = tokens.mask[0]
    assert (tokens.vectors[0][there] == full[2][1].vectors[0, 52:56, : there.shape[1]][there]).all()


def test_composed_tokens_keep_the_moments_of_their_cells(real):
    """Mean and covariance of all tokens agree with those of the real ones, up to the drawing."""
    documents = composed.Composed(str(real), "tokens", real=0)
    drawn = np.concatenate([values for _, (values, _) in documents.blocks(0, 20_000)]).astype(np.float64)
    values = np.load(real / "tokens.values.npy").astype(np.float64)
    assert np.abs(np.linalg.norm(drawn, axis=1) - 1).max() < 2e-3  # in float16
    assert np.abs(drawn.mean(0) - values.mean(0)).max() < 0.02
    assert np.abs(np.cov(drawn.T) - np.cov(values.T)).max() < 0.02


BATCH, STEPS, LENGTH = 8, 2, 7


@pytest.fixture(scope="module")
def settings(tiny_bert, tmp_path_factory):
    """Forty documents of six words; each query is three of a document's words."""
    words = WORDS.split()
    texts = [" ".join(words[(7 * n + 3 * w) % len(words)] for w in range(6)) for n in range(40)]
    queries = [" ".join(text.split()[:3]) for text in texts]
    folder = write_collection(tmp_path_factory.mktemp("words"), texts, queries, {"train": range(40)})
    sizes = {"batch": BATCH, "length": LENGTH, "steps": STEPS, "threads": torch.get_num_threads()}
    return training.Settings(collection=str(folder), backbone=str(tiny_bert), **sizes)


@pytest.fixture(scope="module")
def pairs(settings):
    return training.distinct_pairs(training.load_collection(settings.collection), 32, 0)


@pytest.mark.parametrize("name", ["dpr", "colbert"])
def test_our_trainer_measures_the_case(settings, pairs, name):
    """The loss is that of the contrastive objective."""
    answer = training.measure(settings, Case(name, "no"), pairs)
    assert answer.rate > 0
    model, objective = training.contrastive(settings, name, pairs)
    objective.configure(training.TrainingSettings(temperature=training.TEMPERATURES[name]))
    batch = objective.collate(list(objective.examples[: training.CHECKED]))
    assert answer.loss == pytest.approx(objective.loss(model.eval(), batch).item(), rel=1e-4)


@needs.module("sentence_transformers", "sentence-transformers")
@pytest.mark.slow
def test_the_peer_does_the_same_work(settings, pairs, monkeypatch):
    """The same batches in the same order, and the same loss."""
    from datasets import Dataset

    read, from_list = [], Dataset.from_list
    monkeypatch.setattr(Dataset, "from_list", lambda rows: read.extend(rows) or from_list(rows))
    case = Case("colbert", "no")
    ours = training.measure(settings, case, pairs)
    peer = training.measure(settings, case._replace(system=PEER), pairs)
    batches = mixed_batches([len(pairs)], [1.0], BATCH, training.WARMUP + STEPS, seed=settings.seed)
    drawn = [pairs[n] for batch in batches for n in batch]
    assert read == [{"query": query, "document": document} for query, document in drawn]
    scale = LENGTH / training.TEMPERATURES["colbert"]
    assert_within_rounding(peer.loss, ours.loss, torch.float32, TERMS + 100, scale=scale)


def test_tables_pair_the_rounds():
    """Ratios of our trainer to the peer are taken round by round."""
    rates = {Case("dpr", "no"): [2, 4], Case("dpr", "no", PEER): [1, 4]}
    built = training.sections({case: [Round(rate, 1.0) for rate in row] for case, row in rates.items()})
    assert [row["ours / system"] for row in built["peers"].rows] == ["–", "1.50 [1.00, 2.00]"]
