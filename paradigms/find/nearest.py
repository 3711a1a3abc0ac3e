"""Find the nearest vectors by inner product with any FAISS index, stored in one file.

Douze et al. 2024 (arXiv:2401.08281).

FAISS keeps its index in memory and parses the file in native code, so open only files that you trust.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from paradigms.store.columns import Files, Writer
from paradigms.store.kind import Derived
from paradigms.store.residuals import centroids_for

FILE = "tokens.faiss"
NUMBERS = 1 << 24  # numbers (vectors × dimensions) in memory at once
# The default for one long vector a document. Their lengths differ and queries resemble each other, so few
# inverted lists hold few of the largest inner products: with 16 of them and 10⁵ documents, LEMUR's 256
# candidates held .06 of the exact first ten.
FLAT = "SQfp16"
SMALL = 1 << 16  # maximum number of tokens for a flat index
MOST_LISTS = 1 << 12  # maximum number of default lists: as many as a SAMPLE of tokens can train
SAMPLE = 1 << 18  # maximum number of vectors to train an index
READ = 1 << 20  # bytes of a file passed to FAISS at once
PROBES = 16  # inverted lists, where no recall was measured
DEPTH = 4  # vectors of an HNSW graph that a search keeps, per probe
BLAS_QUERIES = 800  # queries per thread from which FAISS uses BLAS; its default, 20, is slow on few threads

Entries = Callable[[np.ndarray], np.ndarray]  # rows → vectors [rows, d], float32


@dataclass(frozen=True)
class NearestFile(Derived):
    """A FAISS file of vectors.

    factory: a string for `faiss.index_factory`; "" means a flat float16 index for few vectors, and inverted
    lists for many. seed: random seed of the training sample.
    """

    factory: str = ""
    seed: int = 0

    def check(self, dim: int) -> None:
        if self.factory:
            _empty(self.factory, dim)

    def write_vectors(self, writer: Writer, count: int, entries: Entries, anew: bool) -> None:
        """Write the file for `count` vectors; the first build trains the index. anew: see `Derived.write`."""
        if not count:
            writer.remove(FILE)
            return
        faiss = _faiss()
        with _threads(faiss):
            exists = FILE in writer.entries
            index = _parsed(writer.array(FILE, "uint8")) if exists else self._trained(count, entries)
            if anew:
                index.reset()
            step = max(1, NUMBERS // index.d)
            for first in range(index.ntotal, count, step):
                index.add(entries(np.arange(first, min(first + step, count))))
            writer.remove(FILE)
            # FAISS itself would silently lose the last part if the disk is full.
            try:
                faiss.write_index(index, faiss.PyCallbackIOWriter(lambda part: writer.append(FILE, part)))
            except RuntimeError as error:
                raise OSError(f"{FILE} of {writer} cannot be written: {error}") from error

    def _trained(self, count: int, entries: Entries) -> Any:
        """Create an empty index, trained on a sample."""
        faiss = _faiss()
        width = entries(np.arange(1)).shape[1]
        sample = max(1, min(SAMPLE, 2 * NUMBERS // width, count))
        name = self.factory or default_factory(count, sample)
        index = _empty(name, width)
        for part in _nested(faiss, index):
            if hasattr(part, "do_polysemous_training"):
                part.do_polysemous_training = False  # slow, and useful only for a search in Hamming space
        if not index.is_trained:
            random = np.random.default_rng(self.seed)
            rows = random.choice(count, sample, replace=False)
            try:
                index.train(entries(np.sort(rows)))
            except RuntimeError as error:
                raise ValueError(f"{count} vectors cannot train {name!r}: {error}") from error
        return index


class Nearest:
    """The vectors in a FAISS file. shape: the expected number and dimension of the vectors."""

    def __init__(self, files: Files, shape: tuple[int, int]) -> None:
        self.files = files
        self.shape = shape
        self._content = files.array(FILE, "uint8")  # stays at this commit, even if the file is replaced

    @cached_property
    def index(self) -> Any:
        """The FAISS index, parsed on first use."""
        if not len(self._content):
            raise self.files.damaged(FILE, "it is missing")
        try:
            index = _parsed(self._content)
        except (RuntimeError, ValueError) as error:
            raise self.files.damaged(FILE, error) from error
        if (index.ntotal, index.d) != self.shape:
            raise self.files.damaged(FILE, f"{index.ntotal} vectors of {index.d}, not {self.shape}")
        return index

    def _graphs(self) -> Iterator[Any]:
        return (part.hnsw for part in _nested(_faiss(), self.index) if hasattr(part, "hnsw"))

    def efforts(self) -> Iterator[int]:
        """Yield numbers of probes from PROBES to those that read the whole index."""
        lists = _faiss().try_extract_index_ivf(self.index)
        depth = len(self._content) and self.shape[0] // DEPTH if any(self._graphs()) else 1
        most = depth if lists is None else lists.nlist
        probes = PROBES
        while probes < most:
            yield probes
            probes *= 2
        yield max(PROBES, most)

    def __call__(
        self, queries: np.ndarray, count: int, dead: np.ndarray | None, probes: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the inner products and positions of the `count` nearest vectors for each query.

        dead: mask of vectors to skip. probes: number of inverted lists to read, or a DEPTH-th of the vectors
        that the search of a graph keeps; 0 means PROBES.
        """
        probes = probes or PROBES
        if not count or not len(queries):
            return np.zeros((len(queries), count), np.float32), np.zeros((len(queries), count), np.int64)
        faiss = _faiss()
        index = self.index
        lists = faiss.try_extract_index_ivf(index)
        if lists is not None:
            lists.nprobe = probes
        for graph in self._graphs():
            graph.efSearch = max(DEPTH * probes, 16)
        requested = count
        while True:
            with _threads(faiss):
                scores, rows = index.search(queries, requested)
            alive = rows >= 0
            if dead is not None:
                alive &= ~dead[rows]
            ended = (rows[:, -1] < 0) | (alive.sum(1) >= count)
            if ended.all() or requested == index.ntotal:
                break
            requested = min(2 * requested, index.ntotal)
        order = np.argsort(~alive, axis=1, kind="stable")[:, :count]
        scores, rows = np.where(alive, scores, -np.inf), np.where(alive, rows, -1)
        return np.take_along_axis(scores, order, 1), np.take_along_axis(rows, order, 1)


def default_factory(tokens: int, sample: int = SAMPLE) -> str:
    """Return the factory of a flat float16 index for few tokens, else of about 4√tokens inverted lists.

    The number of lists is a power of 2 that leaves 39 sample vectors per list, FAISS's minimum.
    """
    if tokens <= SMALL:
        return FLAT
    trained = 1 << max(0, (sample // 39).bit_length() - 1)
    return f"IVF{min(MOST_LISTS, trained, centroids_for(tokens))},SQfp16"


def _empty(name: str, dim: int) -> Any:
    faiss = _faiss()
    try:
        return faiss.index_factory(dim, name, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise ValueError(f"FAISS cannot make the index {name!r}: {error}") from error


def _parsed(content: np.ndarray) -> Any:
    faiss = _faiss()
    start = 0

    def read(size: int) -> bytes:
        nonlocal start
        start += size
        return content[start - size : start].tobytes()

    return faiss.read_index(faiss.PyCallbackIOReader(read, READ))


def _nested(faiss: Any, index: Any) -> Iterator[Any]:
    """Yield an index and the indexes that it contains."""
    index = faiss.downcast_index(index)
    yield index
    for name in ("index", "base_index"):
        if hasattr(index, name):
            yield from _nested(faiss, getattr(index, name))


def _faiss() -> Any:
    import faiss  # slow to import, and only some indexes need it

    return faiss


@contextmanager
def _threads(faiss: Any) -> Iterator[None]:
    """Make FAISS use as many threads as torch."""
    threads = faiss.omp_get_max_threads()
    least = faiss.cvar.distance_compute_blas_threshold
    faiss.omp_set_num_threads(torch.get_num_threads())
    faiss.cvar.distance_compute_blas_threshold = BLAS_QUERIES * torch.get_num_threads()
    try:
        yield
    finally:
        faiss.omp_set_num_threads(threads)
        faiss.cvar.distance_compute_blas_threshold = least
