"""The loops of the compressed index around `kernels`, in plain numba: lists and codes."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from typing import no_type_check

import numpy as np
from numba import njit

BINS = 1024  # of the histograms that replace sorting the centroids' similarities


@no_type_check
@njit(nogil=True, cache=True)
def select(similarities, sizes, probes, wanted, chosen, missing):
    """Select the lists to probe, and estimate each query token's `wanted`-th best similarity.

    similarities: [K, lanes], for `missing.shape[0]` query tokens. sizes: [K]. chosen[c] is set for the
    `probes` most similar lists of each token, to the precision of a histogram's bin. missing[j] is set to the
    similarity at which Σ sizes over more similar centroids reaches `wanted`, as if every document token were
    its centroid.
    """
    lists, counts = np.empty(BINS, np.int64), np.empty(BINS, np.int64)
    for j in range(missing.shape[0]):
        low = high = similarities[0, j]
        for c in range(similarities.shape[0]):
            low, high = min(low, similarities[c, j]), max(high, similarities[c, j])
        scale = np.float32(BINS - 1) / max(high - low, np.float32(1e-9))
        lists[:] = 0
        counts[:] = 0
        for c in range(similarities.shape[0]):
            bin = int((similarities[c, j] - low) * scale)
            lists[bin] += 1
            counts[bin] += sizes[c]
        last = _place(lists, probes)
        missing[j] = low + _place(counts, wanted) / scale
        for c in range(similarities.shape[0]):
            if int((similarities[c, j] - low) * scale) >= last:
                chosen[c] = True


@no_type_check
@njit(inline="always")
def _place(histogram, wanted):
    """The highest bin with at least `wanted` in it and above; 0 if there is none."""
    bin, counted = histogram.shape[0] - 1, histogram[-1]
    while bin > 0 and counted < wanted:
        bin -= 1
        counted += histogram[bin]
    return bin
