"""The trie of identifiers against its slow twin: a set of sequences and their prefixes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paradigms.generative.constraints import Branches, find_in_ranges, ranges
from paradigms.generative.trie import Trie

END = 1
IDENTIFIERS = st.lists(st.lists(st.sampled_from([0, 2, 3, 7, 2**31 - 1]), min_size=1, max_size=4), min_size=1)


def csr(sequences: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    flat = np.array([token for sequence in sequences for token in sequence], dtype=np.int64)
    return flat, np.cumsum([0, *map(len, sequences)])


def rows(found: Branches) -> list[dict[int, list[int]]]:
    """For each prefix: token → state."""
    parts = zip(found.offsets[:-1], found.offsets[1:], strict=True)
    return [dict(zip(found.tokens[a:b].tolist(), found.states[a:b].tolist(), strict=True)) for a, b in parts]


def sequences_of(trie: Trie) -> dict[tuple[int, ...], list[int]]:
    """Every finished sequence and the identifiers that end there, found as a search finds them."""
    finished, open_ = {}, {(): trie.start()[0].tolist()}
    while open_:
        found = trie.branches(np.array(list(open_.values())))
        offsets, numbers = trie.identifiers_at(np.array(list(open_.values())))
        reached = {}
        for n, (prefix, after) in enumerate(zip(open_, rows(found), strict=True)):
            assert list(after) == sorted(after)
            here = numbers[offsets[n] : offsets[n + 1]].tolist()
            if after:
                assert not here
                reached |= {(*prefix, token): state for token, state in after.items()}
            else:
                finished[prefix] = here
        open_ = reached
    return finished


@given(IDENTIFIERS)
def test_a_search_finishes_the_identifiers_and_nothing_else(identifiers: list[list[int]]):
    trie = Trie.build(*csr(identifiers), END)
    expected: dict[tuple[int, ...], list[int]] = {}
    for n, identifier in enumerate(identifiers):
        expected.setdefault((*identifier, END), []).append(n)
    assert sequences_of(trie) == expected


@given(IDENTIFIERS)
def test_walk_gives_the_state_after_each_token(identifiers: list[list[int]]):
    trie = Trie.build(*csr(identifiers), END)
    closed = [[*identifier, END] for identifier in identifiers]
    tokens, offsets = csr(closed)
    states = trie.walk(tokens, offsets)
    for n, sequence in enumerate(closed):
        state = trie.start()
        for token, reached in zip(sequence, states[offsets[n] : offsets[n + 1]], strict=True):
            state = np.array([rows(trie.branches(state))[0][token]])
            assert state.tolist() == [reached.tolist()]
    leaf_offsets, numbers = trie.identifiers_at(states[offsets[1:] - 1])
    for n in range(len(closed)):
        assert n in numbers[leaf_offsets[n] : leaf_offsets[n + 1]]


def test_shared_prefixes_equal_identifiers_and_an_identifier_that_begins_another():
    trie = Trie.build(*csr([[5, 6], [5, 9], [5], [5, 6]]), END)
    assert sequences_of(trie) == {(5, END): [2], (5, 6, END): [0, 3], (5, 9, END): [1]}
    assert trie.branches(trie.walk(np.array([5]), np.array([0, 1]))).tokens.tolist() == [END, 6, 9]


def test_branches_of_many_states_at_once_keep_their_order():
    trie = Trie.build(*csr([[5, 6], [5, 9], [4]]), END)
    states = np.concatenate([trie.walk(*csr([[5], [4, END], [4]])), trie.start()])
    found = trie.branches(states)  # after 5; after 4; after the leaf of 4; after 4 again; at the start
    assert [list(row) for row in rows(found)] == [[6, 9], [END], [], [END], [4, 5]]
    assert found.offsets.dtype == np.int64
    nothing = trie.branches(states[:0])
    assert nothing.offsets.tolist() == [0]
    assert nothing.states.shape == (0, 1)


def test_without_an_end_token_the_last_token_finishes():
    trie = Trie.build(*csr([[3, 4], [3, 5], [3, 4]]), None)
    assert sequences_of(trie) == {(3, 4): [0, 2], (3, 5): [1]}
    with pytest.raises(ValueError, match="identifier 1 begins another one: give the trie an end token"):
        Trie.build(*csr([[3, 4], [3]]), None)


def test_identifiers_that_cannot_be_are_named():
    with pytest.raises(ValueError, match="identifier 2 is empty"):
        Trie.build(*csr([[3], [4], [], [5]]), END)
    with pytest.raises(ValueError, match="identifier 1 contains the end token, 1"):
        Trie.build(*csr([[3], [4, END, 6]]), END)
    with pytest.raises(ValueError, match="at least one identifier"):
        Trie.build(*csr([]), END)
    with pytest.raises(ValueError, match="identifier 1 has the token -4"):
        Trie.build(*csr([[3], [2, -4]]), END)
    with pytest.raises(ValueError, match=f"identifier 0 has the token {2**31}"):
        Trie.build(*csr([[2**31]]), END)
    with pytest.raises(ValueError, match="the end token is -1"):
        Trie.build(*csr([[3]]), -1)
    for offsets in ([0, 1], [1, 2], [0, 2, 1, 2], []):
        with pytest.raises(ValueError, match=r"offsets of identifiers must ascend from 0 to .* 2"):
            Trie.build(np.array([3, 4]), np.array(offsets, dtype=np.int64), END)


def test_a_sequence_that_leaves_the_trie_is_named():
    trie = Trie.build(*csr([[5, 6], [5, 9]]), END)
    with pytest.raises(KeyError, match=r"sequence 1 begins with \[5, 7\], which begins no identifier"):
        trie.walk(*csr([[5, 6, END], [5, 7, END]]))
    with pytest.raises(KeyError, match=r"sequence 0 begins with \[5, 6, 1, 1\]"):
        trie.walk(*csr([[5, 6, END, END]]))


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 6), max_size=6).map(sorted), st.integers(-1, 7)), min_size=1)
)
def test_ranges_and_the_search_in_them(parts: list[tuple[list[int], int]]):
    values, edges = csr([part for part, _ in parts])
    values, wanted = np.append(values, 0), np.array([value for _, value in parts])
    offsets, places = ranges(edges[:-1], edges[1:])
    assert offsets.tolist() == edges.tolist()
    assert places.tolist() == list(range(edges[-1]))
    found = find_in_ranges(values, edges[:-1], edges[1:], wanted)
    for n, (part, value) in enumerate(parts):
        assert found[n] == (edges[n] + part.index(value) if value in part else -1)
