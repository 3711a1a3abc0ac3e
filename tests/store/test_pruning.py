"""Pruned texts are the texts with fewer tokens: their rel is the readable twin's over what is kept."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paradigms import Paradigm
from paradigms.align import Alignment, Entropic, TopK, TopP
from paradigms.aligner import aligner
from paradigms.core import Tokens
from paradigms.find import Index, Store, kinds
from paradigms.retrieve import Indexed
from paradigms.store.pruning import most_salient
from tests.near import SCORES, assert_within_rounding
from tests.store.test_storage import contents
from tests.tiny import built

IDS = ["d2", "d0", "d3", "d1"]
TEXTS = [
    "the old man walked along the river road and the children stayed in the house",
    "",
    "a bird flew over the sea",
    "fire, wood and the heat of the sun",
]
WITH_TOKENS = [id for id, text in zip(IDS, TEXTS, strict=True) if text]
QUERIES = {"q1": "what does a bird see on the river road in winter", "q0": "", "q2": "fire and wood"}


def build(backbone: Path, align: Alignment = TopK(k=1)) -> Paradigm:
    """An ALIGNER whose saliences differ from token to token, some of them 0."""
    torch.manual_seed(0)
    paradigm = aligner(backbone, align=align, query_length=16, document_length=32, salience="relu")
    heads: Any = paradigm.encoder.salience_heads
    for head in heads.values():
        torch.nn.init.normal_(head.weight, std=2.0)
    return paradigm


def by_hand(tokens: Tokens, ratio: float) -> Tokens:
    """The same text with only its first ⌈ratio · length⌉ tokens counting, ranked by salience and position."""
    mask = torch.zeros_like(tokens.mask)
    for x, n in np.ndindex(*mask.shape[:2]):
        real = tokens.mask[x, n].nonzero()[:, 0].tolist()
        u = tokens.salience[x, n].tolist()
        salient = sorted(real, key=lambda place: (-u[place], place))[: math.ceil(ratio * len(real) - 1e-9)]
        mask[x, n, salient] = True
    return replace(tokens, mask=mask)


def random_tokens(seed: int) -> Tokens:
    g = torch.Generator().manual_seed(seed)
    mask = torch.rand(3, 4, 9, generator=g) < 0.7
    mask[0, 0] = False
    salience = torch.randint(0, 4, mask.shape, generator=g).float()  # with ties, and whole texts of them
    salience[1, 1] = 0
    return Tokens(
        torch.randn(*mask.shape, 5, generator=g), mask, torch.arange(9).expand(mask.shape), salience
    )


@pytest.mark.parametrize("salient", [True, False])
@pytest.mark.parametrize("ratio", [0.01, 0.4, 1.0])
def test_the_most_salient_tokens_are_kept_in_the_order_of_the_text(ratio, salient):
    """Without salience, these are the first tokens."""
    tokens = random_tokens(0) if salient else replace(random_tokens(0), salience=None)
    equal = replace(tokens, salience=torch.ones(tokens.mask.shape))
    pruned, expected = most_salient(tokens, ratio), by_hand(tokens if salient else equal, ratio)
    assert torch.equal(pruned.mask.sum(-1), expected.mask.sum(-1))
    assert salient or pruned.salience is None
    for name in ("vectors", "ids", "salience") if salient else ("vectors", "ids"):
        assert torch.equal(getattr(pruned, name)[pruned.mask], getattr(tokens, name)[expected.mask])
    if ratio < 1:  # and no place is left that no text needs
        assert pruned.mask.shape[-1] == int(pruned.mask.sum(-1).max())


def test_parts_of_different_kinds_are_not_cut_off(tiny_bert):
    tokens = replace(random_tokens(1), salience=None)
    with pytest.raises(ValueError, match="single weights"):
        most_salient(replace(tokens, vectors=tokens.vectors[..., :1]), 0.4)
    for name in ("bge_m3", "coil"):
        with pytest.raises(ValueError, match="vectors of the whole text"):
            most_salient(built(name, tiny_bert).encode_documents(TEXTS), 0.4)


ALIGNMENTS = [TopK(k=1), TopK(k=3), TopP(p=0.3), Entropic(k=2, eps=0.1)]


@pytest.mark.parametrize("align", ALIGNMENTS, ids=str)
@pytest.mark.parametrize(("document_keep", "query_keep"), [(0.4, 1.0), (1.0, 0.1), (0.2, 0.5)])
def test_search_over_what_is_kept_is_rel_over_what_is_kept(tiny_bert, align, document_keep, query_keep):
    """Vectors are those of the whole text; Z = Σ A and top-p's length are those of the kept tokens."""
    paradigm = build(tiny_bert, align)
    full = Store.build(kinds.exact(), paradigm, IDS, TEXTS)
    pruned = full.copy(kinds.exact(), keep=document_keep)
    run = Indexed(Index(pruned), paradigm, keep=query_keep).search(QUERIES, 4)
    documents = by_hand(full.tokens_of(WITH_TOKENS), document_keep)
    for query, text in QUERIES.items():
        scores = paradigm.score(documents, by_hand(paradigm.encode_queries([text]), query_keep))[0]
        expected = dict(zip(WITH_TOKENS, scores.tolist(), strict=True)) if text else {}
        assert_within_rounding(run[query], expected, **SCORES)
    assert run["q1"] != pytest.approx(Indexed(Index(full), paradigm).search(QUERIES, 4)["q1"], abs=1e-3)


def test_building_pruned_is_pruning_what_was_built(tiny_bert, tmp_path):
    paradigm = build(tiny_bert)
    full = Store.build(kinds.exact(), paradigm, IDS, TEXTS, tmp_path / "all", batch_size=2)
    built = Store.build(kinds.exact(), paradigm, IDS, TEXTS, tmp_path / "built", keep=0.4, batch_size=2)
    pruned = full.copy(kinds.exact(), tmp_path / "pruned", keep=0.4)
    assert contents(pruned.folder) == contents(built.folder)
    lengths = np.diff(full.offsets)
    assert np.diff(pruned.offsets).tolist() == [math.ceil(0.4 * int(n) - 1e-9) for n in lengths]
    assert pruned.bytes_per_document < 0.6 * full.bytes_per_document
