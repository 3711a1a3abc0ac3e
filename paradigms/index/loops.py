"""The loops of the compressed index around `kernels`, in plain numba: lists and codes."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from typing import no_type_check

import numpy as np
from numba import njit

BINS = 1024  # of the histograms that stand for sorting the centroids' similarities


@no_type_check
@njit(nogil=True, cache=True)
def select(similarities, sizes, probes, wanted, chosen, missing):
    """Which lists some query token probes, and each token's estimated `wanted`-th best similarity.

    similarities [K, lanes], of `missing.shape[0]` query tokens; sizes [K]. chosen[c] = True for the `probes`
    most similar lists of each token, to a bin of a histogram. missing[j]: where Σ sizes over centroids of
    larger similarity reaches `wanted`, every document token standing where its centroid is.
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
    bin, found = histogram.shape[0] - 1, histogram[-1]
    while bin > 0 and found < wanted:
        bin -= 1
        found += histogram[bin]
    return bin


@no_type_check
@njit(nogil=True, cache=True)
def encode(residuals, spread, bits, step, fineness, codes, scales):
    """Codes and scales of residuals [t, h]: residual ≈ scale · spread · (code − (2^bits − 1) / 2).

    First the step that is best for a normal distribution of the residual's size, rounded to `fineness` per
    factor of two; then, for its codes, the scale of least squares. A residual of 0 has scale 0.
    """
    count, width = residuals.shape
    packed, parts, top = codes.shape[1], 8 // bits, np.float32((1 << bits) - 1)
    size, inverse = np.float32(0), np.zeros(width, np.float32)
    for h in range(width):
        if spread[h] > 0:
            inverse[h] = np.float32(1) / spread[h]
            size += spread[h] * spread[h]
    levels = np.empty(width, np.uint8)
    for t in range(count):
        square = np.float32(0)
        for h in range(width):
            square += residuals[t, h] * residuals[t, h]
        octaves = np.log2(max(np.sqrt(square / size), np.float32(1e-20)))
        unit = np.exp2(-np.rint(octaves * fineness) / fineness) / step
        over, under = np.float32(0), np.float32(0)
        for h in range(width):
            value = residuals[t, h] * inverse[h] * unit
            level = np.floor(min(max(value + top / 2 + np.float32(0.5), np.float32(0)), top))
            coded = spread[h] * (level - top / 2)
            over += residuals[t, h] * coded
            under += coded * coded
            levels[h] = np.uint8(level)
        scales[t] = over / under
        for byte in range(packed):
            value = 0
            for part in range(parts):
                value |= np.int64(levels[part * packed + byte]) << (part * bits)
            codes[t, byte] = value
