"""Time search for SPLADE vectors of a collection in the inverted index, scipy, bm25s and Seismic.

scipy is measured in two ways: the document matrix times a dense query, and a sparse query times the
transposed matrix, which reads only the postings of the query's terms. bm25s supports only query weights of 1.
Before an exact method is timed, the scores of its best documents are checked against exact scores of the
stored weights. Seismic (Bruch et al. 2024, arXiv:2404.18812; package pyseismic-lsr) is approximate, and left
out if it is not installed. Recall counts the best documents by unrounded weights. Methods take turns on one
core. Times are CPU times. Compare ratios: absolute times depend on the machine.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import pairwise, product
from typing import Any

from parts.settings import Benchmark
from studies.settings import OneCollection, Queries, Rounds, launch

from paradigms.io.command_line import flags


@flags(documents=8000, queries=50)
class Settings(Benchmark, Rounds, OneCollection, Queries):
    """Settings for documents and queries."""


launch(__name__, Settings, __doc__)  # before the slow imports

import bm25s
import numpy as np
import scipy.sparse
import torch
from parts.measuring import medians
from serving_costs import by_row
from studies.pages import Section, publish

from paradigms import PARADIGMS
from paradigms.align import EqualIds
from paradigms.data import load_collection
from paradigms.data.collection import hash_order
from paradigms.find import Index, Store, kinds
from paradigms.io.device import processor
from paradigms.recipe import Recipe
from paradigms.store.arrays import as_tokens, parts

RECIPE = Recipe("splade", EqualIds(), "one")
TERMS = 30_522  # size of the vocabulary
K = 10
CUTS = 5, 10, 20, 40  # query terms that Seismic reads
FACTORS = 0.7, 0.9, 1.0  # below 1, Seismic skips fewer clusters
Sparse = scipy.sparse.csr_array
Answers = np.ndarray  # [queries, K] scores of the best documents, best first
Results = list[set[int]]  # each query's K best documents


@dataclass
class Method:
    """A search method. stored: document weights in the index. queries: queries in the method's format.

    results: a search that may miss documents. build: seconds of CPU time.
    """

    search: Callable[[], Any]
    bytes_per_document: float
    stored: Sparse
    queries: Sparse
    results: Callable[[], Results] | None = None
    build: float | None = None


def main(settings: Settings) -> None:
    torch.set_num_threads(1)
    documents, queries = encoded(settings)
    ones = queries.sign()
    count = documents.shape[0]
    size = sum(part.nbytes for part in (documents.data, documents.indices, documents.indptr)) / count
    by_term = documents.T.tocsr()
    methods = {
        "scipy, CSR times dense": Method(dense_product(documents, queries), size, documents, queries),
        "scipy, CSR times CSR": Method(sparse_product(by_term, queries), size, documents, queries),
        "bm25s, query weights 1": Method(lexical(documents, ones), size, documents, ones),
    }
    for bits in (8, 16):
        start = time.process_time()
        index = built(documents, bits)
        build = time.process_time() - start
        for weighting, weighted in (("", queries), (", query weights 1", ones)):
            search, results = searches(index, weighted)
            stored = held_by(index)
            methods[f"inverted, {bits} bits{weighting}"] = Method(
                search, index.store.bytes_per_document, stored, weighted, results, build
            )
    for name, method in methods.items():
        check(name, method)
    if find_spec("seismic"):
        methods |= seismic_methods(documents, queries)
    every = [method.search for method in methods.values()]
    seconds = medians(every, settings.rounds, clock=time.process_time)
    rows = [
        {
            "method": name,
            "CPU ms a query": 1000 * taken / queries.shape[0],
            f"recall@{K}": recall(method, documents),
            "bytes a document": round(method.bytes_per_document) if method.bytes_per_document else "–",
            "CPU s to build": method.build or "–",
        }
        for (name, method), taken in zip(methods.items(), seconds, strict=True)
    ]
    text = (
        f"{count:,} documents with {documents.nnz / count:.0f} of {TERMS:,} weights above 0, and "
        f"{queries.shape[0]} queries of {queries.nnz / queries.shape[0]:.0f} terms; one thread of "
        f"{processor()}."
    )
    publish(settings, "Inverted index", text, {"methods": Section("Search for sparse vectors", rows=rows)})


def encoded(settings: Settings) -> tuple[Sparse, Sparse]:
    """Encode a collection's documents and test queries, drawn by a hash."""
    collection = load_collection(settings.collection)
    model = PARADIGMS["splade"]("offline-splade").eval()
    corpus = collection.corpus.only(hash_order(collection.corpus.ids)[: settings.documents or None])
    index = Index(Store.build(kinds.exact(), model, corpus.ids, corpus))
    texts = collection.split("test").queries
    tokens = model.encode_queries([texts[query] for query in hash_order(texts)[: settings.queries or None]])
    assert tokens.ids is not None
    mask = tokens.mask[:, 0].numpy()
    places = mask.nonzero()[0], tokens.ids[:, 0].numpy()[mask]
    weights = tokens.vectors[:, 0, :, 0].float().numpy()[mask]
    return held_by(index), scipy.sparse.coo_array((weights, places), shape=(len(mask), TERMS)).tocsr()


def built(documents: Sparse, bits: int) -> Index:
    weights, terms = by_row(documents)
    texts = parts([str(n) for n in range(len(weights))], weights, token_ids=terms)
    kind = kinds.inverted(bits)
    return Index(Store.build_from(kind, texts, paradigm="splade", dim=1, fields=("vectors", "ids")))


def held_by(index: Index) -> Sparse:
    rows = index.store.decoded(slice(None))
    weights = rows["vectors"][:, 0].astype(np.float32)
    return Sparse((weights, rows["ids"], index.store.offsets), shape=(len(index), TERMS))


def searches(index: Index, queries: Sparse) -> tuple[Callable[[], Answers], Callable[[], Results]]:
    """Return functions that search for the queries: for the best scores, and for the best documents."""
    weights, terms = by_row(queries)
    tokens = as_tokens(weights, "query", ids=terms)
    return (
        lambda: np.array([list(ranked.values()) for ranked in index.search_tokens(RECIPE, tokens, K)]),
        lambda: [{*map(int, ranked)} for ranked in index.search_tokens(RECIPE, tokens, K)],
    )


def seismic_methods(documents: Sparse, queries: Sparse) -> dict[str, Method]:
    """Build Seismic's index with its defaults; a method for each number of query terms and heap factor."""
    import seismic

    def parts(matrix: Sparse) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        names = np.arange(TERMS).astype(seismic.get_seismic_string())
        for n, (start, end) in enumerate(pairwise(matrix.indptr)):
            yield str(n), names[matrix.indices[start:end]], matrix.data[start:end].astype(np.float32)

    start = time.process_time()
    dataset = seismic.SeismicDataset()
    for document in parts(documents):
        dataset.add_document(*document)
    index = seismic.SeismicIndex.build_from_dataset(dataset, num_threads=1)
    build = time.process_time() - start
    ids, terms, weights = map(list, zip(*parts(queries), strict=True))
    names = np.array(ids, seismic.get_seismic_string())

    def searched(cut: int, factor: float) -> Results:
        results = index.batch_search(
            names, terms, weights, k=K, query_cut=cut, heap_factor=factor, num_threads=1
        )
        return [{int(document) for _, _, document in row} for row in results]

    methods = {}
    for cut, factor in product(CUTS, FACTORS):
        search = partial(searched, cut, factor)
        name = f"Seismic, {cut} terms, heap factor {factor:g}"
        methods[name] = Method(search, 0, documents, queries, search, build)
    return methods


def recall(method: Method, documents: Sparse) -> float:
    """Return the share of the best documents by unrounded weights that a search finds."""
    if method.results is None:
        return 1.0
    scores = (documents @ method.queries.T).toarray().T
    exact = np.argpartition(-scores, K, axis=1)[:, :K]
    pairs = zip(exact.tolist(), method.results(), strict=True)
    return float(np.mean([len(results.intersection(row)) / K for row, results in pairs]))


def dense_product(documents: Sparse, queries: Sparse) -> Callable[[], Answers]:
    vectors = queries.toarray()
    return lambda: np.stack([largest(documents @ query) for query in vectors])


def sparse_product(by_term: Sparse, queries: Sparse) -> Callable[[], Answers]:
    vectors = [queries[[n]] for n in range(queries.shape[0])]
    return lambda: np.stack([largest((query @ by_term).data) for query in vectors])


def lexical(documents: Sparse, queries: Sparse) -> Callable[[], Answers]:
    model = bm25s.BM25(backend="numba")
    columns = documents.tocsc()
    model.scores = {"data": columns.data, "indices": columns.indices, "indptr": columns.indptr}
    model.scores["num_docs"] = documents.shape[0]
    model.vocab_dict = {str(term): term for term in range(documents.shape[1])}
    model.unique_token_ids_set = set(range(documents.shape[1]))
    model.nonoccurrence_array = None  # only other variants than Lucene's use this array
    by_query = np.split(queries.indices, queries.indptr[1:-1])
    return lambda: model.retrieve([terms.tolist() for terms in by_query], k=K, show_progress=False).scores


def largest(scores: np.ndarray) -> np.ndarray:
    top = np.partition(scores, -K)[-K:]
    return np.sort(top)[::-1]


def check(name: str, method: Method) -> None:
    """Raise SystemExit if a method's best scores differ from exact scores with the stored weights."""
    exact = np.stack([largest(method.stored @ query) for query in method.queries.toarray()])
    if not np.allclose(method.search(), exact, rtol=1e-4):
        raise SystemExit(f"{name} and the product find different documents")
