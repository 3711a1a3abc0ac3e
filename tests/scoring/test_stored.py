"""The kernels of stored tokens equal numpy for every shape, and read nothing beyond an array.

rel by the kernels is in `test_equals_rel`.
"""

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paradigms.align import QueryToDocument
from paradigms.find import loops
from paradigms.recipe import Recipe
from paradigms.scoring import kernels, tiles
from paradigms.scoring.stored import PackedQueries, Scanned
from paradigms.store import loops as quantising
from tests.near import assert_within_rounding
from tests.scoring.coded import BITS, LENGTHS, QUERIES, Corpus, frozen, normal, offsets_of, texts, unpacked


def probed(corpus: Corpus, chosen: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The result of `probe` for the documents at `rows`."""
    starts, stops = corpus.offsets[rows], corpus.offsets[rows + 1]
    documents = kernels.Documents(starts, stops, frozen(np.zeros(0, np.float32)))
    best = np.empty((len(rows), corpus.query.centroid_products.shape[1]), np.float32)
    kernels.probe(corpus.coded, corpus.query, documents, corpus.width, chosen, best)
    return best


@pytest.mark.parametrize("distinct", [1, 3, 10_000])
def test_the_largest_half_is_selected(distinct: int) -> None:
    random = np.random.default_rng(0)
    for k in (1, 2, 3, 8, 50):
        values = random.integers(0, distinct, 2 * k).astype(np.float32)
        expected = np.sort(values)
        kernels.select(values, k)
        assert values[k] == expected[k] == values[k:].min()
        assert (np.sort(values) == expected).all()


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 24, 25, 50])
def test_products(count: int) -> None:
    for width, j in itertools.product((16, 32, 128), QUERIES):
        vectors, queries = normal(count, width), normal(j, width, seed=1)
        packed = tiles.pack(queries)
        out = np.full((count, packed.lanes), np.nan, np.float32)
        kernels.products(vectors, packed, out)
        expected = vectors.astype(float) @ queries.T.astype(float)
        scale = float((abs(vectors) @ abs(queries).T).max(initial=0))
        assert_within_rounding(out[:, :j], expected, torch.float32, width, scale)
        assert (out[:, j:] == 0).all()


def test_every_float16_is_widened_exactly() -> None:
    """All finite values, subnormal ones included, each multiplied by the unit vector of its position."""
    halves = np.arange(1 << 16).astype(np.uint16)
    halves = halves[np.isfinite(halves.view(np.float16))].reshape(-1, 16)
    rows = np.arange(len(halves))
    scanned = Scanned(kernels.halves(frozen(halves)), np.arange(len(halves) + 1), {})
    units = texts(list(np.eye(16, dtype=np.float32)[:, None]))
    [found] = scanned.relevances([Recipe("test", QueryToDocument(), "one")], PackedQueries(units), rows)
    assert np.array_equal(found.numpy().T, halves.view(np.float16).astype(np.float32))


@pytest.mark.parametrize(
    ("features", "name", "expected"),
    [
        ("+sse2,+avx2,+f16c,+avx512f", None, (32, 16, True)),
        ("+avx2,+f16c,-avx512f", None, (16, 8, True)),
        ("+sse2,-avx2,-f16c", None, (16, 4, False)),
        ("", "haswell", (16, 8, True)),
        ("", "generic", (16, 4, False)),
    ],
)
def test_registers_are_those_that_the_features_name(features: str, name: str | None, expected: Any) -> None:
    assert tiles.registers("x86_64-unknown-linux-gnu", features, name) == expected
    assert tiles.registers("arm64-apple-darwin", "+neon") == (32, 4, True)


def in_lists(offsets: np.ndarray, centroids: np.ndarray, listed: int) -> tuple[np.ndarray, np.ndarray]:
    """Entries and begins of 5 lists of the first `listed` documents' tokens, by `loops.sort`."""
    tokens = offsets[listed]
    begins = offsets_of(loops.sizes(centroids[:tokens], 5))
    entries = np.empty(tokens, np.uint32)
    for low, high in ((0, 2), (2, 5)):
        part = entries[begins[low] : begins[high]]
        loops.sort(centroids, offsets[: listed + 1], 5, low, begins[low : high + 1], part)
    return entries, begins


@pytest.mark.parametrize("listed", [0, 6, 13])
def test_bounds_are_sums_over_probed_lists_in_lists_or_not(listed: int) -> None:
    corpus = Corpus(4, 128, 7, (*LENGTHS, 90, 0, 40))
    near, centroids, offsets = corpus.query.centroid_products, corpus.coded.centroids, corpus.offsets
    least, alive = np.sort(near[:, :7], axis=0)[-2].copy(), np.arange(13) % 4 > 0
    entries, begins = in_lists(offsets, centroids, listed)
    weights = np.random.default_rng(3).random(16).astype(np.float32)
    tokens, lists = loops.probed(near, least)
    expected_pairs = [(j, c) for j in range(7) for c in np.argsort(-near[:, j])[:2].tolist()]
    assert list(zip(tokens.tolist(), lists.tolist(), strict=True)) == expected_pairs
    chosen = np.isin(np.arange(5), lists)
    expected = {}
    for d in np.flatnonzero(alive).tolist():
        mine = centroids[offsets[d] : offsets[d + 1]]
        if (near[mine, :7] >= least).any():
            expected[d] = float(weights[:7] @ np.maximum(near[mine, :7].max(0) - least, 0))
    edges = np.array([0, 5, 5, 11, 13])
    cuts = np.empty((5, len(lists)), np.int64)
    for n, document in enumerate(edges):
        loops.cut(entries, begins[lists], begins[lists + 1], document, cuts[n])
    found, kept = {}, []
    for n in range(4):  # documents divided, as among threads
        state, documents = np.zeros((13, 2), np.float32), np.empty(13, np.int64)
        given = near, least, weights
        met = loops.bound(*given, tokens, lists, cuts[n], cuts[n + 1], entries, alive, state, documents)
        tail = max(listed, edges[n]), edges[n + 1]
        met = loops.bound_unlisted(*given, chosen, centroids, offsets, *tail, alive, state, documents, met)
        part = {d: float(state[d, 0]) for d in documents[:met].tolist()}
        assert len(part) == met
        assert not part.keys() & found.keys()
        found |= part
        best, bounds = loops.largest(documents[:met], state, 1)
        assert [part[d] for d in best.tolist()] == bounds.tolist()
        kept += best.tolist()
        assert not state.any()
        assert not part or max(part, key=part.__getitem__) in kept
    assert_within_rounding(found, expected, torch.float32, 7 * 128, float(abs(near).max()))


@pytest.mark.parametrize("bits", BITS)
def test_codes_and_scales_are_those_of_the_definition(bits: int) -> None:
    spread, step, middle = np.abs(normal(128)) + 0.1, np.float32(0.7), ((1 << bits) - 1) / 2
    spread[[5, 90]] = 0
    residuals = normal(40, 128, seed=1) * spread * np.exp(normal(40, 1, seed=2))
    residuals[3] = 0
    codes, scales = np.empty((40, 16 * bits), np.uint8), np.empty(40, np.float32)
    quantising.encode(residuals, spread, bits, step, 16, codes, scales)
    with np.errstate(all="ignore"):
        r = np.linalg.norm(residuals, axis=1) / np.linalg.norm(spread)  # how large a residual is
        r = 2 ** (np.rint(16 * np.log2(r)) / 16)
        steps = np.nan_to_num(residuals / spread / (r[:, None] * step))
    expected = np.floor(steps + middle + 0.5).clip(0, 2 * middle)
    z = unpacked(codes, bits)
    certain = np.abs(steps + middle + 0.5 - np.rint(steps + middle + 0.5)) > 1e-4  # not between two codes
    assert (z == expected)[certain].all()
    assert certain[:, spread > 0].mean() > 0.97
    coded = spread * (z - middle)
    wanted = (coded * residuals).sum(1) / (coded**2).sum(1)
    rounded = np.delete(scales / wanted, 3)  # the fourth is 0 / 0
    assert_within_rounding(rounded, np.ones(39), torch.float32, 2 * 128)
    assert scales[3] == 0
    assert (np.delete(scales, 3) > 0).all()


GUARDED = """
import ctypes, itertools, mmap, os, signal
import numpy as np
from paradigms.scoring import kernels, tiles
from paradigms.scoring.stored import PackedQueries
from tests.scoring.coded import BITS, LENGTHS, QUERIES, Corpus, normal, offsets_of, texts
from tests.scoring.test_stored import probed

libc, kept = ctypes.CDLL(None, use_errno=True), []

def guarded(array):
    '''A copy whose last byte is the last of a page, before one that nobody may read.'''
    pages = -(-array.nbytes // mmap.PAGESIZE)
    memory = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert libc.mprotect(ctypes.c_void_p(start + pages * mmap.PAGESIZE), mmap.PAGESIZE, 0) == 0
    kept.append(memory)
    at = pages * mmap.PAGESIZE - array.nbytes
    copy = np.frombuffer(memory, array.dtype, array.size, at).reshape(array.shape)
    copy[...] = array
    copy.setflags(write=array.flags.writeable)
    return copy

last = guarded(np.zeros((5, 16), np.uint8))
if (child := os.fork()) == 0:  # the guard guards: this SIGSEGV, which the kernel logs, is meant
    ctypes.string_at(last.ctypes.data, last.nbytes + 1)
    os._exit(0)
assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGSEGV
offsets = offsets_of(LENGTHS)
def everything(tokens, width, packed):
    '''Each kernel once.'''
    starts, stops = guarded(offsets[:-1]), guarded(offsets[1:])
    documents = kernels.Documents(starts, stops, guarded(np.ones(offsets[-1], np.float32)))
    query = kernels.Query(*map(guarded, packed.query))
    lanes, count = query.weights.shape[0], len(LENGTHS)
    out, several = (guarded(np.empty((count, *s, len(packed)), np.float32)) for s in ((), (2,)))
    given = tokens, query, documents, width
    kernels.maxima(*given, 0, out)
    kernels.largest(*given, guarded(np.tile([3, 1], (count, 1))), guarded(np.zeros(2, np.int64)), several)
    ids = guarded(np.zeros(offsets[-1], np.int32))
    order, begins = guarded(np.arange(query.spans[-1])), guarded(np.array([0, query.spans[-1]]))
    kernels.equal(*given, kernels.Matches(ids, 0, begins, order, guarded(packed.vectors), False), 0, out)
    best = guarded(np.empty((count + 1, lanes), np.float32))
    tops = kernels.Largest(*map(guarded, kernels.largest_of(query.spans[-1], 3)))
    kernels.retrieve(*given, guarded(np.empty(count + 1, np.int64)), best, tops)
    return query

for width, j in itertools.product((16, 48, 128), QUERIES):
    vectors, packed = guarded(normal(13, width)), tiles.pack(normal(j, width))
    out = guarded(np.empty((13, packed.lanes), np.float32))
    kernels.products(vectors, tiles.QueryTiles(*map(guarded, packed)), out)
    halves = normal(int(offsets[-1]), width).astype(np.float16).view(np.uint16)
    halves.setflags(write=False)
    everything(kernels.halves(guarded(halves)), width, PackedQueries(texts([normal(j, width)])))
for bits, j in itertools.product(BITS, (1, 17)):
    corpus = Corpus(bits, 128, j)
    corpus.coded = kernels.Stored(*(guarded(a) if isinstance(a, np.ndarray) else a for a in corpus.coded))
    corpus.query = everything(corpus.coded, 128, corpus.packed)
    wild = guarded(np.where(np.arange(offsets[-1]) % 3, 9999, corpus.coded.centroids).astype(np.uint16))
    wild.setflags(write=False)
    for coded in (corpus.coded, corpus.coded._replace(centroids=wild)):  # of a damaged file
        everything(coded, 128, corpus.packed)
        corpus.coded = coded
        probed(corpus, guarded(np.ones(5, bool)), np.arange(len(LENGTHS)))
print("nothing beyond")
"""


def test_no_kernel_reads_or_writes_beyond_an_array() -> None:
    """Arrays end at a page without access rights: a kernel that reads or writes beyond is killed."""
    ended = subprocess.run(
        [sys.executable, "-c", GUARDED], cwd=Path(__file__).parents[2], capture_output=True, text=True
    )
    assert ended.stdout == "nothing beyond\n", (ended.returncode, ended.stderr[-2000:])
