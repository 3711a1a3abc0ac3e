"""in_batch_rel beyond its values: memory, types, determinism, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from paradigms.align import ALIGNMENTS, NORMALISERS
from paradigms.core import Align, Tokens, rel
from paradigms.scoring.in_batch import in_batch_rel

KNOBS: dict[str, dict] = {
    "pool_top_k": {"k": 5},
    "top_k": {"k": 2},
    "top_p": {"p": 0.2},
    "entropic": {"k": 1.5, "eps": 0.1},
}
SETS: list[tuple[str, dict]] = [(name, KNOBS.get(name, {})) for name in ALIGNMENTS]
SETS += [("pool_top_k", {"k": 10**6}), ("entropic", {"k": 1.5, "eps": 0.1, "iterations": 5})]
B, N, I, J, H = 3, 4, 11, 7, 4


def alignment(name: str, knobs: dict) -> Align:
    return partial(ALIGNMENTS[name].function, **knobs)


def batch(b: int = B, n: int = N, i: int = I, j: int = J, salience: bool = True, h: int = H):
    """Random tokens with gradients; the first document and, of several, the last query are empty."""
    random = torch.Generator().manual_seed(7 * b + n)

    def tokens(x: int, n: int, l: int, empty: tuple[int, int] | None) -> Tokens:
        mask = torch.rand(x, n, l, generator=random) < 0.7
        mask[:, :, 0] = True
        if empty is not None:
            mask[empty] = False
        return Tokens(
            torch.randn(x, n, l, h, generator=random, dtype=torch.float64).requires_grad_(),
            mask,
            torch.randint(0, 4, (x, n, l), generator=random),
            torch.rand(x, n, l, generator=random, dtype=torch.float64).requires_grad_() if salience else None,
        )

    return tokens(1, n, i, (0, 0)), tokens(b, 1, j, (b - 1, 0) if b > 1 else None)


def gradients(scores: Tensor, *sides: Tokens) -> list[Tensor]:
    """Of a fixed weighting of the scores, for vectors and salience of both sides; the graph is used up."""
    weights = torch.randn(scores.shape, generator=torch.Generator().manual_seed(1), dtype=scores.dtype)
    leaves = [t for side in sides for t in (side.vectors, side.salience) if t is not None]
    found = torch.autograd.grad((scores * weights).sum(), leaves, allow_unused=True)
    return [torch.zeros_like(t) if g is None else g for t, g in zip(leaves, found, strict=True)]


@pytest.mark.parametrize("name", ALIGNMENTS)
def test_autocast_changes_nothing(name: str) -> None:
    """Bit for bit, in values and gradients, whichever way is taken; scores would be rounded to 8 bits."""
    align, Z = alignment(name, KNOBS.get(name, {})), NORMALISERS["total"]
    D, Q = (t.map(lambda v: v.detach().float() if v.is_floating_point() else v) for t in batch())
    for side in (D, Q):
        for leaf in (side.vectors, side.salience):
            leaf.requires_grad_()
    for cells in (1, None):
        expected = in_batch_rel(D, Q, align, Z, cells)
        with torch.autocast("cpu", torch.bfloat16):
            found = in_batch_rel(D, Q, align, Z, cells)
            rounded = rel(D, Q, align, Z)
        assert found.dtype == torch.float32
        assert found.equal(expected)
        assert not torch.allclose(found, rounded.float(), rtol=1e-4)
        for mine, theirs in zip(gradients(found, D, Q), gradients(expected, D, Q), strict=True):
            assert mine.equal(theirs)


@pytest.mark.parametrize("name", ALIGNMENTS)
def test_nothing_at_all_scores_as_rel_does(name: str) -> None:
    """No query, and no document."""
    align, Z = alignment(name, KNOBS.get(name, {})), NORMALISERS["total"]
    D, Q = batch(salience=False)
    for documents, queries in ((D, Q[:0]), (D.map(lambda t: t[:, :0]), Q)):
        found = in_batch_rel(documents, queries, align, Z)
        assert found.shape == (len(queries.mask), documents.mask.shape[1])
        assert found.equal(rel(documents, queries, align, Z))


@pytest.mark.filterwarnings("ignore:invalid value", "ignore:All-NaN")
def test_a_diverged_model_does_not_look_healthy() -> None:
    """NaN of a real token reaches the score, that of padding does not."""
    D, Q = batch(salience=False)
    align, Z = ALIGNMENTS["query_to_document"].function, NORMALISERS["one"]
    clean = in_batch_rel(D, Q, align, Z)
    vectors = D.vectors.detach().clone()
    vectors[~D.mask] = torch.nan
    assert in_batch_rel(replace(D, vectors=vectors), Q, align, Z).equal(clean)
    vectors[0, 1, 0] = torch.nan
    assert in_batch_rel(replace(D, vectors=vectors), Q, align, Z).isnan()[:-1, 1].all()


def test_documents_of_each_query_are_refused() -> None:
    D, Q = batch()
    each = D.map(lambda t: t.expand(B, *t.shape[1:]))
    with pytest.raises(ValueError, match=r"axes \[1, n, i, h\], got x = 3"):
        in_batch_rel(each, Q, ALIGNMENTS["query_to_document"].function, NORMALISERS["one"])


class Largest(TorchDispatchMode):
    """The most elements of any tensor that an operation returned, forward and backward."""

    size = 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        result = function(*arguments, **(keywords or {}))
        for leaf in tree_leaves(result):
            # A broadcast view has many elements and no memory of its own.
            if isinstance(leaf, Tensor) and leaf.untyped_storage().nbytes() >= leaf.nbytes:
                self.size = max(self.size, leaf.numel())
        return result


@pytest.mark.parametrize(("name", "knobs"), SETS, ids=lambda v: v if isinstance(v, str) else str(v))
def test_similarities_are_never_formed_in_full(name: str, knobs: dict) -> None:
    b, n, i, j, h = 16, 16, 24, 8, 3
    D, Q = batch(b, n, i, j, h=h)
    align, Z, cells = alignment(name, knobs), NORMALISERS["total"], 2 * n * i * j
    with Largest() as plain:
        gradients(rel(D, Q, align, Z), D, Q)
    assert plain.size >= b * n * i * j
    with Largest() as chunked:
        gradients(in_batch_rel(D, Q, align, Z, cells), D, Q)
    most = max(cells, 4 * b * n * j)  # a chunk of S, or the pairs that are kept: r <= 4 here
    assert chunked.size <= most < b * n * i * j / 4


@pytest.mark.parametrize(("name", "knobs"), [("query_to_document", {}), ("top_k", {"k": 2})])
def test_gradients_are_the_same_in_every_run(name: str, knobs: dict) -> None:
    """Bit for bit, on two threads and at a size that is shared out among them: what exact resume rests on."""
    random = torch.Generator().manual_seed(0)

    def tokens(x: int, n: int, l: int) -> Tokens:
        vectors = torch.randn(x, n, l, 16, generator=random).requires_grad_()
        salience = torch.rand(x, n, l, generator=random).requires_grad_()
        return Tokens(vectors, torch.ones(x, n, l, dtype=torch.bool), salience=salience)

    documents, queries = tokens(1, 64, 100), tokens(32, 1, 32)
    weights, threads = torch.randn(32, 64, generator=random), torch.get_num_threads()
    leaves = [documents.vectors, queries.vectors, documents.salience, queries.salience]
    torch.set_num_threads(2)
    try:
        runs = []
        for _ in range(6):
            scores = in_batch_rel(documents, queries, alignment(name, knobs), NORMALISERS["total"])
            runs.append(torch.autograd.grad((weights * scores).sum(), leaves))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for run in runs[1:] for a, b in zip(runs[0], run, strict=True))
