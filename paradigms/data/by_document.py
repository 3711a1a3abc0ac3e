"""Documents cut into passages, and scores of documents from those of their passages.

score(d) = sum of the m largest scores of d's passages, of all where it has fewer; m = 1 is MaxP (Dai and
Callan, "Deeper Text Understanding for IR with Contextual Neural Language Modeling", SIGIR 2019).

    pieces = Passages(corpus, words=85)
    index = ExactIndex.build(paradigm, pieces.corpus.ids, pieces.corpus, folder)
    search, rerank = partial(index.search, paradigm), partial(index.rerank, paradigm)
    run = pieces.searching(search, rerank)(queries, 10)  # of documents
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from paradigms.data.collection import Corpus, Run, best_first, body
from paradigms.data.texts import WORD, passages

WIDER = 4  # times as many passages are searched where too few documents are found


class Passages:
    """The passages of a corpus, as a corpus of their own, and the way back to documents.

    words: of a passage at most, its title included; cuts as in `texts.passages`. Passage n of the document d
    is "d:n" and begins with d's title. A document without text is one passage without text. 0: nothing is
    split, and each document is its own passage. best: m above. ValueError where best is below 1.
    """

    def __init__(self, corpus: Corpus, words: int, best: int = 1):
        for name, value, least in (("words", words, 0), ("best", best, 1)):
            if value < least:
                raise ValueError(f"{name} of passages must be at least {least}, got {value}")
        self._documents = corpus
        if not words:
            self.best, self.corpus, self._owners = 1, corpus, np.arange(len(corpus))
            return
        self.best = best
        ids: list[str] = []
        rows: list[tuple[int, int, int]] = []
        for of, (id, title, text) in enumerate(zip(corpus.ids, corpus.titles, corpus, strict=True)):
            rest = body(title, text)
            taken = len(WORD.findall(title)) if len(rest) < len(text) else 0
            found = list(passages(rest, max(words - taken, (words + 1) // 2))) or [(0, len(rest))]
            rows += [(of, start, end) for start, end in found]
            ids += [f"{id}:{n}" for n in range(len(found))]
        self._owners = np.array([of for of, _, _ in rows], dtype=np.int64)
        texts = _Texts(corpus, np.array(rows, dtype=np.int64))
        self.corpus = Corpus(ids, texts, [corpus.titles[of] for of, _, _ in rows])

    def of(self, document: str) -> list[str]:
        """The passages of a document. KeyError names an unknown one.

        >>> Passages(Corpus(["a", "b"], ["one two three", "four"]), words=2).of("a")
        ['a:0', 'a:1']
        """
        place = self._documents.position(document)
        start, end = np.searchsorted(self._owners, [place, place + 1])
        return self.corpus.ids[start:end]

    def documents(self, run: Run) -> Run:
        """The documents of a run of passages with their scores, best first."""
        return {query: best_first(self._scores(scores, self.best)) for query, scores in run.items()}

    def searching(self, search: Callable[..., Run], rerank: Callable[..., Run]) -> Callable[..., Run]:
        """search(queries, k, …) for the k best documents, from search and rerank of passages.

        With m = 1 these are the k best of all. With m > 1 they are the best by their sums among the documents
        of the 2k best single passages.
        """
        mean = -(-len(self.corpus) // max(1, len(self._documents)))

        def found(queries: Mapping[str, str], k: int, **options: Any) -> Run:
            wanted = k if self.best == 1 else 2 * k
            run: Run = {query: {} for query in queries}
            left, depth = dict(queries), min(wanted * mean, len(self.corpus))
            while left:
                for query, scores in search(left, depth, **options).items():
                    documents = self._scores(scores, 1)
                    if len(documents) >= wanted or len(scores) < depth or depth == len(self.corpus):
                        del left[query]
                        run[query] = best_first(documents, wanted)
                depth = min(WIDER * depth, len(self.corpus))
            if self.best > 1:
                run = self.reranking(rerank)(queries, run, **options)
            return {query: best_first(scores, k) for query, scores in run.items()}

        return found

    def reranking(self, rerank: Callable[..., Run]) -> Callable[..., Run]:
        """rerank(queries, run, …) of documents, each by all its passages, from one of passages."""

        def found(queries: Mapping[str, str], run: Run, **options: Any) -> Run:
            return self.documents(rerank(queries, self.passages(run), **options))

        return found

    def passages(self, run: Run) -> Run:
        """All passages of a run's documents, without scores (all 0): what to rerank."""
        return {q: dict.fromkeys((p for d in scores for p in self.of(d)), 0.0) for q, scores in run.items()}

    def _scores(self, scores: Mapping[str, float], best: int) -> dict[str, float]:
        places = [self.corpus.position(passage) for passage in scores]
        found: dict[int, list[float]] = {}
        for owner, score in zip(self._owners[places].tolist(), scores.values(), strict=True):
            found.setdefault(owner, []).append(score)
        summed = ((owner, sum(sorted(own, reverse=True)[:best])) for owner, own in found.items())
        return {self._documents.ids[owner]: score for owner, score in summed}


class _Texts(Sequence[str]):
    """Title and body[start:end] of a document for each row (document, start, end), read when asked for."""

    def __init__(self, corpus: Corpus, rows: np.ndarray):
        self._corpus, self._rows = corpus, rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        of, start, end = self._rows[index].tolist()
        title, text = self._corpus.titles[of], self._corpus[of]
        rest = body(title, text)
        before = text[: len(text) - len(rest)]
        return f"{before}{rest[start:end]}"
