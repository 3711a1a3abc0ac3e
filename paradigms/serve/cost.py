"""What a request takes, stated from shapes before anything is computed: memory, multiply-adds, answer."""

from __future__ import annotations

from functools import lru_cache
from typing import Any
from unicodedata import normalize

from torch import nn

from paradigms.align import Cost
from paradigms.baselines.bm25 import BM25
from paradigms.baselines.cross_attention import CrossAttention
from paradigms.encoder.settings import Side
from paradigms.find.lists import CANDIDATES as LEAST
from paradigms.find.lists import EACH
from paradigms.find.ranking import CANDIDATES as BLOCK
from paradigms.find.scan import Exact
from paradigms.generative.model import Generative
from paradigms.model import Paradigm
from paradigms.recipe import Recipe
from paradigms.retrieve import Fused, Indexed, Passages, Reranking
from paradigms.retrieve.wrappers import Wrapper

MOST = Cost(1 << 29, 10**11)  # of a step of a request: 512 MiB, about 6 seconds of one core
ANSWER = 1 << 24  # bytes of an answer
NUMBER = 22  # bytes of a number in JSON
SPECIAL = 8  # special tokens of a text and its marker


def check_cost(cost: Cost, allowed: Cost) -> None:
    """Raise ValueError, naming both, if a cost is larger than what is allowed."""
    if cost.bytes > allowed.bytes or cost.operations > allowed.operations:
        raise ValueError(
            f"a query of the request takes up to {_named(cost)}, and {_named(allowed)} are allowed: "
            "ask for fewer documents, or for a cheaper A"
        )


def share(cost: Cost, allowed: Cost) -> float:
    """Return the part of what is allowed that a cost takes."""
    return max(cost.bytes / max(1, allowed.bytes), cost.operations / max(1, allowed.operations))


def check_answer(size: int) -> None:
    """Raise ValueError if an answer of up to `size` bytes is too large."""
    if size > ANSWER:
        raise ValueError(f"the answer may have {size:,} bytes, more than {ANSWER:,}: divide the request")


def _named(cost: Cost) -> str:
    return f"{cost.bytes / (1 << 20):,.0f} MiB and {cost.operations:.1e} multiply-adds"


@lru_cache(32)
def per_token(module: nn.Module) -> int:
    """Count the multiply-adds for a token: the parameters without tables of embeddings."""
    parts = (part for part in module.modules() if not isinstance(part, nn.Embedding))
    return sum(weight.numel() for part in parts for weight in part.parameters(recurse=False))


def tokens_of(model: Any, side: Side, text: str | None = None) -> int:
    """Bound the number of a text's tokens. text: None means the longest one that a model reads."""
    settings = model.encoder.settings
    most = int(settings.query_length if side == "query" else settings.document_length)
    if text is None or (side == "query" and settings.query_augmentation):
        return most
    return min(most, len(normalize("NFKC", text).encode()) + SPECIAL)  # at most one a byte


def vectors_of(model: Paradigm, side: Side, text: str | None = None) -> int:
    """Bound the number of a text's vectors."""
    settings = model.encoder.settings
    kind = settings.query_vectors if side == "query" else settings.document_vectors
    tokens = tokens_of(model, side, text) + bool(settings.pooled_dim)
    return {"pooled": 1, "all": tokens}.get(kind, settings.vectors + bool(settings.pooled_dim))


def encoding(model: Any, side: Side, text: str | None = None) -> Cost:
    """Return the cost of encoding a text."""
    tokens = tokens_of(model, side, text)
    return Cost(64 * tokens * tokens, tokens * per_token(model))


def aligning(model: Paradigm, recipe: Recipe, query: str, tokens: int, at_once: bool) -> Cost:
    """Return the cost of S and A for a query and documents with so many tokens in all.

    at_once: whether all documents are in memory together, rather than a block of them.
    """
    j = vectors_of(model, "query", query)
    dim = model.encoder.dim
    align = recipe.align
    block = tokens if at_once or "pool" in align.reads else min(tokens, BLOCK)
    memory = align.cost(block * j, block + j, dim).bytes + 8 * block * (dim + j)
    if align.is_maximum() or recipe.search == "impute":  # found beside S, by the kernels
        return Cost(memory, tokens * j * (dim + 10))
    return Cost(memory, tokens * j * dim + align.cost(tokens * j, tokens + j, dim).operations)


def searching(retriever: Any, query: str, k: int) -> Cost:
    """Return the cost of a search for k documents."""
    if isinstance(retriever, Wrapper):
        mean = retriever.pieces.mean * retriever.best if isinstance(retriever, Passages) else 1
        return searching(retriever.retriever, query, k * mean)
    if isinstance(retriever, Fused):
        depth = max(k, retriever.depth)
        return sum((searching(one, query, depth) for one in retriever.retrievers), Cost())
    if first := getattr(retriever, "first", None):  # of `Reranking` or an engine
        depth = max(k, getattr(retriever, "candidates", k))
        return searching(first, query, depth) + reranking(retriever, query, depth)
    if not isinstance(retriever, Indexed):
        return reranking(retriever, query, k)
    index = retriever.index
    exact = isinstance(index.finder, Exact)
    return reranking(retriever, query, len(index) if exact else min(len(index), max(LEAST, EACH * k)))


def scoring(retriever: Any, model: Paradigm | None, query: str, text: str) -> Cost:
    """Return the cost of scoring a text that need not be in the corpus."""
    if model is not None:
        tokens = vectors_of(model, "document", text)
        aligned = aligning(model, model.recipe, query, tokens, at_once=True)
        return encoding(model, "document", text) + encoding(model, "query", query) + aligned
    other = getattr(retriever, "model", None)
    if isinstance(other, CrossAttention):
        return Cost(0, other.document_length * per_token(other))
    return Cost(0, len(query) * len(text))


def reranking(
    retriever: Any, query: str, documents: int, recipe: Recipe | None = None, at_once: bool = False
) -> Cost:
    """Return the cost of scoring documents for a query.

    recipe: None means the model's own. at_once: see `aligning`. A retriever of another class counts nothing.
    """
    if isinstance(retriever, Wrapper):
        mean = retriever.pieces.mean if isinstance(retriever, Passages) else 1
        return reranking(retriever.retriever, query, documents * mean, recipe, at_once)
    if isinstance(retriever, Fused):
        return sum((reranking(one, query, documents) for one in retriever.retrievers), Cost())
    if isinstance(retriever, BM25):
        return Cost(4 * len(retriever.corpus), len(query) * len(retriever.corpus))
    model: Any = getattr(retriever, "model", None)
    if isinstance(retriever, Indexed):
        store = retriever.index.store
        tokens = min(documents * store.longest, store.living_tokens)  # at most
        read = Cost()
    elif isinstance(retriever, Reranking) and isinstance(model, Paradigm):
        tokens = documents * vectors_of(model, "document")
        read = Cost(4 * tokens * model.encoder.dim) + encoding(model, "document") * documents
    elif isinstance(model, Generative):
        decoded = model.settings.beams * model.identifiers.longest
        return Cost(0, per_token(model) * (model.settings.query_length + decoded))
    elif isinstance(model, CrossAttention):
        return Cost(0, documents * model.document_length * per_token(model))
    else:
        return Cost()
    aligned = aligning(model, recipe or model.recipe, query, tokens, at_once)
    return read + encoding(model, "query", query) + aligned
