"""D with fewer tokens: the most salient, or means of clusters; certificates bound what that can change."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import directed_hausdorff

from paradigms import Paradigm
from paradigms.align import Alignment, Entropic, QueryToDocument, TopK, TopP
from paradigms.aligner import aligner
from paradigms.core import Tokens
from paradigms.find import Index, Store, kinds, open_index
from paradigms.recipe import Recipe
from paradigms.retrieve import Indexed
from paradigms.store.pruning import TokenReduction, directed_distances, most_salient, pooled
from tests.find.test_near_tokens import DIM, documents, queries
from tests.find.test_search import IDS, QUERIES, TEXTS
from tests.near import SCORES, assert_within_rounding
from tests.store.test_storage import contents
from tests.tiny import built

RECIPE = Recipe("colbert", QueryToDocument(), "query_tokens")
WITH_TOKENS = [id for id, text in zip(IDS, TEXTS, strict=True) if text]


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


def tied_tokens(seed: int) -> Tokens:
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
    tokens = tied_tokens(0) if salient else replace(tied_tokens(0), salience=None)
    equal = replace(tokens, salience=torch.ones(tokens.mask.shape))
    pruned, expected = most_salient(tokens, ratio), by_hand(tokens if salient else equal, ratio)
    assert torch.equal(pruned.mask.sum(-1), expected.mask.sum(-1))
    assert salient or pruned.salience is None
    for name in ("vectors", "ids", "salience") if salient else ("vectors", "ids"):
        assert torch.equal(getattr(pruned, name)[pruned.mask], getattr(tokens, name)[expected.mask])
    if ratio < 1:  # and no place is left that no text needs
        assert pruned.mask.shape[-1] == int(pruned.mask.sum(-1).max())


def test_parts_of_different_kinds_are_not_cut_off(tiny_bert):
    tokens = replace(tied_tokens(1), salience=None)
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
    run = Indexed(Index(pruned), paradigm, keep=query_keep).search(QUERIES, len(IDS))
    documents = by_hand(full.tokens_of(WITH_TOKENS), document_keep)
    for query, text in QUERIES.items():
        scores = paradigm.score(documents, by_hand(paradigm.encode_queries([text]), query_keep))[0]
        expected = dict(zip(WITH_TOKENS, scores.tolist(), strict=True)) if text else {}
        assert_within_rounding(run[query], expected, **SCORES)
    assert run["q1"] != pytest.approx(
        Indexed(Index(full), paradigm).search(QUERIES, len(IDS))["q1"], abs=1e-3
    )


def random_tokens(seed: int, lengths: list[int], salience: bool = False) -> Tokens:
    random = torch.Generator().manual_seed(seed)
    mask = torch.arange(max(lengths))[None, None] < torch.tensor(lengths)[None, :, None]
    u = torch.rand(mask.shape, generator=random) if salience else None
    return Tokens(torch.randn(*mask.shape, 6, generator=random), mask, salience=u)


def test_runs_of_tokens_become_their_means():
    tokens = random_tokens(0, [7, 1, 0, 4], salience=True)
    means = pooled(tokens, 3, "sequential")
    assert tokens.salience is not None
    assert means.salience is not None
    assert means.mask[0].sum(-1).tolist() == [3, 1, 0, 2]
    for n, length in enumerate([7, 1, 0, 4]):
        for c, first in enumerate(range(0, length, 3)):
            run = slice(first, min(first + 3, length))
            for mine, of in ((means.vectors, tokens.vectors), (means.salience, tokens.salience)):
                assert_within_rounding(mine[0, n, c], of[0, n, run].mean(0), torch.float32, 3, scale=3)


def test_ward_pools_what_is_alike_whatever_its_place_and_length():
    """Four directions in turn, at other lengths: their means, in the order of first tokens."""
    directions, order = torch.eye(6)[:4], torch.tensor([2, 0, 3, 1, 2, 3, 0, 1])
    lengths = torch.tensor([1.0, 2, 3, 1, 3, 1, 4, 5])
    tokens = Tokens((directions[order] * lengths[:, None])[None, None], torch.ones(1, 1, 8, dtype=torch.bool))
    means = pooled(tokens, 2, "ward").vectors[0, 0]
    assert torch.equal(means, directions[[2, 0, 3, 1]] * torch.tensor([2.0, 3, 2, 3])[:, None])
    assert torch.equal(pooled(tokens, 1, "ward").vectors, tokens.vectors)


@pytest.mark.parametrize("kind", [kinds.exact(), kinds.compressed(lists=4)], ids=lambda kind: kind.name)
@pytest.mark.parametrize("options", [{"pool": 2, "pooling": "sequential"}, {"keep": 0.4}], ids=str)
def test_an_index_is_built_of_fewer_tokens(tiny_bert, kind, options):
    """Built, made of another index, and added to: the same tokens."""
    paradigm = build(tiny_bert)
    complete = Store.build(kinds.exact(), paradigm, IDS, TEXTS)
    fewer = TokenReduction(**options)(complete.tokens_of(IDS))
    store = Store.build(kind, paradigm, IDS, TEXTS, **options)
    ulps = 100 if kind.name == "compressed" else 2  # codes of 4 bits; float16 rounded twice
    again = store.delete(IDS[:1]).add(paradigm, IDS[:1], TEXTS[:1])
    for one in (store, complete.copy(kind, **options), again):
        stored = one.tokens_of(IDS)
        assert torch.equal(stored.mask, fewer.mask)
        assert_within_rounding(stored.vectors[stored.mask], fewer.vectors[fewer.mask], torch.float16, ulps, 1)


def test_what_cannot_be_pooled_is_refused(tiny_bert, tmp_path):
    for wrong in ({"pool": 0}, {"keep": 0.0}, {"keep": 1.5}):
        with pytest.raises(ValueError, match=r"pool|keep"):
            TokenReduction(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="compared by their ids cannot be pooled"):
        Store.build(kinds.exact(), built("coil", tiny_bert), IDS, TEXTS, tmp_path / "index", pool=2)
    with pytest.raises(ValueError, match="SPLADE has most_terms"):
        Store.build(kinds.exact(), built("splade", tiny_bert), IDS, TEXTS, keep=0.5)
    assert not list(tmp_path.iterdir())


# --- certificates -----------------------------------------------------------------------------------


def test_directed_distances_are_those_of_scipy():
    lengths = [5, 1, 0, 8]
    D, E = random_tokens(1, lengths), random_tokens(2, [3, 2, 0, 6])
    distances = directed_distances(D, E)
    for n in (0, 1, 3):
        d, e = (t.vectors[0, n][t.mask[0, n]].numpy() for t in (D, E))
        expected = [directed_hausdorff(d, e)[0], directed_hausdorff(e, d)[0]]
        assert_within_rounding(distances[n], expected, torch.float32, 6)
    assert not distances[2].any()


@given(st.integers(0, 10**6), st.integers(1, 5), st.sampled_from(["ward", "sequential", "pruned", "rounded"]))
def test_the_error_of_a_maximum_is_bounded(seed, pool, way):
    """|maxᵢ dᵢᵀq − maxᵢ′ d′ᵢ′ᵀq| ≤ the directed distances, for unit q; pooled maxima are never larger."""
    D = random_tokens(seed, [9, 4, 1])
    if way == "pruned":
        E = TokenReduction(keep=1 / pool)(D)
    elif way == "rounded":
        E = Tokens((D.vectors * pool).round() / pool, D.mask)
    else:
        E = pooled(D, pool, way)
    q = random_tokens(seed + 1, [50]).vectors[0, 0]
    q = q / q.norm(dim=-1, keepdim=True)
    best = [(t.vectors[0] @ q.T).masked_fill(~t.mask[0][..., None], -torch.inf).amax(1) for t in (D, E)]
    above, below = directed_distances(D, E).T
    assert (best[0] - best[1] <= above[:, None] + 1e-5).all()
    assert (best[1] - best[0] <= below[:, None] + 1e-5).all()
    if way != "rounded":
        assert (best[1] <= best[0] + 1e-5).all()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (kinds.exact(), {}),
        (kinds.exact(), {"pool": 2}),
        (kinds.exact(), {"keep": 0.9}),
        (kinds.compressed(4, lists=8), {}),
    ],
)
def test_a_certified_top_ten_is_that_of_the_whole_index(tmp_path, kind, options):
    """No certificate is wrong at any k; float16 against itself certifies every query."""
    exact = Store.build_from(kinds.exact(), documents(0, 80), paradigm="colbert", dim=DIM)
    store = exact.copy(kind, tmp_path / "index", **options)
    with pytest.raises(ValueError, match="has no errors: call certify"):
        Index(store).certified(RECIPE, queries())
    index = Index(store.certify(exact))
    sure = 0
    for k in (1, 2, 5, 10, 79, 80):
        expected = Index(exact).search_tokens(RECIPE, queries(), k)
        for (scores, certified), best in zip(index.certified(RECIPE, queries(), k), expected, strict=True):
            assert len(scores) == k
            assert not certified or scores.keys() == best.keys()
            assert certified or k < 80
            sure += certified
    assert sure == 36 if kind.name == "exact" and not options else sure >= 6
    assert np.array_equal(open_index(tmp_path / "index").store.errors, index.store.errors)
    assert not len(index.store.add_from(documents(80, 82)).errors)
    with pytest.raises(ValueError, match="not sums of maxima"):
        index.certified(Recipe("aligner", TopK(k=2), "total"), queries())


def test_a_damaged_certificate_is_refused(tmp_path):
    store = Store.build_from(kinds.exact(), documents(0, 5), tmp_path / "index", paradigm="colbert", dim=DIM)
    before = contents(store.folder)
    store.certify(store)
    assert contents(store.folder).keys() - before.keys() == {"errors.bin"}
    file = store.folder / "errors.bin"
    file.write_bytes(np.full((5, 2), -1, np.float32).tobytes())
    with pytest.raises(ValueError, match=r"errors\.bin is damaged"):
        open_index(store.folder, verify=False)
