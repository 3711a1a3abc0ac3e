"""Training pairs: their choice and number, and that a span's tokens are a slice of its document's tokens."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import scipy.special
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from paradigms.data import Corpus, Problems, Split
from paradigms.generative.identifiers import atomic, text
from paradigms.generative.pairs import (
    Pair,
    document_span_pairs,
    generated_pairs,
    indexing_pairs,
    read_generated,
    retrieval_pairs,
    span_pairs,
    span_weights,
)
from tests.near import assert_same

WORDS = [f"w{i}" for i in range(20)]
LONG = "the red cat sat on a mat and the black dog ran to its house by the cold river near a green tree"


@pytest.fixture(scope="module")
def tokenizers(checkpoints: dict[str, Path]) -> dict[str, Any]:
    return {family: AutoTokenizer.from_pretrained(checkpoints[family]) for family in ("t5", "bert")}


def split_of(*judged: tuple[str, str, dict[str, int]]) -> Split:
    return Split({id: query for id, query, _ in judged}, {id: grades for id, _, grades in judged})


def spelled(tokenizer: Any, tokens: list[int]) -> str:
    """The text of tokens whose tokenizer, as those of tests/tiny.py, has no decoder."""
    pieces = tokenizer.convert_ids_to_tokens(tokens)
    if tokenizer.eos_token is None:
        return " ".join(pieces).replace(" ##", "")
    return "".join(pieces).replace("▁", " ").strip()


def test_a_query_is_paired_with_the_identifier_of_every_relevant_document() -> None:
    first = ("q1", "one", {"b": 1, "a": 2})
    split = split_of(first, ("q2", "two", {"a": 0, "c": 0}), ("q3", "three", {"b": 1}))
    identifiers = atomic(["a", "b"])
    assert retrieval_pairs(split, identifiers) == [Pair("one", 1), Pair("one", 0), Pair("three", 1)]
    with pytest.raises(KeyError, match="document 'c', relevant to query 'q', has no identifier"):
        retrieval_pairs(split_of(("q", "one", {"c": 1})), identifiers)


def test_identifiers_that_name_no_document_of_the_corpus_are_refused(tokenizers: dict[str, Any]) -> None:
    corpus = Corpus(["a"], ["the cat"])
    identifiers = text(corpus, tokenizers["t5"])  # a text is no target as a whole
    with pytest.raises(ValueError, match="use span_pairs and document_span_pairs"):
        retrieval_pairs(split_of(("q", "one", {"a": 1})), identifiers)
    with pytest.raises(ValueError, match="belong to another corpus"):
        indexing_pairs(corpus, atomic(["b"]), Problems())


def test_passages_are_words_as_they_stand_in_the_text() -> None:
    corpus, problems = Corpus(["a", "b", "c"], [" ".join(WORDS), "w0  w1\nw2", " \n"]), Problems()
    pairs = indexing_pairs(corpus, atomic([*"abc"]), problems, words=19, passages=9)
    assert pairs == [Pair(" ".join(WORDS[:19]), 0), Pair(" ".join(WORDS[1:]), 0), Pair("w0  w1\nw2", 1)]
    assert problems.counts == {"document without words (no indexing pairs)": 1}
    assert problems.examples == {"document without words (no indexing pairs)": ["c"]}


def test_generated_queries_are_paired_with_every_identifier() -> None:
    problems = Problems()
    generated = [("a", "what is a"), ("b", " "), ("c", "what is c"), ("a", "who is a")]
    expected = [Pair("what is a", 0), Pair("who is a", 0)]
    assert generated_pairs(generated, atomic(["a", "b"]), problems) == expected
    assert problems.lines() == [
        "empty generated query (left out): 1, e.g. b",
        "generated query for an absent document (left out): 1, e.g. c",
        "document without a generated query: 1, e.g. b",
    ]


def test_generated_queries_of_a_file_and_its_bad_lines(tmp_path: Path) -> None:
    path = tmp_path / "queries.jsonl"
    good = '{"document": "a", "query": "é?", "score": 1}\n\n'
    path.write_text(good, encoding="utf-8")
    assert list(read_generated(path)) == [("a", "é?")]
    path.write_text(good + '{"document": "a"}\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"queries\.jsonl, line 3: query=None; it must be str"):
        list(read_generated(path))


def test_a_weight_is_the_overlap_of_three_words_with_all_of_the_querys() -> None:
    """ratio(x, y) = 2·(length of the longest common subsequence)/(|x| + |y|)."""
    # "a b" and "b" with "a b c", with "b c" and with "c"
    assert_same(span_weights("A b", ["a", "b", "C"]), [3 / 4 + 1 / 3, 1 / 3 + 1 / 2, 0.0], scale=1)


def test_starts_follow_the_softmax_of_their_weights(tokenizers: dict[str, Any]) -> None:
    """4,000 draws; of 13 words with 10 to a span, "on" starts none."""
    words = LONG.split()[1:14]
    ids = [f"d{i}" for i in range(400)]
    corpus = Corpus(ids, [" ".join(words)] * 400)
    split = split_of(("q", "cat and black dog", dict.fromkeys(ids, 1)))
    weights = span_weights("cat and black dog", words)
    pairs = span_pairs(corpus, split, tokenizers["bert"], Problems(), words=10)
    assert len(pairs) == 4000
    tokens = text(corpus, tokenizers["bert"])[0].tolist()
    drawn = Counter(tuple(tokens[pair.first : pair.last]) for pair in pairs)
    spans = [" ".join(words[i : i + 10]) for i in range(3)]
    targets = [tuple(tokenizers["bert"](span, add_special_tokens=False)["input_ids"]) for span in spans]
    assert set(drawn) == set(targets)
    expected = 4000 * scipy.special.softmax(weights[:3])
    assert scipy.stats.chisquare([drawn[target] for target in targets], expected).pvalue > 0.01


def test_each_relevant_document_gives_its_spans(tokenizers: dict[str, Any]) -> None:
    tokenizer = tokenizers["t5"]
    corpus = Corpus(["a", "b", "c"], [LONG, "the cat", ""])
    split = split_of(("q1", "black dog", {"a": 1, "b": 1, "c": 1}), ("q2", "red cat", {"a": 2, "b": 0}))
    problems = Problems()
    pairs = span_pairs(corpus, split, tokenizer, problems, spans=4, words=3)
    counts = Counter((pair.source, pair.document) for pair in pairs)
    assert counts == {("black dog", 0): 4, ("red cat", 0): 4, ("black dog", 1): 4}
    assert problems.lines() == ["document without words or tokens (no spans): 1, e.g. c"]
    tokens = text(corpus, tokenizer)
    for pair in pairs:
        span = spelled(tokenizer, tokens[pair.document][pair.first : pair.last].tolist())
        if pair.document == 1:  # fewer words than a span has: all of them
            assert span == "the cat"
        else:
            assert span in LONG
            assert len(span.split()) == 3
            assert span.split()[0] not in {"the", "a", "on", "and", "to", "by"}


def test_a_draw_depends_on_the_seed_and_the_ids_alone(tokenizers: dict[str, Any]) -> None:
    """Spans as targets of queries, and of the documents themselves."""

    def drawn(ids: list[str], seed: int = 0) -> Counter[tuple]:
        corpus = Corpus(ids, [LONG] * len(ids))
        rows = ("q2", "red", dict.fromkeys(ids, 1)), ("q1", "black dog", dict.fromkeys(ids, 1))
        options: dict[str, Any] = {"words": 3, "seed": seed}
        pairs = span_pairs(corpus, split_of(*rows), tokenizers["t5"], Problems(), **options)
        pairs += document_span_pairs(corpus, tokenizers["t5"], Problems(), **options)
        return Counter((pair.source, corpus.ids[pair.document], (pair.first, pair.last)) for pair in pairs)

    alone, several = drawn(["a"]), drawn(["b", "x", "a"])
    assert alone <= several
    assert drawn(["a"], seed=1) != alone
    assert {target for _, id, target in several if id == "b"} != {target for _, _, target in alone}


ODD = st.lists(
    st.sampled_from(["the", "cat", "zebra", "☃", "é", "(water)", "\u200b", "</s>", "a.b", "[SEP]"])
)
SPACES = st.sampled_from([" ", "  ", "\n", "\t "])


@given(ODD.filter(bool), SPACES, st.one_of(st.none(), st.integers(1, 30)), st.integers(1, 4))
@pytest.mark.parametrize("family", ["t5", "bert"])
def test_targets_are_slices_of_the_documents_tokens(tokenizers, family, words, space, length, size):
    """For any text: words that split, that have no token, or that are cut at the document's length."""
    tokenizer = tokenizers[family]
    corpus = Corpus(["a"], [space.join(words)])
    tokens = text(corpus, tokenizer, length)[0].tolist()
    split = split_of(("q", "cat water", {"a": 1}))
    options: dict[str, Any] = {"length": length, "words": size}
    supervised = span_pairs(corpus, split, tokenizer, Problems(), **options)
    free = document_span_pairs(corpus, tokenizer, Problems(), **options)
    assert len(supervised) == len(free) == (10 if tokens else 0)
    for pair in (*supervised, *free):
        assert 0 <= pair.first < pair.last <= len(tokens)
    # A word without a known character may share its token with what surrounds it: it is not counted then.
    settings: dict[str, Any] = {"add_special_tokens": False, "split_special_tokens": True}
    unknown = {tokenizer.unk_token_id, tokenizer.convert_tokens_to_ids("▁")}
    known = {word for word in words if set(tokenizer(word, **settings)["input_ids"]) - unknown}
    for pair in free:
        assert pair.source in corpus[0]
        assert sum(word in known for word in pair.source.split()) <= size
