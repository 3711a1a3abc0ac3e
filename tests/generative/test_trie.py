"""The trie of identifiers against its slow twin: a set of sequences and their prefixes."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from paradigms.generative.constraints import Branches, Trie

END = 1
IDENTIFIERS = st.lists(st.lists(st.sampled_from([0, 2, 3, 7, 2**31 - 1]), min_size=1, max_size=4), min_size=1)


def csr(sequences: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    flat = np.array([token for sequence in sequences for token in sequence], dtype=np.int64)
    return flat, np.cumsum([0, *map(len, sequences)])


def rows(found: Branches) -> list[dict[int, list[int]]]:
    """For each prefix: token → state."""
    parts = zip(found.offsets[:-1], found.offsets[1:], strict=True)
    return [dict(zip(found.tokens[a:b].tolist(), found.states[a:b].tolist(), strict=True)) for a, b in parts]


def reached(trie: Trie, *tokens: int) -> np.ndarray:
    """The state after these tokens."""
    state = trie.start()
    for token in tokens:
        state = np.array([rows(trie.branches(state))[0][token]])
    return state


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
