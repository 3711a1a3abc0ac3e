"""in_batch_rel beyond its values: memory, types, determinism and errors."""

from dataclasses import replace

import pytest
import torch
from studies.counted import Living

from paradigms.align import Alignment, PoolTopK, PositiveEqualIds, QueryToDocument, TopK
from paradigms.core import rel
from paradigms.recipe import Recipe
from paradigms.scoring.in_batch import PAIR_BYTES, in_batch_rel
from tests.scoring.table import RECIPES, gradients, label, texts

EVERY = pytest.mark.parametrize("recipe", [r for r in RECIPES if r.normalise == "total"], ids=label)
MAXSIM = Recipe("test", QueryToDocument(), "one")


def functions(recipe: Recipe) -> tuple:
    return recipe.align, recipe.normalise_function


@EVERY
def test_autocast_changes_nothing(recipe: Recipe) -> None:
    """Bit for bit, in values and gradients, whichever way is taken; scores would be rounded to 8 bits."""
    sides = texts(salience=True, dtype=torch.float32)
    for cells in (1, None):
        expected = in_batch_rel(*sides, *functions(recipe), cells)
        with torch.autocast("cpu", torch.bfloat16):
            results = in_batch_rel(*sides, *functions(recipe), cells)
            rounded = rel(*sides, *functions(recipe))
        assert results.dtype == torch.float32
        assert results.equal(expected)
        assert (results - rounded.float()).abs().max() > 1e-4 * results.abs().max()
        for mine, theirs in zip(gradients(results, *sides), gradients(expected, *sides), strict=True):
            assert mine.equal(theirs)


@EVERY
def test_nothing_at_all_scores_as_rel_does(recipe: Recipe) -> None:
    """Without queries, and without documents."""
    D, Q = texts()
    for sides in ((D, Q[:0]), (D.map(lambda t: t[:, :0]), Q)):
        assert in_batch_rel(*sides, *functions(recipe)).equal(rel(*sides, *functions(recipe)))


@pytest.mark.filterwarnings("ignore:invalid value", "ignore:All-NaN")
@pytest.mark.parametrize("align", [QueryToDocument(), PoolTopK(0.2), PositiveEqualIds()])
def test_a_diverged_model_does_not_look_healthy(align: Alignment) -> None:
    """NaN of a real token reaches the scores that it reaches in `rel`, that of padding does not.

    EqualIds ignores NaN of a token whose id no query token has, which rel does not.
    """
    D, Q = texts()
    one = Recipe("test", align, "one").normalise_function
    real = D.mask[0].nonzero().tolist()
    vectors = D.vectors.detach().masked_fill(~D.mask[..., None], torch.nan)
    assert in_batch_rel(replace(D, vectors=vectors), Q, align, one).equal(in_batch_rel(D, Q, align, one))
    for document, token in real:
        broken = vectors.clone()
        broken[0, document, token, 0] = torch.nan
        scores = in_batch_rel(replace(D, vectors=broken), Q, align, one).isnan()
        assert scores.equal(rel(replace(D, vectors=broken), Q, align, one).isnan())
        assert scores.any()


@EVERY
def test_memory_stays_under_the_bound(recipe: Recipe) -> None:
    """Counted: everything but the vectors and two copies of their gradients, for batches of any size."""
    cells, bound = 1 << 11, 1 << 18
    peaks = []
    for queries, negatives in ((8, 0), (32, 3)):
        sizes = queries, queries * (1 + negatives), 24, 8, 4
        sides = texts(salience=True, sizes=sizes, dtype=torch.float32)
        fields = [
            t for side in sides for t in (side.vectors, side.mask, side.ids, side.salience) if t is not None
        ]
        with Living() as living:
            living.ignore(*fields)
            gradients(in_batch_rel(*sides, *functions(recipe), cells, bound), *sides)
        scores = 4 * queries * sizes[1]
        own = sum(t.nbytes for t in fields if t.requires_grad) + 2 * scores
        peaks.append(living.peak - 2 * own)
    assert 4 * bound < PAIR_BYTES * 32 * 128 * 8  # cut into pieces
    full = "pool" in recipe.align.reads and not isinstance(recipe.align, PoolTopK)
    assert max(peaks) < bound + 8 * 4 * 128 * 24 * 8 * full  # such an A is given all of a query's S


@pytest.mark.parametrize("recipe", [MAXSIM, Recipe("test", TopK(k=2), "total")], ids=label)
def test_gradients_are_the_same_in_every_run(recipe: Recipe) -> None:
    """Bit for bit, on two threads and at a size that is shared out among them: what exact resume rests on."""
    sides = texts(salience=True, real=1.0, dtype=torch.float32, sizes=(32, 64, 100, 32, 16))
    torch.set_num_threads(2)
    runs = [gradients(in_batch_rel(*sides, *functions(recipe)), *sides) for _ in range(6)]
    assert all(torch.equal(a, b) for run in runs[1:] for a, b in zip(runs[0], run, strict=True))


def test_documents_of_each_query_are_refused() -> None:
    D, Q = texts()
    with pytest.raises(ValueError, match=r"axes \[1, n, i, h\], got x = 3"):
        in_batch_rel(D.map(lambda t: t.expand(3, *t.shape[1:])), Q, *functions(MAXSIM))
