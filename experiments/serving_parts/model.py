"""bytes(N), RAM(N) and seconds(N) of a search over N documents, from what was measured on a few thousand.

Symbols. A document has t vectors of h numbers on average, so there are n = N t; a query has q vectors, which
the kernels score in q' = g⌈q/g⌉ lanes, g = 8 or 16. x: bytes of a vector's id and salience, where the
paradigm reads them. i: bytes of a document's id on disk; r: bytes of a document that a process holds (its id
as a Python string, its place, its offset). Of the machine: B bytes/s read in order, G bytes/s read in LINE =
64 bytes at random places, F FLOP/s of the products that every kernel is made of, on vectors in cache.

    exact       bytes      = n (2h + x) + N (4 + i)
                in order   = n (2h + x)                             all of it, for every query
                FLOPs      = 2 h q' n
                held       = N r
    compressed  K          = 2^round(log₂ 4√n) lists, at most 65,536: they grow as √n, and then no more
                w          = h' b / 8 bytes of codes, h' = h rounded up to whole vectors of codes
                e          = bytes that number n tokens
                bytes      = n (w + 3 + e + x) + K (h' + 12) + 4 h' + 8 + N (4 + i)
                s          = λ n (1 − (1 − p/K)^q) tokens of the p lists that each query vector looks into
                in order   = 4 h' K + e s + c t (w + 3 + x)         centroids, lists, c candidates
                at random  = 64 (lines of codes, scales, documents' numbers, offsets, marks of s tokens)
                FLOPs      = 2 h' q' (K + s + c t)
                held       = N r + K (5h' + 12) + n / 16       centroids, sizes, every 64th token's document
    flat        bytes      = n 4h + N i, in order = n 4h, held = N r    FAISS, which keeps float32 in memory
    seconds     ≥ max(in order / B + at random / G, FLOPs / F)
    machines    = min m: held(N/m) + bytes(N/m) ≤ memory and seconds(N/m) ≤ latency, where that can be

λ is measured: lists drawn at random would have λ = 1; query vectors of one text share more of them, and lists
that are looked into are longer than the mean. A random line is counted once for each token, but never more
lines than the array has. The bound is by what has to be read and multiplied. What a search does beside that
is fitted to measured seconds:

    seconds     = a + ρ · bound,   ρ ≥ 1: of the largest collection; a: the most that ρ ≥ 1 leaves at any size

`bytes` of exact and compressed are those of the files, to the byte but for the manifest and the header of a
safetensors file. Of engines that take over only bytes are modelled: n vectors of 4h bytes for Qdrant, without
its graph, which are to be in RAM, and what was measured of a LanceDB table. How their own indexes behave at
sizes that were not measured is not said here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paradigms.index.codes import centroids_for, padded_width
from paradigms.index.coding import number_bytes

LINE = 64  # bytes that memory gives at once
STRIDE = 64  # tokens between two whose documents an index keeps
EXACT, FLAT = 16, 32  # bits of the numbers of an exact index, and of a flat one of FAISS


@dataclass(frozen=True)
class Shape:
    """What of a paradigm's vectors costs depend on; means over documents and queries."""

    tokens: float  # t
    dim: int  # h
    query: float  # q
    lanes: float  # q'
    extra: int  # x
    id_bytes: float  # i


@dataclass(frozen=True)
class Knobs:
    """How a compressed index is searched, with what was measured of it."""

    probes: int  # p
    candidates: int  # c; 0 where documents are scored from probed tokens alone
    ratio: float  # λ


@dataclass(frozen=True)
class Cost:
    """Of an index of some documents on one machine, and of a query; bytes, but for flops."""

    stored: float
    held: float
    ordered: float
    scattered: float
    flops: float

    @property
    def memory(self) -> float:
        """RAM that keeps the files in the page cache beside what the process holds."""
        return self.held + self.stored


@dataclass(frozen=True)
class Machine:
    """B, G and how much memory."""

    ordered: float
    scattered: float
    memory: float


def exact_cost(shape: Shape, documents: int, held: float) -> Cost:
    """An exact index. held: r."""
    n = documents * shape.tokens
    vectors = n * (2 * shape.dim + shape.extra)
    return Cost(
        stored=vectors + documents * (4 + shape.id_bytes),
        held=documents * held,
        ordered=vectors,
        scattered=0.0,
        flops=2 * shape.dim * shape.lanes * n,
    )


def compressed_cost(shape: Shape, documents: int, held: float, bits: int, knobs: Knobs) -> Cost:
    """A compressed index of `bits` per dimension. held: r."""
    n = documents * shape.tokens
    K, width = centroids_for(round(n)), padded_width(shape.dim, bits)
    codes, number = width * bits // 8, number_bytes(round(n))
    probed = min(n, knobs.ratio * n * drawn(knobs.probes, shape.query, K))
    rescored = min(n, knobs.candidates * shape.tokens)
    lines = (
        _lines(probed, n * codes, -(-codes // LINE))
        + _lines(probed, n)  # scales
        + _lines(probed, 4 * n / STRIDE)  # the document of every 64th token
        + _lines(probed, 8 * documents)  # offsets
        + _lines(probed, 4 * documents)  # marks of documents that were met
        + _lines(probed, documents)  # whether they live
    )
    return Cost(
        stored=n * (codes + 3 + number + shape.extra)
        + K * (width + 12)
        + 4 * width
        + 8
        + documents * (4 + shape.id_bytes),
        held=documents * held + codec_bytes(round(n), width),
        ordered=4 * width * K + number * probed + rescored * (codes + 3 + shape.extra),
        scattered=LINE * lines,
        flops=2 * width * shape.lanes * (K + probed + rescored),
    )


def flat_cost(shape: Shape, documents: int, held: float) -> Cost:
    """A flat index of FAISS. held: r."""
    vectors = 4 * shape.dim * documents * shape.tokens
    return Cost(vectors + documents * shape.id_bytes, documents * held, vectors, 0.0, 0.0)


def drawn(probes: int, query: float, lists: int) -> float:
    """1 − (1 − p/K)^q: the share of K lists that q draws of p among them meet."""
    return 1 - (1 - min(1.0, probes / lists)) ** query


def codec_bytes(tokens: int, width: int) -> float:
    """What a process holds of a compressed index beside its documents: K (5h' + 12) + n / 16."""
    return centroids_for(tokens) * (5 * width + 12) + 4 * tokens / STRIDE


def _lines(reads: float, size: float, each: int = 1) -> float:
    """Lines that so many reads at random places of an array of `size` bytes touch at most."""
    return min(reads * each, math.ceil(size / LINE))


def reading(cost: Cost, machine: Machine) -> float:
    """Seconds that memory takes to give what one query reads."""
    return cost.ordered / machine.ordered + cost.scattered / machine.scattered


def bound(cost: Cost, machine: Machine, flops: float) -> float:
    """Seconds of a query at least. flops: F."""
    return max(reading(cost, machine), cost.flops / flops)


def fitted(measured: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """a and ρ of seconds = a + ρ · bound, from (seconds, bound) of collections, the largest last."""
    fixed = max(0.0, min(seconds - least for seconds, least in measured))
    last, most = measured[-1]
    return fixed, max(1.0, (last - fixed) / most)


def machines(fits: Callable[[int], bool], documents: int) -> int:
    """The fewest machines among which documents can be divided evenly, so many fitting each or not.

    ValueError where no number of machines is enough.
    """

    def enough(count: int) -> bool:
        return fits(math.ceil(documents / count))

    high = 1
    while not enough(high):
        if high >= documents:
            raise ValueError("a machine does not even hold one document")
        high *= 2
    low = high // 2  # not enough, or 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


# --- what to take -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Option:
    """An engine for one paradigm and number of documents. None: not known, or (machines) not set by RAM."""

    engine: str
    stored: float  # bytes in all
    memory: float | None  # RAM in all
    machines: int | None
    reading: float | None  # seconds: the bound by reading memory, documents divided among the machines
    seconds: float | None  # as fitted
    recall: float | None  # measured, at the size that was encoded
    takes_over: bool = False  # an engine for when one machine is outgrown


@dataclass(frozen=True)
class Wanted:
    """What a choice has to keep."""

    latency: float
    recall: float
    machines: int  # of another engine's cluster, at most


# Rule -> what it says, in the order in which rules are tried.
RULES = {
    "one machine": "what finds most of all that fit one machine, answer in time and find enough; of equals "
    "the fastest",
    "cluster": "else Qdrant, where its vectors fit the RAM of so few machines as are wanted",
    "disks": "else LanceDB, whose table lies on disks or in an object store: RAM sets no limit",
    "shards": "where neither knows the paradigm's rel: the index that finds enough and takes the fewest "
    "machines, documents divided among them and their lists of the best merged",
}


def choose(options: Sequence[Option], wanted: Wanted) -> tuple[Option, str]:
    """The option to take, and which of RULES says so. ValueError where there is none."""
    here = [option for option in options if not option.takes_over]
    enough = [o for o in here if o.recall is not None and o.recall >= wanted.recall]
    in_time = [o for o in enough if o.machines == 1 and (o.seconds or 0.0) <= wanted.latency]
    if in_time:
        return max(in_time, key=lambda option: (option.recall, -(option.seconds or 0.0))), "one machine"
    others = {option.engine: option for option in options if option.takes_over}
    qdrant = others.get("Qdrant")
    if qdrant is not None and qdrant.machines is not None and qdrant.machines <= wanted.machines:
        return qdrant, "cluster"
    if "LanceDB" in others:
        return others["LanceDB"], "disks"
    if not here:
        raise ValueError("there is nothing to choose from")
    ranked = enough or [max(here, key=lambda option: option.recall or 0.0)]
    return min(ranked, key=lambda option: option.machines or math.inf), "shards"
