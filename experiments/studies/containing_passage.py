"""The containing-passage task: given words x, find the passage in which they stand one after the other.

Luan et al., "Sparse, Dense, and Attentional Representations for Text Retrieval", TACL 2021, §5, after the
inverse cloze task of Lee et al., "Latent Retrieval for Weakly Supervised Open Domain Question Answering", ACL
2019. Only exact words count, so a model's errors come from its compression of passages, and longer passages
have more to lose.

Every length has its own collection over the same queries: passages nest, a query lies in a passage of the
smallest length, and differences between lengths are paired. Where the paper leaves a choice:

- A query occurs once in the whole source, and one passage is relevant to it.
- A distractor is another passage into which the query is written with one or two words replaced. Passages for
  distractors are kept apart from those for queries: a distractor made from a passage with a query in it would
  contain that query.
- Words are compared in lower case, without the punctuation between them.

Every draw is a hash of the seed and of what is drawn: the same in any process and on any machine, and for one
query whatever the others are.
"""

import hashlib
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from paradigms.data.collection import Collection, Corpus, assemble
from paradigms.data.passages import WORD, Runs, Slices, read_runs, units, words_of

LENGTHS = (50, 100, 200, 400)
FEWEST, MOST = 5, 25  # words and tokens of a query
CHANGED = 2  # words at most in which a distractor differs from its query
ATTEMPTS = 100  # at a distractor


class Query(NamedTuple):
    """Words of the source's unit `unit`: the text as it stands there, and its words."""

    id: str
    unit: int
    text: str
    words: tuple[str, ...]


class Distractor(NamedTuple):
    """The passage `host` with a changed query in it."""

    id: str
    host: int
    text: str


@dataclass(frozen=True)
class Source:
    """A corpus cut into units: passages of the smallest length."""

    corpus: Corpus
    tokenizer: Any
    seed: int
    names: list[str]  # the different words
    words: np.ndarray  # of all texts, as places in `names`
    units: np.ndarray  # [units, 4]: text, place in it, first character and the one after the last
    reserved: np.ndarray  # [units]: whether it is for distractors, and none of its words for queries

    def draw(self, n: int, *what: object) -> int:
        """One of 0 … n − 1, for what it is drawn for."""
        return hashed(self.seed, *what) % n


class Documents(Sequence[str]):
    """Passages, read when asked for, and then distractors."""

    def __init__(self, passages: Slices, kept: np.ndarray, distractors: list[str]):
        self._passages, self._kept, self._distractors = passages, kept, distractors

    def __len__(self) -> int:
        return len(self._kept) + len(self._distractors)

    def __getitem__(self, index: Any) -> Any:
        index = range(len(self))[index]
        if index < len(self._kept):
            return self._passages[self._kept[index]]
        return self._distractors[index - len(self._kept)]


def containing_passages(
    corpus: Corpus,
    queries: Mapping[str, int],
    *,
    lengths: Sequence[int] = LENGTHS,
    passages: int | None = None,
    distractors: int = 2,
    tokenizer: Any = None,
    seed: int = 0,
) -> dict[int, Collection]:
    """length -> the collection of passages of at most so many tokens; the queries are the same in all.

    queries: split -> how many, of at least 5 words and at most 25 tokens. passages: how many, those with a
    query among them; by default all. distractors: how many per query, on top of the passages: the first
    differs from it in one word, the second in two, and so on in turn.
    tokenizer: a fast Hugging Face one, whose tokens of the whole text `lengths` count; by default words.
    Lengths are multiples of the smallest; passages of that length with fewer than 25 tokens are left out.

    Memory: 4 bytes for each word of the corpus, ids and places of passages, and the distractors; passages are
    read when asked for. ValueError where the corpus is too small for what is asked, and for settings that fit
    no passage. What is returned has passed `check_containment`.
    """
    lengths = sorted(set(lengths))
    if not queries or min(queries.values()) < 1:
        raise ValueError(f"queries={dict(queries)}: every split needs at least 1")
    if not lengths or lengths[0] < MOST or any(length % lengths[0] for length in lengths):
        raise ValueError(
            f"lengths={lengths}: the smallest must hold {MOST} tokens, and the others be its multiples"
        )
    if distractors < 0:
        raise ValueError(f"distractors must be at least 0, not {distractors}")
    group = lengths[-1] // lengths[0]
    source = _read_source(corpus, lengths[0], group, distractors > 0, tokenizer, seed)
    rest = iter(_draw_queries(source, sum(queries.values())))
    splits = {split: list(islice(rest, count)) for split, count in queries.items()}
    return {
        length: _collection(source, length, lengths[0], splits, passages, distractors) for length in lengths
    }


def check_containment(collection: Collection) -> None:
    """ValueError unless the documents relevant to a query are those with its words one after the other."""
    asked = [(split, id) for split, part in collection.splits.items() for id in part.queries]
    phrases = [tuple(words_of(collection.splits[split].queries[id])) for split, id in asked]
    for (split, id), words in zip(asked, phrases, strict=True):
        if not words:
            raise ValueError(f"{collection.name}: the query {id!r} of {split} holds no word")
    holders: list[set[str]] = [set() for _ in asked]
    for query, document in occurrences(phrases, map(words_of, collection.corpus)):
        holders[query].add(collection.corpus.ids[document])
    for (split, id), holding in zip(asked, holders, strict=True):
        judged = collection.splits[split].judgements[id]
        relevant = {name for name, grade in judged.items() if grade > 0}
        for name in sorted(holding ^ relevant):
            raise ValueError(
                f"{collection.name}: {name!r} {'contains' if name in holding else 'does not contain'} "
                f"the query {id!r} of {split} and is {'' if name in relevant else 'not '}relevant to it"
            )


def occurrences(
    phrases: Sequence[tuple[str, ...]], rows: Iterable[Sequence[str]]
) -> Iterator[tuple[int, int]]:
    """(place of the phrase, place of the row), once for each place at which the phrase stands in the row."""
    size = min(map(len, phrases), default=0)
    begins: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for place, phrase in enumerate(phrases):
        begins[phrase[:size]].append(place)
    for number, row in enumerate(rows):
        for at, begin in enumerate(zip(*(row[n:] for n in range(size)), strict=False)):
            for place in begins.get(begin, ()):
                if tuple(row[at : at + len(phrases[place])]) == phrases[place]:
                    yield place, number


def hashed(*what: object) -> int:
    """64 bits of the texts of what is given, the same everywhere."""
    return int.from_bytes(hashlib.sha256("\n".join(map(str, what)).encode()).digest()[:8], "big")


# --- queries ----------------------------------------------------------------------------------------


def _read_source(corpus: Corpus, length: int, group: int, reserve: bool, tokenizer: Any, seed: int) -> Source:
    """Units of at most `length` tokens and at least `MOST`. No passage spans two groups of `group` units.

    reserve: half of the groups, chosen by chance, are for distractors.
    """
    vocabulary: dict[str, int] = {}
    words, rows = array("i"), array("q")
    for of, (text, runs) in enumerate(read_runs(corpus, tokenizer)):
        words.extend(vocabulary.setdefault(word, len(vocabulary)) for word in words_of(text))
        for unit in units(runs, length, group=group, least=MOST):
            rows.extend((of, *unit))
    table = np.array(rows, dtype=np.int64).reshape(-1, 4)
    reserved = [
        reserve and hashed(seed, "reserve", corpus.ids[of], place // group) % 2 == 0
        for of, place in table[:, :2].tolist()
    ]
    return Source(
        corpus, tokenizer, seed, list(vocabulary), np.array(words), table, np.array(reserved, dtype=bool)
    )


def _draw_queries(source: Source, count: int) -> list[Query]:
    """So many queries, each of a unit of its own, in an order of chance.

    ValueError where the source has fewer that occur only once in it.
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
        queries = (_query(source, unit, *row) for unit, row in zip(by_place, read, strict=True))
        drawn = {query.unit: query for query in queries if query is not None}
        phrases = list({query.words for query in drawn.values()})
        times = Counter(phrases[place] for place, _ in occurrences(phrases, map(words_of, source.corpus)))
        found += [drawn[unit] for unit in some if unit in drawn and times[drawn[unit].words] == 1]
    return found[:count]


def _query(source: Source, unit: int, text: str, runs: Runs) -> Query | None:
    """A query of this unit, or None where the tokens drawn for it hold too few words."""
    of, place = source.units[unit, :2].tolist()
    id = f"q:{source.corpus.ids[of]}:{place}"
    tokens = FEWEST + source.draw(MOST - FEWEST + 1, "length", id)
    begins = np.flatnonzero(runs.upto[-1] - runs.before >= tokens)
    first = int(begins[source.draw(len(begins), "begin", id)])
    end = int(np.searchsorted(runs.upto, runs.before[first] + tokens, side="right"))
    part = text[runs.starts[first] : runs.ends[end - 1]] if end > first else ""
    words = tuple(words_of(part))
    return Query(id, unit, part, words) if len(words) >= FEWEST else None


# --- collections ------------------------------------------------------------------------------------


def _collection(
    source: Source,
    length: int,
    smallest: int,
    splits: Mapping[str, list[Query]],
    passages: int | None,
    distractors: int,
) -> Collection:
    name = f"containing-passage-{length}"
    of, place, start, end = source.units.T
    number = place // (length // smallest)
    first = np.append(True, (np.diff(of) != 0) | (np.diff(number) != 0))  # unit of its passage
    last = np.append(first[1:], True)
    texts = Slices(source.corpus, of[first], start[first], end[last])
    named = zip(of[first].tolist(), number[first].tolist(), strict=True)
    ids = [f"{source.corpus.ids[text]}:{n}" for text, n in named]
    queries = [query for part in splits.values() for query in part]
    gold = dict(zip(queries, (np.cumsum(first) - 1)[[query.unit for query in queries]].tolist(), strict=True))
    kept = _kept(source, ids, set(gold.values()), passages, name)
    hosts = np.flatnonzero(source.reserved[first]).tolist()
    changed = _distractors(source, texts, length, hosts, queries, distractors, name)
    documents = Documents(texts, kept, [of.text for of in changed])
    names = [*(ids[i] for i in kept), *(of.id for of in changed)]
    collection = assemble(
        name,
        ((id, "", text) for id, text in zip(names, documents, strict=True)),
        {split: [(query.id, query.text) for query in part] for split, part in splits.items()},
        {split: [(query.id, ids[gold[query]], 1) for query in part] for split, part in splits.items()},
        stored=lambda _: ([""] * len(documents), documents),
    )
    check_containment(collection)
    return collection


def _kept(source: Source, ids: list[str], golds: set[int], passages: int | None, name: str) -> np.ndarray:
    """The passages of the collection: all, or the `golds` and as many others as are asked for."""
    if passages is None:
        return np.arange(len(ids))
    if not len(golds) <= passages <= len(ids):
        raise ValueError(
            f"{name}: the corpus has {len(ids):,} passages of this length, and {len(golds):,} hold a query: "
            f"passages={passages:,} does not lie between"
        )
    others = sorted(set(range(len(ids))) - golds, key=lambda i: hashed(source.seed, "passage", ids[i]))
    return np.array(sorted([*golds, *others[: passages - len(golds)]]))


def _distractors(
    source: Source,
    passages: Slices,
    length: int,
    hosts: list[int],
    queries: list[Query],
    count: int,
    name: str,
) -> list[Distractor]:
    """`count` distractors of each query, of which none contains a query, in the order of their hosts."""
    phrases = [query.words for query in queries]
    wanted = [(query, n) for query in queries for n in range(count)]
    found: list[Distractor] = []
    for attempt in range(ATTEMPTS if hosts else 0):
        drawn = [hosts[source.draw(len(hosts), "host", query.id, n, attempt)] for query, n in wanted]
        order = sorted(range(len(wanted)), key=drawn.__getitem__)  # neighbours are read together
        read = read_runs((passages[drawn[i]] for i in order), source.tokenizer)
        parts = read_runs((_changed(source, *wanted[i], attempt) for i in order), source.tokenizer)
        tried = []
        for i, (host, runs), (part, part_runs) in zip(order, read, parts, strict=True):
            query, n = wanted[i]
            cut, resume = _place(source, runs, int(part_runs.upto[-1]), (query.id, n, attempt))
            tried.append(Distractor(f"{query.id}:{n}", drawn[i], host[:cut] + part + host[resume:]))
        texts = [of.text for of in tried]
        wrong = {row for _, row in occurrences(phrases, map(words_of, texts))}
        tokens = (runs.upto[-1] for _, runs in read_runs(texts, source.tokenizer))
        wrong |= {row for row, count in enumerate(tokens) if count > length}
        found += [of for row, of in enumerate(tried) if row not in wrong]
        wanted = [wanted[order[row]] for row in sorted(wrong)]
        if not wanted:
            break
    if wanted:
        raise ValueError(
            f"{name}: {ATTEMPTS} attempts found no place among {len(hosts):,} passages for a distractor of "
            f"the query {wanted[0][0].text!r}: bring more text, or ask for distractors=0"
        )
    return sorted(found, key=lambda of: (of.host, of.id))


def _place(source: Source, runs: Runs, tokens: int, what: tuple) -> tuple[int, int]:
    """From and up to which character a passage gives way to so many tokens: it loses as many or a few more.

    One that has fewer loses its first run alone, and grows.
    """
    begins = np.flatnonzero(runs.upto[-1] - runs.before >= tokens)
    if not len(begins):
        return int(runs.starts[0]), int(runs.ends[0])
    first = int(begins[source.draw(len(begins), "place", *what)])
    last = int(np.searchsorted(runs.upto, runs.before[first] + tokens))
    return int(runs.starts[first]), int(runs.ends[last])


def _changed(source: Source, query: Query, n: int, attempt: int) -> str:
    """The query with 1 + n mod `CHANGED` of its words replaced by words of the source, drawn as they run."""
    what = (query.id, n, attempt)
    text, places = query.text, [match.span() for match in WORD.finditer(query.text)]
    by_chance = sorted(range(len(places)), key=lambda i: hashed(source.seed, "changed", *what, i))
    for i in sorted(by_chance[: 1 + n % CHANGED], reverse=True):  # from the end: the places before it stay
        new, tries = query.words[i], 0
        while new == query.words[i]:
            drawn = source.draw(len(source.words), "word", *what, i, tries)
            new, tries = source.names[source.words[drawn]], tries + 1
        text = text[: places[i][0]] + new + text[places[i][1] :]
    return text
