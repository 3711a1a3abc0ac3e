"""Two processes search and rerank with the results of one, however the work is divided."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from accelerate import PartialState

from paradigms import Paradigm
from paradigms.find import INDEXES, open_index
from paradigms.retrieve import AllProcesses, Indexed, Merged, wrappers
from tests.forks import fork_group
from tests.near import assert_same_run
from tests.retrieve.test_merged import QUERIES, TEXTS, model

POOL = {query: dict.fromkeys(list(TEXTS)[n + 4 :: 3], 0.0) for n, query in enumerate(QUERIES)}
SYSTEMS = [("colbert", "exact"), ("xtr", "exact")]
SYSTEMS += [("colbert", kind) for kind in ("compressed", "lemur", "folders")]


def opened(paradigm: Paradigm, place: Path) -> Indexed | Merged:
    if place.name.endswith("folders"):
        return Merged.open([place / "0", place / "1"], paradigm)
    index = open_index(place)
    if place.name.endswith("lemur"):
        index = index.with_finder(candidates=7)  # the half of the documents would bring as many again
    return Indexed(index, paradigm)


def search(backbone: Path, folder: Path) -> None:
    """Each process writes the results of every system."""
    torch.set_num_threads(1)
    wrappers.BLOCK = 3  # of four queries
    state, found = PartialState(cpu=True), {}
    for name, kind in SYSTEMS:
        retriever = AllProcesses(opened(model(name, backbone), folder / f"{name}-{kind}"), state)
        run = retriever.search(QUERIES, 7)
        found[f"{name} {kind} search"] = run
        found[f"{name} {kind} rerank"] = retriever.rerank(QUERIES, POOL)
        alone = replace(retriever, to_all=False).search(QUERIES, 7)
        assert alone == (run if state.is_main_process else {query: {} for query in QUERIES})
    (folder / f"{state.num_processes}-{state.process_index}.json").write_text(json.dumps(found))
    state.destroy_process_group()


@pytest.mark.slow
def test_as_one_process(tiny_bert: Path, tmp_path: Path):
    for name, kind in SYSTEMS:
        place, paradigm = tmp_path / f"{name}-{kind}", model(name, tiny_bert)
        if kind == "folders":
            for n in range(2):
                half = dict(list(TEXTS.items())[n::2])
                Indexed.build(paradigm, half, place / str(n))
        else:
            Indexed.build(paradigm, TEXTS, place, kind=INDEXES[kind]())
    for count in (1, 2):
        group = fork_group(tmp_path / "log", count, search, tiny_bert, tmp_path)
        ended = [process.ended() for process in group]
        assert [code for code, _ in ended] == [0] * count, ended
    alone, first, second = (json.loads((tmp_path / f"{n}.json").read_text()) for n in ("1-0", "2-0", "2-1"))
    assert first == second
    for system, run in alone.items():
        assert_same_run(first[system], run)
    assert {len(scores) for scores in alone["colbert exact search"].values()} == {0, 7}
