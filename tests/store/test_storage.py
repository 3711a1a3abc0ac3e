"""Indexes change by whole commits: killed, crowded and damaged writers; documents come and go."""

import errno
import json
import resource
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from paradigms import PARADIGMS
from paradigms.align import PoolTopK, QueryToDocument, one
from paradigms.core import Tokens, join_documents, rel, similarity
from paradigms.data import best_first
from paradigms.find import INDEXES, Index, Store, kinds, open_index, ranking
from paradigms.impute import imputed_rel
from paradigms.io import files
from paradigms.recipe import Recipe
from paradigms.store import Kind
from paradigms.store.columns import ColumnFolder
from tests.near import SCORES, TOLERANCE, assert_same_scores, assert_within_rounding, index_scores

DIM = 4
RECIPE = Recipe("colbert", QueryToDocument(), "one")
IMPUTING = Recipe("xtr", PoolTopK(k=8), "retrieved", search="impute", search_tokens=6)
TEXTS = [f"the bird {'sea ' * (n % 5)}flew over the old {n} river" for n in range(23)]
IDS = [f"d{n}" for n in range(23)]
Documents = list[tuple[list[str], Tokens]]


def tokens(*seeds: int) -> Tokens:
    """Documents that depend on their seed alone: 1 to 5 tokens, the 0th without any."""
    documents_of_seeds = []
    for seed in seeds:
        random = torch.Generator().manual_seed(seed)
        vectors = torch.randint(-8, 9, (1, 1, 5, DIM), generator=random) / 8  # float16 holds all sums
        documents_of_seeds.append(Tokens(vectors, torch.arange(5)[None, None] < (seed % 6)))
    return join_documents(documents_of_seeds)


def documents(count: int, size: int = 3) -> Documents:
    """`count` documents d0, d1, …, in parts of `size`."""
    parts = [range(start, min(start + size, count)) for start in range(0, count, size)]
    return [([f"d{n}" for n in part], tokens(*part)) for part in parts]


EXACT = kinds.exact()


def build(folder: Path | None, given: object, kind: Kind = EXACT, **options: object) -> Store:
    return Store.build_from(kind, given, folder, paradigm="colbert", dim=DIM, **options)


def opened(folder: Path, **options: bool) -> Store:
    return open_index(folder, **options).store


def queries(seed: int = 100) -> Tokens:
    random = torch.Generator().manual_seed(seed)
    return Tokens(torch.randint(-8, 9, (2, 1, 3, DIM), generator=random) / 8, torch.ones(2, 1, 3) > 0)


def results(store: Store, k: int = 5) -> list[dict[str, float]]:
    index = Index(store)
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


def test_texts_may_be_a_stream_and_ids_must_fit(paradigm, tmp_path):
    lists = Store.build(kinds.exact(), paradigm, IDS, TEXTS, tmp_path / "whole")
    stream = Store.build(kinds.exact(), paradigm, iter(IDS), (text for text in TEXTS), tmp_path / "stream")
    assert contents(stream.folder) == contents(lists.folder)
    for ids, texts, message in (
        (iter(["a"]), ["x", "y"], "fewer ids than texts"),
        (iter(["a", "b"]), ["x"], "fewer texts than ids"),
        (iter(["a", "a"]), ["x", "y"], "document 'a' already exists"),
        (["a", "a"], ["x", "y"], "as many different ids, not 1 among 2"),
    ):
        with pytest.raises(ValueError, match=message):
            Store.build(kinds.exact(), paradigm, ids, texts, tmp_path / "bad")
    assert names(tmp_path) == ["stream", "whole"]


def test_tokens_that_do_not_fit_are_refused(tmp_path):
    both = torch.ones(1, 1, 2) > 0
    for given, options, message in (
        ([(["a"], tokens(1, 2))], {}, "1 ids.*need tokens"),
        ([(["a"], tokens(1))], {"fields": ["vectors", "ids"]}, "tokens' ids, but the documents have none"),
        ([(["a"], Tokens(torch.ones(1, 1, 2, 3), both))], {}, "4 dimensions, not of 3"),
        ([(["a"], Tokens(torch.full((1, 1, 2, DIM), 1e6), both))], {}, "'a' do not fit float16"),
    ):
        with pytest.raises(ValueError, match=message):
            build(tmp_path / "index", given, **options)
    assert names(tmp_path) == []


def test_what_a_killed_writer_left_is_cut_off_by_the_next(tmp_path):
    folder = build(tmp_path / "index", documents(5)).folder
    with (folder / "vectors.bin").open("ab") as stream:
        stream.write(b"half a row")
    (folder / "vectors.7.bin").write_bytes(b"a compaction that never ended")
    (folder / ".manifest.json.0badf00d.partial").mkdir()
    (folder / ".manifest.json.0badf00d.partial" / "fresh").write_text("{")
    (folder / "notes.txt").write_text("of someone else")
    store = opened(folder)
    assert len(store) == 5
    store = store.add_from(documents(6, 1)[5:])
    fresh = build(tmp_path / "fresh", documents(6))
    assert results(opened(folder)) == results(fresh)
    assert names(folder) == sorted([*names(fresh.folder), "notes.txt"])


@pytest.mark.parametrize("owner", [ColumnFolder, Path], ids=["manifest", "size of a file"])
def test_a_reader_that_comes_late_for_the_files_of_its_manifest_takes_the_next(tmp_path, monkeypatch, owner):
    """Files are replaced after the manifest has been read, or while their sizes are."""
    name = "_manifest" if owner is ColumnFolder else "is_file"
    store, read = build(tmp_path / "index", documents(5)), getattr(owner, name)
    store = store.delete(["d1"])
    changes = [store.compact]

    def late(self: Any) -> Any:
        answer = read(self)
        if changes and (owner is ColumnFolder or self.name == "vectors.bin"):
            changes.pop()()
        return answer

    monkeypatch.setattr(owner, name, late)
    assert opened(store.folder).ids == ["d0", "d2", "d3", "d4"]
    assert not changes


def test_an_index_that_is_written_is_not_replaced_by_a_build(tmp_path):
    store = build(tmp_path / "index", documents(5))
    with store.files.writing(), pytest.raises(BlockingIOError):
        build(tmp_path / "index", documents(4))
    with store.files.writing():
        with pytest.raises(BlockingIOError):
            store = store.delete(["d1"])
        with pytest.raises(BlockingIOError):
            store = store.add_from(documents(1))
    assert len(opened(tmp_path / "index")) == 5
    assert len(build(tmp_path / "index", documents(4))) == 4


OTHERS = {
    "a manifest of something else": {"manifest.json": '{"name": "app"}', "src/app.js": "mine"},
    "only a manifest of something else": {"manifest.json": '{"name": "app", "files": ["*"]}'},
    "a manifest that is no JSON": {"manifest.json": "name: app", "data.bin": "mine"},
    "a folder in an index": {"shards/mine.safetensors": "mine"},
    "a column of somebody else": {"photos.bin": "mine"},
}


@pytest.mark.parametrize("others", OTHERS.values(), ids=OTHERS)
def test_no_entry_that_no_index_has_is_deleted_by_a_build(tmp_path, others):
    folder = tmp_path / "folder"
    if "manifest.json" not in others:
        build(folder, documents(3))
    before = contents(folder) if folder.exists() else {}
    for name, text in others.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    with pytest.raises(FileExistsError, match="folder would be replaced, but"):
        build(folder, documents(2))
    assert {name: (folder / name).read_text() for name in others} == others
    assert all((folder / name).read_bytes() == data for name, data in before.items())
    assert names(tmp_path) == ["folder"]


def test_a_change_that_fails_after_its_commit_is_there_whole(tmp_path, monkeypatch):
    folder = build(tmp_path / "index", documents(6)).folder
    expected = build(None, documents(6)).delete(["d1"])
    flush = files.flush

    def failing(path: Path) -> None:
        flush(path)
        if path == folder:  # the manifest has its place in it
            raise OSError(errno.EIO, "Input/output error")

    for change in (lambda store: store.delete(["d1"]), Store.compact):
        before = opened(folder)
        monkeypatch.setattr(files, "flush", failing)
        with pytest.raises(OSError, match="Input/output error"):
            change(before)
        monkeypatch.undo()
        assert results(opened(folder)) == results(expected)
    assert len(opened(folder).ids) == 5


def test_what_a_full_disk_kept_of_a_change_is_removed(tmp_path):
    folder = ColumnFolder(tmp_path / "columns")

    def add(count: int) -> None:
        with folder.writing(None if folder.folder.exists() else lambda: folder.begin({})) as writer:
            for name in ("a.bin", "b.bin", "c.bin"):
                writer.append(name, b"x" * count)
            writer.commit()

    add(40)
    before = contents(folder.folder)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(OSError, match="cannot be written"):
            add(5000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert contents(folder.folder) == before


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def flip(name: str) -> Callable[[Path], None]:
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
        (lambda folder: (folder / "manifest.json").write_text('{"format"'), "manifest.json is damaged"),
        (other(kind=["exact"]), r"is an index of the kind \['exact'\]; there are exact, "),
        (other(files={"vectors.bin": OUTSIDE}), r"manifest.json is damaged .an entry that names '../x'"),
        (other(format=0), "has format 0, not 5: build the index again"),
        (other(kind="compressed"), "codec.safetensors is damaged"),
        (other(documents=7), "lengths.bin is damaged .not 7 lengths"),
        (other(dim=7), "vectors.bin is damaged"),
        (remove("vectors.bin"), "vectors.bin is damaged .no bytes"),
        (flip("vectors.bin"), "vectors.bin is damaged .its checksum differs"),
        *((flip(name), f"{name} is damaged") for name in FILES),
    ],
)
def test_a_damaged_index_is_refused_by_the_name_of_its_file(paradigm, tmp_path, damage, named):
    store = Store.build(kinds.exact(), paradigm, IDS[:4], TEXTS[:4], tmp_path / "index")
    store = store.delete(["d2"])
    assert len(opened(store.folder)) == 3
    damage(store.folder)
    with pytest.raises((ValueError, FileNotFoundError), match=named):
        opened(store.folder)
    if "checksum" in named:  # which is compared unless a caller says otherwise
        assert len(opened(store.folder, verify=False)) == 3


@pytest.mark.parametrize("kind", [kinds.exact(), kinds.faiss("Flat")], ids=lambda kind: kind.name)
def test_changes_leave_the_bytes_of_a_fresh_build(tmp_path, kind):
    given = documents(12, 1)
    store = build(tmp_path / "index", given[:5], kind)
    store = store.add_from(given[5:9])
    store = store.delete(["d3", "d6"])
    store = store.add_from(given[9:])
    store = store.add_from([given[3]])  # again
    store = store.compact()
    order = [0, 1, 2, 4, 5, 7, 8, 9, 10, 11, 3]
    fresh = build(tmp_path / "fresh", [given[n] for n in order], kind)
    assert store.ids == fresh.ids
    for name, entry in fresh.manifest["files"].items():
        file = store.manifest["files"][name]["file"]
        assert (store.folder / file).read_bytes() == (fresh.folder / entry["file"]).read_bytes(), name


def test_an_open_index_takes_part_in_what_others_wrote(tmp_path):
    mine = build(tmp_path / "index", documents(6))
    theirs = opened(tmp_path / "index")
    theirs = theirs.delete(["d1"])
    theirs = theirs.compact()
    recorded = [entry["file"] for entry in theirs.manifest["files"].values()]
    assert names(theirs.folder) == sorted([*recorded, "manifest.json"])
    assert len(mine) == 6
    assert mine.tokens_of(["d1"]).mask.sum() == 1  # still readable as it was opened
    mine = mine.add_from(documents(8, 1)[6:])
    assert sorted(mine.ids) == ["d0", "d2", "d3", "d4", "d5", "d6", "d7"]
    assert opened(tmp_path / "index").ids == mine.ids


@pytest.mark.parametrize("kind", sorted(INDEXES.keys() - {"inverted"}))
@pytest.mark.parametrize("recipe", [RECIPE, IMPUTING], ids=lambda recipe: recipe.search)
def test_queries_of_any_floats_are_scored_in_float32_and_are_finite(kind, recipe):
    index = Index(build(None, documents(20), INDEXES[kind]()))
    padding = torch.tensor([[[True, True, False]]] * 2)

    def search(vectors: torch.Tensor, mask: torch.Tensor = padding) -> list[dict[str, float]]:
        return index.search_tokens(recipe, Tokens(vectors, mask), 5)

    def rerank(vectors: torch.Tensor, mask: torch.Tensor = padding) -> list[dict[str, float]]:
        return index.rerank_tokens([recipe], Tokens(vectors, mask), [["d3", "d5"], ["d5", "d7"]])[0]

    plain = queries().vectors
    for use in (search, rerank):
        expected = use(plain)
        for other in (plain.double(), plain.bfloat16(), plain.clone().requires_grad_()):  # which hold eighths
            assert use(other) == expected
        for value in (torch.nan, torch.inf, 1e30):
            vectors = plain.clone()
            vectors[1, 0, 2, 0] = value
            assert use(vectors) == expected  # padding counts for nothing
            with pytest.raises(ValueError, match="query 1 of 2 has vectors that are not finite, or too larg"):
                use(vectors, padding | True)
    assert index.search_tokens(recipe, queries()[:0]) == []
    assert index.rerank_tokens([recipe], queries()[:0], [])[0] == []


def test_long_candidate_lists_are_scored_in_blocks(tmp_path, monkeypatch):
    index = Index(build(None, documents(20), kinds.faiss("Flat")))
    candidates = [index.store.ids, index.store.ids[::-3]]
    expected = index.rerank_tokens([RECIPE], queries(), candidates)[0]
    assert index.rerank_tokens([RECIPE], queries(), [["d3"], []])[0] == [{"d3": expected[0]["d3"]}, {}]
    seen: list[int] = []
    score = ranking.score
    monkeypatch.setattr(ranking, "CANDIDATES", 20)
    monkeypatch.setattr(ranking, "score", lambda r, d, q: seen.append(d.mask.numel()) or score(r, d, q))
    assert index.rerank_tokens([RECIPE], queries(), candidates)[0] == expected
    assert 10 < max(seen) <= 20


def twin(recipe: Recipe, corpus: Tokens) -> torch.Tensor:
    if recipe.search == "impute":
        return index_scores(imputed_rel(*similarity(corpus, queries()), recipe.search_tokens), corpus)
    return index_scores(rel(corpus, queries(), QueryToDocument(), one), corpus)


class Changes(RuleBasedStateMachine):
    """Random changes of a store, compared with a dict of id -> seed of its tokens."""

    kind: ClassVar[Kind] = kinds.exact()
    folder: ClassVar[bool] = True
    off: ClassVar[float] = 0.0  # how far a stored number may lie from the given one

    @initialize(count=st.integers(0, 6))
    def start(self, count: int) -> None:
        self.root = Path(tempfile.mkdtemp())
        self.twin = {f"d{n}": n for n in range(count)}
        given = [([id], tokens(seed)) for id, seed in self.twin.items()]
        self.store = build(self.root / "index" if self.folder else None, given, self.kind)
        self.seed = count

    @rule(numbers=st.lists(st.integers(0, 12), min_size=1, max_size=4, unique=True))
    def add(self, numbers: list[int]) -> None:
        seeds = [self.seed + n for n in range(len(numbers))]
        given = [([f"d{n}"], tokens(seed)) for n, seed in zip(numbers, seeds, strict=True)]
        if any(f"d{n}" in self.twin for n in numbers):
            with pytest.raises(ValueError, match="already exists"):
                self.store = self.store.add_from(given)
            return
        self.store = self.store.add_from(given)
        self.twin |= {f"d{n}": seed for n, seed in zip(numbers, seeds, strict=True)}
        self.seed += len(numbers)

    @rule(numbers=st.lists(st.integers(0, 12), max_size=3))
    def delete(self, numbers: list[int]) -> None:
        ids = [f"d{n}" for n in numbers]
        if any(id not in self.twin for id in ids):
            with pytest.raises(KeyError, match="is not in the index"):
                self.store = self.store.delete(ids)
            return
        self.store = self.store.delete(ids)
        for id in ids:
            self.twin.pop(id, None)
            with pytest.raises(KeyError, match=f"document '{id}' is not in the index"):
                self.store.tokens_of([id])

    @rule()
    def compact(self) -> None:
        self.store = self.store.compact()
        assert sorted(self.store.ids) == sorted(self.twin)

    @rule()
    def reopen(self) -> None:
        self.store = opened(self.root / "index") if self.folder else self.store

    @invariant()
    def equals_the_twin(self) -> None:
        if not hasattr(self, "store"):
            return
        assert len(self.store) == len(self.twin)
        ids = sorted(self.twin)
        if not ids:
            assert results(self.store) == [{}] * 4
            return
        for id, seed in self.twin.items():
            stored, given = (t.vectors[t.mask] for t in (self.store.tokens_of([id]), tokens(seed)))
            assert len(stored) == len(given)
            assert len(stored) == 0 or (stored - given).abs().max() <= self.off
        corpus = self.store.tokens_of(ids)
        for recipe in (RECIPE, IMPUTING):
            expected = [dict(zip(ids, row.tolist(), strict=True)) for row in twin(recipe, corpus)]
            hits = Index(self.store).search_tokens(recipe, queries(), 5)
            if recipe is RECIPE:
                living = [{id: s for id, s in row.items() if s > -float("inf")} for row in expected]
                assert_same_scores(hits, [best_first(row, 5) for row in living])
            else:  # what has only imputed similarities may be left out, and is no better
                for scores, row in zip(hits, expected, strict=True):
                    assert_within_rounding(scores, {id: row[id] for id in scores}, **SCORES)
                    left = [row[id] for id in ids if id not in scores]
                    assert max(left, default=-1.0) <= min(scores.values(), default=1e9) + TOLERANCE
            again = Index(self.store).rerank_tokens([recipe], queries(), [ids, ids])[0]
            assert_within_rounding(again, expected, **SCORES)

    def teardown(self) -> None:
        if hasattr(self, "root"):
            shutil.rmtree(self.root)


class ChangesInMemory(Changes):
    folder = False


class FaissChanges(Changes):
    kind = kinds.faiss("Flat")


class CompressedChanges(Changes):
    kind = kinds.compressed(bits=8, lists=3, rounds=1, probes=99, candidates=99)
    off = 0.1


class LemurChanges(Changes):
    kind = kinds.lemur(width=8, factory="Flat", candidates=99)


TestChanges = Changes.TestCase
TestChangesInMemory = ChangesInMemory.TestCase
TestFaissChanges = FaissChanges.TestCase
TestCompressedChanges = CompressedChanges.TestCase
TestLemurChanges = LemurChanges.TestCase
FEW = settings(max_examples=4, stateful_step_count=8)
TestChanges.settings = settings(FEW, max_examples=8)
TestChangesInMemory.settings = FEW
TestFaissChanges.settings = FEW
TestCompressedChanges.settings = FEW
TestLemurChanges.settings = FEW
