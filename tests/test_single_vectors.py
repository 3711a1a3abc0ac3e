"""One vector that stands for a document's tokens, by MUVERA and by LEMUR, beside other ways to compute it."""

import numpy as np
import pytest
import torch

from paradigms import lemur
from paradigms.align import Buckets, QueryToDocument, one
from paradigms.core import rel
from paradigms.lemur import Features, Regression, fit_features, token_maxima
from paradigms.muvera import FixedEncoding
from tests.near import assert_same
from tests.scoring.table import sides

WIDTH = 24  # of LEMUR's features


@pytest.mark.parametrize(("salience", "fill"), [(True, True), (False, False)])
@pytest.mark.parametrize(("planes", "repetitions"), [(0, 1), (1, 3), (6, 2)])
def test_an_inner_product_of_encodings_is_rel_under_buckets(planes, repetitions, salience, fill):
    documents, queries = sides(salience)
    encoding = FixedEncoding(planes, repetitions, fill=fill, seed=3)
    align = Buckets(planes, repetitions, fill, seed=3)
    results = encoding.queries(queries) @ encoding.documents(documents).T
    assert results.shape == (3, 5)
    assert_same(results, rel(documents, queries, align, one))


def random_features(epochs: int = 0) -> tuple[Features, torch.Tensor]:
    documents, _ = sides()
    vectors = torch.randn(400, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    return fit_features(token_maxima(documents, vectors), vectors, WIDTH, epochs, seed=1), vectors


@pytest.mark.parametrize("salience", [True, False])
def test_the_targets_add_up_to_maxsim(salience, monkeypatch):
    documents, queries = sides(salience)
    expected = rel(documents, queries, QueryToDocument(), one)
    weights = queries.mask[:, 0].double()
    if queries.salience is not None:
        weights = weights * queries.salience[:, 0].where(queries.mask[:, 0], 0)
    vectors = queries.vectors[:, 0].where(queries.mask[:, 0, :, None], 0)
    for held in (lemur.SIMILARITIES, 1):  # all documents at once, and one at a time
        monkeypatch.setattr(lemur, "SIMILARITIES", held)
        results = token_maxima(documents, vectors.flatten(0, 1)).unflatten(0, weights.shape)
        assert_same((results * weights[..., None]).sum(1), expected)


def test_weights_are_the_ridge_regression_of_the_targets():
    documents, queries = sides()
    features, vectors = random_features()
    design = features(vectors).numpy()
    penalty = np.full(WIDTH, lemur.RIDGE * (design**2).sum(0).mean())
    penalty[0] = 0
    rows = np.vstack([design, np.diag(penalty**0.5)])
    targets = np.vstack([token_maxima(documents, vectors).numpy(), np.zeros((WIDTH, 5))])
    expected = np.linalg.lstsq(rows, targets, rcond=None)[0].T
    weights = Regression.of(features, vectors).weights(documents)
    assert_same(weights, torch.from_numpy(expected))
    assert not weights[~documents.mask[0].any(1)].any()  # without tokens
    each = [features(q.vectors[0, 0][q.mask[0, 0]]).sum(0) for q in (queries[n : n + 1] for n in range(3))]
    assert_same(features.queries(queries), torch.stack(each))


def test_fitted_features_predict_better_than_random_ones():
    documents, _ = sides()
    fresh = torch.randn(400, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(6))
    errors = []
    for epochs in (0, 200):
        features, vectors = random_features(epochs)
        predicted = features(fresh) @ Regression.of(features, vectors).weights(documents).T
        errors.append(float((predicted - token_maxima(documents, fresh)).square().mean()))
    assert errors[1] < 0.8 * errors[0]
