"""The inner loops of the token indexes, compiled for the processor at hand by numba when first called.

All of them score tiles: ROWS document tokens against LANES query tokens at a time,

    out[r, j] = Σ_h rows[r, h] · queries[h, j],

the only loop that is spelled out in vector instructions (LLVM's, so of any processor); what is around it is
plain numba. Document tokens come as float16 or as codes and become float32 in a buffer of ROWS rows that
never leaves the first-level cache, and maxima over a document's tokens are taken as they come out of a tile.
So each stored byte is read once, and nothing of the size of the corpus is written.

Every kernel releases the interpreter lock and runs on one thread; callers split the documents or the queries.
Compiled code is kept beside this file, or in the user's cache folder. `no_type_check` keeps the run-time type
checks of the tests away: numba reads a function's own code.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, call-arg, import-untyped"
from __future__ import annotations

from typing import NamedTuple, no_type_check

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16  # query tokens of a tile: one register of AVX-512, two of AVX2, four of NEON
ROWS = 8  # document tokens of a tile: as many running sums hide the latency of a fused multiply-add
LINE = 64  # bytes that memory gives at once
AHEAD = 16  # tokens that are asked for before their turn, where the processor cannot see them coming
STRIDE = 64  # tokens between two whose documents are kept: the next ones are found from there

_INDEX = ir.IntType(64)
_INT = ir.IntType(32)
_FLOAT = ir.FloatType()
_FLOATS = ir.VectorType(_FLOAT, LANES)
_INTS = ir.VectorType(_INT, LANES)
_BYTES = ir.VectorType(ir.IntType(8), LANES)
_HALVES = ir.VectorType(ir.HalfType(), LANES)


def pack(queries: np.ndarray) -> np.ndarray:
    """Query tokens [j, h] as tiles [⌈j/LANES⌉, h, LANES], float32, filled up with zeros."""
    count, width = queries.shape
    tiles = max(1, -(-count // LANES))
    full = np.zeros((tiles * LANES, width), dtype=np.float32)
    full[:count] = queries
    return np.ascontiguousarray(full.reshape(tiles, LANES, width).transpose(0, 2, 1))


# --- written in LLVM's vector instructions; arguments are addresses and counts -----------------------


@no_type_check
@intrinsic
def _dot_tile(typing, rows, queries, out, width):
    """out[r, j] = Σ_h rows[r, h] · queries[h, j] of float32, r < ROWS, j < LANES; h < width."""

    def generate(context, builder, signature, arguments):
        rows, queries, out, width = arguments
        rows = builder.inttoptr(rows, _FLOAT.as_pointer())
        queries, out = (builder.inttoptr(a, _FLOATS.as_pointer()) for a in (queries, out))
        before = builder.basic_block
        loop, after = builder.append_basic_block("loop"), builder.append_basic_block("after")
        builder.branch(loop)
        builder.position_at_end(loop)
        at = builder.phi(_INDEX)
        sums = [builder.phi(_FLOATS) for _ in range(ROWS)]
        query = _load(builder, builder.gep(queries, [at]), 4)
        new = []
        for r, total in enumerate(sums):
            place = builder.add(builder.mul(width, _INDEX(r)), at)
            value = _spread(builder, _load(builder, builder.gep(rows, [place]), 4))
            product = builder.fmul(value, query, flags=("contract",))
            new.append(builder.fadd(total, product, flags=("contract",)))
        following = builder.add(at, _INDEX(1))
        at.add_incoming(_INDEX(0), before)
        at.add_incoming(following, loop)
        for total, value in zip(sums, new, strict=True):
            total.add_incoming(ir.Constant(_FLOATS, [0.0] * LANES), before)
            total.add_incoming(value, loop)
        builder.cbranch(builder.icmp_signed("<", following, width), loop, after)
        builder.position_at_end(after)
        for r, value in enumerate(new):
            _store(builder, value, builder.gep(out, [_INDEX(r)]))
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp, types.intp), generate


@no_type_check
@intrinsic
def _widen(typing, source, target, count):
    """target[i] = float32(source[i]) of `count` float16; a multiple of LANES."""

    def generate(context, builder, signature, arguments):
        source, target, count = arguments
        source = builder.inttoptr(source, _HALVES.as_pointer())
        target = builder.inttoptr(target, _FLOATS.as_pointer())
        with cgutils.for_range(builder, builder.udiv(count, _INDEX(LANES))) as loop:
            values = builder.fpext(_load(builder, builder.gep(source, [loop.index]), 2), _FLOATS)
            _store(builder, values, builder.gep(target, [loop.index]))
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), generate


@no_type_check
@intrinsic
def _unpack(typing, source, target, count, bits):
    """float32 of the codes in `count` bytes: those in the lowest bits of all bytes, then the next, …"""

    def generate(context, builder, signature, arguments):
        source, target, count, bits = arguments
        source = builder.inttoptr(source, _BYTES.as_pointer())
        target = builder.inttoptr(target, _FLOATS.as_pointer())
        step, bits = builder.udiv(count, _INDEX(LANES)), builder.trunc(bits, _INT)
        mask = _spread(builder, builder.sub(builder.shl(_INT(1), bits), _INT(1)))
        parts = builder.zext(builder.udiv(_INT(8), bits), _INDEX)
        with cgutils.for_range(builder, step) as chunk:
            packed = builder.zext(_load(builder, builder.gep(source, [chunk.index]), 1), _INTS)
            with cgutils.for_range(builder, parts) as part:
                shift = _spread(builder, builder.mul(builder.trunc(part.index, _INT), bits))
                codes = builder.and_(builder.lshr(packed, shift), mask)
                place = builder.add(builder.mul(part.index, step), chunk.index)
                _store(builder, builder.sitofp(codes, _FLOATS), builder.gep(target, [place]))
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp, types.intp), generate


@no_type_check
@intrinsic
def _prefetch(typing, address):
    """Ask for the memory at an address, without waiting for it."""

    def generate(context, builder, signature, arguments):
        pointer = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [pointer, _INT, _INT, _INT])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [builder.inttoptr(arguments[0], pointer), _INT(0), _INT(3), _INT(1)])
        return context.get_dummy_value()

    return types.void(types.intp), generate


def _load(builder, pointer, align):
    value = builder.load(pointer)
    value.align = align  # of one element: arrays that are read in place begin anywhere
    return value


def _store(builder, value, pointer):
    builder.store(value, pointer).align = 4


def _spread(builder, value):
    """One value in all lanes."""
    vector = ir.VectorType(value.type, LANES)
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), value, _INT(0))
    return builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), ir.Constant(_INTS, [0] * LANES))


class Coded(NamedTuple):
    """Tokens as codes: xᵢ ≈ C[centroids[i]] + levels[scales[i]] · spread · (code − (2^bits − 1) / 2)."""

    codes: np.ndarray  # uint8 [tokens, h · bits / 8], as `_unpack` reads them
    bits: int
    scales: np.ndarray  # uint8 [tokens]
    levels: np.ndarray  # float32 [256]
    centroids: np.ndarray  # of each token


class CodedQuery(NamedTuple):
    """What scores coded tokens: xᵢᵀ qⱼ ≈ similarities[cᵢ, j] + scale · (codeᵀ tile_j − centre[j])."""

    similarities: np.ndarray  # C Q, float32 [K, lanes]
    tiles: np.ndarray  # of spread · Q, as `pack` makes them
    centre: np.ndarray  # (2^bits − 1) / 2 · Σ_h spread · Q, float32 [lanes]


class Lists(NamedTuple):
    """The tokens of each centroid, and the document of each token."""

    entries: np.ndarray  # uint8 [tokens, bytes]: numbers of tokens, little-endian, list by list
    offsets: np.ndarray  # int64 [documents + 1]: where the tokens of each document begin
    owners: np.ndarray  # owners[n]: the document of token n · STRIDE
    alive: np.ndarray  # bool [documents]


# --- kernels ------------------------------------------------------------------------------------------


@no_type_check
@njit(nogil=True, cache=True)
def products(vectors, queries, out):
    """out[i, j] = vectors[i]ᵀ queries[j] of float32 vectors [i, h]; queries as `pack` makes them."""
    (count, width), tiles = vectors.shape, queries.shape[0]
    rows = np.zeros((ROWS, width), np.float32)
    found = np.empty((ROWS, LANES), np.float32)
    for first in range(0, count, ROWS):
        some = min(ROWS, count - first)
        source = vectors[first:].ctypes.data
        if some < ROWS:
            rows[:some] = vectors[first:]
            source = rows.ctypes.data
        for tile in range(tiles):
            _dot_tile(source, queries[tile].ctypes.data, found.ctypes.data, width)
            for r in range(some):
                for j in range(LANES):
                    out[first + r, tile * LANES + j] = found[r, j]


@no_type_check
@njit(nogil=True, cache=True)
def maxima(vectors, starts, stops, queries, out):
    """out[n, j] = max_i vectors[i]ᵀ queries[j], i from starts[n] up to stops[n]; −∞ where there is none.

    vectors: float16 seen as uint16 [tokens, h], h a multiple of LANES. queries: as `pack` makes them.
    """
    width, tiles = vectors.shape[1], queries.shape[0]
    rows = np.zeros((ROWS, width), np.float32)
    products = np.empty((ROWS, LANES), np.float32)
    source, target = vectors.ctypes.data, rows.ctypes.data
    for n in range(starts.shape[0]):
        out[n] = -np.inf
        if n + 1 < starts.shape[0] and starts[n + 1] != stops[n]:  # else the processor sees it coming
            for byte in range(0, min(AHEAD, stops[n + 1] - starts[n + 1]) * width * 2, LINE):
                _prefetch(source + starts[n + 1] * width * 2 + byte)
        for first in range(starts[n], stops[n], ROWS):
            count = min(ROWS, stops[n] - first)
            _widen(source + first * width * 2, target, count * width)
            for tile in range(tiles):
                _dot_tile(target, queries[tile].ctypes.data, products.ctypes.data, width)
                best = out[n, tile * LANES : (tile + 1) * LANES]
                for r in range(count):
                    for j in range(LANES):
                        best[j] = max(best[j], products[r, j])


@no_type_check
@njit(nogil=True, cache=True)
def coded_maxima(coded, query, starts, stops, out):
    """out[n, j] as in `maxima`, of coded tokens and a coded query."""
    packed, (tiles, width, _) = coded.codes.shape[1], query.tiles.shape
    rows = np.zeros((ROWS, width), np.float32)
    products = np.empty((ROWS, LANES), np.float32)
    source, target = coded.codes.ctypes.data, rows.ctypes.data
    for n in range(starts.shape[0]):
        out[n] = -np.inf
        for first in range(starts[n], stops[n], ROWS):
            count = min(ROWS, stops[n] - first)
            for r in range(count):
                _unpack(source + (first + r) * packed, target + r * width * 4, packed, coded.bits)
            for tile in range(tiles):
                _dot_tile(target, query.tiles[tile].ctypes.data, products.ctypes.data, width)
                for r in range(count):
                    near = query.similarities[coded.centroids[first + r]]
                    _raise(
                        out[n], tile, near, coded.levels[coded.scales[first + r]], products[r], query.centre
                    )


@no_type_check
@njit(inline="always")
def _raise(best, tile, similarities, scale, products, centre):
    """best = max(best, similarities + scale · (products − centre)) in the lanes of a tile."""
    lanes = slice(tile * LANES, (tile + 1) * LANES)
    best, similarities, centre = best[lanes], similarities[lanes], centre[lanes]
    for j in range(LANES):
        best[j] = max(best[j], similarities[j] + scale * (products[j] - centre[j]))


@no_type_check
@njit(nogil=True, cache=True)
def probe(coded, query, lists, chosen, begins, ends, slots, documents, best):
    """best[n, j]: the largest similarity of query token j to the tokens of documents[n] in the chosen lists.

    begins[l], ends[l]: where the tokens of list chosen[l] lie among the entries. slots: −1 for every
    document, and left so. Returns how many documents were met; as many rows are filled.
    """
    packed, (tiles, width, _) = coded.codes.shape[1], query.tiles.shape
    rows = np.zeros((ROWS, width), np.float32)
    products = np.empty((ROWS, LANES), np.float32)
    tokens, places = np.empty(ROWS, np.int64), np.empty(ROWS, np.int64)
    source, target = coded.codes.ctypes.data, rows.ctypes.data
    met = 0
    for n in range(chosen.shape[0]):
        near = query.similarities[chosen[n]]
        for first in range(begins[n], ends[n], ROWS):
            count = 0
            for entry in range(first, min(first + ROWS, ends[n])):
                token = _number(lists.entries[entry])
                document = _owner(lists, token)
                if not lists.alive[document]:
                    continue
                if slots[document] < 0:
                    slots[document] = met
                    documents[met] = document
                    best[met] = -np.inf
                    met += 1
                tokens[count], places[count] = token, slots[document]
                count += 1
            for entry in range(first + AHEAD, min(first + AHEAD + ROWS, lists.entries.shape[0])):
                _prefetch(source + _number(lists.entries[entry]) * packed)
            for r in range(count):
                _unpack(source + tokens[r] * packed, target + r * width * 4, packed, coded.bits)
            for tile in range(tiles):
                _dot_tile(target, query.tiles[tile].ctypes.data, products.ctypes.data, width)
                for r in range(count):
                    scale = coded.levels[coded.scales[tokens[r]]]
                    _raise(best[places[r]], tile, near, scale, products[r], query.centre)
    for n in range(met):
        slots[documents[n]] = -1
    return met


@no_type_check
@njit(inline="always")
def _owner(lists, token):
    """The document of a token."""
    document = np.int64(lists.owners[token // STRIDE])
    while lists.offsets[document + 1] <= token:
        document += 1
    return document


@no_type_check
@njit(inline="always")
def _number(bytes):
    value = np.int64(0)
    for n in range(bytes.shape[0]):
        value |= np.int64(bytes[n]) << (8 * n)
    return value


@no_type_check
@njit(nogil=True, cache=True)
def cut(lists, begins, ends, token, out):
    """out[n]: the first entry from begins[n] up to ends[n] that is at least `token`; entries ascend."""
    for n in range(begins.shape[0]):
        low, high = begins[n], ends[n]
        while low < high:
            middle = (low + high) // 2
            if _number(lists.entries[middle]) < token:
                low = middle + 1
            else:
                high = middle
        out[n] = low
