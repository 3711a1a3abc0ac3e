"""Find near-duplicates among texts, exactly: a set-similarity join over word triples."""

import re

import numpy as np

BITS = 21  # bits of a word's number; three numbers fit in an int64


def words(text: str) -> list[str]:
    """Return the text's words in lower case, without punctuation."""
    return re.findall(r"\w+", text.lower())


def phrase(text: str) -> str:
    """Return the words with spaces around them, so that substrings consist of whole words."""
    return f" {' '.join(words(text))} "


def near_copies(texts: list[str], threshold: float, originals: int | None = None) -> list[bool]:
    """Flag texts x with J = |x ∩ y| / |x ∪ y| ≥ threshold for an earlier text y that is not itself a copy.

    x and y are sets of word triples. originals: the first `originals` texts never count as copies, and the
    others are compared only with these. Prefix filtering (Chaudhuri et al., ICDE 2006) is exact: of elements
    in one order, sets with J ≥ t share one among the first |x| − ⌈t·|x|⌉ + 1 of each set.
    """
    triples_of = _word_triples(texts)
    every = np.concatenate([*triples_of, np.empty(0, np.int64)])
    _, numbered, counts = np.unique(every, return_inverse=True, return_counts=True)
    rank = np.argsort(np.argsort(counts, kind="stable"))
    ends = np.cumsum([len(triples) for triples in triples_of])
    by_rarity = [np.sort(rank[part]) for part in np.split(numbered, ends[:-1])] if texts else []

    holders: dict[int, list[int]] = {}
    copies: list[bool] = []
    for text, triples in enumerate(by_rarity):
        size = len(triples)
        prefix = triples[: size - int(np.ceil(threshold * size)) + 1].tolist()
        earlier = {holder for triple in prefix for holder in holders.get(triple, ())}
        original = originals is not None and text < originals
        copies.append(not original and any(jaccard(triples, by_rarity[n]) >= threshold for n in earlier))
        if original or (originals is None and not copies[-1]):
            for triple in prefix:
                holders.setdefault(triple, []).append(text)
    return copies


def jaccard(x: np.ndarray, y: np.ndarray) -> float:
    shared = len(np.intersect1d(x, y, assume_unique=True))
    return shared / (len(x) + len(y) - shared)


def _word_triples(texts: list[str]) -> list[np.ndarray]:
    """Return the distinct triples of consecutive words in each text, each triple as one integer."""
    numbers: dict[str, int] = {}
    triples = []
    for text in texts:
        row = np.array([numbers.setdefault(word, len(numbers)) for word in words(text)], dtype=np.int64)
        triples.append(np.unique(row[:-2] << 2 * BITS | row[1:-1] << BITS | row[2:]))
    if len(numbers) >= 1 << BITS:
        raise ValueError(f"{len(numbers):,} different words do not fit into {BITS} bits")
    return triples
