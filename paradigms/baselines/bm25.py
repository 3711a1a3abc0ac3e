"""BM25, the lexical baseline: rel(d, q) = Σ_t n_q(t) · w(d, t) over the terms t that d and q share.

w(d, t) = log(1 + (N − f_t + ½)/(f_t + ½)) · n_d(t) / (n_d(t) + k1·(1 − b + b·|d|/mean|d|)), where N is the
number of documents, f_t the number of documents that contain t, n_d(t) and n_q(t) are the counts of t in d
and q, and |d| is the number of terms in d (Robertson et al. 1994, as computed by Lucene: Kamphuis et al.,
ECIR 2020), with k1 = .9 and b = .4 as in the published BEIR runs. The weights come from bm25s.

Words are lower-cased runs of letters (with combining marks), digits and underscores. Lucene's 33 English stop
words are removed, and words are not stemmed. Text in scripts without spaces is split into all pairs of
neighbouring characters, as in Lucene's CJKAnalyzer. BM25-uni of Luan et al. (TACL 2021, §4.1) has `ngrams` =
1 and BM25-bi has 2.
"""

import importlib
import json
import logging
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import regex  # type: ignore[import-untyped]

from paradigms.data import Corpus, Run, Texts, best_first, check_queries
from paradigms.data.assembly import Digest
from paradigms.data.results import any_queries
from paradigms.explanation import Explanation
from paradigms.io.checks import check_texts, naming, read_json
from paradigms.io.files import atomic_folder, contents, settle
from paradigms.io.guesses import Guessed
from paradigms.io.progress import progress_bar

if TYPE_CHECKING:
    import scipy.sparse

WORD = re.compile(r"\w+")
SAVED = contents("*.index.npy", "*.json", marks=["params.index.json"])
UNSPACED = "".join(
    rf"\p{{scx={script}}}" for script in ("Hani", "Hira", "Kana", "Thai", "Laoo", "Khmr", "Mymr")
)
LETTER = r"[\p{L}\p{N}]"
# A run of characters of these scripts, or a word of any other script.
RUN = regex.compile(
    rf"(?V1)((?:[[{UNSPACED}]&&{LETTER}]\p{{M}}*)+)|[[\p{{L}}\p{{N}}\p{{M}}_]--[{UNSPACED}]]+"
)
CHARACTER = regex.compile(r"\P{M}\p{M}*")
STOPWORDS = tuple(
    WORD.findall(
        "a an and are as at be but by for if in into is it no not of on or such that the their then there "
        "these they this to was will with"
    )
)


def _bm25s() -> ModuleType:
    """Import bm25s as if JAX were not installed, because JAX would reserve most of the GPU's memory."""
    hidden = "jax" not in sys.modules
    if hidden:
        sys.modules["jax"] = None  # type: ignore[assignment]
    try:
        bm25s = importlib.import_module("bm25s")
        logging.getLogger("bm25s").setLevel(logging.WARNING)  # it reports every step otherwise
        return bm25s
    finally:
        if hidden:
            del sys.modules["jax"]


class BM25(Guessed):
    """Search a corpus with BM25. vocabulary: map from terms to columns of `matrix`."""

    def __init__(
        self,
        texts: Texts,
        *,
        k1: float = 0.9,
        b: float = 0.4,
        ngrams: int = 1,
        stopwords: Iterable[str] = STOPWORDS,
        progress: bool = False,
    ) -> None:
        """Index a corpus, a map from ids to texts, or a list of texts.

        ngrams: terms are runs of 1 to `ngrams` words. stopwords: words to remove before runs are formed.
        Raises ValueError if no text contains a term.
        """
        bm25s = _bm25s()

        if ngrams < 1:
            raise ValueError(f"ngrams must be at least 1, got {ngrams}")
        corpus = Corpus.of(texts)
        stopwords = frozenset(stopwords)
        vocabulary: dict[str, int] = {}
        with progress_bar(progress) as bar:
            terms = [
                [vocabulary.setdefault(term, len(vocabulary)) for term in text]
                for text in bar.track(
                    (tokenize(text, ngrams, stopwords) for text in corpus),
                    len(corpus),
                    description="index bm25",
                )
            ]
        if not vocabulary:
            raise ValueError(f"none of the {len(terms)} texts holds a word to index")
        index = bm25s.BM25(k1=k1, b=b, method="lucene", backend="numpy")
        index.index((terms, vocabulary), create_empty_token=False, show_progress=False)
        self._hold(index, corpus, ngrams, stopwords)

    def _hold(self, index: Any, corpus: Corpus, ngrams: int, stopwords: Iterable[str]) -> None:
        self._index = index
        self.corpus = corpus
        self.ngrams = ngrams
        self.stopwords = frozenset(stopwords)
        self.vocabulary: dict[str, int] = index.vocab_dict

    def terms(self, text: str) -> list[str]:
        """Return a text's terms, in order and with repeats; some may not be in the index."""
        return tokenize(text, self.ngrams, self.stopwords)

    def matrix(self) -> "scipy.sparse.csr_array":
        """Return w(d, t) as [documents, vocabulary]; scores = matrix() @ (counts of a query's terms)."""
        import scipy.sparse

        scores = self._index.scores
        shape = (len(self.corpus), len(self.vocabulary))
        by_term = scipy.sparse.csc_array((scores["data"], scores["indices"], scores["indptr"]), shape=shape)
        return scipy.sparse.csr_array(by_term)

    def size_in_bytes(self) -> int:
        """Size of the matrix in bytes."""
        matrix = self.matrix()
        return matrix.data.nbytes + matrix.indices.nbytes + matrix.indptr.nbytes

    @any_queries
    def search(self, queries: Mapping[str, str], k: int = 100, *, progress: bool = False) -> Run:
        """Find the k best documents that share a term with each query; equal scores are ordered by id."""
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        check_texts(queries, "query")
        run: Run = {}
        with progress_bar(progress) as bar:
            for query, text in bar.track(queries.items(), description="search bm25"):
                scores = self._scores(text)
                rows = np.flatnonzero(scores > 0)
                if len(rows) > k:  # keep all ties with the k-th, which ids break
                    rows = rows[scores[rows] >= np.partition(scores[rows], -k)[-k]]
                scored = zip(rows, scores[rows].tolist(), strict=True)
                run[query] = best_first({self.corpus.ids[row]: score for row, score in scored}, k)
        return run

    def rerank(self, queries: Mapping[str, str], run: Run, *, progress: bool = False) -> Run:
        """Score the run's documents, best first; a document that shares no term with its query scores 0.

        Raises KeyError if a query has no text or a document is not in the corpus.
        """
        check_queries(run, queries)
        reranked: Run = {}
        with progress_bar(progress) as bar:
            for query, candidates in bar.track(run.items(), description="rerank bm25"):
                rows = {id: self.corpus.position(id) for id in candidates}
                scores = self._scores(queries[query])
                reranked[query] = best_first({id: float(scores[row]) for id, row in rows.items()})
        return reranked

    def explain(self, query: str, document: str, others: Sequence[str] = ()) -> list[Explanation]:
        """Align each query term with its first occurrence in the document; S is w(d, t).

        document: the document's id. others: ignored, because scores do not depend on other documents.
        """
        row = self.corpus.position(document)
        scores = self._index.scores
        terms = self.terms(self.corpus[row])
        weights = {}
        for term in set(terms).intersection(self.terms(query)):
            column = slice(*scores["indptr"][self.vocabulary[term] :][:2])
            weights[term] = float(scores["data"][column][scores["indices"][column] == row][0])
        return [self._explanation(query, terms, weights)]

    def explain_text(self, query: str, text: str) -> Explanation:
        """Explain the score of a text outside the corpus, using the corpus's idf and mean length."""
        terms = self.terms(text)
        return self._explanation(query, terms, self._weights(terms))

    def _explanation(self, query: str, terms: list[str], weights: Mapping[str, float]) -> Explanation:
        query_terms = self.terms(query)
        first = {term: i for i, term in reversed(list(enumerate(terms)))}
        links = [
            (first[term], j, weights[term], 1.0) for j, term in enumerate(query_terms) if term in weights
        ]
        rel = sum((s for _, _, s, _ in links), 0.0)
        return Explanation("bm25", "the words", query_terms, terms, links, 1.0, rel)

    def _weights(self, terms: list[str]) -> dict[str, float]:
        """Return w(d, t) for each term t of a document d, by Lucene's formula (`method="lucene"`)."""
        k1 = self._index.k1
        b = self._index.b
        n = len(self.corpus)
        norm = 1 - b + b * len(terms) / self._mean_length
        starts = self._index.scores["indptr"]
        weights = {}
        for term, tf in Counter(terms).items():
            if term in self.vocabulary:
                column = self.vocabulary[term]
                df = starts[column + 1] - starts[column]
                weights[term] = float(np.log1p((n - df + 0.5) / (df + 0.5)) * tf / (tf + k1 * norm))
        return weights

    @cached_property
    def _mean_length(self) -> float:
        return float(np.mean([len(self.terms(text)) for text in self.corpus]))

    def save(self, folder: str | Path) -> None:
        """Write the index as .npy and .json files. Only an older index is overwritten."""
        with atomic_folder(folder, SAVED) as fresh:
            self._index.save(fresh, show_progress=False, allow_pickle=False)
            settings = {
                "ids": self.corpus.ids,
                "texts": _checksum(self.corpus),
                "ngrams": self.ngrams,
                "stopwords": sorted(self.stopwords),
            }
            (fresh / "settings.json").write_text(json.dumps(settings), encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path, texts: Texts, *, just_saved: bool = False) -> "BM25":
        """Open an index of `texts` written by `save`.

        just_saved: another process of this launch has just saved it; map its weights, without comparing the
        texts. Raises FileNotFoundError without an index, and ValueError if it is of other documents.
        """
        bm25s = _bm25s()
        corpus = Corpus.of(texts)
        bm25 = cls.__new__(cls)
        settle(folder)
        file = Path(folder) / "settings.json"
        if not file.is_file():
            raise FileNotFoundError(f"{folder} holds no saved BM25 index (no settings.json)")
        with naming(folder):
            settings = read_json(file)
            ids = settings.pop("ids")
            checksum = settings.pop("texts", None)
            if not just_saved and (ids != corpus.ids or checksum != _checksum(corpus)):
                raise ValueError(f"it indexes other documents than these {len(corpus):,}: index these anew")
            index = bm25s.BM25.load(folder, mmap=just_saved, show_progress=False, allow_pickle=False)
            bm25._hold(index, corpus, **settings)
        return bm25

    def _scores(self, text: str) -> np.ndarray:
        columns = [self.vocabulary[term] for term in self.terms(text) if term in self.vocabulary]
        if not columns:
            return np.zeros(len(self.corpus), dtype=np.float32)
        return self._index.get_scores_from_ids(columns)


def tokenize(text: str, ngrams: int = 1, stopwords: Iterable[str] = STOPWORDS) -> list[str]:
    """Return a text's terms: its words without stop words, then runs of 2 to `ngrams` words.

    >>> tokenize("The bank of a river", ngrams=2)
    ['bank', 'river', 'bank river']
    """
    removed = frozenset(stopwords)
    words = [word for word in _words(text.lower()) if word not in removed]
    runs = (zip(*(words[start:] for start in range(n)), strict=False) for n in range(2, ngrams + 1))
    return words + [" ".join(run) for group in runs for run in group]


def _checksum(texts: Iterable[str]) -> str:
    digest = Digest()
    digest.add(*texts)
    return digest.hexdigest()


def _words(text: str) -> list[str]:
    if text.isascii():
        return WORD.findall(text)
    words: list[str] = []
    for match in RUN.finditer(text):
        characters = CHARACTER.findall(match[0]) if match[1] else []
        pairs = [first + second for first, second in pairwise(characters)]
        words += pairs or [match[0]]
    return words
