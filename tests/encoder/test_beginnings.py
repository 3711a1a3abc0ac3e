"""The first tokens of a long text do not depend on what follows them."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from paradigms.encoder import tokenizing
from paradigms.encoder.backbone import load_tokenizer
from paradigms.encoder.tokenizing import beginnings, count_cut, read_part
from tests.tiny import FAMILIES, built

PARTS = ["bird ", "sea", " ", "\n", "  ", "é", "e\u0301", "鳥", ".", ",)", "9", "x" * 120, "\x1f", "\u2028"]
PARTS += ["ﷺ", "[MASK]", "</s>", "'s", "Σ ", "\ufeff", "ab cd "]
TEXTS = st.lists(st.sampled_from(PARTS), max_size=80).map("".join)


@pytest.fixture
def short(monkeypatch):
    """Texts of a few characters are long."""
    monkeypatch.setattr(tokenizing, "CHARACTERS", 1)
    monkeypatch.setattr(tokenizing, "LONG", 2)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("family", FAMILIES)
def test_first_tokens_are_those_of_the_whole_text(checkpoints, family):
    tokenizer, cuts = load_tokenizer(checkpoints[family]), 0

    @settings(max_examples=100, deadline=None)
    @given(st.lists(TEXTS, max_size=4), st.integers(3, 24))
    def check(texts: list[str], length: int) -> None:
        nonlocal cuts
        results, options = beginnings(tokenizer, texts, length), {"truncation": True, "max_length": length}
        cuts += results != texts
        for special in (False, True):
            rows = [
                tokenizer(t, add_special_tokens=special, **options).input_ids
                for t in (texts or [""], results or [""])
            ]
            assert rows[0] == rows[1]

    check()
    assert cuts


def test_a_text_of_many_megabytes_is_read_as_far_as_its_tokens_are_kept(checkpoints, monkeypatch):
    tokenizer, most = load_tokenizer(checkpoints["bert"]), 0

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(tokenizer, name)

        def __call__(self, texts: list[str], **options: Any) -> Any:
            nonlocal most
            most = max(most, *map(len, texts))
            return tokenizer(texts, **options)

    (results,) = beginnings(Counting(), ["the bird over the sea " * 1_000_000], 16)
    assert len(results) == most < 200


def test_where_tokens_may_reach_over_spaces_texts_are_left_whole():
    """Tokenizers with merges over the whole text, or with words that contain a space."""
    plain = Tokenizer(models.WordLevel({"ab cd": 0, "ab": 1, "?": 2}, unk_token="?"))
    text = "ab cd " * 1000
    assert beginnings(PreTrainedTokenizerFast(tokenizer_object=plain), [text], 2) == [text]
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    divided = PreTrainedTokenizerFast(tokenizer_object=plain)
    assert beginnings(divided, [text], 2) != [text]
    divided.add_tokens("ab cd")
    assert beginnings(divided, [text], 2) == [text]


@pytest.mark.parametrize("name", ["dpr", "colbert"])
def test_the_part_that_is_read_has_the_same_tokens(tiny_bert, name):
    encoder = built(name, tiny_bert, document_length=8).encoder
    texts = ["", "the sea", "The SEA,  the mountain; the river and the ship", "boat " * 9000, "sea " * 5]
    read = read_part(encoder, texts)
    full, part = (encoder.tokenize(of, "document").input_ids.tolist() for of in (texts, read))
    assert part == full
    assert all(text.startswith(beginning) for text, beginning in zip(texts, read, strict=True))
    assert read[:2] == texts[:2]
    assert (
        sum(len(a) < len(b) for a, b in zip(read, texts, strict=True)) >= count_cut(encoder, texts).cut == 2
    )
    assert read_part(encoder, read) == read
