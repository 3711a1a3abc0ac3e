"""Documents cut into passages: a corpus of its own, and the way back to documents.

pieces = Pieces(corpus, words=85)
index = Indexed.build(model, pieces.corpus)
Passages(index, pieces).search(queries, 10)  # finds documents (`paradigms.retrieve`)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from paradigms.data.collection import Corpus, body
from paradigms.data.texts import WORD, passages


class Pieces:
    """The passages of a corpus, as a corpus of their own, and the way back to documents.

    words: of a passage at most, its title included; cuts as in `texts.passages`. Passage n of the document d
    is "d:n" and begins with d's title. A document without text is one passage without text. 0: nothing is
    split, and each document is its own passage.
    """

    def __init__(self, corpus: Corpus, words: int):
        if words < 0:
            raise ValueError(f"words of passages must be at least 0, got {words}")
        self._documents, self.words = corpus, words
        if not words:
            self.corpus, self._owners = corpus, np.arange(len(corpus))
            return
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

        >>> Pieces(Corpus(["a", "b"], ["one two three", "four"]), words=2).of("a")
        ['a:0', 'a:1']
        """
        place = self._documents.position(document)
        start, end = np.searchsorted(self._owners, [place, place + 1])
        return self.corpus.ids[start:end]

    @property
    def mean(self) -> int:
        """Passages of a document on average, rounded up."""
        return -(-len(self.corpus) // max(1, len(self._documents)))

    def documents(self, scores: Mapping[str, float], best: int = 1) -> dict[str, float]:
        """Document → the sum of the `best` largest scores among its passages, in no order."""
        rows = [self.corpus.position(passage) for passage in scores]
        grouped: dict[int, list[float]] = {}
        for owner, score in zip(self._owners[rows].tolist(), scores.values(), strict=True):
            grouped.setdefault(owner, []).append(score)
        summed = ((owner, sum(sorted(values, reverse=True)[:best])) for owner, values in grouped.items())
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
