"""The index of n-grams against its slow twin, a scan of every document; of identifiers, against a set."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from paradigms.generative.ngrams import NGramIndex

Documents = list[list[int]]
END = 1
IDENTIFIERS = st.lists(st.lists(st.sampled_from([0, 2, 3, 7, 2**31 - 1]), min_size=1, max_size=4), min_size=1)
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


def occurrences(documents: Documents, gram: tuple[int, ...]) -> list[tuple[int, int]]:
    """(document, position) of every place where `gram` stands; the empty one stands at every token."""
    return [
        (d, i)
        for d, document in enumerate(documents)
        for i in range(len(document))
        if tuple(document[i : i + len(gram)]) == gram
    ]


def successors(documents: Documents, gram: tuple[int, ...]) -> list[int]:
    after = [documents[d][i + len(gram) :] for d, i in occurrences(documents, gram)]
    return sorted({rest[0] for rest in after if rest})


@given(CORPORA)
@example([[4]])
@example([[], [], [4], []])
@example([[4, 5, 4, 5, 6]] * 3)
@example([[4] * 9, [4] * 9, [4] * 9 + [5]])
@example([[4, 5], [5, 6], [6, 4]])  # a chain over the boundaries
def test_every_ngram_has_its_successors_frequency_and_places(documents: Documents):
    """Checked for every n-gram that a search can reach."""
    index = NGramIndex.build(*csr(documents))
    grams: list[tuple[int, ...]] = [()]
    states = index.start()
    while grams:
        found, places = index.branches(states), index.locate(states)
        reached: list[tuple[int, ...]] = []
        for n, gram in enumerate(grams):
            expected = occurrences(documents, gram)
            assert index.counts(states)[n] == len(expected)
            part = slice(places.offsets[n], places.offsets[n + 1])
            pairs = zip(places.documents[part].tolist(), places.positions[part].tolist(), strict=True)
            assert list(pairs) == expected
            tokens = found.tokens[found.offsets[n] : found.offsets[n + 1]].tolist()
            assert tokens == successors(documents, gram)
            reached += [(*gram, token) for token in tokens]
        assert (found.states[:, 2] == len(grams[0]) + 1).all()
        assert index.find(grams).tolist() == states.tolist()
        grams, states = reached, found.states


def finished_of(index: NGramIndex, identifiers: Documents) -> dict[tuple[int, ...], list[int]]:
    """Every finished sequence with the identifiers that it spells, found as a search finds them."""
    finished: dict[tuple[int, ...], list[int]] = {}
    prefixes: list[tuple[int, ...]] = [()]
    states = index.start()
    while prefixes:
        found, places = index.branches(states), index.locate(states)
        reached = []
        for n, prefix in enumerate(prefixes):
            begun = [whole for whole in identifiers if whole[: len(prefix)] == [*prefix]]
            rests = {tuple(whole[len(prefix) :]) for whole in begun}
            rest = index.rests(states[n : n + 1])
            assert rests == {tuple(rest[0].tolist())} if rest else len(rests) > 1
            after = found.tokens[found.offsets[n] : found.offsets[n + 1]].tolist()
            assert after == sorted(set(after))
            reached += [(*prefix, token) for token in after]
            if not after:
                finished[prefix] = places.documents[places.offsets[n] : places.offsets[n + 1]].tolist()
        prefixes, states = reached, found.states
    return finished


@given(IDENTIFIERS)
def test_a_search_of_whole_documents_finishes_these_and_nothing_else(identifiers: Documents):
    closed = [[*identifier, END] for identifier in identifiers]
    index = NGramIndex.build(*csr(closed), whole=True)
    expected: dict[tuple[int, ...], list[int]] = {}
    for n, identifier in enumerate(closed):
        expected.setdefault(tuple(identifier), []).append(n)
    assert finished_of(index, closed) == expected


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
    found = index.branches(index.start())
    assert found.tokens.tolist() == list(range(tokens))


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="every document is empty"):
        NGramIndex.build(*csr([[], []]))
