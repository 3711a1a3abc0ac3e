"""Read and write TREC files, plain or .gz.

The lines of a run are "query Q0 document rank score tag", those of judgements are "query 0 document grade".

White space separates the columns, as in trec_eval, so ids cannot contain any.
"""

import math
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Float

from paradigms.data.collection import Judgements, Run, best_first, grade
from paradigms.io.checks import check_text
from paradigms.io.files import atomic_text
from paradigms.io.gzipped import numbered_lines

INFINITY = 0x7F800000  # the bits of ∞ in float32


def read_run(path: str | Path) -> Run:
    """Read a run. Raises ValueError, with file and line, for an invalid line, NaN or a repeated document."""
    run: Run = {}
    for where, (query, _, document, _, text, _) in _rows(path, 6, "query Q0 document rank score tag"):
        try:
            score = float(text)
        except ValueError:
            raise ValueError(f"{where}: the score {text!r} is not a number") from None
        if math.isnan(score):
            raise ValueError(f"{where}: the score is NaN, which has no rank")
        if document in run.setdefault(query, {}):
            raise ValueError(f"{where}: document {document!r} appears twice for query {query!r}")
        run[query][document] = score
    return run


def write_run(path: str | Path, run: Run, *, tag: str = "run") -> None:
    """Write a run atomically, best first, so that all tools rank the documents alike.

    Scores are written in full precision, but without ties, which tools break differently: if two scores are
    equal in single precision, as trec_eval compares them, the better one is raised to the next float. Reading
    the file gives the same ranking, and the same scores except for raised scores.
    """
    check_ids([tag, *run], "tag or query id")
    with atomic_text(path) as stream:
        for query, scores in run.items():
            if any(math.isnan(score) for score in scores.values()):
                raise ValueError(f"query {query!r}: a score is NaN, which has no rank")
            check_ids(scores, "document id")
            ranked = best_first(scores)
            apart = without_ties(np.array([*ranked.values()], np.float64)).tolist()
            for rank, (document, score) in enumerate(zip(ranked, apart, strict=True), 1):
                stream.write(f"{query} Q0 {document} {rank} {score!r} {tag}\n")


def without_ties(scores: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Make descending scores strictly descending in float32, with the fewest float32 steps."""
    with np.errstate(over="ignore"):
        bits = scores.astype(np.float32).view(np.int32).astype(np.int64)
    steps = np.where(
        bits < 0, -(bits & 0x7FFFFFFF), bits
    )  # ordered like the numbers, with neighbours 1 apart
    ranks = np.arange(len(scores))
    raised = np.maximum.accumulate((steps + ranks)[::-1])[::-1] - ranks
    raised = np.minimum(raised, INFINITY - ranks)
    floats = np.where(raised < 0, -raised | 0x80000000, raised).astype(np.uint32).view(np.float32)
    return np.where(raised == steps, scores, floats)


def read_judgements(path: str | Path) -> Judgements:
    """Read judgements. Raises ValueError, with file and line, for an invalid line or a repeated document."""
    judgements: Judgements = {}
    for where, (query, _, document, text) in _rows(path, 4, "query 0 document grade"):
        if document in judgements.setdefault(query, {}):
            raise ValueError(f"{where}: document {document!r} is judged twice for query {query!r}")
        judgements[query][document] = grade(text, where)
    return judgements


def write_judgements(path: str | Path, judgements: Judgements) -> None:
    """Write judgements atomically."""
    with atomic_text(path) as stream:
        for query, grades in judgements.items():
            check_ids([query, *grades], "query or document id")
            for document, value in grades.items():
                stream.write(f"{query} 0 {document} {int(value)}\n")


def _rows(path: str | Path, columns: int, form: str) -> Iterator[tuple[str, list[str]]]:
    for number, line in numbered_lines(path):
        parts = line.split()
        if len(parts) != columns:
            raise ValueError(f"{path}, line {number}: {len(parts)} columns instead of {columns} ({form})")
        yield f"{path}, line {number}", parts


def check_ids(words: Iterable[str], what: str) -> None:
    """Raise ValueError if a TREC file cannot contain one of the ids.

    what: description of the ids in the message.
    """
    for word in words:
        if word.split() != [word]:
            raise ValueError(f"a TREC file cannot hold the {what} {word!r}: it is empty or has white space")
        check_text(word, f"the {what} {word!r}")
