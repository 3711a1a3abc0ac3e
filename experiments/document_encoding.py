"""Do PAWA and NP-decoding raise generative retrieval to ColBERT's quality? Wu et al. 2024, Tables 6 to 8.

Wu et al. 2024 (arXiv:2404.00684), §7.3 and appendix D: DSI, GENRE and SEAL with and without PAWA and
NP-decoding are compared end to end with DPR, S-T5, ColBERT and BM25, on the same queries and documents.
Neural systems are named after the paper's backbone, T5; DPR and Table 7's second ColBERT use another
backbone.

DSI-place is NCI's decoder without PAWA: place-specific digits, and a softmax over the digits of each place.
DSI-atomic has one token per document, which is single-vector retrieval with DSI's decoder, pairs and steps.
RIPOR has residual-quantised identifiers; PAG also has a set of tokens per document, which guides the search.
Untrained systems are measured too. T5-SEAL ranks as in the authors' code, by SEAL's keys with 5 beams and
without titles; "SEAL without a model" uses the query's n-grams as keys, each with probability ½. Decoding
token by token (Eq. 22) is compared with scoring all documents. "GENRE, half added" is trained on every other
document; the titles of the remaining documents are added without training (dynamic corpora, as in DSI++:
arXiv:2212.09744).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from itertools import islice, permutations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from studies.settings import PairSettings, known, launch

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
    "PAG": "pag",
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
    "PAG, untrained": "pag-untrained",
    "GENRE, untrained": "genre-untrained",
    "T5-SEAL, untrained": "seal-untrained",
    "T5-SEAL-NP": "seal-np-base",
    "T5-SEAL-PAWA": "seal-pawa",
}


@flags()
class Settings(PairSettings):
    """Settings for models, training, and evaluation queries."""

    systems: list[str] = field(default_factory=lambda: list(SYSTEMS))
    """systems, named as in the tables; BM25 is always included. By default all: those of the second backbone
    if it differs, and ASYNC if encoders are trained"""
    queries: int = 400
    """test queries to measure, drawn at random; 0: all"""
    beams: int = 20
    """beams of DSI's and GENRE's search; SEAL has 5 beams, as in the authors' code"""

    def __post_init__(self) -> None:
        super().__post_init__()
        known(self, "systems", SYSTEMS)
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

import numpy as np
from papers.wu2024 import trained_pairs
from papers.wu2024.trained_pairs import TaskResults, half_of, sample, study, trainings_of
from studies.curves import Curves, at_path
from studies.model_runs import DEV, LEARNED, StudyData, unlearned, unmoved, values_of
from studies.pages import Measured, Section, printed, row_without_test, verdicts

from paradigms import GENERATIVE, Generative
from paradigms.data import Run
from paradigms.evaluate import seeds_interval
from paradigms.evaluate.claims import CONTRADICTED, READOUT, REPRODUCED, TRAINING, Claim
from paradigms.generative.ngrams import NGramIndex
from paradigms.generative.retriever import GenerativeRetriever
from paradigms.generative.seal import query_states, seal_scores
from paradigms.io.checks import read_json
from paradigms.retrieve import retriever_of
from paradigms.train.fit import DevMeasure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BM25, CONTROL, HALF = "BM25", "SEAL without a model", "GENRE, half added"
SEAL_BEAMS = 5
SEARCHED = 100  # maximum number of queries for greedy search and for scoring all documents
MEASURES = ("R@1", "R@10", "RR@10", "nDCG@10")
RECALLS = ("R@1", "R@10")
# All three searches need identifiers in a trie; other systems have only the middle one.
SEARCHES = {"greedy": "greedy", "retrieve": "beams", "exhaustive": "all documents"}
MARGIN = 0.02  # differences of R@1 below this are "similar results"; the paper's are -0.009 and +0.011
COLBERT = "T5-ColBERT"
PRINTED = printed("wu2024")
NQ320K, MS_MARCO = PRINTED["nq320k"], PRINTED["ms marco"]
# Pairs that the paper compares: a system with a document encoding, and a system without.
ENCODED = (("DSI-PAWA", "DSI"), ("GENRE-NP-BASE", "GENRE"), ("GENRE-NP-ASYNC", "GENRE"))
# Not in the paper: PAWA alone, place-specific digits with their softmax alone, a trained model for SEAL. The
# dense opponent with the same decoder, pairs and steps is DSI-atomic, with one vector per document.
CONTROLS = (
    ("DSI-PAWA", "DSI-place"),
    ("DSI-place", "DSI"),
    ("T5-SEAL", CONTROL),
    ("DSI-place", "DSI-atomic"),
    ("RIPOR", "DSI-atomic"),
    ("PAG", "DSI-atomic"),
    ("PAG", "RIPOR"),
    ("RIPOR", "DSI-place"),
)

Values = dict[str, dict[str, np.ndarray]]  # system -> measure -> [seeds, queries]


def main(settings: Settings) -> None:
    tasks: dict[str, tuple[str, ...]] = {BM25: ()}
    for system in (system for system in SYSTEMS if system in settings.systems):
        name = SYSTEMS[system]
        by_keys = name.startswith("seal") and not name.endswith("untrained")
        tasks[system] = (name, f"{name}-untrained") if by_keys else (name,)
        for file in (Path(settings.output, f"seed-{seed}", f"{system}.json") for seed in settings.seeds):
            if by_keys and file.is_file() and not read_json(file)["training"][name].get("searched"):
                raise SystemExit(
                    f"{file} has dev values of an earlier version: delete it, to measure it again"
                )
    study(settings, "Document encodings", tasks, measure, report, half=True)


def measure(settings: Settings, system: str, _: int, data: StudyData, models: list[Any]) -> Measured:
    """Return each search's value for every measure and test query; without a model, BM25 is measured.

    With a trained SEAL, `models` also contains its untrained model. Each searches the dev queries, because
    SEAL does not rank by the score that training maximises (by which `fit_pairs` chooses the kept state).
    """
    queries, corpus, size = data.test.queries, data.collection.corpus, 0
    if not models:
        runs, size = {"retrieve": data.bm25.search(queries, 10)}, data.bm25.size_in_bytes()
    elif system == CONTROL:
        runs = {"retrieve": query_keys(models[0], queries)}
    elif SYSTEMS[system].partition("-")[0] in GENERATIVE:
        runs, size = (
            generative_runs(models[0], data, settings),
            GenerativeRetriever(models[0]).size_in_bytes(),
        )
    else:
        retriever = retriever_of(models[0], corpus)
        runs, size = {"retrieve": retriever.search(queries, 10)}, retriever.size_in_bytes()
    recalls: Measured = {
        stage: values_of(run, data.test if stage == "retrieve" else data.test.only(run), MEASURES)
        for stage, run in runs.items()
    }
    measured = recalls | {"queries": data.measured, "bytes": size}
    if len(models) < 2:
        return measured
    dev, drawn = {}, DevMeasure(corpus, data.dev, data.dev_run, trained_pairs.DEV_QUERIES, "no").queries
    sides = zip(("trained", "untrained"), models, strict=True)
    for side, model in sides if drawn else ():
        model.settings = replace(model.settings, beams=SEAL_BEAMS)
        run = GenerativeRetriever(model).search(drawn, 10)
        dev[side] = values_of(run, data.dev.only(drawn), ["nDCG@10"])["nDCG@10"]
    return measured | {"training": {SYSTEMS[system]: {DEV: dev, "searched": True}}}


def generative_runs(model: Generative, data: StudyData, settings: Settings) -> dict[str, Run]:
    """Run the beam search and, for identifiers in a trie, also greedy search and scoring of all documents.

    Models with cluster names run only the beam search, because a search takes the best of several spellings
    of a name.
    """
    queries, words = data.test.queries, model.identifiers.end is None

    def search(beams: int) -> Run:
        model.settings = replace(model.settings, beams=beams)
        return GenerativeRetriever(model).search(queries, 10)

    runs = {"retrieve": search(SEAL_BEAMS if words else settings.beams)}
    if not words and model.clusters is None:
        some = data.measured[:SEARCHED]
        pool = {q: dict.fromkeys(data.collection.corpus.ids, 0.0) for q in some}
        best = GenerativeRetriever(model).rerank(queries, pool)
        runs["exhaustive"] = {q: dict(islice(scores.items(), 10)) for q, scores in best.items()}
        greedy = search(1)
        runs["greedy"] = {q: greedy[q] for q in some}
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


def unlearned_of(values: Values, systems: Sequence[str]) -> str:
    """Return the first system that has learned too little to represent its paradigm, or "" if there is none.

    The R@10 of such a system is less than `LEARNED` times BM25's, or not above the R@10 of the control
    without a model.
    """
    means = {system: float(values[system]["R@10"].mean()) for system in (*systems, BM25)}
    for system in systems:
        control = CONTROL if SYSTEMS.get(system, "").startswith("seal") and system != CONTROL else ""
        if control in values:
            gain = seeds_interval(values[system]["R@10"] - values[control]["R@10"])
            if gain.low <= 0:
                return f"{system}, not above {control},"
    return unlearned(means, means[BM25])


def claims(values: Values, trainings: Mapping[str, Sequence[Measured]]) -> dict[str, list[Claim]]:
    """Return the paper's claims about the measured systems, by table; each table is a family of tests.

    The claims are about training. A model that training did not improve on dev queries is judged only in the
    controls, which test exactly this.
    """
    tables: dict[str, list[Claim]] = {"table6": [], "table7": [], "table8": [], "controls": []}

    def claim(
        table: str, place: str, statement: str, a: str, b: str, measures: Iterable[str], **how: Any
    ) -> None:
        """Add the claim that mean(a) > mean(b) − margin. printed: the paper's gains at each of RECALLS."""
        for measure in measures if {a, b} <= values.keys() else ():
            printed = how.get("printed", ("", ""))[RECALLS.index(measure)]
            contrast, quantity = values[a][measure] - values[b][measure], f"{measure}, {a} − {b}"
            more: dict[str, Any] = {"margin": how.get("margin", 0.0)}
            if place:
                models = {SYSTEMS[x]: trainings.get(SYSTEMS[x], ()) for x in (a, b) if x != BM25}
                still = unmoved({name: seeds for name, seeds in models.items() if seeds})
                more |= {"unlearned": unlearned_of(values, (a, b)), "about": TRAINING, "unmoved": still}
            where = place and f"Wu et al. 2024, {place}"
            tables[table].append(Claim(where, statement, quantity, contrast, printed=printed, **more))

    improve = "PAWA and NP-decoding both “greatly improve” the performance"
    similar = "Recall@1 has “similar results” to T5-ColBERT's"
    gap = "“a large gap” to T5-ColBERT remains in Recall@10"
    for encoded, base in ENCODED:
        claim("table6", "§7.3", improve, encoded, base, RECALLS, printed=gains(encoded, base))
        near = {"printed": gains(encoded, COLBERT), "margin": MARGIN}
        claim("table6", "§7.3", similar, encoded, COLBERT, ["R@1"], **near)
        claim("table6", "§7.3", gap, COLBERT, encoded, ["R@10"], printed=gains(COLBERT, encoded))
    batch = "in-batch negatives do not decrease the performance “much”"
    for name in ("ColBERT", COLBERT):
        near = {"printed": gains(name, f"{name}, pairs"), "margin": MARGIN}
        claim("table7", "Appendix D", batch, name, f"{name}, pairs", RECALLS, **near)
    for a, b in (("S-T5", BM25), ("ColBERT, pairs", "S-T5"), (COLBERT, "ColBERT")):
        claim("table7", "Table 7", f"{a} > {b}", a, b, RECALLS, printed=gains(a, b))
    # A pair is used if both collections agree on the order; the smaller difference is printed.
    for a, b in permutations(MS_MARCO, 2):
        least = (
            np.min(
                [np.subtract(printed_values[a], printed_values[b]) for printed_values in (NQ320K, MS_MARCO)],
                axis=0,
            )
            / 100
        )
        ordered = [measure for measure, gain in zip(RECALLS, least, strict=True) if gain > 0]
        claim("table8", "Table 8", f"{a} > {b}", a, b, ordered, printed=[f"≥ {gain:+.3f}" for gain in least])
    for a, b in CONTROLS:
        claim("controls", "", f"{a} > {b}", a, b, RECALLS)
    return tables


def storage(sizes: Mapping[str, int]) -> list[dict[str, str]]:
    """Make rows that compare dense systems' sizes with that of the smallest generative system.

    Sizes are exact, so they need no significance test.
    """
    written = {s: n for s, n in sizes.items() if n and SYSTEMS.get(s, "").partition("-")[0] in GENERATIVE}
    if not written:
        return []
    least = min(written, key=lambda system: written[system])
    return [
        row_without_test(
            "Wu et al. 2024, §2",
            "generative retrieval needs “significantly less disk storage space”",
            REPRODUCED if written[least] < sizes[dense] else CONTRADICTED,
            quantity=f"MB, {least} / {dense}",
            measured=f"{written[least] / 1e6:.1f} / {sizes[dense] / 1e6:.1f}",
            sample="this collection",
        )
        for dense in ("S-T5", COLBERT)
        if sizes.get(dense)
    ]


def of_added(values: Values, data: StudyData, queries: Sequence[str]) -> list[dict[str, Any]]:
    """Make two rows for each system: one for learned documents and one for added documents.

    The system `HALF` was trained on learned documents and received only the titles of added documents. A
    query belongs to a row if all of its relevant documents are of that kind.
    """
    if HALF not in values:
        return []
    learned = {*half_of(data).collection.corpus.ids}
    relevant = [{id for id, grade in data.test.judgements[q].items() if grade > 0} for q in queries]
    kinds = {
        "learned": [ids <= learned for ids in relevant],
        "added": [not ids & learned for ids in relevant],
    }
    return [
        {"system": system, "documents": kind, "queries": sum(which)}
        | {measure: by_query[:, which] for measure, by_query in of_system.items()}
        for system, of_system in values.items()
        for kind, which in kinds.items()
    ]


def drawn(values: Values) -> "Figure":
    """Plot R@1 and R@10 of every system next to the paper's values."""
    here = {m: {"here": [of_system[m] for of_system in values.values()]} for m in RECALLS}
    printed = {
        measure: {
            name: [table[system][n] / 100 if system in table else None for system in values]
            for name, table in (("NQ320K", NQ320K), ("MS MARCO", MS_MARCO))
        }
        for n, measure in enumerate(RECALLS)
    }
    return Curves("system", [*values], here, printed=printed, joined=False).draw()


def gains(a: str, b: str) -> list[str]:
    """Format the paper's gains of a over b on NQ320K at each of RECALLS, for `Claim.printed`."""
    both = zip(NQ320K[a], NQ320K[b], strict=True) if {a, b} <= NQ320K.keys() else ()
    return [f"{(x - y) / 100:+.3f}" for x, y in both] or [""] * len(RECALLS)


def claims_of_the_search(values: Mapping[str, Values]) -> list[Claim]:
    """Return claims about the cost of decoding token by token (Eq. 22), relative to scoring all documents.

    They compare searches with one model, so training need not have moved it. Untrained systems, whose
    rankings mean nothing, are left out.
    """
    usable = "greedy search or beam search “can be used” to approximate"
    costly = "decoding token by token “may decrease the performance”"
    claims = []
    for system, best in values["exhaustive"].items():
        if SYSTEMS[system].endswith("-untrained"):
            continue
        count = best["R@10"].shape[1]
        how: dict[str, Any] = {"unlearned": unlearned_of(values["retrieve"], [system]), "about": READOUT}
        place = "Wu et al. 2024, §5.2.2"
        for way, measure in (("greedy", "R@1"), ("retrieve", "R@1"), ("retrieve", "R@10")):
            lost = values[way][system][measure][:, :count] - best[measure]
            quantity = f"{measure}, {system}, {SEARCHES[way]} − {SEARCHES['exhaustive']}"
            claims.append(Claim(place, usable, quantity, lost, MARGIN, **how))
        quantity = f"R@10, {system}, {SEARCHES['exhaustive']} − {SEARCHES['retrieve']}"
        claims.append(Claim("Wu et al. 2024, §6.3", costly, quantity, -lost, **how))
    return claims


def report(settings: Settings, data: StudyData, results: TaskResults) -> tuple[str, dict[str, Section]]:
    """Return the study's summary, and the page's sections keyed by file name."""
    values: dict[str, Values] = {
        stage: {
            system: {m: at_path(seeds, stage, m) for m in MEASURES}
            for system, seeds in results.items()
            if stage in seeds[0]
        }
        for stage in SEARCHES
    }
    of_tables = claims(values["retrieve"], trainings_of(results))
    clusters = data.clusters(results[BM25][0]["queries"])
    how = (
        f"One family of tests. A system with less than {LEARNED:.0%} of BM25's R@10 has not learned enough "
        "to be compared."
    )
    seal = f", SEAL with {SEAL_BEAMS}" if any("SEAL" in system for system in results) else ""
    return sample(data, settings), {
        "claims_table6": verdicts(
            of_tables["table6"],
            f"{how} Similar is less than {MARGIN} below. The paper compares DSI-PAWA with DSI, which also "
            "lacks the place-specific digits: the controls compare it with DSI-place, which has them.",
            heading="What §7.3 says of PAWA and NP-decoding, and what we measured",
            clusters=clusters,
        ),
        "claims_controls": verdicts(
            of_tables["controls"],
            f"{how} What PAWA alone brings, what place-specific digits with a softmax of each place bring, "
            "and what a trained model brings to SEAL's keys.",
            heading="Controls, which the paper does not have",
            clusters=clusters,
        ),
        "claims_table8": verdicts(
            of_tables["table8"],
            f"Every two systems whose order is the same on NQ320K and on MS MARCO. {how}",
            heading="The order of the systems (Table 8)",
            more=storage({system: seeds[0]["bytes"] for system, seeds in results.items()}),
            clusters=clusters,
        ),
        "claims_table7": verdicts(
            of_tables["table7"],
            f"{how} Not much is less than {MARGIN}. Pairs: the loss of ColBERTv1, one hard negative of BM25 "
            f"and no others. ColBERT and DPR come from {settings.second!r}, the others, named as in the "
            f"paper, from {settings.backbone!r}.",
            heading="In-batch negatives and pairs, and another backbone (Table 7)",
            clusters=clusters,
        ),
        "claims_search": verdicts(
            claims_of_the_search(values),
            f"{how} A search can be used where it loses less than {MARGIN}. Greedy, with {settings.beams} "
            f"beams, and log p of every document, for the first {SEARCHED} queries at most.",
            heading="What decoding token by token costs (Eq. 22)",
            clusters=clusters,
        ),
        "added": Section(
            "Documents added without training",
            f"{HALF} was trained on every other document. Queries whose relevant documents are all among "
            "these, or all among the others, are apart: the row of GENRE, trained on all, is the control.",
            of_added(values["retrieve"], data, results[BM25][0]["queries"]),
        ),
        "retrieve": Section(
            "End to end (Tables 6 to 8)",
            f"Decoders search with {settings.beams} beams{seal}. paper: its R@1/R@10 on NQ320K in percent, "
            "of T5-base and from several sources. MB: the index, or the decoder's weights, identifiers and "
            "trie; encoders that are not trained are left out.",
            [
                {"system": system}
                | cells
                | {"MB": f"{size / 1e6:.1f}" if (size := results[system][0]["bytes"]) else "–"}
                | {"paper": "/".join(map(str, NQ320K.get(system, ()))) or "–"}
                for system, cells in values["retrieve"].items()
            ],
            drawn(values["retrieve"]),
        ),
    }
