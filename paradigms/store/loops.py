"""The loop that quantises residuals, compiled by numba."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from typing import no_type_check

import numpy as np

from paradigms.io.compiled import cached_njit


@no_type_check
@cached_njit(nogil=True)
def encode(residuals, spread, bits, step, fineness, codes, scales):
    """residual ≈ scale · spread · (code − (2^bits − 1) / 2): quantise residuals [t, h] to codes and scales.

    Each residual is quantised with the best step for a normal distribution of its size, rounded to `fineness`
    steps per factor of two. The scale, 0 for a residual of 0, is then fitted to the codes by least squares.
    """
    count, width = residuals.shape
    packed = codes.shape[1]
    parts = 8 // bits
    top = np.float32((1 << bits) - 1)
    size = np.float32(0)
    inverse = np.zeros(width, np.float32)
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
        over = np.float32(0)
        under = np.float32(0)
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
