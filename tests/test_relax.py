"""`relax.entropic_topk` against the numpy reference of theory/, golden numbers, derivatives and edges."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paradigms.relax import entropic_topk, hard_topk, token_budget
from tests.near import assert_same, assert_within_rounding
from tests.theory.test_by_hand import problems
from theory import entropic

PROBLEMS = problems().map(lambda problem: (torch.tensor(problem[0]), *problem[1:]))


def double(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@given(PROBLEMS)
def test_equals_the_reference(problem):
    scores, k, eps = problem
    expected = torch.tensor(entropic.solve(scores.numpy(), k, eps).gates)
    assert_same(entropic_topk(scores, k, eps), expected, scale=1)


@given(PROBLEMS, st.sampled_from([1, 2, 5, 30]))
def test_iterations_are_those_of_equation_5(problem, iterations):
    scores, k, eps = problem
    expected = torch.tensor(entropic.iterate(scores.numpy(), k, eps, iterations).gates[-1])
    assert_same(entropic_topk(scores, k, eps, iterations=iterations), expected, scale=1)


@pytest.mark.parametrize("iterations", [None, 4])
def test_gradcheck_with_mask_and_k_per_row(iterations):
    scores = torch.randn(3, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    mask = torch.arange(7) < torch.tensor([7, 5, 2])[:, None]
    k = double([2.5, 3, 4]).requires_grad_()  # the last is more than there is
    assert torch.autograd.gradcheck(
        lambda s, k: entropic_topk(s, k, 0.3, mask, iterations), (scores.requires_grad_(), k)
    )


@pytest.mark.parametrize("iterations", [None, 3])
def test_budgets_of_nothing_and_of_everything(iterations):
    """k for each row, of which padding takes nothing, whatever its scores."""
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]]).bool()
    scores = torch.randn(4, 5, generator=torch.Generator().manual_seed(0)).masked_fill(~mask, 50.0)
    scores.requires_grad_()
    gates = entropic_topk(scores, torch.tensor([3.0, 7.5, 0.0, 2.0]), 0.002, mask, iterations)
    expected = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 0, 0], [0.0] * 5, [0.0] * 5])
    assert torch.equal(gates, expected)
    (gradient,) = torch.autograd.grad(gates.sum(), scores)
    assert not gradient.any()
    assert not entropic_topk(torch.zeros(3), -1, 0.1).any()


@pytest.mark.parametrize("eps", [1e-5, 1e-8, 1e-12])
def test_float32_is_right_at_any_epsilon(eps):
    """Scores divided by ε reach 10¹², where float32 cannot add ln k: λ reached k in place of 1."""
    generator = torch.Generator().manual_seed(0)
    scores = 3 * torch.rand(20, 50, generator=generator)
    scores[:, :10] = scores[:, 20:21]  # ties, half of them near the cap
    for k in (0.3, 2.5, 5.0, 40.5):
        gates = entropic_topk(scores, k, eps)
        # Shifting scores changes no gate, and keeps s/ε small where it decides one, also in float64.
        shifted = [row - np.sort(row)[-math.ceil(k)] for row in scores.double().numpy()]
        expected = [entropic.solve(row, k, eps).gates for row in shifted]
        # A gate is a share of a sum of 50 terms.
        assert_within_rounding(gates, np.array(expected), torch.float32, 50, scale=1)


@pytest.mark.parametrize("spread", [0.05, 1.0, 20.0])
def test_float32_is_exact_but_for_the_rounding_of_a_sum(spread):
    """s/ε reaches 10,000, where float32 steps by .001: only differences to the threshold may be divided."""
    scores = spread * torch.rand(256, 256, generator=torch.Generator().manual_seed(2))
    lengths = torch.randint(64, 257, (256, 1), generator=torch.Generator().manual_seed(3))
    mask = torch.arange(256) < lengths
    budget = token_budget(0.4, mask)
    exact = entropic.solve(np.where(mask, scores.double(), -np.inf), budget.numpy(), 0.002).gates
    results = entropic_topk(scores, budget, 0.002, mask).double()
    assert_within_rounding(results, exact, torch.float32, 256)


@given(PROBLEMS)
def test_the_hard_gate_is_the_reference_limit(problem):
    scores, k, _ = problem
    scores = (2 * scores).round()  # with ties
    expected = torch.tensor(entropic.hard_top_k(scores.numpy(), k))
    assert_same(hard_topk(scores, k), expected)
    padded = torch.nn.functional.pad(scores, (0, 2), value=50.0)
    assert_same(hard_topk(padded, k, padded < 50)[:-2], expected)


def test_budgets_are_ceilings_of_the_real_lengths():
    mask = torch.arange(300) < torch.arange(301)[:, None]
    for hundredths in range(1, 101):
        budgets = token_budget(hundredths / 100, mask)
        assert budgets.tolist() == [-(-hundredths * n // 100) for n in range(301)]
    assert token_budget(1e-12, mask).tolist() == [0.0] + [1.0] * 300


def test_autocast_and_half_precision_inputs_are_computed_in_float32():
    scores = torch.rand(4, 64, generator=torch.Generator().manual_seed(4))
    expected = entropic_topk(scores, 20, 0.002)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(entropic_topk(scores, 20, 0.002), expected)
    half = scores.bfloat16()
    assert torch.equal(entropic_topk(half, 20, 0.002), entropic_topk(half.float(), 20, 0.002).bfloat16())


@pytest.mark.parametrize(("eps", "iterations", "word"), [(1e-31, None, "eps"), (0.1, 0, "iter")])
def test_refuses(eps, iterations, word):
    with pytest.raises(ValueError, match=word):
        entropic_topk(torch.zeros(3), 1, eps, iterations=iterations)


def test_the_hard_gate_at_the_edges():
    scores = torch.tensor([[0.3, 0.9, 0.1, 0.7], [0.5, 0.5, 0.5, 9.0], [1.0, 2, 3, 4], [1.0, 2, 3, 4]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0]]).bool()
    gates = hard_topk(scores.requires_grad_(), torch.tensor([2, 1, 5, 3]), mask)
    expected = torch.tensor([[0, 1.0, 0, 1], [1 / 3, 1 / 3, 1 / 3, 0], [1, 1, 0, 0], [0, 0, 0, 0]])
    assert_within_rounding(gates, expected, torch.float32, 1)
    assert not gates.requires_grad
    assert not hard_topk(scores, 0).any()
