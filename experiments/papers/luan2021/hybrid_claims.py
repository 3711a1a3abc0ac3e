"""Describe hybrid.py: the claims in Luan et al. 2021 (TACL), §7, about first stages and reranking."""

from collections.abc import Sequence
from typing import Any

from studies.claims import Study, Values, printed
from studies.curves import Curves, at_path
from studies.gains import LEARNED, same_queries, training_section
from studies.pages import Measured, Rows, Section

MEASURES = ("RR@10", "nDCG@10", "R@10", "Judged@10")
RR, NDCG, _, JUDGED = MEASURES
DE = "DE-BERT"
ME = "ME-BERT"
DENSE = {"dpr": DE, "me_bert": ME}
SPARSE = ("BM25-uni", "BM25-bi")  # over words; over words and pairs of words
CROSS = "cross-attention"
TABLE_1 = printed("luan2021")["table 1"]


def hybrid_name(dense: str, sparse: str) -> str:
    return f"HYBRID-{dense}-{sparse.removeprefix('BM25-')}"


class HybridStudy:
    """Measurements of all seeds, which share one set of queries."""

    def __init__(self, seeds: Sequence[Measured]) -> None:
        same_queries(seeds)
        self.seeds = list(seeds)
        # Claims and figures use the BM25 that is better on dev queries.
        self.sparse = max(SPARSE, key=lambda name: self.values("dev", name).mean())
        hybrids = {"DE-HYBRID": hybrid_name(DE, self.sparse), "ME-HYBRID": hybrid_name(ME, self.sparse)}
        self.ours = {"BM25": self.sparse, DE: DE, ME: ME} | hybrids  # the paper's systems -> ours
        self.models = {name: [seed["training"][name] for seed in seeds] for name in seeds[0]["training"]}
        self.depths = sorted(map(int, self.seeds[0]["rerank"][self.sparse]))

    def values(self, *path: object) -> Values:
        """Return the measurements at `path`: one number per seed and query, or per seed."""
        return at_path(self.seeds, *path)

    def reranked(self, system: str, depth: int) -> Values:
        return self.values("rerank", system, str(depth))

    def undecided(self, sides: Sequence[str]) -> dict[str, str]:
        """Return the dense parts that have not learned enough, and cross-attention if BM25 orders better."""
        sparse = self.values("retrieve", self.sparse, RR).mean()
        names = [name for name in (DE, ME) if any(name in side for side in sides)]
        weak = [name for name in names if self.values("retrieve", name, RR).mean() < LEARNED * sparse]
        reranked = any("reranked" in side for side in sides)
        if reranked and self.reranked(self.sparse, self.depths[-1]).mean() < sparse:
            weak.append(CROSS)
        return {"unlearned": ", ".join(weak)}

    def study(self) -> Study:
        systems = list(self.ours.values())
        values = {system: self.values("retrieve", system, RR) for system in systems}
        for depth in self.depths:
            values |= {f"{system}, {depth} reranked": self.reranked(system, depth) for system in systems}
        groups = {paper: [system] for paper, system in self.ours.items()}
        groups["few"] = [str(self.depths[0])]
        groups["many"] = [str(self.depths[-1])] * (len(self.depths) > 1)
        return Study(
            {RR: values},
            groups,
            self.models,
            self.undecided,
            printed={RR: {system: TABLE_1[paper] for paper, system in self.ours.items()}},
            parts={hybrid_name(dense, self.sparse): [dense] for dense in (DE, ME)},
            queries=self.seeds[0]["queries"],
        )

    def sections(self, vectors: int) -> dict[str, Section]:
        """Return the page's sections, keyed by file name. vectors: m, the number of ME-BERT's vectors."""
        systems = list(self.ours.values())
        name = "first documents that cross-attention reranks"
        stages = {name: [self.reranked(name, d) for d in self.depths] for name in self.seeds[0]["rerank"]}
        panel = {f"{RR} (dotted: not reranked)": {system: stages[system] for system in systems}}
        level = {system: [self.values("retrieve", system, RR)] * len(self.depths) for system in systems}
        figure_6 = Curves(name, self.depths, panel, dotted=level)
        here = [self.values("retrieve", system, RR) for system in systems]
        parts = enumerate(("passages", "documents"))
        theirs = {f"MS MARCO, {part}": [TABLE_1[paper][n] for paper in self.ours] for n, part in parts}
        more: Any = {"printed": {RR: theirs}, "joined": False}
        table_1 = Curves("first stage", [*self.ours], {RR: {"here": here}}, **more)
        return {
            "claims": self.study().section(
                "luan2021",
                "hybrids",
                f"A dense model has learned with {LEARNED:.0%} of BM25's RR@10, cross-attention where it "
                "orders what BM25 has found no worse than BM25.",
            ),
            "training": training_section(self.models),
            "retrieve": Section(
                "First stages (Tables 1 and 2)",
                f"Whole corpus, m = {vectors}. The dev queries choose λ and the round of training. Holes@10: "
                "share of the first 10 that nobody judged. The paper's MRR@10 on MS MARCO: "
                "passages/documents.",
                self.retrieve_rows(),
                table_1.draw(),
            ),
            "rerank": Section(
                "Cross-attention over the first documents of each stage (Table 1, Figure 6)",
                f"{RR} of the reranked documents alone: documents below them count as not found.",
                Curves(name, self.depths, {RR: stages}).rows,
                figure_6.draw(),
            ),
        }

    def retrieve_rows(self) -> Rows:
        papers = {ours: "/".join(f"{x:.3f}" for x in TABLE_1[paper]) for paper, ours in self.ours.items()}
        rows: Rows = []
        for system in self.seeds[0]["retrieve"]:
            row: dict[str, Any] = {"system": system}
            row |= {m: self.values("retrieve", system, m) for m in MEASURES[:-1]}
            row["Holes@10"] = f"{1 - self.values('retrieve', system, JUDGED).mean():.3f}"
            row["paper"] = papers.get(system, "–")
            chosen = [seed["weights"][system] for seed in self.seeds if system in seed["weights"]]
            row["round, λ by seed"] = "; ".join(f"{choice['round']}, {choice['λ']:.3g}" for choice in chosen)
            rows.append(row)
        return rows
