"""The kernels of stored tokens widen float16 exactly, and read nothing beyond an array.

rel by the kernels is in `test_equals_rel`.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np

from paradigms.align import QueryToDocument
from paradigms.recipe import Recipe
from paradigms.scoring import kernels, tiles
from paradigms.scoring.stored import PackedQueries, Scanned
from tests.scoring.coded import Corpus, frozen, texts


def probed(corpus: Corpus, chosen: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The result of `probe` for the documents at `rows`."""
    starts, stops = corpus.offsets[rows], corpus.offsets[rows + 1]
    documents = kernels.Documents(starts, stops, frozen(np.zeros(0, np.float32)))
    best = np.empty((len(rows), corpus.query.centroid_products.shape[1]), np.float32)
    kernels.probe(corpus.coded, corpus.query, documents, corpus.width, chosen, best)
    return best


def test_every_float16_is_widened_exactly() -> None:
    """All finite values, subnormal ones included, each multiplied by the unit vector of its position."""
    halves = np.arange(1 << 16).astype(np.uint16)
    halves = halves[np.isfinite(halves.view(np.float16))].reshape(-1, 16)
    rows = np.arange(len(halves))
    scanned = Scanned(kernels.halves(frozen(halves)), np.arange(len(halves) + 1), {})
    units = texts(list(np.eye(16, dtype=np.float32)[:, None]))
    [results] = scanned.relevances([Recipe("test", QueryToDocument(), "one")], PackedQueries(units), rows)
    assert np.array_equal(results.numpy().T, halves.view(np.float16).astype(np.float32))


def test_registers_are_those_that_the_features_name() -> None:
    x86 = "x86_64-unknown-linux-gnu"
    assert tiles.registers(x86, "+sse2,+avx2,+f16c,+avx512f") == (32, 16, True)
    assert tiles.registers(x86, "", "haswell") == (16, 8, True)
    assert tiles.registers(x86, "", "generic") == (16, 4, False)
    assert tiles.registers("arm64-apple-darwin", "+neon") == (32, 4, True)
    assert tiles.registers("riscv64-unknown-linux-gnu", "+v") == (16, 4, False)


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
