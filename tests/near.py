"""How far two ways to compute the same may differ: the only place where tests have a tolerance for rounding.

A processor's vector width, its fused multiply-adds, the number of threads and the libraries decide the order
in which a sum is added up. Where two ways to compute are compared, both therefore compute in float64
(`assert_same`), whose rounding is a thousandth of what is allowed, or less. Where a type with fewer bits is
what is tested, the tolerance follows from its ε and the number of terms (`assert_within_rounding`). Bits are
compared only where one machine ran the same code twice.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers.models.modernbert import modeling_modernbert
from transformers.models.mt5.modeling_mt5 import MT5LayerNorm
from transformers.models.t5.modeling_t5 import T5LayerNorm

from paradigms.core import Tokens

SAME = 1e-9


def assert_same(actual: Any, expected: Any, scale: float | None = None) -> None:
    """Check that two computations in float64 agree to 1e-9 of their scale.

    actual, expected: tensors, arrays, numbers, or lists and dicts of these. scale: the largest term that was
    added up; by default the largest finite value in `expected`, so give it where terms cancel.

    Raises AssertionError if they differ, or if a tensor or an array in `actual` is float32 or narrower.
    """
    for _, value, _ in _pairs("", actual, expected):
        assert value.dtype == torch.float64 or not value.is_floating_point(), f"{value.dtype}, not float64"
    _check(actual, expected, SAME, scale)


def assert_within_rounding(
    actual: Any, expected: Any, dtype: torch.dtype, terms: int, scale: float | None = None
) -> None:
    """Check that two sums of `terms` numbers, rounded to `dtype`, agree to terms · ε · scale.

    Adding n numbers in any order is off by at most n · ε/2 · Σ |x|; two orders differ by at most twice that.
    terms: in a network, the sum of the lengths of the products that follow each other (`tiny.TERMS`).
    scale: Σ |x|; by default the largest finite value in `expected`.
    """
    _check(actual, expected, terms * torch.finfo(dtype).eps, scale)


def compute_throughout_in_float64(patch: pytest.MonkeyPatch) -> None:
    """Let transformers' models in float64 compute the norms of T5 and the rotations of ModernBERT in float64.

    transformers computes these in float32 whatever the type of the weights is. Models of other types are
    unchanged.
    """
    for kind in (T5LayerNorm, MT5LayerNorm):
        patch.setattr(kind, "forward", _norm(kind.forward))
    patch.setattr(
        modeling_modernbert, "apply_rotary_pos_emb", _rotation(modeling_modernbert.apply_rotary_pos_emb)
    )


def _norm(rounded: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def forward(self: Any, x: Tensor) -> Tensor:
        if x.dtype != torch.float64:
            return rounded(self, x)
        return self.weight * x / (x.square().mean(-1, keepdim=True) + self.variance_epsilon).sqrt()

    return forward


def _rotation(rounded: Callable[..., Any]) -> Callable[..., Any]:
    def rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> Any:
        if q.dtype != torch.float64:
            return rounded(q, k, cos, sin, unsqueeze_dim)
        cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
        return tuple(x * cos + modeling_modernbert.rotate_half(x) * sin for x in (q, k))

    return rotate


def _check(actual: Any, expected: Any, share: float, scale: float | None) -> None:
    pairs = list(_pairs("", actual, expected))
    if scale is None:
        scale = max((_size(value) for _, _, value in pairs), default=0.0)
    for name, a, b in pairs:
        torch.testing.assert_close(
            a.double(),
            b.double(),
            rtol=0,
            atol=share * scale,
            equal_nan=True,
            msg=lambda text, name=name: f"{name}: {text}" if name else text,
        )


def _size(values: Tensor) -> float:
    wide = values.detach().double().abs()
    return float(wide[wide.isfinite()].max()) if wide.isfinite().any() else 0.0


def _pairs(name: str, actual: Any, expected: Any) -> Iterable[tuple[str, Tensor, Tensor]]:
    """(name, actual, expected) of each tensor in two nested structures."""
    if isinstance(expected, Mapping):
        assert actual.keys() == expected.keys(), name
        if _are_numbers(actual.values(), expected.values()):  # together: one by one is 20 times slower
            yield name, *(_tensor([each[key] for key in expected]) for each in (actual, expected))
            return
        for key in expected:
            yield from _pairs(f"{name} {key}".strip(), actual[key], expected[key])
    elif isinstance(expected, list | tuple):
        assert len(actual) == len(expected), name
        if _are_numbers(actual, expected):
            yield name, *map(_tensor, (actual, expected))
            return
        for n, pair in enumerate(zip(actual, expected, strict=True)):
            yield from _pairs(f"{name} {n}".strip(), *pair)
    else:
        yield name, *(_tensor(each) for each in (actual, expected))


def _are_numbers(*values: Iterable[Any]) -> bool:
    return all(isinstance(value, int | float) for each in values for value in each)


def _tensor(values: Any) -> Tensor:
    if isinstance(values, Tensor):
        return values.detach().cpu()
    return torch.from_numpy(np.asarray(values)[None])[0]


# Scores of indexes in float32: sums over at most 48 query tokens, the default length, and products of vectors
# of at most 128 numbers, ColBERT's default width.
SCORES = {"dtype": torch.float32, "terms": 48 + 128}
# What these may differ by where scores are at most 1.
TOLERANCE = SCORES["terms"] * torch.finfo(SCORES["dtype"]).eps


def assert_same_scores(actual: Iterable[dict[str, float]], expected: Iterable[dict[str, float]]) -> None:
    """Check that two computations in float32 of the best documents of each query and their scores agree.

    Near ties may swap, also at the end, where one of the two has a document that the other left out.
    """
    for scores, best in zip(actual, expected, strict=True):
        assert list(scores) == sorted(scores, key=lambda id: (-scores[id], id))
        common = scores.keys() & best.keys()
        scale = max((abs(s) for s in best.values() if np.isfinite(s)), default=1.0)
        assert_within_rounding(
            {i: scores[i] for i in common}, {i: best[i] for i in common}, **SCORES, scale=scale
        )
        ends = [sorted(each.values()) for each in (scores, best)]
        assert_within_rounding(*ends, **SCORES, scale=scale)
        for id in scores.keys() ^ best.keys():  # as good as the last
            assert_within_rounding((scores | best)[id], ends[1][0], **SCORES, scale=scale)


def assert_same_run(actual: Mapping[str, dict[str, float]], expected: Mapping[str, dict[str, float]]) -> None:
    """`assert_same_scores` of every query of two runs."""
    assert list(actual) == list(expected)
    assert_same_scores(actual.values(), expected.values())


def index_scores(scores: Tensor, documents: Tokens) -> Tensor:
    """rel as an index has it: −∞ of documents without a token."""
    return scores.masked_fill(~documents.mask.any(-1), -torch.inf)
