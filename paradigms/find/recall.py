"""Measure the recall of a finder that does not read everything, and choose its settings by it.

Recall@k is the share of the k best documents of an exhaustive search of the same store that the finder
returns, in the mean over queries. How much a finder has to read for a recall depends on the index: a query of
ColBERT probes lists for each of its tokens, a query of DPR for one vector. A build therefore measures
settings on queries drawn from the texts, from cheap to exhaustive, and the index keeps the first ones whose
recall is at least `LEAST`. Settings that a user chose are kept and measured.

What the codes of a compressed index cost in quality is not counted: the exhaustive search reads codes, too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Protocol, runtime_checkable

import numpy as np

from paradigms.core import Tokens
from paradigms.find.ranking import Ranked
from paradigms.io.checks import Range, check_types
from paradigms.recipe import Recipe
from paradigms.store.store import Store

ENTRY = "recall"  # of the manifest: the choices, as a list
LEAST = 0.97
CUTOFFS = (10, 100)  # a search for k documents uses the choice for the smallest cutoff of at least k
QUERIES = (8, 64)  # fewer for a larger index
READ = 1 << 26  # tokens that the exhaustive searches of all queries may read
WORDS = 8  # of a query
GROWN = 2  # times the measured documents, up to which a choice holds

Setting = Annotated[int, Range(0, 1 << 31)]


@runtime_checkable
class Approximate(Protocol):
    """A finder whose settings of 0 are chosen by recall."""

    def efforts(self, store: Store, k: int) -> Iterator["Approximate"]:
        """Yield finders without settings of 0 that read more and more. The last one may miss documents."""

    def exhaustive(self, store: Store) -> Any:
        """Return the finder that finds what this one may miss."""

    def search(self, *args: Any) -> Ranked: ...


@dataclass(frozen=True)
class Choice:
    """Settings of a finder, and their recall@k.

    search: how the measured recipe scores (`Recipe.search`). queries: number of queries in the mean.
    documents: number of documents of the index then; 0 if an earlier version did not record it.
    """

    search: str
    k: Annotated[int, Range(1, 1 << 31)]
    recall: Annotated[float, Range(0, 1)]
    queries: Annotated[int, Range(1, 1 << 31)]
    settings: dict[str, Setting]
    documents: Annotated[int, Range(0, 1 << 31)] = 0

    def __post_init__(self) -> None:
        check_types(self)


def choices(store: Store) -> list[Choice]:
    """Return a store's choices, the smallest k first, but those of less than half of its documents.

    Raises ValueError or TypeError if an entry of the manifest is none.
    """
    count = len(store.whole)
    return [c for row in store.manifest.get(ENTRY, []) if GROWN * (c := Choice(**row)).documents >= count]


def chosen(finder: Any, store: Store, search: str, k: int) -> Any:
    """Return the finder with the index's choice for k where its own settings are 0."""
    if not isinstance(finder, Approximate):
        return finder
    fitting = [choice for choice in choices(store) if choice.search == search]
    choice = next((choice for choice in fitting if k <= choice.k), fitting[-1] if fitting else None)
    if choice is None:
        return finder
    # Beyond the largest cutoff, the number of candidates grows with k.
    times = {"candidates": -(-k // choice.k)}
    settings = {name: value * times.get(name, 1) for name, value in choice.settings.items()}
    return replace(finder, **{name: value for name, value in settings.items() if not getattr(finder, name)})  # type: ignore[type-var]


def measure(finder: Approximate, store: Store, recipe: Recipe, queries: Sequence[Tokens]) -> list[Choice]:
    """Choose the settings of a finder for each cutoff. queries: encoded queries, each [b, 1, j, h]."""
    selected: list[Choice] = []

    def found(searching: Any, k: int) -> list[set[str]]:
        return [set(row) for row in searching.search(store, recipe, queries, k, lambda n: None)]

    for k in sorted({min(k, len(store)) for k in CUTOFFS}):
        exact = found(finder.exhaustive(store), k)
        for effort in dict.fromkeys(finder.efforts(store, k)):
            ranked = found(effort, k)
            shares = [len(a & b) / len(b) for a, b in zip(ranked, exact, strict=True) if b]
            if not shares:
                return []
            settings = {name: getattr(effort, name) for name in asdict(effort)}  # type: ignore[call-overload]
            choice = Choice(recipe.search, k, float(np.mean(shares)), len(shares), settings, len(store))
            if choice.recall >= LEAST:
                break
        selected.append(choice)
    return selected


def query_texts(texts: Sequence[str], tokens: int) -> list[str]:
    """Draw WORDS consecutive words of random texts, as queries for an index of so many tokens."""
    least, most = QUERIES
    count = max(least, min(most, READ // max(1, tokens)))
    random = np.random.default_rng(0)
    queries = []
    for row in random.choice(len(texts), min(count, len(texts)), replace=False).tolist():
        words = texts[row].split()
        first = int(random.integers(max(1, len(words) - WORDS + 1)))
        if words:
            queries.append(" ".join(words[first : first + WORDS]))
    return queries
