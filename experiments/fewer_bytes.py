"""Measure nDCG@10 and bytes per document for fewer tokens, dimensions or bits.

One ColBERT encodes a sample of each collection once; all other indexes are made from these vectors. Each way
of replacing a document's tokens D by D′ has a certificate: the Hausdorff distance between D and D′ bounds the
error of a score, and a query's ten best documents are certified if errors within the bounds cannot change
them.
"""

from dataclasses import replace
from pathlib import Path

from studies.settings import Collections, Documents, Output, Queries, at_least, launch, refusing

from paradigms.io.command_line import flags, folder_name


@flags(documents=600, queries=60)
class Settings(Output, Collections, Documents, Queries):
    """Settings for models, collections, and measurements."""

    model: str = ""
    """folder of a saved ColBERT; empty: an untrained one over all-MiniLM-L6-v2"""

    def __post_init__(self) -> None:
        at_least(self, queries=1)
        super().__post_init__()


launch(__name__, Settings, __doc__)  # before the slow imports

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from studies.model_runs import measured_once, values_of
from studies.pages import Rows, Section, interval_text, publish

from paradigms import PARADIGMS, Paradigm, load
from paradigms.core import Tokens
from paradigms.data import Collection, Corpus, Run, Split
from paradigms.evaluate import PerQuery
from paradigms.find import Index, Store, kinds
from paradigms.identity import identity
from paradigms.io.terminal import Terminal
from paradigms.loading import as_paradigm
from paradigms.train.script import open_collection

LENGTH = 128  # tokens of a document
BLOCK = 1 << 16  # padded tokens to read at once
LISTS = 256  # number of lists of the compressed indexes
FIRST = 10  # number of best documents that an index should find
TITLE = "Fewer bytes"
ERRORS = (
    "error: distance of a document's worst token to the nearest stored one, mean over documents. "
    "violations: certificates of first tens that are others."
)
NDCG = "nDCG@10"
BYTES = "bytes/document"


def main(settings: Settings) -> None:
    console = Terminal()
    folder = Path(settings.output)
    torch.set_num_threads(1)
    with refusing():
        model = open_model(settings)
    rows: Rows = []
    for name in settings.collections:
        collection = open_collection(name, None, console)
        places, split = sampled(collection, settings)
        corpus = collection.corpus.only(collection.corpus.ids[place] for place in places)
        question: dict[str, Any] = {"collection": collection.fingerprint, "documents": corpus.ids}
        question |= {"queries": list(split.queries), "model": identity(model.encoder)}
        file = folder / folder_name(name) / "fewer.json"
        measured = measured_once(file, question, partial(fewer, model, corpus, split))
        rows += [{"collection": folder_name(name)} | row for row in measured]
    summary = f"{settings.documents} documents and up to {settings.queries} queries of each collection."
    shown = [row | {NDCG: np.array([row[NDCG]])} for row in rows]
    sections = {"ways": ways(rows), "fewer": Section(TITLE, ERRORS, shown)}
    publish(settings, TITLE, summary, sections)


def sampled(collection: Collection, settings: Settings) -> tuple[list[int], Split]:
    """Draw document rows, and test queries whose relevant documents are all among these rows.

    Queries are drawn first, until their relevant documents fill half of the sample.
    """
    draw = np.random.default_rng(0)
    test = collection.split("test")
    count = min(settings.documents or len(collection.corpus), len(collection.corpus))
    chosen: list[str] = []
    rows: set[int] = set()
    for n in draw.permutation(len(test.queries)).tolist():
        query = list(test.queries)[n]
        judged = test.judgements.get(query, {})
        relevant = {collection.corpus.position(d) for d, grade in judged.items() if grade > 0}
        if relevant and len(rows | relevant) <= max(1, count // 2) and len(chosen) < settings.queries:
            chosen.append(query)
            rows |= relevant
    others = (n for n in draw.permutation(len(collection.corpus)).tolist() if n not in rows)
    rows |= {n for n, _ in zip(others, range(count - len(rows)), strict=False)}
    return sorted(rows), test.only(chosen)


def open_model(settings: Settings) -> Paradigm:
    if settings.model:
        model = as_paradigm(load(settings.model), settings.model)
        if not model.recipe.align.is_maxsim():
            raise SystemExit(f"{settings.model} is not a ColBERT: only errors of sums of maxima are bounded")
        return model.eval()
    torch.manual_seed(0)  # seed of the projection
    return PARADIGMS["colbert"]("offline", document_length=LENGTH).eval()


def make_stores(exact: Store) -> Iterator[tuple[str, str, Store, float]]:
    """Yield (kind, name, store, bytes per document) for the full store and for each way to shrink it."""
    shrunk: list[tuple[str, list[dict[str, Any]]]] = [
        ("pooled, ward", [{"pool": 2}, {"pool": 4}]),
        ("pooled, sequential", [{"pool": n, "pooling": "sequential"} for n in (2, 4)]),
        ("pruned", [{"keep": 0.5}, {"keep": 0.25}]),
        ("bits", [{"bits": bits} for bits in (8, 4, 2, 1)]),
        ("pooled and bits", [{"pool": 2, "bits": 4}, {"pool": 2, "bits": 2}]),
    ]
    yield "all tokens", "float16", exact, exact.bytes_per_document
    for name, settings in shrunk:
        for fewer in settings:
            way = ", ".join(f"{key}={value}" for key, value in fewer.items() if key != "pooling")
            bits = fewer.pop("bits", None)
            kind = kinds.compressed(bits, LISTS) if bits else kinds.exact()
            store = exact.copy(kind, **fewer)
            yield name, way, store, store.bytes_per_document
    for part in (2, 4):
        dim = exact.dim // part
        same = {key: exact.manifest[key] for key in ("paradigm", "dim", "fields")}
        store = Store.build_from(kinds.exact(), projected(exact, dim), **same)
        yield "dimensions", f"1/{part}", store, exact.bytes_per_document * dim / exact.dim


def principal_axes(exact: Store, dim: int) -> np.ndarray:
    """Return the first `dim` principal axes [h, dim] of a store's token vectors, without centring them."""
    tokens = np.asarray(exact.columns["vectors"], np.float32)
    return np.linalg.eigh(tokens.T @ tokens)[1][:, -dim:].copy()


def projected(exact: Store, dim: int) -> Iterator[tuple[list[str], Tokens]]:
    """Project token vectors onto the first `dim` principal axes, without changing the vectors' width."""
    axes = torch.from_numpy(principal_axes(exact, dim))
    for rows in exact.blocks(BLOCK, np.arange(len(exact.ids))):
        sample = exact.tokens(rows)
        yield exact.names(rows), replace(sample, vectors=sample.vectors @ axes @ axes.T)


def fewer(model: Paradigm, corpus: Corpus, split: Split) -> Rows:
    """Measure bytes, nDCG@10 and certificates for the full store and for each way to shrink it."""
    exact = Store.build(kinds.exact(), model, corpus.ids, corpus, progress=True)
    queries = model.encode_queries(list(split.queries.values()))
    rows: Rows = []
    exact_results: list[set[str]] = []
    for kind, name, store, size in make_stores(exact):
        index = Index(store.certify(exact))
        certificates = index.certified(model.recipe, queries, FIRST)
        ranked = [run for run, _ in certificates]
        exact_results = exact_results or [*map(set, ranked)]
        same = [set(row) == exact_row for row, exact_row in zip(ranked, exact_results, strict=True)]
        run: Run = dict(zip(split.queries, ranked, strict=True))
        values = values_of(run, split, [NDCG])[NDCG]
        sure = [certified for _, certified in certificates]
        row = {"kind": kind, "way": name, "documents": len(exact), "queries": len(certificates)}
        row |= {BYTES: size, NDCG: values}
        row |= {"error": float(index.store.errors.mean(0)[0]), "certified": sum(sure), "unchanged": sum(same)}
        violations = sum(c and not s for c, s in zip(sure, same, strict=True))
        rows.append(row | {"violations": violations})
    return rows


# Averages over collections are macro-averages; intervals (95%) resample the queries within each collection.


def average(rows: Rows, minus: Rows | None = None) -> str:
    """Format the mean nDCG@10 with its interval. minus: rows of the same queries, to subtract."""
    values = np.concatenate([row[NDCG] for row in rows])
    if minus is not None:
        values = values - np.concatenate([row[NDCG] for row in minus])
    collections = [row["collection"] for row in rows for _ in row[NDCG]]
    joined = PerQuery([*map(str, range(len(values)))], {NDCG: values}, groups=collections)
    return interval_text(joined.intervals()[NDCG], "" if minus is None else "+")


def ways(rows: Rows) -> Section:
    """Make the table of nDCG@10, its difference from all tokens, and certificates, for each way to store."""
    groups: dict[tuple[str, str], Rows] = {}
    for row in rows:
        groups.setdefault((row["kind"], row["way"]), []).append(row)
    all_tokens = next(iter(groups.values()))
    table: Rows = []
    for (kind, way), stored in groups.items():
        shares = [row[BYTES] / everything[BYTES] for row, everything in zip(stored, all_tokens, strict=True)]
        row = {"kind": kind, "way": way, "bytes, of all": f"{np.mean(shares):.0%}"}
        row |= {NDCG: average(stored)}
        row |= {"minus all tokens": "–" if stored is all_tokens else average(stored, all_tokens)}
        row |= {"error": float(np.mean([one["error"] for one in stored]))}
        counts = ("unchanged", "certified", "violations")
        table.append(row | {count: sum(one[count] for one in stored) for count in counts})
    queries = sum(row["queries"] for row in all_tokens)
    text = (
        "Means over collections. error: distance of a document's worst token to the nearest stored one. "
        f"unchanged: of {queries} queries, those whose first ten documents are the same as with all tokens; "
        "certified: those for which a bound on the error proves it; violations: certified and not the same."
    )
    return Section("Fewer bytes, over collections", text, table)
