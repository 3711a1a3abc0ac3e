"""Which pairs the report's alignment view shows, and how every system of a results folder aligns them."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from paradigms import CrossAttention, Paradigm, load
from paradigms.baselines.bm25 import BM25
from paradigms.data import Corpus, Split
from paradigms.data.by_document import Passages
from paradigms.evaluate import AlignmentExample
from paradigms.evaluate.explain import explain, explain_bm25, explain_generative
from paradigms.generative.model import Generative
from paradigms.index import open_index


def chosen_queries(split: Split, count: int) -> list[str]:
    """Judged queries for the alignment view: evenly spaced in the order of their ids."""
    ids = sorted(q for q, judged in split.judgements.items() if any(g > 0 for g in judged.values()))
    return ids[:: max(1, len(ids) // count)][:count]


def align_query(
    query_id: str,
    corpus: Corpus,
    split: Split,
    bm25: BM25,
    pool: Mapping[str, float],
    systems: Mapping[str, Path],
    folder: Path,
    pieces: Passages | None = None,
) -> list[AlignmentExample]:
    """A relevant document and the best that is not, by BM25, under every system of a results folder.

    pool: document -> score of the query's candidates. systems: name -> the folder that has its index, where
    it has one. pieces: what the indexes hold, where these are passages.
    """
    query, judged = split.queries[query_id], split.judgements[query_id]
    relevant = [d for d in sorted(judged) if judged[d] > 0][:1]
    wrong = [d for d in sorted(pool, key=lambda d: -pool[d]) if judged.get(d, 0) == 0][:1]
    examples = []
    for document_id in relevant + wrong:
        text = corpus[corpus.position(document_id)]
        views = [explain_bm25(bm25, query, document_id, text)]
        for name, encoded in systems.items():
            paradigm, index = opened(folder / name / "checkpoint", encoded / "index")
            if isinstance(paradigm, CrossAttention):
                continue  # A is not defined
            if isinstance(paradigm, Generative):
                found = explain_generative(paradigm, query, corpus.position(document_id))
                views += [replace(view, system=name) for view in found]
                continue
            others = [d for d in sorted(pool) if d != document_id]
            read = text
            if pieces:  # the best passage of the document, among all of the others
                run = {query_id: dict.fromkeys(pieces.of(document_id), 0.0)}
                best = next(iter(index.rerank(paradigm, {query_id: query}, run)[query_id]))
                read = pieces.corpus[pieces.corpus.position(best)]
                others = [passage for other in others for passage in pieces.of(other)]
            rest = index.tokens_of(others, paradigm.encoder.device) if "pool" in paradigm.reads else None
            views.append(replace(explain(paradigm, query, read, rest), system=name))
        example = AlignmentExample(query_id, document_id, query, text, document_id in relevant, views)
        examples.append(example)
    return examples


@cache
def opened(checkpoint: Path, index: Path) -> tuple[Any, Any]:
    """A system's trained model and, where it encodes documents, its index."""
    paradigm = load(checkpoint)
    return paradigm, open_index(index) if isinstance(paradigm, Paradigm) else None
