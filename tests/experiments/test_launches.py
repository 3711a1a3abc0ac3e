"""Scripts launched with two processes: these share the work, or the second ends, as the page says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.experiments.scripts import SMALL, pair_flags, run
from tests.forks import fork_group
from tests.launch import ROOT

SCRIPTS = {
    str(file.relative_to(ROOT / "experiments")): "processes=True" in call[0]
    for file in sorted((ROOT / "experiments").rglob("*.py"))
    if (call := re.search(r"^launch\(__name__.*$", file.read_text(), re.MULTILINE))
}


def test_the_page_lists_what_several_processes_share() -> None:
    page = (ROOT / "paradigms" / "train" / "SCALE.md").read_text()
    (row,) = re.findall(r"^\| shared by all processes \| (.*) \|$", page, re.MULTILINE)
    assert re.findall(r"`(\w+\.py)`", row) == [name for name, shared in SCRIPTS.items() if shared]


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_two_processes(script: str) -> None:
    launched = {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "ACCELERATE_USE_CPU": "true",
    }
    command = [sys.executable, str(ROOT / "experiments" / script), "--help"]
    ended = [
        subprocess.run(
            command,
            env=os.environ | launched | {"RANK": rank, "LOCAL_RANK": rank},
            capture_output=True,
            text=True,
        )
        for rank in "01"
    ]
    assert [process.returncode for process in ended] == [0, 0]
    assert "runs in one process" in ended[0].stderr or SCRIPTS[script]
    assert all("--help" in process.stdout for process in ended[: 2 if SCRIPTS[script] else 1])
    assert SCRIPTS[script] or (ended[1].stdout, ended[1].stderr) == ("", "")


# Studies that train pairs, and the flags with which the other studies are small.
PAIRS = {
    "alignment_directions": {},
    "document_encoding": {"systems": '["S-T5", "T5-ColBERT", "S-T5, untrained"]'},
    "low_rank": {},
    "term_matching": {},
}
TEXTS = {"query_length": 8, "document_length": 12}
FLAGS: dict[str, dict[str, object]] = {
    "alignment_adaptation": TEXTS | {"depth": 12},
    "capacity": {
        "collection": "pydocs", "documents": 300, "lengths": "[30]", "systems": '["DE-BERT-8"]',
        "train_queries": 12, "dev_queries": 6, "test_queries": 8, "depth": 12, "theory_queries": 2,
        "samples": 8, "hybrids": "[]",
    },
    "fewer_numbers": TEXTS | {"models": '["control"]'},
    "hybrid": TEXTS | {"rerank_steps": 2, "depth": 8, "rerank_depths": "[2]", "negatives": 1},
    "salience_pruning": TEXTS | {"methods": '["idf", "relu", "none"]', "depth": 8},
    "token_retrieval": TEXTS | {"other_batch_sizes": "[]", "k_train": "[0.1]", "search_tokens": "[2, 200]"},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("study", [*PAIRS, *FLAGS])
def test_two_processes_finish_a_study(
    study: str, words: Path, tiny_bert: Path, seq2seq: dict[str, Path], tmp_path: Path
) -> None:
    """The first reports. The other shared scripts have tests of their own."""
    if study in PAIRS:
        flags = pair_flags(words, seq2seq["t5"], tmp_path, seeds="[0]") | PAIRS[study]
    else:
        named = {"collections": f"[{words}]"} if study == "alignment_adaptation" else {"collection": words}
        named |= {"backbone": tiny_bert, "output": tmp_path / "results", "seeds": "[0]"}
        flags = SMALL | named | FLAGS[study]
    group = fork_group(tmp_path / "log", 2, launched, study, flags, ACCELERATE_USE_CPU="true")
    ended = [process.ended() for process in group]
    assert [code for code, _ in ended] == [0, 0], ended
    assert ["Report: " in said for _, said in ended] == [True, False]


def launched(study: str, flags: dict[str, object]) -> None:
    run(study, **flags)
