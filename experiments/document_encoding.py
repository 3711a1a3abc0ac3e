"""Do PAWA and NP-decoding raise generative retrieval to ColBERT's quality? Wu et al. 2024, Tables 6 to 8.

Wu et al. 2024 (arXiv:2404.00684), §7.3 and appendix D: DSI, GENRE and SEAL with and without PAWA and
NP-decoding are compared end to end with DPR, S-T5, ColBERT and BM25, on the same queries and documents.
Neural systems are named after the paper's backbone, T5; DPR and Table 7's second ColBERT use another
backbone.

DSI-place is NCI's decoder without PAWA: place-specific digits, and a softmax over the digits of each place.
DSI-atomic has one token per document, which is single-vector retrieval with DSI's decoder, pairs and steps.
RIPOR has residual-quantised identifiers.
Untrained systems are measured too. T5-SEAL ranks as in the authors' code, by SEAL's keys with 5 beams and
without titles; "SEAL without a model" uses the query's n-grams as keys, each with probability ½. Decoding
token by token (Eq. 22) is compared with scoring all documents. "GENRE, half added" is trained on every other
document; the titles of the remaining documents are added without training (dynamic corpora, as in DSI++:
arXiv:2212.09744).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from itertools import permutations
from typing import Any

from papers.wu2024.pair_settings import PairSettings
from studies.settings import check_names, launch

from paradigms.io.command_line import flags

SYSTEMS = {  # system -> trained model
    "DPR": "dpr-second",
    "S-T5": "dpr",
    "T5-ColBERT": "colbert",
    "T5-ColBERT, pairs": "colbert-pairs",
    "ColBERT": "colbert-second",
    "ColBERT, pairs": "colbert-second-pairs",
    "DSI": "dsi",
    "DSI-place": "dsi-place",
    "DSI-PAWA": "dsi-pawa",
    "DSI-atomic": "dsi-atomic",
    "RIPOR": "ripor",
    "GENRE": "genre",
    "GENRE, half added": "genre-half",
    "GENRE-PAWA": "genre-pawa",
    "GENRE-NP-BASE": "genre-np-base",
    "GENRE-NP-ASYNC": "genre-np-async",
    "T5-SEAL": "seal",
    "SEAL without a model": "seal-untrained",  # only its tokenizer and texts
    "S-T5, untrained": "dpr-untrained",
    "T5-ColBERT, untrained": "colbert-untrained",
    "DSI, untrained": "dsi-untrained",
    "DSI-place, untrained": "dsi-place-untrained",
    "DSI-atomic, untrained": "dsi-atomic-untrained",
    "RIPOR, untrained": "ripor-untrained",
    "GENRE, untrained": "genre-untrained",
    "T5-SEAL, untrained": "seal-untrained",
    "T5-SEAL-NP": "seal-np-base",
    "T5-SEAL-PAWA": "seal-pawa",
}


@flags(queries=400)
class Settings(PairSettings):
    """Settings for models, training, and evaluation queries."""

    systems: list[str] = field(default_factory=lambda: list(SYSTEMS))
    """systems, named as in the tables; BM25 is always included. By default all: those of the second backbone
    if it differs, and ASYNC if encoders are trained"""
    beams: int = 20
    """beams of DSI's and GENRE's search; SEAL has 5 beams, as in the authors' code"""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_names(self, "systems", SYSTEMS)
        absent = ["second"] * (self.second == self.backbone) + ["np-async"] * self.frozen
        left_out = [name for name in self.systems if any(part in SYSTEMS[name] for part in absent)]
        if left_out and self.systems != list(SYSTEMS):
            raise SystemExit(
                f"systems: {', '.join(left_out)} cannot run. DPR and ColBERT come from a second backbone: "
                "name one with --second, or S-T5, T5-ColBERT. ASYNC clusters an encoder's output again "
                "during training: set --frozen false"
            )
        self.systems = [name for name in self.systems if name not in left_out]


launch(__name__, Settings, __doc__, processes=True)  # before the slow imports

from dataclasses import replace
from itertools import islice

import numpy as np
from papers.wu2024.trained_pairs import DEV_QUERIES, TaskResults, of_added, run_study, sample, trainings_of
from studies.claims import Study, printed
from studies.curves import at_path
from studies.gains import DEV, LEARNED, unlearned
from studies.model_runs import StudyData, values_of
from studies.pages import Measured, Section

from paradigms import GENERATIVE, Generative
from paradigms.data import Run
from paradigms.evaluate import seeds_interval
from paradigms.evaluate.claims import UNDECIDED
from paradigms.generative.ngrams import NGramIndex
from paradigms.generative.retriever import GenerativeRetriever
from paradigms.generative.seal import query_states, seal_scores
from paradigms.retrieve import retriever_of
from paradigms.train.fit import dev_queries

BM25 = "BM25"
CONTROL = "SEAL without a model"
SEAL_BEAMS = 5
SEARCHED = 100  # maximum number of queries for greedy search and for scoring all documents
MEASURES = ("R@1", "R@10", "RR@10", "nDCG@10")
# What a system must exceed to say anything about its method.
CONTROLS = dict.fromkeys(("T5-SEAL", "T5-SEAL-NP", "T5-SEAL-PAWA"), CONTROL) | {"DSI-PAWA": "DSI-place"}
HALF = "GENRE, half added"
RECALLS = ("R@1", "R@10")
# All three searches need identifiers in a trie; other systems have only the middle one.
SEARCHES = {"greedy": "greedy", "retrieve": "beams", "exhaustive": "all documents"}
PRINTED = printed("wu2024")
NQ320K = PRINTED["nq320k"]
MS_MARCO = PRINTED["ms marco"]


def main(settings: Settings) -> None:
    tasks: dict[str, tuple[str, ...]] = {BM25: ()}
    for system in (system for system in SYSTEMS if system in settings.systems):
        name = SYSTEMS[system]
        by_keys = name.startswith("seal") and not name.endswith("untrained")
        tasks[system] = (name, f"{name}-untrained") if by_keys else (name,)
    run_study(settings, "Document encodings", tasks, measure_system, report, half=True)


def study_of(results: TaskResults, documents: int) -> Study:
    """Return the recalls of every system by each search, and the groups of the claims.

    A system has learned too little to represent its paradigm if its R@10 is less than `LEARNED` times BM25's,
    and says nothing about its method if its R@10 is not above its control's.
    """
    values: dict[str, dict[str, np.ndarray]] = {measure: {} for measure in RECALLS}
    decoders = [system for system, seeds in results.items() if "exhaustive" in seeds[0]]
    for measure, sides in values.items():
        for system, seeds in results.items():
            sides[system] = at_path(seeds, "retrieve", measure)
        for system in decoders:
            exhaustive = at_path(results[system], "exhaustive", measure)
            for way, name in SEARCHES.items():
                of_way = at_path(results[system], way, measure)
                sides[f"{system}, {name}"] = of_way[:, : exhaustive.shape[1]]
    tens = values["R@10"]

    def undecided(sides: Sequence[str]) -> dict[str, str]:
        systems = [max((s for s in results if f"{side}, ".startswith(f"{s}, ")), key=len) for side in sides]
        for system in systems:
            control = CONTROLS.get(system, "")
            if control in tens and seeds_interval(tens[system] - tens[control]).low <= 0:
                return {"lacking": f"{system} is not above its control, {control}"}
        means = {system: float(tens[system].mean()) for system in systems}
        return {"unlearned": unlearned(means, float(tens[BM25].mean()))}

    groups = {
        # Rankings of untrained systems mean nothing.
        "decoder": [system for system in decoders if not SYSTEMS[system].endswith("-untrained")],
        "same order": [f"{measure}: {a} − {b}" for measure, a, b in same_order()],
    }
    return Study(
        values,
        groups,
        trainings_of(results),
        undecided,
        printed={  # on NQ320K and, if printed, on MS MARCO
            measure: {s: [t[s][n] / 100 for t in (NQ320K, MS_MARCO) if s in t] for s in NQ320K}
            for n, measure in enumerate(RECALLS)
        },
        parts={system: [SYSTEMS[system]] for system in results if system != BM25},
        counts={"storage": cells} if (cells := storage(results, documents)) else {},
    )


def same_order() -> Iterator[tuple[str, str, str]]:
    """Yield (measure, better system, worse system) where NQ320K and MS MARCO agree on the order."""
    for a, b in permutations(MS_MARCO, 2):
        for n, measure in enumerate(RECALLS):
            if all(table[a][n] > table[b][n] for table in (NQ320K, MS_MARCO)):
                yield measure, a, b


def storage(results: TaskResults, documents: int) -> dict[str, str]:
    """Compute how many documents fill an index of each dense system as large as the smallest decoder.

    Both kinds of system encode queries, so encoders are not counted. A decoder's size hardly depends on the
    number of documents, which is `documents` in these results.
    """
    sizes = {system: seeds[0]["bytes"] for system, seeds in results.items() if seeds[0]["bytes"]}
    written = [s for s in sizes if SYSTEMS.get(s, "").partition("-")[0] in GENERATIVE]
    dense = [system for system in ("S-T5", "T5-ColBERT") if system in sizes]
    if not written or not dense:
        return {}
    least = min(written, key=lambda system: sizes[system])
    crossings = [float(f"{documents * sizes[least] / sizes[system]:.2g}") for system in dense]
    return {
        "quantity": f"documents whose {' / '.join(dense)} index is as large as {least}'s decoder",
        "measured": " / ".join(f"{crossing:,.0f}" for crossing in crossings),
        "sample": f"measured with {documents:,} documents",
        "verdict": f"{UNDECIDED}: depends on the number of documents",
    }


def report(data: StudyData, results: TaskResults) -> tuple[str, dict[str, Section]]:
    settings: Settings = data.settings
    study = study_of(results, len(data.collection.corpus)).with_queries(results[BM25][0]["queries"], data)
    rule = (
        f"One family of tests. A system with less than {LEARNED:.0%} of BM25's R@10 has not learned enough "
        "to be compared."
    )
    seal = f", SEAL with {SEAL_BEAMS}" if any("SEAL" in system for system in results) else ""
    headings = {
        "table6": (
            "What §7.3 says of PAWA and NP-decoding, and what we measured",
            "The paper compares DSI-PAWA with DSI, which also lacks the place-specific digits. Its control, "
            "DSI-place, has them.",
        ),
        "controls": (
            "Controls, which the paper does not have",
            "What PAWA alone brings, what place-specific digits with a softmax of each place bring, and what "
            "a trained model brings to SEAL's keys.",
        ),
        "table8": (
            "The order of the systems (Table 8)",
            "Every two systems whose order is the same on NQ320K and on MS MARCO.",
        ),
        "table7": (
            "In-batch negatives and pairs, and another backbone (Table 7)",
            "Pairs: the loss of ColBERTv1, one hard negative of BM25 and no others. ColBERT and DPR come "
            f"from {settings.second!r}, the others, named as in the paper, from {settings.backbone!r}.",
        ),
        "search": (
            "What decoding token by token costs (Eq. 22)",
            f"Greedy, with {settings.beams} beams, and log p of every document, for the first {SEARCHED} "
            "queries at most.",
        ),
    }
    sections = {
        f"claims_{family}": study.section("wu2024", family, f"{rule} {text}", heading)
        for family, (heading, text) in headings.items()
    }
    sections["added"] = Section(
        "Documents added without training",
        f"{HALF} was trained on every other document. Queries whose relevant documents are all among "
        "these, or all among the others, are apart: the row of GENRE, trained on all, is the control.",
        of_added(results, data, MEASURES) if HALF in results else (),
    )
    sections["retrieve"] = Section(
        "End to end (Tables 6 to 8)",
        f"Decoders search with {settings.beams} beams{seal}. paper: its R@1/R@10 on NQ320K in percent, "
        "of T5-base and from several sources. MB: the index, or the decoder's weights, identifiers and "
        "trie; encoders, which both kinds need for queries, are left out.",
        [
            {"system": system}
            | {measure: at_path(seeds, "retrieve", measure) for measure in MEASURES}
            | {"MB": f"{seeds[0]['bytes'] / 1e6:.1f}" if seeds[0]["bytes"] else "–"}
            | {"paper": "/".join(map(str, NQ320K.get(system, ()))) or "–"}
            for system, seeds in results.items()
        ],
    )
    return sample(data, results), sections


def measure_system(data: StudyData, system: str, models: list[Any]) -> Measured:
    """Return each search's value for every measure and test query; without a model, BM25 is measured.

    With a trained SEAL, `models` also contains its untrained model. Each searches the dev queries, because
    SEAL does not rank by the score that training maximises (by which `fit_pairs` chooses the kept state).
    """
    queries = data.test.queries
    corpus = data.collection.corpus
    size = 0
    if not models:
        runs = {"retrieve": data.bm25.search(queries, 10)}
        size = data.bm25.size_in_bytes()
    elif system == CONTROL:
        runs = {"retrieve": query_keys(models[0], queries)}
    elif isinstance(models[0], Generative):
        runs = generative_runs(models[0], data)
        size = GenerativeRetriever(models[0]).size_in_bytes()
    else:
        retriever = retriever_of(models[0], corpus)
        runs = {"retrieve": retriever.search(queries, 10)}
        size = retriever.size_in_bytes()
    recalls: Measured = {
        stage: values_of(run, data.test if stage == "retrieve" else data.test.only(run), MEASURES)
        for stage, run in runs.items()
    }
    values = recalls | {"queries": data.measured_queries, "bytes": size}
    if len(models) < 2:
        return values
    dev = {}
    dev_sample = dev_queries(data.dev, DEV_QUERIES)
    sides = zip(("trained", "untrained"), models, strict=True)
    for side, model in sides if dev_sample else ():
        model.settings = replace(model.settings, beams=SEAL_BEAMS)
        run = GenerativeRetriever(model).search(dev_sample, 10)
        dev[side] = values_of(run, data.dev.only(dev_sample), ["nDCG@10"])["nDCG@10"]
    return values | {"training": {SYSTEMS[system]: {DEV: dev, "searched": True}}}


def generative_runs(model: Generative, data: StudyData) -> dict[str, Run]:
    """Run the beam search and, for identifiers in a trie, also greedy search and scoring of all documents.

    Models with cluster names run only the beam search, because a search takes the best of several spellings
    of a name.
    """
    queries = data.test.queries
    words = model.identifiers.end is None

    def search(beams: int) -> Run:
        model.settings = replace(model.settings, beams=beams)
        return GenerativeRetriever(model).search(queries, 10)

    runs = {"retrieve": search(SEAL_BEAMS if words else data.settings.beams)}
    if not words and model.clusters is None:
        first = data.measured_queries[:SEARCHED]
        pool = {q: dict.fromkeys(data.collection.corpus.ids, 0.0) for q in first}
        ranked = GenerativeRetriever(model).rerank(queries, pool)
        runs["exhaustive"] = {q: dict(islice(scores.items(), 10)) for q, scores in ranked.items()}
        greedy = search(1)
        runs["greedy"] = {q: greedy[q] for q in first}
    return runs


def query_keys(model: Generative, queries: Mapping[str, str]) -> Run:
    """Rank all documents that share an n-gram with the query by SEAL's score, with p = ½ for each n-gram."""
    ids = model.identifiers
    index = NGramIndex.build(ids.tokens, ids.offsets)
    run: Run = {}
    for query, text in queries.items():
        states = query_states(model.tokenizer, index, text)
        scores = seal_scores(index, states, np.full(len(states), np.log(0.5)))
        run[query] = {ids.documents[n]: score for n, score in scores.items()}
    return run
