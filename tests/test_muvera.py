"""Fixed-dimensional encodings: one inner product is core.rel under `Buckets`."""

from dataclasses import replace

import pytest
import torch

from paradigms.align import Buckets, QueryToDocument, one
from paradigms.core import interact, rel, similarity
from paradigms.muvera import FixedEncoding
from tests.near import assert_same
from tests.scoring.table import sides


@pytest.mark.parametrize(("salience", "fill"), [(True, True), (False, False)])
@pytest.mark.parametrize(("planes", "repetitions"), [(0, 1), (1, 3), (6, 2)])
def test_an_inner_product_of_encodings_is_rel_under_buckets(
    planes: int, repetitions: int, salience: bool, fill: bool
) -> None:
    documents, queries = sides(salience)
    encoding = FixedEncoding(planes, repetitions, 0, fill=fill, seed=3)
    align = Buckets(planes, repetitions, fill, seed=3)
    results = encoding.queries(queries) @ encoding.documents(documents).T
    assert results.shape == (3, 5)
    assert_same(results, rel(documents, queries, align, one))


def test_a_centre_moves_buckets_and_no_order() -> None:
    """A is that of centred tokens, S that of centred documents: MaxSim less one number for each query."""
    documents, queries = sides()
    centre = documents.vectors[documents.mask].mean(0)
    encoding = FixedEncoding(3, 4, 0)
    d, q = (replace(t, vectors=t.vectors - centre) for t in (documents, queries))
    A = interact(d, q, Buckets(planes=3, repetitions=4), one).alignment
    expected = (A * similarity(d, queries)[0]).sum((-2, -1))
    results = encoding.queries(queries, centre) @ encoding.documents(documents, centre).T
    assert_same(results, expected)
    full, less = (rel(t, queries, QueryToDocument(), one)[:, 1:] for t in (documents, d))  # 0 is empty
    assert_same(full - less, (full - less)[:, :1].expand_as(full))


@pytest.mark.parametrize("shortened", [{"inner": 8}, {"inner": 8, "final": 64}])
def test_projections_keep_inner_products_on_average(shortened: dict[str, int]) -> None:
    """Over 25 seeds the mean error lies within 5 standard errors of 0."""
    documents, queries = sides()
    errors = []
    for seed in range(25):
        full = FixedEncoding(2, 3, 0, seed=seed)
        short = replace(full, **shortened)
        D, Q = short.documents(documents), short.queries(queries)
        assert D.shape == (5, short.width(20)) == (5, 64 if "final" in shortened else 3 * 4 * 8)
        errors.append(Q @ D.T - full.queries(queries) @ full.documents(documents).T)
    results = torch.stack(errors)
    assert (results.mean(0).abs() <= 5 * results.std(0) / 5 + 1e-9).all()
    assert results.abs().max() > 0.1
