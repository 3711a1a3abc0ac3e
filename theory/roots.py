"""The root of a decreasing function of one number: every required dimension is one."""

from collections.abc import Callable

from scipy import optimize


def decreasing_root(function: Callable[[float], float], low: float, high: float) -> float:
    """The x in [low, high] with f(x) = 0 for a decreasing f, within 1e-12 of itself; `low` if f(low) ≤ 0.

    ValueError if f(high) > 0.
    """
    if function(low) <= 0:
        return low
    if function(high) > 0:
        raise ValueError(
            "the function is still positive at `high`; allowed: a bracket that contains its root"
        )
    return float(optimize.brentq(function, low, high, rtol=1e-12))
