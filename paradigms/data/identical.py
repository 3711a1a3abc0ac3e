"""Queries that are themselves documents: on ArguAna and Quora a query's own document would rank first.

BEIR's figures leave it out (`ignore_identical_ids`): a document with the id of the query is no result of it.
"""

from collections.abc import Set

from paradigms.data.collection import Corpus, Run, Split, best_first

CHOICES = ("auto", "leave_out", "keep")


def own_documents(corpus: Corpus, split: Split, choice: str = "auto") -> frozenset[str]:
    """The ids that a query and a document share, where these are one text.

    choice: "auto" = the shared ids where at least half of these documents hold the text of their query, else
    none, as ids that are numbers may be equal by chance (Cranfield, SciFact), and no document that is judged
    relevant to the query; "leave_out" = all shared ids, as BEIR; "keep" = none. ValueError for others.
    """
    queries = split.queries
    if choice not in CHOICES:
        raise ValueError(f"identical_ids must be one of {', '.join(CHOICES)}, got {choice!r}")
    if choice == "keep":
        return frozenset()
    shared = frozenset(queries.keys() & set(corpus.ids))
    if choice == "leave_out":
        return shared
    equal = sum(_plain(queries[id]) in _plain(corpus[corpus.position(id)]) for id in shared)
    if 2 * equal < len(shared):
        return frozenset()
    return frozenset(id for id in shared if split.judgements.get(id, {}).get(id, 0) <= 0)


def without_own(run: Run, own: Set[str], k: int | None = None) -> Run:
    """The run without the documents that are the query itself; the first k of each query, or all.

    >>> without_own({"a": {"a": 2.0, "b": 1.0}}, {"a"})
    {'a': {'b': 1.0}}
    """
    if not own:
        return run
    kept = ((q, {d: s for d, s in scores.items() if d != q or q not in own}) for q, scores in run.items())
    return {query: best_first(scores, k) for query, scores in kept}


def told(own: Set[str]) -> str:
    """What is left out, in a line; "" where nothing is."""
    return f"{len(own):,} queries have a document's id, which is left out of their results." if own else ""


def _plain(text: str) -> str:
    return " ".join(text.lower().split())
