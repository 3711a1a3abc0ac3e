"""BM25, the lexical baseline: rel(d, q) = Σ_t n_q(t) · w(d, t) over the terms t that d and q share.

w(d, t) = log(1 + (N − f_t + ½)/(f_t + ½)) · n_d(t) / (n_d(t) + k1·(1 − b + b·|d|/mean|d|)), with N documents,
f_t of them holding t, n_d(t) and n_q(t) counts and |d| a document's number of terms: Robertson et al. 1994,
as Lucene computes it (Kamphuis et al., ECIR 2020), with k1 = .9 and b = .4 as in the published BEIR runs. The
weights come from bm25s.

Words: lower case, runs of letters with their marks, digits and underscores, without Lucene's 33 English stop
words and without stemming; of scripts written without spaces every two neighbouring characters, as in
Lucene's CJKAnalyzer. Or terms are the pieces of a tokenizer, as in Luan et al. (TACL 2021, §4.1): BM25-uni
has `ngrams` = 1 and BM25-bi 2.
"""

import importlib
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import regex  # type: ignore[import-untyped]

from paradigms.data import Run, best_first, check_queries
from paradigms.io.files import atomic_folder, settle
from paradigms.io.progress import progress_bar
from paradigms.io.typed import naming, read_json

if TYPE_CHECKING:
    import scipy.sparse

WORD = re.compile(r"\w+")
BATCH = 1000  # texts in one call of a tokenizer
TOKENIZER = "tokenizer"  # its folder in that of a saved index
UNSPACED = "".join(
    rf"\p{{scx={script}}}" for script in ("Hani", "Hira", "Kana", "Thai", "Laoo", "Khmr", "Mymr")
)
LETTER = r"[\p{L}\p{N}]"
# A run of characters of such scripts, or a word of any other.
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
    """The library, imported as if JAX were not installed: it would run JAX, which reserves most of a GPU."""
    hidden = "jax" not in sys.modules
    if hidden:
        sys.modules["jax"] = None  # type: ignore[assignment]
    try:
        return importlib.import_module("bm25s")
    finally:
        if hidden:
            del sys.modules["jax"]


class BM25:
    """An index of the weights w(d, t), from `build` or `load`. vocabulary: term -> column of `matrix`."""

    def __init__(
        self, index: Any, ids: list[str], *, ngrams: int, stopwords: Iterable[str], tokenizer: Any = None
    ):
        self.ids = ids
        self.ngrams = ngrams
        self.tokenizer = tokenizer
        self.stopwords = frozenset(stopwords)
        self.vocabulary: dict[str, int] = index.vocab_dict
        self._index = index
        self._positions = {id: i for i, id in enumerate(ids)}

    @classmethod
    def build(
        cls,
        corpus: Iterable[str],
        ids: Sequence[str],
        *,
        k1: float = 0.9,
        b: float = 0.4,
        ngrams: int = 1,
        stopwords: Iterable[str] | None = None,
        tokenizer: str | Path | None = None,
        progress: bool = False,
    ) -> "BM25":
        """Index of the texts of `corpus`, named by `ids`. Terms are runs of 1 to `ngrams` words or pieces.

        tokenizer: of whose pieces terms are, by hub name or folder; None = words. stopwords: left out before
        runs are formed, by default `STOPWORDS` of words. ValueError for ids that do not fit, or no term.
        """
        bm25s = _bm25s()

        if ngrams < 1:
            raise ValueError(f"ngrams must be at least 1, not {ngrams}")
        pieces = None if tokenizer is None else _tokenizer(tokenizer)
        if stopwords is None:
            stopwords = STOPWORDS if pieces is None else ()
        stopwords = frozenset(stopwords)
        vocabulary: dict[str, int] = {}
        with progress_bar(progress) as bar:
            terms = [
                [vocabulary.setdefault(term, len(vocabulary)) for term in text]
                for text in bar.track(
                    _terms(corpus, ngrams, stopwords, pieces), len(ids), description="index bm25"
                )
            ]
        if len(terms) != len(ids) or len(set(ids)) != len(ids):
            raise ValueError(
                f"{len(terms)} texts need as many different ids, not {len(set(ids))} among {len(ids)}"
            )
        if not vocabulary:
            raise ValueError(f"none of the {len(terms)} texts holds a word to index")
        index = bm25s.BM25(k1=k1, b=b, method="lucene", backend="numpy")
        index.index((terms, vocabulary), create_empty_token=False, show_progress=False)
        return cls(index, list(ids), ngrams=ngrams, stopwords=stopwords, tokenizer=pieces)

    def terms(self, text: str) -> list[str]:
        """The terms of a text, in order and with repeats, whether the index knows them or not."""
        return next(_terms([text], self.ngrams, self.stopwords, self.tokenizer))

    def matrix(self) -> "scipy.sparse.csr_array":
        """w(d, t) as [documents, vocabulary]: scores = matrix() @ (counts of a query's terms)."""
        import scipy.sparse

        scores = self._index.scores
        shape = (len(self.ids), len(self.vocabulary))
        by_term = scipy.sparse.csc_array((scores["data"], scores["indices"], scores["indptr"]), shape=shape)
        return scipy.sparse.csr_array(by_term)

    def search(self, queries: dict[str, str], k: int, *, progress: bool = False) -> Run:
        """Per query the k best of the documents that share a term with it, equal scores by id."""
        if k < 1:
            raise ValueError(f"k must be at least 1, not {k}")
        run: Run = {}
        with progress_bar(progress) as bar:
            for query, text in bar.track(queries.items(), description="search bm25"):
                scores = self._scores(text)
                found = np.flatnonzero(scores > 0)
                if len(found) > k:  # all that tie with the k-th stay in until the ids decide
                    found = found[scores[found] >= np.partition(scores[found], -k)[-k]]
                scored = zip(found, scores[found].tolist(), strict=True)
                run[query] = best_first({self.ids[i]: score for i, score in scored}, k)
        return run

    def rerank(self, queries: dict[str, str], run: Run) -> Run:
        """The run's queries and documents with BM25 scores, best first; 0 where no term is shared.

        KeyError names a query without a text or a document outside the index.
        """
        check_queries(run, queries)
        reranked: Run = {}
        for query, candidates in run.items():
            unknown = next((id for id in candidates if id not in self._positions), None)
            if unknown is not None:
                raise KeyError(f"the run names the document {unknown!r}, which the index does not hold")
            scores = self._scores(queries[query])
            reranked[query] = best_first({id: float(scores[self._positions[id]]) for id in candidates})
        return reranked

    def save(self, folder: str | Path) -> None:
        """Write the index and its tokenizer as .npy and .json files, in place of an older index at most."""
        with atomic_folder(folder, ["params.index.json"]) as fresh:
            self._index.save(fresh, show_progress=False, allow_pickle=False)
            settings = {"ids": self.ids, "ngrams": self.ngrams, "stopwords": sorted(self.stopwords)}
            if self.tokenizer is not None:
                self.tokenizer.save_pretrained(fresh / TOKENIZER)
                settings["pieces"] = len(self.tokenizer)
            (fresh / "settings.json").write_text(json.dumps(settings), encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path) -> "BM25":
        """Index that `save` wrote. FileNotFoundError when `folder` holds none."""
        bm25s = _bm25s()

        settle(folder)
        file = Path(folder) / "settings.json"
        if not file.is_file():
            raise FileNotFoundError(f"{folder} holds no saved BM25 index (no settings.json)")
        with naming(folder):
            settings = read_json(file)
            index = bm25s.BM25.load(folder, show_progress=False, allow_pickle=False)
            pieces = settings.pop("pieces", None)
            tokenizer = None if pieces is None else _tokenizer(Path(folder) / TOKENIZER, pieces)
            return cls(index, **settings, tokenizer=tokenizer)

    def _scores(self, text: str) -> np.ndarray:
        known = [self.vocabulary[term] for term in self.terms(text) if term in self.vocabulary]
        if not known:
            return np.zeros(len(self.ids), dtype=np.float32)
        return self._index.get_scores_from_ids(known)


def tokenize(text: str, ngrams: int = 1, stopwords: Iterable[str] = STOPWORDS) -> list[str]:
    """The terms of a text: its words that are no stop words, then the runs of 2 to `ngrams` of these.

    >>> tokenize("The bank of a river", ngrams=2)
    ['bank', 'river', 'bank river']
    """
    return _runs(_words(text.lower()), ngrams, frozenset(stopwords))


def _tokenizer(name: str | Path, pieces: int | None = None) -> Any:
    from paradigms.encoder.backbone import load_tokenizer  # imports torch, which words do not need

    return load_tokenizer(name, pieces)


def _terms(
    texts: Iterable[str], ngrams: int, stopwords: frozenset[str], tokenizer: Any
) -> Iterator[list[str]]:
    """Those of each text, of its words or of a tokenizer's pieces: without special and unknown ones."""
    if tokenizer is None:
        yield from (tokenize(text, ngrams, stopwords) for text in texts)
        return
    stream = iter(texts)
    special = {tokenizer.unk_token_id, *tokenizer.all_special_ids}
    while batch := [text.lower() for text in islice(stream, BATCH)]:
        # No warning on texts that are longer than a model's input.
        for ids in tokenizer(batch, add_special_tokens=False, verbose=False)["input_ids"]:
            kept = [id for id in ids if id not in special]
            yield _runs(tokenizer.convert_ids_to_tokens(kept), ngrams, stopwords)


def _runs(words: Sequence[str], ngrams: int, stopwords: frozenset[str]) -> list[str]:
    words = [word for word in words if word not in stopwords]
    runs = (zip(*(words[start:] for start in range(n)), strict=False) for n in range(2, ngrams + 1))
    return words + [" ".join(run) for group in runs for run in group]


def _words(text: str) -> list[str]:
    if text.isascii():
        return WORD.findall(text)
    words: list[str] = []
    for match in RUN.finditer(text):
        characters = CHARACTER.findall(match[0]) if match[1] else []
        pairs = [first + second for first, second in pairwise(characters)]
        words += pairs or [match[0]]
    return words
