"""Write token vectors of documents and test queries to files for the token search benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from parts.systems import best
from rich.console import Console

from paradigms import PARADIGMS
from paradigms.data import load_collection
from paradigms.encoder.batches import by_length
from paradigms.io.checks import json_or_empty
from paradigms.io.files import atomic_folder, contents, write_json
from paradigms.io.progress import progress_bar


def prepare(settings: Any, folder: Path, console: Console) -> Path:
    """Write the vectors to a folder, unless one exists for the same settings, and return the folder."""
    names = ("collection", "documents", "queries", "document_length", "dim", "seed")
    wanted = {name: getattr(settings, name) for name in names}
    target = folder / "vectors"
    file = target / "vectors.json"
    if json_or_empty(file).get("settings") == wanted:
        return target
    console.print(f"Encoding {settings.documents} documents of {settings.collection} …")
    collection = load_collection(settings.collection)
    test = collection.split("test")
    queries = list(test.queries)[: settings.queries]
    relevant = {id for query in queries for id, grade in test.judgements[query].items() if grade > 0}
    others = [id for id in collection.corpus.ids if id not in relevant]
    generator = np.random.default_rng(settings.seed)
    drawn = generator.permutation(len(others))[: max(0, settings.documents - len(relevant))]
    kept = relevant | {others[n] for n in drawn}
    places = [n for n, id in enumerate(collection.corpus.ids) if id in kept]
    model = PARADIGMS["colbert"](
        "offline", dim=None, skip="", document_length=settings.document_length
    ).eval()
    documents = encode(model.encode_documents, [collection.corpus[n] for n in places], 0)
    encoded = encode(model.encode_queries, [test.queries[query] for query in queries], 1)
    lengths = np.array([len(d) for d in documents])
    states = np.concatenate(documents)
    axes = principal(states[generator.permutation(len(states))[: 1 << 17]], settings.dim)
    tokens = unit(states @ axes).astype(np.float16)
    reduced = [unit(query @ axes) for query in encoded]
    ids = [collection.corpus.ids[n] for n in places]
    judged = [[n for n, id in enumerate(ids) if test.judgements[query].get(id, 0) > 0] for query in queries]
    ranked = [exact(tokens, lengths, query, 100) for query in reduced]
    with atomic_folder(target, contents("*.npy", "*.npz", "*.json", marks=["vectors.json"])) as fresh:
        np.save(fresh / "tokens.npy", tokens)
        np.save(fresh / "lengths.npy", lengths)
        np.savez(fresh / "queries.npz", **{str(n): query for n, query in enumerate(reduced)})
        write_json(fresh / "candidates.json", ranked)
        write_json(fresh / "relevant.json", judged)
        write_json(fresh / "vectors.json", {"settings": wanted, "tokens": len(tokens)})
    return target


def encode(encoder: Any, texts: Sequence[str], axis: int, batch: int = 64) -> list[np.ndarray]:
    """Encode each text as token vectors, starting with the longest; return them in the order of `texts`."""
    encoded: list[Any] = [None] * len(texts)
    with torch.inference_mode(), progress_bar(True) as bar:
        task = bar.add_task("encode", total=len(texts))
        for part in by_length([len(text) for text in texts], rows=batch):
            tokens = encoder([texts[n] for n in part])
            rows = zip(tokens.vectors.squeeze(axis), tokens.mask.squeeze(axis), part, strict=True)
            for vectors, mask, n in rows:
                encoded[n] = vectors[mask].numpy()
            bar.advance(task, len(part))
    return encoded


def principal(states: np.ndarray, dim: int) -> np.ndarray:
    """Return the `dim` axes of largest mean square, [width, dim], which best preserve inner products."""
    _, vectors = np.linalg.eigh(states.T @ states)
    return vectors[:, ::-1][:, :dim]


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def exact(tokens: np.ndarray, lengths: np.ndarray, query: np.ndarray, k: int) -> list[int]:
    """Return the k documents with the largest MaxSim, computed on the stored vectors in float32."""
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    parts = np.array_split(np.arange(len(lengths)), max(1, len(tokens) >> 17))
    scores = []
    for part in parts:
        first, last = starts[part[0]], starts[part[-1]] + lengths[part[-1]]
        similarity = tokens[first:last].astype(np.float32) @ query.T
        scores.append(np.maximum.reduceat(similarity, starts[part] - first, axis=0).sum(1))
    return best(np.concatenate(scores), k)
