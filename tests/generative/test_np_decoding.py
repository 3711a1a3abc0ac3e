"""NP-decoding: token vectors in context, their clusters, and a decoder that reads and writes these."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoTokenizer

from paradigms.data import Corpus, Problems
from paradigms.generative import grouped_kmeans as kmeans
from paradigms.generative.grouped_kmeans import grouped_kmeans
from paradigms.generative.identifiers import END, Identifiers, text, titles, tokenize
from paradigms.generative.model import Generative
from paradigms.generative.pairs import document_span_pairs
from paradigms.generative.settings import GenerativeSettings
from paradigms.train.generative import Likelihood
from tests.near import assert_within_rounding
from tests.tiny import TERMS

TITLES = ["the old house", "the house", "old wood", "the cat", "a cat in the old house", "the the the"]
PLACES = ["house", "wall", "wood", "street", "road", "school"]
LENGTH = 8  # of what the encoder reads: less than most texts have
K = 2


@pytest.fixture(scope="module")
def folder(seq2seq: dict[str, Path]) -> Path:
    return seq2seq["t5-v1.1"]


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    texts = [f"the {place} near a river was cold and the cat was there" for place in PLACES]
    texts[1] = TITLES[1] + " " + texts[1]
    return Corpus([f"d{n}" for n in range(len(TITLES))], texts, TITLES)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture
def model(folder: Path, corpus: Corpus, tokenizer: Any) -> Generative:
    return build(folder, corpus, titles(corpus, tokenizer, 20))


def build(folder: Path, corpus: Corpus, identifiers: Identifiers, **more: Any) -> Generative:
    settings = GenerativeSettings("np", tokens="clusters", clusters=K, document_length=LENGTH, **more)
    return Generative.build(settings, folder, identifiers, corpus).eval()


@pytest.mark.parametrize(
    ("count", "groups", "sample"), [(200, 7, 1000), (200, 7, 10), (1, 1, 10), (11, 1, 10)]
)
def test_a_groups_centroids_are_means_of_its_sample(count, groups, sample, monkeypatch) -> None:
    """And every vector belongs to the nearest one."""
    monkeypatch.setattr(kmeans, "SAMPLE", sample)
    random = np.random.default_rng(0)
    vectors = random.standard_normal((count, 3)).astype(np.float32)
    group = np.sort(random.integers(0, groups, count))
    offsets = np.searchsorted(group, np.arange(groups + 1))
    centroids, labels = grouped_kmeans(vectors, offsets, np.full(groups, 3), None, 0)
    for g in range(groups):
        x = vectors[group == g]
        c = labels[group == g]
        rows = np.linspace(0, len(x) - 1, min(sample, len(x))).astype(int)
        for label in np.unique(c[rows]):
            members = x[rows[c[rows] == label]]
            scale = float(np.abs(members).max())
            mean = members.mean(0, dtype=np.float64)
            assert_within_rounding(centroids[g, label], mean, torch.float32, len(members), scale)
        assert c.tolist() == ((x[:, None] - centroids[g]) ** 2).sum(-1).argmin(1).tolist()


def encode(model: Generative, ids: list[int]) -> Tensor:
    """The slow twin: one window at a time, with </s>, unpadded."""
    with torch.no_grad():
        return model.backbone.encoder(input_ids=torch.tensor([[*ids, END]])).last_hidden_state[0]


def assert_scaled(vector: Tensor, state: Tensor) -> float:
    """Check that a vector of the table is a multiple of a state in float32, and return the factor."""
    factor = float(vector @ state / (state @ state))
    assert_within_rounding(vector, factor * state, torch.float32, TERMS)
    return factor


def contexts(model: Generative, corpus: Corpus) -> Iterator[tuple[list[int], int]]:
    """The encoder's input for each title, and how many of its tokens belong to the title."""
    for title, content in zip(TITLES, corpus, strict=True):
        named, read = (tokenized.ids for tokenized in tokenize(model.tokenizer, [title, content]))
        row = read if content.startswith(title) else named + read
        yield row[: LENGTH - 1], len(named)


def test_a_titles_vectors_are_those_that_it_has_before_its_text(model: Generative, corpus: Corpus) -> None:
    clusters = model.clusters
    vectors = []
    ends = []
    for ids, count in contexts(model, corpus):
        states = encode(model, ids)
        vectors.append(states[:count])
        ends.append(states[-1])
    expected = torch.cat(vectors)
    table = clusters.vectors
    scale = assert_scaled(table[END], torch.stack(ends).mean(0))
    tokens = model.identifiers.tokens
    for token in np.unique(tokens):
        places = np.flatnonzero(tokens == token)
        labels = clusters.labels[places]
        assert len(np.unique(labels)) == min(K, len(places))
        for label in np.unique(labels):
            mean = expected[places[labels == label]].mean(0) * scale
            assert_within_rounding(table[label], mean, torch.float32, TERMS)
    assert len(np.unique(clusters.labels)) < len(tokens)  # some cluster has several


def test_texts_are_read_in_windows(folder: Path, corpus: Corpus, tokenizer: Any) -> None:
    identifiers = text(corpus, tokenizer)
    settings = GenerativeSettings("x", tokens="clusters", clusters=100, document_length=LENGTH)
    model = Generative.build(settings, folder, identifiers, corpus).eval()
    table = model.clusters
    rows = [identifiers[n].tolist() for n in range(len(identifiers))]
    windows = [row[at : at + LENGTH - 1] for row in rows for at in range(0, len(row), LENGTH - 1)]
    assert len(windows) > len(rows)
    states = [encode(model, window) for window in windows]
    expected = torch.cat([part[:-1] for part in states])
    scale = assert_scaled(table.vectors[END], torch.stack([part[-1] for part in states]).mean(0))
    assert_within_rounding(table.vectors[table.labels], expected * scale, torch.float32, TERMS)


def test_targets_and_windows_are_written_with_the_clusters_of_their_document(
    folder, corpus, tokenizer, model
):
    for n, part in enumerate(np.split(model.clusters.labels, model.identifiers.offsets[1:-1])):
        assert model.target(n) == [*part.tolist(), END]
    spans = build(folder, corpus, text(corpus, tokenizer), span=4)
    pairs = document_span_pairs(corpus, tokenizer, Problems(), spans=2, words=2)
    _, targets = Likelihood(spans, corpus, pairs).collate(pairs)
    for pair, ids, mask in zip(pairs, targets.ids[:, 0], targets.mask[:, 0], strict=True):
        of_document = spans.identifiers[pair.document][pair.first : pair.last]
        assert spans.clusters.surface[ids[mask].numpy()].tolist() == of_document.tolist()
    for document in range(len(corpus)):
        window = spans.identifiers.windows(document, 4)[0]
        assert spans.names(document)[0] == spans.clusters.labels[window].tolist()


def test_a_refresh_clusters_the_encoders_new_vectors(model: Generative, corpus: Corpus) -> None:
    clusters = model.clusters
    description = model.description()
    parameter = clusters.vectors
    before = clusters.vectors.clone()
    size = before[END:].square().mean()
    labels = clusters.labels.copy()
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in model.backbone.encoder.parameters():
            weight.add_(2 * weight.std() * torch.randn_like(weight))
    state = torch.get_rng_state()
    model.train().refresh(corpus)
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
    assert clusters.vectors is parameter  # the optimizer and accelerate hold it
    assert (clusters.labels != labels).any()
    np.testing.assert_array_equal(clusters.surface[clusters.labels], model.identifiers.tokens)
    assert_within_rounding(clusters.vectors[END:].square().mean(), size, torch.float32, before.numel())
    assert model.description() == description
    ends = torch.stack([encode(model.eval(), ids)[-1] for ids, _ in contexts(model, corpus)]).mean(0)
    assert_scaled(clusters.vectors[END], ends)
