"""Lemma 5.2: the printed elu kernel and its counterexample, positive random features and their error."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from theory import kernels


def unit(rng, *shape):
    x = rng.standard_normal(shape)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def random_features(h, m, seed):
    projections = kernels.orthogonal_projections(h, m, seed)
    return lambda x: kernels.positive_features(x, projections)


def test_relevance_equals_loops():
    rng = np.random.default_rng(0)
    D, Q = rng.normal(size=(5, 3)), rng.normal(size=(4, 3))
    total = 0.0
    for d in D:
        weights = np.exp(Q @ d) / np.exp(Q @ d).sum()
        total += sum(weights[j] * (d @ q) for j, q in enumerate(Q))
    assert kernels.relevance(D, Q) == pytest.approx(total, rel=1e-12)


@given(st.integers(0, 2**32 - 1), st.sampled_from([kernels.elu_plus_one, random_features(4, 16, 0)]))
def test_separated_form_equals_the_double_sum(seed, features):
    rng = np.random.default_rng(seed)
    D, Q = rng.normal(size=(6, 4)), rng.normal(size=(3, 4))
    weights = features(D) @ features(Q).T
    expected = ((D @ Q.T) * weights / weights.sum(1, keepdims=True)).sum()
    assert kernels.kernel_relevance(D, Q, features) == pytest.approx(expected, rel=1e-9, abs=1e-9)
    terms = kernels.kernel_terms(D, Q, features)
    assert (terms / weights.sum(1, keepdims=True)).sum() == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_misprint_elu_is_not_the_exponential():
    D, Q = np.array([[1.0, -np.log(2)]]), np.array([[1.0, 2.0]])  # elu(d)ᵀelu(q) = 1 − ½·2 = 0
    assert kernels.relevance(D, Q) == pytest.approx(1 - 2 * np.log(2))
    assert kernels.kernel_terms(D, Q, kernels.elu)[0, 0] == pytest.approx(0, abs=1e-15)  # 0/p = 0 whatever p
    approximations = [kernels.kernel_relevance(D, Q, random_features(2, 4096, seed)) for seed in range(3)]
    np.testing.assert_allclose(
        approximations, kernels.relevance(D, Q), rtol=1e-9
    )  # one weight: 1 whatever φ > 0


def test_misprint_elu_kernel_is_negative():
    x, y = np.array([[1.0]]), np.array([[-1.0]])
    assert (kernels.elu(x) @ kernels.elu(y).T).item() == pytest.approx(np.expm1(-1))
    for seed in range(5):
        features = random_features(1, 32, seed)
        assert (features(x) @ features(y).T).item() > 0


def test_misprint_normaliser_depends_on_the_whole_query():
    D = np.array([[1.0, 0.0]])
    q, other, another = [0.5, 0.0], [1.0, 0.0], [-1.0, 0.0]
    weights = [np.exp(D @ np.array([q, z]).T) for z in (other, another)]
    implied = [np.exp(0.5) / (w / w.sum())[0, 0] for w in weights]  # p_11 = exp(dᵀq₁)/A_11, same d and q₁
    np.testing.assert_allclose(implied, [np.exp(0.5) + np.exp(1), np.exp(0.5) + np.exp(-1)])


def test_separable_bound_orders_documents_alike_for_every_query():
    rng = np.random.default_rng(0)
    documents = [unit(rng, 6, 8) * rng.uniform(0.5, 1.5) for _ in range(12)]
    queries = [unit(rng, 4, 8) for _ in range(8)]
    exact = np.array([[kernels.relevance(D, Q) for D in documents] for Q in queries]).argsort(1)
    factor = np.array([kernels.separable_factor(D, kernels.elu) for D in documents])
    bound = np.array([factor * kernels.separable_factor(Q, kernels.elu) for Q in queries]).argsort(1)
    assert np.all(bound == bound[0])
    assert not np.all(exact == exact[0])


def test_projections_are_orthogonal_gaussian():
    W = kernels.orthogonal_projections(6, 20_000, 3)
    assert W.shape == (20_000, 6)
    gram = W[:6] @ W[:6].T
    np.testing.assert_allclose(gram - np.diag(np.diag(gram)), 0, atol=1e-12)
    np.testing.assert_allclose(W.mean(0), 0, atol=4 / np.sqrt(20_000))
    np.testing.assert_allclose(W.T @ W / len(W), np.eye(6), atol=4 * np.sqrt(2 / 20_000))
    np.testing.assert_array_equal(W, kernels.orthogonal_projections(6, 20_000, 3))


@pytest.mark.parametrize("norm", [0.3, 1.0])
def test_positive_features_are_unbiased_with_the_stated_deviation(norm):
    rng = np.random.default_rng(1)
    x, y = norm * unit(rng, 5), norm * unit(rng, 5)
    draws, m = 3000, 16
    estimates = np.array(
        [
            (kernels.positive_features(x[None], W) @ kernels.positive_features(y[None], W).T).item()
            for W in rng.standard_normal((draws, m, 5))
        ]
    )
    exact, deviation = np.exp(x @ y), kernels.kernel_relative_deviation(x, y, m) * np.exp(x @ y)
    assert abs(estimates.mean() - exact) < 4 * deviation / np.sqrt(draws)
    squares = (estimates - exact) ** 2
    assert abs(squares.mean() - deviation**2) < 4 * squares.std() / np.sqrt(draws)


def test_golden_deviation():
    assert kernels.kernel_relative_deviation([1, 0], [1, 0], 256) == pytest.approx(0.45756723, rel=1e-7)


def test_error_at_unit_norm():
    rng = np.random.default_rng(0)
    errors = {256: [], 4096: [], "elu": [], "elu + 1": []}
    for seed in range(40):
        D, Q = unit(rng, 20, 16), unit(rng, 10, 16)
        exact = kernels.relevance(D, Q)
        for name, features in (
            (256, random_features(16, 256, seed)),
            (4096, random_features(16, 4096, seed)),
            ("elu", kernels.elu),
            ("elu + 1", kernels.elu_plus_one),
        ):
            errors[name].append(abs(kernels.kernel_relevance(D, Q, features) / exact - 1))
    medians = {name: np.median(values) for name, values in errors.items()}
    assert medians[256] < 0.1
    assert medians[4096] < 0.03
    assert medians[4096] < medians[256] / 2
    assert medians["elu + 1"] > 0.5
    assert medians["elu"] > 3


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: kernels.relevance([[1.0, 2.0]], [[1.0]]), "documents"),
        (lambda: kernels.relevance([1.0, 2.0], [[1.0, 1.0]]), "documents"),
        (lambda: kernels.relevance(np.zeros((0, 2)), np.zeros((1, 2))), "documents"),
        (lambda: kernels.relevance([[np.nan]], [[1.0]]), "documents"),
        (lambda: kernels.orthogonal_projections(0, 4, 0), "dimension"),
        (lambda: kernels.orthogonal_projections(4, 0, 0), "features"),
        (lambda: kernels.positive_features([[1.0]], [[1.0, 2.0]]), "projections"),
        (lambda: kernels.kernel_relative_deviation([1.0], [1.0], 0), "features"),
        (lambda: kernels.separable_factor([1.0], kernels.elu), "vectors"),
    ],
)
def test_bad_arguments(call, named):
    with pytest.raises(ValueError, match=named):
        call()
