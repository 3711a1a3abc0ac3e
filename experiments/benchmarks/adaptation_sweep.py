"""Processor time of scoring candidates under all nine alignment strategies, over that of scoring under one.

Synthetic unit vectors of realistic lengths, the same candidates for all: one strategy (k = 1) as
`ExactIndex.rerank` scores it; the same maxima over documents read in blocks of like length, as the sweep
reads them; the sweep; and nine reranks, which a sweep that shares nothing needs (on a few queries). Encoding
queries costs next to nothing here, so the ratios are of reading tokens and scoring alone. Times are processor
seconds, in which a busy neighbour does not show; they belong to the machine, the ratios travel.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paradigms.io.settings import command_line


@dataclass
class Settings:
    """How much is scored."""

    queries: int = 300
    candidates: int = 1000
    documents: int = 4000
    query_tokens: int = 24
    """longest query; the shortest has a third of it"""
    document_tokens: int = 256
    """longest document; the shortest has a quarter of it"""
    dim: int = 128
    separate: int = 10
    """queries on which nine separate reranks are timed"""
    threads: int = 1
    seed: int = 0
    output: str = "results/benchmarks/adaptation_sweep.json"

    def __post_init__(self) -> None:
        if self.candidates > self.documents:
            raise SystemExit(f"candidates={self.candidates} of {self.documents} documents")


if __name__ == "__main__":  # before the imports that take seconds
    given = command_line(Settings, __doc__ or "")

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from paradigms import Paradigm
from paradigms.core import Tokens
from paradigms.encoder.text import Batch, EncoderSettings, Side
from paradigms.index import ExactIndex
from paradigms.index.strategies import STRATEGIES, blocks_of_like_length, rerank_strategies
from paradigms.io.files import write_json
from paradigms.recipe import Recipe
from paradigms.scoring.maxima import max_rel

LIMIT = 1.5  # of a sweep over one strategy
CHUNK = 10  # queries for which the ways take turns


class RandomEncoder(nn.Module):
    """Stands where a text encoder does: the text "17 200" is 200 unit vectors drawn with seed 17."""

    def __init__(self, settings: EncoderSettings, dim: int) -> None:
        super().__init__()
        self.settings, self.dim, self.device = settings, dim, torch.device("cpu")

    def tokenize(self, texts: list[str], side: Side) -> Batch:
        """Seeds as ids, lengths as masks."""
        seeds, lengths = torch.tensor([[int(n) for n in text.split()] for text in texts]).T
        mask = torch.arange(int(lengths.max())) < lengths[:, None]
        return Batch(seeds[:, None].expand(mask.shape), mask.long(), mask)

    def forward(self, batch: Batch, side: Side) -> Tokens:
        random = torch.Generator().manual_seed(int(batch.input_ids[0, 0]))
        vectors = torch.randn(*batch.counts.shape, self.dim, generator=random)
        u = torch.rand(batch.counts.shape, generator=random) if self.settings.salience != "none" else None
        axis = 1 if side == "query" else 0
        tokens = Tokens(nn.functional.normalize(vectors, dim=-1), batch.counts, salience=u)
        return tokens.map(lambda t: t.unsqueeze(axis))


def main(settings: Settings) -> None:
    torch.set_num_threads(settings.threads)
    rows = [measure(settings, salience) for salience in ("none", "relu")]
    write_json(settings.output, {"settings": asdict(settings), "torch": torch.__version__, "rows": rows})
    Console().print(as_table(rows, settings))


def measure(settings: Settings, salience: Any) -> dict[str, Any]:
    """Seconds for all queries of each way, and the ratios."""
    random = np.random.default_rng(settings.seed)
    recipe = Recipe("aligner", "top_k", "total", {"k": 1})
    encoder: Any = RandomEncoder(EncoderSettings(salience=salience), settings.dim)
    paradigm = Paradigm(recipe, encoder)

    def texts(prefix: str, count: int, longest: int, shortest: int) -> dict[str, str]:
        lengths = random.integers(shortest, longest + 1, count)
        return {f"{prefix}{n}": f"{n} {length}" for n, length in enumerate(lengths)}

    corpus = texts("d", settings.documents, settings.document_tokens, settings.document_tokens // 4)
    queries = texts("q", settings.queries, settings.query_tokens, settings.query_tokens // 3)
    ids = list(corpus)
    run = {
        query: {ids[n]: 0.0 for n in random.choice(len(ids), settings.candidates, replace=False)}
        for query in queries
    }
    with tempfile.TemporaryDirectory() as folder:
        index = ExactIndex.build(paradigm, ids, list(corpus.values()), Path(folder) / "index")
        lengths = np.diff(index.offsets)

        def maxima(part: dict) -> None:
            for query, candidates in part.items():
                positions = np.array([index.position(id) for id in sorted(candidates)])
                encoded = paradigm.encode_queries([queries[query]])
                for members in blocks_of_like_length(lengths[positions]):
                    max_rel(paradigm.recipe, index.tokens(positions[members].tolist()), encoded)

        def separately(part: dict) -> None:
            for align, knobs in STRATEGIES.values():
                index.rerank(paradigm.with_alignment(align, **knobs), queries, part)

        ways: dict[str, Callable[[dict], object]] = {
            "one strategy, rerank": lambda part: index.rerank(paradigm, queries, part),
            "one strategy, maxima in the sweep's blocks": maxima,
            "nine strategies, sweep": lambda part: rerank_strategies(index, paradigm, queries, part),
        }
        seconds = dict.fromkeys(ways, 0.0)
        names = list(run)
        for way in ways.values():  # once without counting
            way({name: run[name] for name in names[:2]})
        for start in range(0, len(names), CHUNK):
            part = {name: run[name] for name in names[start : start + CHUNK]}
            for name, way in ways.items():
                seconds[name] += timed(way, part)
        few = {name: run[name] for name in names[: settings.separate]}
        separate = timed(separately, few)
    seconds["nine reranks"] = separate * len(names) / max(1, len(few))
    sweep = seconds["nine strategies, sweep"]
    return {
        "salience": salience,
        "seconds": seconds,
        "sweep over one rerank": sweep / seconds["one strategy, rerank"],
        "sweep over maxima": sweep / seconds["one strategy, maxima in the sweep's blocks"],
        "nine reranks over the sweep": seconds["nine reranks"] / sweep,
    }


def timed(function: Callable[[dict], object], part: dict) -> float:
    start = time.process_time()
    with torch.inference_mode():
        function(part)
    return time.process_time() - start


def as_table(rows: list[dict[str, Any]], settings: Settings) -> Table:
    table = Table(
        title=f"{settings.queries} queries × {settings.candidates} candidates, {settings.threads} thread(s); "
        f"asked for: a sweep in at most {LIMIT} times one strategy"
    )
    table.add_column("")
    for row in rows:
        table.add_column(
            "without salience" if row["salience"] == "none" else "with salience", justify="right"
        )
    for name in rows[0]["seconds"]:
        table.add_row(f"{name}, s", *(f"{row['seconds'][name]:.1f}" for row in rows))
    for name in [key for key in rows[0] if " over " in key]:
        table.add_row(name, *(f"{row[name]:.2f}" for row in rows))
    return table


if __name__ == "__main__":
    main(Settings(**given))
