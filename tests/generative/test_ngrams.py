"""The index of n-grams against its slow twin, a scan of every document; of identifiers, against a set."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from paradigms.generative.ngrams import NGramIndex

Documents = list[list[int]]
TOKENS = st.sampled_from([0, 1, 5, 2**31 - 1])  # few, so that they repeat
# Documents repeat as well: a drawn list of documents, and then picks from it.
CORPORA = (
    st.lists(st.lists(TOKENS, max_size=8), min_size=1, max_size=5)
    .flatmap(lambda documents: st.lists(st.sampled_from(documents), min_size=1, max_size=8))
    .filter(any)
)


def csr(sequences: Documents) -> tuple[np.ndarray, np.ndarray]:
    flat = np.array([token for sequence in sequences for token in sequence], dtype=np.int64)
    return flat, np.cumsum([0, *map(len, sequences)])


def occurrences(documents: Documents, gram: tuple[int, ...], trie: bool = False) -> list[tuple[int, int]]:
    """(document, position) of every occurrence of `gram`; the empty one occurs at every token.

    trie: at the start of a document only.
    """
    return [
        (d, i)
        for d, document in enumerate(documents)
        for i in range(min(len(document), 1) if trie else len(document))
        if tuple(document[i : i + len(gram)]) == gram
    ]


@given(CORPORA, st.booleans())
@example([[4]], False)
@example([[], [], [4], []], False)
@example([[], [], [4], []], True)
@example([[4, 5, 4, 5, 6]] * 3, False)
@example([[4] * 9, [4] * 9, [4] * 9 + [5]], False)
@example([[4, 5], [5, 6], [6, 4]], False)  # a chain over the boundaries
def test_every_ngram_has_its_successors_frequency_places_and_rest(documents: Documents, trie: bool):
    """Checked for every n-gram that a search can reach."""
    index = NGramIndex.build(*csr(documents), trie=trie)
    grams: list[tuple[int, ...]] = [()]
    states = index.start()
    while grams:
        branches = index.branches(states)
        places = index.locate(states)
        longer: list[tuple[int, ...]] = []
        for n, gram in enumerate(grams):
            expected = occurrences(documents, gram, trie)
            assert index.counts(states)[n] == len(expected)
            part = slice(places.offsets[n], places.offsets[n + 1])
            pairs = zip(places.documents[part].tolist(), places.positions[part].tolist(), strict=True)
            assert list(pairs) == expected
            rests = {tuple(documents[d][i + len(gram) :]) for d, i in expected}
            rest = index.rests(states[n : n + 1])
            assert rests == {tuple(rest[0].tolist())} if rest else len(rests) > 1
            tokens = branches.tokens[branches.offsets[n] : branches.offsets[n + 1]].tolist()
            assert tokens == sorted({rest[0] for rest in rests if rest})
            longer += [(*gram, token) for token in tokens]
        assert (branches.states[:, 2] == len(grams[0]) + 1).all()
        assert index.find(grams).tolist() == states.tolist()
        grams = longer
        states = branches.states


@pytest.mark.parametrize("tokens", [100, 1000, 70_000])
def test_suffixes_are_sorted_as_numbers(tokens: int):
    """Symbols of one, two and four bytes."""
    random = np.random.default_rng(0)
    documents = [random.permutation(tokens).tolist(), random.integers(0, tokens, 300).tolist()]
    index = NGramIndex.build(*csr(documents))
    text = index.text.tolist()
    begins = [text[row : row + 12] for row in index.rows[:: max(1, tokens // 500)].tolist()]
    assert begins == sorted(begins)
    probe = documents[1][:40]
    states = index.find([probe[i : i + 2] for i in range(40)])
    expected = [len(occurrences(documents, tuple(probe[i : i + 2]))) for i in range(40)]
    assert index.counts(states).tolist() == expected
    assert index.branches(index.start()).tokens.tolist() == list(range(tokens))
