"""Several indexes answer as one index of all their documents, and several processes as one."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from accelerate import PartialState

from paradigms import Paradigm
from paradigms.data import Corpus
from paradigms.find import INDEXES, open_index
from paradigms.retrieve import AllProcesses, Indexed, Merged, wrappers
from tests.forks import fork_group
from tests.near import assert_same_run
from tests.tiny import WORDS, built

TEXTS = {f"d{n:02}": " ".join(WORDS.split()[(7 * n + w) % 200] for w in range(n % 6)) for n in range(40)}
QUERIES = {"a": "bird over the sea", "b": "fire and wood in winter", "none": "", "c": "city cold color"}
POOL = {query: dict.fromkeys(list(TEXTS)[n + 4 :: 3], 0.0) for n, query in enumerate(QUERIES)}
SMALL = {"query_length": 12, "document_length": 16}
ALL = {"exact": {}, "faiss": {"factory": "Flat"}, "lemur": {"width": 16, "candidates": 40}}


def model(name: str, backbone: Path, **options: object) -> Paradigm:
    torch.manual_seed(0)
    return built(name, backbone, **(SMALL | options))


def parts(paradigm: Paradigm, kind: str = "exact") -> tuple[Indexed, Merged]:
    """One index of all documents, and three that share them, one document of which is deleted."""
    kinds = INDEXES[kind](**ALL[kind])
    full = Indexed.build(paradigm, TEXTS, kind=kinds)
    thirds = [dict(list(TEXTS.items())[n::3]) for n in range(3)]
    indexes = [Indexed.build(paradigm, third, kind=kinds) for third in thirds]
    first = type(full.index)(indexes[0].index.store.delete(["d03"]))
    merged = Merged([Indexed(first, paradigm, Corpus.of(TEXTS)), *indexes[1:]])
    return full.only(id for id in TEXTS if id != "d03"), merged


@pytest.mark.parametrize(
    ("name", "kind"), [("colbert", "exact"), ("coil", "exact"), ("colbert", "faiss"), ("colbert", "lemur")]
)
def test_indexes_search_and_rerank_as_one(tiny_bert, name, kind):
    one, several = parts(model(name, tiny_bert), kind)
    for k in (1, 4, 100):
        results = several.search(QUERIES, k)
        assert_same_run(results, one.search(QUERIES, k))
    assert results["none"] == {}
    assert_same_run(several.rerank(QUERIES, POOL), one.rerank(QUERIES, POOL))
    some = [id for id in TEXTS if id != "d03"][::2]
    assert_same_run(several.only(some).search(QUERIES, 5), one.only(some).search(QUERIES, 5))
    explained, expected = (r.explain(QUERIES["a"], "d02", ["d05"])[0] for r in (several, one))
    assert explained.rel == pytest.approx(expected.rel)


def test_each_index_imputes_from_its_own_tokens(tiny_bert):
    """XTR's scores are those of each index, not of one index of all documents."""
    one, several = parts(model("xtr", tiny_bert, search_tokens=7))
    results = several.search(QUERIES, 100)
    for part in several.parts:
        for query, scores in part.search(QUERIES, 100).items():
            assert_same_run({query: {id: results[query][id] for id in scores}}, {query: scores})
    assert results["a"].keys() >= one.search(QUERIES, 100)["a"].keys()


def test_folders_are_opened_and_divided(tiny_bert, tmp_path):
    paradigm = model("colbert", tiny_bert)
    folders = [tmp_path / str(n) for n in range(3)]
    for n, folder in enumerate(folders):
        Indexed.build(paradigm, dict(list(TEXTS.items())[n::3]), folder)
    several = Merged.open(folders, paradigm, Corpus.of(TEXTS))
    assert_same_run(several.search(QUERIES, 5), Indexed.build(paradigm, TEXTS).search(QUERIES, 5))
    halves = [several.part(n, 2) for n in range(2)]
    assert [len(half.parts) for half in halves if half] == [2, 1]
    assert several.part(0, 4) is None
    with pytest.raises(ValueError, match=r"document 'd00' of .*is also in another index"):
        Merged.open([*folders, folders[0]], paradigm)
    with pytest.raises(ValueError, match="there is no index"):
        Merged.open([], paradigm)
    with pytest.raises(KeyError, match="document 'x' is in none of the 3 indexes"):
        several.only(["d00", "x"])
    with pytest.raises(ValueError, match="not by this colbert"):
        Merged.open(folders, model("colbert", tiny_bert, document_length=9))


def test_indexes_of_two_models_are_refused(tiny_bert):
    models = model("colbert", tiny_bert), model("colbert", tiny_bert, query_length=9), model("xtr", tiny_bert)
    first, *others = (Indexed.build(one, {name: "fish"}) for one, name in zip(models, "abc", strict=True))
    for other, difference in zip(others, ("query_length", "align"), strict=True):
        with pytest.raises(ValueError, match=rf"are not of one model \(.*{difference}"):
            Merged([first, other])


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
    state, results = PartialState(cpu=True), {}
    for name, kind in SYSTEMS:
        retriever = AllProcesses(opened(model(name, backbone), folder / f"{name}-{kind}"), state)
        run = retriever.search(QUERIES, 7)
        results[f"{name} {kind} search"] = run
        results[f"{name} {kind} rerank"] = retriever.rerank(QUERIES, POOL)
        alone = replace(retriever, to_all=False).search(QUERIES, 7)
        assert alone == (run if state.is_main_process else {query: {} for query in QUERIES})
    (folder / f"{state.num_processes}-{state.process_index}.json").write_text(json.dumps(results))
    state.destroy_process_group()


@pytest.mark.slow
def test_as_one_process(tiny_bert: Path, tmp_path: Path):
    for name, kind in SYSTEMS:
        place = tmp_path / f"{name}-{kind}"
        paradigm = model(name, tiny_bert)
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
