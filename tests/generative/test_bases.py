"""Generative paradigms over BART, and over encoders that get a decoder: scores, formula, training, files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator

from paradigms import GENERATIVE
from paradigms.data import Corpus
from paradigms.generative.interaction import decompose
from paradigms.generative.model import Generative
from paradigms.generative.pairs import Pair
from paradigms.generative.retriever import GenerativeRetriever
from paradigms.generative.seal import first_step
from paradigms.train import generative as generative_training
from paradigms.train.loop import TrainingSettings
from tests.near import assert_same, assert_within_rounding
from tests.tiny_generative import write_bart

TITLES = ["house", "dark house", "lazy dog", "green apple tree"]
CORPUS = Corpus(
    [f"d{n}" for n in range(4)], ["The cat sleeps.", "It is old.", "A dog ran.", "Rain fell."], TITLES
)
QUERIES = {"q0": "the cat", "q1": "a lazy dog", "q2": "rain"}
BASES = ("bart", "bert", "bert frozen")


@pytest.fixture(scope="module")
def folders(
    seq2seq: dict[str, Path], tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    return {"bart": write_bart(tmp_path_factory.mktemp("bart"), seq2seq["t5"]), "bert": tiny_bert}


def genre(base: str, folders: dict[str, Path], **settings: Any) -> Generative:
    torch.manual_seed(0)
    family, _, frozen = base.partition(" ")
    return GENERATIVE["genre"](folders[family], CORPUS, frozen=bool(frozen), **settings).eval()


@pytest.mark.parametrize("base", BASES)
def test_search_and_rerank_give_the_same_scores_over_every_base(base: str, folders: dict[str, Path]) -> None:
    """The decoder goes step by step in one and all at once in the other."""
    retriever = GenerativeRetriever(genre(base, folders, beams=10).double())
    found = retriever.search(QUERIES, 4)
    reranked = retriever.rerank(QUERIES, {query: dict.fromkeys(CORPUS.ids, 0.0) for query in QUERIES})
    for query in QUERIES:
        assert list(found[query]) == list(reranked[query])
        assert_same(found[query], reranked[query])


def test_a_decoder_over_an_encoder_writes_tokens_of_identifiers_alone(folders: dict[str, Path]) -> None:
    model = genre("bert", folders).double()
    first = first_step(model, model.tokenize([*QUERIES.values()]))
    assert_same(np.exp(first).sum(1), np.ones(3))
    written = {token for n in range(len(TITLES)) for token in model.target(n)}
    assert set(np.flatnonzero(first[0] > -np.inf)) == written


@pytest.mark.parametrize("base", BASES)
def test_rel_is_the_formula_and_what_the_prefix_makes(base: str, folders: dict[str, Path]) -> None:
    """rel of the Interaction is the model's score, and its sum without the rest is sum(DᵀQ ⊙ A)."""
    model = genre(base, folders).double()
    sources, targets = model.tokenize([*QUERIES.values()]), model.targets([[model.target(3)]] * 3)
    rel = model(sources, targets, "logit").sum(-1).detach()
    documents, queries, found = decompose(model, sources, targets, "logit")
    assert_same(found.rel, rel)
    share = torch.einsum("bnih,bxjh,bnij->bn", documents.vectors, queries.vectors, found.alignment)
    assert_same(found.rel - found.rest, share)
    printed = decompose(model, sources, targets, "query_part")[2]
    assert_same(printed.rest, torch.zeros(3, 1), scale=float(printed.rel.abs().max()))
    assert GenerativeRetriever(model).explain(QUERIES["q0"], CORPUS.ids[0])[0].rel < 0
    if base == "bart":
        with pytest.raises(ValueError, match="only 'exact' and 'printed'"):
            decompose(model, sources, targets, "logit", "last")


@pytest.mark.parametrize("base", BASES)
def test_every_base_trains_saves_and_loads(base: str, folders: dict[str, Path], tmp_path: Path) -> None:
    model = genre(base, folders)
    pairs = [Pair(text, n) for n, text in enumerate([*QUERIES.values(), "tree"])]
    sources = model.tokenize([pair.source for pair in pairs])
    targets = model.targets([[model.target(pair.document)] for pair in pairs])
    before = model(sources, targets).sum()
    weights = {name: weight.clone() for name, weight in model.encoder.state_dict().items()}
    settings = TrainingSettings(steps=8, batch_size=4, learning_rate=3e-3, warmup=0.0)
    trained = generative_training.fit_pairs(
        model, CORPUS, pairs, settings, tmp_path / "training", Accelerator(cpu=True)
    ).eval()
    after = trained(sources, targets).sum()
    assert after > before + 1
    changed = {
        name
        for name, weight in trained.encoder.state_dict().items()
        if not torch.equal(weight, weights[name])
    }
    assert bool(changed) != ("frozen" in base)
    trained.save_pretrained(tmp_path / "saved")
    again = Generative.from_pretrained(tmp_path / "saved").eval()
    trained.states = None  # a frozen encoder's in float16
    assert torch.equal(again(sources, targets), trained(sources, targets))


def test_frozen_states_are_kept_once_for_all_models_of_an_encoder(folders, tmp_path):
    first, other = genre("bert frozen", folders), genre("bert frozen", folders, decoder_layers=1)
    texts = [*QUERIES.values()]
    store = first.keep_states(tmp_path)
    store.add(texts, first.tokenize, first.encode)
    store.open()
    found = other.keep_states(tmp_path)
    assert len(found) == len(texts)
    sources = other.tokenize([*texts, "not kept"])
    kept, _ = other.begin(sources)
    expected = first.encode(sources)
    # States that were rounded to float16, once.
    assert_within_rounding(kept[sources.counts], expected[sources.counts], torch.float16, 1)

    with pytest.raises(ValueError, match="trains its encoder"):
        genre("bert", folders).keep_states(tmp_path)


def test_a_decoder_over_an_encoder_writes_clusters_of_its_tokens(folders):
    model = GENERATIVE["seal"](folders["bert"], CORPUS, tokens="clusters", clusters=1, span=2)
    tokens = model.identifiers.tokens
    assert len(model.clusters.vectors) == len(set(tokens.tolist())) + 2
    sizes = model.clusters.vectors[1:].double().square()
    assert_within_rounding(sizes.mean().sqrt(), 1.0, torch.float32, sizes.numel())
    with pytest.raises(ValueError, match="vectors stay in their clusters"):
        GENERATIVE["seal"](folders["bert"], CORPUS, tokens="clusters", refresh=5, frozen=True)
    with pytest.raises(
        ValueError, match="NP-decoding needs T5's numbering"
    ):  # this BERT has no [unused0] at 1
        GENERATIVE["genre"](folders["bert"], CORPUS, tokens="clusters")
