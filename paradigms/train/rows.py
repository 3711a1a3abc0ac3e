"""Convert rows of pairs, triplets or scored candidates to a corpus and training examples."""

from collections.abc import Iterable, Mapping
from typing import Any

from paradigms.data import Corpus
from paradigms.io.checks import check_text
from paradigms.train.examples import Example

QUERY, POSITIVE = ("query", "anchor", "question"), ("positive", "document", "passage")


def examples_from_rows(rows: Iterable[Mapping[str, Any]]) -> tuple[Corpus, list[Example]]:
    """Make a corpus of the rows' distinct documents, and one training example per row.

    rows: dicts, or a Hugging Face `Dataset`. Each row has a query (key `query`, `anchor` or `question`) and a
    relevant document (`positive`, `document` or `passage`). Keys that begin with `negative` may contain hard
    negatives, as a text or a list of texts. `scores` may contain a teacher's scores of the relevant document
    and then of each negative. Documents that are relevant to a query in any row are never its in-batch
    negatives.

    Raises ValueError, naming the row (counted from 1), if a key is missing, if a relevant document is among
    the query's negatives, or if the row does not have one score per document. Raises TypeError if a text is
    not a string.
    """
    places: dict[str, int] = {}
    parsed: list[tuple[str, int, tuple[int, ...], tuple[float, ...]]] = []
    relevant: dict[str, dict[int, None]] = {}
    for number, row in enumerate(rows, 1):
        query, positive = _text(row, QUERY, number), _text(row, POSITIVE, number)
        hard = [row[key] for key in row if key.startswith("negative") and row[key] is not None]
        negatives = [text for texts in hard for text in ([texts] if isinstance(texts, str) else texts)]
        for text in negatives:
            check_text(text, f"a negative of row {number}")
        first, *hard_places = (places.setdefault(text, len(places)) for text in (positive, *negatives))
        scores = tuple(map(float, row.get("scores") or ()))
        if scores and len(scores) != 1 + len(negatives):
            raise ValueError(f"row {number} has {len(scores)} scores for {1 + len(negatives)} documents")
        relevant.setdefault(query, {})[first] = None
        parsed.append((query, first, tuple(hard_places), scores))
    for number, (query, _, others, _) in enumerate(parsed, 1):
        if not relevant[query].keys().isdisjoint(others):
            raise ValueError(f"row {number}: a negative is relevant to the same query, {query[:80]!r}")
    examples = [Example(q, first, others, tuple(relevant[q]), scores) for q, first, others, scores in parsed]
    return Corpus([f"d{n}" for n in range(len(places))], list(places)), examples


def _text(row: Mapping[str, Any], keys: tuple[str, ...], number: int) -> str:
    key = next((key for key in keys if key in row), None)
    if key is None:
        raise ValueError(f"row {number} has none of {', '.join(keys)}; it has {', '.join(row)}")
    check_text(row[key], f"{key} of row {number}")
    text: str = row[key]
    return text
