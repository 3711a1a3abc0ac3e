"""What Luan et al. 2021 (TACL), §7, say of first stages, reranking and time, and our verdicts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np
from jaxtyping import Float
from studies.token_claims import ALPHA, LEARNED
from studies.trained_pairs import Measured, Rows, shown

from paradigms.evaluate import Interval, holm, paired_test, seeds_interval

MEASURES = ("RR@10", "nDCG@10", "R@10", "Judged@10")
RR, NDCG, _, JUDGED = MEASURES
DE, ME = "DE-BERT", "ME-BERT"
DENSE = {"dpr": DE, "me_bert": ME}
SPARSE = ("BM25-uni", "BM25-bi")  # over words; over words and pairs of words
# The paper's systems on MS MARCO's passages and documents: MRR@10 of Table 1, and of its reranked 1000-best
# lists; nDCG@10 on TREC DL of Table 2, whose sparse systems are not the authors' own.
BM25, DE_HYBRID, ME_HYBRID = "BM25", "DE-HYBRID", "ME-HYBRID"
TABLE_1 = {
    BM25: (0.167, 0.249),
    DE: (0.302, 0.288),
    ME: (0.334, 0.333),
    DE_HYBRID: (0.304, 0.313),
    ME_HYBRID: (0.338, 0.346),
}
RERANKED = {DE: (0.391, 0.339), ME: (0.395, 0.353), ME_HYBRID: (0.394, 0.353)}
TABLE_2 = {
    BM25: (0.506, 0.517),
    DE: (0.639, 0.510),
    ME: (0.687, 0.588),
    DE_HYBRID: (0.659, 0.595),
    ME_HYBRID: (0.706, 0.610),
}
UNSTATED = 0.0  # a difference that the paper draws, above 0, without its number
CROSS = "cross-attention"
PAYS = (
    0.5  # of exact search's time: what the fastest approximate one may take, else there is nothing to trade
)

Values = Float[np.ndarray, "seeds queries"]


def hybrid_name(dense: str, sparse: str) -> str:
    return f"HYBRID-{dense}-{sparse.removeprefix('BM25-')}"


@dataclass(frozen=True)
class Found:
    """What was measured, once for each seed, on the same queries."""

    seeds: list[Measured]

    def values(self, *path: object) -> Values:
        """One number for each seed and query, or for each seed: what stands at `path`."""
        rows: list[Any] = self.seeds
        for key in path:
            rows = [row[key] for row in rows]
        return np.array(rows, dtype=float)

    @property
    def queries(self) -> list[str]:
        return self.seeds[0]["queries"]

    @property
    def sparse(self) -> str:
        """The BM25 that is better on the dev queries: that of the claims and figures."""
        return max(SPARSE, key=lambda name: self.values("dev", name).mean())

    @property
    def ours(self) -> dict[str, str]:
        """The paper's systems → ours."""
        hybrids = {DE_HYBRID: hybrid_name(DE, self.sparse), ME_HYBRID: hybrid_name(ME, self.sparse)}
        return {BM25: self.sparse, DE: DE, ME: ME} | hybrids

    @property
    def depths(self) -> list[int]:
        return sorted(map(int, self.seeds[0]["rerank"][self.sparse]))

    def reranked(self, system: str, depth: int) -> Values:
        """RR@10."""
        return self.values("rerank", system, str(depth))

    @property
    def approximate(self) -> list[str]:
        """The kinds of index that were timed beside exact search."""
        kinds = dict.fromkeys(point["index"] for point in self.seeds[0]["search"])
        return [kind for kind in kinds if kind != "exact"]

    @property
    def curves(self) -> list[Measured]:
        """Every timed search: means over the seeds of times and bytes, and all values of RR@10."""
        names = ("ms/query", "bytes/document")
        return [
            point
            | {name: float(self.values("search", n, name).mean()) for name in names}
            | {RR: self.values("search", n, RR)}
            for n, point in enumerate(self.seeds[0]["search"])
        ]


def gather(seeds: Sequence[Measured]) -> Found:
    """The measured files as one; SystemExit where they are not of the same queries."""
    if any(seed["queries"] != seeds[0]["queries"] for seed in seeds):
        raise SystemExit("the seeds were measured on different queries: choose another --output")
    return Found(list(seeds))


# --- claims -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Claim:
    """mean(difference) > 0."""

    statement: str
    source: str
    measure: str
    paper: float  # the paper's difference, the smaller one of its two collections
    difference: Values
    needs: frozenset[str]  # what has to work before it says anything: `working`


NEEDS = {BM25: frozenset(), DE: frozenset([DE]), ME: frozenset([ME])}
NEEDS |= {DE_HYBRID: NEEDS[DE], ME_HYBRID: NEEDS[ME]}


def claims(found: Found) -> list[Claim]:
    """What §7 says."""
    few, many = found.depths[0], found.depths[-1]
    ours = found.ours

    def reranked(paper: str, depth: int) -> Values:
        return found.reranked(ours[paper], depth)

    stated = [*ordered(found, TABLE_1, RR, "Table 1"), *ordered(found, TABLE_2, NDCG, "Table 2")]
    for paper, at in RERANKED.items():
        gain = min(x - y for x, y in zip(at, TABLE_1[paper], strict=True))
        statement = f"{CROSS} over its first {many} improves {ours[paper]}"
        difference = reranked(paper, many) - found.values("retrieve", ours[paper], RR)
        stated.append(Claim(statement, "Table 1", RR, gain, difference, NEEDS[paper] | {CROSS}))
    gain = min(x - y for x, y in zip(RERANKED[ME], RERANKED[DE], strict=True))
    difference = reranked(ME, many) - reranked(DE, many)
    statement = f"{ME} > {DE}, {many} reranked"
    stated.append(Claim(statement, "Table 1", RR, gain, difference, NEEDS[ME] | NEEDS[DE] | {CROSS}))
    for paper in (ME, ME_HYBRID):
        needs = NEEDS[paper] | {CROSS}
        lead = {depth: reranked(paper, depth) - reranked(BM25, depth) for depth in (few, many)}
        statement = f"{ours[paper]} > {ours[BM25]}, {few} reranked"
        stated.append(Claim(statement, "Figure 6", RR, UNSTATED, lead[few], needs))
        if few < many:
            statement = f"{ours[paper]}'s lead over {ours[BM25]} shrinks from {few} to {many} reranked"
            stated.append(Claim(statement, "Figure 6", RR, UNSTATED, lead[few] - lead[many], needs))
    for kind in found.approximate:
        de, me = equal_time(found, kind)
        times = [f"{point['ms/query']:.3g} ms" for point in (me, de)]
        statement = f"{ME} in {times[0]} > {DE} in {times[1]}, {kind}"
        needs = NEEDS[ME] | NEEDS[DE] | {kind}
        stated.append(Claim(statement, "Figure 7", RR, UNSTATED, me[RR] - de[RR], needs))
    return stated


def ordered(
    found: Found, table: dict[str, tuple[float, float]], measure: str, source: str
) -> Iterator[Claim]:
    """Every two systems in the order that they have on both of the paper's collections."""
    for a, b in permutations(table, 2):
        paper = min(x - y for x, y in zip(table[a], table[b], strict=True))
        if paper > 0:
            first, second = (found.values("retrieve", found.ours[system], measure) for system in (a, b))
            statement = f"{found.ours[a]} > {found.ours[b]}"
            yield Claim(statement, source, measure, paper, first - second, NEEDS[a] | NEEDS[b])


def equal_time(found: Found, kind: str) -> tuple[Measured, Measured]:
    """DE-BERT's slowest search in this kind of index, and ME-BERT's slowest that takes no longer, else its
    fastest: times choose, quality does not."""
    points = [point for point in found.curves if point["index"] == kind]
    de, me = (sorted((p for p in points if p["system"] == s), key=lambda p: p["ms/query"]) for s in (DE, ME))
    within = [point for point in me if point["ms/query"] <= de[-1]["ms/query"]]
    return de[-1], within[-1] if within else me[0]


def working(found: Found) -> set[str]:
    """The dense models with at least `LEARNED` of BM25's RR@10; cross-attention where it orders what BM25 has
    found no worse than BM25; the kinds of index that are faster than exact search (`PAYS`)."""
    sparse = found.values("retrieve", found.sparse, RR).mean()
    able = {model for model in (DE, ME) if found.values("retrieve", model, RR).mean() >= LEARNED * sparse}
    able |= {kind for kind in found.approximate if all(pays(found, kind, model) for model in (DE, ME))}
    return able | ({CROSS} if found.reranked(found.sparse, found.depths[-1]).mean() >= sparse else set())


def pays(found: Found, kind: str, model: str) -> bool:
    times = {
        name: [p["ms/query"] for p in found.curves if (p["system"], p["index"]) == (model, name)]
        for name in (kind, "exact")
    }
    return min(times[kind]) <= PAYS * min(times["exact"])


def verdict(interval: Interval, p: float, paper: float, able: bool) -> str:
    """Reproduced: shown to be above 0. Not reproduced: shown to be below the paper's difference, and perhaps
    not above 0."""
    if able and interval.low > 0 and p < ALPHA:
        return "reproduced"
    below = interval.low <= 0 and interval.high < paper
    return "not reproduced" if able and below else "out of reach at this scale"


def claim_rows(found: Found) -> Rows:
    """A row for each claim, one family for Holm's correction."""
    stated, able = claims(found), working(found)
    p = holm([paired_test(c.difference.mean(0), np.zeros(c.difference.shape[1])) for c in stated])
    intervals = [seeds_interval(claim.difference) for claim in stated]
    return [
        {
            "claim": claim.statement,
            "source": claim.source,
            "measure": claim.measure,
            "the paper": "> 0" if claim.paper == UNSTATED else f"{claim.paper:+.3f}",
            "measured": shown(interval, "+"),
            "p (Holm)": f"{adjusted:.4f}",
            "verdict": verdict(interval, adjusted, claim.paper, claim.needs <= able),
        }
        for claim, interval, adjusted in zip(stated, intervals, p, strict=True)
    ]
