"""The fused kernels find the maxima of S and their gradients (interpreted, on the CPU), and they compile.

rel by them is in `test_equals_rel`.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from paradigms.align import NORMALISERS, QueryToDocument, TopK
from paradigms.core import Align, Tokens, rel, similarity
from paradigms.scoring import in_batch as scoring
from tests.near import assert_within_rounding
from tests.scoring.interpreted import SMALL, counted, imported, needs_triton, small
from tests.scoring.table import gradients, in_float64
from tests.scoring.table import texts as random_texts


@pytest.fixture(params=[None, SMALL], ids=["tuned tiles", "small tiles"])
def tiles(request, fused, monkeypatch):
    """The kernels with their first tuned tiles, and with tiles that cut every axis several times."""
    if request.param:
        small(fused, monkeypatch)


def twin(documents: Tokens, queries: Tokens, equal_ids: bool = False) -> tuple[Tensor, Tensor]:
    """The result of `best_tokens`, computed from all of S in float64."""
    D, Q = (replace(t, vectors=t.vectors.double()) for t in (documents, queries))
    S, valid = similarity(D, Q)
    if equal_ids:
        valid = valid & (documents.ids[..., :, None] == queries.ids[..., None, :])
    best, place = S.masked_fill(~valid, -torch.inf).max(-2)
    some = valid.any(-2)
    return best.where(some, 0), place.where(some, -1)


def texts(i: int = 21, dtype: torch.dtype = torch.float32) -> list[Tokens]:
    return random_texts(dtype=dtype, sizes=(3, 4, i, 7, 20))


@needs_triton
@pytest.mark.parametrize("equal_ids", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_maxima_places_and_gradients(fused, tiles, dtype, equal_ids):
    """The maxima are those of the rounded vectors, to float32; gradients are rounded to the vectors' type."""
    D, Q = texts(dtype=dtype)
    best, place = fused.best_tokens(D, Q, equal_ids)
    expected, places = twin(D, Q, equal_ids)
    assert best.dtype == torch.float32
    assert place.equal(places.to(torch.int16))
    assert (place < 0).any()
    assert_within_rounding(best, expected, torch.float32, 20)  # of h products
    for mine, theirs in zip(gradients(best, D, Q), gradients(expected, D, Q), strict=True):
        assert mine.dtype == dtype
        assert theirs.any()
        # Of b · j maxima; in half precision, what is rounded is their sum alone.
        terms = 3 * 7 if dtype == torch.float32 else 2
        assert_within_rounding(mine, theirs, dtype, terms)


@needs_triton
@pytest.mark.filterwarnings("ignore:invalid value", "ignore:All-NaN")
def test_nan_reaches_the_score_and_infinity_loses(fused, tiles):
    """A diverged model must not look healthy: NaN of a real token is the maximum, that of padding nothing."""
    D, Q = texts(i=40)
    D, Q = (replace(t, vectors=t.vectors.detach(), mask=torch.ones_like(t.mask)) for t in (D, Q))
    D.mask[0, 0, 3] = False
    clean, _ = fused.best_tokens(D, Q)
    D.vectors[0, 0, 3] = torch.nan
    D.vectors[0, 1, 3] = torch.nan
    Q.vectors[0, 0, 2] = torch.nan
    best, _ = fused.best_tokens(D, Q)
    wrong = torch.zeros_like(best, dtype=torch.bool)
    wrong[:, 1] = wrong[0, :, 2] = True
    assert best.isnan().equal(wrong)
    assert best[~wrong].equal(clean[~wrong])
    Q.vectors[0, 0, 2], D.vectors[0, 1] = 1.0, -torch.inf
    best, place = fused.best_tokens(D, Q)
    assert best[0, 1, 2] == 0
    assert place[0, 1, 2] == -1


@needs_triton
def test_what_the_kernels_do_not_do_is_done_without_them(fused, monkeypatch):
    """Alignments other than a max, float64, sides without tokens; vectors of two types are einsum's error."""
    calls = counted(fused, monkeypatch)
    D, Q = texts()
    double = [replace(t, vectors=t.vectors.double()) for t in (D, Q)]
    best, Z = QueryToDocument(), NORMALISERS["one"]
    cases: list[tuple[Tokens, Tokens, Align]] = [
        (D, Q, TopK(k=2)),
        (double[0], double[1], best),
        (D, Q.map(lambda v: v[:, :, :0]), best),
    ]
    for documents, queries, align in cases:
        expected = rel(*map(in_float64, (documents, queries)), align, Z)
        results = scoring.in_batch_rel(documents, queries, align, Z)
        assert_within_rounding(results, expected, documents.vectors.dtype, 20 + 21 + 7)
    with pytest.raises(RuntimeError, match="dtype"):
        scoring.in_batch_rel(D, replace(Q, vectors=Q.vectors.bfloat16()), best, Z)
    assert not calls
    scoring.in_batch_rel(D, Q, best, Z)
    assert len(calls) == 1


@needs_triton
def test_kernels_compile(tmp_path, monkeypatch):
    """Compiles for GPUs that are not here: the interpreter accepts code that the compiler rejects."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    types = {"lengths": "*i32", "maxima": "*fp32", "place": "*i16", "g": "*fp32"}
    types |= dict.fromkeys(("d_mask", "q_mask"), "*u8") | dict.fromkeys(("d_ids", "q_ids"), "*i64")
    types |= dict.fromkeys(("D", "Q", "out"), "*bf16")
    constants = {"FEATURES": 128, "BLOCK": 128, "BLOCKS": 1, "PRECISION": "ieee", "WIDEN": False}
    with imported(interpret=False) as fused:
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        for name, capability, product in (
            ("_maxima_kernel", 90, "wgmma"),
            ("_to_documents", 80, "mma.sync"),
            ("_to_queries", 90, "fma"),
        ):
            kernel = getattr(fused, name)
            tuned = kernel.configs[0]
            values = constants | {"EQUAL_IDS": True} | tuned.kwargs
            values = {argument: values[argument] for argument in kernel.arg_names if argument in values}
            signature = {argument: types.get(argument, "i32") for argument in kernel.arg_names}
            source = ASTSource(kernel.fn, signature | dict.fromkeys(values, "constexpr"), values)
            options = {"num_warps": tuned.num_warps, "num_stages": tuned.num_stages}
            compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
            assert product in compiled.asm["ptx"]
            assert compiled.metadata.shared <= 99 << 10  # what one program may have from 8.0 on
