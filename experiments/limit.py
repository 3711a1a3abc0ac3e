"""With one query for every set of k documents (LIMIT), which paradigms answer all?

The experiment of Weller et al. 2025, "On the Theoretical Limitations of Embedding-Based Retrieval": queries
"Who likes WORD?" over documents that list what a person likes; each word occurs in a different set of k
documents. compare.py measures all systems, untrained and after training on queries for other words. What the
dimension of vectors limits is proved in `theory/capacity.py`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from math import comb
from pathlib import Path
from typing import Any

from studies.settings import DENSE, Backbone, Results, Seed, Training, at_least, launch

from paradigms.io.command_line import flags

FEWEST = 6  # queries, of which two train: one has no negative in its batch


@flags(steps=300, trained_layers=0, tracker="none")
class Settings(Results, Training, Backbone, Seed):
    """Settings for the collection and the compared systems."""

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

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, relevant=1, distractors=0)
        if self.relevant > self.documents / 2:
            raise SystemExit(f"relevant must be at most documents / 2, got {self.relevant}")
        if (queries := comb(self.documents, self.relevant)) < FEWEST:
            raise SystemExit(
                f"documents={self.documents} give {queries} queries: at least {FEWEST} are needed"
            )


launch(__name__, Settings, __doc__)  # before the slow imports

import compare
import numpy as np
from matplotlib.figure import Figure
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


def main(settings: Settings) -> None:
    accelerator, _ = begin(settings)
    rows, queries, trainings = compared(settings)
    measure = f"R@{settings.relevant}"
    sections = {
        "claims": study(rows, measure, queries, trainings).section("weller2025", "limit"),
        "training": training_section(trainings),
        "paradigms": Section("LIMIT: every paradigm", COMPARED, rows, compared_figure(rows, measure)),
    }
    distractors = f" and {settings.distractors:,} distractors" if settings.distractors else ""
    summary = (
        f"All sets of {settings.relevant} of {settings.documents} documents{distractors}. Intervals (95%) "
        f"resample {resampled(1)}."
    )
    publish(settings, "LIMIT: a query for every set", summary, sections, accelerator)
    accelerator.end_training()


def study(
    rows: Rows, measure: str, queries: Sequence[str], trainings: Mapping[str, Sequence[Measured]]
) -> Study:
    """Return the values of `measure`, R@k, and of R@10 for each query, with the groups of the claims."""
    names = [f"{row['system']}, {row['training']}".removesuffix(", –") for row in rows]
    recalls = list(dict.fromkeys([measure, "R@10"]))
    values = {m: {name: row[m] for name, row in zip(names, rows, strict=True)} for m in recalls}
    groups = {"R@k": [measure], "recalls": recalls, "several": SEVERAL, "training": ["untrained", "trained"]}
    return Study(values, groups, trainings, queries=queries)


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
    ends = [0, max(1, len(sets) // 10), len(sets) // 2 + len(sets) // 20, len(sets)]
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
        if status := compare.main(comparison):  # stopped: the same command resumes
            raise SystemExit(status)
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
