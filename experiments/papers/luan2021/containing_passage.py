"""The containing-passage task: given words x, find the passage that contains them consecutively.

Luan et al., "Sparse, Dense, and Attentional Representations for Text Retrieval", TACL 2021, §5, after the
inverse cloze task of Lee et al., "Latent Retrieval for Weakly Supervised Open Domain Question Answering", ACL
2019. Only exact words count: errors come from a model's compression of passages, and grow with passage
length.

There is a separate collection for each passage length, and all collections share the same queries. Short
passages are nested in longer passages, and a query lies in a passage of the smallest length. Choices that the
paper leaves open:

- A query occurs once in the whole source, and one passage is relevant to it.
- A distractor is another passage into which the query is inserted with one or two words replaced. Passages
  for distractors contain no query.
- Words are compared in lower case, without the punctuation between them.

Every draw is a hash of the drawn object and 0, the seed of all results. Draws are the same in any process and
on any machine, and do not depend on other queries.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any, NamedTuple

import numpy as np
from papers.luan2021.passages import WORD, Runs, read_runs, units, words_of

from paradigms.data.assembly import assemble
from paradigms.data.collection import Collection, Corpus

# words and tokens of a query
FEWEST = 5
MOST = 25
CHANGED = 2  # a distractor differs from its query in at most this many words
ATTEMPTS = 100  # attempts to place a distractor


class Unit(NamedTuple):
    """The span text[start:end] of the corpus text at index `row`, and its index among the text's units."""

    row: int
    place: int
    start: int
    end: int


class Query(NamedTuple):
    """A query drawn from a unit: the original text, and its words."""

    id: str
    unit: Unit
    text: str
    words: tuple[str, ...]


@dataclass
class Source:
    """A corpus cut into units: passages of the smallest length.

    group: units per group; no passage spans two groups. reserve: keep a random half of the groups for
    distractors.
    """

    corpus: Corpus
    length: int
    group: int
    reserve: bool
    tokenizer: Any

    def __post_init__(self) -> None:
        vocabulary: dict[str, str] = {}  # each word once in memory
        self.words = list[str]()  # of all texts
        self.units = list[Unit]()
        for number, (text, runs) in enumerate(read_runs(self.corpus, self.tokenizer)):
            self.words.extend(vocabulary.setdefault(word, word) for word in words_of(text))
            parts = units(runs, self.length, group=self.group, least=MOST)
            self.units += [Unit(number, *unit) for unit in parts]

    def reserved(self, unit: Unit) -> bool:
        """Return whether a unit is reserved for distractors, so that no query is drawn from it."""
        group = self.corpus.ids[unit.row], unit.place // self.group
        return self.reserve and drawn(2, "reserve", *group) == 0

    def text(self, first: Unit, last: Unit) -> str:
        return self.corpus[first.row][first.start : last.end]


def containing_passages(
    corpus: Corpus,
    queries: Mapping[str, int],
    *,
    lengths: Sequence[int],
    longest: int,
    passages: int | None = None,
    distractors: int = 2,
    tokenizer: Any = None,
) -> dict[int, Collection]:
    """Return {length: collection of passages of at most `length` tokens}; all have the same queries.

    queries: split -> number of queries. A query has at least 5 words and at most 25 tokens.
    passages: number of passages, including the passages with a query; by default all.
    distractors: additional passages per query, which alternately differ from it in one and in two words.
    tokenizer: a fast Hugging Face tokenizer whose tokens count towards `lengths`; by default, words do.
    lengths: multiples of the smallest length. Smallest passages with fewer than 25 tokens are left out.
    longest: passages of all lengths lie within passages of this length, so collections of one length are the
    same, whatever the other lengths are.

    Raises ValueError if the corpus is too small for these numbers, or if no passage fits the settings.
    """
    shortest = min(lengths)
    if shortest < MOST or any(n % shortest for n in (*lengths, longest)) or max(lengths) > longest:
        raise ValueError(
            f"lengths={lengths}, longest={longest}: the smallest must hold {MOST} tokens, the others be its "
            "multiples, and longest the greatest"
        )
    source = Source(corpus, shortest, longest // shortest, distractors > 0, tokenizer)
    rest = iter(_draw_queries(source, sum(queries.values())))
    splits = {split: list(islice(rest, count)) for split, count in queries.items()}
    return {length: _collection(source, length, splits, passages, distractors) for length in lengths}


def occurrences(
    phrases: Sequence[tuple[str, ...]], rows: Iterable[Sequence[str]]
) -> Iterator[tuple[int, int]]:
    """Yield (index of the phrase, index of the row) for each occurrence of a phrase in a row."""
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
    """Hash 0 and the string forms of objects to 64 bits; the hash is the same on every machine."""
    return int.from_bytes(hashlib.sha256("\n".join(map(str, (0, *what))).encode()).digest()[:8], "big")


def drawn(n: int, *what: object) -> int:
    """Draw a number from 0 to n − 1 by hashing `what`."""
    return hashed(*what) % n


def _draw_queries(source: Source, count: int) -> list[Query]:
    """Draw queries from different units, in random order. Raises ValueError if there are too few."""
    free = [unit for unit in source.units if not source.reserved(unit)]
    ids = source.corpus.ids
    waiting = sorted(free, key=lambda unit: hashed("unit", ids[unit.row], unit.place))
    unique: list[Query] = []
    while len(unique) < count:
        batch = waiting[: 2 * (count - len(unique))]  # some of these phrases will occur twice
        waiting = waiting[len(batch) :]
        if not batch:
            raise ValueError(
                f"the corpus is too small for {count:,} queries: of its {len(source.units):,} passages of "
                f"the smallest length, {len(free):,} are not reserved for distractors, and gave "
                f"{len(unique):,} queries that occur only once. Ask for fewer queries, or add text"
            )
        read = read_runs((source.text(unit, unit) for unit in batch), source.tokenizer)
        queries = [_query(source, unit, *row) for unit, row in zip(batch, read, strict=True)]
        phrases = list({query.words for query in queries if query})
        times = Counter(phrases[place] for place, _ in occurrences(phrases, map(words_of, source.corpus)))
        unique += [query for query in queries if query and times[query.words] == 1]
    return unique[:count]


def _query(source: Source, unit: Unit, text: str, runs: Runs) -> Query | None:
    """Draw a query from `unit`; return None if the drawn tokens have too few words."""
    id = f"q:{source.corpus.ids[unit.row]}:{unit.place}"
    tokens = FEWEST + drawn(MOST - FEWEST + 1, "length", id)
    begins = np.flatnonzero(runs.upto[-1] - runs.before >= tokens)
    first = int(begins[drawn(len(begins), "begin", id)])
    end = int(np.searchsorted(runs.upto, runs.before[first] + tokens, side="right"))
    part = text[runs.starts[first] : runs.ends[end - 1]] if end > first else ""
    words = tuple(words_of(part))
    return Query(id, unit, part, words) if len(words) >= FEWEST else None


def _collection(
    source: Source, length: int, splits: Mapping[str, list[Query]], passages: int | None, distractors: int
) -> Collection:
    name = f"containing-passage-{length}"
    together = length // source.length
    texts = {}
    gold: dict[Query, str] = {}
    hosts = []
    query_of = {query.unit: query for part in splits.values() for query in part}
    for (source_text, number), run in groupby(source.units, lambda unit: (unit.row, unit.place // together)):
        members = list(run)
        id = f"{source.corpus.ids[source_text]}:{number}"
        texts[id] = source.text(members[0], members[-1])
        gold |= {query_of[unit]: id for unit in members if unit in query_of}
        if source.reserved(members[0]):
            hosts.append(id)
    ids = list(texts)
    if passages is not None:
        golds = set(gold.values())
        if not len(golds) <= passages <= len(ids):
            raise ValueError(
                f"{name}: the corpus has {len(ids):,} passages of this length, and {len(golds):,} hold a "
                f"query: passages={passages:,} does not lie between"
            )
        others = sorted(set(ids) - golds, key=lambda id: hashed("passage", id))
        pool = golds | set(others[: passages - len(golds)])
        ids = [id for id in ids if id in pool]
    changed = _distractors(source, texts, length, hosts, list(query_of.values()), distractors, name)
    return assemble(
        name,
        [(id, "", text) for id, text in (*((id, texts[id]) for id in ids), *changed)],
        {split: [(query.id, query.text) for query in part] for split, part in splits.items()},
        {split: [(query.id, gold[query], 1) for query in part] for split, part in splits.items()},
    )


def _distractors(
    source: Source,
    passages: Mapping[str, str],
    length: int,
    hosts: list[str],
    queries: list[Query],
    count: int,
    name: str,
) -> list[tuple[str, str]]:
    """Return (id, text) of `count` distractors per query, ordered by host; none contains a query."""
    phrases = [query.words for query in queries]
    missing = [(query, n) for query in queries for n in range(count)]
    distractors: list[tuple[int, str, str]] = []
    for attempt in range(ATTEMPTS if hosts else 0):
        drawn_hosts = [drawn(len(hosts), "host", query.id, n, attempt) for query, n in missing]
        read = read_runs((passages[hosts[host]] for host in drawn_hosts), source.tokenizer)
        parts = read_runs((_changed(source, *place, attempt) for place in missing), source.tokenizer)
        texts = []
        for (query, n), (host, runs), (part, part_runs) in zip(missing, read, parts, strict=True):
            cut, resume = _place(runs, int(part_runs.upto[-1]), (query.id, n, attempt))
            texts.append(host[:cut] + part + host[resume:])
        wrong = {row for _, row in occurrences(phrases, map(words_of, texts))}
        tokens = (runs.upto[-1] for _, runs in read_runs(texts, source.tokenizer))
        wrong |= {row for row, count in enumerate(tokens) if count > length}
        rows = zip(drawn_hosts, missing, texts, strict=True)
        placed = [(host, f"{query.id}:{n}", text) for host, (query, n), text in rows]
        distractors += [place for row, place in enumerate(placed) if row not in wrong]
        missing = [missing[row] for row in sorted(wrong)]
        if not missing:
            break
    if missing:
        raise ValueError(
            f"{name}: {ATTEMPTS} attempts found no place among {len(hosts):,} passages for a distractor of "
            f"the query {missing[0][0].text!r}: add text, or set distractors=0"
        )
    return [(id, text) for _, id, text in sorted(distractors)]


def _place(runs: Runs, tokens: int, what: tuple) -> tuple[int, int]:
    """Return (start, end) of the characters that will be replaced by `tokens` new tokens.

    The span has at least `tokens` tokens. In a passage with fewer tokens, only the first run is replaced, so
    the passage grows.
    """
    begins = np.flatnonzero(runs.upto[-1] - runs.before >= tokens)
    if not len(begins):
        return int(runs.starts[0]), int(runs.ends[0])
    first = int(begins[drawn(len(begins), "place", *what)])
    last = int(np.searchsorted(runs.upto, runs.before[first] + tokens))
    return int(runs.starts[first]), int(runs.ends[last])


def _changed(source: Source, query: Query, n: int, attempt: int) -> str:
    """Replace 1 + n mod `CHANGED` words of the query with words from the source, drawn by frequency."""
    what = (query.id, n, attempt)
    text = query.text
    places = [match.span() for match in WORD.finditer(query.text)]
    by_chance = sorted(range(len(places)), key=lambda i: hashed("changed", *what, i))
    for i in sorted(by_chance[: 1 + n % CHANGED], reverse=True):  # from the end: earlier places stay valid
        new = query.words[i]
        tries = 0
        while new == query.words[i]:
            new = source.words[drawn(len(source.words), "word", *what, i, tries)]
            tries += 1
        text = text[: places[i][0]] + new + text[places[i][1] :]
    return text
