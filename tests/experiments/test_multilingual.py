"""Tokens of a tiny mT5 that lies in a folder as google/mt5-base does on the hub, in several scripts."""

import io
import json
import pickle
from pathlib import Path

import pytest
import sentencepiece
from transformers import MT5Config

from paradigms.encoder.backbone import load_tokenizer

PADDED = 12  # entries of the model beyond the tokenizer's, as mT5 has
LAKES = {
    "en": "the largest lake of Africa is Lake Victoria",
    "sw": "Ziwa Viktoria ni ziwa kubwa la Afrika",
    "ar": "بحيرة فيكتوريا هي أكبر بحيرة في أفريقيا",
    "th": "ทะเลสาบวิกตอเรียเป็นทะเลสาบที่ใหญ่ที่สุดในแอฟริกา",
    "zh": "维多利亚湖是非洲最大的湖泊",
}
OUTSIDE = ["😀", "Ω", "①", "ᚠ", "e\u0301"]  # characters that the vocabulary lacks; one in two code points


@pytest.fixture(scope="module")
def pieces() -> bytes:
    """A SentencePiece model with byte fallback over all the scripts, made as mT5's was."""
    model = io.BytesIO()
    size = {"model_type": "unigram", "vocab_size": 600, "hard_vocab_limit": False, "byte_fallback": True}
    marks = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1, "num_threads": 1, "minloglevel": 2}
    text = {"character_coverage": 1.0, "normalization_rule_name": "nmt_nfkc"}
    sentences = iter([*LAKES.values()] * 4)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=sentences, model_writer=model, **size, **marks, **text
    )
    return model.getvalue()


@pytest.fixture(scope="module")
def mt5(pieces: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration, and spiece.model without a tokenizer.json."""
    folder = tmp_path_factory.mktemp("mt5")
    entries = sentencepiece.SentencePieceProcessor(model_proto=pieces).get_piece_size()
    MT5Config(vocab_size=entries + PADDED).save_pretrained(folder)
    (folder / "spiece.model").write_bytes(pieces)
    settings = {"tokenizer_class": "T5Tokenizer", "extra_ids": 0, "pad_token": "<pad>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"unk_token": "<unk>"}))
    return folder


@pytest.mark.parametrize(
    "text", [*LAKES.values(), *OUTSIDE, "a😀b Ω", "ｆｕｌｌ　ｗｉｄｔｈ", "  two  spaces "]
)
def test_tokens_are_those_of_sentencepiece(mt5: Path, pieces: bytes, text: str) -> None:
    expected = sentencepiece.SentencePieceProcessor(model_proto=pieces).encode(text)
    tokenizer = load_tokenizer(mt5)
    for same in (tokenizer, pickle.loads(pickle.dumps(tokenizer))):
        assert same(text)["input_ids"] == [*expected, 1]
    assert tokenizer.unk_token_id not in expected
