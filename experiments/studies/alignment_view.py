"""Choose text pairs to inspect, explain them with every system in a comparison, and map tokens to words."""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from torch import Tensor

from paradigms import Paradigm
from paradigms.data import Corpus, Split
from paradigms.encoder.text import Side
from paradigms.retrieve import Retriever
from paradigms.view.report import AlignmentExample


def chosen_queries(split: Split, count: int) -> list[str]:
    """Choose `count` judged queries for the alignment view, evenly spaced when sorted by id."""
    ids = sorted(q for q, judged in split.judgements.items() if any(g > 0 for g in judged.values()))
    return ids[:: max(1, len(ids) // count)][:count]


def align_query(
    query_id: str, test: Split, corpus: Corpus, pool: Mapping[str, float], retrievers: Mapping[str, Retriever]
) -> list[AlignmentExample]:
    """Explain a relevant document and BM25's best other one in `pool` with every system."""
    query = test.queries[query_id]
    judged = test.judgements[query_id]
    relevant = [d for d in sorted(judged) if judged[d] > 0][:1]
    wrong = [d for d in sorted(pool, key=lambda d: -pool[d]) if judged.get(d, 0) == 0][:1]
    examples = []
    for document in relevant + wrong:
        others = [d for d in sorted(pool) if d != document]
        text = corpus[corpus.position(document)]
        views = [
            replace(view, system=name)
            for name, retriever in retrievers.items()
            for view in retriever.explain(query, document, others)
        ]
        examples.append(AlignmentExample(query_id, document, query, text, document in relevant, views))
    return examples


def words(paradigm: Paradigm, text: str, side: Side, mask: Tensor) -> list[tuple[str, list[int]]]:
    """Return the text's words, each with the positions of its pieces; tokens outside `mask` are ignored.

    WordPiece marks pieces that continue a word (##); SentencePiece and byte-level BPE mark pieces that begin
    a word (▁, Ġ).
    """
    begins, special = _pieces(paradigm.encoder.tokenizer)
    spans: list[tuple[str, list[int]]] = []
    labels = zip(paradigm.encoder.labels(text, side), mask.tolist(), strict=True)
    for place, (label, counts) in enumerate(labels):
        if not counts or label in special:
            continue
        continues = not label.startswith(("▁", "Ġ")) if begins else label.startswith("##")
        bare = label.lstrip("▁Ġ") if begins else label.removeprefix("##")
        if continues and spans and spans[-1][1][-1] == place - 1:
            word, places = spans.pop()
            spans.append((word + bare, [*places, place]))
        else:
            spans.append((bare, [place]))
    return spans


@lru_cache(maxsize=1)
def _pieces(tokenizer: Any) -> tuple[bool, frozenset[str]]:
    """Return (whether the vocabulary marks pieces that begin a word, special tokens)."""
    begins = any(piece.startswith(("▁", "Ġ")) for piece in tokenizer.get_vocab())
    return begins, frozenset(tokenizer.all_special_tokens)
