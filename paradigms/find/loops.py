"""Loops of the compressed index over lists of documents and over bounds, compiled by numba."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
import math
from typing import no_type_check

import numpy as np

from paradigms.io.compiled import cached_njit
from paradigms.scoring.tiles import at, prefetch

AHEAD = 16  # distance, in entries, from the entry being read to the one being prefetched
BINS = 1024  # bins of the histograms that replace sorting similarities
STEPS = 512  # entries of ABOVE per standard deviation
# The normal distribution function Φ at n / STEPS, for n from −6 · STEPS to 6 · STEPS.
ABOVE = np.array([0.5 * math.erfc(-n / STEPS / math.sqrt(2)) for n in range(-6 * STEPS, 6 * STEPS + 1)])


@no_type_check
@cached_njit(nogil=True)
def select(similarities, sizes, probes, rank, spread, least, missing):
    """Find each query token's lowest similarity to a probed list; estimate its `rank`-th best to a token.

    similarities: of the K centroids to query tokens, [K, lanes]; only the first `missing.shape[0]` lanes are
    used. sizes: tokens per list, [K]. least[j] is set to the similarity of token j to its `probes`-th most
    similar list, to the precision of a histogram bin. missing[j] is set to the similarity m above which
    `rank` tokens are expected. A token's similarity is modelled as its centroid's similarity plus normal
    noise of standard deviation spread[j]:

        Σ_c sizes[c] · Φ((similarities[c, j] − m) / spread[j]) = rank.

    rank = 0 saves the time of this estimate.
    """
    count = missing.shape[0]
    low = similarities[0, :count].copy()
    high = similarities[0, :count].copy()
    for c in range(similarities.shape[0]):
        for j in range(count):
            low[j] = min(low[j], similarities[c, j])
            high[j] = max(high[j], similarities[c, j])
    scale = np.float32(BINS - 1) / np.maximum(high - low, np.float32(1e-9))
    lists = np.zeros((count, BINS), np.int64)
    tokens = np.zeros((count, BINS), np.int64)
    half = low + (high - low) / 2  # few lists lie above; the others are only counted if needed
    for c in range(similarities.shape[0]):
        for j in range(count):
            if similarities[c, j] >= half[j]:
                bin = int((similarities[c, j] - low[j]) * scale[j])
                lists[j, bin] += 1
                tokens[j, bin] += sizes[c]
    for j in range(count):
        noise = spread[j] * scale[j]
        reached = blurred(tokens[j], rank, noise)
        if lists[j].sum() < probes or (rank and reached - 4 * noise < BINS // 2):
            for c in range(similarities.shape[0]):
                if similarities[c, j] < half[j]:
                    bin = int((similarities[c, j] - low[j]) * scale[j])
                    lists[j, bin] += 1
                    tokens[j, bin] += sizes[c]
            reached = blurred(tokens[j], rank, noise)
        missing[j] = low[j] + reached / scale[j]
        # The product of a list at the bin's edge may be rounded to the bin above.
        least[j] = low[j] + (place(lists[j], probes) - np.float32(1e-3)) / scale[j]


@no_type_check
@cached_njit(nogil=True)
def place(histogram, count):
    """Return the highest bin such that the counts from this bin upwards sum to at least `count`, or 0."""
    bin = histogram.shape[0] - 1
    counted = histogram[-1]
    while bin > 0 and counted < count:
        bin -= 1
        counted += histogram[bin]
    return bin


@no_type_check
@cached_njit(nogil=True)
def blurred(histogram, count, spread):
    """Return the result of `place` on a histogram blurred by normal noise of deviation `spread`, in bins."""
    if spread < 0.5 or count == 0:
        return place(histogram, count)
    bins = histogram.shape[0]
    # above[2 * bins + d]: the share of a bin that noise leaves above the bin d lower
    above = np.empty(3 * bins)
    step = STEPS / spread
    last = ABOVE.shape[0] - 1
    for n in range(3 * bins):
        above[n] = ABOVE[max(0, min(last, last // 2 + round((n - 2 * bins) * step)))]
    low = 0  # the expected number above it is at least `count`, or it is 0
    high = 2 * bins
    while high - low > 1:
        middle = (low + high) // 2
        total = 0.0
        for bin in range(bins):
            total += histogram[bin] * above[2 * bins + bin - middle]
        if total >= count:
            low = middle
        else:
            high = middle
    return low


@no_type_check
@cached_njit(nogil=True)
def bound(similarities, least, weights, tokens, lists, begins, ends, entries, alive, state, documents):
    """bound(d) = Σⱼ weights[j] max(0, max_c similarities[c, j] − least[j]) for each document d in a list.

    c runs over the lists that contain d and that token j probes.

    tokens, lists: the pairs (j, c), sorted by j and then by descending similarities[c, j]. begins, ends:
    range of each pair's list in `entries`. alive: False for deleted documents, which have no bound. state:
    [documents, 2], initially 0; state[d, 0] is set to the bound. documents: output. Returns the number of
    documents with a bound.
    """
    met = 0
    for n in range(tokens.shape[0]):
        j = tokens[n]
        turn = np.float32(tokens[n] + 1)
        value = weights[j] * (similarities[lists[n], j] - least[j])
        for entry in range(begins[n], ends[n]):
            if entry + AHEAD < ends[n]:
                prefetch(at(state, min(np.int64(entries[entry + AHEAD]), alive.shape[0] - 1)))
            d = entries[entry]
            if d < alive.shape[0] and state[d, 1] != turn and (state[d, 1] or alive[d]):
                if state[d, 1] == 0:
                    documents[met] = d
                    met += 1
                state[d, 0] += value
                state[d, 1] = turn
    return met


@no_type_check
@cached_njit(nogil=True)
def bound_unlisted(
    similarities, least, weights, chosen, centroids, offsets, first, stop, alive, state, documents, met
):
    """Extend `bound` to the documents `first` to `stop`, whose tokens are not in the lists yet.

    chosen[c]: whether any query token probes list c. met, returned: number of documents in `documents`.
    """
    maxima = np.empty(least.shape[0], np.float32)
    for d in range(first, stop):
        listed = False
        for token in range(offsets[d], offsets[d + 1] if alive[d] else offsets[d]):
            c = min(np.int64(centroids[token]), similarities.shape[0] - 1)
            if chosen[c]:
                if not listed:
                    maxima[:] = least
                    listed = True
                for j in range(least.shape[0]):
                    maxima[j] = max(maxima[j], similarities[c, j])
        if listed:
            state[d, 0] = (weights[: least.shape[0]] * (maxima - least)).sum()
            documents[met] = d
            met += 1
    return met


@no_type_check
@cached_njit(nogil=True)
def cut(entries, begins, ends, document, out):
    """Set out[n] to the first position from begins[n] to ends[n] whose entry is ≥ `document`, or to ends[n].

    Entries are in ascending order between begins[n] and ends[n].
    """
    for n in range(begins.shape[0]):
        low = begins[n]
        high = ends[n]
        while low < high:
            middle = (low + high) // 2
            if entries[middle] < document:
                low = middle + 1
            else:
                high = middle
        out[n] = low


@no_type_check
@cached_njit(nogil=True)
def sizes(centroids, lists):
    """Count the tokens in each list. Tokens with out-of-range centroids are counted in the last list."""
    counts = np.zeros(lists, np.int64)
    for c in centroids:
        counts[min(np.int64(c), lists - 1)] += 1
    return counts


@no_type_check
@cached_njit(nogil=True)
def sort(centroids, offsets, lists, low, begins, entries):
    """Fill `entries` with the documents whose tokens are in each of the lists `low`, low + 1, …

    lists: total number of lists. begins: the position, among the entries of all lists, at which each of these
    lists begins, and the end of the last of them. entries[0] is at position begins[0].
    """
    free = begins[:-1] - begins[0]
    for d in range(offsets.shape[0] - 1):
        for token in range(offsets[d], offsets[d + 1]):
            c = min(np.int64(centroids[token]), lists - 1) - low
            if 0 <= c < free.shape[0]:
                entries[free[c]] = d
                free[c] += 1
