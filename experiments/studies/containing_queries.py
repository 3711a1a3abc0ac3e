"""The queries of the containing-passage task: words of a text that stand there and nowhere else.

What the collections of all passage lengths share (`containing_passage`): the source's words as numbers, the
units of which passages of every length are made, and the queries. Every draw is a hash of the seed and of
what is drawn: the same in any process and on any machine, and for one query whatever the others are.
"""

import hashlib
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from studies.phrases import ABSENT, Phrases

from paradigms.data.collection import Corpus
from paradigms.data.passages import Runs, Slices, read_runs, units, words_of


class Query(NamedTuple):
    """Words of the source's unit `unit`, as they stand there, and their numbers."""

    id: str
    unit: int
    text: str
    words: tuple[int, ...]


@dataclass(frozen=True)
class Source:
    """A corpus cut into units: passages of the smallest length."""

    corpus: Corpus
    tokenizer: Any
    seed: int
    vocabulary: dict[str, int]
    names: list[str]  # the words by their numbers
    words: np.ndarray  # of all texts, as numbers
    ends: list[int]  # where those of each text end
    units: np.ndarray  # [units, 4]: text, place in it, first character and the one after the last
    reserved: np.ndarray  # [units]: whether it is for distractors, and none of its words for queries

    def numbers(self, text: str) -> list[int]:
        """Of the words of a text; ABSENT for those that are not in the source."""
        return numbers(words_of(text), self.vocabulary)

    def draw(self, n: int, *what: object) -> int:
        """One of 0 … n − 1, for what it is drawn for."""
        return hashed(self.seed, *what) % n


def read_source(
    corpus: Corpus, length: int, group: int, *, least: int, reserve: bool, tokenizer: Any, seed: int
) -> Source:
    """Units of at most `length` tokens and at least `least`. No passage spans two groups of `group` units.

    reserve: half of the groups, chosen by chance, are for distractors.
    """
    vocabulary: dict[str, int] = {}
    words, rows, ends = array("i"), array("q"), []
    for of, (text, runs) in enumerate(read_runs(corpus, tokenizer)):
        words.extend(vocabulary.setdefault(word, len(vocabulary)) for word in words_of(text))
        ends.append(len(words))
        for unit in units(runs, length, group=group, least=least):
            rows.extend((of, *unit))
    table = np.array(rows, dtype=np.int64).reshape(-1, 4)
    reserved = [
        reserve and hashed(seed, "reserve", corpus.ids[of], place // group) % 2 == 0
        for of, place in table[:, :2].tolist()
    ]
    return Source(
        corpus,
        tokenizer,
        seed,
        vocabulary,
        list(vocabulary),
        np.array(words, dtype=np.int32),
        ends,
        table,
        np.array(reserved, dtype=bool),
    )


def draw_queries(source: Source, count: int, fewest: int, most: int) -> list[Query]:
    """So many queries of at least `fewest` words and at most `most` tokens, each of a unit of its own.

    In an order of chance. ValueError where the source has fewer that occur only once in it.
    """
    ids, free = source.corpus.ids, np.flatnonzero(~source.reserved)
    order = [hashed(source.seed, "unit", ids[of], place) for of, place, _, _ in source.units[free].tolist()]
    waiting = free[np.argsort(np.array(order, dtype=np.uint64), kind="stable")].tolist()
    texts = Slices(source.corpus, *source.units.T[[0, 2, 3]])
    found: list[Query] = []
    while len(found) < count:
        some = waiting[: 2 * (count - len(found))]  # some of them will occur twice
        waiting = waiting[len(some) :]
        if not some:
            raise ValueError(
                f"the corpus is too small for {count:,} queries: of its {len(source.units):,} passages of "
                f"the smallest length {len(free):,} are not kept for distractors, and these gave "
                f"{len(found):,} that occur only once. Ask for fewer, or bring more text"
            )
        by_place = sorted(some)  # neighbours are read together
        read = read_runs((texts[unit] for unit in by_place), source.tokenizer)
        drawn = {
            unit: query
            for unit, (text, runs) in zip(by_place, read, strict=True)
            if (query := _draw(source, unit, text, runs, fewest, most)) is not None
        }
        phrases = list({query.words for query in drawn.values()})
        texts_of_words = np.split(source.words, source.ends[:-1])
        times = Counter(phrases[phrase] for phrase, _ in Phrases(phrases).find(texts_of_words))
        found += [drawn[unit] for unit in some if unit in drawn and times[drawn[unit].words] == 1]
    return found[:count]


def numbers(words: Sequence[str], vocabulary: Mapping[str, int]) -> list[int]:
    return [vocabulary.get(word, ABSENT) for word in words]


def hashed(*what: object) -> int:
    """64 bits of the texts of what is given, the same everywhere."""
    return int.from_bytes(hashlib.sha256("\n".join(map(str, what)).encode()).digest()[:8], "big")


def _draw(source: Source, unit: int, text: str, runs: Runs, fewest: int, most: int) -> Query | None:
    """A query of this unit, or None where the tokens drawn for it hold too few words."""
    of, place = source.units[unit, :2].tolist()
    id = f"q:{source.corpus.ids[of]}:{place}"
    tokens = fewest + source.draw(most - fewest + 1, "length", id)
    begins = np.flatnonzero(runs.upto[-1] - runs.before >= tokens)
    first = int(begins[source.draw(len(begins), "begin", id)])
    end = int(np.searchsorted(runs.upto, runs.before[first] + tokens, side="right"))
    part = text[runs.starts[first] : runs.ends[end - 1]] if end > first else ""
    words = source.numbers(part)
    return Query(id, unit, part, tuple(words)) if len(words) >= fewest else None
