"""The laws that every paradigm obeys as a choice of A and Z: one table, values and gradients.

Each law has been seen to fail: with a multiplication by 0 in place of −∞ (padding), an alignment that reads
its neighbour (slicing, reading), a dropped Z (reductions), an undetached A (gradients).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from paradigms import PARADIGMS
from paradigms.align import (
    ALIGNMENTS,
    NORMALISERS,
    Alignment,
    AllPairs,
    Buckets,
    DocumentToQuery,
    Entropic,
    EqualIds,
    Excess,
    Idf,
    PoolExcess,
    PoolTopK,
    PositiveEqualIds,
    QueryToDocument,
    TableExcess,
    TopK,
    TopP,
    one,
    pool_count,
)
from paradigms.core import (
    Interaction,
    Tokens,
    interact,
    join_documents,
    join_queries,
    pad_tokens,
    rel,
    similarity,
)
from paradigms.impute import imputed_rel
from paradigms.muvera import random_planes
from paradigms.scoring.in_batch import in_batch_rel
from paradigms.statistics import Statistics
from tests.near import assert_same
from tests.scoring.table import gradients

B, N, I, J, H = 3, 5, 6, 4, 8


@dataclass(frozen=True)
class Case:
    """A paradigm as data: A, Z and the shapes of its tokens."""

    A: Alignment
    normalise: str
    document_tokens: int = I
    query_tokens: int = J
    salience: bool = False

    @property
    def Z(self) -> Callable[..., Tensor]:
        return NORMALISERS[self.normalise]

    def rel(self, documents: Tokens, queries: Tokens) -> Tensor:
        return rel(documents, queries, self.A, self.Z)

    def interact(self, documents: Tokens, queries: Tokens) -> Interaction:
        return interact(documents, queries, self.A, self.Z)


# Of ids 0, 1 and 2, which the texts below have, in 2, 9 and 0 of 10 documents.
COUNTED = Statistics(10, 30, torch.tensor([2, 9, 0]), torch.tensor([0.5, 4, -1]))

CASES: dict[str, Case] = {
    "dpr": Case(AllPairs(), "one", document_tokens=1, query_tokens=1),
    "me_bert": Case(QueryToDocument(), "one", query_tokens=1),
    "colbert": Case(QueryToDocument(), "query_tokens"),
    "coil": Case(EqualIds(), "one"),
    "splade": Case(EqualIds(), "one", document_tokens=2 * I),
    "bge_m3": Case(EqualIds(), "one", document_tokens=2 * I, query_tokens=2 * J),
    "coil as published": Case(PositiveEqualIds(), "one"),
    "aligner": Case(TopK(k=1), "total", salience=True),
    "aligner top-3": Case(TopK(k=3), "total", salience=True),
    "aligner top-p": Case(TopP(p=0.4), "total", salience=True),
    "aligner entropic": Case(Entropic(k=2, eps=0.3), "total", salience=True),
    "xtr": Case(PoolTopK(k=7), "retrieved"),
    "xtr, share of the pool": Case(PoolTopK(k=0.3), "retrieved"),
    "xtr, pool smaller than k": Case(PoolTopK(k=1000), "retrieved"),
    "fde": Case(Buckets(planes=2, repetitions=3), "one"),
    "idf": Case(Idf(statistics=COUNTED.name), "total"),
    "excess": Case(Excess(tau=2), "query_tokens"),
    "excess, by id": Case(TableExcess(statistics=COUNTED.name), "one"),
    "excess over the pool": Case(PoolExcess(k=7), "query_tokens"),
    "mvdr q<-d": Case(DocumentToQuery(), "document_tokens"),
}
SOFT = (Entropic, Excess, TableExcess, PoolExcess)
ALL = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


def make(case: Case, x: int, n: int, l: int, seed: int, lengths: list[int] | None = None) -> Tokens:
    """Random tokens with padding: lengths are drawn unless given; padded places hold large values."""
    g = torch.Generator().manual_seed(seed)
    drawn = torch.randint(1, l + 1, (x, n), generator=g) if lengths is None else torch.tensor(lengths)
    mask = torch.arange(l) < drawn.view(x, n, 1)
    vectors = torch.randn(x, n, l, H, generator=g, dtype=torch.float64)
    vectors = vectors.where(mask[..., None], 100.0)
    ids = torch.randint(0, 3, (x, n, l), generator=g)
    salience = torch.rand(x, n, l, generator=g, dtype=torch.float64) if case.salience else None
    return Tokens(vectors, mask, ids, salience)


def texts(case: Case, seed: int = 0) -> tuple[Tokens, Tokens]:
    return (make(case, 1, N, case.document_tokens, seed), make(case, B, 1, case.query_tokens, seed + 1))


def leaves(tokens: Tokens) -> Tokens:
    """The same tokens with gradients wanted."""
    salience = None if tokens.salience is None else tokens.salience.clone().requires_grad_()
    return replace(tokens, vectors=tokens.vectors.clone().requires_grad_(), salience=salience)


def test_the_table_holds_everything():
    assert set(PARADIGMS) <= set(CASES)
    assert {type(case.A) for case in CASES.values()} == set(ALIGNMENTS.values())
    assert {case.normalise for case in CASES.values()} == set(NORMALISERS)


def by_loops(case: Case, documents: Tokens, queries: Tokens) -> Tensor:
    """rel in plain loops with torch's max, sort and softmax: a second implementation of each paradigm."""
    rows = []
    for b in range(queries.mask.shape[0]):
        real_q = queries.mask[b, 0].nonzero()[:, 0]
        Q = queries.vectors[b, 0][real_q]
        S = [documents.vectors[0, n][documents.mask[0, n]] @ Q.T for n in range(documents.mask.shape[1])]
        row = [loop_score(case, S, n, b, documents, queries) for n in range(len(S))]
        rows.append(torch.stack(row))
    return torch.stack(rows)


def loop_score(case: Case, S: list[Tensor], n: int, b: int, documents: Tokens, queries: Tokens) -> Tensor:
    own = S[n]
    k = getattr(case.A, "k", None)
    if own.shape[0] == 0:
        return own.sum() * 0
    d_ids = documents.ids[0, n][documents.mask[0, n]]
    q_ids = queries.ids[b, 0][queries.mask[b, 0]]
    match case.A:
        case AllPairs():
            return own[0, 0]
        case QueryToDocument():
            best = own.max(0).values
            return best.sum() / (1 if case.normalise == "one" else own.shape[1])
        case DocumentToQuery():
            return own.max(1).values.mean()
        case EqualIds() | PositiveEqualIds():
            equal = [own[d_ids == q_ids[j], j] for j in range(own.shape[1])]
            maxima = torch.stack([s.max() if len(s) else own.sum() * 0 for s in equal])
            return (maxima.clamp(min=0) if case.A.positive else maxima).sum()
        case Idf():
            weights = {id: math.log(1 + (10 - df + 0.5) / (df + 0.5)) for id, df in enumerate((2, 9, 0))}
            idf = torch.tensor([weights[id] for id in q_ids.tolist()], dtype=torch.float64)
            return (own.max(0).values * idf).sum() / idf.sum()
        case Excess() | TableExcess() | PoolExcess():
            floors = torch.tensor(floors_of(case.A, S, q_ids.tolist()), dtype=torch.float64)
            above = own.max(0).values - floors.clamp(min=0)
            return above.where(above > 0, 0).sum() / (1 if case.normalise == "one" else own.shape[1])
        case PoolTopK():
            pool = [torch.cat([s[:, j] for s in S]).sort(descending=True).values for j in range(own.shape[1])]
            count = k if k >= 1 else max(int(k * len(pool[0])), 1)
            best = [own[:, j].max() for j in range(len(pool)) if own[:, j].max() >= pool[j][:count][-1]]
            return torch.stack(best).mean() if best else own.sum() * 0
        case Buckets():
            D = documents.vectors[0, n][documents.mask[0, n]]
            return bucket_score(own, D, queries.vectors[b, 0][queries.mask[b, 0]])
    u = documents.salience[0, n][documents.mask[0, n]][:, None] * queries.salience[b, 0][queries.mask[b, 0]]
    if isinstance(case.A, Entropic):
        chosen = torch.stack([capped_softmax(own[:, j], k, case.A.eps) for j in range(own.shape[1])], 1)
    else:
        k = max(int(case.A.p * own.shape[0]), 1) if isinstance(case.A, TopP) else k
        places = own.sort(dim=0, descending=True).indices[:k]
        chosen = torch.zeros_like(own).scatter(0, places, 1.0)
    A = chosen * u
    return (own * A).sum() / A.sum()


def floors_of(align: Alignment, S: list[Tensor], ids: list[int]) -> list[float]:
    """τⱼ for each query token j."""
    if isinstance(align, TableExcess):
        return [[0.5, 4, -1][id] for id in ids]
    if isinstance(align, Excess):
        return [2] * len(ids)
    pools = [torch.cat([s[:, j] for s in S]).sort(descending=True).values for j in range(len(ids))]
    return [pool[: align.k][-1].item() for pool in pools]


def bucket_score(S: Tensor, D: Tensor, Q: Tensor) -> Tensor:
    terms = []
    for normals in random_planes(H, 2, 3, 0).double():
        for j, side in enumerate(Q @ normals > 0):
            apart = ((D @ normals > 0) != side).sum(-1)
            terms.append(S[apart == apart.min(), j].mean())
    return torch.stack(terms).sum() / 3


def capped_softmax(s: Tensor, k: float, eps: float) -> Tensor:
    """min(1, exp((s + a)/ε)) with the number of capped entries found by trying them all."""
    if k >= len(s):
        return torch.ones_like(s)
    order = s.argsort(descending=True)
    for capped in range(len(s)):
        rest = order[capped:]
        open_ = (k - capped) * (s[rest] / eps).softmax(0)
        if (open_ <= 1 + 1e-12).all():
            return torch.ones_like(s).scatter(0, rest, open_)
    raise AssertionError("no budget fits")


@ALL
@pytest.mark.parametrize("seed", range(3))
def test_rel_is_what_the_loops_say(case, seed):
    documents, queries = (leaves(t) for t in texts(case, seed))
    fast, slow = case.rel(documents, queries), by_loops(case, documents, queries)
    assert_same(fast, slow)
    for a, b in zip(gradients(fast, documents, queries), gradients(slow, documents, queries), strict=True):
        assert_same(a, b)


@ALL
def test_hard_alignments_are_zero_or_one_and_carry_no_gradient(case):
    documents, queries = (leaves(t) for t in texts(case))
    bare = replace(documents, salience=None), replace(queries, salience=None)
    A = case.interact(*bare).alignment
    assert A.requires_grad == isinstance(case.A, SOFT)
    if isinstance(case.A, Idf):
        assert set(A.unique().tolist()) == {0.0, *COUNTED.idf(torch.arange(3)).tolist()}
    elif isinstance(case.A, (*SOFT, Buckets)):
        assert ((A >= 0) & (A <= 1)).all()
    else:
        assert set(A.unique().tolist()) <= {0.0, 1.0}


@ALL
def test_padding_changes_nothing(case):
    """Padded ≡ truncated, in values; and no gradient reaches a padded place."""
    documents, queries = texts(case)
    wide_d, wide_q = leaves(pad_tokens(documents, I + 5)), leaves(pad_tokens(queries, J + 3))
    score = case.rel(wide_d, wide_q)
    assert_same(score, case.rel(documents, queries))
    for tokens, gradient in zip(
        (wide_d, wide_q), gradients(score, wide_d, wide_q)[:: 1 + case.salience], strict=True
    ):
        assert gradient[~tokens.mask].abs().max() == 0


@ALL
def test_order_of_candidates_and_tokens_does_not_matter(case):
    documents, queries = texts(case)
    score = case.rel(documents, queries)
    g = torch.Generator().manual_seed(3)
    n, i, j = (torch.randperm(size, generator=g) for size in (N, case.document_tokens, case.query_tokens))
    assert_same(case.rel(documents.map(lambda t: t[:, n]), queries), score[:, n])
    shuffled = case.rel(documents.map(lambda t: t[:, :, i]), queries.map(lambda t: t[:, :, j]))
    assert_same(shuffled, score)


@ALL
def test_slices_of_queries_and_candidates_score_the_same(case):
    documents, queries = texts(case)
    score = case.rel(documents, queries)
    assert_same(torch.cat([case.rel(documents, queries[b : b + 1]) for b in range(B)]), score)
    assert_same(case.rel(documents, join_queries([queries[:1], queries[1:]])), score)
    per_query = documents.map(lambda t: t.expand(B, *t.shape[1:]))
    assert_same(case.rel(per_query, queries), score)
    if "pool" not in case.A.reads:
        parts = [documents.map(lambda t, n=n: t[:, n : n + 1]) for n in range(N)]
        assert_same(torch.cat([case.rel(part, queries) for part in parts], 1), score)
        assert_same(case.rel(join_documents(parts), queries), score)


@ALL
def test_empty_texts_score_zero_and_harm_nothing(case):
    """rel of an empty document or query is 0, its gradients are finite, and the other scores stay."""
    lengths = [1, 0, *[case.document_tokens] * (N - 2)]
    documents = leaves(make(case, 1, N, case.document_tokens, 0, lengths))
    queries = leaves(make(case, B, 1, case.query_tokens, 1, [case.query_tokens, 0, 1]))
    score = case.rel(documents, queries)
    assert (score[1] == 0).all()
    assert (score[:, 1] == 0).all()
    for gradient in gradients(score, documents, queries):
        assert gradient.isfinite().all()
    keep = torch.tensor([0, *range(2, N)])
    assert_same(case.rel(documents.map(lambda t: t[:, keep]), queries[::2]), score[::2][:, keep])
    placeless = documents.map(lambda t: t[:, :, :0]), queries.map(lambda t: t[:, :, :0])
    assert not case.rel(placeless[0], queries).any()
    assert not case.rel(documents, placeless[1]).any()


@ALL
@pytest.mark.parametrize("what", ["similarity", "vectors", "ids", "pool", "lengths", "salience"])
def test_A_reads_nothing_else(case, what):
    """Perturb one thing at a time: A changes where its class says that it reads it, and only there."""
    g = torch.Generator().manual_seed(0)
    S = torch.randn(B, N, case.document_tokens, case.query_tokens, generator=g, dtype=torch.float64)
    documents, queries = (
        replace(t, mask=torch.ones_like(t.mask), ids=torch.zeros_like(t.ids)) for t in texts(case)
    )

    def A(S: Tensor, documents: Tokens) -> Tensor:
        valid = torch.ones_like(S, dtype=torch.bool)
        return case.A(S, valid, documents, queries)

    before, other, changed = A(S, documents), documents, S
    match what:
        case "similarity":
            changed = S.flip(2)
        case "vectors":
            other = replace(documents, vectors=documents.vectors.flip(2))
        case "ids":
            ids = torch.arange(case.document_tokens).expand_as(documents.ids)
            other = replace(documents, ids=ids)
        case "pool":  # the last candidate becomes everybody's best
            changed = torch.cat([S[:, :-1], torch.full_like(S[:, -1:], 50.0)], 1)
        case "lengths":  # six more tokens that nobody prefers
            changed = torch.nn.functional.pad(S, (0, 0, 0, 6), value=-50.0)
            other = make(case, 1, N, case.document_tokens + 6, 0, [case.document_tokens + 6] * N)
            other = replace(other, ids=torch.zeros_like(other.ids))
        case "salience":
            other = replace(documents, salience=torch.rand(documents.mask.shape, dtype=torch.float64))
    after = A(changed, other)
    rows = slice(None, -1) if what == "pool" else slice(None)
    same = torch.equal(after[:, rows, : case.document_tokens], before[:, rows])
    if getattr(case.A, "k", None) == 1000:  # a pool smaller than k has room for every token
        assert same == (what != "similarity")
    else:
        reads = case.A.reads | ({"lengths"} if getattr(case.A, "k", 1) < 1 else set())  # of the pool
        assert same == (what not in reads), f"A of {case.A} {'ignores' if same else 'reads'} {what}"


@ALL
def test_an_alignment_knows_what_A_keeps(case):
    """The largest of each column, as many as `kept` says; and A is a maximum exactly where it says one."""
    documents, queries = (replace(t, ids=t.ids * 0, salience=None) for t in texts(case))
    S, valid = similarity(documents, queries)
    A, lengths = case.interact(documents, queries).alignment, documents.mask.sum(-1)
    best = S.masked_fill(~valid, -torch.inf).sort(-2, descending=True).values
    kept = case.A.kept(lengths)
    if kept is not None and not case.A.positive:
        first = torch.arange(best.shape[-2])[:, None] < kept[..., None, None]
        assert_same(A.sum(-2), (valid & first).sum(-2).to(A.dtype))
        assert_same((S * A).sum(-2), best.where(valid.any(-2, keepdim=True) & first, 0).sum(-2))
    if "pool" not in case.A.reads:
        maximum = torch.equal(A.sum(-2), valid.any(-2).to(A.dtype)) and torch.equal(
            (S * A).sum(-2), best[..., 0, :].where(valid.any(-2), 0)
        )
        assert maximum == case.A.is_maximum(int(lengths.max()))


def test_a_share_counts_exactly():
    """⌊.29 · 100⌋ is 29 despite binary fractions; a second token needs 400, 200, … tokens."""
    shares = [int(TopP(p / 100).kept(torch.tensor(100))) for p in range(1, 101)]
    assert shares == list(range(1, 101))
    lengths = torch.arange(1, 601)
    first = [int(lengths[TopP(p / 100).kept(lengths) > 1][0]) for p in (0.5, 1, 1.5, 2)]
    assert first == [400, 200, 134, 100]


def test_a_share_of_the_pool_is_one_rule_for_pools_of_any_size():
    tokens = torch.tensor([[1, 199, 200], [400, 3700, 10**6]])
    assert pool_count(0.005, tokens).tolist() == [[1, 1, 1], [2, 18, 5000]]
    assert pool_count(7, tokens).tolist() == [[7] * 3] * 2
    for wrong in (0, 0.0, 2.5, -1):
        with pytest.raises(ValueError, match="k"):
            PoolTopK(k=wrong)


def test_what_an_alignment_may_read_is_checked_when_it_is_made():
    with pytest.raises(ValueError, match="Wrong reads 'similarty'; there are similarity, vectors, ids"):
        type("Wrong", (Alignment,), {}, reads={"similarty", "ids"})
    with pytest.raises(TypeError, match="got the string"):
        type("Wrong", (Alignment,), {}, reads="ids")
    assert "Wrong" not in ALIGNMENTS


@ALL
def test_swapped_sides_are_refused(case):
    """They would broadcast to numbers. One pair has equal axes: only the encoded sides tell them apart."""
    documents, queries = texts(case)
    one_pair = documents.map(lambda t: t[:, :1]), queries[:1]
    for d, q in (queries, documents), (queries[:1], documents), (queries, one_pair[0]):
        for score in (case.rel, case.interact, lambda d, q: in_batch_rel(d, q, case.A, case.Z)):
            with pytest.raises(ValueError, match=r"documents .* come first, then queries"):
                score(d, q)
    marked = [replace(t, side=side) for t, side in zip(one_pair, ("document", "query"), strict=True)]
    assert_same(case.rel(*marked), case.rel(*one_pair))
    with pytest.raises(ValueError, match=r"got query .*, then document"):
        case.rel(*reversed(marked))


@pytest.mark.parametrize("k", [1, 7, 20])
def test_excess_over_the_pool_is_imputation(k):
    """Up to the mean of the floors, rel is what XTR searches with, if the floors are not negative."""
    documents, queries = (replace(t, vectors=t.vectors.abs()) for t in texts(CASES["colbert"]))
    ours = rel(documents, queries, PoolExcess(k=k), NORMALISERS["query_tokens"])
    imputed = imputed_rel(*similarity(documents, queries), k)
    assert_same(ours - ours[:, :1], imputed - imputed[:, :1])
    assert ours.min() >= 0


def test_ids_are_asked_for():
    documents, queries = texts(CASES["coil"])
    with pytest.raises(ValueError, match="needs token ids on both sides"):
        CASES["coil"].rel(documents, replace(queries, ids=None))


@pytest.mark.parametrize(
    ("special", "general", "of"),
    [
        ("me_bert", "dpr", "dpr"),  # with one vector
        ("coil", "me_bert", "colbert"),  # equal ids: ColBERT with Z = 1
        ("xtr, pool smaller than k", "colbert", "colbert"),  # ColBERT/N
        ("aligner", "colbert", "colbert"),  # top-1 with salience 1: Z = Σ A is then N
    ],
)
def test_one_paradigm_is_another_with_equal_ids_and_saliences(special, general, of):
    documents, queries = (
        replace(t, ids=t.ids * 0, salience=torch.ones_like(t.vectors[..., 0])) for t in texts(CASES[of])
    )
    assert_same(CASES[special].rel(documents, queries), CASES[general].rel(documents, queries))


def test_mvdr_directions_are_each_other_transposed():
    """q←d of (d, q) is q→d of (q, d)."""
    documents, queries = make(CASES["colbert"], 1, 1, I, 0, [I]), make(CASES["colbert"], 1, 1, J, 1, [J])
    backward = rel(documents, queries, CASES["mvdr q<-d"].A, one)
    assert_same(backward, rel(queries, documents, CASES["colbert"].A, one))
