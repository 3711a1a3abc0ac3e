"""Make training pairs (source, target) of a text for the encoder and a token sequence for the decoder.

Passages to index: DSI (Tay et al., NeurIPS 2022, §3.1). Generated queries: DSI-QG (Zhuang et al. 2022).
Spans are drawn as in SEAL (Bevilacqua et al., NeurIPS 2022) and T5-SEAL (Wu et al. 2024, §6.2). Draws depend
only on the seed and the ids; `problems` counts inputs that yield no pair.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from rapidfuzz.fuzz import ratio
from rapidfuzz.process import cdist

from paradigms.data import Corpus, Problems, Split
from paradigms.generative.identifiers import WORD, Identifiers, Words, tokenize
from paradigms.io.checks import check_type, is_blank, json_object
from paradigms.io.gzipped import numbered_lines

GRAM = 3  # words in the n-grams that compare queries with passages


@dataclass(frozen=True, slots=True)
class Pair:
    """The encoder's input and the decoder's target: tokens first … last − 1 of `Generative.target`."""

    source: str
    document: int  # position of the target's document
    first: int = 0
    last: int | None = None  # None = to the end of the identifier, including its end token
    negatives: tuple[int, ...] = ()  # positions of hard negatives
    teacher: tuple[float, ...] = ()  # a teacher's scores of the document and of each negative


def retrieval_pairs(split: Split, identifiers: Identifiers) -> list[Pair]:
    """query ↦ the identifier of each relevant document.

    Raises KeyError, with the document's id, if a relevant document has no identifier.
    """
    _check_whole(identifiers)
    position = identifiers.positions
    pairs = []
    for query, id in _relevant(split):
        if id not in position:
            raise KeyError(f"document {id!r}, relevant to query {query!r}, has no identifier")
        pairs.append(Pair(split.queries[query], position[id]))
    return pairs


def _relevant(split: Split) -> Iterator[tuple[str, str]]:
    """Yield each query with each of its relevant documents."""
    for query, grades in split.judgements.items():
        yield from ((query, id) for id, grade in grades.items() if grade > 0)


def indexing_pairs(
    corpus: Corpus,
    identifiers: Identifiers,
    problems: Problems,
    *,
    words: int = 64,
    passages: int = 1,
    seed: int = 0,
) -> list[Pair]:
    """passage ↦ the identifier of its document, for up to `passages` random passages of `words` words."""
    _check_whole(identifiers)
    if corpus.ids != identifiers.documents:
        raise ValueError("the identifiers belong to another corpus")
    pairs = []
    for document, text in enumerate(corpus):
        places = [match.span() for match in WORD.finditer(text)]
        if not places:
            problems.add("document without words (no indexing pairs)", corpus.ids[document])
            continue
        last = max(0, len(places) - words)
        rng = random.Random(f"{seed} {corpus.ids[document]}")
        for start in sorted(rng.sample(range(last + 1), min(passages, last + 1))):
            end = places[min(start + words, len(places)) - 1][1]
            pairs.append(Pair(text[places[start][0] : end], document))
    return pairs


def generated_pairs(
    generated: Iterable[tuple[str, str]], identifiers: Identifiers, problems: Problems
) -> list[Pair]:
    """generated query ↦ the identifier of its document. generated: pairs from `read_generated`."""
    _check_whole(identifiers)
    position = identifiers.positions
    pairs = []
    without = dict.fromkeys(identifiers.documents)
    for id, query in generated:
        if id not in position:
            problems.add("generated query for an absent document (left out)", id)
        elif is_blank(query):
            problems.add("empty generated query (left out)", id)
        else:
            without.pop(id, None)
            pairs.append(Pair(query, position[id]))
    for id in without:
        problems.add("document without a generated query", id)
    return pairs


def read_generated(path: str | Path) -> Iterator[tuple[str, str]]:
    """Yield (document id, query) from lines {"document": id, "query": text} of a .jsonl file, plain or .gz.

    Raises ValueError, with file and line, if a line has a different format.
    """
    for number, line in numbered_lines(path):
        where = f"{path}, line {number}"
        row = json_object(line, where)
        for key in ("document", "query"):
            check_type(f"{where}: {key}", row.get(key), str)
        yield row["document"], row["query"]


def _check_whole(identifiers: Identifiers) -> None:
    if identifiers.end is None:
        raise ValueError("text identifiers have no single target: use span_pairs and document_span_pairs")


def span_pairs(
    corpus: Corpus,
    split: Split,
    tokenizer: Any,
    problems: Problems,
    *,
    length: int | None = None,
    spans: int = 10,
    words: int = 10,
    seed: int = 0,
) -> list[Pair]:
    """query ↦ `spans` spans of each relevant document; starts i have P(i) ∝ exp(wᵢ) (`span_weights`).

    A span has `words` words, or all words of a shorter document. It starts at a stop word only if no other
    start exists. tokenizer, length: as for `identifiers.text`.
    """
    queries: dict[int, list[str]] = {}
    for query, id in _relevant(split):
        queries.setdefault(corpus.position(id), []).append(query)
    pairs = []
    for document, passage in _passages(corpus, sorted(queries), tokenizer, length, problems):
        id = corpus.ids[document]
        starts = passage.starts(words)
        for query in queries[document]:
            source = split.queries[query]
            w = span_weights(source, passage.words)[starts]
            rng = random.Random(f"{seed} {query} {id}")
            sampled = rng.choices(starts, np.exp(w - w.max()).tolist(), k=spans)
            pairs += [Pair(source, document, *passage.span(start, words)) for start in sampled]
    return pairs


def document_span_pairs(
    corpus: Corpus,
    tokenizer: Any,
    problems: Problems,
    *,
    length: int | None = None,
    spans: int = 10,
    words: int = 10,
    seed: int = 0,
) -> list[Pair]:
    """span ↦ span of one document, `spans` pairs per document: SEAL's training without queries.

    Both spans are drawn uniformly from the starts that `span_pairs` allows; they differ if there are at least
    two starts.
    """
    pairs = []
    for document, passage in _passages(corpus, range(len(corpus)), tokenizer, length, problems):
        id = corpus.ids[document]
        starts = passage.starts(words)
        rng = random.Random(f"{seed} {id}")
        for _ in range(spans):
            source, target = rng.sample(starts, 2) if len(starts) > 1 else starts * 2
            pairs.append(Pair(passage.source(source, words), document, *passage.span(target, words)))
    return pairs


def span_weights(query: str, words: Sequence[str]) -> Float[np.ndarray, " w"]:
    """wᵢ = Σ_g ratio(g, words i to i + 2) over the query's 3-grams g: overlap with the words from i on.

    ratio(x, y) = 1 − indel(x, y) / (|x| + |y|) in lower case; indel is the smallest number of insertions and
    deletions that turn x into y.
    """
    grams = _grams(query.split())
    return cdist(grams, _grams(words), scorer=ratio, dtype=np.float64).sum(0) / 100


def _grams(words: Sequence[str]) -> list[str]:
    lower = [word.lower() for word in words]
    return [" ".join(lower[i : i + GRAM]) for i in range(len(lower))]


def _passages(
    corpus: Corpus, documents: Sequence[int], tokenizer: Any, length: int | None, problems: Problems
) -> Iterator[tuple[int, Words]]:
    texts = (corpus[document] for document in documents)
    for document, tokenized in zip(documents, tokenize(tokenizer, texts, length), strict=True):
        passage = Words(tokenized)
        if passage.words:
            yield document, passage
        else:
            problems.add("document without words or tokens (no spans)", corpus.ids[document])
