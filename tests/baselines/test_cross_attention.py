"""Cross-attention: pairs as transformers joins them, reranking whatever the batches, its loss, its files."""

import math
import pickle
from functools import cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModel, AutoModelForTextEncoding, AutoTokenizer, BertForSequenceClassification

from paradigms import CrossAttention, load
from paradigms.baselines.cross_attention import HEAD, cross_attention
from paradigms.data import Corpus, Run
from paradigms.retrieve import Reranking
from paradigms.train.contrastive import Listwise
from paradigms.train.examples import Example
from paradigms.train.losses import LossSettings
from tests.near import assert_same, assert_within_rounding
from tests.tiny import FAMILIES, write_headed, write_roberta

module = import_module("paradigms.baselines.cross_attention")  # a name that its builder has, too

QUERIES = {"q0": "where is the quick fox", "q1": "stone", "q2": "a boat on the river in the morning light"}
TEXTS = [
    "a quick fox ran in the garden; the dog was old",
    "stone",
    "the boat carried wheat and fish over the river to the market of the old town by the sea",
    "",
    "snow fell",
    "the stone story of a zebra, of water and of stone",
]
CORPUS = Corpus([f"d{n}" for n in range(len(TEXTS))], TEXTS)
RUN: Run = {"q1": {"d5": 1.0, "d1": 3.0, "d3": 2.0}, "q0": {"d0": 1.0, "d2": 1.0}, "q2": {}}


def build(backbone: Path, **settings) -> CrossAttention:
    torch.manual_seed(0)
    return cross_attention(backbone, **settings).eval()


@cache
def backbone_of(folder: Path) -> tuple[Any, Any]:
    """Tokenizer and model, straight from transformers."""
    loader = AutoModelForTextEncoding if folder.name.endswith("t5") else AutoModel
    return AutoTokenizer.from_pretrained(folder), loader.from_pretrained(folder, dtype=torch.float64).eval()


def by_hand(model: CrossAttention, folder: Path, query: str, document: str, pooling: str = "cls") -> float:
    """Encode the pair with transformers, pool the state with its own model, and multiply by wᵀ."""
    tokenizer, backbone = backbone_of(folder)
    inputs = tokenizer([query], [document], return_tensors="pt", return_token_type_ids=True)
    if folder.name != "bert":
        del inputs["token_type_ids"]
    with torch.no_grad():
        hidden = backbone(**inputs).last_hidden_state[0]
        pooled = {"cls": hidden[0], "mean": hidden.mean(0), "last": hidden[-1]}[pooling]
        return float(pooled @ model.head.weight[0])


def score(model: CrossAttention, queries: list[str], documents: list[str]) -> Tensor:
    with torch.no_grad():
        return model(model.tokenize(queries, documents))


def tokens(model: CrossAttention, query: str, document: str) -> list[str]:
    batch = model.tokenize([query], [document])
    return model.encoder.tokenizer.convert_ids_to_tokens(batch.input_ids[0].tolist())


@pytest.mark.parametrize("pooling", ["cls", "mean", "last"])
@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_the_head_on_the_joint_encoding_whatever_the_padding(checkpoints, family, pooling):
    model = build(checkpoints[family], pooling=pooling).double()
    pairs = [(query, text) for query in QUERIES.values() for text in TEXTS]
    results = score(model, [q for q, _ in pairs], [d for _, d in pairs])
    expected = [by_hand(model, checkpoints[family], *pair, pooling) for pair in pairs]
    assert_same(results, expected)
    assert results.std() > 0.05  # the two texts matter


def test_each_text_is_cut_for_itself_and_as_the_other_paradigms_cut_it(tiny_bert):
    long = "the quick brown fox and the lazy dog"
    model = build(tiny_bert, query_length=5, document_length=6)
    quick = ["[CLS]", "the", "quick", "brown", "[SEP]", "the", "quick", "brown", "fox", "[SEP]"]
    assert tokens(model, long, long) == quick
    assert tokens(model, "fox", long) == ["[CLS]", "fox", *quick[4:]]
    assert tokens(model, long, "fox") == [*quick[:5], "fox", "[SEP]"]
    assert tokens(model, "", "") == ["[CLS]", "[SEP]", "[SEP]"]
    assert tokens(model, long, long) == quick  # another call leaves no truncation behind


def test_lengths_beyond_the_positions_are_refused(tiny_bert):
    build(tiny_bert, query_length=33, document_length=480)  # 31 + 478 + 3 = 512
    with pytest.raises(ValueError, match=r"query_length=34 and .* pairs of 513 tokens, beyond the 512"):
        build(tiny_bert, query_length=34, document_length=480)


@pytest.mark.parametrize("family", ["bert", "XLMRoberta", "Xmod"])
def test_a_published_reranker_tells_scores_apart_in_16_bits(tmp_path, family):
    """Its logits are around 8, where bfloat16 has steps of 1/16; texts are cut at its positions."""
    if family == "bert":
        write_headed(BertForSequenceClassification, tmp_path, num_labels=1)
    else:
        write_roberta(tmp_path, "bytes", family, "ForSequenceClassification")
    model = load(tmp_path)
    assert model.length == (512 if family == "bert" else 64)
    (last,) = (layer for layer in model.modules() if getattr(layer, "out_features", 0) == 1)
    torch.nn.init.constant_(last.bias, 8.0)
    pairs = [(query, text * repeats) for query in QUERIES.values() for text in TEXTS for repeats in (1, 2, 9)]
    results = {name: model.score_texts(pairs, precision=name) for name in ("no", "bf16")}
    assert len(set(results["bf16"])) >= len(set(results["no"])) > 30
    assert_within_rounding(results["bf16"], results["no"], torch.bfloat16, 2 * 8, scale=8)
    again = pickle.loads(pickle.dumps(model)).bfloat16()
    assert_within_rounding(again.score_texts(pairs), results["no"], torch.bfloat16, 2 * 8, scale=8)


def test_a_score_that_is_not_finite_is_refused(tiny_bert):
    model = build(tiny_bert)
    torch.nn.init.constant_(model.head.weight, float("nan"))
    with pytest.raises(ValueError, match="the score of 'a dog' for 'the fox' is not finite: nan"):
        model.score_texts([("the fox", "a dog")])


def test_reranking_is_the_score_of_every_pair_best_first_whatever_the_batches(tiny_bert, monkeypatch):
    model = build(tiny_bert).double().train()
    every: Run = {query: dict.fromkeys(CORPUS.ids, 0.0) for query in QUERIES} | {"q2": {}}
    expected = {q: [by_hand(model, tiny_bert, QUERIES[q], text) for text in TEXTS] for q in ("q0", "q1")}
    sizes: list[tuple[int, int]] = []
    model.register_forward_pre_hook(lambda _, given: sizes.append(tuple(given[0].input_ids.shape)))
    for tokens, window in ((1, 4), (40, 5), (64, 1000)):
        sizes.clear()
        monkeypatch.setitem(module.TOKENS, "cpu", tokens)
        monkeypatch.setattr(module, "WINDOW", window)
        results = Reranking(model, CORPUS).rerank(QUERIES, every)
        assert model.training
        assert results["q2"] == {}
        for query, scores in expected.items():
            assert_same(results[query], dict(zip(CORPUS.ids, scores, strict=True)))
            assert all(a >= b for a, b in pairwise(results[query].values()))
        assert sum(count for count, _ in sizes) == 12
        assert all(count == 1 or count * length <= tokens for count, length in sizes)
    assert len(sizes) < 6  # the last: several pairs a batch


@pytest.mark.parametrize(("family", "lora_rank"), [("bert", 0), ("t5", 0), ("bert", 2)])
def test_what_is_saved_loads_bit_for_bit(checkpoints, tmp_path, family, lora_rank):
    model = build(checkpoints[family], pooling="mean", lora_rank=lora_rank, document_length=20)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.05 * torch.randn_like(weight))
    (tmp_path / "saved").mkdir()
    model.write(tmp_path / "saved")  # with its adapters apart
    loaded = load(tmp_path / "saved")
    assert loaded.description() == model.description()
    assert Reranking(loaded, CORPUS).rerank(QUERIES, RUN) == Reranking(model, CORPUS).rerank(QUERIES, RUN)
    (tmp_path / "saved" / HEAD).unlink()
    with pytest.raises(ValueError, match="is not a checkpoint of"):
        load(tmp_path / "saved")


EXAMPLES = [
    Example("the quick fox", 0, (1, 4), (0,)),
    Example("stone", 5, (2, 0), (5, 1)),
    Example("a boat", 2, (5, 3), (2,)),
    Example("winter snow", 4, (0, 5), (4,)),
]


def test_the_loss_is_cross_entropy_over_the_querys_own_candidates(tiny_bert):
    model = build(tiny_bert).double()
    for temperature in (None, 0.5):
        objective = Listwise(model, CORPUS, EXAMPLES).configure(LossSettings(temperature=temperature))
        losses = []
        for example in EXAMPLES:
            texts = [CORPUS[p] for p in (example.positive, *example.negatives)]
            s = [by_hand(model, tiny_bert, example.query, text) / (temperature or 1.0) for text in texts]
            losses.append(math.log(sum(map(math.exp, s))) - s[0])
        results = objective.loss(model, objective.collate(EXAMPLES))
        assert_same(results, sum(losses) / 4)
        # Processes share nothing: the mean of their losses is that of the whole batch.
        halves = [objective.loss(model, objective.collate(part)) for part in (EXAMPLES[:2], EXAMPLES[2:])]
        assert_same(results, sum(halves) / 2)


def test_examples_without_negatives_or_with_unequally_many_are_refused(tiny_bert):
    model = build(tiny_bert)
    none, one = Example("a", 0, (), (0,)), Example("a", 0, (1,), (0,))
    for examples, told in (([none], "has 0"), ([one, *EXAMPLES], "has 1 or 2")):
        needed = f"cross_attention needs the same number of hard negatives.*{told}"
        with pytest.raises(ValueError, match=needed):
            Listwise(model, CORPUS, examples)
