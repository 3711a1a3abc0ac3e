"""Cut documents into passages, and rank documents by the scores of their passages.

pieces = Pieces(corpus, words=85)
index = Indexed.build(model, pieces.corpus)
Passages(index, pieces).search(queries, 10)  # ranks documents (`paradigms.retrieve`)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from paradigms.data.collection import Corpus, Texts, body
from paradigms.data.texts import WORD, passages


class Pieces:
    """A corpus cut into passages. `Pieces.corpus` contains the passages as documents.

    corpus: the documents; `source` is their corpus. words: maximum words per passage, including the title;
    with 0, each document is one passage. Passage n of document d has the id "d:n" and begins with d's title.
    A document without text is one passage without text.
    """

    def __init__(self, corpus: Texts, words: int):
        corpus = Corpus.of(corpus)
        if words < 0:
            raise ValueError(f"words of passages must be at least 0, got {words}")
        self.source = corpus
        self.words = words
        if not words:
            self.corpus = corpus
            self._owners = np.arange(len(corpus))
            return
        ids: list[str] = []
        rows: list[tuple[int, int, int]] = []
        for document, (id, title, text) in enumerate(zip(corpus.ids, corpus.titles, corpus, strict=True)):
            rest = body(title, text)
            taken = len(WORD.findall(title)) if len(rest) < len(text) else 0
            spans = list(passages(rest, max(words - taken, (words + 1) // 2))) or [(0, len(rest))]
            rows += [(document, start, end) for start, end in spans]
            ids += [f"{id}:{n}" for n in range(len(spans))]
        self._owners = np.array([document for document, _, _ in rows], dtype=np.int64)
        texts = _Texts(corpus, np.array(rows, dtype=np.int64))
        self.corpus = Corpus(ids, texts, [corpus.titles[document] for document, _, _ in rows])

    def of(self, document: str) -> list[str]:
        """Return the ids of a document's passages. Raises KeyError if the document is unknown.

        >>> Pieces(Corpus(["a", "b"], ["one two three", "four"]), words=2).of("a")
        ['a:0', 'a:1']
        """
        place = self.source.position(document)
        start, end = np.searchsorted(self._owners, [place, place + 1])
        return self.corpus.ids[start:end]

    @property
    def mean(self) -> int:
        """Average number of passages per document, rounded up."""
        return -(-len(self.corpus) // max(1, len(self.source)))

    def documents(self, scores: Mapping[str, float], best: int = 1) -> dict[str, float]:
        """Map each document to the sum of its passages' `best` largest scores, in no particular order."""
        rows = [self.corpus.position(passage) for passage in scores]
        grouped: dict[int, list[float]] = {}
        for owner, score in zip(self._owners[rows].tolist(), scores.values(), strict=True):
            grouped.setdefault(owner, []).append(score)
        summed = ((owner, sum(sorted(values, reverse=True)[:best])) for owner, values in grouped.items())
        return {self.source.ids[owner]: score for owner, score in summed}


class _Texts(Sequence[str]):
    """Title and body[start:end] for each row (document, start, end), read on demand."""

    def __init__(self, corpus: Corpus, rows: np.ndarray):
        self._corpus = corpus
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        document, start, end = self._rows[index].tolist()
        title = self._corpus.titles[document]
        text = self._corpus[document]
        rest = body(title, text)
        before = text[: len(text) - len(rest)]
        return f"{before}{rest[start:end]}"
