"""A GPU computes what the CPU computes. Skipped without a GPU."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from paradigms import PARADIGMS
from paradigms.align import Entropic, QueryToDocument
from paradigms.core import Tokens, rel
from paradigms.data import Run
from paradigms.generative.retriever import GenerativeRetriever
from paradigms.retrieve import Indexed
from paradigms.scoring import in_batch
from tests.near import assert_same_run
from tests.scoring.table import RECIPES, gradients, label, texts
from tests.tiny import built
from tests.tiny_generative import generative, named

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: make gpu")
TEXTS = ["A quick fox, in the garden.", "the stone story of a zebra; stone and water", "snow"]
QUERIES = {"q1": "where is the quick fox", "q2": "stone"}
# What Z "retrieved" counts of a soft A depends on where an exponential becomes 0 in float32.
SOFT_COUNT = (Entropic, "retrieved")
WAYS = [(recipe, False) for recipe in RECIPES if (type(recipe.align), recipe.normalise) != SOFT_COUNT]
WAYS += [(recipe, True) for recipe in RECIPES if recipe.align.is_maximum()]


def on_gpu(tokens: Tokens, dtype: torch.dtype = torch.float32) -> Tokens:
    """Copy tokens to the GPU, with separate gradients."""

    def leaf(t: Tensor) -> Tensor:
        t = t.detach().to("cuda", dtype if t.is_floating_point() else t.dtype)
        return t.requires_grad_() if t.is_floating_point() else t

    return tokens.map(leaf)


@pytest.fixture(autouse=True)
def exact_products():
    """Float32 products are exact, but where a test says otherwise."""
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision("highest")


def near(mine: Tensor, theirs: Tensor, tolerance: float) -> None:
    """‖mine − theirs‖ ≤ tolerance · ‖theirs‖."""
    assert mine.is_cuda
    assert (mine.cpu().double() - theirs.double()).norm() <= tolerance * theirs.double().norm()


@pytest.mark.parametrize("salience", [False, True])
@pytest.mark.parametrize(
    ("recipe", "fused"), WAYS, ids=[f"{label(r)}{' fused' * fused}" for r, fused in WAYS]
)
def test_in_batch_rel(recipe, salience, fused):
    """Against core.rel in float64 on the CPU, in values and gradients; also by Triton's kernels."""
    torch.set_float32_matmul_precision("high" if fused else "highest")  # which chooses the kernels
    # Of 8 bits, which TF32's products keep: otherwise near ties would be won by others, with other gradients.
    sides = [
        replace(t, vectors=t.vectors.detach().bfloat16().double().requires_grad_())
        for t in texts(salience, sizes=(6, 9, 150, 40, 20))
    ]
    A, Z = recipe.align, recipe.normalise_function
    expected = rel(*sides, A, Z)
    copies = [on_gpu(side) for side in sides]
    found = in_batch.in_batch_rel(*copies, A, Z)
    tolerance = 1e-3 if isinstance(recipe.align, Entropic) else 1e-5  # an exponential amplifies rounding
    near(found, expected.detach(), tolerance)
    for mine, theirs in zip(gradients(found, *copies), gradients(expected, *sides), strict=True):
        near(mine, theirs, tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 2e-3), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("h", [16, 64, 128, 768])
def test_fused_kernels_in_half_precision(dtype, tolerance, h):
    """Against float64 of the same rounded vectors."""
    sides = [on_gpu(side, dtype) for side in texts(sizes=(16, 33, 180, 32, h))]
    wide = [
        replace(s, vectors=s.vectors.detach().cpu().double().requires_grad_(), mask=s.mask.cpu())
        for s in sides
    ]
    recipe = next(r for r in RECIPES if r.align == QueryToDocument() and r.normalise == "one")
    A, Z = recipe.align, recipe.normalise_function
    expected, found = rel(*wide, A, Z), in_batch.in_batch_rel(*sides, A, Z)
    near(found, expected.detach(), 1e-5)
    for mine, theirs in zip(gradients(found, *sides), gradients(expected, *wide), strict=True):
        near(mine, theirs, tolerance)


@pytest.mark.parametrize("name", PARADIGMS)
def test_a_paradigm_encodes_indexes_and_searches(tiny_bert, tmp_path, name):
    torch.manual_seed(0)
    model = built(name, tiny_bert).eval()

    def scores() -> Tensor:
        with torch.inference_mode():
            return model.score(model.encode_documents(TEXTS), model.encode_queries(list(QUERIES.values())))

    def found(folder: str) -> Run:
        index = Indexed.build(model, dict(zip(["d1", "d2", "d3"], TEXTS, strict=True)), tmp_path / folder)
        run = index.search(QUERIES, k=3)
        for query, documents in index.rerank(QUERIES, run).items():
            assert documents == pytest.approx(run[query], abs=1e-3)
        return run

    expected, slow = scores(), found("cpu")
    model.to("cuda")
    near(scores(), expected, 1e-4)
    for documents, wanted in zip(found("gpu").values(), slow.values(), strict=True):
        assert documents == pytest.approx(wanted, abs=1e-3)  # what is stored is float16


@pytest.mark.parametrize("settings", [{}, {"tokens": "own", "softmax": "place"}, {"pawa_rank": 4}])
def test_a_generative_model_searches(seq2seq, settings):
    model = generative(seq2seq["t5"], named([[5, 6], [7], [5, 6, 8, 9], [300]]), beams=10, **settings)
    slow = GenerativeRetriever(model.cpu()).search(QUERIES, k=4)
    assert_same_run(GenerativeRetriever(model.cuda()).search(QUERIES, k=4), slow)
