"""Search with the systems of document_encoding.py, and measure what they find."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
from papers.wu2024 import trained_pairs
from studies.gains import DEV
from studies.model_runs import StudyData, values_of
from studies.pages import Measured

from paradigms import Generative
from paradigms.data import Run
from paradigms.generative.ngrams import NGramIndex
from paradigms.generative.retriever import GenerativeRetriever
from paradigms.generative.seal import query_states, seal_scores
from paradigms.retrieve import retriever_of
from paradigms.train.fit import dev_queries

CONTROL = "SEAL without a model"
SEAL_BEAMS = 5
SEARCHED = 100  # maximum number of queries for greedy search and for scoring all documents
MEASURES = ("R@1", "R@10", "RR@10", "nDCG@10")


def measure_system(
    names: Mapping[str, str],
    settings: Any,
    system: str,
    _: int,
    data: StudyData,
    models: list[Any],
) -> Measured:
    """Return each search's value for every measure and test query; without a model, BM25 is measured.

    names: system -> name of its model. settings: those of document_encoding.py. With a trained SEAL, `models`
    also contains its untrained model. Each searches the dev queries, because SEAL does not rank by the score
    that training maximises (by which `fit_pairs` chooses the kept state).
    """
    queries = data.test.queries
    corpus = data.collection.corpus
    size = 0
    if not models:
        runs = {"retrieve": data.bm25.search(queries, 10)}
        size = data.bm25.size_in_bytes()
    elif system == CONTROL:
        runs = {"retrieve": query_keys(models[0], queries)}
    elif isinstance(models[0], Generative):
        runs = generative_runs(models[0], data, settings)
        size = GenerativeRetriever(models[0]).size_in_bytes()
    else:
        retriever = retriever_of(models[0], corpus)
        runs = {"retrieve": retriever.search(queries, 10)}
        size = retriever.size_in_bytes()
    recalls: Measured = {
        stage: values_of(run, data.test if stage == "retrieve" else data.test.only(run), MEASURES)
        for stage, run in runs.items()
    }
    measured = recalls | {"queries": data.measured, "bytes": size}
    if len(models) < 2:
        return measured
    dev = {}
    drawn = dev_queries(data.dev, trained_pairs.DEV_QUERIES)
    sides = zip(("trained", "untrained"), models, strict=True)
    for side, model in sides if drawn else ():
        model.settings = replace(model.settings, beams=SEAL_BEAMS)
        run = GenerativeRetriever(model).search(drawn, 10)
        dev[side] = values_of(run, data.dev.only(drawn), ["nDCG@10"])["nDCG@10"]
    return measured | {"training": {names[system]: {DEV: dev, "searched": True}}}


def generative_runs(model: Generative, data: StudyData, settings: Any) -> dict[str, Run]:
    """Run the beam search and, for identifiers in a trie, also greedy search and scoring of all documents.

    Models with cluster names run only the beam search, because a search takes the best of several spellings
    of a name.
    """
    queries = data.test.queries
    words = model.identifiers.end is None

    def search(beams: int) -> Run:
        model.settings = replace(model.settings, beams=beams)
        return GenerativeRetriever(model).search(queries, 10)

    runs = {"retrieve": search(SEAL_BEAMS if words else settings.beams)}
    if not words and model.clusters is None:
        first = data.measured[:SEARCHED]
        pool = {q: dict.fromkeys(data.collection.corpus.ids, 0.0) for q in first}
        best = GenerativeRetriever(model).rerank(queries, pool)
        runs["exhaustive"] = {q: dict(islice(scores.items(), 10)) for q, scores in best.items()}
        greedy = search(1)
        runs["greedy"] = {q: greedy[q] for q in first}
    return runs


def query_keys(model: Generative, queries: Mapping[str, str]) -> Run:
    """Rank all documents that share an n-gram with the query by SEAL's score, with p = ½ for each n-gram."""
    ids = model.identifiers
    index = NGramIndex.build(ids.tokens, ids.offsets)
    run: Run = {}
    for query, text in queries.items():
        states = query_states(model.tokenizer, index, text)
        scores = seal_scores(index, states, np.full(len(states), np.log(0.5)))
        run[query] = {ids.documents[n]: score for n, score in scores.items()}
    return run
