"""What Luan et al. 2021 (TACL), §7, say of first stages, reranking and time; the page of hybrid.py."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from studies.curves import Curves, at_path
from studies.model_runs import LEARNED, same_queries
from studies.pages import Measured, Rows, Section, shown, verdict_rows

from paradigms.evaluate import seeds_interval
from paradigms.evaluate.claims import Claim
from paradigms.evaluate.report import PALETTE

MEASURES = ("RR@10", "nDCG@10", "R@10", "Judged@10")
RR, NDCG, _, JUDGED = MEASURES
DE, ME = "DE-BERT", "ME-BERT"
DENSE = {"dpr": DE, "me_bert": ME}
SPARSE = ("BM25-uni", "BM25-bi")  # over words; over words and pairs of words
CROSS = "cross-attention"
# MRR@10 of Table 1, on MS MARCO's passages and documents.
BM25, DE_HYBRID, ME_HYBRID = "BM25", "DE-HYBRID", "ME-HYBRID"
TABLE_1 = {
    BM25: (0.167, 0.249),
    DE: (0.302, 0.288),
    ME: (0.334, 0.333),
    DE_HYBRID: (0.304, 0.313),
    ME_HYBRID: (0.338, 0.346),
}
PAYS = 0.5  # of exact search's time: what the fastest approximate one may take, else it trades nothing


def hybrid_name(dense: str, sparse: str) -> str:
    return f"HYBRID-{dense}-{sparse.removeprefix('BM25-')}"


class Found:
    """What was measured, once for each seed, on the same queries."""

    def __init__(self, seeds: Sequence[Measured]) -> None:
        same_queries(seeds)
        self.seeds = list(seeds)
        # The BM25 that is better on the dev queries: that of the claims and figures.
        self.sparse = max(SPARSE, key=lambda name: self.values("dev", name).mean())
        hybrids = {DE_HYBRID: hybrid_name(DE, self.sparse), ME_HYBRID: hybrid_name(ME, self.sparse)}
        self.ours = {BM25: self.sparse, DE: DE, ME: ME} | hybrids  # the paper's systems -> ours
        self.depths = sorted(map(int, self.seeds[0]["rerank"][self.sparse]))
        names = ("ms/query", "bytes/document")
        self.curves = [  # every timed search: means over the seeds, and all values of RR@10
            point
            | {name: float(self.values("search", n, name).mean()) for name in names}
            | {RR: self.values("search", n, RR)}
            for n, point in enumerate(self.seeds[0]["search"])
        ]
        kinds = dict.fromkeys(point["index"] for point in self.curves)
        self.kinds = [kind for kind in kinds if kind != "exact"]  # of approximate indexes

    def values(self, *path: object) -> Float[np.ndarray, "seeds ..."]:
        """One number for each seed and query, or for each seed: what stands at `path`."""
        return at_path(self.seeds, *path)

    def reranked(self, system: str, depth: int) -> Float[np.ndarray, "seeds queries"]:
        """RR@10."""
        return self.values("rerank", system, str(depth))

    def curve(self, system: str, kind: str) -> list[Measured]:
        """A system's timed searches in one kind of index, the fastest first."""
        own = [point for point in self.curves if (point["system"], point["index"]) == (system, kind)]
        return sorted(own, key=lambda point: point["ms/query"])


def claims(found: Found) -> list[Claim]:
    """What §7 says."""
    ours, few, many = found.ours, found.depths[0], found.depths[-1]
    sparse = found.values("retrieve", found.sparse, RR).mean()
    weak = [name for name in (DE, ME) if found.values("retrieve", name, RR).mean() < LEARNED * sparse]
    cross = [CROSS] if found.reranked(found.sparse, many).mean() < sparse else []
    made: list[Claim] = []

    def add(place: str, sentence: str, quantity: str, contrast: Any, printed: str = "") -> None:
        unlearned = ", ".join([name for name in weak if name in quantity] + cross * ("reranked" in quantity))
        place = f"Luan et al. 2021, §7, {place}"
        made.append(Claim(place, sentence, quantity, contrast, printed=printed, unlearned=unlearned))

    def ordered(sentence: str, pairs: Sequence[tuple[str, str]]) -> None:
        for a, b in pairs:
            one, other = (found.values("retrieve", ours[name], RR) for name in (a, b))
            printed = "/".join(f"{x - y:+.3f}" for x, y in zip(TABLE_1[a], TABLE_1[b], strict=True))
            add("Table 1", sentence, f"{RR}, {ours[a]} − {ours[b]}", one - other, printed)

    def lead(name: str, depth: int) -> Any:
        return found.reranked(ours[name], depth) - found.reranked(found.sparse, depth)

    ordered("our DE-BERT model already outperforms or is competitive with prior systems", [(DE, BM25)])
    ordered(
        "the sparse-dense hybrid models bring improvements over dense-only models on both datasets",
        [(DE_HYBRID, DE), (ME_HYBRID, ME)],
    )
    ordered(
        "all differences between DE-BERT, ME-BERT, DE-HYBRID-E, and ME-HYBRID-E are statistically "
        "significant on both development sets",
        [(ME, DE), (ME, DE_HYBRID), (ME_HYBRID, DE), (ME_HYBRID, DE_HYBRID)],
    )
    for name in (ME, ME_HYBRID):
        sentence = (
            "when a very small number of candidates can be scored with expensive cross-attention models, the "
            "multi-vector ME-BERT and hybrid models achieve large improvements compared to prior systems"
        )
        quantity = f"{RR}, {few} reranked, {ours[name]} − {found.sparse}"
        add("Figure 6", sentence, quantity, lead(name, few))
        if few < many:
            sentence = (
                "When a large number of candidates can be reranked, the impact of the first-stage system "
                "decreases"
            )
            quantity = f"{RR}, lead of {ours[name]} over {found.sparse}, {few} − {many} reranked"
            add("Figure 6", sentence, quantity, lead(name, few) - lead(name, many))
    for kind in found.kinds:
        if pays(found, kind):
            de, me = equal_time(found, kind)
            sentence = (
                "In the higher quality range of the curves, ME-BERT achieves substantially higher MRR than "
                "DE-BERT for the same inference time per query"
            )
            times = f"{me['ms/query']:.3g} ms − {DE} in {de['ms/query']:.3g} ms"
            add("Figure 7", sentence, f"{RR}, {kind}, {ME} in {times}", me[RR] - de[RR])
    return made


def pays(found: Found, kind: str) -> bool:
    """Whether an approximate index is faster than exact search (`PAYS`), of both systems."""
    fastest = {(name, k): found.curve(name, k)[0]["ms/query"] for name in (DE, ME) for k in (kind, "exact")}
    return all(fastest[name, kind] <= PAYS * fastest[name, "exact"] for name in (DE, ME))


def equal_time(found: Found, kind: str) -> tuple[Measured, Measured]:
    """DE-BERT's slowest search in this kind of index, and ME-BERT's slowest that takes no longer, else its
    fastest: times choose, quality does not."""
    de, me = found.curve(DE, kind)[-1], found.curve(ME, kind)
    within = [point for point in me if point["ms/query"] <= de["ms/query"]]
    return de, within[-1] if within else me[0]


def describe(found: Found, vectors: int) -> dict[str, Section]:
    """Sections of the page, by the name of their files; vectors: m."""
    slow = [kind for kind in found.kinds if not pays(found, kind)]
    untested = (
        "Not tested here: that m vectors bring more on longer documents, which takes two collections"
        + "".join(f"; Figure 7 in {kind}, which is hardly faster than exact search" for kind in slow)
    )
    rounds = []
    for system, of in found.seeds[0]["rounds"].items():
        for round in of:
            after, before = (found.values("rounds", system, r, RR) for r in (round, "first"))
            row = {"system": system, "round": round, RR: shown(seeds_interval(after))}
            rounds.append(row | {f"{RR} − first": shown(seeds_interval(after - before), "+")})
    search = [
        {key: value for key, value in point.items() if key != RR} | {RR: shown(seeds_interval(point[RR]))}
        for point in found.curves
    ]
    stages = {name: [found.reranked(name, d) for d in found.depths] for name in found.seeds[0]["rerank"]}
    ours = {name: stages[name] for name in found.ours.values()}
    as_found = {name: [found.values("retrieve", name, RR)] * len(found.depths) for name in ours}
    rerank = Curves("first documents that cross-attention reranks", found.depths, {RR: stages})
    shown_of = Curves(rerank.name, found.depths, {f"{RR} (dotted: not reranked)": ours}, dotted=as_found)
    return {
        "claims": Section(
            "What §7 says, and what we measured",
            f"A dense model has learned with {LEARNED:.0%} of BM25's RR@10, cross-attention where it orders "
            f"what BM25 has found no worse than BM25. {untested}.",
            verdict_rows(claims(found)),
        ),
        "retrieve": Section(
            "First stages (Tables 1 and 2)",
            f"Whole corpus, m = {vectors}. The dev queries choose λ and the round of training. Holes@10: "
            "share of the first 10 that nobody judged. The paper's MRR@10 on MS MARCO: passages/documents.",
            retrieve_rows(found),
        ),
        "rerank": Section(
            "Cross-attention over the first documents of each stage (Table 1, Figure 6)",
            f"{RR}; what is not reranked is left out.",
            rerank.rows,
            shown_of.draw(),
        ),
        "mining": Section(
            "One round of hard-negative mining",
            "After the first round: as many steps with negatives that the model itself ranks high (mined), "
            "or with BM25's as before (again). The paper mines “when beneficial” and gives no number.",
            rounds,
        ),
        "search": Section(
            "Quality against time of search (Figure 7)",
            f"RR@10 and milliseconds of an encoded query, one at a time; {ME} has {vectors} entries per "
            "document. 0 probes: all vectors.",
            search,
            draw_times(found),
        ),
    }


def retrieve_rows(found: Found) -> Rows:
    papers = {ours: "/".join(f"{x:.3f}" for x in TABLE_1[paper]) for paper, ours in found.ours.items()}
    rows: Rows = []
    for system in found.seeds[0]["retrieve"]:
        row: dict[str, Any] = {"system": system}
        row |= {m: shown(seeds_interval(found.values("retrieve", system, m))) for m in MEASURES[:-1]}
        row["Holes@10"] = f"{1 - found.values('retrieve', system, JUDGED).mean():.3f}"
        row["paper"] = papers.get(system, "–")
        chosen = [seed["weights"][system] for seed in found.seeds if system in seed["weights"]]
        row["round, λ by seed"] = "; ".join(f"{of['round']}, {of['λ']:.3g}" for of in chosen)
        rows.append(row)
    return rows


def draw_times(found: Found) -> Any:
    """Figure 7; bars are 95 % intervals over seeds and queries."""
    from matplotlib.figure import Figure

    colours = dict(zip(found.ours.values(), PALETTE, strict=False))
    outside: dict[str, Any] = {"frameon": False, "loc": "center left", "bbox_to_anchor": (1, 0.5)}
    time = Figure(figsize=(2.6 + 4.2 * len(found.kinds), 4.2), layout="constrained")
    panels = time.subplots(1, len(found.kinds), sharey=True, squeeze=False)[0]
    for panel, kind in zip(panels, found.kinds, strict=True):
        for system in (DE, ME):
            line, (exact,) = found.curve(system, kind), found.curve(system, "exact")
            ms, look = [point["ms/query"] for point in line], {"color": colours[system]}
            means, low, high = np.array([seeds_interval(point[RR]) for point in line]).T
            bars = [means - low, high - means]
            panel.errorbar(ms, means, yerr=bars, fmt="o-", markersize=4, capsize=2, label=system, **look)
            for point, x, y in zip(line, ms, means, strict=True):
                panel.annotate(str(point["probes"]), (x, y), (4, 4), textcoords="offset points", fontsize=8)
            panel.axhline(exact[RR].mean(), linestyle="--", **look)
            panel.axvline(exact["ms/query"], linestyle=":", **look)
        panel.set(xlabel="ms per query", title=kind)
    panels[0].set_ylabel(RR)
    panels[-1].legend(title="dashed, dotted: exact\nat a point: lists probed", **outside)
    return time
