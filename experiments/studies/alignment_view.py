"""Pairs of texts to look at: which are chosen, how every system of a comparison aligns them, their words."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from studies.systems import Data
from torch import Tensor

from paradigms import CrossAttention, Paradigm, load
from paradigms.data import Split
from paradigms.encoder.text import Side
from paradigms.evaluate import AlignmentExample
from paradigms.evaluate.explain import explain_bm25, explain_found, explain_generative
from paradigms.generative.model import Generative
from paradigms.index import open_index


def chosen_queries(split: Split, count: int) -> list[str]:
    """Judged queries for the alignment view: evenly spaced in the order of their ids."""
    ids = sorted(q for q, judged in split.judgements.items() if any(g > 0 for g in judged.values()))
    return ids[:: max(1, len(ids) // count)][:count]


def align_query(
    query_id: str, test: Split, data: Data, pool: Mapping[str, float], saved: Mapping[str, tuple[Path, Path]]
) -> list[AlignmentExample]:
    """A relevant document and the best that is not, by BM25, under every system of a comparison.

    test: the data's test split, judged. pool: document -> score of the query's candidates. saved: system ->
    its checkpoint, and where its index is if it has one.
    """
    query, judged = test.queries[query_id], test.judgements[query_id]
    corpus = data.collection.corpus
    relevant = [d for d in sorted(judged) if judged[d] > 0][:1]
    wrong = [d for d in sorted(pool, key=lambda d: -pool[d]) if judged.get(d, 0) == 0][:1]
    examples = []
    for document in relevant + wrong:
        text = corpus[corpus.position(document)]
        views = [explain_bm25(data.bm25, query, document, text)]
        for name, paths in saved.items():
            model, index = opened(*paths)
            if isinstance(model, CrossAttention):
                continue  # A is not defined
            if isinstance(model, Generative):
                found = explain_generative(model, query, corpus.position(document))
                views += [replace(view, system=name) for view in found]
                continue
            others = [d for d in sorted(pool) if d != document]
            view = explain_found(index, model, query, document, others, data.pieces)
            views.append(replace(view, system=name))
        examples.append(AlignmentExample(query_id, document, query, text, document in relevant, views))
    return examples


@cache
def opened(checkpoint: Path, index: Path) -> tuple[Any, Any]:
    """A system's trained model and, where it encodes documents, its index."""
    paradigm = load(checkpoint)
    return paradigm, open_index(index) if isinstance(paradigm, Paradigm) else None


def words(paradigm: Paradigm, text: str, side: Side, mask: Tensor) -> list[tuple[str, list[int]]]:
    """The text's tokens that count as words, each with the places of its pieces among the tokens.

    WordPiece marks the pieces that continue a word (##), the vocabularies of SentencePiece and byte-level BPE
    those that begin one (▁, Ġ).
    """
    begins, special = _pieces(paradigm.encoder.tokenizer)
    found: list[tuple[str, list[int]]] = []
    for place, (label, counts) in enumerate(
        zip(paradigm.encoder.labels(text, side), mask.tolist(), strict=True)
    ):
        if not counts or label in special:
            continue
        continues = not label.startswith(("▁", "Ġ")) if begins else label.startswith("##")
        bare = label.lstrip("▁Ġ") if begins else label.removeprefix("##")
        if continues and found and found[-1][1][-1] == place - 1:
            word, places = found.pop()
            found.append((word + bare, [*places, place]))
        else:
            found.append((bare, [place]))
    return found


@lru_cache(maxsize=1)
def _pieces(tokenizer: Any) -> tuple[bool, frozenset[str]]:
    """Whether the vocabulary marks pieces that begin a word, and its special tokens."""
    begins = any(piece.startswith(("▁", "Ġ")) for piece in tokenizer.get_vocab())
    return begins, frozenset(tokenizer.all_special_tokens)
