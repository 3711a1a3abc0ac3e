"""`python -m paradigms dimensions`: how many dimensions keep BM25's best document in the top ten?

This file and oracle.py are the only ones in `paradigms` that import `theory`; each is imported only when its
command runs. experiments/random_projections.py writes a longer report.
"""

import argparse
import re

import numpy as np

from paradigms.baselines.lexical_vectors import PLACEMENTS, Counts, count_terms, weigh
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
    length_groups,
    projected_dimension,
    reached_by,
    truncated,
)

RANK, BETA = 10, 0.05  # goal: for a share 1 − BETA of queries, the best document stays in the first RANK
QUERIES, SAMPLES, BINS = 100, 64, 4  # drawn queries, drawn Gaussian vectors, groups of document length
FEW = 50  # below this number of queries, the interval is too narrow
MOST = 512  # maximum number of dimensions tried for the truncated SVD
BATCH = 64  # texts encoded at once
SENTENCE = re.compile(r"(?s)\S.*?(?=[.!?。！？](?:\s|$)|$)")


def run_dimensions(settings: argparse.Namespace) -> None:
    """Print how many dimensions linear maps need to keep BM25's best document, by length and idf placement.

    The idf may be part of the query, of the documents or of both. If a model is given, it is compared with
    these maps.
    """
    corpus = corpus_of(settings.source, words_of(settings.source, settings.words))
    queries = read_queries(settings, settings.source)
    real = bool(queries)
    queries = queries or title_queries(corpus, is_text(settings.source))
    counts = count_terms(corpus, queries, QUERIES, seed=0)
    lines, problem, thresholds = answer(counts, real, settings.source)
    for line in lines:
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


def answer(counts: Counts, real: bool, source: str) -> tuple[list[str], Problem, Array]:
    """Return (report lines on linear maps, the problem, `exact_thresholds` [m, samples] for all documents).

    real: whether the user gave the queries; otherwise, they come from `title_queries`. Raises ValueError if
    no query has `RANK` documents that BM25 ranks below the best one.
    """
    lengths = np.array([len(text.split()) for text in counts.corpus])
    groups = length_groups(lengths, BINS if len(lengths) >= BINS * 10 * RANK else 1)
    problem = Problem.of(*weigh(counts), groups)
    (thresholds,) = exact_thresholds(problem, [RANK], SAMPLES, seed=0)
    if not real:  # a title asks for one document, which is in one group of lengths
        titled = np.array([counts.corpus.position(id) for id in counts.query_ids])
        for group, values in zip(groups, thresholds, strict=True):
            values[~np.isin(titled, group)] = np.nan
    known = int((~np.isnan(thresholds[-1, :, 0])).sum())
    if not known:
        raise ValueError(f"{source}: no query has {RANK} documents that BM25 ranks below the best")
    ks = [projected_dimension(values, BETA) for values in thresholds]
    svd = least_dimension(*truncated(problem, RANK, MOST), BETA)
    others = {}
    for place in PLACEMENTS:
        if place != "query":
            moved = Problem.of(*weigh(counts, "bm25", place))
            others[place] = projected_dimension(exact_thresholds(moved, [RANK], SAMPLES, seed=0)[0, 0])
    lines = [
        f"To keep BM25's best document in the first {RANK} for {1 - BETA:.0%} of the queries, an untrained "
        f"linear map needs {shown(ks[-1])} dimensions, and a truncated SVD, the map one would take, "
        f"{shown(svd, MOST)} ({known} queries, {len(lengths):,} documents; [95% intervals over queries])."
    ]
    if known < FEW:
        lines.append(
            f"With fewer than {FEW} queries, such an interval contains the number for all queries less often "
            "than 95%, and that number is mostly higher."
        )
    if copies := len(counts.corpus) - len(set(counts.corpus)):
        have = "documents have" if copies > 1 else "document has"
        lines.append(
            f"{copies:,} {have} the text of another: a copy of the best ties with it and is not counted."
        )
    if not real:
        lines.append(
            "The queries are titles or first sentences of documents. Real ones (--queries or --split) mostly "
            "share fewer words with their documents and need more dimensions."
        )
    cells = [(rows, k) for rows, k in zip(groups, ks[:-1], strict=False) if not np.isnan(k.k)]
    if len(ks) > 2 and cells:
        by_length = [f"{lengths[rows].mean():.0f} words" for rows, _ in cells]
        shares = "; ".join(f"{name} {shown(k)}" for name, (_, k) in zip(by_length, cells, strict=True))
        lines.append(f"Among the documents of each quarter by length: {shares}.")
        if len(set(by_length)) < len(by_length):
            lines.append("Quarters of the same length differ only by chance.")
    moved_to = "; ".join(f"in {place} {shown(k)}" for place, k in others.items())
    lines.append(f"These are for the idf in the query. With the same scores, but the idf {moved_to}.")
    return lines, problem, thresholds[-1]


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
    from paradigms.registry import as_paradigm

    model = as_paradigm(Checkpoint.of(settings).open(pickled=settings.pickled), settings.model)
    if model.recipe.reads_pool:
        raise ValueError(f"{settings.model} scores a document by the whole pool, not by the pair alone")
    encoded, parts, vectors = model.encode_queries(queries), [], []
    with progress_bar() as bar:
        for start in bar.track(range(0, len(corpus), BATCH), description="encode"):
            end = min(start + BATCH, len(corpus))
            documents = model.encode_documents([corpus[i] for i in range(start, end)])
            parts.append(model.score(documents, encoded).float().cpu())
            vectors.append(documents.vectors[0, :, 0].float().cpu())
    scores = torch.cat(parts, 1).numpy()
    kept = []
    for query in range(len(queries)):
        best, below, _ = problem.competitors(-1, query)
        if len(below) >= RANK:
            kept.append(bool((scores[query, below] >= scores[query, best]).sum() < RANK))
    mean, low, high = proportion(kept)
    equal = [reached_by(thresholds, 1 - x) if 0 < x < 1 else None for x in (mean, low, high)]
    k, least, most = ("–" if k is None else f"{k:,.0f}" for k in equal)
    line = (
        f"{settings.model} keeps it for {mean:.0%} of the queries [{low:.0%}, {high:.0%}]. An untrained map "
        f"keeps it as often with {k} dimensions [{least}, {most}]; the model's vectors have "
        f"{model.encoder.dim}."
    )
    if not (model.encoder.settings.normalize and documents.vectors.shape[2] == encoded.vectors.shape[2] == 1):
        return line
    ks = np.unique(np.geomspace(2, MOST, POINTS).astype(int))
    of_cosine = cosine_lost(
        torch.cat(vectors).numpy(), encoded.vectors[:, 0, 0].float().cpu().numpy(), ks, RANK
    )
    least_k = shown(least_dimension(ks, of_cosine, BETA), MOST)
    return (
        f"{line} An untrained map of these to {least_k} dimensions, renormalised, keeps the model's own best "
        f"document in the first {RANK} for {1 - BETA:.0%} of the queries."
    )
