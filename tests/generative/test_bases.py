"""Generative paradigms over BART, and over encoders that get a decoder: search, training, frozen states."""

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from paradigms import GENERATIVE
from paradigms.data import Corpus
from paradigms.generative.model import Generative
from paradigms.generative.pairs import Pair
from paradigms.generative.retriever import GenerativeRetriever
from paradigms.train.generative import fit_pairs
from paradigms.train.loop import TrainingSettings
from tests.near import assert_same_run, assert_within_rounding

TITLES = ["house", "dark house", "lazy dog", "green apple tree"]
CORPUS = Corpus(
    [f"d{n}" for n in range(4)], ["The cat sleeps.", "It is old.", "A dog ran.", "Rain fell."], TITLES
)
QUERIES = {"q0": "the cat", "q1": "a lazy dog", "q2": "rain"}
BASES = ("bart", "bert", "bert frozen")


def genre(base: str, bases: dict[str, Path], **settings: Any) -> Generative:
    torch.manual_seed(0)
    family, _, frozen = base.partition(" ")
    return GENERATIVE["genre"](bases[family], CORPUS, frozen=bool(frozen), **settings).eval()


@pytest.mark.parametrize("base", BASES)
def test_search_and_rerank_give_the_same_scores_over_every_base(base: str, bases: dict[str, Path]) -> None:
    """The decoder goes step by step in one and all at once in the other."""
    retriever = GenerativeRetriever(genre(base, bases, beams=10).double())
    pool = {query: dict.fromkeys(CORPUS.ids, 0.0) for query in QUERIES}
    assert_same_run(retriever.search(QUERIES, 4), retriever.rerank(QUERIES, pool))


@pytest.mark.parametrize("base", BASES)
def test_every_base_trains_saves_and_loads(base: str, bases: dict[str, Path], tmp_path: Path) -> None:
    model = genre(base, bases)
    pairs = [Pair(text, n) for n, text in enumerate([*QUERIES.values(), "tree"])]
    sources = model.tokenize([pair.source for pair in pairs])
    targets = model.targets([[model.target(pair.document)] for pair in pairs])
    before = model(sources, targets).sum()
    weights = {name: weight.clone() for name, weight in model.encoder.state_dict().items()}
    settings = TrainingSettings(steps=8, batch_size=4, learning_rate=3e-3, warmup=0.0)
    trained = fit_pairs(model, CORPUS, pairs, settings, tmp_path / "training", Accelerator(cpu=True)).eval()
    assert trained(sources, targets).sum() > before + 1
    same = [torch.equal(weight, weights[name]) for name, weight in trained.encoder.state_dict().items()]
    assert all(same) == ("frozen" in base)
    trained.save_pretrained(tmp_path / "saved")
    loaded = Generative.from_pretrained(tmp_path / "saved").eval()
    trained.states = None  # a frozen encoder's in float16
    assert torch.equal(loaded(sources, targets), trained(sources, targets))


def test_frozen_states_are_kept_once_for_all_models_of_an_encoder(bases, tmp_path):
    first, other = genre("bert frozen", bases), genre("bert frozen", bases, decoder_layers=1)
    texts = [*QUERIES.values()]
    store = first.keep_states(tmp_path)
    store.add(texts, first.tokenize, first.encode)
    store.open()
    assert len(other.keep_states(tmp_path)) == len(texts)
    sources = other.tokenize([*texts, "not stored"])
    states, _ = other.begin(sources)
    expected = first.encode(sources)
    # States that were rounded to float16, once.
    assert_within_rounding(states[sources.counts], expected[sources.counts], torch.float16, 1)

    with pytest.raises(ValueError, match="trains its encoder"):
        genre("bert", bases).keep_states(tmp_path)


def test_a_decoder_over_an_encoder_writes_clusters_of_its_tokens(bases):
    model = GENERATIVE["seal"](bases["bert"], CORPUS, tokens="clusters", clusters=1, span=2)
    tokens = model.identifiers.tokens
    assert len(model.clusters.vectors) == len(set(tokens.tolist())) + 2
    sizes = model.clusters.vectors[1:].double().square()
    assert_within_rounding(sizes.mean().sqrt(), 1.0, torch.float32, sizes.numel())
