"""Write real documents and test queries of collections, in the forms that `composed` reads."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from parts.composed import write
from rich.console import Console

from paradigms import PARADIGMS, Paradigm
from paradigms.baselines.bm25 import BM25
from paradigms.core import Tokens
from paradigms.data import Corpus, load_collection
from paradigms.find import Store, kinds, open_index
from paradigms.io.checks import json_or_empty
from paradigms.io.command_line import folder_name
from paradigms.io.files import atomic_folder, contents, write_json

ENTRY = np.dtype([("id", "<i4"), ("weight", "<f2")])  # a term's entry
ANY = contents("*", "*/")
DIM = 128  # numbers of a token's vector


def prepare(
    model: Paradigm,
    collections: Mapping[str, int],
    folder: Path,
    console: Console,
    *,
    queries: int,
    tokens: int,
    seed: int,
    forms: Sequence[str],
    splade_documents: int = 0,
) -> Path:
    """Write the documents to folder/vectors, unless it has the same settings, and return that folder.

    collections: name or folder → maximum number of documents, 0 for all; the documents that are relevant to
    the queries come first, then others drawn at random. queries: test queries of all collections together.
    tokens: maximum tokens per document. forms: of tokens, pooled, words and splade, which has only the first
    `splade_documents` documents.
    """
    target = folder / "vectors"
    settings = {"collections": dict(collections), "queries": queries, "tokens": tokens, "seed": seed}
    settings |= {"forms": list(forms), "splade": splade_documents, "model": model.description()}
    if json_or_empty(target / "vectors.json").get("settings") == settings:
        return target
    random = np.random.default_rng(seed)
    stores: list[Store] = []
    corpora: list[Corpus] = []
    query_texts: list[str] = []
    relevant: list[tuple[int, str]] = []
    for n, (name, most) in enumerate(collections.items()):
        collection = load_collection(name)
        test = collection.split("test")
        sample = random.permutation(list(test.queries))[: queries // len(collections)].tolist()
        good = {d for query in sample for d, grade in test.judgements[query].items() if grade > 0}
        others = random.permutation([id for id in collection.corpus.ids if id not in good])
        corpus = collection.corpus.only(good | set(others[: max(0, most - len(good))] if most else others))
        place = folder / "encoded" / folder_name(name)
        if not place.is_dir():
            console.print(f"Encoding {len(corpus):,} documents of {name} …")
            Store.build(kinds.exact(), model, corpus.ids, corpus, place, progress=True)
        stores.append(open_index(place).store)
        stores[n].check(model)
        corpora.append(corpus)
        query_texts += [test.queries[query] for query in sample]
        relevant += [(n, id) for id in sorted(good)]
    rest = sorted({(n, id) for n, corpus in enumerate(corpora) for id in corpus.ids} - {*relevant})
    order = relevant + [rest[place] for place in random.permutation(len(rest))]
    sources = np.array([n for n, _ in order], np.int32)
    texts = [corpora[n][corpora[n].position(id)] for n, id in order]
    with torch.inference_mode():
        query_rows, query_lengths = counted(model.encode_queries(query_texts))
    with atomic_folder(target, ANY) as fresh:
        values, lengths, axes, means = states(stores, order, tokens, random)
        query_states = unit(query_rows @ axes).astype(np.float32), query_lengths
        write(fresh, "tokens", (values, lengths), sources, query_states, seed)
        if "pooled" in forms:
            starts = np.concatenate([[0], np.cumsum(query_lengths)[:-1]])
            pooled = unit(np.add.reduceat(query_rows, starts)).astype(np.float32)
            ones = np.ones(len(query_texts), np.int64)
            write(fresh, "pooled", (means, np.ones(len(order), np.int64)), sources, (pooled, ones), seed)
        if "words" in forms:
            write(fresh, "words", *words(texts, query_texts, sources), seed)
        if "splade" in forms:
            write(fresh, "splade", *splade(texts[:splade_documents], query_texts, sources), seed)
        counts = {"documents": len(order), "relevant": len(relevant), "tokens": len(values)}
        write_json(fresh / "vectors.json", {"settings": settings} | counts)
    return target


def counted(queries: Tokens) -> tuple[np.ndarray, np.ndarray]:
    """Return the vectors of all tokens that count, and their number in each query."""
    mask = queries.mask[:, 0]
    return queries.vectors[:, 0][mask].float().numpy(), mask.sum(1).numpy()


def states(
    stores: Sequence[Store], order: Sequence[tuple[int, str]], tokens: int, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return first tokens on principal axes, their numbers, the axes, and means of all tokens in full."""
    places = [(stores[n], stores[n].position(id)) for n, id in order]
    spans = [(store, *store.offsets[row : row + 2].tolist()) for store, row in places]
    sample = random.permutation(len(spans))[: (1 << 17) // tokens]
    blocks = [
        store.columns["vectors"][low : min(high, low + tokens)]
        for store, low, high in map(spans.__getitem__, sample)
    ]
    rows = np.concatenate(blocks).astype(np.float32)
    axes = np.linalg.eigh(rows.T @ rows)[1][:, ::-1][:, :DIM]  # of the largest mean squares
    lengths = np.array([min(high - low, tokens) for _, low, high in spans])
    ends = np.cumsum(lengths)
    means = np.zeros((len(spans), stores[0].dim), np.float16)
    values = np.empty((int(ends[-1]), axes.shape[1]), np.float16)
    for n, (store, low, high) in enumerate(spans):
        vectors = store.columns["vectors"][low:high].astype(np.float32)
        if len(vectors):
            means[n] = unit(vectors.mean(0, keepdims=True))[0]
            values[ends[n] - lengths[n] : ends[n]] = unit(vectors[: lengths[n]] @ axes)
    return values, lengths, axes, means


def words(
    texts: Sequence[str], query_texts: Sequence[str], sources: np.ndarray
) -> tuple[Any, np.ndarray, Any]:
    """Return BM25's weights for documents, their sources, and the counts of queries' terms."""
    bm25 = BM25(Corpus([str(n) for n in range(len(texts))], texts))
    matrix = bm25.matrix()
    documents = entries(matrix.indices, matrix.data), np.diff(matrix.indptr).astype(np.int64)
    terms = [[bm25.vocabulary[w] for w in bm25.terms(text) if w in bm25.vocabulary] for text in query_texts]
    counts = [np.unique(np.array(row, np.int64), return_counts=True) for row in terms]
    joined = entries(*(np.concatenate(part) for part in zip(*counts, strict=True)))
    return documents, sources, (joined, np.array([len(numbers) for numbers, _ in counts]))


def splade(
    texts: Sequence[str], query_texts: Sequence[str], sources: np.ndarray
) -> tuple[Any, np.ndarray, Any]:
    """Return SPLADE's weights for documents, their sources, and those for queries."""
    model = PARADIGMS["splade"]("offline-splade").eval()
    store = Store.build(kinds.inverted(16), model, map(str, range(len(texts))), texts, progress=True)
    rows = store.decoded(slice(None))
    with torch.inference_mode():
        queries = model.encode_queries(list(query_texts))
    weights, lengths = counted(queries)
    assert queries.ids is not None
    ids = queries.ids[:, 0][queries.mask[:, 0]].numpy()
    documents = entries(rows["ids"], rows["vectors"][:, 0]), np.diff(store.offsets)
    return documents, sources[: len(texts)], (entries(ids, weights[:, 0]), lengths)


def entries(ids: np.ndarray, weights: np.ndarray) -> np.ndarray:
    rows = np.empty(len(ids), ENTRY)
    rows["id"] = ids
    rows["weight"] = weights
    return rows


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
