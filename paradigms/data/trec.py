"""Read and write TREC files, plain or .gz.

The lines of a run are "query Q0 document rank score tag", where the tag may be missing. The lines of
judgements are "query 0 document grade". Headers and comments (lines that begin with "#") are skipped.

White space separates the columns, as in trec_eval, so ids cannot contain any.
"""

import math
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np
from jaxtyping import Float

from paradigms.data.assembly import grade
from paradigms.data.collection import Judgements, Problems, Run, ranked
from paradigms.data.lines import is_header
from paradigms.io.checks import check_text
from paradigms.io.files import atomic_text
from paradigms.io.gzipped import numbered_lines

INFINITY = 0x7F800000  # the bits of ∞ in float32
Value = TypeVar("Value")


def read_run(path: str | Path, problems: Problems | None = None) -> Run:
    """Read a run. Raises ValueError, with file and line, for an invalid line or NaN.

    If a document is repeated for a query, its first line counts. problems: counts the repeats; without it, a
    warning reports them.
    """
    return _first_ones(path, _scored_rows(path), problems)


def _scored_rows(path: str | Path) -> Iterator[tuple[str, str, float]]:
    for where, (query, _, document, _, text, *_) in _rows(path, "query Q0 document rank score [tag]"):
        try:
            score = float(text)
        except ValueError:
            raise ValueError(f"{where}: the score {text!r} is not a number") from None
        if math.isnan(score):
            raise ValueError(f"{where}: the score is NaN, which has no rank")
        yield query, document, score


def write_run(path: str | Path, run: Run, *, tag: str = "run") -> None:
    """Write a run atomically, best first, so that all tools rank the documents alike.

    Scores are written in full precision, but without ties, which tools break differently: if two scores are
    equal in single precision, as trec_eval compares them, the better one is raised to the next float. White
    space in the tag is written as "-". Raises ValueError if a score is NaN or an id cannot stand in the file.
    """
    check_ids(run, "query id")
    tag = "-".join(tag.split()) or "run"
    with atomic_text(path) as stream:
        for query, scores in run.items():
            check_ids(scores, "document id")
            ordered = ranked(query, scores)
            apart = without_ties(np.array([*ordered.values()], np.float64)).tolist()
            for rank, (document, score) in enumerate(zip(ordered, apart, strict=True), 1):
                stream.write(f"{query} Q0 {document} {rank} {score!r} {tag}\n")


def without_ties(scores: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Make descending scores strictly descending in float32, with the fewest float32 steps."""
    with np.errstate(over="ignore"):
        bits = scores.astype(np.float32).view(np.int32).astype(np.int64)
    steps = np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)  # in the numbers' order, neighbours 1 apart
    ranks = np.arange(len(scores))
    raised = np.maximum.accumulate((steps + ranks)[::-1])[::-1] - ranks
    raised = np.minimum(raised, INFINITY - ranks)
    floats = np.where(raised < 0, -raised | 0x80000000, raised).astype(np.uint32).view(np.float32)
    return np.where(raised == steps, scores, floats)


def read_judgements(path: str | Path) -> Judgements:
    """Read judgements, with the same errors and the same treatment of repeated documents as `read_run`."""
    return _first_ones(path, judged_rows(path), None)


def judged_rows(path: str | Path) -> Iterator[tuple[str, str, int]]:
    """Yield (query, document, grade) of each line. Raises the same errors as `read_judgements`."""
    for where, (query, _, document, text) in _rows(path, "query 0 document grade"):
        yield query, document, grade(text, where)


def write_judgements(path: str | Path, judgements: Judgements) -> None:
    """Write judgements atomically. Raises ValueError if an id cannot stand in the file."""
    with atomic_text(path) as stream:
        for query, grades in judgements.items():
            check_ids([query, *grades], "query or document id")
            for document, value in grades.items():
                stream.write(f"{query} 0 {document} {int(value)}\n")


def _first_ones(
    path: str | Path, rows: Iterable[tuple[str, str, Value]], problems: Problems | None
) -> dict[str, dict[str, Value]]:
    """Map queries to documents to the value of their first row (query, document, value)."""
    read: dict[str, dict[str, Value]] = {}
    counted = Problems() if problems is None else problems
    for query, document, value in rows:
        if document in read.setdefault(query, {}):
            counted.add("repeated document of a query (first one kept)", f"{query} -> {document}")
        else:
            read[query][document] = value
    if problems is None and counted:
        warnings.warn(f"{path}: {counted}", stacklevel=3)
    return read


def _rows(path: str | Path, form: str) -> Iterator[tuple[str, list[str]]]:
    """Yield (file and line, columns) of each line, without headers and comments.

    form: names of the columns; one in brackets may be missing. A line that begins with "#" is a comment,
    unless it has these columns and its second one is as in `form`: then "#" belongs to the query's id.
    """
    names = form.split()
    most = len(names)
    least = len(names) - form.count("[")
    for number, line in numbered_lines(path):
        parts = line.split()
        fits = least <= len(parts) <= most
        if is_header(parts, least) or (parts[0].startswith("#") and not (fits and parts[1] == names[1])):
            continue
        if not fits:
            raise ValueError(f"{path}, line {number}: {len(parts)} columns instead of {most} ({form})")
        yield f"{path}, line {number}", parts


def check_ids(words: Iterable[str], what: str) -> None:
    """Raise ValueError if a TREC file cannot contain one of the ids. what: the ids, in the message."""
    for word in words:
        if word.split() != [word]:
            raise ValueError(f"a TREC file cannot hold the {what} {word!r}: it is empty or has white space")
        check_text(word, f"the {what} {word!r}")
