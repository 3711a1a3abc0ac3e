"""Sparse document and query vectors whose inner products are BM25, TF-IDF or Boolean scores.

Luan et al., TACL 2021, §2.1.3. From a term's count n and its idf in BM25, the weight is 1[n > 0] (boolean), n
· idf (tfidf) or as in `BM25` (bm25). Placing the idf in documents or in queries does not affect scores, but
changes norms and margins.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from scipy import sparse

from paradigms.baselines.bm25 import BM25
from paradigms.data import Corpus

Weighting = Literal["bm25", "tfidf", "boolean"]


@dataclass(frozen=True)
class Counts:
    """Term counts of documents [n, v] and queries [m, v].

    `saturated` [n, v]: BM25 weights without idf. `idf` [v]: the idf of each term.
    """

    corpus: Corpus
    bm25: BM25
    queries: sparse.csr_array
    saturated: sparse.csr_array
    idf: np.ndarray
    query_ids: list[str]

    @cached_property
    def documents(self) -> sparse.csr_array:
        """Term counts of the documents [n, v]."""
        return count_matrix(self.bm25, self.corpus)

    @property
    def lengths(self) -> np.ndarray:
        """Number of terms in each document [n]."""
        return np.asarray(self.documents.sum(axis=1)).ravel()


def count_terms(corpus: Corpus, texts: Mapping[str, str], queries: int) -> Counts:
    """Count the terms in the corpus and in `queries` random texts that share a term with the corpus.

    Raises ValueError if no text shares a term with the corpus.
    """
    bm25 = BM25(corpus)
    answerable = [i for i, text in texts.items() if any(term in bm25.vocabulary for term in bm25.terms(text))]
    if not answerable:
        raise ValueError(f"none of {len(texts):,} queries holds a word of the documents")
    size = min(queries, len(answerable))
    sample = np.random.default_rng(0).choice(len(answerable), size, replace=False)
    ids = [answerable[i] for i in sorted(sample)]
    matrix = bm25.matrix().astype(np.float64)
    frequency = np.bincount(matrix.indices, minlength=matrix.shape[1])
    idf = np.log1p((len(corpus) - frequency + 0.5) / (frequency + 0.5))
    saturated = (matrix @ sparse.diags_array(1 / idf)).tocsr()
    saturated.sort_indices()
    return Counts(corpus, bm25, count_matrix(bm25, (texts[i] for i in ids)), saturated, idf, ids)


def count_matrix(bm25: BM25, texts: Iterable[str]) -> sparse.csr_array:
    """Count how often each vocabulary term occurs in each text: [texts, vocabulary]."""
    terms = [[bm25.vocabulary[t] for t in bm25.terms(text) if t in bm25.vocabulary] for text in texts]
    rows = np.repeat(np.arange(len(terms)), [len(row) for row in terms])
    columns = np.fromiter((column for row in terms for column in row), np.int64, len(rows))
    shape = (len(terms), len(bm25.vocabulary))
    return sparse.coo_array((np.ones(len(rows)), (rows, columns)), shape=shape).tocsr()  # adds up repeats


def weigh(counts: Counts, weighting: Weighting = "bm25") -> tuple[sparse.csr_array, sparse.csr_array]:
    """Return vectors (documents [n, v], queries [m, v]) whose inner products are the `weighting` scores.

    The queries' weights include the idf, except that "boolean" has none.
    """
    if weighting == "boolean":
        return counts.documents.sign(), counts.queries.sign()
    documents = counts.saturated if weighting == "bm25" else counts.documents
    return documents, (counts.queries @ sparse.diags_array(counts.idf)).tocsr()
