"""Measure nDCG@10 and bytes per document for fewer tokens, dimensions or bits.

One ColBERT encodes a sample of each collection once; all other indexes are made from these vectors. Each way
of replacing a document's tokens D by D′ has a certificate: the Hausdorff distance between D and D′ bounds the
error of a score, and a query's ten best documents are certified if errors within the bounds cannot change
them. The recall of candidates by fixed-dimensional encodings (MUVERA) is compared with the prediction of
`theory.buckets` from the angles between token vectors, with and without subtraction of their mean.
"""

from __future__ import annotations

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

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from studies import byte_tables
from studies.bucket_recall import CANDIDATES, FIRST, law
from studies.model_runs import measured_once
from studies.pages import Rows, Section, publish, shown

from paradigms import PARADIGMS, Paradigm, load
from paradigms.core import Tokens
from paradigms.data import Collection, Run, Split
from paradigms.evaluate import per_query, seeds_interval
from paradigms.find import Index, Store, kinds, open_index
from paradigms.identity import identity
from paradigms.io.terminal import Terminal
from paradigms.loading import as_paradigm
from paradigms.recipe import Recipe
from paradigms.train.script import open_collection

LENGTH = 128  # tokens of a document
BLOCK = 1 << 16  # padded tokens to read at once
LISTS = 256  # number of lists of the compressed indexes


def main(settings: Settings) -> None:
    console = Terminal()
    folder = Path(settings.output)
    torch.set_num_threads(1)
    with refusing():
        model = opened(settings)
    results: dict[str, Rows] = {}
    for name in settings.collections:
        place = folder / folder_name(name)
        store, split = encoded(model, name, settings, console)
        queries = model.encode_queries(list(split.queries.values()))
        parts: dict[str, Callable[[], Rows]] = {
            "fewer": partial(fewer, store, model.recipe, split, queries),
            "law": partial(law, store, queries),
        }
        question = {
            "queries": list(split.queries),
            "documents": f"{store.checksum():016x}",
            "model": identity(model.encoder),
        }
        for part, measure in parts.items():
            rows = measured_once(place / f"{part}.json", question, measure)
            results.setdefault(part, []).extend({"collection": folder_name(name)} | row for row in rows)
    summary = f"{settings.documents} documents and up to {settings.queries} queries of each collection."
    publish(settings, "Fewer bytes", summary, described(results))


def sampled(collection: Collection, settings: Settings) -> tuple[list[int], Split]:
    """Draw document rows, and test queries whose relevant documents are all among these rows.

    Queries are drawn first, until their relevant documents fill half of the sample.
    """
    draw = np.random.default_rng(0)
    test = collection.split("test")
    wanted = min(settings.documents or len(collection.corpus), len(collection.corpus))
    chosen: list[str] = []
    rows: set[int] = set()
    for n in draw.permutation(len(test.queries)).tolist():
        query = list(test.queries)[n]
        judged = test.judgements.get(query, {})
        relevant = {collection.corpus.position(d) for d, grade in judged.items() if grade > 0}
        if relevant and len(rows | relevant) <= max(1, wanted // 2) and len(chosen) < settings.queries:
            chosen.append(query)
            rows |= relevant
    others = (n for n in draw.permutation(len(collection.corpus)).tolist() if n not in rows)
    rows |= {n for n, _ in zip(others, range(wanted - len(rows)), strict=False)}
    return sorted(rows), test.only(chosen)


def opened(settings: Settings) -> Paradigm:
    if settings.model:
        model = as_paradigm(load(settings.model), settings.model)
        if not model.recipe.align.is_maxsim():
            raise SystemExit(f"{settings.model} is not a ColBERT: only errors of sums of maxima are bounded")
        return model.eval()
    torch.manual_seed(0)  # seed of the projection
    return PARADIGMS["colbert"]("offline", document_length=LENGTH).eval()


def encoded(model: Paradigm, name: str, settings: Settings, console: Terminal) -> tuple[Store, Split]:
    """Build or open the store of a collection's sample; return the store and the sample's queries."""
    collection = open_collection(name, None, console)
    rows, split = sampled(collection, settings)
    folder = Path(settings.output) / folder_name(name) / "exact"
    ids = [collection.corpus.ids[n] for n in rows]
    texts = [collection.corpus[n] for n in rows]
    if not folder.is_dir():
        return Store.build(kinds.exact(), model, ids, texts, folder, progress=True), split
    store = open_index(folder).store
    store.check(model)
    if store.ids != ids:
        raise SystemExit(f"{folder} holds another sample of {name}: choose another --output")
    return store, split


def made(exact: Store) -> Iterator[tuple[str, str, Store, float]]:
    """Yield (kind, name, store, bytes per document) for the full store and for each way to shrink it."""
    ways: list[tuple[str, list[dict[str, Any]]]] = [
        ("pooled, ward", [{"pool": 2}, {"pool": 4}]),
        ("pooled, sequential", [{"pool": n, "pooling": "sequential"} for n in (2, 4)]),
        ("pruned", [{"keep": 0.5}, {"keep": 0.25}]),
        ("bits", [{"bits": bits} for bits in (8, 4, 2, 1)]),
        ("pooled and bits", [{"pool": 2, "bits": 4}, {"pool": 2, "bits": 2}]),
    ]
    yield "all tokens", "float16", exact, exact.bytes_per_document
    for name, settings in ways:
        for fewer in settings:
            way = ", ".join(f"{key}={value}" for key, value in fewer.items() if key != "pooling")
            bits = fewer.pop("bits", None)
            kind = kinds.compressed(bits, LISTS) if bits else kinds.exact()
            store = exact.copy(kind, **fewer)
            yield name, way, store, store.bytes_per_document
    for part in (2, 4):
        dim = exact.dim // part
        store = Store.build_from(
            kinds.exact(),
            projected(exact, dim),
            paradigm=exact.manifest["paradigm"],
            dim=exact.manifest["dim"],
            fields=exact.manifest["fields"],
        )
        yield "dimensions", f"1/{part}", store, exact.bytes_per_document * dim / exact.dim


def principal_axes(exact: Store, dim: int) -> np.ndarray:
    """Return the first `dim` principal axes [h, dim] of a store's token vectors, without centring them."""
    tokens = np.asarray(exact.columns["vectors"], np.float32)
    return np.linalg.eigh(tokens.T @ tokens)[1][:, -dim:].copy()


def projected(exact: Store, dim: int) -> Iterator[tuple[list[str], Tokens]]:
    """Project token vectors onto the first `dim` principal axes, without changing the vectors' width."""
    axes = torch.from_numpy(principal_axes(exact, dim))
    for rows in exact.blocks(BLOCK, np.arange(len(exact.ids))):
        some = exact.tokens(rows)
        yield exact.names(rows), replace(some, vectors=some.vectors @ axes @ axes.T)


def fewer(exact: Store, recipe: Recipe, split: Split, queries: Tokens) -> Rows:
    """Measure bytes, nDCG@10 and certificates for the full store and for each way to shrink it."""
    rows: Rows = []
    wanted: list[set[str]] = []
    for kind, name, store, size in made(exact):
        index = Index(store.certify(exact))
        certificates = index.certified(recipe, queries, FIRST)
        wanted = wanted or [set(run) for run, _ in certificates]
        same = [set(run) == best for (run, _), best in zip(certificates, wanted, strict=True)]
        run: Run = {query: best for query, (best, _) in zip(split.queries, certificates, strict=True)}
        values = per_query(run, split.judgements, ["nDCG@10"]).values["nDCG@10"]
        sure = [certified for _, certified in certificates]
        row = {"kind": kind, "way": name, "documents": len(exact), "queries": len(certificates)}
        row |= {"bytes/document": size, "nDCG@10": values.tolist()}
        row |= {"error": float(index.store.errors.mean(0)[0]), "certified": sum(sure), "unchanged": sum(same)}
        violations = sum(c and not s for c, s in zip(sure, same, strict=True))
        rows.append(row | {"violations": violations})
    return rows


def described(results: Mapping[str, Rows]) -> dict[str, Section]:
    errors = (
        "error: distance of a document's worst token to the nearest stored one, mean over documents. "
        "violations: certificates of first tens that are others."
    )
    shares = (
        f"Share of the exact first {FIRST} among the first {CANDIDATES} by encodings; predicted from angles "
        "alone, by the law for independent tokens."
    )
    rows = {part: [*map(told, part_rows)] for part, part_rows in results.items()}
    return {
        "ways": byte_tables.ways(results["fewer"]),
        "same_bytes": byte_tables.same_bytes(results["fewer"]),
        "recalls": byte_tables.recalls(results["law"]),
        "fewer": Section("Fewer bytes", errors, rows["fewer"]),
        "law": Section("Predicted recall", shares, rows["law"]),
    }


def told(row: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the lists of per-query values in a row by their mean and 95% interval over queries."""
    return {k: shown(seeds_interval(np.array([v]))) if isinstance(v, list) else v for k, v in row.items()}
