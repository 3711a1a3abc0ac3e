"""Indexes change by whole commits: killed, crowded and damaged writers; documents come and go."""

import copy
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from paradigms import PARADIGMS
from paradigms.align import one, query_to_document
from paradigms.core import Tokens, join_documents, rel, similarity
from paradigms.impute import imputed_rel
from paradigms.index import INDEXES, ExactIndex, FaissIndex, InvertedIndex, base, open_index, shards
from paradigms.index.base import TokenIndex
from paradigms.index.columns import ColumnFolder
from paradigms.recipe import Recipe
from tests.near import placed, same_scores

DIM = 4
RECIPE = Recipe("colbert", "query_to_document", "one")
IMPUTING = Recipe("xtr", "pool_top_k", "retrieved", {"k": 8}, search="impute", search_tokens=6)
TEXTS = [f"the bird {'sea ' * (n % 5)}flew over the old {n} river" for n in range(23)]
IDS = [f"d{n}" for n in range(23)]
Documents = list[tuple[list[str], Tokens]]


def tokens(*seeds: int) -> Tokens:
    """Documents that depend on their seed alone: 1 to 5 tokens, the 0th without any."""
    found = []
    for seed in seeds:
        random = torch.Generator().manual_seed(seed)
        vectors = torch.randint(-8, 9, (1, 1, 5, DIM), generator=random) / 8  # float16 holds all sums
        found.append(Tokens(vectors, torch.arange(5)[None, None] < (seed % 6)))
    return join_documents(found)


def documents(count: int, size: int = 3) -> Documents:
    """`count` documents d0, d1, …, in parts of `size`."""
    parts = [range(start, min(start + size, count)) for start in range(0, count, size)]
    return [([f"d{n}" for n in part], tokens(*part)) for part in parts]


def build(folder: Path, given: object, kind: type[TokenIndex] = ExactIndex, **settings: object) -> TokenIndex:
    return kind.build_from(given, folder, paradigm="colbert", dim=DIM, **settings)


def queries(seed: int = 100) -> Tokens:
    random = torch.Generator().manual_seed(seed)
    return Tokens(torch.randint(-8, 9, (2, 1, 3, DIM), generator=random) / 8, torch.ones(2, 1, 3) > 0)


def results(index: TokenIndex, k: int = 5) -> list[dict[str, float]]:
    return index.search_tokens(RECIPE, queries(), k) + index.search_tokens(IMPUTING, queries(), k)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def stopping(given: list[Any], after: int) -> Iterator[Any]:
    yield from given[:after]
    raise KeyboardInterrupt


@pytest.fixture
def paradigm(tiny_bert):
    torch.manual_seed(0)
    return PARADIGMS["coil"](tiny_bert, document_length=32)


def test_an_interrupted_build_of_something_else_is_refused(paradigm, tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "SHARD", 6)
    target = tmp_path / "index"
    with pytest.raises(KeyboardInterrupt):
        ExactIndex.build(paradigm, IDS, stopping(TEXTS, 20), target, batch_size=2)
    stored = contents(tmp_path / ".index.building")
    with pytest.raises((ValueError, FileNotFoundError), match=r"is a build that has not ended|is missing"):
        ExactIndex.open(tmp_path / ".index.building")
    other = [TEXTS[0], TEXTS[1].replace("bird", "lion"), *TEXTS[2:]]  # as long: only its words tell it
    another = copy.deepcopy(paradigm)
    with torch.no_grad():
        next(another.parameters()).add_(0.5)
    for model, kind, ids, texts, options, what in (
        (paradigm, ExactIndex, IDS, other, {}, "documents"),
        (paradigm, ExactIndex, [*IDS[:3], "x", *IDS[4:]], TEXTS, {}, "documents"),
        (paradigm, ExactIndex, IDS[:6], TEXTS[:6], {}, "documents"),  # fewer than are stored
        (paradigm, ExactIndex, IDS, TEXTS, {"keep": 0.5}, "settings or weights"),
        (paradigm, ExactIndex, IDS, TEXTS, {"batch_size": 3}, "settings or weights"),
        (paradigm, FaissIndex, IDS, TEXTS, {}, "settings or weights"),
        (another, ExactIndex, IDS, TEXTS, {}, "settings or weights"),
    ):
        with pytest.raises(ValueError, match=f"interrupted build of other {what}: end that one, or remove"):
            kind.build(model, ids, iter(texts), target, **({"batch_size": 2} | options))
        assert contents(tmp_path / ".index.building") == stored
    made = ExactIndex.build(paradigm, IDS, TEXTS, target, batch_size=2)
    fresh = ExactIndex.build(paradigm, IDS, TEXTS, tmp_path / "fresh", batch_size=2)
    assert contents(made.folder) == contents(fresh.folder)
    assert names(tmp_path) == ["fresh", "index"]


def test_texts_may_be_a_stream_and_ids_must_fit(paradigm, tmp_path):
    whole = ExactIndex.build(paradigm, IDS, TEXTS, tmp_path / "whole")
    stream = ExactIndex.build(paradigm, iter(IDS), (text for text in TEXTS), tmp_path / "stream")
    assert contents(stream.folder) == contents(whole.folder)
    for ids, texts, message in (
        (iter(["a"]), ["x", "y"], "fewer ids than texts"),
        (iter(["a", "b"]), ["x"], "fewer texts than ids"),
        (iter(["a", "a"]), ["x", "y"], "document 'a' is there already"),
        (["a", "a"], ["x", "y"], "as many different ids, not 1 among 2"),
    ):
        with pytest.raises(ValueError, match=message):
            ExactIndex.build(paradigm, ids, texts, tmp_path / "bad")
    assert names(tmp_path) == ["stream", "whole"]


def test_tokens_that_do_not_fit_are_refused(tmp_path):
    both = torch.ones(1, 1, 2) > 0
    for given, options, message in (
        ([(["a"], tokens(1, 2))], {}, "1 ids.*need tokens of axes"),
        ([(["a"], tokens(1))], {"fields": ["vectors", "ids"]}, "stores ids .* documents came without"),
        ([(["a"], Tokens(torch.ones(1, 1, 2, 3), both))], {}, "4 dimensions, not of 3"),
        ([(["a"], Tokens(torch.full((1, 1, 2, DIM), 1e6), both))], {}, "'a' do not fit float16"),
    ):
        with pytest.raises(ValueError, match=message):
            build(tmp_path / "index", given, **options)
    with pytest.raises(TypeError, match="bits"):
        build(tmp_path / "index", [], bits=4)
    assert names(tmp_path) == []


def test_what_a_killed_writer_left_is_cut_off_by_the_next(tmp_path):
    folder = build(tmp_path / "index", documents(5)).folder
    with (folder / "vectors.bin").open("ab") as stream:
        stream.write(b"half a row")
    (folder / "vectors.7.bin").write_bytes(b"a compaction that never ended")
    (folder / ".manifest.json.0badf00d.partial").mkdir()
    (folder / ".manifest.json.0badf00d.partial" / "fresh").write_text("{")
    (folder / "notes.txt").write_text("of someone else")
    index = ExactIndex.open(folder)
    assert len(index) == 5
    index.add_from(documents(6, 1)[5:])
    fresh = build(tmp_path / "fresh", documents(6))
    assert results(ExactIndex.open(folder)) == results(fresh)
    assert names(folder) == sorted([*names(fresh.folder), "notes.txt"])


def test_a_reader_that_comes_late_for_the_files_of_its_manifest_takes_the_next(tmp_path, monkeypatch):
    index, read = build(tmp_path / "index", documents(5)), ColumnFolder._manifest
    index.delete(["d1"])
    changes = [index.compact]

    def late(self: ColumnFolder) -> dict[str, Any]:
        answer = read(self)
        if changes:
            changes.pop()()
        return answer

    monkeypatch.setattr(ColumnFolder, "_manifest", late)
    assert ExactIndex.open(index.folder).ids == ["d0", "d2", "d3", "d4"]
    assert not changes


def test_a_file_may_be_replaced_while_its_size_is_read(tmp_path, monkeypatch):
    index, is_file = build(tmp_path / "index", documents(5)), Path.is_file
    index.delete(["d1"])
    changes = [index.compact]

    def late(file: Path) -> bool:
        answer = is_file(file)
        if file.name == "vectors.bin" and changes:
            changes.pop()()
        return answer

    monkeypatch.setattr(Path, "is_file", late)
    assert ExactIndex.open(index.folder).ids == ["d0", "d2", "d3", "d4"]


def test_an_index_that_is_written_is_not_replaced_by_a_build(tmp_path):
    index = build(tmp_path / "index", documents(5))
    with index._table.writing(), pytest.raises(BlockingIOError):
        build(tmp_path / "index", documents(4))
    with index._table.writing():
        with pytest.raises(BlockingIOError):
            index.delete(["d1"])
        with pytest.raises(BlockingIOError):
            index.add_from(documents(1))
    assert len(ExactIndex.open(tmp_path / "index")) == 5
    assert len(build(tmp_path / "index", documents(4))) == 4


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def cut(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-3])


def flip(name: str) -> Callable[[Path], object]:
    def damage(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        data[len(data) // 2] ^= 1
        (folder / name).write_bytes(data)

    return damage


def other(**entries: object) -> Callable[[Path], object]:
    def damage(folder: Path) -> None:
        manifest = json.loads((folder / "manifest.json").read_text())
        (folder / "manifest.json").write_text(json.dumps(manifest | entries))

    return damage


OUTSIDE = {"file": "../x", "bytes": 0, "crc32": 0}
FILES = ["documents.jsonl", "lengths.bin", "deleted.bin", "ids.bin"]


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (remove("manifest.json"), "manifest.json is missing"),
        (cut("manifest.json"), "manifest.json is damaged"),
        (lambda folder: (folder / "manifest.json").write_text("[]"), "manifest.json is damaged"),
        (other(kind=["exact"]), r"is an index of the kind \['exact'\], not exact"),
        (other(files={"vectors.bin": OUTSIDE}), r"manifest.json is damaged .an entry that names '../x'"),
        (other(format=0), "is of format 0, not 2: build the index again"),
        (other(kind="compressed"), "codes.bin is damaged"),
        (other(documents=7), "lengths.bin is damaged .not 7 lengths"),
        (other(dim=7), "vectors.bin is damaged"),
        (remove("vectors.bin"), "vectors.bin is damaged .no bytes"),
        (flip("vectors.bin"), "vectors.bin is damaged .its checksum differs"),
        *((flip(name), f"{name} is damaged") for name in FILES),
    ],
)
def test_a_damaged_index_is_refused_by_the_name_of_its_file(paradigm, tmp_path, damage, named):
    index = ExactIndex.build(paradigm, IDS[:4], TEXTS[:4], tmp_path / "index")
    index.delete(["d2"])
    assert len(ExactIndex.open(index.folder)) == 3
    damage(index.folder)
    with pytest.raises((ValueError, FileNotFoundError), match=named):
        open_index(index.folder)
    if "checksum" in named:  # which is compared unless a caller says otherwise
        assert len(ExactIndex.open(index.folder, verify=False)) == 3


@pytest.mark.parametrize("kind", [ExactIndex, FaissIndex])
def test_changes_leave_the_bytes_of_a_fresh_build(tmp_path, kind):
    given = documents(12, 1)
    options = {"factory": "Flat"} if kind is FaissIndex else {}
    index = build(tmp_path / "index", given[:5], kind, **options)
    index.add_from(given[5:9])
    index.delete(["d3", "d6"])
    index.add_from(given[9:])
    index.add_from([given[3]])  # again
    index.compact()
    order = [0, 1, 2, 4, 5, 7, 8, 9, 10, 11, 3]
    fresh = build(tmp_path / "fresh", [given[n] for n in order], kind, **index.manifest["settings"])
    assert index.ids == fresh.ids
    for name, entry in fresh.manifest["files"].items():
        file = index.manifest["files"][name]["file"]
        assert (index.folder / file).read_bytes() == (fresh.folder / entry["file"]).read_bytes(), name
    assert results(index) == results(fresh)


def test_an_addition_that_fails_adds_nothing(tmp_path):
    index = build(tmp_path / "index", documents(6))
    before = contents(index.folder)
    for given in ([*documents(9, 1)[6:], documents(1)[0]], stopping(documents(9, 1)[6:], 2)):
        with pytest.raises((ValueError, KeyboardInterrupt), match=r"document 'd0' is there already|^$"):
            index.add_from(given)
        assert contents(index.folder) == before
    assert results(index) == results(build(tmp_path / "fresh", documents(6)))


def test_an_open_index_takes_part_in_what_others_wrote(tmp_path):
    mine = build(tmp_path / "index", documents(6))
    theirs = ExactIndex.open(tmp_path / "index")
    theirs.delete(["d1"])
    theirs.compact()
    recorded = [entry["file"] for entry in theirs.manifest["files"].values()]
    assert names(theirs.folder) == sorted([*recorded, "manifest.json"])
    assert len(mine) == 6
    assert mine.tokens_of(["d1"]).mask.sum() == 1  # still readable as it was opened
    mine.add_from(documents(8, 1)[6:])
    assert sorted(mine.ids) == ["d0", "d2", "d3", "d4", "d5", "d6", "d7"]
    assert ExactIndex.open(tmp_path / "index").ids == mine.ids


def test_texts_are_added_as_the_index_was_built(paradigm, tiny_bert, tmp_path):
    whole = ExactIndex.build(paradigm, IDS, TEXTS, tmp_path / "whole", keep=0.5)
    grown = ExactIndex.build(paradigm, IDS[:9], TEXTS[:9], tmp_path / "grown", keep=0.5)
    grown.add(paradigm, IDS[9:], iter(TEXTS[9:]))
    for id in IDS:
        mine, theirs = grown.tokens_of([id]), whole.tokens_of([id])
        assert torch.equal(mine.mask, theirs.mask)
        torch.testing.assert_close(mine.vectors, theirs.vectors, atol=2e-3, rtol=2e-3)
    with pytest.raises(ValueError, match="holds vectors of"):
        grown.add(PARADIGMS["colbert"](tiny_bert), ["x"], ["y"])


def test_encoded_queries_need_no_paradigm(paradigm, tmp_path):
    index = ExactIndex.build(paradigm, IDS, TEXTS, tmp_path / "index")
    asked = {"a": "old river", "b": "the bird over the sea"}
    encoded = paradigm.encode_queries(list(asked.values()))
    found = index.search(paradigm, asked, 4)
    same_scores(index.search_tokens(paradigm.recipe, encoded, 4), found.values())
    ranked = index.rerank_tokens(paradigm.recipe, encoded, [list(found["a"]), list(found["b"])])
    same_scores(ranked, found.values())
    with pytest.raises(ValueError, match="2 queries need as many candidates, not 1"):
        index.rerank_tokens(paradigm.recipe, encoded, [["d1"]])
    with pytest.raises(ValueError, match=r"queries need axes \[b, 1, j, "):
        index.search_tokens(RECIPE, queries())


@pytest.mark.parametrize("kind", [kind for kind in INDEXES.values() if kind is not InvertedIndex])
@pytest.mark.parametrize("recipe", [RECIPE, IMPUTING], ids=lambda recipe: recipe.search)
def test_queries_of_any_floats_are_scored_in_float32_and_are_finite(tmp_path, kind, recipe):
    index = build(tmp_path / "index", documents(20), kind)
    candidates = [["d3", "d5"], ["d5", "d7"]]

    def both(asked: Tokens) -> list[dict[str, float]]:
        return index.search_tokens(recipe, asked, 5) + index.rerank_tokens(recipe, asked, candidates)

    whole = queries()
    expected = both(whole)
    for dtype in (torch.float64, torch.bfloat16):  # which holds eighths
        assert both(replace(whole, vectors=whole.vectors.to(dtype))) == expected
    leaf = whole.vectors.clone().requires_grad_()
    assert both(replace(whole, vectors=leaf)) == expected
    padded = replace(whole, mask=torch.tensor([[[True, True, False]]] * 2))
    expected = both(padded)
    for value in (torch.nan, torch.inf, 1e30):
        vectors = whole.vectors.clone()
        vectors[1, 0, 2, 0] = value
        with pytest.raises(ValueError, match="query 1 of 2 has vectors that are not finite, or too large"):
            index.search_tokens(recipe, replace(whole, vectors=vectors))
        with pytest.raises(ValueError, match="query 1 of 2 has vectors that are not finite, or too large"):
            index.rerank_tokens(recipe, replace(whole, vectors=vectors), candidates)
        assert both(replace(padded, vectors=vectors)) == expected  # padding counts for nothing
    assert index.search_tokens(recipe, whole[:0]) == []
    assert index.rerank_tokens(recipe, whole[:0], []) == []


def test_long_candidate_lists_are_scored_in_blocks(tmp_path, monkeypatch):
    index = build(tmp_path / "index", documents(20), FaissIndex, factory="Flat")
    candidates = [index.ids, index.ids[::-3]]
    whole = index.rerank_tokens(RECIPE, queries(), candidates)
    assert index.rerank_tokens(RECIPE, queries(), [["d3"], []]) == [{"d3": whole[0]["d3"]}, {}]
    seen: list[int] = []
    score = base.score
    monkeypatch.setattr(base, "CANDIDATES", 20)
    monkeypatch.setattr(base, "score", lambda r, d, q: seen.append(d.mask.numel()) or score(r, d, q))
    assert index.rerank_tokens(RECIPE, queries(), candidates) == whole
    assert 10 < max(seen) <= 20


def twin(recipe: Recipe, corpus: Tokens) -> torch.Tensor:
    if recipe.search == "impute":
        return placed(imputed_rel(*similarity(corpus, queries()), recipe.search_tokens), corpus)
    return placed(rel(corpus, queries(), query_to_document, one), corpus)


class Changes(RuleBasedStateMachine):
    """Any changes of an index against a dict of id -> seed of its tokens."""

    kind: ClassVar[type[TokenIndex]] = ExactIndex
    options: ClassVar[dict[str, object]] = {}
    bare: ClassVar[bool] = True  # whether documents without tokens come too, which no token search finds

    @initialize(count=st.integers(0, 6))
    def start(self, count: int) -> None:
        self.root = Path(tempfile.mkdtemp())
        self.twin = {f"d{n}": n for n in range(count)}
        given = [([id], self.tokens(seed)) for id, seed in self.twin.items()]
        self.index = self.made(given)
        self.seed = count

    def made(self, given: Documents) -> TokenIndex:
        return build(self.root / "index", given, self.kind, **self.options)

    def tokens(self, seed: int) -> Tokens:
        return tokens(seed if self.bare else 6 * seed + 1 + seed % 5)

    @rule(numbers=st.lists(st.integers(0, 12), min_size=1, max_size=4, unique=True))
    def add(self, numbers: list[int]) -> None:
        seeds = [self.seed + n for n in range(len(numbers))]
        given = [([f"d{n}"], self.tokens(seed)) for n, seed in zip(numbers, seeds, strict=True)]
        if any(f"d{n}" in self.twin for n in numbers):
            with pytest.raises(ValueError, match="is there already"):
                self.index.add_from(given)
            return
        self.index.add_from(given)
        self.twin |= {f"d{n}": seed for n, seed in zip(numbers, seeds, strict=True)}
        self.seed += len(numbers)

    @rule(numbers=st.lists(st.integers(0, 12), max_size=3))
    def delete(self, numbers: list[int]) -> None:
        ids = [f"d{n}" for n in numbers]
        if any(id not in self.twin for id in ids):
            with pytest.raises(KeyError, match="is not in the index"):
                self.index.delete(ids)
            return
        self.index.delete(ids)
        for id in ids:
            self.twin.pop(id, None)
            with pytest.raises(KeyError, match=f"document '{id}' is not in the index"):
                self.index.tokens_of([id])

    @rule()
    def compact(self) -> None:
        self.index.compact()
        assert sorted(self.index.ids) == sorted(self.twin)

    @rule()
    def reopen(self) -> None:
        self.index = self.kind.open(self.root / "index")

    @invariant()
    def equals_the_twin(self) -> None:
        if not hasattr(self, "index"):
            return
        assert len(self.index) == len(self.twin)
        ids = sorted(self.twin)
        made = [self.tokens(self.twin[id]) for id in ids]
        for id, expected in zip(ids, made, strict=True):
            stored = self.index.tokens_of([id])
            assert torch.equal(stored.vectors[stored.mask], expected.vectors[expected.mask])
        corpus = join_documents(made) if made else None
        for recipe in (RECIPE, IMPUTING):
            found = self.index.search_tokens(recipe, queries(), 5)
            if corpus is None:
                assert found == [{}, {}]
                continue
            for scores, row in zip(found, twin(recipe, corpus), strict=True):
                expected = dict(zip(ids, row.tolist(), strict=True))
                ranked = sorted(ids, key=lambda id: (-expected[id], id))[:5]
                if recipe is RECIPE:
                    found_ids = [id for id in ranked if expected[id] > -float("inf")]
                    assert scores == {id: expected[id] for id in found_ids}
                    assert list(scores) == found_ids
                else:  # what has only imputed similarities is not found, and is no better
                    assert scores == pytest.approx({id: expected[id] for id in scores})
                    left = [expected[id] for id in ids if id not in scores]
                    assert max(left, default=-1.0) <= min(scores.values(), default=1e9) + 1e-6
            again = self.index.rerank_tokens(recipe, queries(), [ids, ids])
            for scores, row in zip(again, twin(recipe, corpus), strict=True):
                assert scores == pytest.approx(dict(zip(ids, row.tolist(), strict=True)))

    def teardown(self) -> None:
        if hasattr(self, "root"):
            shutil.rmtree(self.root)


class FaissChanges(Changes):
    kind = FaissIndex
    options: ClassVar[dict[str, object]] = {"factory": "Flat"}
    bare = False


TestChanges = Changes.TestCase
TestFaissChanges = FaissChanges.TestCase
TestChanges.settings = settings(max_examples=8, stateful_step_count=8)
TestFaissChanges.settings = settings(max_examples=4, stateful_step_count=8)
