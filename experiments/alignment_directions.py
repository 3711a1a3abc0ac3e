"""Does it matter which side chooses the alignment? MVDR q→d, MVDR q←d and GR rerank the same candidates.

Wu et al. 2024 (arXiv:2404.00684), §6.3, §7.1 and Table 5, compare three systems: a T5-ColBERT; the same
T5-ColBERT, with each document token aligned to its best query token instead; and a T5-SEAL. The paper states
no Z for the second system, so Z = 1 and Z = M are both measured, and a ColBERT that is trained with q←d. GR
reads a document as windows of `span` tokens, which begin where training spans may begin, and scores the
document by its best window. The scorers are the paper's raw logit, the log probability that GR is trained to
maximise, and the centred logit. The printed formula, Σ_i e_{d_i}ᵀh_i over all tokens of a document, is
measured too; these sequences are much longer than the training spans.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import comb
from typing import Any, get_args

from papers.wu2024.pair_settings import PairSettings
from studies.settings import launch

from paradigms.io.command_line import flags


@flags()
class Settings(PairSettings):
    """Settings for models, training, and evaluation queries."""

    generative: bool = True
    """also train and measure GR, which takes most of the time"""


launch(__name__, Settings, __doc__, processes=True)  # before the slow imports

import numpy as np
from papers.wu2024.trained_pairs import TaskResults, run_study, sample, trainings_of
from studies.claims import Study, printed
from studies.curves import at_path
from studies.gains import LEARNED, unlearned
from studies.model_runs import StudyData, values_of
from studies.pages import Measured, Rows, Section

from paradigms.align import DocumentToQuery
from paradigms.data import Judgements, Run
from paradigms.evaluate import seeds_interval
from paradigms.generative.outputs import ScoreName
from paradigms.generative.retriever import GenerativeRetriever
from paradigms.retrieve import Indexed

TASK = "directions"
MEASURES = ("R@1", "R@10", "RR@10")
PRIMARY = "RR@10"  # the tested measure
CANDIDATES = "BM25"  # order of the candidates
CHANCE = "random order"
FORWARD = "MVDR (q→d)"
BACKWARD = {"MVDR (q←d), Z = 1": "one", "MVDR (q←d), Z = M": "document_tokens"}
TRAINED_BACKWARD = "MVDR (q←d), trained"  # with Z = M
GENERATIVE: dict[str, ScoreName] = {f"GR, {name.replace('_', ' ')}": name for name in get_args(ScoreName)}
TRAINED = "GR, log probability"  # GR with its training score
WHOLE_DOCUMENT = "GR, logit, whole document"  # Eq. 11 as printed
MODELS = {  # model -> the systems that rank with it, first with its training score
    "colbert": (FORWARD, *BACKWARD),
    "colbert-backward": (TRAINED_BACKWARD,),
    "seal": (TRAINED, *(name for name in GENERATIVE if name != TRAINED), WHOLE_DOCUMENT),
}
SYSTEMS = (FORWARD, *BACKWARD, TRAINED_BACKWARD, *GENERATIVE, WHOLE_DOCUMENT)
TABLE_5 = printed("wu2024")["table 5"]

Values = dict[str, dict[str, np.ndarray]]  # system -> measure -> [seeds, queries]


def main(settings: Settings) -> None:
    models = tuple(name for name in MODELS if name != "seal" or settings.generative)
    run_study(settings, "Alignment directions", {TASK: models}, measure, report)


def measure(data: StudyData, _: str, models: list[Any]) -> Measured:
    runs = rankings(models, data, data.pool(data.settings.depth))
    values = {system: values_of(run, data.test, MEASURES) for system, run in runs.items()}
    return {"queries": data.measured_queries, "values": values}


def rankings(models: list[Any], data: StudyData, pool: Run) -> dict[str, Run]:
    """Score the candidates in `pool` with each system, and return {system: run}."""
    mvdr, backward, *generative = models
    corpus = data.collection.corpus
    queries = data.test.queries
    runs = {CANDIDATES: pool}
    pooled = corpus.only(d for scores in pool.values() for d in scores)
    forward = Indexed.build(mvdr, pooled)
    runs[FORWARD] = forward.rerank(queries, pool, progress=True)
    for system, normalise in BACKWARD.items():
        other = replace(forward, model=mvdr.with_alignment(DocumentToQuery(), normalise))
        runs[system] = other.rerank(queries, pool, progress=True)
    runs[TRAINED_BACKWARD] = Indexed.build(backward, pooled).rerank(queries, pool, progress=True)
    for retriever in map(GenerativeRetriever, generative):
        scorers = list(GENERATIVE.values())
        runs |= zip(GENERATIVE, retriever.rankings(queries, pool, scorers, progress=True), strict=True)
        (runs[WHOLE_DOCUMENT],) = retriever.rankings(queries, pool, ["logit"], windows=False, progress=True)
    return runs


def by_chance(pool: Run, judgements: Judgements, queries: list[str]) -> dict[str, list[float]]:
    """Return each measure's expected value per query in random order: r of R relevant among n documents."""
    means: dict[str, list[float]] = {measure: [] for measure in MEASURES}
    for query in queries:
        n = len(pool[query])
        relevant = [document for document, grade in judgements[query].items() if grade > 0]
        r = sum(document in pool[query] for document in relevant)
        share = r / len(relevant) / max(1, n)
        # C(n − rank, r − 1) of the C(n, r) orders have the first relevant document at this rank.
        ranks = range(1, min(10, n) + 1)
        reciprocal = sum(comb(n - rank, r - 1) / rank for rank in ranks) / comb(n, r) if r else 0.0
        for measure, value in zip(MEASURES, (share, min(10, n) * share, reciprocal), strict=True):
            means[measure].append(value)
    return means


def table_5(system: str) -> list[str]:
    """Return the paper's row for a system: of q←d there is one for any Z, of GR one for any scorer."""
    return next((row for name, row in TABLE_5.items() if system.startswith(name)), ["–", "–"])


def study_of(values: Values, trainings: Mapping[str, Sequence[Measured]]) -> Study:
    """Return RR@10 of every system, for each Z of q←d and each scorer of GR.

    A system is considered to have learned too little for a comparison if its RR@10 does not exceed the RR@10
    of a random order, or if the R@10 of its model, ranking by the training score, is less than `LEARNED`
    times the R@10 of BM25.
    """
    primary = {system: of_system[PRIMARY] for system, of_system in values.items()}
    model_of = {system: model for model, systems in MODELS.items() for system in systems}
    ten = {model: float(values[of[0]]["R@10"].mean()) for model, of in MODELS.items() if of[0] in values}
    bm25 = float(values[CANDIDATES]["R@10"].mean())

    def undecided(sides: Sequence[str]) -> dict[str, str]:
        models = sorted({model_of[side] for side in sides})
        by_luck = (x for x in sides if seeds_interval(primary[x] - primary[CHANCE]).low <= 0)
        poor = unlearned({model: ten[model] for model in models}, bm25)
        return {"unlearned": poor or next(by_luck, "")}

    mrr = {system: [float(cell.split("/")[2]) / 100 for cell in table_5(system)] for system in SYSTEMS}
    return Study(
        {PRIMARY: primary},
        {
            "readout": list(BACKWARD),
            "backward": [*BACKWARD, TRAINED_BACKWARD],
            "generative": [name for name in (*GENERATIVE, WHOLE_DOCUMENT) if name in values],
        },
        trainings,
        undecided,
        printed={PRIMARY: mrr},
        parts={system: [model] for system, model in model_of.items()},
    )


def report(data: StudyData, results: TaskResults) -> tuple[str, dict[str, Section]]:
    settings: Settings = data.settings
    seeds = results[TASK]
    values: Values = {
        system: {m: at_path(seeds, "values", system, m) for m in MEASURES} for system in seeds[0]["values"]
    }
    chance = by_chance(data.pool(settings.depth), data.test.judgements, seeds[0]["queries"])
    values[CHANCE] = {m: np.array([of_system] * len(seeds)) for m, of_system in chance.items()}
    table: Rows = []
    for system, of_system in values.items():
        nq, msmarco = table_5(system)
        table.append({"system": system} | of_system | {"paper, NQ320K": nq, "paper, MS MARCO": msmarco})
    return f"BM25's first {settings.depth} documents, reranked. {sample(data, results)}", {
        "claims": study_of(values, trainings_of(results))
        .with_queries(seeds[0]["queries"], data)
        .section(
            "wu2024",
            "directions",
            "One family of tests. A system that is not above random order, or whose model has less than "
            f"{LEARNED:.0%} of BM25's R@10, has not learned enough. Printed "
            "differences are of MRR@10 on NQ320K and on MS MARCO, T5-base.",
        ),
        "table5": Section(
            "Reranking (Table 5)",
            "The paper's R@1/R@10/MRR@10 are in percent. BM25: the candidates in BM25's order."
            + " Every row of GR is beside the paper's only one." * settings.generative,
            table,
        ),
    }
