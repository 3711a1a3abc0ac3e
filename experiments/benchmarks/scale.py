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

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paradigms.io.command_line import command_line


@dataclass
class Settings:
    """Settings for the documents, the sizes and the systems."""

    collections: dict[str, int] = field(default_factory=lambda: {"pydocs": 0})
    """name or folder of each collection → maximum number of documents, 0 for all"""
    sizes: list[int] = field(default_factory=lambda: [10_000, 100_000, 1_000_000])
    systems: list[str] = field(default_factory=list)
    """prefixes of the names of systems to measure; empty: all"""
    most: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("exact", "XTR, exact"), 100_000))
    """system → the largest size at which it is measured"""
    queries: int = 100
    """number of test queries, the same for each collection"""
    tokens: int = 64
    """maximum tokens per document"""
    dim: int = 128
    splade: int = 4000
    """number of real documents for composing SPLADE documents; 0: no SPLADE"""
    peers: list[str] = field(default_factory=list)
    """folders of virtual environments with fast-plaid and xtr-warp-rs"""
    peers_most: int = 100_000
    limit: int = 3600
    """maximum seconds per stage"""
    changes: bool = True
    """also add and delete documents"""
    report: bool = False
    """only report earlier measurements"""
    threads: int = 1
    backbone: str = "offline"
    seed: int = 0
    output: str = "results/benchmarks/scale"


if __name__ == "__main__":  # before the slow imports
    arguments = command_line(Settings, __doc__ or "")

sys.path.append(str(Path(__file__).parents[1]))  # for the import of studies

import numpy as np
import torch
from parts.composed import Composed, write
from parts.shared import MiB, last_line, run_worker
from parts.vectors import principal, unit
from scipy.stats import t
from studies.pages import Rows, Section, publish
from token_search import interpreters

from paradigms import PARADIGMS
from paradigms.baselines.bm25 import BM25
from paradigms.data import Corpus, load_collection
from paradigms.evaluate.measures import Interval, bootstrap_intervals
from paradigms.find import Store, kinds, open_index
from paradigms.io.checks import json_or_empty
from paradigms.io.command_line import folder_name
from paradigms.io.device import processor
from paradigms.io.files import atomic_folder, contents, held, remove_folder, write_json
from paradigms.io.terminal import Terminal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

K = 10
ENTRY = np.dtype([("id", "<i4"), ("weight", "<f2")])  # a term's entry
GATHER = [{"probes": 8}, {"probes": 16}, {"probes": 32}, {"probes": 32, "candidates": 256}]
GATHER += [{"probes": 512, "candidates": 20_000}]  # nearly exhaustive: the recall that the codes allow
RETRIEVED = [{"search": "impute", "search_tokens": k} for k in (4000, 10_000, 100_000)]
IMPUTE = [{"probes": p} | RETRIEVED[n] for p, n in ((8, 0), (32, 1), (32, 2))]
IMPUTE += [IMPUTE[-1] | {"candidates": 128}]
NEAREST = [{"search_tokens": 100, "probes": 16}, {"search_tokens": 400, "probes": 64}]
TERMS: list[dict[str, Any]] = [{}]
# With 10 candidates, reranking only reorders the first ten by inner products, so recall is the vectors'
# alone.
RERANKED = [{"candidates": count} for count in (10, 64, 256)]
XTR = "XTR, exact"


@dataclass(frozen=True)
class System:
    """A benchmarked index, given by the documents' form, the index kind, and build and search settings."""

    form: str
    kind: str
    build: dict[str, Any]
    settings: list[dict[str, Any]]


SYSTEMS = {
    "compressed": System("tokens", "compressed", {"bits": 4}, GATHER),
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
}
PEERS = {
    "fast-plaid, 4 bits": (
        "fast_plaid",
        {"build": {"nbits": 4}, "search": {"n_full_scores": 1024, "n_ivf_probe": 8}},
    ),
    "xtr-warp, 4 bits": ("warp", {"build": {"nbits": 4}, "search": {"nprobe": 32}}),
}
CHANGES = ("add one", "add 1%", "delete one", "compact")
ANY = contents("*", "*/")
NOTHING = {"failed": "not measured"}
BEYOND = (10**7, 10**8, 10**9)
COMPOSED = "compressed (composed)"  # the first size again; all documents but the relevant ones are composed
ESTIMATED = (COMPOSED, "XTR, 4 bits")  # searches that may estimate XTR's scores
SEARCHED = (XTR, *ESTIMATED)  # measured by their searches alone: the others have the same costs


def main(settings: Settings) -> None:
    console, folder = Terminal(), held(settings.output).absolute()
    torch.set_num_threads(settings.threads)
    vectors = prepare(settings, folder, console)
    chosen = [name for name in SYSTEMS if not settings.systems or name.startswith(tuple(settings.systems))]
    if not settings.splade:
        chosen = [name for name in chosen if name != "SPLADE"]
    pythons, missing = interpreters(settings.peers)
    peers = [name for name, (system, _) in PEERS.items() if system not in missing]
    run = Run(settings, folder, vectors, console)
    for size in sorted(settings.sizes):
        for name in chosen:
            if size <= settings.most.get(name, size):
                run.measure(name, size)
        for name in peers:
            if size <= settings.peers_most:
                run.measure_peer(name, size, pythons[PEERS[name][0]])
    if "compressed" in chosen:
        run.measure(COMPOSED, min(settings.sizes))
    report(run)


class Run:
    """A benchmark run, which measures each stage once.

    rows: stage results, one row per system and size. seconds: file of each stage → its CPU seconds.
    """

    def __init__(self, settings: Settings, folder: Path, vectors: Path, console: Terminal) -> None:
        self.settings, self.folder, self.vectors, self.console = settings, folder, vectors, console
        self.rows: list[dict[str, Any]] = []
        self.seconds: dict[Path, float] = {}

    def measure(self, name: str, size: int) -> None:
        """Measure all stages of one of our systems at one size, and remove the index at the end."""
        check = name == COMPOSED
        system = SYSTEMS["compressed" if check else name]
        real = json_or_empty(self.vectors / "vectors.json")["relevant"] if check else None
        place = f"indexes/{folder_name(name)}-{size}"
        job = {"form": system.form, "documents": size, "real": real, "kind": system.kind}
        job |= {"build": system.build, "folder": f"{place}/index"}
        row: dict[str, Any] = {"system": name, "documents": size}
        changes = self.settings.changes and name not in SEARCHED
        for stage in ("build", "search", "change")[: 3 if changes else 2]:
            more = {"settings": system.settings} if stage == "search" else {}
            row[stage] = self.stage(name, job | more | {"stage": stage})
            if "failed" in row[stage]:
                break
        else:
            remove_folder(self.folder / place, ANY)
        if "ids" not in Composed("", system.form).fields:
            row["truth"] = self.truth(system.form, size, real)
        if row["build"] != NOTHING:
            self.rows.append(row)

    def truth(self, form: str, size: int, real: int | None = None) -> list[list[str]] | None:
        """Return the best documents for each query, or None if they were not computed."""
        job = {"form": form, "documents": size, "real": real, "stage": "truth"}
        return self.stage(f"{form} of {'all' if real is None else real}", job).get("best")

    def measure_peer(self, name: str, size: int, python: str) -> None:
        """Measure how a peer builds and searches an index of the same token vectors as our systems."""
        system, settings = PEERS[name]
        truth, place = self.truth("tokens", size), f"peers/vectors-{size}"
        files = self.folder / place
        row: dict[str, Any] = {"system": name, "documents": size, "truth": truth}
        job = {"system": system, "settings": settings, "k": K, "documents": size, "vectors": place}
        job |= {"folder": f"peers/{system}-{size}"}
        for stage in ("build", "search"):
            whole = job | {"phase": stage, "stage": stage}
            if truth and not self.known(name, whole) and not files.is_dir():
                documents = Composed(str(self.vectors), "tokens", None, self.settings.seed)
                values, lengths = zip(*(rows for _, rows in documents.blocks(0, size)), strict=True)
                with atomic_folder(files, ANY) as fresh:
                    np.save(fresh / "tokens.npy", np.concatenate(values))
                    np.save(fresh / "lengths.npy", np.concatenate(lengths))
                    queries = {str(n): q.vectors[0, 0].numpy() for n, q in enumerate(documents.queries)}
                    np.savez(fresh / "queries.npz", **queries)
                    write_json(fresh / "candidates.json", [list(map(int, ids)) for ids in truth])
            row[stage] = self.stage(name, whole, python)
            if "failed" in row[stage]:
                break
        if row["build"] != NOTHING:
            self.rows.append(row)

    def known(self, name: str, job: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the saved result of a finished stage, or None if there is none.

        A saved search is also accepted if it has more search settings than the job requests.
        """
        file, wanted = self.file(name, job), job.get("settings")
        kept = json_or_empty(file)
        if kept.get("job") != job:
            if not isinstance(wanted, list) or kept.get("job", {}) | {"settings": wanted} != job:
                return None
            rows = {str(row["setting"]): row for row in kept["answer"].get("rows", [])}
            if not all(str(setting) in rows for setting in wanted):
                return None
            kept["answer"] |= {"rows": [rows[str(setting)] for setting in wanted]}
        self.seconds[file] = kept.get("CPU s", 0.0)
        return kept["answer"]

    def file(self, name: str, job: Mapping[str, Any]) -> Path:
        return self.folder / "stages" / f"{folder_name(name)}-{job['documents']}-{job['stage']}.json"

    def stage(self, name: str, job: dict[str, Any], python: str = "") -> dict[str, Any]:
        """Return the result of a stage, read from its file or measured now."""
        if known := self.known(name, job):
            return known
        if self.settings.report:
            return NOTHING
        self.console.print(f"{name}, {job['documents']:,} documents: {job['stage']} …")
        if job["stage"] == "build":
            place = self.folder / job["folder"]
            for old in (place, place.with_name(f".{place.name}.building")):
                remove_folder(old, ANY)
        settings, worker = self.settings, "systems" if python else "growing"
        whole = {"vectors": "vectors"} | job | {"seed": settings.seed, "threads": settings.threads}
        whole |= {name: str(self.folder / whole[name]) for name in ("vectors", "folder") if name in whole}
        before = sum(os.times()[2:4])
        try:
            done = run_worker(worker, whole, python or sys.executable, settings.threads, settings.limit)
        except subprocess.TimeoutExpired:
            answer = {"failed": f"not ended after {settings.limit} s"}
        else:
            if done.returncode:  # the next run tries this stage again
                self.console.print(done.stderr[-2000:])
                return {"failed": done.stderr}
            answer = last_line(done.stdout)
        file = self.file(name, job)
        self.seconds[file] = sum(os.times()[2:4]) - before
        write_json(file, {"job": job, "answer": answer, "CPU s": self.seconds[file]})
        return answer


def prepare(settings: Settings, folder: Path, console: Terminal) -> Path:
    """Write the real documents in every form to a folder, unless a folder with the same settings exists."""
    names = ("collections", "queries", "tokens", "dim", "splade", "backbone", "seed")
    wanted, target = {name: getattr(settings, name) for name in names}, folder / "vectors"
    if json_or_empty(target / "vectors.json").get("settings") == wanted:
        return target
    random = np.random.default_rng(settings.seed)
    model = PARADIGMS["colbert"](settings.backbone).eval()
    stores, corpora, asked, relevant = [], [], [], []
    for n, (name, most) in enumerate(settings.collections.items()):
        collection = load_collection(name)
        test = collection.split("test")
        each = settings.queries // len(settings.collections)
        queries = random.permutation(list(test.queries))[:each].tolist()
        good = {d for query in queries for d, grade in test.judgements[query].items() if grade > 0}
        others = random.permutation([id for id in collection.corpus.ids if id not in good])
        kept = good | set(others[: max(0, most - len(good))] if most else others)
        corpus = collection.corpus.only(kept)
        place = folder / "encoded" / folder_name(name)
        if not place.is_dir():
            console.print(f"Encoding {len(corpus):,} documents of {name} …")
            Store.build(kinds.exact(), model, corpus.ids, corpus, place, progress=True)
        stores.append(open_index(place).store)
        stores[n].check(model)
        corpora.append(corpus)
        asked += [test.queries[query] for query in queries]
        relevant += [(n, id) for id in sorted(good)]
    rest = [(n, id) for n, corpus in enumerate(corpora) for id in corpus.ids if (n, id) not in set(relevant)]
    order = relevant + [rest[place] for place in random.permutation(len(rest))]
    sources = np.array([n for n, _ in order], np.int32)
    texts = [corpora[n][corpora[n].position(id)] for n, id in order]
    with torch.inference_mode():
        questions = model.encode_queries(asked)
    mask = questions.mask[:, 0]
    lengths, rows = mask.sum(1).numpy(), questions.vectors[:, 0][mask].float().numpy()
    pooled = unit(np.add.reduceat(rows, np.concatenate([[0], np.cumsum(lengths)[:-1]])))
    with atomic_folder(target, ANY) as fresh:
        tokens, means = states(settings, stores, order, random)
        axes = tokens.pop("axes")
        asked_tokens = unit(rows @ axes).astype(np.float32), lengths
        write(fresh, "tokens", (tokens["values"], tokens["lengths"]), sources, asked_tokens, settings.seed)
        ones = np.ones(len(order), np.int64)
        one_each = pooled.astype(np.float32), np.ones(len(asked), np.int64)
        write(fresh, "pooled", (means, ones), sources, one_each, settings.seed)
        bm25 = BM25(Corpus([str(n) for n in range(len(texts))], texts))
        matrix = bm25.matrix()
        words = entries(matrix.indices, matrix.data), np.diff(matrix.indptr).astype(np.int64)
        terms = [[bm25.vocabulary[w] for w in bm25.terms(text) if w in bm25.vocabulary] for text in asked]
        counts = [np.unique(np.array(row, np.int64), return_counts=True) for row in terms]
        joined = entries(*(np.concatenate(part) for part in zip(*counts, strict=True)))
        write(fresh, "words", words, sources, (joined, np.array([len(c) for c, _ in counts])), settings.seed)
        if settings.splade:
            splade(fresh, texts[: settings.splade], asked, sources, settings)
        made = {"settings": wanted, "documents": len(order), "relevant": len(relevant)}
        write_json(fresh / "vectors.json", made | {"tokens": len(tokens["values"])})
    return target


def states(
    settings: Settings, stores: Sequence[Store], order: Sequence[tuple[int, str]], random: np.random.Generator
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return each document's first tokens, projected onto the principal axes, and its mean vector.

    The mean is taken over all tokens of the document, at full width.
    """
    places = [(stores[n], stores[n].position(id)) for n, id in order]
    spans = [(store, *store.offsets[row : row + 2].tolist()) for store, row in places]
    sample = random.permutation(len(spans))[: (1 << 17) // settings.tokens]
    drawn = [
        s.columns["vectors"][low : min(high, low + settings.tokens)]
        for s, low, high in map(spans.__getitem__, sample)
    ]
    axes = principal(np.concatenate(drawn).astype(np.float32), settings.dim)
    lengths = np.array([min(high - low, settings.tokens) for _, low, high in spans])
    ends, means = np.cumsum(lengths), np.zeros((len(spans), stores[0].dim), np.float16)
    values = np.empty((int(ends[-1]), settings.dim), np.float16)
    for n, (store, low, high) in enumerate(spans):
        vectors = store.columns["vectors"][low:high].astype(np.float32)
        if len(vectors):
            means[n] = unit(vectors.mean(0, keepdims=True))[0]
            values[ends[n] - lengths[n] : ends[n]] = unit(vectors[: lengths[n]] @ axes)
    return {"values": values, "lengths": lengths, "axes": axes}, means


def splade(
    folder: Path, texts: Sequence[str], asked: Sequence[str], sources: np.ndarray, settings: Settings
) -> None:
    """Write SPLADE's terms and weights for the documents `texts` and the queries `asked`."""
    model = PARADIGMS["splade"]("offline-splade").eval()
    store = Store.build(kinds.inverted(16), model, map(str, range(len(texts))), texts, progress=True)
    rows = store.decoded(slice(None))
    with torch.inference_mode():
        found = model.encode_queries(list(asked))
    assert found.ids is not None
    mask = found.mask[:, 0]
    queries = entries(found.ids[:, 0][mask].numpy(), found.vectors[:, 0, :, 0][mask].numpy())
    documents = entries(rows["ids"], rows["vectors"][:, 0]), np.diff(store.offsets)
    lengths = mask.sum(1).numpy()
    write(folder, "splade", documents, sources[: len(texts)], (queries, lengths), settings.seed)


def entries(ids: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Combine term ids and weights into one structured array."""
    made = np.empty(len(ids), ENTRY)
    made["id"], made["weight"] = ids, weights
    return made


def report(run: Run) -> None:
    """Publish costs, searches, fitted power laws, the check of composed documents, and a figure."""
    costs, searches = [], []
    for row in run.rows:
        built, searched, changed = (row.get(stage, {}) for stage in ("build", "search", "change"))
        name = row["system"]
        cpu = built.get("cpu", built.get("seconds"))
        made = {"system": name, "documents": row["documents"], "build CPU s": cpu}
        made |= {"build MiB": _in(built, "memory", MiB), "MB": _in(built, "bytes", 1e6)}
        made |= {"peak MB": _in(built, "peak", 1e6)}
        opened = searched.get("open", searched.get("cpu", {}).get("opened"))
        made |= {"open s": opened, "search MiB": _in(searched, "memory", MiB)}
        made |= {f"{what} s": changed.get(what) for what in CHANGES}
        if name not in SEARCHED:
            costs.append(made)
        for one in searched.get(
            "rows", [searched | {"setting": PEERS.get(row["system"], ("", {}))[1].get("search")}]
        ):
            if "found" in one:
                searches.append(searched_row(name, row, one))
    costs = [{key: "–" if value is None else value for key, value in row.items()} for row in costs]
    compare_with_xtr(searches)
    shown = [{key: value for key, value in row.items() if not key.startswith("_")} for row in searches]
    fits = fitted(costs, searches)
    made = json_or_empty(run.vectors / "vectors.json")
    text = (
        f"{made['documents']:,} real documents, {made['tokens'] / made['documents']:.1f} tokens each, then "
        f"composed ones; {run.settings.threads} thread of {processor()}, which other work shared. "
        f"{law(searches)}"
    )
    sections = {
        "costs": Section("Costs by documents", "CPU seconds.", costs, picture(costs, searches)),
        "searches": Section("One query alone", "CPU ms: median, and 10th and 90th percentile.", shown),
        "law": Section(
            "Power laws in the number of documents",
            "Exponents with 95% intervals, and what they give beyond the sizes measured.",
            fits,
        ),
    }
    minutes = (sum(run.seconds.values()) + time.process_time()) / 60
    publish(run.settings, "Scale", text, sections, minutes=minutes)


def searched_row(name: str, row: dict[str, Any], one: dict[str, Any]) -> dict[str, Any]:
    milliseconds = 1e3 * np.array(one["seconds"] if "seconds" in one else one["cpu"]["single"])
    low, middle, high = np.quantile(milliseconds, (0.1, 0.5, 0.9)).tolist()
    made = {"system": name, "documents": row["documents"], "setting": described(one["setting"])}
    made |= {"CPU ms": middle, "10%": low, "90%": high, "recall@10": "1"}
    recalls = None
    if "truth" in row:
        made["recall@10"] = "–"
    if row.get("truth"):
        recalls, made["recall@10"] = recall(one["found"], row["truth"])
    kept = {"_ms": milliseconds, "_recalls": recalls, "_found": one["found"]}
    return made | kept | {"_tokens": (one["setting"] or {}).get("search_tokens")}


def recall(found: Sequence[Sequence[Any]], wanted: Sequence[Sequence[str]]) -> tuple[np.ndarray, str]:
    """Return each query's recall of `wanted` in the first `K` of `found`, and the mean with its interval."""
    pairs = zip(found, wanted, strict=True)
    recalls = np.array([len({*map(str, f[:K])} & {*w}) / len(w) for f, w in pairs])
    [interval] = bootstrap_intervals(recalls[None])
    return recalls, bracketed(interval)


def compare_with_xtr(searches: Rows) -> None:
    """Add recall@10 relative to exact XTR with the same k', for searches that estimate XTR's scores."""
    exact = {(r["documents"], r["_tokens"]): r["_found"] for r in searches if r["system"] == XTR}
    for row in searches if exact else ():
        wanted = exact.get((row["documents"], row["_tokens"])) if row["system"] in ESTIMATED else None
        row["of XTR's"] = recall(row["_found"], wanted)[1] if wanted else "–"


def fitted(costs: Sequence[Mapping[str, Any]], searches: Sequence[Mapping[str, Any]]) -> Rows:
    """Fit power laws in the number of documents, and extrapolate beyond the largest measured size.

    Exponents of costs have a Student's t interval over sizes; exponents of search times have a bootstrap
    interval over queries.
    """
    rows: Rows = []
    series: dict[tuple[str, str], dict[int, float]] = {}
    for row in costs:
        for what in ("build CPU s", "MB", "peak MB", "build MiB", "open s", *(f"{c} s" for c in CHANGES)):
            if isinstance(row[what], float | int) and row[what] > 0:
                series.setdefault((row["system"], what), {})[row["documents"]] = row[what]
    for (name, what), points in series.items():
        if len(points) > 1:
            sizes, values = zip(*sorted(points.items()), strict=True)
            rows.append(beyond(name, what, slope(sizes, values), sizes[-1], values[-1]))
    queries: dict[tuple[str, str], dict[int, Mapping[str, Any]]] = {}
    for row in searches:
        queries.setdefault((row["system"], row["setting"]), {})[row["documents"]] = row
    for (name, setting), timed in queries.items():
        if len(timed) > 1:
            sizes = sorted(timed)
            x = np.log(sizes) - np.log(sizes).mean()
            y = np.log(np.stack([timed[size]["_ms"] for size in sizes]))
            [interval] = bootstrap_intervals((x @ (y - y.mean(0)) / (x**2).sum())[None])
            last = timed[sizes[-1]]["CPU ms"]
            rows.append(beyond(name, f"query ms, {setting}", interval, sizes[-1], last))
    return rows


def beyond(name: str, what: str, exponent: Interval, last: int, value: float) -> dict[str, Any]:
    """Make a row that extrapolates a quantity: value · (N / last)^exponent for N in BEYOND."""
    row: dict[str, Any] = {"system": name, "quantity": what, "exponent": bracketed(exponent)}
    return row | {f"{size:,}": value * (size / last) ** exponent.mean for size in BEYOND}


def slope(sizes: Sequence[int], values: Sequence[float]) -> Interval:
    """Fit the slope of log values against log sizes; the interval is NaN if there are only two sizes."""
    x, y = np.log(sizes), np.log(values)
    centred = x - x.mean()
    value = float(centred @ y / (centred**2).sum())
    if len(x) < 3:
        return Interval(value, float("nan"), float("nan"))
    rest = y - y.mean() - value * centred
    error = float(np.sqrt((rest**2).sum() / (len(x) - 2) / (centred**2).sum()))
    reach = float(t.ppf(0.975, len(x) - 2)) * error
    return Interval(value, value - reach, value + reach)


def law(searches: Sequence[Mapping[str, Any]]) -> str:
    """Describe the difference in recall@10 between composed and real documents at the smallest size.

    The difference is averaged over queries, with a bootstrap interval.
    """
    said, composed = [], {row["setting"]: row for row in searches if row["system"] == COMPOSED}
    for row in searches:
        other = composed.get(row["setting"], row)
        same = row["system"] == "compressed" and row["documents"] == other["documents"]
        if same and other is not row and row["_recalls"] is not None and other["_recalls"] is not None:
            [interval] = bootstrap_intervals((other["_recalls"] - row["_recalls"])[None])
            said.append(f"{row['setting']}: {bracketed(interval, '+')}")
    return f"recall@10 of composed minus real documents at the first size: {'; '.join(said)}." if said else ""


def picture(costs: Sequence[Mapping[str, Any]], searches: Sequence[Mapping[str, Any]]) -> Figure:
    """Plot build seconds, bytes on disk and milliseconds per query by number of documents."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 2.9), layout="constrained")
    panels = figure.subplots(1, 3)
    drawn = {"build, CPU s": [(r["system"], r["documents"], r["build CPU s"]) for r in costs]}
    drawn["MB on disk"] = [(r["system"], r["documents"], r["MB"]) for r in costs]
    first: dict[tuple[str, int], tuple[str, int, float]] = {}
    for r in (r for r in searches if r["system"] not in SEARCHED):  # the first search has the kind's defaults
        first.setdefault((r["system"], r["documents"]), (r["system"], r["documents"], r["CPU ms"]))
    drawn["a query, CPU ms"] = list(first.values())
    for axes, (label, points) in zip(panels, drawn.items(), strict=True):
        for name in dict.fromkeys(name for name, _, value in points if isinstance(value, float | int)):
            some = [(size, value) for system, size, value in points if system == name and value != "–"]
            axes.loglog(*zip(*some, strict=True), marker="o", markersize=3, linewidth=1, label=name)
        axes.set_title(label, fontsize=9)
        axes.set_xlabel("documents", fontsize=8)
        axes.tick_params(labelsize=7)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right", fontsize=6, frameon=False)
    return figure


def bracketed(interval: Interval, sign: str = "") -> str:
    if np.isnan(interval.low):
        return f"{interval.mean:{sign}.2f}"
    return f"{interval.mean:{sign}.3f} [{interval.low:{sign}.3f}, {interval.high:{sign}.3f}]"


def described(setting: Mapping[str, Any] | None) -> str:
    """Format a search's settings, or "defaults" if there are none."""
    return ", ".join(f"{name}={value}" for name, value in (setting or {}).items()) or "defaults"


def _in(answer: Mapping[str, Any], name: str, size: float) -> float | None:
    return answer[name] / size if name in answer else None


if __name__ == "__main__":
    main(Settings(**arguments))
