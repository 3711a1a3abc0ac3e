"""The compressed index equals its twins on what its codes stand for, through changes, crashes and damage."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paradigms.align import NORMALISERS, EqualIds, PoolTopK, QueryToDocument, TopK, retrieved_tokens
from paradigms.core import Tokens, rel, similarity
from paradigms.data import best_first
from paradigms.find import Index, Store, kinds, lists, open_index
from paradigms.impute import imputed_rel
from paradigms.recipe import Recipe
from paradigms.store import build as store_build
from paradigms.store import residuals, shards, view
from tests.find.test_near_tokens import token_search
from tests.near import SCORES, assert_same_scores, assert_within_rounding
from tests.store.test_storage import contents, names, other

DIM, FIELDS = 24, ["vectors", "ids", "salience"]
LENGTHS = [5, 1, 0, 9, 3, 8, 12, 0, 2, 6, 5, 7, 1, 4, 10, 8, 3, 5]
COLBERT = Recipe("colbert", QueryToDocument(), "one")
XTR = Recipe("xtr", PoolTopK(k=8), "retrieved", search="impute", search_tokens=20)
GATHERING = {
    "colbert": COLBERT,
    "aligner": Recipe("aligner", TopK(k=2), "total"),
    "coil": Recipe("coil", EqualIds(), "one"),
}
Documents = list[tuple[list[str], Tokens]]


@pytest.fixture(autouse=True, scope="module")
def estimated():
    """mⱼ is estimated whatever k', or no index here would be large enough; f is known of all documents."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lists, "SMALL", 0)
        patch.setattr(lists, "BOUNDED", 1 << 10)  # documents for a candidate: all
        yield


def tokens(*lengths: int, seed: int = 0) -> Tokens:
    """Documents of unit vectors around 12 directions, with ids and salience."""
    random = torch.Generator().manual_seed(seed)
    n, longest = len(lengths), max(1, *lengths)
    directions = torch.randn(12, DIM, generator=torch.Generator().manual_seed(99))
    of = torch.randint(12, (1, n, longest), generator=random)
    vectors = directions[of] + 0.7 * torch.randn(1, n, longest, DIM, generator=random)
    mask = (torch.arange(longest) < torch.tensor(lengths)[:, None])[None]
    u = torch.rand(1, n, longest, generator=random)
    return Tokens(torch.nn.functional.normalize(vectors, dim=-1), mask, of, u)


def documents(lengths: list[int] = LENGTHS, size: int = 4) -> Documents:
    return [
        ([f"d{n}" for n in range(s, min(s + size, len(lengths)))], tokens(*lengths[s : s + size], seed=s))
        for s in range(0, len(lengths), size)
    ]


def build(
    folder: Path | None = None, given: Any = None, fields: list[str] = FIELDS, keep: float = 1.0, **kind: int
) -> Index:
    common: dict[str, Any] = {"paradigm": "colbert", "dim": DIM, "fields": fields, "keep": keep}
    given = documents() if given is None else given
    return Index(Store.build_from(kinds.compressed(**{"lists": 6} | kind), given, folder, **common))


def queries(*lengths: int, salience: bool = False) -> Tokens:
    """Queries whose padding lies anywhere, and would change every score."""
    padded = tokens(*lengths, seed=50).map(lambda t: t.transpose(0, 1))
    order = torch.randperm(padded.mask.shape[-1], generator=torch.Generator().manual_seed(0))
    padded = padded.map(lambda t: t[:, :, order])
    vectors = padded.vectors.where(padded.mask[..., None], torch.tensor(1e3))
    return replace(padded, vectors=vectors, salience=padded.salience if salience else None)


def everything(index: Index) -> Index:
    """Probe every list, so that every document is a candidate."""
    return index.with_finder(probes=1 << 20, candidates=1 << 20)


def with_tokens(index: Index) -> list[str]:
    return index.store.names(index.store.with_tokens())


def gathered(index: Index, recipe: Recipe, Q: Tokens) -> list[dict[str, float]]:
    """core.rel of all documents with a token, on what codes stand for; nothing for a query without tokens."""
    ids = with_tokens(index)
    scores = rel(index.store.tokens_of(ids), Q, recipe.align, NORMALISERS[recipe.normalise])
    filled = Q.mask[:, 0].any(-1).tolist()
    return [
        dict(zip(ids, row.tolist(), strict=True)) if t else {} for row, t in zip(scores, filled, strict=True)
    ]


def imputed(index: Index, k: int | None, query_tokens: Tokens) -> list[dict[str, float]]:
    """f(d, q) = 1/N Σⱼ max(mⱼ, maxᵢ x̂ᵢᵀqⱼ) of each document with a probed token.

    mⱼ is the similarity above which k tokens are expected, and i runs over all tokens of d. With k None,
    mⱼ is that of the last probed list, and i runs over the probed tokens.
    """
    by_query: list[dict[str, float]] = []
    codec, nearest = index.store.codec, np.array(index.store.columns["centroids"])
    alive = np.repeat(index.store.living, np.diff(index.store.offsets))
    sizes = np.bincount(nearest[alive], minlength=len(codec.packed))
    owners = np.repeat(np.arange(len(index.store.ids)), np.diff(index.store.offsets))
    decoded = torch.from_numpy(index.store.decoded(np.arange(len(nearest)))["vectors"])
    for vectors, mask in zip(query_tokens.vectors[:, 0], query_tokens.mask[:, 0], strict=True):
        Q, S = vectors[mask], decoded @ vectors[mask].T
        centroid_scores = codec.centroids[:, :DIM] @ Q.T
        probed, missing = np.zeros(len(centroid_scores), bool), []
        for column, q in zip(centroid_scores.T, Q, strict=True):
            order = column.argsort(descending=True)[: index.finder.probes]
            probed[order] = True
            points = torch.linspace(float(column.min()), float(2 * column.max() - column.min()), 9999)
            levels = points[:, None]
            noise = float((torch.from_numpy(codec.spread[:DIM]) * q).norm())
            expected = torch.special.ndtr((column - levels) / noise) @ torch.from_numpy(sizes).float()
            reached = points[expected >= (k or 0)]
            floor = column[order[-1]] if k is None else reached.max() if len(reached) else points[0]
            missing.append(float(floor))
        by_query.append({})
        for n in np.unique(owners[alive & probed[nearest]]).tolist() if len(Q) else []:
            mine = torch.from_numpy((owners == n) & (probed[nearest] if k is None else True))
            best = S[mine].amax(0).maximum(torch.tensor(missing))
            by_query[-1][index.store.ids[n]] = float(best.mean())
    return by_query


def assert_ranked(
    results: list[dict[str, float]], expected: list[dict[str, float]], k: int, abs: float
) -> None:
    """The k best, whose scores may differ by `abs`."""
    for scores, all_scores in zip(results, expected, strict=True):
        assert scores == pytest.approx({id: all_scores[id] for id in scores}, abs=abs)
        best = sorted(all_scores.values(), reverse=True)[:k]
        assert list(scores.values()) == pytest.approx(best, abs=abs)
        assert list(scores) == list(best_first(scores))


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    built = build(tmp_path_factory.mktemp("compressed") / "index", fields=["vectors", "ids"])
    return Index(built.store.delete(["d3", "d12"]))


@pytest.mark.parametrize(("bits", "fine_bits"), [(1, 0), (2, 8)])  # tests/scoring has all bits
def test_gathering_is_rel_on_what_codes_stand_for(bits, fine_bits):
    index = everything(build(bits=bits, fine_bits=fine_bits))
    index = Index(index.store.delete(["d4", "d9"]))
    for salience in (False, True):
        Q = queries(5, 0, 17, 33, 1, salience=salience)
        for recipe in GATHERING.values():
            expected = gathered(index, recipe, Q)
            results = index.search_tokens(recipe, Q, 100)
            assert_same_scores(results, [best_first(scores) for scores in expected])
            few = index.search_tokens(recipe, Q, 3)
            assert_same_scores(few, [best_first(scores, 3) for scores in expected])


def test_documents_with_the_largest_bounds_are_candidates(index):
    """bound(d) = Σⱼ max(0, max_c cᵀqⱼ − lⱼ) over the probed lists c of d's tokens."""
    store = index.store
    Q = queries(9)
    query = Q.map(lambda t: t[:, :, Q.mask[0, 0]])
    packed = lists._codes(store)[0].packed(query)
    probed = lists._probe(store, packed, 5, 0)
    above = store.codec.centroids[:, :DIM] @ query.vectors[0, 0].T - torch.from_numpy(probed.least)
    nearest = torch.from_numpy(store.columns["centroids"].astype(np.int64))
    bounds = {}
    for row in store.with_tokens().tolist():
        own = nearest[store.offsets[row] : store.offsets[row + 1]]
        bounds[row] = float(above[own].amax(0).clamp(min=0).sum())
    best = sorted(bounds, key=bounds.__getitem__, reverse=True)
    for limit in range(1, len(bounds)):
        assert lists._bounded(store, packed, probed, limit).tolist() == sorted(best[:limit])


@pytest.mark.parametrize("k", [1, 20, 10**6])
@pytest.mark.parametrize("probes", [1, 3, 99])
def test_imputing_is_the_formula(index, k, probes):
    """Equal up to the bins of `loops.select`: m lies at most one bin below; a bin's lists are all probed."""
    index = index.with_finder(probes=probes)
    Q = queries(5, 0, 17, 33)
    expected = imputed(index, k, Q)
    results = index.search_tokens(replace(XTR, search_tokens=k), Q, 100)
    assert [set(scores) for scores in results] == [set(scores) for scores in expected]
    assert_ranked(results, expected, 100, 2.5 / 1023)


def test_fine_codes_score_the_best_candidates_again(tmp_path):
    given, Q = documents(LENGTHS * 9), queries(5, 17)
    build(tmp_path / "index", given, ["vectors"], bits=1, fine_bits=8)
    fine = everything(open_index(tmp_path / "index"))
    vectors = torch.cat([part.vectors[part.mask] for _, part in given])
    decoded = fine.store.tokens_of(fine.store.ids)
    assert float((decoded.vectors[decoded.mask] - vectors).square().mean().sqrt()) < 1e-2
    assert_ranked(fine.search_tokens(COLBERT, Q, 10), gathered(fine, COLBERT, Q), 10, 2.5 / 1023)
    # One candidate in four is scored: those with the best coarse codes, of tokens in other lists, too.
    coarse = build(given=given, fields=["vectors"], bits=1)
    first, second = (
        one.with_finder(probes=1, candidates=80).search_tokens(COLBERT, Q, 20) for one in (coarse, fine)
    )
    assert [scores.keys() for scores in second] == [scores.keys() for scores in first]


def test_salience_of_queries_plays_no_part_in_imputing(index):
    Q = queries(5, 9, salience=True)
    assert index.search_tokens(XTR, Q) == index.search_tokens(XTR, replace(Q, salience=None))
    with pytest.raises(ValueError, match="the imputation zero needs an exact index"):
        index.search_tokens(replace(XTR, imputation="zero"), Q)


def test_candidates_are_those_with_the_largest_f(index):
    index = index.with_finder(probes=2)
    Q = queries(5, 9)
    for count in (1, 4):
        index = index.with_finder(candidates=count)
        f = [best_first(scores, count) for scores in imputed(index, None, Q)]
        expected = gathered(index, COLBERT, Q)
        results = index.search_tokens(COLBERT, Q, 1 if count == 1 else 3)
        for scores, ranked, all_scores in zip(results, f, expected, strict=True):
            best = best_first({id: all_scores[id] for id in ranked}, len(scores))
            assert_within_rounding(scores, best, **SCORES)
    assert len(index.with_finder(candidates=2).search_tokens(COLBERT, Q, 5)[0]) == 5  # what is asked for


def test_threads_and_batches_change_no_result(tmp_path, monkeypatch):
    """Only the order of torch's sums depends on threads and batches."""
    given = [*documents(), *[([f"{id}'" for id in ids], part) for ids, part in documents()]]  # all twice
    index = build(tmp_path / "index", given, ["vectors", "ids"]).with_finder(probes=3, candidates=3)
    monkeypatch.setattr("paradigms.scoring.threads.WORTH", 1)  # however little there is to share
    Q = queries(5, 17, 0, 9, salience=True)
    for recipe in (XTR, *GATHERING.values()):
        results = []
        for count in (1, 2):
            torch.set_num_threads(count)
            results.append(index.search_tokens(recipe, Q, 10))  # no pair is cut
            results.append([index.search_tokens(recipe, Q[n : n + 1], 10)[0] for n in range(4)])
        for again in results[1:]:
            assert_same_scores(again, results[0])


def test_equal_seeds_give_equal_bytes_however_lists_are_sorted(tmp_path, monkeypatch):
    expected = contents(build(tmp_path / "one").store.folder)
    for sorted_ in (1, 7, 40):
        monkeypatch.setattr(lists, "SORTED", sorted_)
        assert contents(build(tmp_path / f"{sorted_}").store.folder) == expected
    other_seed = contents(build(tmp_path / "other", seed=1).store.folder)
    assert other_seed["codec.safetensors"] != expected["codec.safetensors"]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"bits": 3}, "bits must be one of 1, 2, 4, 8, got 3"),
        ({"bits": 4, "fine_bits": 4}, "fine_bits must be 0, or 2, 4 or 8 and above bits, got 4"),
        ({"lists": -1}, "lists must be at least 0, got -1"),
        ({"probes": -1}, "probes must be a number of lists"),
        ({"lists": 65_537}, "lists must be at most 65536, got 65537"),
    ],
)
def test_settings_out_of_range_are_refused_before_anything_is_written(tmp_path, option, message):
    with pytest.raises(ValueError, match=message):
        build(tmp_path / "index", **option)
    assert names(tmp_path) == []


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    return build(tmp_path_factory.mktemp("sound") / "index").store.folder


def test_files_that_do_not_fit_each_other_are_refused(sound, tmp_path):
    for changed, named in (
        ({"settings": {"bits": 3}}, "manifest.json"),
        ({"settings": {"bits": 8, "lists": 6}}, "codes.bin"),
        ({"dim": 70}, "codec.safetensors"),
        ({"tokens": 1}, "lengths.bin"),
    ):
        folder = shutil.copytree(sound, tmp_path / "index", dirs_exist_ok=True)
        other(**changed)(folder)
        with pytest.raises(ValueError, match=f"{named} is damaged"):
            open_index(folder, verify=False)


@pytest.mark.parametrize("unlisted", [0, 1 << 20])
def test_what_is_added_is_found_in_lists_or_not(tmp_path, monkeypatch, unlisted):
    """Documents outside the lists have the scores that they have in them, in every kind of search."""
    monkeypatch.setattr(lists, "UNLISTED", unlisted)
    given, Q = documents(size=1), queries(5, 9)
    store = build(tmp_path / "index", given[:10]).store
    store = store.add_from(given[10:14]).delete(["d3", "d11"]).add_from([given[3], *given[14:]])
    assert len(store.derived.entries) == (sum(LENGTHS[:10]) if unlisted else store.offsets[-1])
    results = []
    for one in (store, store.compact()):
        index = Index(one).with_finder(probes=2)
        results.append([*index.search_tokens(COLBERT, Q, 5), *index.search_tokens(XTR, Q, 5)])
    assert_same_scores(results[0], results[1])
    compacted = open_index(tmp_path / "index").store
    assert len(compacted.derived.entries) == compacted.offsets[-1]
    assert contents(compacted.compact().folder) == contents(compacted.folder)


def test_an_index_that_has_outgrown_its_build_says_so_and_is_renewed(tmp_path, monkeypatch):
    """Centroids of one document are those of all documents after `compact`; ids and tokens stay."""
    monkeypatch.setattr(view, "FEW", 1)
    given = documents(size=1)
    store = build(tmp_path / "index", given[:1], bits=8, lists=0).store
    store = store.add_from(given[1:9])  # 40 tokens: 8 times as many
    with pytest.warns(UserWarning, match="was built of 5 tokens and has 63 now"):
        store = store.add_from(given[9:14]).delete(["d13"])
    assert len(store.codec.packed) == 5
    compacted = store.compact()
    assert compacted.manifest["trained"] == 59
    assert not compacted.outgrown
    assert len(compacted.codec.packed) == residuals.centroids_for(59) == 32
    assert compacted.ids == [f"d{n}" for n in range(13)]
    before, after = store.tokens_of(compacted.ids), compacted.tokens_of(compacted.ids)
    assert torch.equal(before.ids, after.ids)
    assert torch.equal(before.salience, after.salience)
    assert float((before.vectors - after.vectors).norm(dim=-1).max()) < 0.02  # unit vectors, in 8 bits


@pytest.mark.parametrize("folder", [True, False])
@pytest.mark.parametrize(("way", "count"), [("sampled", 5), ("first", 6), ("all", len(LENGTHS))])
def test_a_large_build_is_coded_while_it_is_encoded(tmp_path, monkeypatch, folder, way, count):
    """Centroids come from a sample, from the first shards, or from all documents."""
    monkeypatch.setattr(shards, "SHARD", 2)
    monkeypatch.setattr(store_build, "SHARD", 2)
    monkeypatch.setattr(store_build, "HELD", 100 if way == "all" else 3)
    given = documents(size=1)
    common: dict[str, Any] = {"paradigm": "colbert", "dim": DIM, "fields": FIELDS, "count": len(given)}
    sample = given[::-1][:5] if way == "sampled" else None
    place = tmp_path / "index" if folder else None
    store = Store.build_from(kinds.compressed(bits=8), given, place, sample=sample, **common)
    tokens = sum(LENGTHS[-count:] if sample else LENGTHS[:count])
    assert store.manifest["trained"] == tokens * len(LENGTHS) // count
    for (id,), part in given:
        stored = store.tokens_of([id])
        off = (stored.vectors - part.vectors[:, :, : stored.mask.shape[-1]])[stored.mask]
        assert float(off.norm(dim=-1).max() if len(off) else 0) < 0.1
    monkeypatch.setattr(residuals.Codec, "fit", None)  # what is added has the codec of the build
    copied = store.add_from([(["x"], given[0][1])])
    assert torch.equal(copied.tokens_of(["x"]).vectors, store.tokens_of(["d0"]).vectors)


def test_numbers_that_a_damaged_file_names_are_passed_over(sound, tmp_path):
    """Lists and centroids are checked where they are read, so that opening takes no time."""
    Q = queries(5, 9)
    for name, dtype in (("entries.bin", np.uint32), ("centroids.bin", np.uint16)):
        folder = shutil.copytree(sound, tmp_path / name)
        values = np.fromfile(folder / name, dtype)
        values[::3] = np.iinfo(dtype).max - np.arange(len(values[::3]))
        values.tofile(folder / name)
        with pytest.raises(ValueError, match=f"{name} is damaged .its checksum differs"):
            open_index(folder)
        index = everything(open_index(folder, verify=False))
        index = Index(index.store.delete(["d2"]), index.finder)  # which counts the lists' tokens
        for recipe in (XTR, *GATHERING.values()):
            for scores in index.search_tokens(recipe, Q, 10):
                assert scores.keys() <= set(index.store.rows_by_id)
                assert np.isfinite(list(scores.values())).all()
        assert token_search(index, Q.vectors[0, 0][Q.mask[0, 0]], 3)[0].shape == (5, 3)
        index.store.compact()


def test_a_search_that_was_interrupted_leaves_nothing_to_the_next_one(index, monkeypatch):
    def interrupted(*given):
        raise KeyboardInterrupt

    before = index.search_tokens(COLBERT, queries(5))
    with monkeypatch.context() as patch:
        patch.setattr("paradigms.find.loops.bound_unlisted", interrupted)
        with pytest.raises(KeyboardInterrupt):
            index.search_tokens(COLBERT, queries(5))
    assert index.search_tokens(COLBERT, queries(5)) == before


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, 1e38])
def test_salience_of_queries_that_is_not_finite_is_refused(index, wrong):
    Q = queries(5, 9, salience=True)
    Q.salience[1] *= wrong
    with pytest.raises(ValueError, match="query 1 of 2 has salience values that are not finite"):
        index.search_tokens(COLBERT, Q)


@pytest.mark.parametrize("k", [1, 7, 20])
def test_a_small_k_is_eq_4_of_the_probed_tokens(index, k, monkeypatch):
    monkeypatch.setattr(lists, "SMALL", k)
    index = index.with_finder(probes=99)
    Q, ids = queries(5, 17), with_tokens(index)
    S, valid = similarity(index.store.tokens_of(ids), Q)
    retrieved = (retrieved_tokens(S, valid, k).any(-1).any(-1)).tolist()
    results = index.search_tokens(replace(XTR, search_tokens=k), Q, 100)
    for row, candidates, scores in zip(imputed_rel(S, valid, k).tolist(), retrieved, results, strict=True):
        expected = {id: score for id, score, candidate in zip(ids, row, candidates, strict=True) if candidate}
        assert_within_rounding(scores, expected, **SCORES)


def test_token_search_finds_the_nearest_of_the_lists(index):
    vectors = queries(6).vectors[0, 0]
    living = np.flatnonzero(np.repeat(index.store.living, np.diff(index.store.offsets)))
    S = vectors @ torch.from_numpy(index.store.decoded(living)["vectors"]).T
    index = index.with_finder(probes=99)
    scores, rows = token_search(index, vectors, 10)
    assert_within_rounding(scores.sort(descending=True).values, S.topk(10).values, **SCORES)
    assert all(set(row) <= set(living.tolist()) for row in rows.tolist())
    index = index.with_finder(probes=1)
    few, rows = token_search(index, vectors, 10**6)
    assert few.shape == (6, index.store.offsets[-1])
    assert torch.equal(few == -torch.inf, rows == -1)
    for row in rows:
        assert len(set(index.store.columns["centroids"][row[row >= 0].numpy()].tolist())) == 1
    with pytest.raises(ValueError, match="a number of lists"):
        index.with_finder(probes=-1)
