"""Generative paradigms in the shared loop: what they learn, on one process and two, and by the scripts."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from transformers import AutoModelForSeq2SeqLM

from paradigms import GENERATIVE, Generative, load
from paradigms.data import Corpus, Problems, Split, read_run, write_run
from paradigms.generative.pairs import Pair, retrieval_pairs
from paradigms.generative.retriever import GenerativeRetriever
from paradigms.generative.small import small_t5
from paradigms.train.generative import Likelihood, training_pairs, with_negatives
from paradigms.train.loop import TrainingSettings, train
from paradigms.train.losses import Distillation, LossSettings
from paradigms.train.negatives import ScorePairs
from tests import launch
from tests.experiments.scripts import SMALL, run
from tests.near import assert_same, assert_same_scores
from tests.tiny import WORDS, write_collection
from tests.train.test_loop import Interrupted, interrupted_after

TEXTS = [" ".join(WORDS.split()[(11 * n + 5 * w) % 300] for w in range(6)) for n in range(16)]
CORPUS = Corpus([f"d{n}" for n in range(16)], TEXTS, [" ".join(text.split()[:2]) for text in TEXTS])
SPLIT = Split(
    {f"q{n}": " ".join(TEXTS[n].split()[1:4]) for n in range(8)}, {f"q{n}": {f"d{n}": 1} for n in range(8)}
)
OPTIONS: dict[str, dict] = {
    "dsi": {"identifiers": "atomic"},
    "dsi_pawa": {"pawa_rank": 8, "softmax": "place"},
    "genre": {},
    "genre_np": {"tokens": "clusters", "refresh": 2},
    "seal": {"span": 3},
    "ripor": {"levels": 2, "codes": 4},
}
SETTINGS = TrainingSettings(steps=4, batch_size=4, learning_rate=1e-3, save_every=2, log_every=1)


def build(name: str, folder: Path, encoder: Path) -> Generative:
    torch.manual_seed(0)
    options = {"query_length": 12, "document_length": 16} | OPTIONS[name]
    if name == "dsi_pawa":
        options |= {"embedder": encoder, "branching": 4}
    if name == "ripor":
        options |= {"embedder": encoder}
    return GENERATIVE[name.split("_")[0]](folder, CORPUS, **options)


def objective(model: Generative) -> Likelihood:
    return Likelihood(model, CORPUS, training_pairs(model, CORPUS, SPLIT, Problems(), 0))


def fit(model: Generative, folder: Path, **changes: float) -> Generative:
    settings = replace(SETTINGS, **changes)
    return train(model, objective(model), settings, folder, accelerator=Accelerator(), progress=False)


@pytest.fixture(scope="module")
def t5(seq2seq: dict[str, Path]) -> Path:
    return seq2seq["t5-v1.1"]


def test_the_loss_is_that_of_transformers(t5: Path) -> None:
    """Summed over tokens and averaged over pairs, where theirs is averaged over tokens."""
    model = build("genre", t5, t5).double().eval()
    pairs = retrieval_pairs(SPLIT, model.identifiers)[:4]
    sources, targets = objective(model).collate(pairs)
    labels = targets.ids[:, 0].masked_fill(~targets.mask[:, 0], -100)
    reference = AutoModelForSeq2SeqLM.from_pretrained(t5, dtype=torch.float64).eval()
    expected = reference(**sources.inputs(), labels=labels).loss
    loss = objective(model).loss(model, (sources, targets))
    assert_same(loss * 4 / (labels >= 0).sum(), expected)


@pytest.mark.parametrize("name", ["dsi_pawa", "genre_np"])
def test_a_run_in_two_parts_ends_as_one(name: str, t5: Path, tiny_bert: Path, tmp_path: Path) -> None:
    """Clusters are renewed during the run (refresh = 2)."""
    expected = fit(build(name, t5, tiny_bert), tmp_path / "once").state_dict()
    with pytest.raises(Interrupted):
        fit(interrupted_after(build(name, t5, tiny_bert), 3), tmp_path / "parts")
    weights = fit(build(name, t5, tiny_bert), tmp_path / "parts").state_dict()
    assert (tmp_path / "parts/history.jsonl").read_text() == (tmp_path / "once/history.jsonl").read_text()
    assert [key for key in expected if not torch.equal(expected[key], weights[key])] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dsi", "genre", "seal"])
def test_what_was_learned_is_found(name: str, t5: Path, tiny_bert: Path, tmp_path: Path) -> None:
    model = build(name, t5, tiny_bert)
    trained = fit(model, tmp_path, steps=60, batch_size=16, learning_rate=8e-3, save_every=100).eval()
    run = GenerativeRetriever(trained).search(SPLIT.queries, 3)
    first = [next(iter(run[q]), None) == f"d{q[1:]}" for q in SPLIT.queries]
    assert sum(first) >= 7  # of 8: all, with three seeds


def prefixes_of(model: Generative, source: str, document: int) -> torch.Tensor:
    """rel under the logit of the first 1, 2, … tokens of a document's name."""
    targets = model.targets([[model.names(document)[0]]])
    return model(model.tokenize([source]), targets, "logit")[0, 0].cumsum(0)


def likelihood(model: Generative, pair: Pair) -> float:
    target = [[model.target(pair.document)]]
    ((log_p,),) = model.sequence_scores(model.tokenize([pair.source]), target, "log_probability")
    return float(log_p[0])


@torch.no_grad()
def test_hard_negatives_add_the_softmax_over_a_pairs_documents(t5: Path, tiny_bert: Path) -> None:
    """The pair's own document is no negative of itself."""
    model = build("ripor", t5, tiny_bert).double().eval()
    pairs = with_negatives(retrieval_pairs(SPLIT, model.identifiers)[:3], CORPUS, 2, 0)
    pairs[0] = replace(pairs[0], negatives=(pairs[0].document, pairs[0].negatives[0]))
    expected = []
    for pair in pairs:
        others = [document for document in pair.negatives if document != pair.document]
        rel = torch.stack([prefixes_of(model, pair.source, d)[-1] for d in (pair.document, *others)])
        expected.append(rel.logsumexp(0) - rel[0] - likelihood(model, pair))
    objective = Likelihood(model, CORPUS, pairs)
    assert_same(objective.loss(model, objective.collate(pairs)), torch.stack(expected).mean())


@torch.no_grad()
def test_a_teachers_margins_are_learned_on_every_prefix(t5: Path, tiny_bert: Path) -> None:
    model = build("ripor", t5, tiny_bert).double().eval()
    pairs = retrieval_pairs(SPLIT, model.identifiers)[:3]

    def teacher(queries: dict[str, str]) -> ScorePairs:
        assert queries == {str(n): pair.source for n, pair in enumerate(pairs)}
        return lambda documents: {q: {d: len(q) + float(d[1:]) for d in ids} for q, ids in documents.items()}

    taught = with_negatives(pairs, CORPUS, 2, 0, teacher)
    expected = []
    for pair in taught:
        documents = (pair.document, *pair.negatives)
        assert len(set(documents)) == 3
        assert pair.teacher == tuple(1.0 + d for d in documents)
        student = torch.stack([prefixes_of(model, pair.source, d) for d in documents])
        share = (torch.arange(1, 4).double() / 3).sqrt()  # two codes and the end
        goal = torch.tensor(pair.teacher)[:, None] * share / 2  # a teacher's temperature of 2
        margins = ((student[:1] - student[1:]) - (goal[:1] - goal[1:])).square().mean()
        expected.append(0.25 * margins - 0.75 * likelihood(model, pair))
    distilled = LossSettings(distillation=Distillation("margin_mse", 0.25, 2.0))
    objective = Likelihood(model, CORPUS, taught).configure(distilled)
    assert_same(objective.loss(model, objective.collate(taught)), torch.stack(expected).mean())
    with pytest.raises(ValueError, match="distillation of ripor needs the same number of hard negatives"):
        Likelihood(model, CORPUS, pairs).configure(distilled)
    with pytest.raises(ValueError, match=r"the same number of hard negatives .* has 1 or 2"):
        Likelihood(model, CORPUS, [taught[0], replace(taught[1], negatives=(1,))])


def test_what_cannot_be_trained_is_refused(t5: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="genre has no training pairs"):
        Likelihood(build("genre", t5, t5), CORPUS, [])
    with pytest.raises(ValueError, match="genre names the 16 documents of another corpus, not these 15"):
        build("genre", t5, t5).check_corpus(CORPUS.ids[:15])
    with pytest.raises(ValueError, match="workers=1 would make batches before genre renews its clusters"):
        fit(build("genre_np", t5, t5), tmp_path, workers=1)
    fit(build("genre", t5, t5), tmp_path, workers=1, steps=1)


def test_a_small_t5_is_the_same_for_a_seed_and_loads_as_any(tmp_path: Path) -> None:
    folders = [small_t5(TEXTS, tmp_path / str(n), seed=1) for n in range(2)]
    for file in ("model.safetensors", "tokenizer.json"):
        assert (folders[0] / file).read_bytes() == (folders[1] / file).read_bytes()
    model = GENERATIVE["genre"](folders[0], CORPUS)
    assert not torch.equal(model.backbone.lm_head.weight, model.backbone.shared.weight)
    assert model.tokenizer("sea")["input_ids"][-1] == model.identifiers.end == 1
    with pytest.raises(ValueError, match="all texts are empty"):
        small_t5(["", ""], tmp_path / "t5")
    assert not (tmp_path / "t5").exists()


def common_clusters(accelerator: Accelerator, t5: Path, folder: Path) -> None:
    """The first process's clusters are those of both, though the second began with others."""
    corpus = Corpus(CORPUS.ids, TEXTS, [f"the {title}" for title in CORPUS.titles])
    model = GENERATIVE["genre"](t5, corpus, document_length=16, **OPTIONS["genre_np"])
    clusters, (the, _) = model.clusters, model.tokenizer("the")["input_ids"]
    if accelerator.process_index == 1:
        numbers = np.flatnonzero(clusters.surface == the)
        swapped = np.isin(clusters.labels, numbers)
        clusters.labels[swapped] = numbers[0] + numbers[-1] - clusters.labels[swapped]
        model.refresh = lambda corpus: pytest.fail("the second process clusters, too")  # type: ignore
    before = clusters_of(model, accelerator)
    assert not torch.equal(*before)
    likelihood = Likelihood(model, corpus, retrieval_pairs(SPLIT, model.identifiers))
    for steps in (1, 3):  # without a refresh, and with one
        settings = replace(SETTINGS, steps=steps, batch_size=2)
        train(model, likelihood, settings, folder / f"np{steps}", accelerator=accelerator, progress=False)
        after = clusters_of(model, accelerator)
        assert torch.equal(*after)
        assert torch.equal(after[0], before[0]) == (steps == 1)


def clusters_of(model: Generative, accelerator: Accelerator) -> list[torch.Tensor]:
    """The clusters' vectors and labels on every process."""
    clusters = model.clusters
    state = torch.cat([clusters.vectors.detach().flatten().double(), clusters.get_extra_state()])
    return list(accelerator.gather(state[None]))


@pytest.mark.slow
def test_two_processes_have_the_same_clusters(t5: Path, tmp_path: Path) -> None:
    launch.forked((common_clusters,), t5, tmp_path)
    launch.passed(common_clusters, tmp_path)


@pytest.fixture
def collection(tmp_path: Path) -> Path:
    splits = {"train": range(6), "test": range(6, 8)}
    queries, titles = list(SPLIT.queries.values()), list(CORPUS.titles)
    (tmp_path / "collection").mkdir()
    return write_collection(tmp_path / "collection", TEXTS, queries, splits, titles)


def test_the_scripts_train_it_over_a_small_t5_and_rerank_with_it(collection: Path, tmp_path: Path) -> None:
    (tmp_path / "queries.jsonl").write_text('{"document": "d3", "query": "old sea"}\n')
    flags = {"paradigm": "genre", "collection": collection, "output": tmp_path / "out", "evaluate_every": 1}
    flags |= {"generated": tmp_path / "queries.jsonl", "options.query_length": 8}
    run("train", **SMALL | flags)
    assert (tmp_path / "out" / "small-t5" / "model.safetensors").is_file()
    model = load(tmp_path / "out" / "checkpoint")
    assert isinstance(model, Generative)
    assert model.name == "genre"
    write_run(tmp_path / "first.run", {"q6": {"d6": 2.0, "d1": 1.0}, "q7": {"d2": 1.0}}, tag="first")
    run(
        "rerank",
        checkpoint=tmp_path / "out" / "checkpoint",
        run=tmp_path / "first.run",
        collection=collection,
        output=tmp_path / "reranked",
    )
    reranked = read_run(tmp_path / "reranked" / "reranked.run")
    expected = GenerativeRetriever(model).rerank({"q6": SPLIT.queries["q6"]}, {"q6": {"d6": 2.0, "d1": 1.0}})
    assert_same_scores([reranked["q6"]], [expected["q6"]])
