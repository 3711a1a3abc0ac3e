"""Check that arguments lie in the range for which a statement holds; return float64 or raise ValueError.

Every check takes a scalar or an array-like and returns a float64 array of the same shape, which may share
memory with the argument. Error messages contain the argument's name and value, and the allowed values.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


def margins(value: ArrayLike, name: str = "margin") -> Array:
    """Check normalized margins 0 < ε ≤ 1 of a correctly ordered pair (Luan et al. 2021, Definition 2.1).

    Margins below 1e-150 also raise ValueError, because ε² underflows.
    """
    array = _numbers(value, name)
    return _require(array, (array >= 1e-150) & (array <= 1), name, "in (0, 1], and at least 1e-150")


def dimensions(value: ArrayLike, name: str = "k") -> Array:
    """Check that dimensions k are finite and at least 1. The exact laws extend to real k."""
    array = _numbers(value, name)
    return _require(array, (array >= 1) & np.isfinite(array), name, "finite and at least 1")


def probability(value: ArrayLike, name: str = "beta") -> Array:
    """Check probabilities strictly inside (0, 1), such as error levels."""
    array = _numbers(value, name)
    return _require(array, (array > 0) & (array < 1), name, "in (0, 1)")


def interval(value: ArrayLike, name: str, least: float, most: float) -> Array:
    """Check numbers in the closed interval [least, most], such as angles."""
    array = _numbers(value, name)
    return _require(array, (array >= least) & (array <= most), name, f"in [{least:g}, {most:g}]")


def positive(value: ArrayLike, name: str) -> Array:
    """Check finite numbers > 0, such as temperatures and constants of a bound."""
    array = _numbers(value, name)
    return _require(array, (array > 0) & np.isfinite(array), name, "finite and greater than 0")


def whole(value: ArrayLike, name: str, least: float = 1, most: float = np.inf) -> Array:
    """Check whole numbers least ≤ n ≤ most, such as ranks, counts of documents and sample sizes."""
    array = _numbers(value, name)
    upto = f" and at most {most:g}" if np.isfinite(most) else ""
    allowed = np.isfinite(array) & (array == np.floor(array)) & (array >= least) & (array <= most)
    return _require(array, allowed, name, f"a whole number of at least {least:g}{upto}")


def vector(value: ArrayLike, name: str, *, axes: int | None = None, nonzero: bool = True) -> Array:
    """Check finite vectors along the last axis, [..., v], v ≥ 1.

    axes: required number of axes, 1 for a single vector, 2 for a matrix of row vectors.
    nonzero: whether zero vectors raise ValueError.
    """
    array = _numbers(value, name)
    if array.ndim == 0 or array.shape[-1] == 0 or (axes is not None and array.ndim != axes):
        shape = "at least one axis" if axes is None else f"{axes} axes"
        raise ValueError(f"{name} has shape {array.shape}; allowed: {shape}, the last of length at least 1")
    _require(array, np.isfinite(array), name, "finite numbers only")
    if nonzero and not np.any(array != 0, axis=-1).all():
        raise ValueError(f"{name} is a zero vector or contains one; allowed: non-zero vectors")
    return array


def finite(**matrices: Any) -> None:
    """Raise ValueError, naming the keyword argument, if a sparse matrix contains NaN or infinity."""
    for name, matrix in matrices.items():
        if not np.isfinite(matrix.data).all():
            raise ValueError(f"{name} contains numbers that are not finite; allowed: finite numbers only")


def plain(value: Any) -> Any:
    """Convert a zero-dimensional array to a Python float; return other arrays unchanged."""
    return float(value) if np.ndim(value) == 0 else value


def _numbers(value: ArrayLike, name: str) -> Array:
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} = {value!r} cannot be read as an array of numbers") from error


def _require(array: Array, allowed: NDArray[np.bool_], name: str, domain: str) -> Array:
    if not np.all(allowed):
        wrong = array[~allowed].ravel()
        problem = f"= {wrong[0]:.6g}" if array.ndim == 0 else f"contains {wrong[0]:.6g} ({wrong.size} such)"
        raise ValueError(f"{name} {problem}; allowed: {domain}")
    return array
