"""The tables of serving_costs.py: what was measured, the model beside it, and what to take."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from serving_parts.measure import Way, recall
from serving_parts.model import (
    EXACT,
    FLAT,
    RULES,
    Cost,
    Machine,
    Option,
    Wanted,
    bound,
    choose,
    codec_bytes,
    compressed_cost,
    exact_cost,
    fitted,
    flat_cost,
    machines,
    reading,
)
from serving_parts.paradigm import NAMES, Measured
from studies.pages import Section

from paradigms.index.codes import padded_width

if TYPE_CHECKING:
    from serving_costs import Settings

Row = dict[str, Any]


def sections(
    settings: Settings,
    where: Mapping[str, Any],
    speeds: Sequence[Row],
    machine: Machine,
    all: Sequence[Measured],
) -> dict[str, Section]:
    """Every table by the name of its file."""
    encoded = all[0].ways[NAMES[EXACT]].documents
    return {
        "machine": Section(
            "Measured: the machine",
            "; ".join(f"{name} {value}" for name, value in where.items())
            + f"; GB/s of reading {settings.read:g} GiB, at random in lines of 64 bytes.",
            [{"threads": r["threads"]} | {k: r[k] / 1e9 for k in ("in order", "at random")} for r in speeds],
        ),
        "vectors": Section(
            "Measured: vectors",
            f"{encoded:,} documents and {settings.queries} queries of {settings.collection}. "
            "GFLOP/s: of the kernels, with such vectors in cache.",
            [vectors_row(m) for m in all],
        ),
        "engines": Section(
            "Measured: engines",
            "Seconds of building from vectors, without encoding; milliseconds of single queries that came "
            f"encoded, {settings.threads} threads, of each the fastest of {settings.rounds} rounds: median, "
            "10th and 90th percentile over queries; bytes on disk with ids; heap: what a process holds "
            f"after a query. recall@{settings.k}: of the paradigm's own exact search, and of exact MaxSim."
            + left_out(all),
            [engine_row(m, way, settings) for m in all for way in m.ways.values()],
        ),
        "check": Section(
            "The model against measured seconds",
            f"Above {encoded:,} documents vectors are SYNTHETIC, copies near those encoded. "
            "Reading and kernel: the two bounds; λ: see the model. What lies in a cache is read faster than "
            "memory gives.",
            [row for m in all for row in check_rows(m, machine, settings)],
        ),
        "fit": Section(
            "The model fitted: seconds = a + ρ · bound",
            "a: the least of measured less bound. ρ: of the largest collection, 1 at least. Lists that "
            "a query vector looks into, and candidates that are scored in full: the fewest of 8, 16, … and "
            f"64, 128, … with which the index of {settings.checked} bits finds {settings.recall:g} of the "
            "exact search's documents at the size encoded; else all lists, and an eighth of the documents.",
            [row for m in all for row in fit_rows(m, machine, settings)],
        ),
        "options": Section(
            "Model: every engine at every size",
            f"Extrapolated, not measured. Machines of {settings.machine_memory:g} GiB side by side, "
            "documents divided among them: the fewest that hold them and, where that can be, answer in "
            "time. Reading: the bound by reading memory; expected: a + ρ · the larger of the bounds by "
            "reading and by the kernels. Recall is that of the size encoded, and falls as collections "
            "grow. Qdrant: float32 vectors alone, without its graph; LanceDB: bytes as measured. Their "
            "reading is that of an exhaustive search (LanceDB: by one machine, as if all were in RAM); what "
            "their own indexes do at such sizes is not known here.",
            [
                option_row(m, n, o)
                for m in all
                for n in settings.sizes
                for o in options(m, n, machine, settings)
            ],
        ),
        "choice": Section(
            "Model: which engine to take",
            f"{settings.latency:g} s a query, recall {settings.recall:g} of the exact search, machines of "
            f"{settings.machine_memory:g} GiB, at most {settings.most_machines} of another engine's. "
            + "; ".join(f"{rule}: {says}" for rule, says in RULES.items())
            + ".",
            [choice_row(m, n, machine, settings) for m in all for n in settings.sizes],
        ),
    }


def left_out(all: Sequence[Measured]) -> str:
    """Which engines were not asked, and why, in words."""
    absent = sorted({engine for m in all for engine in m.missing})
    other = [m.name for m in all if not m.maxima]
    said = f" Not installed, and left out: {', '.join(absent)}." if absent else ""
    if other:
        said += f" No other engine knows the rel of {', '.join(other)}, which is no sum of maxima."
    return said


def vectors_row(m: Measured) -> Row:
    """A paradigm's vectors and the speed of the kernels with them."""
    s = m.shape
    return {
        "paradigm": m.name,
        "vectors/document": s.tokens,
        "h": s.dim,
        "vectors/query": s.query,
        "GFLOP/s": m.flops / 1e9,
    }


def engine_row(m: Measured, way: Way, settings: Settings) -> Row:
    """An engine at the size that was encoded."""
    low, high = way.timed.spread
    return {
        "paradigm": m.name,
        "engine": way.engine,
        "bytes/document": way.stored / way.documents,
        "heap/document": way.held and way.held / way.documents,
        "build s": way.build,
        "ms": 1e3 * way.timed.median,
        "10%": 1e3 * low,
        "90%": 1e3 * high,
        f"recall@{settings.k}": recall(way.timed.found, m.wanted),
        "of MaxSim": m.by_maxima and recall(way.timed.found, m.by_maxima),
    }


# --- the model with what was measured ------------------------------------------------------------------


def cost_of(m: Measured, bits: int, documents: int, settings: Settings) -> Cost:
    """What an index of so many bits costs. r is that of the largest collection; a flat index, which was not
    asked for it, holds ids as an exact one does."""
    largest = m.checked[-1]
    if bits in (EXACT, FLAT):
        own = held(m, largest[EXACT], EXACT)
        return (exact_cost if bits == EXACT else flat_cost)(m.shape, documents, own)
    own = held(m, largest[settings.checked], settings.checked)
    return compressed_cost(m.shape, documents, own, bits, m.knobs)


def held(m: Measured, way: Way, bits: int) -> float:
    """r, from the heap of a process that searched an index of this project."""
    tokens = round(way.documents * m.shape.tokens)
    codec = 0.0 if bits == EXACT else codec_bytes(tokens, padded_width(m.shape.dim, bits))
    return max(0.0, ((way.held or 0) - codec) / way.documents)


def check_rows(m: Measured, machine: Machine, settings: Settings) -> list[Row]:
    """Measured seconds beside the bound, at every size."""
    rows = []
    for size in m.checked:
        for bits, way in size.items():
            cost = cost_of(m, bits, way.documents, settings)
            synthetic = way.documents > m.ways[NAMES[EXACT]].documents
            rows.append(
                {
                    "paradigm": m.name,
                    "engine": way.engine,
                    "documents": way.documents,
                    "vectors": "synthetic" if synthetic else "real",
                    "MB": way.stored / 1e6,
                    "MB by model": cost.stored / 1e6,
                    "λ": way.measured.get("λ"),
                    "ms": 1e3 * way.timed.median,
                    "reading ms": 1e3 * reading(cost, machine),
                    "kernel ms": 1e3 * cost.flops / m.flops,
                    "measured / bound": way.timed.median / bound(cost, machine, m.flops),
                    "recall": recall(way.timed.found, size[EXACT].timed.found),
                }
            )
    return rows


def fit(m: Measured, bits: int, machine: Machine, settings: Settings) -> tuple[float, float]:
    """a and ρ of an index; of every compressed one those of the one that was searched at all sizes."""
    of = bits if bits in (EXACT, FLAT) else settings.checked
    ways = [size[of] for size in m.checked]
    costs = [cost_of(m, of, way.documents, settings) for way in ways]
    return fitted(
        [(way.timed.median, bound(c, machine, m.flops)) for way, c in zip(ways, costs, strict=True)]
    )


def fit_rows(m: Measured, machine: Machine, settings: Settings) -> list[Row]:
    """a and ρ of every index that was searched at all sizes."""
    return [
        {
            "paradigm": m.name,
            "engine": NAMES[bits],
            "a, ms": 1e3 * a,
            "ρ": rho,
            "lists": m.knobs.probes if bits == settings.checked else None,
            "candidates": m.knobs.candidates if bits == settings.checked else None,
        }
        for bits in m.checked[0]
        for a, rho in [fit(m, bits, machine, settings)]
    ]


def options(m: Measured, documents: int, machine: Machine, settings: Settings) -> list[Option]:
    """What there is for one paradigm and size."""
    here = [bits for bits in (FLAT, EXACT, *settings.bits) if NAMES[bits] in m.ways]
    found = [index_option(m, bits, documents, machine, settings) for bits in here]
    return found + ([qdrant_option(m, documents, machine), lance_option(m, documents, machine)] * m.maxima)


def index_option(m: Measured, bits: int, documents: int, machine: Machine, settings: Settings) -> Option:
    """An index, on the fewest machines that hold it and answer in time; that only hold it where a is more."""
    fixed, rho = fit(m, bits, machine, settings)

    def seconds(share: int) -> float:
        return fixed + rho * bound(cost_of(m, bits, share, settings), machine, m.flops)

    latency = settings.latency if seconds(1) < settings.latency else math.inf

    def fits(share: int) -> bool:
        return cost_of(m, bits, share, settings).memory <= machine.memory and seconds(share) <= latency

    count = machines(fits, documents)
    share = math.ceil(documents / count)
    cost = cost_of(m, bits, share, settings)
    return Option(
        engine=NAMES[bits],
        stored=count * cost.stored,
        memory=count * cost.memory,
        machines=count,
        reading=reading(cost, machine),
        seconds=seconds(share),
        recall=_recall(m, NAMES[bits]),
    )


def qdrant_option(m: Measured, documents: int, machine: Machine) -> Option:
    """Float32 vectors in the RAM of a cluster: nothing of it was measured."""
    vectors = 4 * m.shape.dim * m.shape.tokens * documents
    count = math.ceil(vectors / machine.memory)
    time = vectors / machine.ordered / count
    return Option("Qdrant", vectors, vectors, count, time, None, _recall(m, "Qdrant"), takes_over=True)


def lance_option(m: Measured, documents: int, machine: Machine) -> Option:
    """A table as large as the measured one, or float32 vectors alone where there is none."""
    way = m.ways.get("LanceDB")
    each = way.stored / way.documents if way else 4 * m.shape.dim * m.shape.tokens
    stored = each * documents
    time = stored / machine.ordered
    return Option("LanceDB", stored, None, None, time, None, _recall(m, "LanceDB"), takes_over=True)


def _recall(m: Measured, engine: str) -> float | None:
    return recall(m.ways[engine].timed.found, m.wanted) if engine in m.ways else None


def option_row(m: Measured, documents: int, option: Option) -> Row:
    """An option, for the table."""
    return {
        "paradigm": m.name,
        "documents": documents,
        "engine": option.engine,
        "bytes": option.stored,
        "RAM": option.memory,
        "machines": option.machines,
        "reading ms": option.reading and 1e3 * option.reading,
        "expected ms": option.seconds and 1e3 * option.seconds,
        "recall, measured": option.recall,
    }


def choice_row(m: Measured, documents: int, machine: Machine, settings: Settings) -> Row:
    """What to take, and by which rule."""
    wanted = Wanted(settings.latency, settings.recall, settings.most_machines)
    found = options(m, documents, machine, settings)
    option, rule = choose(found, wanted)
    divided = next(o.machines for o in found if o.engine == NAMES[settings.checked])
    return option_row(m, documents, option) | {f"machines, {NAMES[settings.checked]}": divided, "rule": rule}
