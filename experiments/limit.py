"""With one query for every set of k documents (LIMIT), can a paradigm answer all? Is dimension the limit?

The experiments of Weller et al. 2025, "On the Theoretical Limitations of Embedding-Based Retrieval", are
compared with the laws of `theory/capacity.py`:

- paradigms: queries "Who likes WORD?" over documents that list what a person likes; each word occurs in a
  different set of k documents. compare.py measures all systems, untrained and after training on queries for
  other words.
- free: vectors without text are trained directly on the relevance judgments, for one vector and for each
  alignment A; the critical n is the largest number of documents for which all sets are answered.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from math import comb
from pathlib import Path
from typing import Any, Literal

from studies.settings import DENSE, Backbone, Results, Seed, Training, at_least, different, launch

from paradigms.io.command_line import flags


@flags(steps=300, trained_layers=0, tracker="none")
class Settings(Results, Training, Backbone, Seed):
    """Settings for the collection, the compared systems and the free vectors."""

    parts: list[Literal["paradigms", "free"]] = field(default_factory=lambda: ["paradigms", "free"])
    """parts to run: paradigms, free, or both"""
    documents: int = 46
    """n, the number of documents with queries; the default is the paper's small collection"""
    relevant: int = 2
    """k, the number of relevant documents per query"""
    distractors: int = 0
    """number of documents without queries: persons who like as many other words"""
    dislikes: bool = False
    """add a hard negative for each document: a person who dislikes the same words"""
    systems: list[str] | dict[str, dict[str, Any]] = field(default_factory=lambda: [*DENSE])
    """systems as in compare.py: paradigms, or a mapping from names to settings. Decoders of identifiers:
    '{"dsi-atomic": {"paradigm": "dsi", "options": {"identifiers": "atomic", "softmax": "place"}},
    "dsi-residual": {"paradigm": "ripor", "options": {"levels": 2, "codes": 8}}}'"""
    options: dict[str, Any] = field(default_factory=lambda: {"document_length": 192})
    """settings of every paradigm"""
    dimensions: list[int] = field(default_factory=lambda: [2, 3, 4, 5])
    """h, the dimensions of the free vectors"""
    tokens: list[int] = field(default_factory=lambda: [2])
    """M, the number of vectors per free document, for alignments that use several vectors"""
    free_steps: int = 1000
    """maximum steps of one optimisation, which ends once all sets are answered"""
    largest: int = 26
    """maximum number of documents in the part free; time and memory grow with its cube"""
    seeds: int = 3
    """number of seeds of free vectors, trained in parallel; words, splits and all else have `seed`"""

    def __post_init__(self) -> None:
        super().__post_init__()
        different(self, "parts", "dimensions", "tokens")
        at_least(self, free_steps=1, seeds=1, relevant=1, dimensions=1, tokens=1, distractors=0)
        at_least(self, largest=2 * self.relevant if "free" in self.parts else 1)
        if self.relevant > self.documents / 2:
            raise SystemExit(f"relevant must be at most documents / 2, got {self.relevant}")


launch(__name__, Settings, __doc__)  # before the slow imports

import compare
import numpy as np
from matplotlib.figure import Figure
from papers.weller2025.free_vectors import DEVICE, draw_picture, fits, free
from studies.claims import Study
from studies.curves import Curves
from studies.gains import DEV, training_section
from studies.model_runs import training_of, values_of
from studies.pages import Measured, Rows, Section, publish, resampled

from paradigms.data import Collection, Corpus, Problems, Split, load_collection, read_run
from paradigms.data.beir import write_folder
from paradigms.encoder.backbone import load_tokenizer
from paradigms.encoder.sources import packaged
from paradigms.evaluate import on_split
from paradigms.train.script import begin
from theory import capacity

SEVERAL = ["colbert", "aligner", "xtr", "coil"]  # systems of several vectors in the claims
COMPARED = "The queries of the split test; 95% intervals over queries. BM25 is not trained."
LAWS = (
    "2k numbers answer all sets of k of any n documents (Gale 1963; arXiv:2601.20844), and no fewer do from "
    "n = 3k on; their cosine gap falls like n^(−2k). random: dimensions in which some random projection of "
    "one-hot documents answers all. bits: of each document, if its queries are encoded without knowledge of "
    "what is relevant to them. Proofs: theory/capacity.py."
)


def main(settings: Settings) -> None:
    accelerator, _ = begin(settings)
    compared_rows: Rows = []
    if "paradigms" in settings.parts:
        compared_rows, queries, trainings = compared(settings)
    free_rows = free(settings) if "free" in settings.parts else []
    measure = f"R@{settings.relevant}"
    sections = dict[str, Section]()
    if compared_rows:
        sections["claims"] = study(compared_rows, measure, queries, trainings).section("weller2025", "limit")
        sections["training"] = training_section(trainings)
        figure = compared_figure(compared_rows, measure)
        sections["paradigms"] = Section("LIMIT: every paradigm", COMPARED, compared_rows, figure)
    sections["laws"] = Section("What is true of dimension", LAWS, laws(settings))
    if free_rows:
        sections["free"] = Section(
            "Free vectors: the critical n",
            f"The largest n at which all sets of {settings.relevant} of n documents are answered: mean "
            f"over {settings.seeds} seed(s) [least, most]. ≥: a seed stopped at --largest. random: the "
            "n, at most --largest, up to which some random projection of one-hot documents answers all, "
            f"by the union bound. From h = 2k = {2 * settings.relevant} on, some vectors answer every n.",
            free_rows,
            draw_picture(free_rows, settings),
        )
        sections["fits"] = Section(
            "Fit of the critical n", "n = c · h^p by least squares of the logarithms.", fits(free_rows)
        )
    documents = settings.documents if compared_rows else "n"
    distractors = f" and {settings.distractors:,} distractors" if settings.distractors else ""
    summary = f"All sets of {settings.relevant} of {documents} documents{distractors}, on {DEVICE}."
    if compared_rows:
        summary += f" Intervals (95%) resample {resampled(1)}."
    publish(settings, "LIMIT: a query for every set", summary, sections, accelerator)
    accelerator.end_training()


def study(
    rows: Rows, measure: str, queries: Sequence[str], trainings: Mapping[str, Sequence[Measured]]
) -> Study:
    """Return the values of `measure` for each query, with the groups of the claims."""
    names = (f"{row['system']}, {row['training']}" for row in rows)
    values = {name.removesuffix(", –"): row[measure] for name, row in zip(names, rows, strict=True)}
    groups = {"R@k": [measure], "several": SEVERAL, "training": ["untrained", "trained"]}
    return Study({measure: values}, groups, trainings, queries=queries)


def laws(settings: Settings) -> Rows:
    k = settings.relevant
    rows = []
    for n in sorted({settings.documents, 2 * settings.documents, 1000, 50_000}):
        queries = comb(n, k)
        row: dict[str, Any] = {"n": n, "k": k, "queries": queries, "least h": 2 * k}
        if k == 2:
            row["gap at h = 4"] = f"{capacity.moment_gap(n):.1e}"
        row["random h"] = capacity.random_dimension(n, k)
        row["bits / document"] = capacity.pattern_bits(n, queries, k, distinct=True)
        rows.append(row)
    return rows


def collection(settings: Settings) -> Collection:
    """Make the collection of n documents "Person 7 likes …", with one word for each set of k documents.

    Words are plural nouns from the offline encoder's vocabulary, so that each word is one token. Distractors
    like words that no query asks for. A tenth of the queries goes to dev; train and test halve the others.
    Raises SystemExit if there are too few words.
    """
    sets = capacity.all_sets(settings.documents, settings.relevant)
    vocabulary = load_tokenizer(packaged("offline")).get_vocab()
    plural = re.compile(r"[a-z]{3,}[a-rt-z]s")
    words = sorted(word for word in vocabulary if plural.fullmatch(word) and word[:-1] in vocabulary)
    rng = np.random.default_rng(settings.seed)
    words = [words[i] for i in rng.permutation(len(words))]
    of_each = comb(settings.documents - 1, settings.relevant - 1)
    needed = len(sets) + of_each * (settings.distractors > 0)
    if len(words) < needed:
        raise SystemExit(f"documents: {needed:,} words are needed; there are {len(words):,}")
    likes: list[list[str]] = [[] for _ in range(settings.documents)]
    for word, documents in zip(words, sets, strict=False):
        for document in documents:
            likes[document].append(word)
    for _ in range(settings.distractors):
        likes.append(rng.choice(words[len(sets) :], of_each, replace=False).tolist())
    people = rng.permutation(len(likes)) + 1
    rows = zip(people, likes, strict=True)
    texts = [f"Person {person} likes {', '.join(rng.permutation(likes))}." for person, likes in rows]
    ids = [f"person{person}" for person in people]
    if settings.dislikes:
        ids += [f"dislikes{n}" for n in range(len(texts))]
        texts += [text.replace(" likes ", " dislikes ") for text in texts]
    order = rng.permutation(len(sets))
    ends = [0, len(sets) // 10, len(sets) // 2 + len(sets) // 20, len(sets)]
    splits = {}
    for name, start, end in zip(("dev", "train", "test"), ends, ends[1:], strict=False):
        queries = {f"q{i}": f"Who likes {words[i]}?" for i in order[start:end]}
        judged = {f"q{i}": {ids[document]: 1 for document in sets[i]} for i in order[start:end]}
        splits[name] = Split(queries, judged)
    return Collection(f"limit-{settings.documents}", Corpus(ids, texts), splits, Problems(), "")


def compared_figure(rows: Rows, measure: str) -> Figure:
    bm25, *others = rows
    systems = list(dict.fromkeys(row["system"] for row in others))
    series: dict[str, list[Any]] = {}
    for row in others:
        series.setdefault(row["training"], []).append(row[measure])
    level = {"bm25": [bm25[measure]] * len(systems)}
    return Curves("system", systems, {measure: series}, dotted=level, joined=False).draw()


def compared(settings: Settings) -> tuple[Rows, list[str], dict[str, list[Measured]]]:
    """Measure R@k, R@10 and nDCG@10 of every system with compare.py, untrained and trained.

    Returns the rows, the test queries, and what training did: "system, trained" -> "kept step", and the dev
    values (`DEV`) of searching all documents.
    """
    folder = Path(settings.output, "collection")
    data = collection(settings)
    # compare.py does not choose states by the splits of `also`, so a copy of dev is searched.
    data.splits["searched"] = data.splits["dev"]
    write_folder(data, folder)
    splits = load_collection(str(folder)).splits
    test = splits["test"]
    measures = (f"R@{settings.relevant}", "R@10", "nDCG@10")
    dev: dict[str, dict[str, list[float]]] = {}  # system -> training -> nDCG@10
    names = ("systems", "options", "backbone", "batch_size", "learning_rate", "trained_layers", "precision")
    rows: Rows = []
    queries = list[str]()
    trainings: dict[str, list[Measured]] = {}
    for training, steps in {"untrained": 0, "trained": settings.steps}.items():
        if training == "trained" and not steps:
            continue
        output = Path(settings.output, training)
        options = {name: getattr(settings, name) for name in names} | {"collection": str(folder)}
        options |= {"output": str(output), "steps": steps, "evaluate_every": max(1, steps // 3)}
        options |= {"dev_queries": len(splits["dev"].queries), "also": ["searched"]}
        comparison = compare.Settings(**options, seeds=[settings.seed], tracker="none")
        compare.main(comparison)
        for name in ([] if rows else ["bm25"]) + list(comparison.chosen):
            of_run = on_split(read_run(output / "runs" / f"{name}.retrieve.run"), test, measures)
            queries = of_run.queries
            row = {"system": name, "training": "–" if name == "bm25" else training}
            rows.append(row | {m: of_run.values[m][None] for m in measures})
            on_dev = read_run(output / "runs" / f"{name}.searched.run")
            dev.setdefault(name, {})[training] = values_of(on_dev, splits["dev"], ["nDCG@10"])["nDCG@10"]
            if training == "trained":
                searched = training_of(output / name) | {DEV: dev[name], "searched": True}
                trainings[f"{name}, trained"] = [searched]
    return rows, queries, trainings
