"""How often does an alignment choose equal tokens, and does their IDF matter? Wu et al., Figures 2, 3, 5.

Wu et al. 2024 (arXiv:2404.00684), §7.2. Two rates are measured for each query token of a ColBERT (q→d), as
means over the query's candidates. The hard rate is 1 if the aligned document token has the same id, else 0;
the soft rate is the weight on tokens with the same id in the softmax of A's column. For each document token
(d→q), both rates are measured under q←d (softmax of A's row). The soft rate is also measured for SEAL, whose
A is the mean over all layers and heads, as in the exact identity, or over the last layer's heads, as is usual
in practice. Figure 5 shows one pair of texts in which GR attends to names. Here names are the query's tokens
with an IDF of at least 4, and the measure is the attention on names minus the names' share of the query.

Rates are averaged over all tokens, and over tokens that occur on the other side. "uniform" aligns all tokens
equally. Special tokens, punctuation and stop words are excluded. The IDF is ln(1 + (N − df + ½)/(df + ½))
over the tokens of N documents.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from papers.wu2024.pair_settings import PairSettings
from studies.settings import launch

from paradigms.io.command_line import flags


@flags()
class Settings(PairSettings):
    """Settings for models, training, and evaluation queries."""


launch(__name__, Settings, __doc__, processes=True)  # before the slow imports

import numpy as np
import torch
from jaxtyping import Float, Int
from papers.wu2024 import attention
from papers.wu2024.attention import BINS, HARD, LAYERS, NAMES
from papers.wu2024.trained_pairs import TaskResults, run_study, sample, trainings_of, unlearned_models
from studies.claims import Study
from studies.curves import Curves, at_path
from studies.model_runs import StudyData
from studies.pages import Measured, Rows, Section, cell

from paradigms.evaluate import seeds_interval
from paradigms.evaluate.claims import UNDECIDED
from paradigms.io.progress import progress_bar

TASK = "term-matching"
KINDS = ("all tokens", "a match is possible")
FORWARD = ("MVDR hard", "MVDR soft", "uniform")  # q→d
BACKWARD = ("MVDR (q←d)", *(f"GR, {layers}" for layers in LAYERS), "uniform")  # d→q
SERIES = [("q→d", name) for name in FORWARD] + [("d→q", name) for name in (*BACKWARD, HARD, *NAMES.values())]
FEWEST = 50  # tokens that a bin needs to support a claim
NAME = 4  # minimum IDF of a name, which about one document in fifty contains
GR_OF = {on_names: name for name, on_names in NAMES.items()}
PAPER_HARD = 0.114  # of all tokens, on NQ320K
Key = tuple[str, str, str]  # direction, series, kind


def main(settings: Settings) -> None:
    tasks = {TASK: ("colbert", "seal")}
    run_study(settings, "Term matching in alignments", tasks, measure, report, keep_recall=True)


def measure(data: StudyData, _: str, models: list[Any]) -> Measured:
    """Measure the sum of each rate and the number of tokens, for each query and bin."""
    mvdr, generative = models
    if mvdr.encoder.tokenizer.get_vocab() != generative.tokenizer.get_vocab():
        raise ValueError("ids are compared: ColBERT and SEAL need the same vocabulary")
    corpus = data.collection.corpus
    tokenizer = generative.tokenizer
    pool = data.pool(data.settings.depth)
    statistics = attention.token_statistics(corpus, tokenizer)
    idf = statistics.idf(torch.arange(len(tokenizer))).numpy()
    counted = attention.counted_tokens(tokenizer)
    counted &= statistics.frequencies.numpy() > 0  # a token that no document contains cannot match
    bins = np.where(counted, np.digitize(idf, BINS[1:-1]), -1)
    named = counted & (idf >= NAME)
    positions = {id: n for n, id in enumerate(generative.identifiers.documents)}
    totals_of: dict[Key, list[list[list[float]]]] = {(*key, kind): [] for key, kind in product(SERIES, KINDS)}
    with progress_bar(True) as bar:
        for query in bar.track(pool, description="term matching"):
            documents = [positions[id] for id in pool[query]]
            text = data.test.queries[query]
            texts = [corpus[corpus.position(id)] for id in pool[query]]
            sums = {key: np.zeros((2, len(BINS) - 1)) for key in totals_of}
            for direction, series, part in (
                *attention.multivector_rates(mvdr, text, texts),
                *attention.generative_rates(generative, text, documents, named),
            ):
                for kind in KINDS:
                    rates = attention.averaged(part, direction == "q→d", kind == KINDS[1])
                    sums[direction, series, kind] += attention.binned(*rates, bins)
            for key, total in sums.items():
                totals_of[key].append(total.tolist())
    listed = [{"direction": d, "series": s, "kind": k, "totals": t} for (d, s, k), t in totals_of.items()]
    return {"queries": list(pool), "rates": listed}


@dataclass(frozen=True)
class Sums:
    """A rate summed over tokens, and the number of tokens, for each seed, query and bin."""

    sums: Float[np.ndarray, "seeds queries bins"]
    counts: Int[np.ndarray, "seeds queries bins"]

    def rate(self, bins: Sequence[int] | range = range(len(BINS) - 1)) -> Float[np.ndarray, "seeds queries"]:
        """Return one value per query, such that the mean value is Σ rates / Σ tokens over these bins.

        The bins must contain tokens. The values linearise the ratio r: r + (Σ rates of a query − r · tokens
        of the query) / (mean tokens per query). Queries with more tokens count more, as in a rate over
        tokens, and queries without tokens have the value r.
        """
        top = self.sums[..., list(bins)].sum(-1).astype(float)
        below = self.counts[..., list(bins)].sum(-1).astype(float)
        r = top.sum(1, keepdims=True) / below.sum(1, keepdims=True)
        return r + (top - r * below) / below.mean(1, keepdims=True)

    @property
    def tokens(self) -> Int[np.ndarray, " bins"]:
        return self.counts.sum(1).min(0)


Results = dict[Key, Sums]


def study_of(
    results: Results,
    fewest: int,
    poor: Sequence[str] = (),
    trainings: Mapping[str, Sequence[Measured]] | None = None,
) -> Study:
    """Return the rates of §7.2, for both readings of a rate, and those of the case study in §7.5.

    A trend compares the first and the last bin with at least `fewest` tokens; a rate with fewer than two such
    bins has no trend. An alignment counts as unlearned if its rate is not above the uniform alignment's, or
    if its model is among the `poor`.
    """
    values: dict[str, dict[str, np.ndarray]] = {}
    trends: dict[str, list[str]] = {"q→d, first − last bin": [], "d→q, last − first bin": []}
    for (direction, name, kind), sums in results.items():
        if not sums.tokens.any():
            continue
        measure = f"exact match rate, {direction}, {kind}"
        sides = values.setdefault(measure, {})
        sides[name] = sums.rate()
        enough = [n for n, tokens in enumerate(sums.tokens) if tokens >= fewest]
        sides |= {f"{name}, IDF {limits(n)}": sums.rate([n]) for n in enough}
        if len(enough) > 1 and name in (*FORWARD[:-1], *BACKWARD[:-1]):
            first = f"{name}, IDF {limits(enough[0])}"
            last = f"{name}, IDF {limits(enough[-1])}"
            if direction == "q→d":
                trends["q→d, first − last bin"].append(f"{measure}: {first} − {last}")
            else:
                trends["d→q, last − first bin"].append(f"{measure}: {last} − {first}")
    forward = f"exact match rate, q→d, {KINDS[1]}"
    backward = f"exact match rate, d→q, {KINDS[1]}"
    named = [
        (gr, names)
        for gr, names in NAMES.items()
        if min(results["d→q", name, KINDS[1]].tokens.sum() for name in (gr, names)) >= fewest
    ]

    def undecided(sides: Sequence[str]) -> dict[str, str]:
        """A rate above the uniform alignment's is itself a claim; the other claims presuppose it."""
        series = {side.partition(", IDF ")[0] for side in sides}
        for name in sorted(series - {"uniform"}):
            model = model_of(name)
            direction = "q→d" if name in FORWARD else "d→q"
            rate = results[direction, GR_OF.get(name, name), KINDS[1]].rate()
            uniform = results[direction, "uniform", KINDS[1]].rate()
            if model in poor:
                return {"unlearned": model}
            if "uniform" not in series and name != HARD and seeds_interval(rate - uniform).low <= 0:
                return {"unlearned": f"{name},"}
        return {}

    groups = trends | {
        "alignment − uniform": [
            f"{forward}: {FORWARD[0]} − uniform",
            *(f"{backward}: {name} − uniform" for name in BACKWARD[:-1]),
        ],
        "hard MVDR − GR": [f"{backward}: {HARD} − {gr}" for gr, _ in named],
        "attention on names − share": [f"{backward}: {names}" for _, names in named],
    }
    hard_rate = {
        "quantity": f"hard rate, {KINDS[0]}",
        "printed": f"{PAPER_HARD}, NQ320K",
        "measured": cell(results["q→d", "MVDR hard", KINDS[0]].rate()),
        "verdict": f"{UNDECIDED}: a number of another collection",
    }
    parts = {name: [model_of(name)] for _, name in SERIES if name != "uniform"}
    more: Any = {"parts": parts, "counts": {"hard rate": hard_rate}}
    return Study(values, groups, trainings or {}, undecided, **more)


def model_of(series: str) -> str:
    return "colbert" if series.startswith("MVDR") else "seal"


def limits(n: int) -> str:
    return f"{BINS[n]}–{BINS[n + 1]}"


def report(data: StudyData, by_task: TaskResults) -> tuple[str, dict[str, Section]]:
    results: Results = {}
    for n, entry in enumerate(by_task[TASK][0]["rates"]):
        rates, tokens = np.moveaxis(at_path(by_task[TASK], "rates", n, "totals"), 2, 0)
        results[entry["direction"], entry["series"], entry["kind"]] = Sums(rates, tokens.astype(int))

    def section(
        heading: str, text: str, direction: str, names: Sequence[str], more: Sequence[str]
    ) -> Section:
        """Make a table of the series in `names` and `more`, and plot the rates of `names` by bin."""
        rows: Rows = []
        panels: dict[str, dict[str, list[Any]]] = {}
        for name, kind in product([*names, *more], KINDS):
            sums = results[direction, name, kind]
            rates = [sums.rate([n]) if tokens else None for n, tokens in enumerate(sums.tokens)]
            row = {"rate": name, "over": kind, "all": sums.rate() if sums.tokens.any() else "–"}
            for n, (rate, tokens) in enumerate(zip(rates, sums.tokens, strict=True)):
                row[f"IDF {limits(n)}"] = "–" if rate is None else f"{cell(rate)} ({tokens:,})"
            rows.append(row)
            if name in names:
                panels.setdefault(f"exact match rate, {direction}, over: {kind}", {})[name] = rates
        bins = [limits(n) for n in range(len(BINS) - 1)]
        average = {"MVDR hard, NQ320K's average": [PAPER_HARD] * len(bins)}
        everywhere = f"exact match rate, q→d, over: {KINDS[0]}"
        curves = Curves("IDF", bins, panels, printed={everywhere: average})
        return Section(heading, text, rows, curves.draw())

    summary = f"BM25's first {data.settings.depth} documents. {sample(data, by_task)}"
    return summary, {
        "claims": study_of(results, FEWEST, unlearned_models(by_task[TASK]), trainings_of(by_task))
        .with_queries(by_task[TASK][0]["queries"], data)
        .section(
            "wu2024",
            "terms",
            "One family of tests. Trends: the rate in the last bin of IDF less that in the first, of the "
            f"bins with at least {FEWEST} tokens; tokens that no document holds are left out. The "
            "paper does not say whether its rates are over all tokens or over those that can match.",
        ),
        "query_to_document": section(
            "Query to document (Figure 2)",
            "Rate of query tokens, averaged over candidates; in brackets the number of query tokens.",
            "q→d",
            FORWARD,
            (),
        ),
        "document_to_query": section(
            "Document to query (Figure 3)",
            "Rate of document tokens, soft where it is not said to be hard; in brackets their number, over "
            f"all candidates. On names: the attention on the query's tokens of an IDF of at least {NAME}, "
            "less their share of its tokens.",
            "d→q",
            BACKWARD,
            (HARD, *NAMES.values()),
        ),
    }
