"""Every fast path equals its law, core.rel or impute.imputed_rel, in values and in gradients where it trains.

One table: every alignment with every Z. Texts have holes, empty documents and queries, large values at padded
places, with salience and without.
"""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from paradigms.align import ALIGNMENTS, PoolTopK, retrieved_tokens
from paradigms.core import Tokens, rel, similarity
from paradigms.impute import IMPUTATIONS, imputed_rel
from paradigms.recipe import Recipe
from paradigms.scoring import kernels
from paradigms.scoring import stored as by_kernels
from paradigms.scoring.in_batch import BOUND, in_batch_rel
from paradigms.scoring.scorer import Scorer
from paradigms.scoring.stored import PackedQueries, Scanned, compiled, score
from tests.near import assert_same, assert_within_rounding
from tests.scoring.coded import BITS, LENGTHS, QUERIES, Corpus, frozen, normal, offsets_of, stored_tokens
from tests.scoring.coded import texts as stored_texts
from tests.scoring.interpreted import counted, needs_triton, small
from tests.scoring.table import ALIGNED, RECIPES, gradients, in_float64, label, texts

LARGEST_OF = kernels.largest_of
EVERY = pytest.mark.parametrize("recipe", RECIPES, ids=label)


def law(recipe: Recipe, documents: Tokens, queries: Tokens) -> Tensor:
    return rel(documents, queries, recipe.align, recipe.normalise_function)


def test_the_table_holds_everything():
    assert {type(align) for align in ALIGNED} == set(ALIGNMENTS.values())


@pytest.mark.parametrize(("salience", "real"), [(False, 0.7), (True, 0.7), (False, 0.0)])
@EVERY
def test_in_batch(recipe, salience, real):
    """However S is cut; and without gradients, as an index scores."""
    sides = texts(salience, real=real)
    expected = law(recipe, *sides)
    wanted = gradients(expected, *sides)
    assert any(g.any() for g in wanted) == (real > 0)
    cells = 13 * 7 * 5
    for most, bound in ((1, BOUND), (2 * cells, BOUND), (None, BOUND), (None, 1), (1, 1)):
        A, Z = recipe.align, recipe.normalise_function
        results = in_batch_rel(*sides, A, Z, most, bound)
        assert_same([results, *gradients(results, *sides)], [expected, *wanted])
    with torch.no_grad():
        assert_same(score(recipe, *sides), expected)


@EVERY
def test_one_vector_each(recipe):
    """A matrix product for most alignments, and core.rel where ids, salience or empty texts change A or Z."""
    for salience in (False, True):
        for real in (2.0, 0.7):
            sides = texts(salience, sizes=(3, 5, 1, 1, 20), real=real)
            documents, queries = (side.map(lambda t: t.detach()) for side in sides)
            if real > 1:  # the first document and the last query are empty
                documents, queries = documents.map(lambda t: t[:, 1:]), queries[:-1]
            assert_same(score(recipe, documents, queries), law(recipe, documents, queries))


@needs_triton
@pytest.mark.parametrize(
    "recipe", [r for r in RECIPES if r.align.is_maximum()], ids=lambda r: f"{r.align} {r.normalise}"
)
def test_in_batch_on_a_gpu(fused, monkeypatch, recipe):
    small(fused, monkeypatch)
    calls = counted(fused, monkeypatch)
    sides = texts(salience=True, dtype=torch.float32)
    A, Z = recipe.align, recipe.normalise_function
    results, wide = in_batch_rel(*sides, A, Z), [in_float64(t) for t in sides]
    assert len(calls) == 1
    expected = law(recipe, *wide)
    each = zip([results, *gradients(results, *sides)], [expected, *gradients(expected, *wide)], strict=True)
    sizes = [in_float64(replace(t, vectors=t.vectors.abs())) for t in sides]
    summed = law(recipe, *sizes)
    scale = max(float(t.abs().max()) for t in [summed, *gradients(summed, *sizes)])
    for mine, theirs in each:  # h terms of each similarity, then i and j similarities
        largest = max(scale, float(theirs.abs().max()))  # Z may be small where saliences cancel
        assert_within_rounding(mine, theirs, torch.float32, 20 + 13 + 7, largest)


@EVERY
def test_scorer_of_other_libraries_losses(recipe):
    """Scores each query against all documents, in the losses' order."""
    given = recipe.align, recipe.normalise
    if recipe.align.reads & {"ids", "statistics"}:
        with pytest.raises(ValueError, match=f"{re.escape(str(recipe.align))} reads token ids"):
            Scorer(*given)
        return
    documents, queries = texts()
    documents = documents.map(lambda t: torch.cat([t, t[:, :1]], 1))
    parts = queries.vectors[:, 0], documents.vectors[0].view(3, 2, 13, 20)
    masks = {"queries_mask": queries.mask[:, 0], "documents_mask": documents.mask[0].view(3, 2, 13).long()}
    assert_same(Scorer(*given)(*parts, **masks), law(recipe, documents, queries))


def stored_cases(
    folder: Path, width: int, salience: bool
) -> list[tuple[Scanned, PackedQueries, Tokens, Tokens]]:
    """float16 that begin anywhere in a file and queries of 0 tokens, of a tile, of several; and codes."""
    lengths = (*LENGTHS, 60, 0, 1, 1, 1)
    offsets, random = offsets_of(lengths), np.random.default_rng(0)
    fields = {"ids": random.integers(-2, 4, offsets[-1]).astype(np.int32)}
    if salience:
        fields["salience"] = random.random(offsets[-1]).astype(np.float32)
    halves = normal(int(offsets[-1]), width).astype(np.float16)
    (folder / "vectors.bin").write_bytes(bytes(6) + halves.tobytes())
    mapped = np.asarray(np.memmap(folder / "vectors.bin", np.uint16, "r", 6, halves.shape))
    queries = stored_texts([normal(j, width, seed=j) for j in (0, *QUERIES)], ids=True, salience=salience)
    cases = [(Scanned(kernels.halves(mapped), offsets, fields), PackedQueries(queries), queries, halves)]
    for bits in BITS if width == 128 else ():
        corpus = Corpus(bits, width, 33, lengths)
        one = stored_texts([corpus.queries], ids=True, salience=salience)
        scanned = Scanned(corpus.coded, offsets, fields, corpus.codes)
        cases.append((scanned, scanned.packed(one), one, corpus.x))
    rows = np.arange(len(lengths))
    return [
        (scanned, packed, q, stored_tokens(vectors.astype(np.float32), offsets, fields, rows))
        for scanned, packed, q, vectors in cases
    ]


@pytest.mark.parametrize("salience", [False, True])
@pytest.mark.parametrize("width", [16, 128])
def test_stored_tokens(tmp_path, width, salience):
    """With one alignment, and with all that read no ids at once; documents in any order."""
    recipes = [recipe for recipe in RECIPES if compiled(recipe)]
    assert {r.align for r in recipes} == {A for A in ALIGNED if A.kept(torch.tensor(9)) is not None}
    assert {r.normalise for r in recipes} == set(by_kernels.NORMALISERS)
    for scanned, packed, queries, documents in stored_cases(tmp_path, width, salience):
        rows = np.random.default_rng(1).permutation(documents.mask.shape[1])
        wide = in_float64(documents), in_float64(queries)
        sizes = [replace(t, vectors=t.vectors.abs()) for t in wide]
        terms = width + documents.mask.shape[-1] + queries.mask.shape[-1]
        several = [recipe for recipe in recipes if "ids" not in recipe.align.reads]
        together = iter(scanned.relevances(several, packed, rows))
        for recipe in recipes:
            expected, scale = law(recipe, *wide)[:, rows], float(law(recipe, *sizes).max())
            [alone] = scanned.relevances([recipe], packed, rows)
            for results in (alone, next(together)) if recipe in several else (alone,):
                assert_within_rounding(results, expected, torch.float32, terms, scale)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("imputation", IMPUTATIONS)
@pytest.mark.parametrize("k", [1, 5, 20, 70, 10_000])
def test_imputed_from_stored_tokens(imputation, k, threads, monkeypatch):
    """In one piece, or in eight pieces on two threads that each keep their largest similarities once."""
    kept = []
    monkeypatch.setattr(kernels, "largest_of", lambda *of: kept.append(LARGEST_OF(*of)) or kept[-1])
    monkeypatch.setattr("paradigms.scoring.threads.WORTH", 10 if threads > 1 else 10_000)
    torch.set_num_threads(threads)
    offsets, halves = offsets_of((*LENGTHS, 60)), normal(sum(LENGTHS) + 60, 32).astype(np.float16)
    rows = np.arange(len(LENGTHS) + 1)
    queries = stored_texts([normal(j, 32, seed=j) for j in (0, *QUERIES)])
    scanned = Scanned(kernels.halves(frozen(halves)), offsets, {})
    recipe = Recipe("test", PoolTopK(k=8), "retrieved", "impute", k, imputation)
    documents = stored_tokens(halves.astype(np.float32), offsets, {}, rows)
    results, owns = scanned.imputed(recipe, PackedQueries(queries), rows, int(offsets[-1]))
    assert 1 <= len(kept) <= threads
    S, valid = similarity(in_float64(documents), in_float64(queries))
    expected = imputed_rel(S, valid, k, imputation)
    for mine in (results, score(recipe, documents, queries)):  # of 32 products, and of at most 33 tokens
        assert_within_rounding(mine, expected, torch.float32, 32 + 33, scale=32 * float(expected.abs().max()))
    assert (owns == retrieved_tokens(S, valid, k).any(-1).any(-1).numpy()).all()
