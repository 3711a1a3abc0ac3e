"""The part of a document that an encoder reads, as a text."""

from pathlib import Path

import pytest

from paradigms.encoder.cut import count_cut, read_part
from tests.tiny import built


@pytest.mark.parametrize("name", ["dpr", "colbert"])
def test_the_part_that_is_read_has_the_same_tokens(tiny_bert: Path, name: str) -> None:
    encoder = built(name, tiny_bert, document_length=8).encoder
    texts = ["", "the sea", "The SEA,  the mountain; the river and the ship", "boat " * 9000, "sea " * 5]
    read = read_part(encoder, texts)
    whole, part = (encoder.tokenize(of, "document").input_ids.tolist() for of in (texts, read))
    assert part == whole
    assert all(text.startswith(beginning) for text, beginning in zip(texts, read, strict=True))
    assert read[:2] == texts[:2]
    assert (
        sum(len(a) < len(b) for a, b in zip(read, texts, strict=True)) >= count_cut(encoder, texts).cut == 2
    )
    assert read_part(encoder, read) == read
