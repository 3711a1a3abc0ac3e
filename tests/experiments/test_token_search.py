"""The token search benchmark: what its workers answer about indexes of ours, and what its tables say."""

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments" / "benchmarks"))

import token_search
from token_parts import systems, vectors

from tests.forks import fork

DIM = 32


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    draw = np.random.default_rng(0)
    target = tmp_path_factory.mktemp("vectors")
    lengths = draw.integers(1, 9, 40)
    tokens = vectors.unit(draw.standard_normal((lengths.sum(), DIM))).astype(np.float16)
    queries = [vectors.unit(draw.standard_normal((n, DIM))).astype(np.float32) for n in (3, 5, 17)]
    np.save(target / "tokens.npy", tokens)
    np.save(target / "lengths.npy", lengths)
    np.savez(target / "queries.npz", **{str(n): query for n, query in enumerate(queries)})
    ranked = [vectors.exact(tokens, lengths, query, 20) for query in queries]
    (target / "candidates.json").write_text(json.dumps(ranked))
    (target / "relevant.json").write_text(json.dumps([[row[0]] for row in ranked]))
    (target / "vectors.json").write_text(json.dumps({"tokens": len(tokens)}))
    return target


def test_exact_maxsim_by_definition(folder: Path) -> None:
    made = systems.Vectors(str(folder))
    for query, ranked in zip(made.queries, made.candidates, strict=True):
        scores = [(d @ query.T).max(0).sum() for d in made.documents()]
        assert ranked == np.argsort(scores)[::-1][:20].tolist()


def worker(script: str, job: str) -> None:
    sys.argv = [script, job]
    runpy.run_path(script, run_name="__main__")


def test_workers_build_and_search_our_indexes_and_the_plain_ways(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = subprocess.run

    def first_is_its_own(command: list[str], **how: Any) -> subprocess.CompletedProcess[str]:
        """The first worker is an interpreter of its own, the others are forks."""
        monkeypatch.setattr(token_search.subprocess, "run", forked)
        return run(command, **how)

    def forked(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        code, said = fork(tmp_path / "log", worker, *command[1:]).ended()
        return subprocess.CompletedProcess(command, code, said, said)

    monkeypatch.setattr(token_search.subprocess, "run", first_is_its_own)
    wanted = json.loads((folder / "candidates.json").read_text())
    pythons, missing = token_search.interpreters([])
    assert missing == ["maxsim_cpu", "fast_plaid", "warp"]
    settings = token_search.Settings(threads=1)
    names = ("exact", "rerank 100", "gather, 4 bits, 8 lists, 128 candidates", "padded einsum, 100")
    chosen = [row for row in token_search.rows() if row.name in names]
    assert len(chosen) == len(names)
    measured: dict = {"built": {}, "searched": {}}
    for row in chosen:
        if row.index and row.index not in measured["built"]:
            measured["built"][row.index] = token_search.run_job(
                settings, folder, tmp_path, pythons, row, "build"
            )
        measured["searched"][row.name] = [
            token_search.run_job(settings, folder, tmp_path, pythons, row, "search")
        ]
        found = measured["searched"][row.name][0]["found"]
        if row.kind != "gather":
            assert [r[:10] for r in found] == [r[:10] for r in wanted]
    speed = {"bytes_per_s": 1e10, "flops_per_s": 1e11}
    table = {row["name"]: row for row in token_search.summary(chosen, measured, folder, speed)}
    assert table["exact"]["recall"] == table["exact"]["mrr"] == 1
    assert table["gather, 4 bits, 8 lists, 128 candidates"]["recall"] > 0.6
    assert table["exact"]["bytes_per_token"] > 2 * DIM
    assert 20 < table["exact"]["search_mib"] < 4000
    assert table["rerank 100"]["ratio"][1] == "padded einsum, 100"
    assert table["exact"]["ratio"] is None
    assert table["exact"]["single_limit_ms"] >= table["exact"]["batch_limit_ms"] > 0


def row(name: str, kind: str, ours: bool, ms: float, recall: float) -> dict:
    return {"name": name, "kind": kind, "ours": ours, "single_ms": ms, "recall": recall}
