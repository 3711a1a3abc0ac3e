"""Measure public checkpoints, each with its own alignment A and with every other A that it admits.

A checkpoint is a folder or a hub name, in any format that can be loaded (paradigms/saving/README.md). Its
documents are encoded once, and every A scores these vectors by exact search. Token vectors are scored with
the checkpoint's own A, q→d (MaxSim), q←d with Z = 1 and with Z = M, and the two best document tokens of each
query token. A model with one vector per text is also scored on the token states that it pools, under these
alignments. For term weights, the only possible A aligns equal ids.

There are two families of tests, each with Holm's correction: all models against BM25, on every collection,
and every other A against the model's own. If a checkpoint cannot be measured on a collection, the report
names this pair, and the remaining pairs are measured.
"""

from dataclasses import field

from studies.settings import Collections, Documents, Queries, Results, different, launch

from paradigms.io.command_line import flags

PUBLIC = [
    "sentence-transformers/all-MiniLM-L6-v2",
    "sentence-transformers/msmarco-distilbert-base-tas-b",
    "BAAI/bge-small-en-v1.5",
    "thenlper/gte-small",
    "naver/splade-cocondenser-ensembledistil",
    "naver/splade-v3-distilbert",
    "prithivida/Splade_PP_en_v1",
    "colbert-ir/colbertv2.0",
    "answerdotai/answerai-colbert-small-v1",
    "lightonai/GTE-ModernColBERT-v1",
]
NANO = ("ArguAna", "FiQA2018", "NFCorpus", "SCIDOCS", "SciFact", "Touche2020")


@flags(collections=[f"hf:sentence-transformers/NanoBEIR-en:Nano{name}" for name in NANO])
class Settings(Results, Collections, Documents, Queries):
    """Settings for checkpoints and collections."""

    checkpoints: list[str] = field(default_factory=lambda: PUBLIC)
    """folders or hub names; offline, offline-splade: from Python packages"""

    def __post_init__(self) -> None:
        super().__post_init__()
        different(self, "checkpoints", "collections")


launch(__name__, Settings, __doc__)  # before the imports that take seconds

from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import Accelerator
from fewer_bytes import sampled
from studies.gains import differences
from studies.model_runs import measured_once, some_queries
from studies.pages import Rows, Section, cell, publish

from paradigms import Paradigm, load
from paradigms.align import AllPairs, DocumentToQuery, QueryToDocument, TopK
from paradigms.baselines.bm25 import BM25
from paradigms.data import Collection, Split
from paradigms.data.identical import own_documents
from paradigms.encoder.text import TextEncoder
from paradigms.encoder.towers import TwoTowers
from paradigms.evaluate import per_query
from paradigms.find import kinds
from paradigms.io.command_line import folder_name
from paradigms.io.terminal import printable
from paradigms.loading import as_paradigm
from paradigms.recipe import Recipe
from paradigms.retrieve import Indexed, Retriever, WithoutOwn
from paradigms.saving.library import LibraryEncoder
from paradigms.train import script

MEASURE = "nDCG@10"
OWN_WEIGHTS = "own"
OTHERS = {
    "q→d": (QueryToDocument(), "one"),
    "q←d, Z = 1": (DocumentToQuery(), "one"),
    "q←d, Z = M": (DocumentToQuery(), "document_tokens"),
    "top-2": (TopK(k=2), "one"),
}
FAILURES = (ValueError, OSError, KeyError, ImportError, RuntimeError)  # of files, formats, the hub and memory
Values = dict[str, list[float]]  # A -> nDCG@10 of each query


def main(settings: Settings) -> None:
    accelerator, console = script.begin(settings)
    results: dict[tuple[str, str], Values] = {}
    missing: list[str] = []
    counts = []
    titles = [title(checkpoint) for checkpoint in settings.checkpoints]
    if twice := {name for name in titles if titles.count(name) > 1}:
        raise SystemExit(f"two checkpoints have the name {twice.pop()}: rename a folder")
    for name in settings.collections:
        collection, split = part(script.open_collection(name, None, console), settings)
        counts.append(
            f"{folder_name(name)} ({len(collection.corpus):,} documents, {len(split.queries)} queries)"
        )
        for checkpoint in ["", *settings.checkpoints]:
            file = Path(settings.output) / folder_name(name) / f"{title(checkpoint)}.json"
            named = {"checkpoint": checkpoint} if checkpoint else {}
            measure = partial(measure_checkpoint, checkpoint, collection, split, settings, accelerator)
            try:
                if checkpoint and not script.content(**named):
                    open_checkpoint(checkpoint)  # downloads what the content is read from
                question: dict[str, Any] = {"checkpoint": checkpoint} | script.content(**named)
                question["collection"] = collection.fingerprint  # of all documents, also of a sample
                question |= {"documents": len(collection.corpus), "queries": list(split.queries)}
                question["precision"] = accelerator.mixed_precision
                results[folder_name(name), title(checkpoint)] = measured_once(file, question, measure)
            except FAILURES as error:
                missing.append(f"{title(checkpoint)} on {folder_name(name)}: {printable(error)}")
                console.print(f"Left out: {missing[-1]}")
    summary = f"Exact search of {'; '.join(counts)}." + "".join(f" Left out: {line}." for line in missing)
    publish(settings, "Checkpoints", summary, report(results))
    accelerator.end_training()


def title(checkpoint: str) -> str:
    """Return the last part of the checkpoint's name, or "bm25" if the name is empty."""
    if not checkpoint:
        return "bm25"
    path = Path(checkpoint)
    return (path.parent if path.name == "checkpoint" else path).name


def part(collection: Collection, settings: Settings) -> tuple[Collection, Split]:
    test = collection.split("test")
    if not settings.documents:
        return collection, some_queries(test, settings.queries)
    limited = replace(settings, queries=settings.queries or len(test.queries))
    rows, split = sampled(collection, limited)  # type: ignore[arg-type]
    corpus = collection.corpus.only(collection.corpus.ids[row] for row in rows)
    return replace(collection, corpus=corpus), split


def measure_checkpoint(
    checkpoint: str, collection: Collection, split: Split, settings: Settings, accelerator: Accelerator
) -> Values:
    """Measure nDCG@10 of each query under every A that the checkpoint ("": BM25) admits."""
    corpus = collection.corpus
    values = dict[str, list[float]]()
    identical = own_documents(corpus, split)

    def add(name: str, retriever: Retriever) -> None:
        run = WithoutOwn(retriever, identical).search(split.queries, 10)
        values[name] = per_query(run, split.judgements, [MEASURE]).values[MEASURE].tolist()

    if not checkpoint:
        add(OWN_WEIGHTS, BM25(corpus))
        return values
    precision = accelerator.mixed_precision
    model = open_checkpoint(checkpoint).to(accelerator.device).eval()
    kind = kinds.inverted(16) if model.encoder.dim == 1 and "ids" in model.reads else kinds.exact()
    retriever = Indexed.build(model, corpus, kind=kind, precision=precision)
    add(OWN_WEIGHTS, retriever)
    tokens = as_tokens(model)
    if tokens is not None:
        retriever = Indexed.build(tokens, corpus, precision=precision)
    for name, other in variants(model if tokens is None else tokens, published=tokens is None):
        label = name if tokens is None else f"its tokens, {name}"
        add(label, replace(retriever, model=other))
    return values


@lru_cache(maxsize=1)
def open_checkpoint(checkpoint: str) -> Paradigm:
    return as_paradigm(load(checkpoint), checkpoint)


def as_tokens(model: Paradigm) -> Paradigm | None:
    """Return a copy of a single-vector model that outputs all token states; None if this is impossible."""
    settings = model.encoder.settings
    if not settings.single or isinstance(model.encoder, LibraryEncoder):  # which pools them itself
        return None

    def all_states(encoder: TextEncoder) -> TextEncoder:
        other = copy(encoder)
        other.settings = replace(encoder.settings, query_vectors="all", document_vectors="all")
        return other

    encoder: Any = model.encoder
    if isinstance(encoder, TwoTowers):
        towers = TwoTowers(all_states(encoder.of("query")), all_states(encoder.of("document")))
        return Paradigm(Recipe(model.name, QueryToDocument(), "one"), towers)
    return Paradigm(Recipe(model.name, QueryToDocument(), "one"), all_states(encoder))


def variants(model: Paradigm, published: bool) -> Iterator[tuple[str, Paradigm]]:
    """Yield the model under every other A that it admits. published: whether its own A was measured."""
    if isinstance(model.recipe.align, AllPairs) or model.encoder.dim == 1:
        return
    for name, (align, normalise) in OTHERS.items():
        ranks_alike = model.recipe.align.is_maxsim() and model.recipe.normalise in ("one", "query_tokens")
        if published and name == "q→d" and ranks_alike and model.recipe.search == "gather":
            continue
        yield name, model.with_alignment(align, normalise)


def report(results: Mapping[tuple[str, str], Values]) -> dict[str, Section]:
    """Compare each model under its own alignment A with BM25, and under every other A with its own."""
    collections = list(dict.fromkeys(name for name, _ in results))
    models = list(dict.fromkeys(name for _, name in results))
    table: Rows = []
    tests: dict[tuple[int, str, str], tuple[list[float], list[float]]] = {}
    for model in models:
        row: dict[str, Any] = {"model": model}
        for name in collections:
            values = results.get((name, model))
            base = results[name, "bm25"]
            column = f"{name}, n = {len(base[OWN_WEIGHTS])}"
            row[column] = "–" if values is None else cell(np.array([values[OWN_WEIGHTS]]))
            if values is not None and model != "bm25":
                tests[len(table), name, column] = (values[OWN_WEIGHTS], base[OWN_WEIGHTS])
        table.append(row)
    for (place, _, column), (difference, p) in zip(tests, differences(list(tests.values())), strict=True):
        if p < 0.05:
            table[place][column] += "†" if difference.startswith("+") else "‡"
    others: Rows = []
    pairs: list[tuple[list[float], list[float]]] = []
    for model in models:
        for A in dict.fromkeys(
            A for name in collections for A in results.get((name, model), {}) if A != OWN_WEIGHTS
        ):
            for name in collections:
                if (name, model) in results:
                    other = results[name, model][A]
                    pairs.append((other, results[name, model][OWN_WEIGHTS]))
                    row = {"model": model, "A": A, "collection": name, MEASURE: np.array([other])}
                    others.append(row)
    for row, (difference, p) in zip(others, differences(pairs), strict=True):
        row |= {"minus its own A": difference, "p (Holm)": p}
    marks = (
        f"{MEASURE} with 95% intervals over n queries. † better, ‡ worse than BM25: paired test, p < .05 "
        f"after Holm's correction for {len(tests)} comparisons."
    )
    text = f"Paired differences over queries; one family of {len(pairs)} tests."
    return {
        "models": Section("Each model under its own A", marks, table),
        "alignments": Section("Each model under every other A", text, others),
    }
