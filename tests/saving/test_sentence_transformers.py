"""Checkpoints that sentence-transformers itself writes score the same here (`make extras`)."""

import json
import string
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import paradigms
from paradigms.align import QueryToDocument, TopK
from paradigms.saving.hub import model_card
from paradigms.scoring.scorer import Scorer
from tests.near import SCORES, assert_within_rounding
from tests.saving.test_read import DOCUMENTS, QUERIES, scores_of
from tests.tiny import LONG, WIDTH, write_checkpoint, write_headed
from tests.train.test_loop import SETTINGS, fit

pytest.importorskip("sentence_transformers", "6.0", reason="needs sentence-transformers 6: make extras")

from sentence_transformers import CrossEncoder, MultiVectorEncoder, SentenceTransformer, SparseEncoder
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.multi_vector_encoder.losses import MultiVectorMultipleNegativesRankingLoss
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.multi_vector_encoder.scoring import colbert_scores
from sentence_transformers.sentence_transformer.modules import Pooling
from transformers import BertForMaskedLM, BertForSequenceClassification

LINEAR = torch.nn.Identity()


def assert_same_scores(theirs: Any, folder: Path) -> None:
    theirs.eval()
    theirs.save_pretrained(str(folder))
    assert_within_rounding(scores_of(paradigms.load(folder)), their_scores(theirs), **SCORES)


def their_scores(theirs: Any) -> torch.Tensor:
    """The scores of all pairs, of a model in float64: the library multiplies token vectors in float32."""
    theirs.double()
    return theirs.similarity(theirs.encode_query(QUERIES), theirs.encode_document(DOCUMENTS)).cpu()


def assert_exported_scores(ours: Any, folder: Path, kind: Any) -> None:
    """Theirs opens what ours wrote, and scores as ours do; and ours opens it again."""
    ours.save_pretrained(folder, layout="sentence-transformers", card=model_card(ours))
    theirs = kind(str(folder)).eval()
    results = their_scores(theirs)
    for model in (ours, paradigms.load(folder)):
        assert_within_rounding(results, scores_of(model), **SCORES)


@pytest.fixture(params=["bert", "modernbert", "t5", "qwen3"])
def backbone(request, tmp_path):
    torch.manual_seed(0)
    return str(write_checkpoint(request.param, tmp_path / request.param))


@pytest.mark.parametrize("most", [None, 7])
def test_sparse_encoders_come_in_and_go_out(tmp_path, most):
    folder = str(write_headed(BertForMaskedLM, tmp_path / "bert"))
    prompts = {"query": "find: ", "document": "text: "}
    theirs = SparseEncoder(folder, prompts=prompts, max_active_dims=most)
    assert_same_scores(theirs, tmp_path / "theirs")
    ours = paradigms.PARADIGMS["splade"](folder, most_terms=most, query_prompt="find: ", query_length=9)
    assert_exported_scores(ours, tmp_path / "out", SparseEncoder)


def test_cross_encoders_come_in(tmp_path):
    theirs = CrossEncoder(str(write_headed(BertForSequenceClassification, tmp_path / "bert", num_labels=1)))
    theirs.save_pretrained(str(tmp_path / "theirs"))
    ours, pairs = paradigms.load(tmp_path / "theirs").double(), [(QUERIES[0], text) for text in DOCUMENTS]
    expected = theirs.double().predict(pairs, activation_fn=LINEAR)  # which the library rounds to float32
    assert_within_rounding(ours.score_texts(pairs), expected.tolist(), torch.float32, 1)


@pytest.mark.parametrize(("pooling", "similarity"), [("mean", "cosine"), ("cls", "dot")])
def test_heads_and_prompts(backbone, tmp_path, pooling, similarity):
    modules = [
        Transformer(backbone),
        Pooling(WIDTH, pooling),
        Dense(WIDTH, 16, activation_function=LINEAR, use_residual=True),
        Dense(16, 8),  # tanh
    ]
    prompts = {"query": "query: ", "document": "passage: "}
    theirs = SentenceTransformer(modules=modules, prompts=prompts, similarity_fn_name=similarity)
    assert_same_scores(theirs, tmp_path / "theirs")


@pytest.mark.parametrize(
    "config",
    [
        {"prompts": {"query": "fish", "document": "[unused0]"}},  # entries of the vocabulary
        {"prompts": {"query": "fish", "sts": "match: "}, "default_prompt_name": "sts"},
    ],
    ids=str,
)
def test_prompts_are_texts_and_each_side_has_its_own(tmp_path, config):
    folder = write_checkpoint("bert", tmp_path / "bert")
    SentenceTransformer(modules=[Transformer(str(folder)), Pooling(WIDTH, "mean")]).save_pretrained(
        str(tmp_path / "theirs")
    )
    (tmp_path / "theirs" / "config_sentence_transformers.json").write_text(json.dumps(config))
    theirs = SentenceTransformer(str(tmp_path / "theirs")).eval()
    assert_within_rounding(scores_of(paradigms.load(tmp_path / "theirs")), their_scores(theirs), **SCORES)


def test_a_decoder_with_instructions_comes_in_is_trained_and_goes_out(checkpoints, tmp_path):
    """As Qwen3-Embedding is published: the last token, and an instruction before queries."""
    modules = [Transformer(str(checkpoints["qwen3"])), Pooling(WIDTH, "lasttoken"), Normalize()]
    prompts = {"query": "Instruct: find an answer\nQuery:", "document": ""}
    theirs = SentenceTransformer(modules=modules, prompts=prompts)
    assert_same_scores(theirs, tmp_path / "theirs")
    settings = paradigms.load(tmp_path / "theirs").encoder.settings
    assert settings.query_length == LONG["max_position_embeddings"]

    marker = "Instruct: find a fish\nQuery:"
    ours = paradigms.PARADIGMS["dpr"](tmp_path / "theirs", lora_rank=2, query_prompt=marker)
    read: list[str] = []
    ours.register_forward_pre_hook(
        lambda _, given: read.extend(ours.encoder.tokenizer.batch_decode(given[0].input_ids))
    )
    before = scores_of(ours)
    fit(tmp_path, tmp_path / "training", replace(SETTINGS, steps=1), paradigm=ours)
    assert len(read) == SETTINGS.batch_size
    assert all(text.startswith(marker) for text in read)
    assert not torch.equal(scores_of(ours), before)
    assert_exported_scores(ours, tmp_path / "out", SentenceTransformer)


def multi_vector(
    backbone: str, *, skip: str = "", prompts: Any = None, similarity: Any = None, **settings: Any
):
    transformer = Transformer(backbone, **settings)
    if prompts:
        transformer.tokenizer.add_tokens(list(prompts.values()), special_tokens=True)
        transformer.auto_model.resize_token_embeddings(len(transformer.tokenizer))
    names = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}
    modules = [
        transformer,
        Dense(WIDTH, 16, bias=False, activation_function=LINEAR, **names),
        MultiVectorMask(skiplist_words=list(skip)),
        Normalize(**names),
    ]
    return MultiVectorEncoder(modules=modules, prompts=prompts, similarity_fn_name=similarity)


MARKED = {"skip": string.punctuation, "prompts": {"query": "[Q] ", "document": "[D] "}, "document_length": 9}
EXPANSION = {"strategy": "fixed", "length": 12}
MULTI = [("bert", MARKED | {"query_expansion": EXPANSION | {"attend": attend}}) for attend in (False, True)]
MULTI += [(family, {"similarity": "meanmaxsim"}) for family in ("bert", "modernbert", "t5", "qwen3")]
MULTI += [("bert", {"skip": ".,", "query_length": 5, "document_length": 6})]


@pytest.mark.parametrize(("family", "settings"), MULTI, ids=str)
def test_token_vectors(tmp_path, family, settings):
    theirs = multi_vector(str(write_checkpoint(family, tmp_path / family)), **settings)
    assert_same_scores(theirs, tmp_path / "theirs")


HEAD = {"dim": 8, "projection_bias": True, "activation": "tanh", "query_prompt": "query: "}
ADDED = {"query_marker": "fish", "document_marker": "fox", "query_augmentation": True}  # of the vocabulary
OUT = [("dpr", HEAD | {"pooling": pooling}) for pooling in ("cls", "mean", "max", "last")]
OUT += [("dpr", HEAD | {"pooling": "mean", "normalize": False})]
OUT += [("colbert", settings) for settings in ({"dim": 8}, {"skip": "", "dim": None}, {"normalize": False})]
OUT += [("colbert", ADDED | {"attend_augmentation": attend}) for attend in (False, True)]
OUT += [("colbert", {"skip": "", "skip_tokens": ". ,"}), ("xtr", {"dim": 8})]
WRITTEN = [("bert", *row) for row in OUT]
WRITTEN += [(family, *OUT[n]) for family in ("modernbert", "t5", "qwen3") for n in (1, 5)]


@pytest.mark.parametrize(("family", "name", "settings"), WRITTEN, ids=str)
def test_what_goes_out_scores_the_same(checkpoints, tmp_path, family, name, settings):
    ours = paradigms.PARADIGMS[name](checkpoints[family], query_length=14, document_length=20, **settings)
    if name == "xtr":
        ours = ours.with_alignment(QueryToDocument(), "query_tokens")
    kind = SentenceTransformer if name == "dpr" else MultiVectorEncoder
    assert_exported_scores(ours, tmp_path / "out", kind)


def test_every_alignment_trains_in_their_loss(tmp_path):
    """With ColBERT's alignment the loss equals theirs exactly; other alignments give gradients."""
    theirs = multi_vector(str(write_checkpoint("bert", tmp_path / "bert"))).double().eval()
    features = [
        theirs.preprocess(texts, task=task) for texts, task in ((QUERIES, "query"), (DOCUMENTS, "document"))
    ]

    def loss(scorer: Any) -> torch.Tensor:
        theirs.zero_grad()
        return MultiVectorMultipleNegativesRankingLoss(theirs, similarity_fct=scorer)(features, None)

    assert_within_rounding(loss(Scorer(QueryToDocument(), "one")), loss(colbert_scores), **SCORES)
    loss(Scorer(TopK(k=2), "total")).backward()
    assert all(bool(p.grad.any()) for name, p in theirs.named_parameters() if "1.linear" in name)
