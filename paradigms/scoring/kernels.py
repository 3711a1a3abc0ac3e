"""Compute rel over stored tokens with numba kernels, compiled for the host's processor on first use.

A kernel widens BLOCK document tokens at a time, float16 or codes (`Stored`), to float32 in a buffer that
stays in the cache, and multiplies them by all query tokens (`tiles`). It sums the aligned similarities as
soon as a document ends, so it reads each stored byte once and writes one score per document and query.
Kernels release the interpreter lock and run on one thread; callers divide the documents. Compiled code is
cached next to this file or in the user's cache folder. `no_type_check` disables the tests' run-time type
checks.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, call-arg, import-untyped"
from typing import NamedTuple, no_type_check

import numpy as np
from numba import njit

from paradigms.align import SMALLEST
from paradigms.io.compiled import cached_njit
from paradigms.scoring.tiles import (
    BLOCK,
    GRAIN,
    LINE,
    at,
    dots,
    prefetch,
    raise_shifted,
    raise_to,
    raise_with,
    shift,
    unpack,
    widen,
)

AHEAD = 16  # tokens to prefetch where the processor cannot predict the address
NEXT = 8  # distance from the probed document to the one whose centroids are prefetched
WIDEST = 3 * GRAIN  # maximum number of lanes per tile
INTERNAL = {"nogil": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}  # called by kernels only
helper = njit(**INTERNAL)  # type: ignore[call-overload]


class Stored(NamedTuple):
    """Tokens as float16 (16 bits per number) or as codes of at most 8 bits:

    xᵢ ≈ C[centroids[i]] + levels[scales[i]] · spread · (code − (2^bits − 1) / 2).
    """

    codes: np.ndarray  # uint8 [tokens, h · bits / 8], as `tiles.unpack` reads them; or bytes of float16
    bits: int
    scales: np.ndarray  # uint8 [tokens]
    levels: np.ndarray  # float32 [256]
    centroids: np.ndarray  # uint16 [tokens]


def halves(vectors: np.ndarray) -> Stored:
    """Make a `Stored` from float16 vectors [tokens, h]."""
    none = [np.zeros(0, dtype) for dtype in (np.uint8, np.uint16)]
    for array in none:
        array.setflags(write=False)  # like memory-mapped files, so that numba compiles only one type
    return Stored(vectors.view(np.uint8), 16, none[0], np.zeros(0, np.float32), none[1])


class Query(NamedTuple):
    """Tokens of one or more queries, without padding.

    For codes, xᵢᵀ qⱼ ≈ centroid_products[cᵢ, j] + scale · (codeᵀ tile_j − centre[j]).
    """

    tiles: np.ndarray  # tiles of Q, or of spread · Q: see `tiles.QueryTiles`
    edges: np.ndarray
    spans: np.ndarray  # int64 [b + 1]: query n has the tokens spans[n] to spans[n + 1]
    weights: np.ndarray  # float32 [lanes]: salience, or 1
    centroid_products: np.ndarray  # C Q, float32 [K, lanes]
    centre: np.ndarray  # (2^bits − 1) / 2 · Σ_h spread · Q, float32 [lanes]


class Documents(NamedTuple):
    """Documents to score: document n consists of the stored tokens starts[n] to stops[n]."""

    starts: np.ndarray  # int64 [n]
    stops: np.ndarray
    salience: np.ndarray  # float32, of all stored tokens; empty: all 1


# --- one block of tokens ------------------------------------------------------------------------------


@no_type_check
@njit(**INTERNAL, forceinline=True)  # LLVM would not inline it
def _fetch(tokens, token, target, width):
    """Write token `token` as float32 to the address `target`."""
    if tokens.bits == 16:
        widen(at(tokens.codes, token), target, width)
    else:
        unpack(at(tokens.codes, token), target, tokens.codes.shape[1], tokens.bits)


@no_type_check
@helper
def _clipped(query, centroid):
    """Return the centroid's number, clipped to existing centroids in case a file is damaged."""
    return min(np.int64(centroid), query.centroid_products.shape[0] - 1)


@no_type_check
@helper
def _correct(tokens, query, places, count, tile, products):
    """Convert products with codes to products with decoded vectors."""
    lane = query.edges[tile] * GRAIN
    grains = query.edges[tile + 1] - query.edges[tile]
    for r in range(count):
        base = at(query.centroid_products, _clipped(query, places[1, r])) + lane * 4
        scale = tokens.levels[tokens.scales[places[0, r]]]
        row = at(products, r * grains * GRAIN)
        shift(row, row, base, at(query.centre, lane), scale, grains)


@no_type_check
@helper
def _prefetch_tokens(tokens, token, count):
    """Prefetch `count` tokens, starting at `token`."""
    for byte in range(0, count * tokens.codes.shape[1], LINE):
        prefetch(at(tokens.codes, token) + byte)


@no_type_check
@helper
def _buffers(width):
    """Allocate a block's tokens as float32, their products, their places (`_fill`) and BLOCK integers."""
    rows = np.zeros((BLOCK, width), np.float32)
    products = np.empty(BLOCK * WIDEST, np.float32)
    places = np.empty((2, BLOCK), np.int64)
    return rows, products, places, np.empty(BLOCK, np.int64)


@no_type_check
@helper
def _fill(tokens, documents, document, token, rows, places, ends):
    """Write up to BLOCK tokens as float32 to `rows`, starting at `token` of `document`.

    places[:, r]: number and centroid of the token in rows[r]. ends[s]: end of the block's s-th document; the
    last document may continue in the next block. Returns the next document, the next token, and the block's
    numbers of tokens and documents.
    """
    width = rows.shape[1]
    count = 0
    segments = 0
    while document < documents.starts.shape[0] and count < BLOCK and segments < BLOCK:
        if token == documents.starts[document] and document + 1 < documents.starts.shape[0]:
            following = documents.starts[document + 1]
            if following != documents.stops[document]:  # otherwise, the processor predicts the address
                _prefetch_tokens(tokens, following, min(AHEAD, documents.stops[document + 1] - following))
        take = min(documents.stops[document] - token, BLOCK - count)
        for r in range(count, count + take):
            _fetch(tokens, token, at(rows, r), width)
            places[0, r] = token
            places[1, r] = 0 if tokens.bits == 16 else tokens.centroids[token]
            token += 1
        count += take
        ends[segments] = count
        segments += 1
        if token == documents.stops[document]:
            document += 1
            if document < documents.starts.shape[0]:
                token = documents.starts[document]
    return document, token, count, segments


@no_type_check
@helper
def _multiply(tokens, query, rows, places, count, tile, products):
    """Compute products[r, j] for each token r in a block and lane j in a tile; return the number of lanes."""
    low = query.edges[tile] * GRAIN
    grains = query.edges[tile + 1] - query.edges[tile]
    width = rows.shape[1]
    ahead = at(rows, 0)  # or the likely address of the next token
    if tokens.bits == 16 and tile == 0 and count:
        ahead = at(tokens.codes, places[0, count - 1] + 1)
    dots(at(rows, 0), at(query.tiles, low * width), at(products, 0), width, count, grains, ahead)
    if tokens.bits < 16:
        _correct(tokens, query, places, count, tile, products)
    return grains * GRAIN


@no_type_check
@helper
def _clear(best, row):
    for lane in range(best.shape[1]):
        best[row, lane] = -np.inf


@no_type_check
@cached_njit(nogil=True)  # np.partition takes half a minute to compile
def select(values, k):
    """Partition `values` in place as np.partition does: values[k] is the k-th smallest."""
    low = 0
    high = values.shape[0] - 1
    while low < high:
        pivot = values[k]
        left = low
        right = high
        while left <= right:
            while values[left] < pivot:
                left += 1
            while values[right] > pivot:
                right -= 1
            if left <= right:
                values[left], values[right] = values[right], values[left]
                left += 1
                right -= 1
        if right < k:
            low = left
        if left > k:
            high = right


# --- Z ------------------------------------------------------------------------------------------------


@no_type_check
@helper
def _normalised(total, weight, aligned, queries, documents, normaliser):
    """Compute Σ S ⊙ A / Z. aligned: number of query tokens with A > 0. normaliser: index in `NORMALISERS`."""
    z = 1.0
    if normaliser == 1:
        z = max(1, queries)
    elif normaliser == 2:
        z = max(1, documents)
    elif normaliser == 3:
        z = max(SMALLEST, weight)
    elif normaliser == 4:
        z = max(SMALLEST, aligned)
    return total / z


@no_type_check
@helper
def _finish(best, salience, most, query, length, normaliser, out):
    """Compute out[b] = rel from best[lane, :most] (−∞ if missing) and their tokens' salience[lane, :most]."""
    for b in range(out.shape[0]):
        total, weight, aligned = 0.0, 0.0, 0
        for lane in range(query.spans[b], query.spans[b + 1]):
            any = False
            for place in range(most):
                if best[lane, place] > -np.inf:
                    share = query.weights[lane]
                    if salience.shape[0]:
                        share *= salience[lane, place]
                    total += share * best[lane, place]
                    weight += share
                    any |= share > 0
            aligned += any
        count = query.spans[b + 1] - query.spans[b]
        out[b] = _normalised(total, weight, aligned, count, length, normaliser)


# --- kernels ------------------------------------------------------------------------------------------


@no_type_check
@helper
def _raise_documents(best, aligned_salience, ends, segments, lane, grains, products, salience):
    """Raise best[s] and aligned_salience[s], from `lane` on, by the tokens that end at ends[s]."""
    row = 0
    for s in range(segments):
        values = at(products, row * grains * GRAIN)
        if aligned_salience.shape[1]:
            weighed = at(aligned_salience, s) + lane * 4
            raise_with(at(best, s) + lane * 4, weighed, values, at(salience, row), ends[s] - row, grains)
        else:
            raise_to(at(best, s) + lane * 4, values, ends[s] - row, grains)
        row = ends[s]


@no_type_check
@cached_njit(nogil=True)
def maxima(tokens, query, documents, width, normaliser, out):
    """Compute out[n, b] = rel, where A is the maximum over tokens. width: h, a multiple of VECTOR."""
    lanes = query.edges[-1] * GRAIN
    total = documents.starts.shape[0]
    rows, products, places, ends = _buffers(width)
    salient = documents.salience.shape[0] > 0
    best = np.empty((BLOCK, lanes), np.float32)
    aligned_salience = np.empty((BLOCK, lanes if salient else 0), np.float32)
    salience = np.empty(BLOCK, np.float32)
    following, begun = 0, 0  # next document; 1 if its first tokens were in the block before
    token = documents.starts[0] if total else 0
    while following < total:
        first = following
        following, token, count, segments = _fill(tokens, documents, first, token, rows, places, ends)
        for s in range(begun, segments):
            _clear(best, s)
        for r in range(count if salient else 0):
            salience[r] = documents.salience[places[0, r]]
        for tile in range(query.edges.shape[0] - 1):
            grains = _multiply(tokens, query, rows, places, count, tile, products) // GRAIN
            lane = query.edges[tile] * GRAIN
            _raise_documents(best, aligned_salience, ends, segments, lane, grains, products, salience)
        for n in range(first, following):
            length = documents.stops[n] - documents.starts[n]
            weights = aligned_salience[n - first, :, None]
            _finish(best[n - first, :, None], weights, 1, query, length, normaliser, out[n])
        begun = int(segments > following - first)
        if begun:
            best[0] = best[segments - 1]
            aligned_salience[0] = aligned_salience[segments - 1]


@no_type_check
@cached_njit(nogil=True)
def largest(tokens, query, documents, width, tops, normalisers, out):
    """Compute out[n, s, b] = rel, where A keeps each query token's tops[n, s] best document tokens."""
    lanes = query.edges[-1] * GRAIN
    most = max(1, tops.max()) if tops.shape[0] else 1
    rows, products, places, ends = _buffers(width)
    salient = documents.salience.shape[0] > 0
    best = np.empty((lanes, most), np.float32)
    aligned_salience = np.empty((lanes if salient else 0, most), np.float32)
    for n in range(documents.starts.shape[0]):
        for lane in range(lanes):
            for place in range(most):
                best[lane, place] = -np.inf
        alone = Documents(documents.starts[n : n + 1], documents.stops[n : n + 1], documents.salience)
        document = 0
        token = alone.starts[0]
        last = max(1, tops[n].max()) - 1
        while document == 0:
            document, token, count, _ = _fill(tokens, alone, 0, token, rows, places, ends)
            for tile in range(query.edges.shape[0] - 1):
                lane = query.edges[tile] * GRAIN
                step = _multiply(tokens, query, rows, places, count, tile, products)
                for r in range(count):
                    for j in range(min(step, query.spans[-1] - lane)):
                        value = products[r * step + j]
                        if value <= best[lane + j, last]:
                            continue
                        place = last
                        while place > 0 and best[lane + j, place - 1] < value:
                            best[lane + j, place] = best[lane + j, place - 1]
                            if salient:
                                aligned_salience[lane + j, place] = aligned_salience[lane + j, place - 1]
                            place -= 1
                        best[lane + j, place] = value
                        if salient:
                            aligned_salience[lane + j, place] = documents.salience[places[0, r]]
        length = documents.stops[n] - documents.starts[n]
        for s in range(tops.shape[1]):
            _finish(best, aligned_salience, tops[n, s], query, length, normalisers[s], out[n, s])


class Matches(NamedTuple):
    """Query tokens by id: the tokens order[begins[n] : begins[n + 1]] have the id low + n."""

    ids: np.ndarray  # of stored tokens
    low: int
    begins: np.ndarray
    order: np.ndarray
    vectors: np.ndarray  # Q, or spread · Q: float32 [lanes, h]
    positive: bool  # tokens with ids >= 0 are aligned only if the similarity is positive


@no_type_check
@njit(**INTERNAL, fastmath=True)
def _dot(x, y):
    total = np.float32(0)
    for h in range(x.shape[0]):
        total += x[h] * y[h]
    return total


@no_type_check
@cached_njit(nogil=True)
def equal(tokens, query, documents, width, matches, normaliser, out):
    """Compute `maxima` over document tokens with the query token's id, without reading other vectors."""
    lanes = query.edges[-1] * GRAIN
    row = np.zeros(width, np.float32)
    best = np.empty((1, lanes), np.float32)
    salient = documents.salience.shape[0] > 0
    aligned_salience = np.empty(lanes if salient else 0, np.float32)
    for n in range(documents.starts.shape[0]):
        _clear(best, 0)
        for token in range(documents.starts[n], documents.stops[n]):
            id = matches.ids[token] - matches.low
            if id < 0 or id >= matches.begins.shape[0] - 1 or matches.begins[id] == matches.begins[id + 1]:
                continue
            _fetch(tokens, token, at(row, 0), width)
            for place in range(matches.begins[id], matches.begins[id + 1]):
                lane = matches.order[place]
                value = _dot(row, matches.vectors[lane])
                if tokens.bits < 16:
                    scale = tokens.levels[tokens.scales[token]]
                    base = query.centroid_products[_clipped(query, tokens.centroids[token]), lane]
                    value = base + scale * (value - query.centre[lane])
                aligned = value > 0 or not matches.positive or id + matches.low < 0
                if aligned and value > best[0, lane]:
                    best[0, lane] = value
                    if salient:
                        aligned_salience[lane] = documents.salience[token]
        length = documents.stops[n] - documents.starts[n]
        _finish(best[0, :, None], aligned_salience[:, None], 1, query, length, normaliser, out[n])


class Largest(NamedTuple):
    """The k largest similarities of each query token in one thread, and a buffer for k more."""

    values: np.ndarray  # float32 [lanes, 2k]: the buffer, then the k largest
    latest: np.ndarray  # int64 [lanes]: number of values in the buffer


def largest_of(lanes: int, k: int) -> Largest:
    """Make a `Largest` filled with −∞."""
    return Largest(np.full((lanes, 2 * k), -np.inf, np.float32), np.zeros(lanes, np.int64))


@no_type_check
@cached_njit(nogil=True)
def retrieve(tokens, query, documents, width, met, best, tops):
    """Update each query token's k largest similarities, and collect the documents that may contribute.

    tops: one `Largest` for all calls of a thread. Values above the k-th largest are buffered. Once the buffer
    holds k values, the smaller half of all values is dropped; this is much faster than a heap. met: output,
    the documents that may contain one of the k most similar tokens of a query token. best[m, j]: output,
    maximum of document met[m] for query token j. Returns the number of documents in `met`.
    """
    rows, products, places, ends = _buffers(width)
    lanes = query.spans[-1]
    k = tops.values.shape[1] // 2
    filled = 0
    for n in range(documents.starts.shape[0]):
        alone = Documents(documents.starts[n : n + 1], documents.stops[n : n + 1], documents.salience)
        _clear(best, filled)
        document = 0
        token = alone.starts[0]
        while document == 0:
            document, token, count, _ = _fill(tokens, alone, 0, token, rows, places, ends)
            for tile in range(query.edges.shape[0] - 1):
                lane = query.edges[tile] * GRAIN
                grains = query.edges[tile + 1] - query.edges[tile]
                step = _multiply(tokens, query, rows, places, count, tile, products)
                raise_to(at(best, filled) + lane * 4, at(products, 0), count, grains)
                for j in range(lane, min(lane + step, lanes)):
                    for r in range(count if best[filled, j] > tops.values[j, k] else 0):
                        if products[r * step + j - lane] > tops.values[j, k]:
                            tops.values[j, tops.latest[j]] = products[r * step + j - lane]
                            tops.latest[j] += 1
                            if tops.latest[j] == k:
                                select(tops.values[j], k)
                                tops.latest[j] = 0
        owns = False
        for j in range(lanes):
            owns |= best[filled, j] >= tops.values[j, k] and best[filled, j] > -np.inf
        if owns:
            met[filled] = n
            filled += 1
    return filled


@no_type_check
@cached_njit(nogil=True)
def products(vectors, query, out):
    """Compute out[i, j] = vectors[i]ᵀ qⱼ for float32 vectors [i, h]. query: from `tiles.pack`."""
    count, width = vectors.shape
    rows = np.zeros((BLOCK, vectors.shape[1]), np.float32)
    tiled = np.empty(BLOCK * WIDEST, np.float32)
    for first in range(0, count, BLOCK):
        height = min(BLOCK, count - first)
        source = at(vectors, first)
        if height < BLOCK:
            for r in range(height):
                for h in range(width):
                    rows[r, h] = vectors[first + r, h]
            source = at(rows, 0)
        for tile in range(query.edges.shape[0] - 1):
            low = query.edges[tile] * GRAIN
            grains = query.edges[tile + 1] - query.edges[tile]
            direct = height == BLOCK and query.edges.shape[0] == 2  # rows of out are contiguous
            target = at(out, first) if direct else at(tiled, 0)
            ahead = at(vectors, first) + BLOCK * width * 4
            dots(source, at(query.tiles, low * width), target, width, height, grains, ahead)
            for r in range(0 if direct else height):
                for j in range(grains * GRAIN):
                    out[first + r, low + j] = tiled[r * grains * GRAIN + j]


@no_type_check
@cached_njit(nogil=True)
def probe(tokens, query, documents, width, chosen, best):
    """Compute best[n, j], the largest similarity of query token j to document n's tokens in chosen lists.

    chosen[c]: whether list c, which contains the tokens of centroid c, is chosen. best[n, j] is −∞ if no
    token of document n is in a chosen list.
    """
    rows, products, places, owners = _buffers(width)
    total = documents.starts.shape[0]
    count = 0
    for n in range(total):
        _clear(best, n)
        if n + NEXT < total:  # prefetch its centroids, whose addresses the processor cannot predict
            for byte in range(0, 2 * (documents.stops[n + NEXT] - documents.starts[n + NEXT]), LINE):
                prefetch(at(tokens.centroids, documents.starts[n + NEXT]) + byte)
        for token in range(documents.starts[n], documents.stops[n]):
            centroid = _clipped(query, tokens.centroids[token])
            if chosen[centroid]:
                places[0, count] = token
                places[1, count] = centroid
                owners[count] = n
                _prefetch_tokens(tokens, token, 1)
                prefetch(at(tokens.scales, token))
                count += 1
                if count == BLOCK:
                    _meet(tokens, query, rows, places, owners, count, products, best)
                    count = 0
    _meet(tokens, query, rows, places, owners, count, products, best)


@no_type_check
@helper
def _meet(tokens, query, rows, places, owners, count, products, best):
    """Update the maxima best[owners[r]] with a block of tokens."""
    for r in range(count):
        _fetch(tokens, places[0, r], at(rows, r), rows.shape[1])
    for tile in range(query.edges.shape[0] - 1):
        lane = query.edges[tile] * GRAIN
        grains = query.edges[tile + 1] - query.edges[tile]
        queries = at(query.tiles, lane * rows.shape[1])
        dots(at(rows, 0), queries, at(products, 0), rows.shape[1], count, grains, at(rows, 0))
        for r in range(count):
            base = at(query.centroid_products, places[1, r]) + lane * 4
            scale = tokens.levels[tokens.scales[places[0, r]]]
            values = at(products, r * grains * GRAIN)
            raise_shifted(at(best, owners[r]) + lane * 4, values, base, at(query.centre, lane), scale, grains)
