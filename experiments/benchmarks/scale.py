"""Measure recall, and the costs of building, searching and changing an index, at 10⁴ to 10⁶ documents.

Vectors are token states of the offline encoder (ColBERT, untrained) for documents from several collections:
the first `tokens` tokens of each document, projected onto `dim` principal axes. If a size exceeds the number
of real documents, further documents are composed from real documents by the rule in `parts/composed.py`; at
the smallest size, recall on composed documents is compared with recall on real documents. The same texts are
also stored as one vector per document (the mean of its tokens), as BM25 weights and, for some of the
documents, as SPLADE weights. Queries are test queries of the collections.

Every stage runs in a separate process and saves its answer in stages/, so a second run resumes where the
first run stopped. Times are CPU seconds of `threads` threads. recall@10 is measured against exact search of
the stored vectors. fast-plaid and xtr-warp-rs are measured up to `peers_most` documents if `--peers` names
environments with these packages. A stage that takes longer than `limit` seconds is stopped.
"""

from __future__ import annotations

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

import torch
from parts.measuring import interpreters
from parts.scale_report import COMPOSED, SEARCHED, XTR, K, report
from parts.stages import ANY, NOTHING, Stages
from parts.vectors import prepare
from studies.pages import Rows

from paradigms import PARADIGMS
from paradigms.io.command_line import folder_name
from paradigms.io.files import held, remove_folder
from paradigms.io.terminal import Terminal

GATHER = [{"probes": 8}, {"probes": 16}, {"probes": 32}, {"probes": 32, "candidates": 256}]
GATHER += [{"probes": 512, "candidates": 20_000}]  # nearly exhaustive: the recall that the codes allow
FINE = [{"probes": 32, "candidates": 1024}, {"probes": 64, "candidates": 1024}]
MILLION = {"search": "impute", "search_tokens": 1_000_000}  # 10⁵ per 10⁵ documents
FINE += [{"probes": p, "candidates": c} | MILLION for p, c in ((16, 256), (32, 256), (32, 1024), (64, 1024))]
RETRIEVED = [{"search": "impute", "search_tokens": k} for k in (4000, 10_000, 100_000)]
IMPUTE = [{"probes": p} | RETRIEVED[n] for p, n in ((8, 0), (32, 1), (32, 2))]
IMPUTE += [IMPUTE[-1] | {"candidates": 128}]
NEAREST = [{"search_tokens": 100, "probes": 16}, {"search_tokens": 400, "probes": 64}]
TERMS: list[dict[str, Any]] = [{}]
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
    "xtr-warp, 4 bits": System("tokens", "", {"nbits": 4}, [{"nprobe": 32}], "warp"),
}


def main(settings: Settings) -> None:
    console = Terminal()
    folder = held(settings.output).absolute()
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
    chosen = [
        name
        for name, system in SYSTEMS.items()
        if system.form in forms
        and system.system in ("ours", *pythons)
        and name.startswith(tuple(settings.systems) or "")
    ]
    stages = Stages(settings, vectors, console, pythons, k=K, limit=settings.limit, report=settings.report)
    rows: Rows = []
    for size in sorted(settings.sizes):
        for name in chosen:
            most = size if SYSTEMS[name].system == "ours" else settings.peers_most
            if size <= settings.most.get(name, most):
                rows.append(measured(name, size, settings, stages))
    if "compressed" in chosen and min(settings.sizes) <= stages.facts["documents"]:
        rows.append(measured(COMPOSED, min(settings.sizes), settings, stages))
    report([row for row in rows if row["build"] != NOTHING], settings, stages)


def measured(name: str, size: int, settings: Settings, stages: Stages) -> dict[str, Any]:
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
        asked = {"settings": system.settings} if stage == "search" else {}
        row[stage] = stages.measure(name, job | asked | {"stage": stage})
        if "failed" in row[stage]:
            break
    else:
        remove_folder(stages.folder / place, ANY)
    if system.form not in ("words", "splade"):
        whole = f"{system.form} of {'all' if real is None else real}"
        row["truth"] = stages.measure(whole, documents | {"system": "ours", "stage": "truth"}).get("best")
    return row
