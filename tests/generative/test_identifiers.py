"""Identifiers: what names a document, what is odd about names, and that nothing is left out."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from transformers import AutoTokenizer

from paradigms.data import Corpus, Problems
from paradigms.generative.identifiers import Identifiers, Words, text, titles, tokenize


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
    found = example(**fields, vocabulary=20, documents=["a", "b"], end=None, starts=np.array(starts, int) + 3)
    slices = [slice(3, 13) if at is None else slice(at + 3, at + 3 + span) for at in expected]
    assert found.windows(1, span) == slices


def test_windows_begin_where_training_spans_may(bert: Any) -> None:
    corpus = Corpus(["a", "b"], ["The lazy dog, and a cat", "of the"], ["", ""])
    found = text(corpus, bert, 128)
    names = bert.convert_ids_to_tokens(found.tokens[found.starts].tolist())
    assert [name.removeprefix("##") for name in names] == names
    words = [Words(row) for row in tokenize(bert, corpus)]
    begins = [own.bounds[n] for own in words for n in own.starts()]
    assert [own.words[n] for own in words for n in own.starts()] == ["lazy", "dog,", "cat", "of", "the"]
    assert found.starts.tolist() == [at + (n >= 3) * found.offsets[1] for n, at in enumerate(begins)]


def test_the_digest_follows_what_names_what() -> None:
    first = example().digest
    assert example(problems=Problems()).digest == first
    assert example(tokens=np.array([5, 6, 7, 5, 6, 8], dtype=np.int32)).digest == first
    changes = [
        {"kind": "text"},
        {"documents": ["a", "c", "b"]},
        {"tokens": np.array([5, 6, 7, 6, 5, 8])},
        {"offsets": np.array([0, 1, 3, 6])},
        {"vocabulary": 10},
        {"end": None},
        {"starts": np.array([0, 3])},
    ]
    assert len({first, *(example(**change).digest for change in changes)}) == 1 + len(changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"documents": ["a", "b", "b"]}, "must differ"),
        ({"documents": ["a", "b", "c", "d"]}, "4 identifiers need 5 offsets, 0 to 6"),
        ({"offsets": np.array([0, 3, 2, 6])}, "must ascend"),
        ({"offsets": np.array([1, 2, 3, 6])}, "3 identifiers need 4 offsets, 0 to 6"),
        ({"offsets": np.array([0, 2, 2, 6])}, "document 'b' has an empty identifier"),
        ({"starts": np.array([2, 2])}, "starts must ascend strictly within .0, 6."),
        ({"starts": np.array([0, 6])}, "starts must ascend strictly within .0, 6."),
        ({"end": 7}, "document 'b' holds the token 7; they lie in .0, 9., and 7 only ends"),
        ({"end": 9}, "end is 9, and tokens lie in .0, 9."),
        ({"vocabulary": 8}, "document 'c' holds the token 8"),
        ({"tokens": np.array([5, -1, 7, 5, 6, 8])}, "document 'a' holds the token -1"),
    ],
)
def test_what_names_nothing_is_refused(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        example(**changes)


@pytest.mark.parametrize("name", ["identifiers.json", "identifiers.safetensors"])
def test_missing_damaged_and_older_files_are_named(tmp_path: Path, name: str) -> None:
    example().save(tmp_path)
    content, arrays = (tmp_path / name).read_bytes(), load_file(tmp_path / "identifiers.safetensors")
    for damaged in (content[: len(content) // 2], b"[]", b""):
        (tmp_path / name).write_bytes(damaged)
        with pytest.raises(ValueError, match=f"{tmp_path}.*{name}: "):
            Identifiers.load(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"{name} is missing"):
        Identifiers.load(tmp_path)
    if name.endswith("json"):
        (tmp_path / name).write_bytes(content.replace(b'"end": 1', b'"end": []'))
        with pytest.raises(ValueError, match=r"identifiers\.json.*end=\[\]; it must be int or null"):
            Identifiers.load(tmp_path)
    else:
        save_file({key: array for key, array in arrays.items() if key != "starts"}, tmp_path / name)
        with pytest.raises(ValueError, match=f"{name} was saved by an older version"):
            Identifiers.load(tmp_path)


@pytest.mark.parametrize(
    ("texts", "title", "expected", "problems"),
    [
        (["the cat and more", "cold water"], ["the cat", "cold water"], ["▁the ▁cat", "▁cold ▁water"], {}),
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
            ["", ""],
            ["cat " * 11, "cat " * 12],
            [" ".join(["▁cat"] * 11)] * 2,
            {
                "title of more than 12 tokens with the end (cut)": ["b"],
                "identifier of several documents (names them all)": ["a, b"],
            },
        ),
        (
            ["x", "x"],
            ["cat ☃", "the</s> cat<pad>"],
            ["▁cat ▁ <unk>", "▁the ▁cat"],
            {
                "title with a token unknown to the tokenizer (kept)": ["a"],
                "title that spells special tokens (left out)": ["b"],
            },
        ),
        # Nor must titles that show no character.
        (
            ["the dog", "the cat"],
            ["\u200b", "</s> \u200b"],
            ["▁the ▁dog", "▁the ▁cat"],
            {
                "title without a visible, known token (not used)": ["a", "b"],
                "document without a usable title (named by its first words)": ["a", "b"],
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
    found = titles(corpus, t5, 12)
    assert [" ".join(row) for row in words(t5, found)] == expected
    assert (found.kind, found.end, found.vocabulary, found.documents) == ("title", 1, len(t5), corpus.ids)
    assert found.target(0) == (*found[0].tolist(), 1)
    assert found.problems.examples == problems
    assert found.problems.counts == {kind: len(examples) for kind, examples in problems.items()}


def test_what_gives_no_names_is_refused(bert: Any, checkpoints: dict[str, Path]) -> None:
    corpus = Corpus(["a"], ["the cat"], ["cat"])
    with pytest.raises(ValueError, match="an eos_token, such as T5's"):
        titles(corpus, bert, 8)
    t5 = AutoTokenizer.from_pretrained(checkpoints["t5"])
    with pytest.raises(ValueError, match="1 documents have no token in title, text or id, for example ''"):
        titles(Corpus(["a", ""], ["text", ""]), t5, 40)
    with pytest.raises(ValueError, match="length must be at least 2"):
        titles(corpus, t5, 1)


@pytest.mark.parametrize("family", ["t5", "bert"])
def test_a_text_is_named_by_its_own_tokens(family, t5, bert, monkeypatch):
    tokenizer = {"t5": t5, "bert": bert}[family]
    texts = ["the cat sat", "", "zebra  (water)", "one two three four " * 20]
    corpus = Corpus([*"abcd"], texts)
    expected = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    monkeypatch.setattr("paradigms.generative.identifiers.BATCH", 3)  # more texts than one call takes
    found = text(corpus, tokenizer)
    assert [found[n].tolist() for n in range(4)] == expected
    assert (found.kind, found.end, found.vocabulary) == ("text", None, len(tokenizer))
    assert found.problems.counts == {"document without tokens (has no name)": 1}
    assert found.problems.examples == {"document without tokens (has no name)": ["b"]}
    cut = text(corpus, tokenizer, 5)
    assert [cut[n].tolist() for n in range(4)] == [row[:5] for row in expected]


@pytest.mark.parametrize("family", ["t5", "bert"])
def test_a_text_that_spells_special_tokens_does_not_end_there(family: str, t5: Any, bert: Any) -> None:
    tokenizer = {"t5": t5, "bert": bert}[family]
    found = text(Corpus(["a"], ["cat </s> dog <pad> [PAD] [SEP] bird"]), tokenizer)
    special = {tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.sep_token_id}
    assert special.isdisjoint(found[0].tolist())
    assert bool(found.problems) == (family == "t5")  # WordPiece knows how to write "[", "sep", "]"
