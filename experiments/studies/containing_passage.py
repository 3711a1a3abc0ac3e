"""The containing-passage task: given words x, find the passage in which they stand one after the other.

Luan et al., "Sparse, Dense, and Attentional Representations for Text Retrieval", TACL 2021, §5, after the
inverse cloze task of Lee et al., "Latent Retrieval for Weakly Supervised Open Domain Question Answering", ACL
2019. A match of words and nothing else, so that what a model gets wrong is lost in its compression of
passages; the longer they are, the more there is to lose.

Every length gets a collection of its own over the same queries: passages nest, a query lies in a passage of
the smallest length, and differences between lengths are paired. Where the paper leaves a choice:

- A query stands in one place of the whole source, and one passage is relevant to it.
- A distractor is a passage from elsewhere into which the query is written with one or two words replaced. In
  a copy of the relevant passage it would differ by as much at every length; here the rest of both passages
  comes between, and the longer they are, the more. The text that distractors are made of is kept apart from
  that of the queries, for a copy of a passage with a query in it would contain that query.
- Words are compared in lower case, without the punctuation between them.

Every draw is a hash of the seed and of what is drawn: the same in any process and on any machine.
"""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from studies.containing_queries import Query, Source, draw_queries, hashed, numbers, read_source
from studies.phrases import Phrases

from paradigms.data.collection import Collection, Corpus, assemble
from paradigms.data.passages import WORD, Runs, Slices, read_runs, words_of

LENGTHS = (50, 100, 200, 400)
CHANGED = 2  # words at most in which a distractor differs from its query
ATTEMPTS = 100  # at a distractor


class Edit(NamedTuple):
    """A distractor: the passage `host` up to character `cut`, then `text`, then the passage from `resume`."""

    id: str
    host: int
    cut: int
    text: str
    resume: int

    def of(self, host: str) -> str:
        return host[: self.cut] + self.text + host[self.resume :]


class Documents(Sequence[str]):
    """Passages and then distractors, read when asked for."""

    def __init__(self, passages: Slices, kept: np.ndarray, edits: list[Edit]):
        self._passages, self._kept, self._edits = passages, kept, edits

    def __len__(self) -> int:
        return len(self._kept) + len(self._edits)

    def __getitem__(self, index: Any) -> Any:
        index = range(len(self))[index]
        if index < len(self._kept):
            return self._passages[self._kept[index]]
        edit = self._edits[index - len(self._kept)]
        return edit.of(self._passages[edit.host])


def containing_passages(
    corpus: Corpus,
    queries: Mapping[str, int],
    *,
    lengths: Sequence[int] = LENGTHS,
    passages: int | None = None,
    distractors: int = 2,
    query: tuple[int, int] = (5, 25),
    tokenizer: Any = None,
    seed: int = 0,
    name: str = "containing-passage",
) -> dict[int, Collection]:
    """length -> the collection of passages of at most so many tokens; the queries are the same in all.

    queries: split -> how many. passages: how many, those with a query among them; by default all.
    distractors: how many per query, on top of the passages: the first differs from it in one word, the second
    in two, and so on by turns. query: its fewest words and most tokens; it is as long as white space allows
    within a number of tokens drawn evenly between.
    tokenizer: a fast Hugging Face one, of whose tokens lengths are, as it cuts the whole text; by default of
    words. Passages of a length are as long as white space allows, and lengths multiples of the smallest; a
    passage of that with fewer tokens than the longest query has is in no collection.

    Memory: 4 bytes for each word of the corpus, and ids and places of passages and queries; texts are read
    when asked for. ValueError where the corpus is too small for what is asked, and for settings that fit no
    passage. What is returned has passed `check_containment`.
    """
    fewest, most = query
    lengths = sorted(set(lengths))
    if not queries or min(queries.values()) < 1:
        raise ValueError(f"queries={dict(queries)}: every split needs at least 1")
    if not 2 * CHANGED < fewest <= most:
        raise ValueError(
            f"query={query}: of {2 * CHANGED + 1} words or more most are left where {CHANGED} are replaced"
        )
    if not lengths or lengths[0] < most or any(length % lengths[0] for length in lengths):
        raise ValueError(
            f"lengths={lengths}: the smallest must hold {most} tokens, and the others be its multiples"
        )
    if distractors < 0:
        raise ValueError(f"distractors must be at least 0, not {distractors}")
    group = lengths[-1] // lengths[0]
    reserve = distractors > 0
    source = read_source(
        corpus, lengths[0], group, least=most, reserve=reserve, tokenizer=tokenizer, seed=seed
    )
    rest = iter(draw_queries(source, sum(queries.values()), fewest, most))
    splits = {split: list(islice(rest, count)) for split, count in queries.items()}
    return {
        length: _collection(source, length, lengths[0], splits, passages, distractors, f"{name}-{length}")
        for length in lengths
    }


def check_containment(collection: Collection) -> None:
    """ValueError unless the documents relevant to a query are those with its words one after the other."""
    for split, part in collection.splits.items():
        vocabulary: dict[str, int] = {}
        named: dict[tuple[int, ...], list[str]] = {}
        for id, text in part.queries.items():
            words = tuple(vocabulary.setdefault(word, len(vocabulary)) for word in words_of(text))
            if not words:
                raise ValueError(f"{collection.name}: the query {id!r} of {split} holds no word")
            named.setdefault(words, []).append(id)
        rows = (numbers(words_of(text), vocabulary) for text in collection.corpus)
        places = list(named.values())
        holders: dict[str, set[str]] = {id: set() for id in part.queries}
        for phrase, document in Phrases(named).find(rows):
            for id in places[phrase]:
                holders[id].add(collection.corpus.ids[document])
        for id, holding in holders.items():
            relevant = {name for name, grade in part.judgements[id].items() if grade > 0}
            for name in sorted(holding ^ relevant):
                raise ValueError(
                    f"{collection.name}: {name!r} {'contains' if name in holding else 'does not contain'} "
                    f"the query {id!r} of {split} and is {'' if name in relevant else 'not '}relevant to it"
                )


def _collection(
    source: Source,
    length: int,
    smallest: int,
    splits: Mapping[str, list[Query]],
    passages: int | None,
    distractors: int,
    name: str,
) -> Collection:
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
    edits = _distractors(source, texts, length, hosts, queries, distractors, name)
    documents = Documents(texts, kept, edits)
    names = [*(ids[i] for i in kept), *(edit.id for edit in edits)]
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
) -> list[Edit]:
    """`count` distractors of each query, of which none contains a query, in the order of their hosts."""
    every = Phrases([query.words for query in queries])
    wanted = [(query, n) for query in queries for n in range(count)]
    edits: list[Edit] = []
    for attempt in range(ATTEMPTS if hosts else 0):
        drawn = [hosts[source.draw(len(hosts), "host", query.id, n, attempt)] for query, n in wanted]
        order = sorted(range(len(wanted)), key=drawn.__getitem__)  # neighbours are read together
        read = read_runs((passages[drawn[i]] for i in order), source.tokenizer)
        parts = read_runs((_changed(source, *wanted[i], attempt) for i in order), source.tokenizer)
        tried = []
        for i, (_, runs), (part, part_runs) in zip(order, read, parts, strict=True):
            query, n = wanted[i]
            cut, resume = _place(source, runs, int(part_runs.upto[-1]), (query.id, n, attempt))
            tried.append(Edit(f"{query.id}:{n}", drawn[i], cut, part, resume))
        texts = Documents(passages, np.empty(0, dtype=np.int64), tried)
        containing = {row for _, row in every.find(source.numbers(text) for text in texts)}
        longer = {
            row for row, (_, runs) in enumerate(read_runs(texts, source.tokenizer)) if runs.upto[-1] > length
        }
        edits += [edit for row, edit in enumerate(tried) if row not in containing | longer]
        wanted = [wanted[order[row]] for row in sorted(containing | longer)]
        if not wanted:
            break
    if wanted:
        raise ValueError(
            f"{name}: {ATTEMPTS} attempts found no place among {len(hosts):,} passages for a distractor of "
            f"the query {wanted[0][0].text!r}: bring more text, or ask for distractors=0"
        )
    return sorted(edits, key=lambda edit: (edit.host, edit.id))


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
            new = int(source.words[source.draw(len(source.words), "word", *what, i, tries)])
            tries += 1
        text = text[: places[i][0]] + source.names[new] + text[places[i][1] :]
    return text
