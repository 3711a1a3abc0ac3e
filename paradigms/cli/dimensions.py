"""`paradigms dimensions`: how many dimensions keep BM25's best document in the top ten?

This file and oracle.py are the only ones in `paradigms` that import `theory`; each is imported only when its
command runs. experiments/random_projections.py also reports dimensions by length.
"""

import argparse
import re
from collections.abc import Iterator

import numpy as np

from paradigms.baselines.lexical_vectors import Counts, count_terms, weigh
from paradigms.cli.queries import read_queries
from paradigms.cli.sources import corpus_of, is_text, words_of
from paradigms.data import Corpus
from paradigms.data.collection import body
from theory.checks import Array
from theory.collection import (
    POINTS,
    Dimension,
    Problem,
    cosine_lost,
    exact_thresholds,
    least_dimension,
    projected_dimension,
    reached_by,
    truncated,
)

RANK, BETA = 10, 0.05  # goal: for a share 1 − BETA of queries, the best document stays in the first RANK
QUERIES, SAMPLES = 100, 64  # drawn queries, drawn Gaussian vectors
FEW = 50  # below this number of queries, the interval is too narrow
MOST = 512  # maximum number of dimensions tried for the truncated SVD
BATCH = 64  # texts encoded at once
SENTENCE = re.compile(r"(?s)\S.*?(?=[.!?。！？](?:\s|$)|$)")


def run_dimensions(settings: argparse.Namespace) -> None:
    """Print how many dimensions linear maps need to keep BM25's best document, and how a model compares."""
    corpus = corpus_of(settings.source, words_of(settings.source, settings.words))
    chosen = read_queries(settings, settings.source)
    queries = chosen or title_queries(corpus, is_text(settings.source))
    counts = count_terms(corpus, queries, QUERIES)
    problem = Problem.of(*weigh(counts), [np.arange(len(corpus))])
    thresholds = exact_thresholds(problem, [RANK], SAMPLES, seed=0)[0, 0]
    if np.isnan(thresholds[:, 0]).all():
        raise ValueError(f"{settings.source}: no query has {RANK} documents that BM25 ranks below the best")
    for line in report(counts, problem, thresholds, bool(chosen)):
        print(line)
    if settings.model:
        print(compare_model(settings, corpus, [queries[id] for id in counts.query_ids], problem, thresholds))
    print(
        "This is how well BM25's order is kept, not how well documents are found: a trained encoder can rank "
        "better than BM25 with fewer dimensions."
    )


def title_queries(corpus: Corpus, paths: bool) -> dict[str, str]:
    """Map document ids to titles, or first sentences if titles are missing.

    paths: whether titles are file names; if so, first sentences are used instead.
    """
    queries = {}
    for id, title, text in zip(corpus.ids, corpus.titles, corpus, strict=True):
        match = None if title.strip() and not paths else SENTENCE.search(body(title, text))
        queries[id] = match[0] if match else title
    return queries


def report(counts: Counts, problem: Problem, thresholds: Array, chosen: bool) -> Iterator[str]:
    """Yield the lines on linear maps.

    thresholds: [m, samples], NaN for a query with too few documents. chosen: whether the user gave queries.
    """
    count = int((~np.isnan(thresholds[:, 0])).sum())
    linear = shown(projected_dimension(thresholds, BETA))
    svd = shown(least_dimension(*truncated(problem, RANK, MOST), BETA), MOST)
    yield (
        f"To keep BM25's best document in the first {RANK} for {1 - BETA:.0%} of the queries, an untrained "
        f"linear map needs {linear} dimensions, and a truncated SVD, the map one would take, {svd} ({count} "
        f"queries, {len(counts.corpus):,} documents; [95% intervals over queries])."
    )
    if count < FEW:
        yield (
            f"With fewer than {FEW} queries, such an interval contains the number for all queries less often "
            "than 95%, and that number is mostly higher."
        )
    copies = len(counts.corpus) - len(set(counts.corpus))
    if copies:
        have = "documents have" if copies > 1 else "document has"
        yield f"{copies:,} {have} the text of another: a copy of the best ties with it and is not counted."
    if not chosen:
        yield (
            "The queries are titles or first sentences of documents. Real ones (--queries or --split) mostly "
            "share fewer words with their documents and need more dimensions."
        )


def shown(k: Dimension, most: int = 0) -> str:
    """Format k [low, high]; infinite values are shown as "more than `most`"."""
    cells = [f"{x:,.0f}" if np.isfinite(x) else f"more than {most:,.0f}" for x in k]
    return cells[0] if np.isinf(k.low) else f"{cells[0]} [{cells[1]}, {cells[2]}]"


def compare_model(
    settings: argparse.Namespace, corpus: Corpus, queries: list[str], problem: Problem, thresholds: Array
) -> str:
    """Report how often a model keeps BM25's best document among the first `RANK`.

    Also reports how many dimensions an untrained linear map needs to keep that document as often.
    """
    import torch

    from paradigms.cli.indexed import Checkpoint
    from paradigms.cli.oracle import proportion
    from paradigms.io.progress import progress_bar
    from paradigms.loading import as_paradigm

    model = as_paradigm(Checkpoint.of(settings).open(pickled=settings.pickled), settings.model)
    if model.recipe.reads_pool:
        raise ValueError(f"{settings.model} scores a document by the whole pool, not by the pair alone")
    encoded = model.encode_queries(queries)
    parts = []
    vectors = []
    with progress_bar() as bar:
        for start in bar.track(range(0, len(corpus), BATCH), description="encode"):
            documents = model.encode_documents(corpus[start : start + BATCH])
            parts.append(model.score(documents, encoded).float().cpu())
            vectors.append(documents.vectors[0, :, 0].float().cpu())
    scores = torch.cat(parts, 1).numpy()
    stays = []
    for query in range(len(queries)):
        best, below, _ = problem.competitors(-1, query)
        if len(below) >= RANK:
            stays.append(bool((scores[query, below] >= scores[query, best]).sum() < RANK))
    mean, low, high = proportion(stays)
    equal = [f"{reached_by(thresholds, 1 - x):,.0f}" if 0 < x < 1 else "–" for x in (mean, low, high)]
    line = (
        f"{settings.model} keeps it for {mean:.0%} of the queries [{low:.0%}, {high:.0%}]. An untrained map "
        f"keeps it as often with {equal[0]} dimensions [{equal[1]}, {equal[2]}]; the model's vectors have "
        f"{model.encoder.dim}."
    )
    if not (model.encoder.settings.normalize and documents.vectors.shape[2] == encoded.vectors.shape[2] == 1):
        return line
    ks = np.unique(np.geomspace(2, MOST, POINTS).astype(int))
    of_queries = encoded.vectors[:, 0, 0].float().cpu().numpy()
    lost = cosine_lost(torch.cat(vectors).numpy(), of_queries, ks, RANK)
    return (
        f"{line} An untrained map of these to {shown(least_dimension(ks, lost, BETA), MOST)} dimensions, "
        f"renormalised, keeps the model's own best document in the first {RANK} for {1 - BETA:.0%} of the "
        "queries."
    )
