"""Test the claims in Luan et al. 2021 (TACL), §7, about first stages and reranking, for hybrid.py."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from studies.curves import Curves, at_path
from studies.model_runs import LEARNED, same_queries, training_section, unmoved
from studies.pages import Measured, Rows, Section, printed, shown, verdicts

from paradigms.evaluate import seeds_interval
from paradigms.evaluate.claims import TRAINING, Claim

MEASURES = ("RR@10", "nDCG@10", "R@10", "Judged@10")
RR, NDCG, _, JUDGED = MEASURES
DE, ME = "DE-BERT", "ME-BERT"
DENSE = {"dpr": DE, "me_bert": ME}
SPARSE = ("BM25-uni", "BM25-bi")  # over words; over words and pairs of words
CROSS = "cross-attention"
BM25, DE_HYBRID, ME_HYBRID = "BM25", "DE-HYBRID", "ME-HYBRID"
PRINTED = printed("luan2021")
TABLE_1, SAID = PRINTED["table 1"], PRINTED["hybrids"]


def hybrid_name(dense: str, sparse: str) -> str:
    return f"HYBRID-{dense}-{sparse.removeprefix('BM25-')}"


class HybridResults:
    """Measurements of all seeds, which share one set of queries."""

    def __init__(self, seeds: Sequence[Measured]) -> None:
        same_queries(seeds)
        self.seeds = list(seeds)
        # Claims and figures use the BM25 that is better on dev queries.
        self.sparse = max(SPARSE, key=lambda name: self.values("dev", name).mean())
        hybrids = {DE_HYBRID: hybrid_name(DE, self.sparse), ME_HYBRID: hybrid_name(ME, self.sparse)}
        self.ours = {BM25: self.sparse, DE: DE, ME: ME} | hybrids  # the paper's systems -> ours
        self.models = {name: [seed["training"][name] for seed in seeds] for name in seeds[0]["training"]}
        self.depths = sorted(map(int, self.seeds[0]["rerank"][self.sparse]))

    def values(self, *path: object) -> Float[np.ndarray, "seeds ..."]:
        """Return the measurements at `path`: one number per seed and query, or per seed."""
        return at_path(self.seeds, *path)

    def reranked(self, system: str, depth: int) -> Float[np.ndarray, "seeds queries"]:
        """Return RR@10 after reranking the first `depth` documents."""
        return self.values("rerank", system, str(depth))


def claims(results: HybridResults) -> list[Claim]:
    """Return the claims of Luan et al. 2021, §7."""
    ours, few, many = results.ours, results.depths[0], results.depths[-1]
    sparse = results.values("retrieve", results.sparse, RR).mean()
    weak = [name for name in (DE, ME) if results.values("retrieve", name, RR).mean() < LEARNED * sparse]
    cross = [CROSS] if results.reranked(results.sparse, many).mean() < sparse else []
    made: list[Claim] = []

    def add(place: str, statement: str, quantity: str, contrast: Any, printed: str = "") -> None:
        unlearned = ", ".join([name for name in weak if name in quantity] + cross * ("reranked" in quantity))
        still = unmoved({name: seeds for name, seeds in results.models.items() if name in quantity})
        more = {"unlearned": unlearned, "about": TRAINING, "unmoved": still}
        place = f"Luan et al. 2021, §7, {place}"
        made.append(Claim(place, statement, quantity, contrast, printed=printed, **more))

    def ordered(said: str, pairs: Sequence[tuple[str, str]]) -> None:
        for a, b in pairs:
            one, other = (results.values("retrieve", ours[name], RR) for name in (a, b))
            printed = "/".join(f"{x - y:+.3f}" for x, y in zip(TABLE_1[a], TABLE_1[b], strict=True))
            add("Table 1", SAID[said], f"{RR}, {ours[a]} − {ours[b]}", one - other, printed)

    def lead(name: str, depth: int) -> Any:
        return results.reranked(ours[name], depth) - results.reranked(results.sparse, depth)

    ordered("DE-BERT", [(DE, BM25)])
    ordered("hybrids", [(DE_HYBRID, DE), (ME_HYBRID, ME)])
    ordered("differences", [(ME, DE), (ME, DE_HYBRID), (ME_HYBRID, DE), (ME_HYBRID, DE_HYBRID)])
    for name in (ME, ME_HYBRID):
        quantity = f"{RR}, {few} reranked, {ours[name]} − {results.sparse}"
        add("Figure 6", SAID["few reranked"], quantity, lead(name, few))
        if few < many:
            quantity = f"{RR}, lead of {ours[name]} over {results.sparse}, {few} − {many} reranked"
            add("Figure 6", SAID["many reranked"], quantity, lead(name, few) - lead(name, many))
    return made


def describe(results: HybridResults, vectors: int) -> dict[str, Section]:
    """Return the page's sections, keyed by file name. vectors: m, the number of ME-BERT's vectors."""
    rounds = []
    for system, trained in results.seeds[0]["rounds"].items():
        for round in trained:
            after, before = (results.values("rounds", system, r, RR) for r in (round, "first"))
            row = {"system": system, "round": round, RR: after}
            rounds.append(row | {f"{RR} − first": shown(seeds_interval(after - before), "+")})
    stages = {
        name: [results.reranked(name, d) for d in results.depths] for name in results.seeds[0]["rerank"]
    }
    ours = {name: stages[name] for name in results.ours.values()}
    not_reranked = {name: [results.values("retrieve", name, RR)] * len(results.depths) for name in ours}
    rerank = Curves("first documents that cross-attention reranks", results.depths, {RR: stages})
    first = {"here": [results.values("retrieve", name, RR) for name in results.ours.values()]}
    theirs = [
        {f"MS MARCO, {part}": [TABLE_1[name][n] for name in results.ours]}
        for n, part in enumerate(("passages", "documents"))
    ]
    table_1 = Curves(
        "first stage", [*results.ours], {RR: first}, printed={RR: theirs[0] | theirs[1]}, joined=False
    )
    shown_of = Curves(
        rerank.name, results.depths, {f"{RR} (dotted: not reranked)": ours}, dotted=not_reranked
    )
    return {
        "claims": verdicts(
            claims(results),
            f"A dense model has learned with {LEARNED:.0%} of BM25's RR@10, cross-attention where it orders "
            "what BM25 has found no worse than BM25.",
            PRINTED["undecided hybrids"],
        ),
        "training": training_section(results.models),
        "retrieve": Section(
            "First stages (Tables 1 and 2)",
            f"Whole corpus, m = {vectors}. The dev queries choose λ and the round of training. Holes@10: "
            "share of the first 10 that nobody judged. The paper's MRR@10 on MS MARCO: passages/documents.",
            retrieve_rows(results),
            table_1.draw(),
        ),
        "rerank": Section(
            "Cross-attention over the first documents of each stage (Table 1, Figure 6)",
            f"{RR} of the reranked documents alone: documents below them count as not found.",
            rerank.rows,
            shown_of.draw(),
        ),
        "mining": Section(
            "One round of hard-negative mining",
            "After the first round: as many steps with negatives that the model itself ranks high (mined), "
            "or with BM25's as before (again). The paper mines “when beneficial” and gives no number.",
            rounds,
        ),
    }


def retrieve_rows(results: HybridResults) -> Rows:
    papers = {ours: "/".join(f"{x:.3f}" for x in TABLE_1[paper]) for paper, ours in results.ours.items()}
    rows: Rows = []
    for system in results.seeds[0]["retrieve"]:
        row: dict[str, Any] = {"system": system}
        row |= {m: results.values("retrieve", system, m) for m in MEASURES[:-1]}
        row["Holes@10"] = f"{1 - results.values('retrieve', system, JUDGED).mean():.3f}"
        row["paper"] = papers.get(system, "–")
        chosen = [seed["weights"][system] for seed in results.seeds if system in seed["weights"]]
        row["round, λ by seed"] = "; ".join(f"{choice['round']}, {choice['λ']:.3g}" for choice in chosen)
        rows.append(row)
    return rows
