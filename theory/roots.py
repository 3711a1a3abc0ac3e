"""The root of a decreasing function, for many brackets at once: every required dimension is one."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from theory.checks import Array


def decreasing_root(function: Callable[[Array], Any], low: ArrayLike, high: ArrayLike) -> Array:
    """The x in [low, high] with f(x) = 0 for a decreasing f, per element; `low` if f(low) ≤ 0 already.

    Bracketing by false position with the Anderson-Björck weights: no derivative, superlinear, never outside
    the bracket; good to about 1e-12 relative. `function` maps an array to an array of the same shape, and
    f(high) ≤ 0 is required, else ValueError.
    """
    low, high = (np.array(x, dtype=np.float64) for x in np.broadcast_arrays(low, high))
    at_low, at_high = np.asarray(function(low)), np.asarray(function(high))
    if np.any((at_high > 0) & (at_low > 0)):
        raise ValueError(
            "the function is still positive at `high`; allowed: a bracket that contains its root"
        )
    done = at_low <= 0
    high, at_high = np.where(done, low, high), np.where(done, 0.0, at_high)
    for step in range(200):
        done = done | (at_high == 0) | (high - low <= 1e-12 * high)
        if np.all(done):
            break
        with np.errstate(invalid="ignore", divide="ignore"):
            point = (low * at_high - high * at_low) / (at_high - at_low)
            # Every fourth step halves, which bounds the work where f is flat or infinite at one end.
            point = np.where(np.isfinite(point) & (step % 4 < 3), point, 0.5 * (low + high))
            # A point a hair inside the nearer end lets the bracket close from the other side.
            point = np.where(done, high, np.clip(point, low + 4e-13 * high, high - 4e-13 * high))
            value = np.asarray(function(point))
            above = value > 0
            kept = 1 - value / np.where(above, at_low, at_high)
            kept = np.where(kept > 0, kept, 0.5)
            at_low, at_high = np.where(above, value, at_low * kept), np.where(above, at_high * kept, value)
        low, high = np.where(~done & above, point, low), np.where(~done & ~above, point, high)
        at_high = np.where(done, 0.0, at_high)
    return high
