"""Compiled loops for decoding and SEAL. Import this module inside functions: numba loads slowly."""

from typing import no_type_check

import numpy as np

from paradigms.io.compiled import cached_njit


@no_type_check
@cached_njit(nogil=True)
def score(occurrences, bounds, starts, ends, text, grams, offsets, weights, late, size, beta):
    """Compute SEAL's score W of each document.

    occurrences[bounds[d]:bounds[d + 1]] contains document d's occurrences as [key, position]. The document's
    tokens are text[starts[d]:ends[d]], all below `size`.
    """
    scores = np.zeros(len(starts))
    covered = np.full(size, -1)  # the last document in which a token was covered
    counted = np.full(size, -1)  # the last count of different tokens that included a token
    count = 0
    for d in range(len(starts)):
        free = np.ones(ends[d] - starts[d], np.bool_)
        row = bounds[d]
        while row < bounds[d + 1]:
            key = occurrences[row, 0]
            placed = False
            first = offsets[key]
            last = offsets[key + 1]
            while row < bounds[d + 1] and occurrences[row, 0] == key:
                start = occurrences[row, 1]
                fits = True
                for i in range(start, start + last - first):
                    fits = fits and free[i]
                if fits:
                    placed = True
                    for i in range(start, start + last - first):
                        free[i] = False
                row += 1
            if not placed:
                continue
            different = new = 0
            count += 1
            for i in range(first, last):
                token = grams[i]
                if counted[token] != count:
                    counted[token] = count
                    different += 1
                    if covered[token] != d:
                        new += 1
                    covered[token] = d
            scores[d] += weights[key] * (1 - beta + beta * new / different)
        count += 1
        for i in range(len(free)):
            token = text[starts[d] + i]
            if free[i] and token < len(late) and late[token] > 0 and counted[token] != count:
                counted[token] = count
                scores[d] += late[token] * (1 if covered[token] != d else 1 - beta)
    return scores


@no_type_check
@cached_njit(nogil=True)
def previous_smaller(values):
    """max{j < i : values[j] < values[i]} for each i, or 0 if there is none."""
    previous = np.zeros(len(values), np.int64)
    for i in range(1, len(values)):
        j = i - 1
        while j > 0 and values[j] >= values[i]:
            j = previous[j]
        previous[i] = j
    return previous


@no_type_check
@cached_njit(nogil=True, fastmath={"reassoc", "contract"})
def rms_norm(x, weight, eps, out):
    """out = g ⊙ x / √(mean(x²) + eps) for every row of [b, n, m, h]; torch takes six operations."""
    rows = x.size // x.shape[-1]
    width = x.shape[-1]
    x, out = x.reshape(rows, width), out.reshape(rows, width)
    for i in range(rows):
        total = x[i, 0] * x[i, 0]
        for j in range(1, width):
            total += x[i, j] * x[i, j]
        scale = weight.dtype.type(1 / np.sqrt(total / width + eps))
        for j in range(width):
            out[i, j] = weight[j] * (x[i, j] * scale)
