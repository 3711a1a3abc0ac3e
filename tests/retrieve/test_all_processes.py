"""Two processes search and rerank with the results of one, however the work is divided."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from accelerate import PartialState

from paradigms import PARADIGMS
from paradigms.find import INDEXES, Store, open_index
from paradigms.retrieve import AllProcesses, Indexed, Merged, wrappers
from tests.forks import fork_group
from tests.tiny import WORDS

TEXTS = [" ".join(WORDS.split()[(5 * n + w) % 200] for w in range(4 + n % 5)) for n in range(30)]
IDS = [f"d{n:02}" for n in range(30)]
QUERIES = {"a": "bird over the sea", "b": "fire and wood", "none": "", "c": "city cold color"}
POOL = {query: dict.fromkeys(IDS[n + 4 :: 3], 0.0) for n, query in enumerate(QUERIES)}
SYSTEMS = [(name, "exact") for name in ("colbert", "xtr", "dpr")]
SYSTEMS += [("colbert", kind) for kind in ("compressed", "lemur", "folders")]
HALVES = (slice(0, None, 2), slice(1, None, 2))


def search(backbone: Path, folder: Path, answers: str) -> None:
    """Each process writes the results of every system."""
    torch.set_num_threads(1)
    wrappers.BLOCK = 3  # of four queries
    state, found = PartialState(cpu=True), {}
    for name, kind in SYSTEMS:
        torch.manual_seed(0)
        paradigm = PARADIGMS[name](backbone, query_length=12, document_length=16)
        place = folder / f"{name}-{kind}"
        if kind == "folders":
            retriever = AllProcesses(Merged.open([place / "0", place / "1"], paradigm), state)
        else:
            index = open_index(place)
            if kind == "lemur":
                index = index.with_finder(candidates=7)  # the half of the documents would bring as many again
            retriever = AllProcesses(Indexed(index, paradigm), state)
        found[f"{name} {kind} search"] = retriever.search(QUERIES, 7)
        found[f"{name} {kind} rerank"] = retriever.rerank(QUERIES, POOL)
        alone = replace(retriever, to_all=False).search(QUERIES, 7)
        received = found[f"{name} {kind} search"] if state.is_main_process else {q: {} for q in QUERIES}
        assert alone == received
    Path(f"{answers}-{state.num_processes}-{state.process_index}.json").write_text(json.dumps(found))
    state.destroy_process_group()


@pytest.mark.slow
def test_as_one_process(tiny_bert: Path, tmp_path: Path):
    for name, kind in SYSTEMS:
        torch.manual_seed(0)
        paradigm = PARADIGMS[name](tiny_bert, query_length=12, document_length=16)
        place = tmp_path / f"{name}-{kind}"
        if kind != "folders":
            Store.build(INDEXES[kind](), paradigm, IDS, TEXTS, place).delete(["d03"])
            continue
        for n, half in enumerate(HALVES):
            store = Store.build(INDEXES["exact"](), paradigm, IDS[half], TEXTS[half], place / str(n))
            if n == 1:
                store.delete(["d03"])
    answers = str(tmp_path / "answers")
    for count in (1, 2):
        group = fork_group(tmp_path / "log", count, search, tiny_bert, tmp_path, answers)
        ended = [process.ended() for process in group]
        assert [code for code, _ in ended] == [0] * count, ended
    named = (Path(f"{answers}-{name}.json") for name in ("1-0", "2-0", "2-1"))
    alone, first, second = (json.loads(file.read_text()) for file in named)
    assert first == second
    for system, run in alone.items():
        for query, scores in run.items():
            assert list(first[system][query]) == list(scores), (system, query)
            assert all(abs(first[system][query][d] - s) < 1e-5 for d, s in scores.items())
    assert {len(scores) for scores in alone["colbert exact search"].values()} == {0, 7}
    for job in ("search", "rerank"):
        one, several = alone[f"colbert exact {job}"], alone[f"colbert folders {job}"]
        assert {query: list(run) for query, run in one.items()} == {q: list(r) for q, r in several.items()}
