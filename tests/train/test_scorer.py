"""The scorer contract of PyLate and sentence-transformers, for every alignment."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from paradigms.align import ALIGNMENTS, NORMALISERS
from paradigms.core import Tokens, rel
from paradigms.train.scorer import Scorer

KNOBS = {"pool_top_k": {"k": 5}, "top_k": {"k": 2}, "top_p": {"p": 0.5}, "entropic": {"k": 1.0, "eps": 0.1}}
ALIGNED = [name for name, known in ALIGNMENTS.items() if "ids" not in known.reads]


@pytest.fixture
def texts():
    """Q [3, 4, 6] and D [3, 2, 5, 6] with masks."""
    generator = torch.Generator().manual_seed(0)
    Q, D = (torch.randn(*shape, 6, generator=generator) for shape in ((3, 4), (3, 2, 5)))
    q_mask, d_mask = torch.ones(3, 4).bool(), torch.ones(3, 2, 5).bool()
    q_mask[1, 2:], d_mask[0, 1, 1:], d_mask[2, 0, 3:] = False, False, False
    return Q, D, q_mask, d_mask


@pytest.mark.parametrize("align", ALIGNED)
@pytest.mark.parametrize("normalise", ["one", "query_tokens", "retrieved"])
def test_rel_of_all_documents_in_the_order_of_the_losses(texts, align, normalise):
    Q, D, q_mask, d_mask = (t.clone() for t in texts)
    Q, D = Q.requires_grad_(), D.requires_grad_()
    knobs = KNOBS.get(align, {})
    found = Scorer(align, normalise, **knobs)(Q, D, queries_mask=q_mask, documents_mask=d_mask.long())
    assert found.shape == (3, 6)
    pool = Tokens(torch.stack([D[y, n] for y in range(3) for n in range(2)])[None], d_mask.view(1, 6, 5))
    function = partial(ALIGNMENTS[align].function, **knobs)
    wanted = rel(pool, Tokens(Q[:, None], q_mask[:, None]), function, NORMALISERS[normalise])
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)
    weights = torch.arange(18.0).view(3, 6)
    ours = torch.autograd.grad((found * weights).sum(), (Q, D), retain_graph=True)
    theirs = torch.autograd.grad((wanted * weights).sum(), (Q, D))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_own_documents(texts):
    Q, D, q_mask, d_mask = texts
    every = Scorer("query_to_document", "one")(Q, D, q_mask, d_mask).view(3, 3, 2)
    own = Scorer("query_to_document", "one", own=True)(Q, D, q_mask, d_mask)
    torch.testing.assert_close(own, every[range(3), range(3)])
    with torch.autocast("cpu", torch.bfloat16):
        assert Scorer("query_to_document", "one", own=True)(Q, D, q_mask, d_mask).equal(own)


def test_without_masks_every_token_is_real(texts):
    Q, D, _, _ = texts
    found = Scorer("query_to_document", "one")(Q, D)
    wanted = torch.einsum("xjh,ynih->xynij", Q, D).amax(-2).sum(-1).flatten(1)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)


def test_what_cannot_be_had_is_refused():
    with pytest.raises(ValueError, match="equal_ids reads token ids"):
        Scorer("equal_ids")
    with pytest.raises(ValueError, match="no alignment 'maxsim'"):
        Scorer("maxsim")
