"""XTR: imputations, scores from retrieved tokens alone, and its objective's values and gradients."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from paradigms.align import NORMALISERS, PoolTopK, QueryToDocument
from paradigms.core import Tokens
from paradigms.impute import IMPUTATIONS, imputed_rel, retrieved_rel
from paradigms.scoring.in_batch import in_batch_rel
from paradigms.train.losses import contrastive
from paradigms.xtr import xtr
from tests.near import assert_same
from theory import token_retrieval as theory

float64 = torch.float64


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=float64, generator=torch.Generator().manual_seed(seed))


@st.composite
def corpora(draw: st.DrawFn) -> tuple[Tensor, Tensor, int]:
    """S of either sign and valid [b, n, i, j] of padded texts; k' from 1 to more than there is."""
    b, n, i, j = (draw(st.integers(1, most)) for most in (2, 5, 4, 4))
    seed, shift = draw(st.integers(0, 2**31 - 1)), draw(st.sampled_from([-2.0, 0.0, 1.0]))
    S = random(b, n, i, j, seed=seed) + shift
    lengths = np.random.default_rng(seed)
    d, q = (
        torch.from_numpy(lengths.integers(0, i + 1, (1, n))),
        torch.from_numpy(lengths.integers(1, j + 1, b)),
    )
    d[0, 0] = i
    valid = (torch.arange(i) < d[..., None])[..., None] & (torch.arange(j) < q[:, None])[:, None, None]
    return S.where(valid, 0), valid, draw(st.integers(1, n * i + 2))


def retrieve(S: Tensor, valid: Tensor, k: int) -> list[tuple[Tensor, Tensor, int]]:
    """Sort the corpus's tokens for each query: similarities [j, k'] and their documents."""
    results = []
    for s, real in zip(S, valid, strict=True):
        rows = real.any(-1).nonzero()
        columns = real.any(0).any(0).nonzero()[:, 0]
        P = s[rows[:, 0], rows[:, 1]][:, columns].T
        order = P.argsort(1, descending=True)[:, :k]
        results.append((P.gather(1, order), rows[:, 0][order], len(rows)))
    return results


def test_a_salience_that_no_search_reads_is_refused():
    with pytest.raises(ValueError, match="XTR has no salience"):
        xtr("offline", salience="relu")


def test_golden_imputations():
    retrieved = torch.arange(1, 21, dtype=float64)[None] / 20  # .05 … 1
    expected = {"kth": 0.05, "zero": 0.0, "tail_mean": 0.075, "percentile": 0.145, "none": math.nan}
    for name, value in expected.items():
        m = IMPUTATIONS[name](retrieved[:, torch.randperm(20)], 1000)
        assert_same(m, torch.tensor([value], dtype=float64))


def test_the_power_law_is_found_and_extrapolated_to_the_middle_of_what_is_missing():
    rank = torch.arange(1, 51, dtype=float64)
    retrieved = torch.stack([0.9 * rank**-0.2, 0.7 * rank**-0.05])
    middle = math.sqrt(50 * 5000)
    expected = torch.tensor([0.9 * middle**-0.2, 0.7 * middle**-0.05], dtype=float64)
    assert_same(IMPUTATIONS["power_law"](retrieved.flip(1), 5000), expected)
    # All of the corpus is retrieved: there is no rank beyond the last.
    full = IMPUTATIONS["power_law"](retrieved, 50)
    assert_same(full, retrieved[:, -1])


@pytest.mark.parametrize("row", [[0.3, -0.1], [-0.2, -0.5], [0.4]])
def test_without_a_power_law_the_bound_stands(row):
    assert IMPUTATIONS["power_law"](torch.tensor([row]), 100).tolist() == [pytest.approx(min(row))]


@given(st.integers(0, 2**31 - 1), st.integers(1, 30), st.sampled_from([-1.0, 0.0, 2.0]))
def test_imputations_read_the_best_in_any_order(seed, k, shift):
    retrieved, corpus = random(4, k, seed=seed) + shift, 10 * k
    m = {name: impute(retrieved, corpus) for name, impute in IMPUTATIONS.items()}
    assert (m["power_law"] <= retrieved.min(1).values).all()
    # The k best of 2k in any order, where the other k were not found, are the k best alone.
    order = torch.randperm(2 * k, generator=torch.Generator().manual_seed(seed))
    padded = torch.cat([retrieved, torch.full_like(retrieved, -torch.inf)], 1)[:, order]
    for name, impute in IMPUTATIONS.items():
        assert_same(impute(padded, corpus), m[name])


@pytest.mark.parametrize("name", IMPUTATIONS)
def test_a_query_token_that_found_nothing_is_left_out(name):
    retrieved = torch.tensor([[0.5, 0.25], [-torch.inf, -torch.inf]])
    assert IMPUTATIONS[name](retrieved, 10)[1].isnan()
    documents, rel = retrieved_rel(retrieved, torch.tensor([[7, 9], [-1, -1]]), 10, name)
    assert (documents.tolist(), rel.tolist()) == ([7, 9], [0.5, 0.25])


@given(corpora(), st.sampled_from(list(IMPUTATIONS)))
def test_retrieved_tokens_alone_give_imputed_rel(corpus, name):
    S, valid, k = corpus
    expected = imputed_rel(S, valid, k, name)
    for row, (scores, owners, tokens) in zip(expected, retrieve(S, valid, k), strict=True):
        documents, results = retrieved_rel(scores, owners, tokens, name)
        assert documents.tolist() == sorted(set(owners.flatten().tolist()))
        assert_same(results, row[documents])


@given(corpora())
def test_imputed_rel_is_the_theorys(corpus):
    """f_XTR' = f_ColBERT + (1/N) Σ over missing (m − max P) >= f_ColBERT, for documents that have tokens."""
    S, valid, k = corpus
    results = imputed_rel(S, valid, k)
    for s, real, scores in zip(S, valid, results, strict=True):
        columns, rows = real.any(0).any(0), real.any(-1)
        documents, owners = rows.nonzero()[:, 0].unique(return_inverse=True)
        P = s[rows][:, columns].T.numpy()
        expected = theory.imputed_scores(P, owners.numpy(), k)
        assert_same(scores[documents].numpy(), expected)
        gap = scores[documents].numpy() - theory.colbert_scores(P, owners.numpy())
        assert_same(gap, theory.imputation_gap(P, owners.numpy(), k))
        assert (gap >= -1e-12).all()


@given(corpora())
def test_without_imputation_search_is_the_training_score(corpus):
    """Eq. 2 with k' in place of k_train."""
    S, valid, k = corpus
    unread = Tokens(torch.zeros(1, 1, 1, 1), torch.ones(1, 1, 1, dtype=torch.bool))
    A = PoolTopK(k)(S, valid, unread, unread)
    expected = (S * A).sum((-2, -1)) / NORMALISERS["retrieved"](A, unread, unread)
    assert_same(imputed_rel(S, valid, k, "none"), expected)


def in_batch_loss(D: Tensor, Q: Tensor, k: int | None, target: Tensor, temperature: float) -> Tensor:
    """Loss of ColBERT (k = None) or XTR for documents [n, i, h] and queries [b, j, h] without padding."""
    documents = Tokens(D[None], torch.ones(1, *D.shape[:2], dtype=torch.bool))
    queries = Tokens(Q[:, None], torch.ones(len(Q), 1, Q.shape[1], dtype=torch.bool))
    align, Z = (QueryToDocument(), "query_tokens") if k is None else (PoolTopK(k), "retrieved")
    scores = in_batch_rel(documents, queries, align, NORMALISERS[Z])
    return contrastive(scores, target, torch.zeros_like(scores, dtype=torch.bool), temperature)


def similarities(P: Tensor, documents: int) -> tuple[Tensor, Tensor]:
    """D [n, i, h] and Q = I with Sᵢⱼ = P[j, n·i]: the gradient of D is that of P."""
    D = P.T.reshape(documents, -1, len(P)).clone().requires_grad_()
    return D, torch.eye(len(P), dtype=P.dtype)[None]


@given(st.integers(0, 2**31 - 1), st.integers(1, 25), st.sampled_from([0.05, 1.0]))
def test_gradients_are_appendix_a(seed, k, temperature):
    """−(1−P⁺)/(Z⁺τ) on the positive's retrieved maxima, P⁻/(Z⁻τ) on a negative's."""
    P, owners = random(3, 20, seed=seed), np.repeat(np.arange(5), 4)
    for cut in (None, k):  # None: ColBERT, which retrieves all 20 tokens
        expected = theory.xtr_gradient(P.numpy(), owners, cut or 20, 2, temperature)
        D, Q = similarities(P, 5)
        in_batch_loss(D, Q, cut, torch.tensor([2]), temperature).backward()
        results = D.grad.reshape(20, 3).T.numpy()
        assert_same(results, expected)
