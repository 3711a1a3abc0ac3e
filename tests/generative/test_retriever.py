"""The generative retriever against scoring every document with the model."""

import math
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch

from paradigms import GENERATIVE
from paradigms.align import AllPairs, one
from paradigms.core import Tokens, rel
from paradigms.data import Corpus
from paradigms.generative import model as model_module
from paradigms.generative import retriever as module
from paradigms.generative.decoder import decode
from paradigms.generative.identifiers import END, START, Identifiers, Targets, atomic
from paradigms.generative.interaction import decompose
from paradigms.generative.model import Generative
from paradigms.generative.np_decoding import Clusters
from paradigms.generative.outputs import ScoreName
from paradigms.generative.retriever import GenerativeRetriever
from tests.generative.test_beam import slow_search
from tests.generative.test_seal import occurrences, slow_seal
from tests.near import assert_same, assert_same_run
from tests.tiny_generative import Sequences, generative, log_p, named, texts

QUERIES = {"q1": "the lazy dog", "q2": "a king lived near that river, so they say", "q0": "", "q3": "corn"}
NAMES = [[5, 6], [7], [5, 6], [5, 6, 8, 9], [300], [7, 7]]  # d0 and d2 have one name


def ranked(scores: dict[str, float]) -> dict[str, float]:
    return dict(sorted(scores.items(), key=lambda item: (-item[1], item[0])))


@pytest.mark.parametrize(
    ("score", "settings"),
    [
        ("log_probability", {}),
        ("log_probability", {"tokens": "own", "softmax": "place"}),
        ("logit", {"tokens": "own"}),
        ("centred_logit", {"pawa_rank": 4, "softmax": "place"}),
        ("query_part", {"softmax": "place"}),
        ("pointwise_mutual_information", {"pawa_rank": 4}),
    ],
)
def test_with_beams_for_all_names_search_ranks_all_documents_by_the_models_score(
    seq2seq, monkeypatch, score, settings
):
    model = generative(seq2seq["t5"], named(NAMES), beams=10, score=score, **settings)
    queries = {q: text for q, text in QUERIES.items() if text}  # the empty query's mutual information is 0
    expected = {}
    for query, text in queries.items():
        scores = {f"d{n}": log_p(model, text, [*name, END], score) for n, name in enumerate(NAMES)}
        expected[query] = ranked(scores)
    for hypotheses in (1, 25):  # queries alone, in twos
        monkeypatch.setattr(module, "HYPOTHESES", {"cpu": hypotheses})
        assert_same_run(GenerativeRetriever(model).search(queries, progress=hypotheses == 1), expected)
    first = {query: dict(list(scores.items())[:3]) for query, scores in expected.items()}
    assert_same_run(GenerativeRetriever(model).search(queries, 3), first)
    assert_same_run(GenerativeRetriever(model).rerank(queries, expected), expected)


def test_atomic_identifiers_are_single_vector_dense_retrieval(seq2seq):
    """log p(d | q) and DPR's rel of the first state and d's output vector differ by a number of the query,
    where the softmax is over the tokens of a place: the end token is then certain."""
    identifiers = atomic([f"d{n}" for n in range(6)])
    model = generative(seq2seq["t5"], identifiers, tokens="own", softmax="place", beams=10)
    sources = model.tokenize(list(QUERIES.values()))
    first = torch.tensor([[[n]] for n in identifiers.tokens])
    with torch.inference_mode():
        _, memory = model.begin(sources)
        start = torch.full((len(QUERIES), 1, 1), START)
        outputs = model.outputs(decode(model.backbone.decoder, model.embed(start), memory), start)
        queries, documents = outputs.states, outputs.vectors(first)
    D, Q = (Tokens(v, torch.ones(v.shape[:-1], dtype=torch.bool)) for v in (documents[:, 0][None], queries))
    dense = rel(D, Q, AllPairs(), one)
    run = GenerativeRetriever(model).search(QUERIES)
    for query, row in zip(QUERIES, dense.tolist(), strict=True):
        expected = ranked({f"d{n}": value for n, value in enumerate(row)})
        assert list(run[query]) == list(expected)
        differences = [expected[d] - run[query][d] for d in expected]
        assert_same(differences, [differences[0]] * 6, max(map(abs, expected.values())))


def clustered(folder: Path, identifiers: Identifiers, **settings) -> Generative:
    """Give every surface token two clusters, and assign the identifiers' tokens to them in turn."""
    surface = np.unique(identifiers.tokens)
    group = np.searchsorted(surface, identifiers.tokens)
    labels = 2 + 2 * group + np.arange(len(group)) % 2
    vectors = torch.randn(2 + 2 * len(surface), 32, generator=torch.Generator().manual_seed(1))
    clusters = Clusters(vectors, np.concatenate([[0, 1], np.repeat(surface, 2)]), labels)
    return generative(folder, identifiers, clusters, tokens="clusters", **settings)


def ways(model: Generative, tokens: Iterable[int]) -> Sequences:
    """Every sequence of clusters that spells these tokens."""
    groups = (np.flatnonzero(model.clusters.surface == token).tolist() for token in tokens)
    return [list(way) for way in product(*groups)]


def test_a_decoder_of_clusters_finds_a_name_by_the_best_of_its_sequences(seq2seq):
    model = clustered(seq2seq["t5"], named(NAMES), beams=100)
    run = GenerativeRetriever(model).search(QUERIES)
    for query, text in QUERIES.items():
        for n, name in enumerate(NAMES):
            best = max(log_p(model, text, [*way, END]) for way in ways(model, name))
            assert_same(run[query][f"d{n}"], best)


def corpus(model: Generative) -> Sequences:
    """Documents with the words of the queries; one is empty."""
    ids = [model.tokenizer(text, add_special_tokens=False)["input_ids"] for text in QUERIES.values()]
    return [ids[0] + [9, 300], [], ids[1][:5], [300, 9] + ids[0][:2] + ids[3], [9, 9, 300] * 2]


def test_search_by_ngrams_is_the_slow_search_and_the_slow_score(seq2seq):
    rows = [*corpus(generative(seq2seq["t5"], texts([[5]]))), [300] * 4000]  # others are rare beside these
    model = generative(seq2seq["t5"], texts(rows), beams=3, span=4)
    expected = {}
    without = []
    for query, text in QUERIES.items():
        grams = dict(slow_search(model, text, beams=3, length=4, keep=True))
        without.append(slow_seal(rows, grams, 1500))
        words = text.replace(",", "").split()
        phrases = {" ".join(words[i : i + m]) for m in (1, 2, 3) for i in range(len(words) - m + 1)}
        of_query = {tuple(model.tokenizer(p, add_special_tokens=False)["input_ids"]) for p in phrases}
        in_corpus = {gram for gram in of_query if any(occurrences(row, gram) for row in rows)}
        grams |= {gram: log_p(model, text, list(gram)) for gram in in_corpus}
        with torch.inference_mode():
            one_each = Targets.pad([[[token] for token in range(301)]])
            first = model(model.tokenize([text]), one_each, "log_probability")[0, :, 0].tolist()
        expected[query] = ranked({f"d{n}": score for n, score in slow_seal(rows, grams, 1500, first).items()})
    assert all(without)
    assert without != [{int(d[1:]): s for d, s in of.items()} for of in expected.values()]
    retriever = GenerativeRetriever(model)
    assert_same_run(retriever.search(QUERIES), expected)
    assert all("d1" not in scores for scores in expected.values()), "the empty document has no n-gram"
    assert_same_run(retriever.search(QUERIES, 1), {q: dict([*s.items()][:1]) for q, s in expected.items()})


POOL = {"q3": {"d4": 0.0, "d0": 1.0}, "q1": dict.fromkeys([f"d{n}" for n in range(6)], 0.0), "q0": {}}


@pytest.mark.parametrize("tokens", [1, 7, 1000])
def test_rerank_gives_the_pool_rel_under_the_models_scorer(seq2seq, monkeypatch, tokens):
    monkeypatch.setitem(model_module.TOKENS, "cpu", tokens)  # padded tokens at once
    scorers = get_args(ScoreName)
    model = generative(seq2seq["t5-v1.1"], named(NAMES), score="logit")
    runs = GenerativeRetriever(model).rankings(QUERIES, POOL, scorers)
    for run, scorer in zip(runs, scorers, strict=True):
        expected = {
            q: ranked({d: log_p(model, QUERIES[q], [*NAMES[int(d[1:])], END], scorer) for d in pool})
            for q, pool in POOL.items()
        }
        assert_same_run(run, expected)
    assert GenerativeRetriever(model).rerank(QUERIES, POOL) == runs[scorers.index("logit")]


def test_a_document_has_the_rel_of_its_best_name(seq2seq):
    rows = [[5, 6, 7, 8, 9], [5], []]
    model = generative(seq2seq["t5"], texts(rows), span=2)
    run = GenerativeRetriever(model).rerank({"q": "corn"}, {"q": {"d0": 0.0, "d1": 0.0, "d2": 0.0}})
    for n in (0, 1):
        best = max(log_p(model, "corn", name) for name in model.names(n))
        assert_same(run["q"][f"d{n}"], best)
    assert run["q"]["d2"] == -math.inf, "no name is the worst name"
    pool = {"q": {"d0": 0.0, "d2": 0.0}}
    (entire,) = GenerativeRetriever(model).rankings({"q": "corn"}, pool, ["logit"], windows=False)
    assert_same(entire["q"], {"d0": log_p(model, "corn", rows[0], "logit"), "d2": -math.inf})


@pytest.mark.parametrize(
    ("family", "score"),
    [("t5", "log_probability"), ("t5-v1.1", "logit"), ("mt5", "centred_logit"), ("bart", "logit")],
)
def test_a_token_has_the_mean_attention_and_the_summed_products_of_all_layers_and_heads(bases, family, score):
    """`explain` shows them, and with the rest they add up to rel."""
    model = generative(bases[family], named(NAMES), score=score)
    for n, name in enumerate(NAMES):
        (shown,) = GenerativeRetriever(model).explain(QUERIES["q2"], f"d{n}")
        S, A = np.zeros((2, len(shown.document_tokens), len(shown.query_tokens)))
        for i, j, s, a in shown.links:
            S[i, j] = s
            A[i, j] = a
        targets = model.targets([[[*name, END]]])
        interaction = decompose(model, model.tokenize([QUERIES["q2"]]), targets, score)[-1]
        shape = (4, len(name) + 1, -1)  # 2 layers of 2 heads
        attention = interaction.alignment[0, 0].reshape(shape)
        products = interaction.similarity[0, 0].reshape(shape) * attention
        assert_same(A, attention.mean(0))
        assert_same(S * A, products.sum(0))
        assert_same(A.sum(1), np.ones(len(A)))  # each token of the name attends to the whole query
        assert_same((S * A).sum() / shown.Z + shown.rest, shown.rel, np.abs(S * A).sum() + abs(shown.rest))
        assert_same(shown.rel, log_p(model, QUERIES["q2"], [*name, END], score), scale=1)


@pytest.mark.parametrize("kind", ["genre", "seal"])
def test_documents_are_added_without_training(kind, seq2seq):
    """Search and rerank as a model of all documents with the same weights."""
    corpus = Corpus(
        [f"d{n}" for n in range(4)], ["the cat", "a dog", "the red fox", "corn"], ["cat", "", "fox", "cat"]
    )
    old, new = corpus.only(["d0", "d1"]), corpus.only(["d2", "d3"])
    build = GENERATIVE[kind]
    torch.manual_seed(0)
    built = build(seq2seq["t5"], corpus).double().eval()
    small = build(seq2seq["t5"], old).double().eval()
    added = small.add(new)
    added.check_corpus(corpus.ids)
    assert added.identifiers.digest == built.identifiers.digest
    assert small.identifiers.documents == old.ids
    assert_same_run(GenerativeRetriever(added).search(QUERIES), GenerativeRetriever(built).search(QUERIES))
    with pytest.raises(ValueError, match="document ids must differ"):
        added.add(new)
    with pytest.raises(ValueError, match="atomic identifiers"):
        generative(seq2seq["t5"], atomic(["d0"]), tokens="own").add(new)
    with pytest.raises(ValueError, match="clusters of tokens"):
        clustered(seq2seq["t5"], named(NAMES)).add(new)
