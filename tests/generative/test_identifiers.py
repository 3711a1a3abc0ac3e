"""Identifiers: what names a document, what is odd about names, and that nothing is left out."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from paradigms.data import Corpus, Problems
from paradigms.generative.identifiers import Identifiers, text, titles


@pytest.fixture(scope="module")
def t5(checkpoints: dict[str, Path]) -> Any:
    return AutoTokenizer.from_pretrained(checkpoints["t5"])


@pytest.fixture(scope="module")
def bert(checkpoints: dict[str, Path]) -> Any:
    return AutoTokenizer.from_pretrained(checkpoints["bert"])


def example(**changes: Any) -> Identifiers:
    """Documents a, b, c with the names (5, 6), (7,) and (5, 6, 8)."""
    fields: dict[str, Any] = {
        "kind": "title",
        "documents": ["a", "b", "c"],
        "tokens": np.array([5, 6, 7, 5, 6, 8]),
        "offsets": np.array([0, 2, 3, 6]),
        "vocabulary": 9,
        "end": 1,
        "problems": Problems({"odd": 5}, {"odd": ["a", "é"]}),
        "starts": np.arange(0),
    }
    return Identifiers(**{**fields, **changes})


def words(tokenizer: Any, identifiers: Identifiers) -> list[list[str]]:
    return [tokenizer.convert_ids_to_tokens(identifiers[n].tolist()) for n in range(len(identifiers))]


@pytest.mark.parametrize(
    ("starts", "span", "expected"),
    [
        ([0, 2, 3, 6, 9], 3, [0, 3, 6]),  # 9 leaves a single place
        ([1, 2, 5, 7], 3, [1, 2, 5, 7]),  # as far as 3 places, where there is a start
        ([4], 2, [4]),
        ([], 3, [None]),  # all of it
        ([0, 4, 8], 10, [None]),
    ],
)
def test_windows_begin_at_starts_and_cover_what_they_can(starts, span, expected) -> None:
    fields = {"tokens": np.arange(2, 15), "offsets": np.array([0, 3, 13])}
    results = example(
        **fields, vocabulary=20, documents=["a", "b"], end=None, starts=np.array(starts, int) + 3
    )
    slices = [slice(3, 13) if at is None else slice(at + 3, at + 3 + span) for at in expected]
    assert results.windows(1, span) == slices


def test_the_digest_follows_what_names_what() -> None:
    first = example().digest
    assert example(problems=Problems(), tokens=np.array([5, 6, 7, 5, 6, 8], np.int32)).digest == first
    changes = [
        {"documents": ["a", "c", "b"]},
        {"tokens": np.array([5, 6, 7, 6, 5, 8])},
        {"offsets": np.array([0, 1, 3, 6])},
        {"starts": np.array([0, 3])},
    ]
    assert len({first, *(example(**change).digest for change in changes)}) == 1 + len(changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"documents": ["a", "b", "b"]}, "must differ"),
        ({"offsets": np.array([0, 3, 2, 6])}, "3 identifiers need 4 ascending offsets, 0 to 6"),
        ({"offsets": np.array([0, 2, 2, 6])}, "document 'b' has an empty identifier"),
        ({"starts": np.array([2, 2])}, "starts must ascend strictly within .0, 6."),
        ({"end": 7}, "document 'b' holds the token 7; they lie in .0, 9., and 7 only ends"),
    ],
)
def test_what_names_nothing_is_refused(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        example(**changes)


@pytest.mark.parametrize("name", ["identifiers.json", "identifiers.safetensors"])
def test_missing_and_damaged_files_are_named(tmp_path: Path, name: str) -> None:
    example().save(tmp_path)
    content = (tmp_path / name).read_bytes()
    for damaged in (content[: len(content) // 2], b"[]"):
        (tmp_path / name).write_bytes(damaged)
        with pytest.raises(ValueError, match=f"{tmp_path}.*{name}: "):
            Identifiers.load(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"{name} is missing"):
        Identifiers.load(tmp_path)


@pytest.mark.parametrize(
    ("texts", "title", "expected", "problems"),
    [
        # The first words of its text, or its id.
        (
            ["text", " ".join(["cat"] * 12), "\n "],
            ["dog", "", "  "],
            ["▁dog", " ".join(["▁cat"] * 10), "▁red ▁sea"],
            {
                "document without a usable title (named by its first words)": ["b"],
                "document without a usable title (named by its id)": ["red sea"],
            },
        ),
        (
            ["", "", "x"],
            ["cat " * 11, "cat " * 12, "the</s> cat<pad>"],
            [" ".join(["▁cat"] * 11)] * 2 + ["▁the ▁cat"],
            {
                "title of more than 12 tokens with the end (cut)": ["b"],
                "title that spells special tokens (left out)": ["red sea"],
                "identifier of several documents (names them all)": ["a, b"],
            },
        ),
        # Texts of which the tokenizer knows no token must not share an identifier.
        (
            ["the dog", "☃", "text"],
            ["☃ ☃", "", "☃ cat"],
            ["▁the ▁dog", "▁ b", "▁ <unk> ▁cat"],
            {
                "title without a visible, known token (not used)": ["a"],
                "document without a usable title (named by its first words)": ["a"],
                "first words without a visible, known token (not used)": ["b"],
                "document without a usable title (named by its id)": ["b"],
                "title with a token unknown to the tokenizer (kept)": ["red sea"],
            },
        ),
    ],
)
def test_a_document_is_named_by_its_title_or_what_stands_for_it(t5, texts, title, expected, problems):
    corpus = Corpus(["a", "b", "red sea"][: len(texts)], texts, title)
    results = titles(corpus, t5, 12)
    assert [" ".join(row) for row in words(t5, results)] == expected
    assert (results.kind, results.end, results.vocabulary, results.documents) == (
        "title",
        1,
        len(t5),
        corpus.ids,
    )
    assert results.problems.examples == problems
    assert results.problems.counts == {kind: len(examples) for kind, examples in problems.items()}


def test_what_gives_no_names_is_refused(bert: Any, checkpoints: dict[str, Path]) -> None:
    corpus = Corpus(["a"], ["the cat"], ["cat"])
    with pytest.raises(ValueError, match="an eos_token, such as T5's"):
        titles(corpus, bert, 8)
    t5 = AutoTokenizer.from_pretrained(checkpoints["t5"])
    with pytest.raises(ValueError, match="1 documents have no token in title, text or id, for example ''"):
        titles(Corpus(["a", ""], ["text", ""]), t5, 40)


@pytest.mark.parametrize("family", ["t5", "bert"])
def test_a_text_is_named_by_its_own_tokens(family, t5, bert, monkeypatch):
    tokenizer = {"t5": t5, "bert": bert}[family]
    texts = ["the cat sat", "", "zebra  (water)", "one two three four " * 20]
    corpus = Corpus([*"abcd"], texts)
    expected = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    monkeypatch.setattr("paradigms.generative.identifiers.BATCH", 3)  # more texts than one call takes
    results = text(corpus, tokenizer)
    assert [results[n].tolist() for n in range(4)] == expected
    assert (results.kind, results.end, results.vocabulary) == ("text", None, len(tokenizer))
    assert results.problems.counts == {"document without tokens (has no name)": 1}
    assert results.problems.examples == {"document without tokens (has no name)": ["b"]}
    cut = text(corpus, tokenizer, 5)
    assert [cut[n].tolist() for n in range(4)] == [row[:5] for row in expected]
    results = text(Corpus(["a"], ["cat </s> dog <pad> [PAD] [SEP] bird"]), tokenizer)
    special = {tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.sep_token_id}
    assert special.isdisjoint(results[0].tolist())
    assert bool(results.problems) == (family == "t5")  # WordPiece knows how to write "[", "sep", "]"
