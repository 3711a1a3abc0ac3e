"""Every fast path equals its law, core.rel or impute.imputed_rel, in values and in gradients where it trains.

One table: every alignment with every Z. Texts have holes, empty documents and queries, large values at padded
places, with salience and without.
"""

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor

from paradigms.align import ALIGNMENTS, retrieved_tokens
from paradigms.core import Tokens, rel, similarity
from paradigms.impute import IMPUTATIONS, imputed_rel
from paradigms.recipe import Recipe
from paradigms.scoring import kernels
from paradigms.scoring import stored as by_kernels
from paradigms.scoring.in_batch import in_batch_rel
from paradigms.scoring.scorer import Scorer
from paradigms.scoring.stored import Packed, Scanned, compiled, score
from tests.scoring.coded import BITS, LENGTHS, QUERIES, Corpus, frozen, normal, offsets_of, stored_tokens
from tests.scoring.coded import texts as stored_texts
from tests.scoring.interpreted import needs_triton, small
from tests.scoring.table import ALIGNED, RECIPES, close, gradients, label, texts

EVERY = pytest.mark.parametrize("recipe", RECIPES, ids=label)


def law(recipe: Recipe, documents: Tokens, queries: Tokens) -> Tensor:
    return rel(documents, queries, recipe.align_function, recipe.normalise_function)


def test_the_table_holds_everything() -> None:
    assert {align for align, _ in ALIGNED} == set(ALIGNMENTS)


@pytest.mark.parametrize(("salience", "real"), [(False, 0.7), (True, 0.7), (False, 0.0)])
@EVERY
def test_in_batch(recipe: Recipe, salience: bool, real: float) -> None:
    """However S is cut; and without gradients, as an index scores."""
    sides = texts(salience, real=real)
    expected = law(recipe, *sides)
    wanted = gradients(expected, *sides)
    assert any(g.any() for g in wanted) == (real > 0)
    cells = 13 * 7 * 5
    for most in (1, 2 * cells, None):
        A, Z = recipe.align_function, recipe.normalise_function
        found = in_batch_rel(*sides, A, Z, most)
        close([found, *gradients(found, *sides)], [expected, *wanted], 1e-10)
    with torch.no_grad():
        close([score(recipe, *sides)], [expected.detach()], 1e-10)


@needs_triton
@pytest.mark.parametrize(
    "recipe", [r for r in RECIPES if r.is_maximum()], ids=lambda r: f"{r.align} {r.normalise}"
)
def test_in_batch_on_a_gpu(fused: ModuleType, monkeypatch: pytest.MonkeyPatch, recipe: Recipe) -> None:
    small(fused, monkeypatch)
    calls, best_tokens = [], fused.best_tokens
    monkeypatch.setattr(fused, "best_tokens", lambda *a: (calls.append(a), best_tokens(*a))[1])
    sides = texts(salience=True, dtype=torch.float32)
    A, Z = recipe.align_function, recipe.normalise_function
    found, expected = in_batch_rel(*sides, A, Z), law(recipe, *sides)
    assert len(calls) == 1
    close([found, *gradients(found, *sides)], [expected, *gradients(expected, *sides)], 1e-4)


@EVERY
def test_scorer_of_other_libraries_losses(recipe: Recipe) -> None:
    """Of each query against all documents, in the order of the losses, or against its own."""
    given = recipe.align, recipe.normalise
    if "ids" in recipe.alignment.reads:
        with pytest.raises(ValueError, match=f"{recipe.align} reads token ids"):
            Scorer(*given)
        return
    documents, queries = texts()
    documents = documents.map(lambda t: torch.cat([t, t[:, :1]], 1))
    parts = queries.vectors[:, 0], documents.vectors[0].view(3, 2, 13, 20)
    masks = {"queries_mask": queries.mask[:, 0], "documents_mask": documents.mask[0].view(3, 2, 13).long()}
    found, expected = Scorer(*given, **recipe.align_knobs)(*parts, **masks), law(recipe, documents, queries)
    close([found], [expected], 1e-10)
    own = Scorer(*given, own=True, **recipe.align_knobs)(*parts, **masks)
    alone = [
        law(recipe, documents.map(lambda t, y=y: t[:, 2 * y : 2 * y + 2]), queries[y : y + 1])
        for y in range(3)
    ]
    close([own], [torch.cat(alone)], 1e-10)


def stored_cases(folder: Path, width: int, salience: bool) -> list[tuple[Scanned, Packed, Tokens, Tokens]]:
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
    cases = [(Scanned(kernels.halves(mapped), offsets, fields), Packed(queries), queries, halves)]
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
def test_stored_tokens(tmp_path: Path, width: int, salience: bool) -> None:
    """By one alignment, and by all that read no ids at once; of documents in any order."""
    recipes = [recipe for recipe in RECIPES if compiled(recipe)]
    assert {r.align for r in recipes} == {name for name, known in ALIGNMENTS.items() if known.kept}
    assert {r.normalise for r in recipes} == set(by_kernels.NORMALISERS)
    for scanned, packed, queries, documents in stored_cases(tmp_path, width, salience):
        rows = np.random.default_rng(1).permutation(documents.mask.shape[1])
        each = [law(recipe, documents, queries)[:, rows] for recipe in recipes]
        for recipe, expected in zip(recipes, each, strict=True):
            scale = max(1.0, float(expected.abs().max()))
            close([scanned.relevance(recipe, packed, rows) / scale], [expected / scale], 2e-5)
        several = [n for n, recipe in enumerate(recipes) if "ids" not in recipe.alignment.reads]
        together, wanted = (
            scanned.relevances([recipes[n] for n in several], packed, rows),
            torch.stack([each[n] for n in several]),
        )
        scale = wanted.abs().amax((1, 2), keepdim=True).clamp(min=1)
        close([together / scale], [wanted / scale], 2e-5)


@pytest.mark.parametrize("imputation", IMPUTATIONS)
@pytest.mark.parametrize("k", [1, 5, 20, 70, 10_000])
def test_imputed_from_stored_tokens(imputation: str, k: int) -> None:
    offsets, halves = offsets_of((*LENGTHS, 60)), normal(sum(LENGTHS) + 60, 32).astype(np.float16)
    rows = np.arange(len(LENGTHS) + 1)
    queries = stored_texts([normal(j, 32, seed=j) for j in (0, *QUERIES)])
    scanned = Scanned(kernels.halves(frozen(halves)), offsets, {})
    recipe = Recipe("test", "pool_top_k", "retrieved", {"k": 8}, "impute", k, imputation)
    documents = stored_tokens(halves.astype(np.float32), offsets, {}, rows)
    found, owns = scanned.imputed(recipe, Packed(queries), rows, int(offsets[-1]))
    S, valid = similarity(documents, queries)
    close([found, score(recipe, documents, queries)], [imputed_rel(S, valid, k, imputation)] * 2, 1e-4)
    assert (owns == retrieved_tokens(S, valid, k).any(-1).any(-1).numpy()).all()
