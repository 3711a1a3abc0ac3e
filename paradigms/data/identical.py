"""Handle queries that are also documents: in ArguAna and Quora, a query's own document would rank first.

As in BEIR's evaluation (`ignore_identical_ids`), a document with the query's id is left out of the results.
"""

from collections.abc import Set

from paradigms.data.collection import Corpus, Run, Split, best_first

CHOICES = ("auto", "leave_out", "keep")


def own_documents(corpus: Corpus, split: Split, choice: str = "auto") -> frozenset[str]:
    """Return the ids of queries that are also documents.

    choice: "auto" = ids that a query and a document share, unless the document is judged relevant; none if
    fewer than half of these documents contain their query, because numeric ids may coincide (Cranfield).
    "leave_out" = all shared ids, as BEIR does. "keep" = no ids.
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


def without_own(run: Run, ids: Set[str], k: int | None = None) -> Run:
    """For each query in `ids`, drop the document with the query's id; keep the first k documents, or all.

    >>> without_own({"a": {"a": 2.0, "b": 1.0}}, {"a"})
    {'a': {'b': 1.0}}
    """
    if not ids:
        return run
    filtered = ((q, {d: s for d, s in scores.items() if d != q or q not in ids}) for q, scores in run.items())
    return {query: best_first(scores, k) for query, scores in filtered}


def left_out(ids: Set[str]) -> str:
    """Return a line that reports the documents left out."""
    return f"{len(ids):,} queries are documents themselves, which are left out of their results."


def _plain(text: str) -> str:
    return " ".join(text.lower().split())
