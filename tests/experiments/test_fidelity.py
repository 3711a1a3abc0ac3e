"""experiments/fidelity.py: explicit random projections in the model's place do what the law says."""

import json
from types import SimpleNamespace

import fidelity
import numpy as np
import pytest
import torch

from paradigms.baselines import lexical_vectors
from paradigms.core import Tokens
from paradigms.data import load
from tests.experiments.test_random_projections import write_collection
from theory.collection import Problem

DIMENSION = 48


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_collection(tmp_path_factory.mktemp("fidelity"))


@pytest.fixture(scope="module")
def problem(folder):
    collection = load(folder)
    counts = lexical_vectors.count_terms(collection.corpus, collection.split("test").queries, 40, 0)
    return Problem.of(*lexical_vectors.weigh(counts))


@pytest.fixture(scope="module")
def projected(problem):
    """Documents and queries under 24 explicit Gaussian matrices."""
    rng = np.random.default_rng(3)
    matrices = (rng.standard_normal((problem.documents.shape[1], DIMENSION)) for _ in range(24))
    return [(problem.documents @ matrix, problem.queries @ matrix) for matrix in matrices]


def test_pairs_of_a_random_projection(problem, projected):
    tables = [fidelity.pair_rows(problem, *vectors, 4) for vectors in projected[:8]]
    for row in range(4):
        measured = np.array([table[row]["model"] for table in tables])
        error = measured.std(ddof=1) / np.sqrt(len(measured))
        assert abs(measured.mean() - tables[0][row]["random projection"]) < 4 * error
        assert np.median([table[row]["worth"] for table in tables]) == pytest.approx(DIMENSION, rel=0.25)


def test_recall_of_a_random_projection(problem, projected):
    scored = [documents @ queries.T for documents, queries in projected]
    settings = fidelity.Settings(samples=200)
    for row, claim in zip(*fidelity.recall_rows(problem, scored[0], DIMENSION, settings), strict=True):
        lost = []
        for scores in scored:
            best = [problem.competitors(0, q)[:2] for q in range(40)]
            lost.append(
                np.mean([np.sum(scores[o, q] >= scores[b, q]) < row["r"] for q, (b, o) in enumerate(best)])
            )
        error = np.std(lost, ddof=1) / np.sqrt(len(lost))
        assert abs(np.mean(lost) - row["random projection"]) < 5 * error
        assert row["model"] == lost[0]
        assert claim.contrast.mean() == pytest.approx(row["model"] - row["random projection"])


def stub(length=1):
    """A model whose one number is the length of the text."""

    def encode(texts):
        vectors = torch.tensor([[float(len(text)), 1.0] for text in texts])[None, :, None].repeat(
            1, 1, length, 1
        )
        return Tokens(vectors=vectors, mask=torch.ones(vectors.shape[:3], dtype=torch.bool))

    queries = lambda texts: SimpleNamespace(vectors=encode(texts).vectors.transpose(0, 1))  # noqa: E731
    return SimpleNamespace(
        encode_documents=encode, encode_queries=queries, recipe=SimpleNamespace(name="stub")
    )


def test_run_writes_everything(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(fidelity, "open_model", lambda name: stub())
    settings = fidelity.Settings(
        collection=str(folder), queries=10, samples=8, margin_bins=3, output=str(tmp_path / "out")
    )
    fidelity.main(settings)
    rows = {n: json.loads((tmp_path / f"out/{n}.json").read_text()) for n in ("claims", "pairs", "recall")}
    assert (len(rows["claims"]), len(rows["pairs"])) == (3, 3)
    assert [row["r"] for row in rows["recall"]] == [1, 10, 100]
    assert (tmp_path / "out/pairs.png").read_bytes().startswith(b"\x89PNG")
    assert "stub, 2 dimensions" in (tmp_path / "out/report.html").read_text()
    one = tmp_path / "one"
    one.mkdir()
    write_collection(one, documents=1)
    with pytest.raises(SystemExit, match="BM25 ranks no document below another"):
        fidelity.main(fidelity.Settings(collection=str(one), output=str(tmp_path / "none")))
