"""The kinds of index, each of which combines a codec, derived files and a finder.

Plug-ins can add kinds to `INDEXES`.
"""

from collections.abc import Callable
from pathlib import Path

from paradigms.find.index import Index
from paradigms.find.lists import Lists, Probing
from paradigms.find.near_tokens import NearTokens, TokenFile
from paradigms.find.nearest import FLAT
from paradigms.find.predictors import NearDocuments, Predictors
from paradigms.find.scan import Exact
from paradigms.find.terms import BlockMax
from paradigms.io.checks import Named
from paradigms.store.codecs import Float16, Weights
from paradigms.store.kind import Kind
from paradigms.store.residuals import Residuals
from paradigms.store.store import open_store


def exact() -> Kind:
    """Store float16 vectors; a search scores all documents exactly."""
    return Kind("exact", Float16(), Exact())


def faiss(factory: str = "", probes: int = 0, seed: int = 0) -> Kind:
    """Store float16 vectors and a FAISS index; a search scores the documents whose tokens FAISS finds.

    factory: a string for `faiss.index_factory`; "" means a flat float16 index for few tokens, and inverted
    lists for many. probes: number of lists to read per query token, or the depth of a graph's search; 0 means
    what `find.recall` chooses. seed: random seed of the training sample.
    """
    return Kind("faiss", Float16(), NearTokens(probes), TokenFile(factory, seed))


def compressed(
    bits: int = 4,
    lists: int = 0,
    rounds: int = 5,
    seed: int = 0,
    fine_bits: int = 0,
    probes: int = 0,
    candidates: int = 0,
) -> Kind:
    """Store a centroid and 1, 2, 4 or 8 bits per dimension for each token; a search scores a few lists.

    lists: number of centroids; 0 means the power of two nearest to 4√tokens. rounds, seed: settings of
    k-means. fine_bits: bits per dimension of a second code, from which the best candidates are scored again;
    0 stores none. probes: number of lists to read per query token. candidates: number of documents to score
    in full, raised to k if smaller. 0 means what `find.recall` chooses.
    """
    codec = Residuals(bits, lists, rounds, seed, fine_bits)
    return Kind("compressed", Float16(), Probing(probes, candidates), Lists(), codec)


def inverted(bits: int = 8) -> Kind:
    """Store term weights (SPLADE, uniCOIL, BM25) in 8 bits or float16; a search uses an inverted index.

    Documents that share a term with the query are scored, except in blocks that cannot reach the k-th score.
    """
    return Kind("inverted", Weights(bits), BlockMax())


def lemur(
    width: int = 1024,
    epochs: int = 4,
    seed: int = 0,
    factory: str = FLAT,
    probes: int = 0,
    candidates: int = 0,
) -> Kind:
    """Store float16 vectors and a vector per document that predicts MaxSim and selects documents to score.

    width, epochs, seed: see `lemur` and `predictors.Predictors`. factory: FAISS index of these vectors, by
    default a flat one (`nearest.FLAT`). probes: number of lists to read per query, if it has lists.
    candidates: number of documents to score in full, raised to k if smaller. 0 means what `find.recall`
    chooses.
    """
    derived = Predictors(factory, seed, width, epochs)
    return Kind("lemur", Float16(), NearDocuments(probes, candidates), derived)


INDEXES: dict[str, Callable[..., Kind]] = Named(
    "kind of index", exact=exact, faiss=faiss, compressed=compressed, inverted=inverted, lemur=lemur
)


def open_index(folder: str | Path, *, verify: bool | None = None) -> Index:
    """Open the index in a folder, whatever its kind; see `store.open_store` for arguments and errors."""
    return Index(open_store(folder, INDEXES, verify=verify))
