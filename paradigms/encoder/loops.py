"""Compiled loops for an encoder's 8-bit forward pass: everything between matrix products, row by row.

The input `product` is not yet multiplied by the tokens' scales: a layer's output is `product[r] * scales[r] +
bias`. The loops return rows as bytes with new scales, as in `int8`. A loop does all its work on
a row while the row is in the cache; torch would pass over all rows once per operation. `no_type_check`
disables the tests' run-time type checks.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped, call-overload"
from typing import no_type_check

import numpy as np
from numba import njit

from paradigms.encoder.int8 import LARGEST, LEAST, ZERO
from paradigms.io.compiled import cached_njit

# No flags for NaN and ±∞: a damaged weight shows in the output.
OPTIONS = {
    "nogil": True,
    "fastmath": {"nsz", "arcp", "contract", "afn", "reassoc"},
    "error_model": "numpy",
}
loop = cached_njit(**OPTIONS)
helper = njit(inline="always", **OPTIONS)

F = np.float32
INT = np.int32
SIGN = INT(31)
SIZE = INT(0x7FFFFFFF)
HIGH = INT(16)
BIAS = INT(127)
MANTISSA = INT(23)
ABSENT = INT(np.float32(-3e38).view(np.int32))
LOWEST = F(LEAST * LARGEST)
TOP = F(LARGEST)
UP = F(ZERO + 0.5)
ZEROS = F(0)
HALF = F(0.5)
ONE = F(1)
ROOT = F(0.5**0.5)
BOUND = F(4)
NARROW = F(1 / 16)
# erf(x) = x P(x²/16) / Q(x²/16) within 2.3e-5 for |x| ≤ 4, and 2^x within 4e-6 for 0 ≤ x < 1: a hundredth of
# a step of 8 bits. Coefficients fitted here by least squares.
P0, P1, P2, P3 = F(1.128275), F(2.766448), F(10.52865), F(2.490122)
Q1, Q2, Q3 = F(7.775611), F(25.459214), F(33.41776)
E0, E1, E2, E3, E4 = F(1.0000036), F(0.6929695), F(0.2416213), F(0.0517177), F(0.0136840)


@no_type_check
@helper
def _rounded(row, out, buffer):
    """Write a row as bytes and return its scale. buffer: int32 [1], a buffer for reading bits as a float.

    Magnitudes are compared as integers, by their bits, because compilers can vectorise this.
    """
    bits = row.view(np.int32)
    best = INT(0)
    for k in range(row.shape[0]):
        best = max(best, bits[k] & SIZE)
    buffer[0] = best
    top = max(buffer.view(np.float32)[0], LOWEST)
    steps = TOP / top
    for k in range(row.shape[0]):
        out[k] = np.uint8(INT(row[k] * steps + UP))
    return top / TOP


@no_type_check
@loop
def quantise(x, out, scales):
    """Quantise the rows of x to bytes, with one scale per row."""
    buffer = np.empty(1, np.int32)
    for r in range(x.shape[0]):
        scales[r] = _rounded(x[r], out[r], buffer)


@no_type_check
@loop
def finish(product, scales, bias):
    """Complete a layer's output in place: product · scale + bias."""
    for r in range(product.shape[0]):
        for k in range(bias.shape[0]):
            product[r, k] = product[r, k] * scales[r] + bias[k]


@no_type_check
@loop
def activate(product, scales, bias, out, new):
    """Quantise gelu(product · scale + bias), where gelu(x) = x/2 · (1 + erf(x/√2))."""
    buffer = np.empty(1, np.int32)
    for r in range(product.shape[0]):
        row = product[r]
        for k in range(bias.shape[0]):
            value = row[k] * scales[r] + bias[k]
            x = min(max(value * ROOT, -BOUND), BOUND)
            t = x * x * NARROW
            above = ((P3 * t + P2) * t + P1) * t + P0
            below = ((Q3 * t + Q2) * t + Q1) * t + ONE
            row[k] = HALF * value * (ONE + x * above / below)
        new[r] = _rounded(row, out[r], buffer)


@no_type_check
@loop
def normalise(product, scales, bias, x, weight, shift, eps, out, new):
    """Set x = norm(x + product · scale + bias) in place, where norm is the layer norm, and quantise x."""
    buffer = np.empty(1, np.int32)
    count = F(bias.shape[0])
    for r in range(product.shape[0]):
        row = x[r]
        total = ZEROS
        square = ZEROS
        for k in range(bias.shape[0]):
            row[k] += product[r, k] * scales[r] + bias[k]
            total += row[k]
        mean = total / count
        for k in range(bias.shape[0]):
            square += (row[k] - mean) * (row[k] - mean)
        inverse = ONE / np.sqrt(square / count + eps)
        for k in range(bias.shape[0]):
            row[k] = (row[k] - mean) * inverse * weight[k] + shift[k]
        new[r] = _rounded(row, out[r], buffer)


@no_type_check
@loop
def attend(qkv, keep, scale, out):
    """Compute softmax(scale · q kᵀ) v for all heads, over the keys with keep[x, j] = 1, in float32.

    qkv: [x, l, 3, m, h]. out: [x, l, m, h]. For short texts, a product per head takes torch longer than this.
    """
    texts, length, _, heads, width = qkv.shape
    weights = np.empty(length, np.float32)
    for x in range(texts):
        for m in range(heads):
            for r in range(length):
                q = qkv[x, r, 0, m]
                row = out[x, r, m]
                best = F(-np.inf)
                for j in range(length):
                    k = qkv[x, j, 1, m]
                    score = ZEROS
                    for h in range(width):
                        score += q[h] * k[h]
                    weights[j] = score * scale
                    if keep[x, j] > 0 and weights[j] > best:
                        best = weights[j]
                total = ZEROS
                for j in range(length):
                    weights[j] = np.exp(min(weights[j] - best, ZEROS)) * keep[x, j]
                    total += weights[j]
                row[:] = ZEROS
                for j in range(length):
                    v = qkv[x, j, 2, m]
                    share = weights[j] / total
                    for h in range(width):
                        row[h] += share * v[h]


@no_type_check
@loop
def softmax(S, keep, scale):
    """Set S = softmax(scale · S) in place over the keys with keep[n, j] = 1; other entries become 0.

    S: bfloat16 numbers, as uint16 bits [n, rows, keys]. scale: the factor, already multiplied by log₂ e.
    keep: float32 [n, keys], 0 or 1.
    """
    keys = S.shape[2]
    values = np.empty(keys, np.float32)
    powers = np.empty(keys, np.float32)
    bits = values.view(np.int32)
    exponents = powers.view(np.int32)
    buffer = np.empty(1, np.int32)
    for n in range(S.shape[0]):
        for r in range(S.shape[1]):
            row = S[n, r]
            best = INT(-SIZE)
            for j in range(keys):
                bits[j] = INT(row[j]) << HIGH if keep[n, j] > 0 else ABSENT
            for j in range(keys):  # order by value: negative numbers have reversed bits
                best = max(best, bits[j] ^ ((bits[j] >> SIGN) & SIZE))
            buffer[0] = best ^ ((best >> SIGN) & SIZE)
            top = buffer.view(np.float32)[0]
            for j in range(keys):
                x = max((values[j] - top) * scale, F(-126))
                integer = np.floor(x)
                t = x - integer
                values[j] = ((((E4 * t + E3) * t + E2) * t + E1) * t + E0) * keep[n, j]
                exponents[j] = (INT(integer) + BIAS) << MANTISSA
            total = ZEROS
            for j in range(keys):
                values[j] *= powers[j]
                total += values[j]
            total = ONE / total
            for j in range(keys):
                values[j] *= total
            for j in range(keys):  # round to the nearest bfloat16, halves up
                row[j] = np.uint16((bits[j] + INT(0x8000)) >> HIGH)
