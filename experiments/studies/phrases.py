"""{(phrase, row) : the phrase stands in the row, number after number}, for many phrases at once."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

BLOCK = 1 << 20  # numbers searched at once
ABSENT = -1  # a number that is in no phrase
BASE, SPREAD = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)


class Phrases:
    """Different sequences of numbers ≥ 0 to look for, by the hashes of n-grams (Karp and Rabin, 1987).

    hash(w₁ … wₙ) = hash(w₁ … wₙ₋₁)·BASE + mix(wₙ) modulo 2⁶⁴. Equal hashes are compared number by number.
    """

    def __init__(self, phrases: Iterable[Sequence[int]]):
        by_length: dict[int, list[tuple[int, Sequence[int]]]] = {}
        for place, phrase in enumerate(phrases):
            by_length.setdefault(len(phrase), []).append((place, phrase))
        self._tables = {}
        for n, rows in sorted(by_length.items()):
            table = np.array([phrase for _, phrase in rows], dtype=np.int64)
            hashes = np.zeros(len(table), dtype=np.uint64)
            for column in table.T:
                hashes = hashes * BASE + _mix(column)
            order = np.argsort(hashes)
            hashes = hashes[order]
            if n == 0 or (hashes[1:] == hashes[:-1]).any():
                raise ValueError("a phrase is empty or there twice")
            self._tables[n] = hashes, table[order], np.array([place for place, _ in rows])[order]

    def find(self, rows: Iterable[Sequence[int] | np.ndarray]) -> Iterator[tuple[int, int]]:
        """(place of the phrase, place of the row), once for each occurrence."""
        block: list[np.ndarray] = []
        begins: list[int] = []
        size = done = 0
        for row in rows:
            begins.append(size)
            block += [np.asarray(row, dtype=np.int64), np.array([ABSENT])]
            size += len(row) + 1
            if size >= BLOCK:
                yield from self._in_block(np.concatenate(block), np.array(begins), done)
                done += len(begins)
                block, begins, size = [], [], 0
        if begins:
            yield from self._in_block(np.concatenate(block), np.array(begins), done)

    def _in_block(self, numbers: np.ndarray, begins: np.ndarray, done: int) -> Iterator[tuple[int, int]]:
        mixed = _mix(numbers)
        hashes = np.zeros(len(numbers) + 1, dtype=np.uint64)
        for n in range(1, min(max(self._tables, default=0), len(numbers)) + 1):
            hashes = hashes[:-1] * BASE + mixed[n - 1 :]
            if n not in self._tables:
                continue
            known, table, places = self._tables[n]
            near = np.searchsorted(known, hashes)
            at = np.flatnonzero(known[np.minimum(near, len(known) - 1)] == hashes)
            same = (numbers[at[:, None] + np.arange(n)] == table[near[at]]).all(axis=1)
            at = at[same]
            of = np.searchsorted(begins, at, side="right") - 1 + done
            yield from zip(places[near[at]].tolist(), of.tolist(), strict=True)


def _mix(numbers: np.ndarray) -> np.ndarray:
    spread = numbers.astype(np.uint64) * SPREAD
    return spread ^ (spread >> np.uint64(31))
