"""Compute products of document and query tokens with LLVM, in tiles that fit in the processor's registers.

    out[r, j] = Σ_h rows[r, h] · queries[h, j]

A tile is a few rows and one, two or three GRAINs of query tokens. The sums stay in registers, so the shape of
tiles depends on the host (`NUMBA_CPU_NAME`, `NUMBA_CPU_FEATURES`), which is detected at import. Stored files
do not depend on the shape. Intrinsics take addresses and counts as integers, without any checks.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, call-arg, import-untyped"
from typing import NamedTuple, no_type_check

import numpy as np
from llvmlite import binding, ir
from numba import njit, types
from numba.core import cgutils, config
from numba.core.codegen import get_host_cpu_features
from numba.extending import intrinsic

from paradigms.scoring import VECTOR


class Registers(NamedTuple):
    """The vector registers of a processor."""

    number: int
    lanes: int  # float32 numbers per register
    halves: bool  # whether an instruction widens float16


def registers(architecture: str, features: str, name: str | None = None) -> Registers:
    """Return the vector registers available to code compiled for these features.

    features: features in LLVM's notation, "+avx2,-avx512f,…"; if empty, `name` decides.
    """
    if architecture.startswith(("aarch64", "arm64")):
        return Registers(32, 4, True)
    if not architecture.startswith("x86"):
        return Registers(16, 4, False)
    if not features and name:
        features = "" if name in ("generic", "x86-64", "core2", "nehalem") else "+avx2,+f16c"
    enabled = set(features.split(","))
    if "+avx512f" in enabled:
        return Registers(32, 16, True)
    return Registers(16, 8 if "+avx2" in enabled else 4, "+f16c" in enabled)


def _host() -> Registers:
    features = config.CPU_FEATURES  # type: ignore[attr-defined]
    if features is None:
        features = get_host_cpu_features()
    return registers(binding.get_process_triple(), features, config.CPU_NAME)  # type: ignore[attr-defined]


HOST = _host()
GRAIN = max(8, HOST.lanes)  # query tokens per grain; a tile has one, two or three grains
# Document tokens of a tile of one, two and three grains: the sums, a row of queries and one value must fit in
# the registers; more than 8 tokens gain nothing.
ROWS = tuple(min(8, HOST.number * 3 // 4 // (n * GRAIN // HOST.lanes)) for n in (1, 2, 3))
BLOCK = 24  # document tokens widened at once: a multiple of all ROWS
LINE = 64  # bytes of a cache line
UNROLLED = 4  # steps of h in one iteration of the loop

_INDEX = ir.IntType(64)
_INT = ir.IntType(32)
_BYTE = ir.IntType(8)
_FLOAT = ir.FloatType()
_FLOATS = ir.VectorType(_FLOAT, GRAIN)


class QueryTiles(NamedTuple):
    """Query tokens as consecutive tiles [h, lanes]: tile t has grains edges[t] to edges[t + 1]."""

    tiles: np.ndarray  # float32 [grains · GRAIN · h]
    edges: np.ndarray  # int64 [tiles + 1]

    @property
    def lanes(self) -> int:
        return int(self.edges[-1]) * GRAIN


def pack(queries: np.ndarray) -> QueryTiles:
    """Pack query tokens [j, h], zero-padded to whole grains, in tiles of two grains.

    The last tile has one to three grains.
    """
    count, width = queries.shape
    grains = max(1, -(-count // GRAIN))
    full = np.zeros((grains * GRAIN, width), np.float32)
    full[:count] = queries
    cut = max(0, grains - 2 - grains % 2)
    twos = full[: cut * GRAIN].reshape(-1, 2 * GRAIN, width).transpose(0, 2, 1)
    tiles = np.concatenate([twos.ravel(), full[cut * GRAIN :].T.ravel()])
    return QueryTiles(tiles, np.array([*range(0, cut + 1, 2), grains], np.int64))


def _dot_tile(grains: int):
    """Make `dots` as an intrinsic without the argument `grains`, which is fixed to one, two or three."""
    height = ROWS[grains - 1]

    @intrinsic
    def dot_tile(typing, rows, queries, out, width, count, ahead):
        def generate(context, builder, signature, arguments):
            rows, queries, out, width, count, ahead = arguments
            queries = builder.inttoptr(queries, _FLOATS.as_pointer())
            out = builder.inttoptr(out, _FLOATS.as_pointer())
            rows = builder.inttoptr(rows, _FLOAT.as_pointer())
            groups = builder.udiv(builder.add(count, _INDEX(height - 1)), _INDEX(height))
            with cgutils.for_range(builder, groups) as group:
                first = builder.mul(group.index, _INDEX(height))
                places = [builder.mul(width, builder.add(first, _INDEX(r))) for r in range(height)]
                starts = [builder.gep(rows, [place]) for place in places]
                turns = builder.mul(group.index, width)
                sums = _sums(builder, starts, queries, width, grains, turns, ahead)
                cells = builder.gep(out, [builder.mul(first, _INDEX(grains))])
                for cell, value in enumerate(sums):
                    _store(builder, value, builder.gep(cells, [_INDEX(cell)]))
            return context.get_dummy_value()

        return _nothing(6), generate

    return no_type_check(dot_tile)


def _sums(builder, starts, queries, width, grains: int, turns, ahead):
    """Write the loop over h that computes a tile's sums, which stay in registers; return the sums.

    starts: pointers to the rows. turns: features of earlier groups of rows. ahead: address from which to
    prefetch, evenly over all features.
    """
    before = builder.basic_block
    loop = builder.append_basic_block("loop")
    after = builder.append_basic_block("after")
    builder.branch(loop)
    builder.position_at_end(loop)
    at = builder.phi(_INDEX)
    sums = [builder.phi(_FLOATS) for _ in range(len(starts) * grains)]
    turn = builder.add(turns, at)
    _prefetch(builder, builder.add(ahead, builder.mul(turn, _INDEX(LINE // UNROLLED))))
    new = list(sums)
    for step in range(UNROLLED):
        h = builder.add(at, _INDEX(step))
        place = builder.mul(h, _INDEX(grains))
        pointers = [builder.gep(queries, [builder.add(place, _INDEX(n))]) for n in range(grains)]
        query = [_load(builder, pointer, 4) for pointer in pointers]
        for r, start in enumerate(starts):
            value = _spread(builder, _load(builder, builder.gep(start, [h]), 4), GRAIN)
            for cell, part in enumerate(query, r * grains):
                product = builder.fmul(value, part, flags=("contract",))
                new[cell] = builder.fadd(new[cell], product, flags=("contract",))
    following = builder.add(at, _INDEX(UNROLLED))
    at.add_incoming(_INDEX(0), before)
    at.add_incoming(following, loop)
    for total, value in zip(sums, new, strict=True):
        total.add_incoming(ir.Constant(_FLOATS, [0.0] * GRAIN), before)
        total.add_incoming(value, loop)
    builder.cbranch(builder.icmp_signed("<", following, width), loop, after)
    builder.position_at_end(after)
    return new


_one, _two, _three = map(_dot_tile, (1, 2, 3))


@no_type_check
@njit(nogil=True)
def dots(rows, queries, out, width, count, grains, ahead):
    """Compute out[r, j] = Σ_h rows[r, h] · queries[h, j] for `count` rows r.

    `count` is rounded up to a multiple of the tile's height (ROWS).
    """
    if grains == 2:
        _two(rows, queries, out, width, count, ahead)
    elif grains == 1:
        _one(rows, queries, out, width, count, ahead)
    else:
        _three(rows, queries, out, width, count, ahead)


def _raised(salient: bool):
    """Make the body of `raise_to`, or of `raise_with`, whose arguments before `count` include saliences."""

    def generate(context, builder, signature, arguments):
        *pointers, count, grains = arguments
        salience = builder.inttoptr(pointers.pop(), _FLOAT.as_pointer()) if salient else None
        *raised, products = [builder.inttoptr(pointer, _FLOATS.as_pointer()) for pointer in pointers]
        with cgutils.for_range(builder, grains) as grain:
            places = [builder.gep(a, [grain.index]) for a in raised]
            running = [cgutils.alloca_once_value(builder, _load(builder, place, 4)) for place in places]
            with cgutils.for_range(builder, count) as row:
                cell = builder.add(builder.mul(row.index, grains), grain.index)
                values = [_load(builder, builder.gep(products, [cell]), 4)]
                if salient:
                    share = _load(builder, builder.gep(salience, [row.index]), 4)
                    values.append(_spread(builder, share, GRAIN))
                above = builder.fcmp_ordered(">", values[0], builder.load(running[0]))
                for new, old in zip(values, running, strict=True):
                    builder.store(builder.select(above, new, builder.load(old)), old)
            for old, place in zip(running, places, strict=True):
                _store(builder, builder.load(old), place)
        return context.get_dummy_value()

    return _nothing(4 + 2 * salient), generate


@no_type_check
@intrinsic
def raise_to(typing, best, products, count, grains):
    """Set best[j] = max(best[j], products[r, j]) over `count` rows r."""
    return _raised(False)


@no_type_check
@intrinsic
def raise_with(typing, best, aligned_salience, products, salience, count, grains):
    """Do the same as `raise_to`, and set aligned_salience[j] = salience[r] if row r raises best[j]."""
    return _raised(True)


def _shift(raises: bool):
    """Make the intrinsic (out, products, base, centre, scale, grains); scale is a float32."""

    @intrinsic
    def shift(typing, out, products, base, centre, scale, grains):
        def generate(context, builder, signature, arguments):
            scale = _spread(builder, arguments[4], GRAIN)
            grains = arguments[5]
            pointers = [builder.inttoptr(a, _FLOATS.as_pointer()) for a in arguments[:4]]
            with cgutils.for_range(builder, grains) as grain:
                places = [builder.gep(pointer, [grain.index]) for pointer in pointers]
                product = _load(builder, places[1], 4)
                base = _load(builder, places[2], 4)
                centre = _load(builder, places[3], 4)
                scaled = builder.fmul(scale, builder.fsub(product, centre), flags=("contract",))
                total = builder.fadd(base, scaled, flags=("contract",))
                if raises:
                    old = _load(builder, places[0], 4)
                    total = builder.select(builder.fcmp_ordered(">", total, old), total, old)
                _store(builder, total, places[0])
            return context.get_dummy_value()

        return types.void(*[types.intp] * 4, types.float32, types.intp), generate

    return no_type_check(shift)


shift = _shift(False)  # out[j] = base[j] + scale · (products[j] − centre[j]), for one row
raise_shifted = _shift(True)  # out[j] = max(out[j], base[j] + scale · (products[j] − centre[j]))


@no_type_check
@intrinsic
def widen(typing, source, target, count):
    """Set target[i] = float32(source[i]) for `count` float16 numbers. count: a multiple of VECTOR."""

    def generate(context, builder, signature, arguments):
        source, target, count = arguments
        source = builder.inttoptr(source, ir.VectorType(ir.IntType(16), VECTOR).as_pointer())
        target = builder.inttoptr(target, ir.VectorType(_FLOAT, VECTOR).as_pointer())
        with cgutils.for_range(builder, builder.udiv(count, _INDEX(VECTOR))) as loop:
            bits = _load(builder, builder.gep(source, [loop.index]), 2)
            _store(builder, _widened(builder, bits), builder.gep(target, [loop.index]))
        return context.get_dummy_value()

    return _nothing(3), generate


@no_type_check
@intrinsic
def unpack(typing, source, target, count, bits):
    """Write the codes in `count` bytes as float32: the lowest bits of all bytes, then the next bits, …"""

    def generate(context, builder, signature, arguments):
        source, target, count, bits = arguments
        source = builder.inttoptr(source, ir.VectorType(_BYTE, VECTOR).as_pointer())
        target = builder.inttoptr(target, ir.VectorType(_FLOAT, VECTOR).as_pointer())
        step = builder.udiv(count, _INDEX(VECTOR))
        bits = builder.trunc(bits, _INT)
        mask = _spread(builder, builder.sub(builder.shl(_INT(1), bits), _INT(1)), VECTOR)
        parts = builder.zext(builder.udiv(_INT(8), bits), _INDEX)
        with cgutils.for_range(builder, step) as chunk:
            packed = _load(builder, builder.gep(source, [chunk.index]), 1)
            packed = builder.zext(packed, ir.VectorType(_INT, VECTOR))
            with cgutils.for_range(builder, parts) as part:
                moved = _spread(builder, builder.mul(builder.trunc(part.index, _INT), bits), VECTOR)
                codes = builder.and_(builder.lshr(packed, moved), mask)
                place = builder.add(builder.mul(part.index, step), chunk.index)
                values = builder.sitofp(codes, ir.VectorType(_FLOAT, VECTOR))
                _store(builder, values, builder.gep(target, [place]))
        return context.get_dummy_value()

    return _nothing(4), generate


@no_type_check
@intrinsic
def at(typing, array, index):
    """Return the address of array[index], an element or a row."""

    def generate(context, builder, signature, arguments):
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        stride = builder.extract_value(view.strides, 0)
        return builder.add(builder.ptrtoint(view.data, _INDEX), builder.mul(stride, arguments[1]))

    return types.intp(array, types.intp), generate


@no_type_check
@intrinsic
def prefetch(typing, address):
    """Prefetch the cache line at an address."""

    def generate(context, builder, signature, arguments):
        _prefetch(builder, arguments[0])
        return context.get_dummy_value()

    return _nothing(1), generate


def _prefetch(builder, address):
    pointer = _BYTE.as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [pointer, _INT, _INT, _INT])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(function, [builder.inttoptr(address, pointer), _INT(0), _INT(3), _INT(1)])


def _nothing(count: int):
    return types.void(*[types.intp] * count)


def _widened(builder, bits):
    """Convert the bits of VECTOR finite float16 numbers to float32."""
    floats = ir.VectorType(_FLOAT, VECTOR)
    ints = ir.VectorType(_INT, VECTOR)
    if HOST.halves:
        return builder.fpext(builder.bitcast(bits, ir.VectorType(ir.HalfType(), VECTOR)), floats)
    # Move exponent and mantissa into place, and multiply by 2^112 for the different exponent bias: exact.
    wide = builder.zext(bits, ints)

    def constant(value: int):
        return ir.Constant(ints, [value] * VECTOR)

    size = builder.shl(builder.and_(wide, constant(0x7FFF)), constant(13))
    value = builder.fmul(builder.bitcast(size, floats), ir.Constant(floats, [2.0**112] * VECTOR))
    sign = builder.shl(builder.and_(wide, constant(0x8000)), constant(16))
    return builder.bitcast(builder.or_(builder.bitcast(value, ints), sign), floats)


def _load(builder, pointer, align):
    value = builder.load(pointer)
    value.align = align  # alignment of one element, because memory-mapped arrays may begin anywhere
    return value


def _store(builder, value, pointer):
    builder.store(value, pointer).align = 4


def _spread(builder, value, lanes: int):
    """Broadcast a value to all lanes."""
    vector = ir.VectorType(value.type, lanes)
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), value, _INT(0))
    zeros = ir.Constant(ir.VectorType(_INT, lanes), [0] * lanes)
    return builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), zeros)
