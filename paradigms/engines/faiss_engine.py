"""FAISS: one vector a document, in a file that any FAISS opens."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paradigms.engines.base import Engine, Vectors
from paradigms.io.files import write_json

INDEX, IDS = "index.faiss", "ids.json"


class FaissEngine(Engine):
    """An exact inner-product index. `save` writes index.faiss, and ids.json with the document of each row."""

    single = True

    def __init__(self, dim: int) -> None:
        import faiss

        self.dim = dim
        self.index: Any = faiss.IndexFlatIP(dim)
        self.rows: dict[str, int] = {}

    def _add(self, ids: Sequence[str], documents: Sequence[Vectors]) -> None:
        again = [id for id in ids if id in self.rows]
        if again:
            raise ValueError(
                f"document {again[0]!r} is there already, and a flat index of FAISS replaces none"
            )
        self.rows |= {id: len(self.rows) + n for n, id in enumerate(ids)}
        self.index.add(np.concatenate(documents).astype(np.float32))

    def _search(self, query: Vectors, k: int) -> list[tuple[str, float]]:
        if not self.rows:
            return []
        scores, rows = self.index.search(query.astype(np.float32), min(k, len(self.rows)))
        names = list(self.rows)
        return [
            (names[row], float(s)) for row, s in zip(rows[0].tolist(), scores[0], strict=True) if row >= 0
        ]

    def save(self, folder: str | Path) -> None:
        """Write both files, each of which appears whole or not at all."""
        import faiss

        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            faiss.write_index(self.index, f"{temporary}/{INDEX}")
            os.replace(f"{temporary}/{INDEX}", Path(folder) / INDEX)
        write_json(Path(folder) / IDS, list(self.rows))

    @classmethod
    def load(cls, folder: str | Path) -> FaissEngine:
        """What `save` wrote. ValueError where the two files are of different saves, or the index of another
        metric."""
        import faiss

        index = faiss.read_index(str(Path(folder) / INDEX))
        if index.metric_type != faiss.METRIC_INNER_PRODUCT:
            raise ValueError(
                f"{folder}: {INDEX} compares by FAISS's metric {index.metric_type}, not by the inner product "
                f"({faiss.METRIC_INNER_PRODUCT})"
            )
        engine = cls(index.d)
        engine.index = index
        names = json.loads((Path(folder) / IDS).read_text(encoding="utf-8"))
        if len(names) != index.ntotal:
            raise ValueError(f"{folder}: {IDS} names {len(names)} documents and {INDEX} holds {index.ntotal}")
        engine.rows = {id: n for n, id in enumerate(names)}
        return engine
