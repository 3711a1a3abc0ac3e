"""top-k_d rel(d, q) among documents whose tokens FAISS finds near the query's: any index of its factory.

Beside an exact index's float16 store lies a FAISS index of the same vectors under inner product (Douze et al.
2024, arXiv:2401.08281). gather is `core.rel` of the documents that own one of the k' (`Recipe.search_tokens`)
tokens retrieved for each query token (Khattab & Zaharia 2020, §3.6); impute is `impute.imputed_rel` of the
retrieved similarities (Lee et al. 2023, Eq. 4). Both are exact for "Flat" and k' of all tokens. FAISS parses
its file in native code: open only files that you trust.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from paradigms.index.base import TokenIndex
from paradigms.index.codes import centroids_for
from paradigms.index.columns import Writer

FILE = "tokens.faiss"
NUMBERS = 1 << 24  # of vectors that are held at once
SMALL = 1 << 16  # tokens up to which all of them are compared
MOST_LISTS = 1 << 12  # of the default: what a SAMPLE of tokens can train
SAMPLE = 1 << 18  # vectors that train an index, at most
READ = 1 << 20  # bytes of a file that are handed to FAISS at once
BLAS_QUERIES = 800  # per thread, from which FAISS leaves distances to BLAS: its own 20 is slow on few threads


Entries = Callable[[np.ndarray], np.ndarray]  # rows → vectors [rows, d], float32


@dataclass(frozen=True)
class FaissSettings:
    """factory: what `faiss.index_factory` takes; empty: all tokens in float16 where they are few, else
    inverted lists of them. probes: lists that are read for each query token. seed: of the training sample."""

    factory: str = ""
    probes: int = 16
    seed: int = 0


class FaissIndex(TokenIndex):
    """Candidates from a FAISS token index. Deterministic given the seed, for inverted lists and flat indexes.

    `probes` may be set before a search. An addition or compaction writes the FAISS file anew.
    """

    kind = "faiss"
    Settings: ClassVar[type] = FaissSettings

    def token_search(self, vectors: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k most similar stored tokens of each query token [t, h], as FAISS finds and scores them."""
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        queries = np.ascontiguousarray(vectors.float().cpu().numpy())
        best, tokens = self._nearest(queries, min(k, self.living_tokens), self.dead)
        return torch.from_numpy(best).to(vectors), torch.from_numpy(tokens).to(vectors.device)

    def _nearest(
        self, queries: np.ndarray, wanted: int, dead: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Inner products and numbers of `wanted` vectors that are not dead, as FAISS finds them."""
        if not wanted or not len(queries):
            return np.zeros((len(queries), wanted), np.float32), np.zeros((len(queries), wanted), np.int64)
        faiss, index = _faiss(), self._read()
        lists = faiss.try_extract_index_ivf(index)
        if lists is not None:
            lists.nprobe = self.probes
        asked = wanted
        while True:
            with _threads(faiss):
                scores, rows = index.search(queries, asked)
            found = rows >= 0
            if dead is not None:
                found &= ~dead[rows]
            ended = (rows[:, -1] < 0) | (found.sum(1) >= wanted)
            if ended.all() or asked == index.ntotal:
                break
            asked = min(2 * asked, index.ntotal)
        kept = np.argsort(~found, axis=1, kind="stable")[:, :wanted]
        scores, rows = np.where(found, scores, -np.inf), np.where(found, rows, -1)
        return np.take_along_axis(scores, kept, 1), np.take_along_axis(rows, kept, 1)

    @classmethod
    def _check_settings(cls, settings: FaissSettings, dim: int) -> None:
        if settings.factory:
            _empty(settings.factory, dim)

    def _entries(self, writer: Writer) -> tuple[int, Entries]:
        """How many vectors FAISS holds, and a function that gives those of some rows."""
        vectors = writer.array("vectors.bin", self._columns()["vectors"])
        return len(vectors), lambda rows: vectors[rows].astype(np.float32)

    @property
    def _entry_shape(self) -> tuple[int, int]:
        """How many vectors FAISS holds in this state, and of how many dimensions."""
        return int(self.offsets[-1]), self.manifest["dim"]

    def _derive(self, writer: Writer, start: int) -> None:
        count, entries = self._entries(writer)
        if not count:
            writer.remove(FILE)
            return
        faiss, file = _faiss(), writer.path(FILE)
        with _threads(faiss):
            index = self._trained_index(count, entries) if file is None else faiss.read_index(str(file))
            if not start:
                index.reset()
            step = max(1, NUMBERS // index.d)
            for first in range(index.ntotal, count, step):
                index.add(entries(np.arange(first, min(first + step, count))))
            # FAISS itself would lose a last part that the disk has no room for, without an error.
            with writer.replacing(FILE) as path, path.open("wb") as stream:
                try:
                    faiss.write_index(index, faiss.PyCallbackIOWriter(stream.write))
                except RuntimeError as error:
                    raise OSError(f"{path} cannot be written: {error}") from error

    def _trained_index(self, count: int, entries: Entries) -> Any:
        """An empty index of the factory, trained on a sample."""
        faiss = _faiss()
        width = entries(np.arange(1)).shape[1]
        sample = max(1, min(SAMPLE, 2 * NUMBERS // width, count))
        factory = self.settings.factory or default_factory(count, sample)
        index = _empty(factory, width)
        for part in _nested(faiss, index):
            if hasattr(part, "do_polysemous_training"):
                part.do_polysemous_training = False  # slow, and of use only for a search in Hamming space
        if not index.is_trained:
            random = np.random.default_rng(self.settings.seed)
            rows = random.choice(count, sample, replace=False)
            try:
                index.train(entries(np.sort(rows)))
            except RuntimeError as error:
                raise ValueError(f"{count} vectors do not train {factory!r}: {error}") from error
        return index

    def _read(self) -> Any:
        """FAISS's index of this state: of the file that was open then, whatever has replaced it since."""
        return self._kept_once("faiss", self._parsed)

    def _parsed(self) -> Any:
        file = self._file
        if file is None:
            raise self._table.damaged(FILE, "not in the manifest")
        faiss, name = _faiss(), Path(file.name).name
        try:
            with mmap(file.fileno(), 0, access=ACCESS_READ) as content:
                index = faiss.read_index(faiss.PyCallbackIOReader(content.read, READ))
        except (RuntimeError, ValueError) as error:
            raise self._table.damaged(name, error) from error
        if (index.ntotal, index.d) != self._entry_shape:
            raise self._table.damaged(name, f"{index.ntotal} vectors of {index.d}, not {self._entry_shape}")
        return index

    def _map(self, manifest: Mapping[str, Any]) -> None:
        super()._map(manifest)
        self.probes: int = getattr(self, "probes", self.settings.probes)
        path = self._table.path(FILE)
        self._file = path.open("rb") if path else None


def _empty(factory: str, dim: int) -> Any:
    """An empty index. ValueError for what FAISS makes none of."""
    faiss = _faiss()
    try:
        return faiss.index_factory(dim, factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise ValueError(f"FAISS makes no index of {factory!r}: {error}") from error


def default_factory(tokens: int, sample: int = SAMPLE) -> str:
    """A flat float16 index of few tokens; else 4√tokens inverted lists, as a power of 2, of which the sample
    trains each with 39 vectors, FAISS's own least number."""
    if tokens <= SMALL:
        return "SQfp16"
    trained = 1 << max(0, (sample // 39).bit_length() - 1)
    return f"IVF{min(MOST_LISTS, trained, centroids_for(tokens))},SQfp16"


def _nested(faiss: Any, index: Any) -> Iterator[Any]:
    """An index and those that it is made of."""
    index = faiss.downcast_index(index)
    yield index
    for name in ("index", "base_index"):
        if hasattr(index, name):
            yield from _nested(faiss, getattr(index, name))


def _faiss() -> Any:
    import faiss  # takes a while, and only this index needs it

    return faiss


@contextmanager
def _threads(faiss: Any) -> Iterator[None]:
    """As many threads as torch has: FAISS counts its own."""
    threads, least = faiss.omp_get_max_threads(), faiss.cvar.distance_compute_blas_threshold
    faiss.omp_set_num_threads(torch.get_num_threads())
    faiss.cvar.distance_compute_blas_threshold = BLAS_QUERIES * torch.get_num_threads()
    try:
        yield
    finally:
        faiss.omp_set_num_threads(threads)
        faiss.cvar.distance_compute_blas_threshold = least
