"""The inverted index finds exactly what `core.rel` on its stored weights ranks first."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from paradigms import PARADIGMS
from paradigms.align import EqualIds, QueryToDocument
from paradigms.core import Tokens
from paradigms.data import best_first
from paradigms.find import Index, Store, kinds, open_index
from paradigms.find.postings import BLOCK
from paradigms.recipe import Recipe
from paradigms.scoring.stored import score
from tests.near import assert_same_scores

RECIPE = Recipe("splade", EqualIds(), "one")
TERMS = 60


def terms(count: int, seed: int, length: int = 12) -> Tokens:
    """Weights [1, n, l, 1] of a few frequent and many rare terms, some repeated; one text has none."""
    random = np.random.default_rng(seed)
    ids = (TERMS * random.random((count, length)) ** 3).astype(np.int64)
    weights = random.exponential(0.6, (count, length)).astype(np.float32).round(2)
    mask = random.random((count, length)) < 0.8
    mask[0] = False
    vectors = torch.from_numpy(weights)[None, ..., None]
    return Tokens(vectors, torch.from_numpy(mask)[None], torch.from_numpy(ids)[None])


def parts(tokens: Tokens, first: int = 0, size: int = 100) -> list[tuple[list[str], Tokens]]:
    count = tokens.mask.shape[1]
    return [
        (
            [f"d{first + n}" for n in range(s, min(s + size, count))],
            tokens.map(lambda t, s=s: t[:, s : s + size]),
        )
        for s in range(0, count, size)
    ]


def build(folder: Path | None, given: object, bits: int = 8) -> Index:
    common = {"paradigm": "splade", "dim": 1, "fields": ("vectors", "ids")}
    return Index(Store.build_from(kinds.inverted(bits), given, folder, **common))  # type: ignore[arg-type]


def queries(count: int = 8) -> Tokens:
    return terms(count, 99, 9).map(lambda t: t.transpose(0, 1))


def expected(index: Index, Q: Tokens, k: int) -> list[dict[str, float]]:
    """Rank every document with a rel other than 0, best first, equal scores by id."""
    ids = sorted(index.store.rows_by_id)
    scores = score(RECIPE, index.store.tokens_of(ids), Q)
    rows = []
    for row in scores.tolist():
        rows.append(best_first({id: value for id, value in zip(ids, row, strict=True) if value > 0}, k))
    return rows


def same(index: Index, k: int) -> None:
    assert_same_scores(index.search_tokens(RECIPE, queries(), k), expected(index, queries(), k))


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("k", [1, 10, 2000])
def test_search_is_exact_over_blocks_and_changes(tmp_path: Path, bits: int, k: int) -> None:
    index = build(tmp_path / "index", parts(terms(2 * BLOCK + 9, 0)), bits=bits)
    same(index, k)
    index = Index(index.store.add_from(parts(terms(BLOCK // 2, 1), first=2 * BLOCK + 9)))
    same(index, k)
    best = next(iter(index.search_tokens(RECIPE, queries(), 1)[1]))
    index = Index(index.store.delete([best, "d7"]))
    assert all(best not in ranked for ranked in index.search_tokens(RECIPE, queries(), 50))
    same(index, k)
    index = Index(index.store.compact())
    same(index, k)
    again = open_index(index.store.folder)
    assert again.search_tokens(RECIPE, queries(), k) == index.search_tokens(RECIPE, queries(), k)


def test_8_bits_are_near_and_small(tmp_path: Path) -> None:
    tokens = terms(50, 3)
    index, exact = (build(tmp_path / str(bits), parts(tokens), bits=bits) for bits in (8, 16))
    rounded, weights = (of.store.tokens(range(50)).vectors for of in (index, exact))
    assert ((rounded - weights).abs() <= weights / 32 + 2**-8).all()
    assert torch.equal(weights.sum(), tokens.vectors.half().float()[tokens.mask].sum())
    saved = 50 * (exact.store.bytes_per_document - index.store.bytes_per_document)
    assert round(saved) == exact.store.manifest["tokens"]


def test_what_is_no_weight_of_a_term_is_refused(tiny_bert: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="bits must be 8 or 16, got 4"):
        build(tmp_path / "index", [], bits=4)
    with pytest.raises(ValueError, match="holds one number for each token, not vectors of 32"):
        Store.build(kinds.inverted(), PARADIGMS["coil"](tiny_bert), ["a"], ["fox"], tmp_path / "index")
    small = terms(3, 0)
    for factor, bits, message in ((-1, 8, "of at least 0"), (1000, 8, "set bits to 16")):
        wrong = Tokens(small.vectors * factor, small.mask, small.ids)
        with pytest.raises(ValueError, match=message):
            build(tmp_path / "index", parts(wrong), bits=bits)
    index = build(tmp_path / "index", parts(small))
    Q = queries()
    with pytest.raises(ValueError, match="scores equal ids with Z = 1"):
        index.search_tokens(Recipe("colbert", QueryToDocument(), "one"), Q)
    with pytest.raises(ValueError, match="a weight below 0"):
        index.search_tokens(RECIPE, Tokens(-Q.vectors, Q.mask, Q.ids))
    with pytest.raises(ValueError, match="weighs terms of queries by salience"):
        index.search_tokens(RECIPE, Tokens(Q.vectors, Q.mask, Q.ids, torch.ones(Q.mask.shape)))


@pytest.mark.parametrize("bits", [8, 16])
def test_weights_that_round_to_minus_0_are_0_and_forged_settings_are_refused(tmp_path, bits):
    small = terms(3, 0)
    tiny = torch.where(small.vectors > 0.5, small.vectors, -1e-9)
    index = build(tmp_path / "index", parts(Tokens(tiny, small.mask, small.ids)), bits=bits)
    assert len(open_index(index.store.folder)) == 3
    file = index.store.folder / "manifest.json"
    manifest = json.loads(file.read_text())
    file.write_text(json.dumps(manifest | {"settings": manifest["settings"] | {"bits": 4}}))
    with pytest.raises(ValueError, match="bits must be 8 or 16, got 4"):
        open_index(index.store.folder)
