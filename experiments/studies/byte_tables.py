"""Average the measurements of `fewer_bytes.py` over collections, with intervals and paired tests.

Means are macro-averages over collections; intervals (95%) resample the queries within each collection.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from studies.pages import Rows, Section, shown

from paradigms.evaluate import PerQuery, holm, paired_test

Way = tuple[str, str]
WARD_2 = ("pooled, ward", "pool=2")
WARD_4 = ("pooled, ward", "pool=4")
PAIRS: Sequence[tuple[Way, Way]] = (
    (("bits", "bits=8"), WARD_2),
    (WARD_2, ("pooled, sequential", "pool=2")),
    (WARD_2, ("pruned", "keep=0.5")),
    (WARD_2, ("dimensions", "1/2")),
    (("bits", "bits=4"), WARD_4),
    (WARD_4, ("pooled, sequential", "pool=4")),
    (WARD_4, ("pruned", "keep=0.25")),
    (WARD_4, ("dimensions", "1/4")),
    (("bits", "bits=2"), ("pooled and bits", "pool=2, bits=4")),
    (("bits", "bits=1"), ("pooled and bits", "pool=2, bits=2")),
)
SAME = 1.15  # the larger size may be this much larger
NDCG = "nDCG@10"
BYTES = "bytes/document"


def by(rows: Rows, *keys: str) -> dict[tuple[Any, ...], Rows]:
    """Group rows by the values of `keys`, in order."""
    groups: dict[tuple[Any, ...], Rows] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return groups


def joined(rows: Rows, key: str, minus: Rows | None = None) -> PerQuery:
    """Join the values of `key`, one per query, of rows that differ in their collections.

    minus: rows of the same queries, whose values are subtracted.
    """
    values = np.concatenate([row[key] for row in rows])
    if minus is not None:
        values = values - np.concatenate([row[key] for row in minus])
    collections = [row["collection"] for row in rows for _ in row[key]]
    return PerQuery([*map(str, range(len(values)))], {key: values}, groups=collections)


def average(rows: Rows, key: str, minus: Rows | None = None) -> str:
    """Format the mean of `joined` with its interval."""
    return shown(joined(rows, key, minus).intervals()[key], "" if minus is None else "+")


def mean(rows: Rows, key: str) -> float:
    return float(np.mean([row[key] for row in rows]))


def share(rows: Rows, whole: Rows) -> float:
    """Return the mean over collections of a document's bytes relative to all tokens in float16."""
    return float(np.mean([row[BYTES] / one[BYTES] for row, one in zip(rows, whole, strict=True)]))


def ways(rows: Rows) -> Section:
    """Make the table of nDCG@10, its difference from all tokens, and certificates, for each way to store."""
    groups = by(rows, "kind", "way")
    all_tokens = next(iter(groups.values()))
    table: Rows = []
    for (kind, way), stored in groups.items():
        row = {"kind": kind, "way": way, "bytes, of all": f"{share(stored, all_tokens):.0%}"}
        row |= {NDCG: average(stored, NDCG)}
        row |= {"minus all tokens": "–" if stored is all_tokens else average(stored, NDCG, all_tokens)}
        row |= {"error": mean(stored, "error")}
        row |= {
            count: sum(one[count] for one in stored) for count in ("unchanged", "certified", "violations")
        }
        table.append(row)
    queries = sum(row["queries"] for row in all_tokens)
    text = (
        "Means over collections. error: distance of a document's worst token to the nearest stored one. "
        f"unchanged: of {queries} queries, those whose first ten documents are the same as with all tokens; "
        "certified: those for which a bound on the error proves it; violations: certified and not the same."
    )
    return Section("Fewer bytes, over collections", text, table)


def same_bytes(rows: Rows) -> Section:
    """Make the table of differences between two ways to store documents in the same bytes."""
    groups = by(rows, "kind", "way")
    all_tokens = next(iter(groups.values()))
    table: Rows = []
    p_values = []
    for a, b in PAIRS:
        if not {a, b} <= groups.keys():
            continue
        sizes = share(groups[a], all_tokens), share(groups[b], all_tokens)
        if max(sizes) < SAME * min(sizes):
            difference = joined(groups[a], NDCG, groups[b]).weighted(NDCG)
            p_values.append(paired_test(difference, np.zeros(len(difference))))
            row = {"kind, way": ", ".join(a), "minus": ", ".join(b)}
            row |= {"bytes, of all": f"{sizes[0]:.0%} and {sizes[1]:.0%}"}
            table.append(row | {f"difference of {NDCG}": average(groups[a], NDCG, groups[b])})
    for row, p in zip(table, holm(p_values), strict=True):
        row["p (Holm)"] = p
    text = "Means over collections; paired tests, which are one family."
    return Section("Two ways with the same bytes", text, table)


def recalls(rows: Rows) -> Section:
    """Make the table of predicted and measured recall, with two columns for each form of the vectors."""
    table: Rows = []
    for (planes, repetitions), of_planes in by(rows, "planes", "repetitions").items():
        row: dict[str, Any] = {"planes": planes, "repetitions": repetitions}
        for (form,), of_form in by(of_planes, "vectors").items():
            row |= {
                f"{form}: predicted": mean(of_form, "predicted"),
                f"{form}: measured": average(of_form, "measured"),
            }
        table.append(row)
    return Section("Predicted recall, over collections", "Means over collections.", table)
