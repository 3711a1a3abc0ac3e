"""Measure recall, and the costs of building, searching and changing an index, at 10⁴ to 10⁶ documents.

Vectors are token states of the offline encoder (ColBERT, untrained) for documents from several collections:
the first `tokens` tokens of each document, projected onto `dim` principal axes. If a size exceeds the number
of real documents, further documents are composed from real documents by the rule in `parts/composed.py`; at
the smallest size, recall on composed documents is compared with recall on real documents. The same texts are
also stored as one vector per document (the mean of its tokens), as BM25 weights and, for some of the
documents, as SPLADE weights. Queries are test queries of the collections.

Every stage runs in a separate process and saves its answer in stages/, so a second run resumes where the
first run stopped. Times are CPU seconds of `threads` threads. recall@10 is measured against exact search of
the stored vectors. fast-plaid is measured up to `peers_most` documents if `--peers` names an
environment with it. A stage that takes longer than `limit` seconds is stopped.
"""

from dataclasses import dataclass, field
from typing import Any

from parts.settings import Benchmark, Peers
from studies.settings import Backbone, Queries, Seed, Threads, launch

from paradigms.io.command_line import flags


@flags(queries=100)
class Settings(Benchmark, Threads, Seed, Backbone, Queries, Peers):
    """Settings for the documents, the sizes and the systems; every collection has as many of the queries."""

    collections: dict[str, int] = field(default_factory=lambda: {"pydocs": 0})
    """name or folder of each collection → maximum number of documents, 0 for all"""
    sizes: list[int] = field(default_factory=lambda: [10_000, 100_000, 1_000_000])
    most: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("exact", "XTR, exact"), 100_000))
    """system → the largest size at which it is measured"""
    tokens: int = 64
    """maximum tokens per document"""
    splade: int = 4000
    """number of real documents for composing SPLADE documents; 0: no SPLADE"""
    peers_most: int = 100_000
    limit: int = 3600
    """maximum seconds per stage"""
    changes: bool = True
    """also add and delete documents"""
    report: bool = False
    """only report earlier measurements"""


launch(__name__, Settings, __doc__)  # before the slow imports

import time
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from parts.measuring import MiB, interpreters
from parts.stages import ANY, NOTHING, Stages
from parts.vectors import prepare
from studies.curves import Curves
from studies.pages import Rows, Section, interval_text, publish

from paradigms import PARADIGMS
from paradigms.evaluate.measures import seeds_interval
from paradigms.io.command_line import folder_name
from paradigms.io.device import processor
from paradigms.io.files import lock_until_exit, remove_folder
from paradigms.io.terminal import Terminal

K = 10
XTR = "XTR, exact"
CHANGES = ("add one", "add 1%", "delete one", "compact")
COMPOSED = "compressed (composed)"  # the first size again; all documents but the relevant ones are composed
SEARCHED = (XTR, COMPOSED, "XTR, 4 bits")  # measured by their searches alone: the others have the same costs
Searches = list[dict[str, Any]]
GATHER: Searches = [{"probes": 8}, {"probes": 16}, {"probes": 32}, {"probes": 32, "candidates": 256}]
GATHER += [{"probes": 512, "candidates": 20_000}]  # nearly exhaustive: the recall that the codes allow
FINE: Searches = [{"probes": 32, "candidates": 1024}, {"probes": 64, "candidates": 1024}]
MILLION = {"search": "impute", "search_tokens": 1_000_000}  # 10⁵ per 10⁵ documents
FINE += [{"probes": p, "candidates": c} | MILLION for p, c in ((16, 256), (32, 256), (32, 1024), (64, 1024))]
RETRIEVED: Searches = [{"search": "impute", "search_tokens": k} for k in (4000, 10_000, 100_000)]
IMPUTE = [{"probes": p} | RETRIEVED[n] for p, n in ((8, 0), (32, 1), (32, 2))]
IMPUTE += [IMPUTE[-1] | {"candidates": 128}]
NEAREST = [{"search_tokens": 100, "probes": 16}, {"search_tokens": 400, "probes": 64}]
TERMS: Searches = [{}]
# With 10 candidates, reranking only reorders the first ten by inner products, so recall is the vectors'
# alone.
RERANKED = [{"candidates": count} for count in (10, 64, 256)]


@dataclass(frozen=True)
class System:
    """A benchmarked index, given by the documents' form, the index kind, and build and search settings."""

    form: str
    kind: str
    build: dict[str, Any]
    settings: list[dict[str, Any]]
    system: str = "ours"  # a key of SYSTEMS in parts/systems.py


SYSTEMS = {
    "compressed": System("tokens", "compressed", {"bits": 4}, GATHER),
    "compressed, fine": System("tokens", "compressed", {"bits": 4, "fine_bits": 8}, GATHER + FINE),
    "exact": System("tokens", "exact", {}, [{}]),
    "LEMUR, 1,024 numbers": System("tokens", "lemur", {"width": 1024}, RERANKED),
    "LEMUR, random features": System("tokens", "lemur", {"width": 1024, "epochs": 0}, RERANKED),
    "LEMUR, 256 numbers": System("tokens", "lemur", {"width": 256}, RERANKED),
    "one vector, exact": System("pooled", "exact", {}, [{}]),
    "one vector, 4 bits": System("pooled", "compressed", {"bits": 4}, GATHER[:3]),
    "one vector, IVF": System("pooled", "faiss", {}, NEAREST),
    "one vector, HNSW": System("pooled", "faiss", {"factory": "HNSW32,SQfp16"}, [{"search_tokens": 100}]),
    "BM25": System("words", "inverted", {}, TERMS),
    "SPLADE": System("splade", "inverted", {}, TERMS),
    XTR: System("tokens", "exact", {}, RETRIEVED),
    "XTR, 4 bits": System("tokens", "compressed", {"bits": 4}, IMPUTE),
    "fast-plaid, 4 bits": System(
        "tokens", "", {"nbits": 4}, [{"n_full_scores": 1024, "n_ivf_probe": 8}], "fast_plaid"
    ),
}


def main(settings: Settings) -> None:
    console = Terminal()
    folder = lock_until_exit(settings.output).absolute()
    torch.set_num_threads(settings.threads)
    forms = ("tokens", "pooled", "words", *(["splade"] if settings.splade else []))
    vectors = prepare(
        PARADIGMS["colbert"](settings.backbone).eval(),
        settings.collections,
        folder,
        console,
        queries=settings.queries,
        tokens=settings.tokens,
        seed=settings.seed,
        forms=forms,
        splade_documents=settings.splade,
    )
    pythons = interpreters(settings.peers)
    prefixes = tuple(settings.systems) or ""
    present = {name: system for name, system in SYSTEMS.items() if system.system in ("ours", *pythons)}
    chosen = [name for name, system in present.items() if system.form in forms and name.startswith(prefixes)]
    stages = Stages(settings, vectors, console, pythons, k=K, limit=settings.limit, report=settings.report)
    rows: Rows = []
    for size in sorted(settings.sizes):
        for name in chosen:
            most = size if SYSTEMS[name].system == "ours" else settings.peers_most
            if size <= settings.most.get(name, most):
                rows.append(measure_stages(name, size, settings, stages))
    if "compressed" in chosen and min(settings.sizes) <= stages.facts["documents"]:
        rows.append(measure_stages(COMPOSED, min(settings.sizes), settings, stages))
    report([row for row in rows if row["build"] != NOTHING], settings, stages)


def measure_stages(name: str, size: int, settings: Settings, stages: Stages) -> dict[str, Any]:
    """Measure all stages of one system at one size, and remove the index at the end."""
    check = name == COMPOSED
    system = SYSTEMS["compressed" if check else name]
    real = stages.facts["relevant"] if check else None
    place = f"indexes/{folder_name(name)}-{size}"
    documents = {"form": system.form, "documents": size, "real": real}
    job = documents | {"system": system.system, "kind": system.kind, "build": system.build}
    job["folder"] = f"{place}/index"
    row: dict[str, Any] = {"system": name, "documents": size}
    names = ["build", "search"]
    if settings.changes and system.system == "ours" and name not in SEARCHED:
        names.append("change")
    for stage in names:
        request = {"settings": system.settings} if stage == "search" else {}
        row[stage] = stages.measure(name, job | request | {"stage": stage})
        if "failed" in row[stage]:
            break
    else:
        remove_folder(stages.folder / place, ANY)
    if system.form not in ("words", "splade"):
        title = f"{system.form} of {'all' if real is None else real}"
        row["truth"] = stages.measure(title, documents | {"system": "ours", "stage": "truth"}).get("best")
    return row


def report(rows: Rows, settings: Settings, stages: Stages) -> None:
    costs = []
    searches = []
    for row in rows:
        built = row["build"]
        searched = row.get("search", {})
        changed = row.get("change", {})
        name = row["system"]
        cost = {"system": name, "documents": row["documents"], "build CPU s": built.get("seconds")}
        cost |= {"build MiB": _in(built, "memory", MiB), "MB": _in(built, "bytes", 1e6)}
        cost |= {"peak MB": _in(built, "peak", 1e6), "open s": searched.get("open")}
        cost |= {"search MiB": _in(searched, "memory", MiB)}
        if name not in SEARCHED:
            cost |= {f"{what} s": changed.get(what) for what in CHANGES}
            costs.append({key: "–" if value is None else value for key, value in cost.items()})
        searches += [searched_row(name, row, search) for search in searched.get("rows", ())]
    visible = [{key: value for key, value in row.items() if not key.startswith("_")} for row in searches]
    real = stages.facts
    text = (
        f"{real['documents']:,} real documents, {real['tokens'] / real['documents']:.1f} tokens each, then "
        f"composed ones; {settings.threads} thread of {processor()}, which other work shared. "
        f"{of_composed(searches)}"
    )
    figure = curves_of(costs, searches).draw() if costs else None
    sections = {
        "costs": Section("Costs by documents", "CPU seconds.", costs, figure),
        "searches": Section("One query alone", "CPU ms: median, and 10th and 90th percentile.", visible),
    }
    minutes = (sum(stages.seconds.values()) + time.process_time()) / 60
    publish(settings, "Scale", text, sections, minutes=minutes)


def searched_row(name: str, row: dict[str, Any], search: dict[str, Any]) -> dict[str, Any]:
    """Make a row of a search; names that begin with _ are for other tables."""
    milliseconds = 1e3 * np.array(search["seconds"])
    low, middle, high = np.quantile(milliseconds, (0.1, 0.5, 0.9)).tolist()
    recalls = None
    recall_text = "–" if "truth" in row else "1"
    if row.get("truth"):
        recalls, recall_text = recall(search["found"], row["truth"])
    setting = search["setting"]
    cells = {"system": name, "documents": row["documents"], "setting": described(setting)}
    cells |= {"CPU ms": middle, "10%": low, "90%": high, "recall@10": recall_text}
    return cells | {"_recalls": recalls}


def recall(ranked: Sequence[Sequence[int]], truth: Sequence[Sequence[int]]) -> tuple[np.ndarray, str]:
    """Return each query's recall of `best` in the first `K` of `ranked`, and the mean with its interval."""
    recalls = np.array([len({*r[:K]} & {*b}) / len(b) for r, b in zip(ranked, truth, strict=True)])
    interval = seeds_interval(recalls[None])
    return recalls, interval_text(interval)


def of_composed(searches: Sequence[Mapping[str, Any]]) -> str:
    """Describe recall@10 of composed minus real documents at the smallest size, over queries."""
    said = []
    composed = {row["setting"]: row for row in searches if row["system"] == COMPOSED}
    for row in (row for row in searches if row["system"] == "compressed"):
        other = composed.get(row["setting"])
        if other is None or row["documents"] != other["documents"]:
            continue
        real = row["_recalls"]
        drawn = other["_recalls"]
        if real is not None and drawn is not None:
            said.append(f"{row['setting']}: {interval_text(seeds_interval((drawn - real)[None]), '+')}")
    return f"recall@10 of composed minus real documents at the first size: {'; '.join(said)}." if said else ""


def curves_of(costs: Rows, searches: Rows) -> Curves:
    """Plot build seconds, bytes on disk and milliseconds per query by number of documents."""
    first: dict[tuple[str, int], dict[str, Any]] = {}
    for row in searches:  # the first search has the kind's defaults
        if row["system"] not in SEARCHED:
            first.setdefault((row["system"], row["documents"]), row)
    columns = {
        "build, CPU s": (costs, "build CPU s"),
        "MB on disk": (costs, "MB"),
        "a query, CPU ms": ([*first.values()], "CPU ms"),
    }
    sizes = sorted({row["documents"] for row in costs})
    panels: dict[str, dict[str, list[float | None]]] = {}
    for panel, (rows, column) in columns.items():
        values = {(r["system"], r["documents"]): r[column] for r in rows if r[column] != "–"}
        systems = dict.fromkeys(system for system, _ in values)
        panels[panel] = {system: [values.get((system, n)) for n in sizes] for system in systems}
    return Curves("documents", sizes, panels, log_y=[*panels])


def described(setting: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in setting.items()) or "defaults"


def _in(answer: Mapping[str, Any], name: str, size: float) -> float | None:
    return answer[name] / size if name in answer else None
