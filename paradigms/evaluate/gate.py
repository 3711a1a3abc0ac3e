"""Measure how much salience differs between a document's tokens, that is, whether a gate has any effect."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Integer

FLAT = 0.1  # relative deviation below which a gate is flat, and verdicts ignore it
SILENT = 0.01  # share of a document's largest salience below which a token is silent


@dataclass(frozen=True)
class Gate:
    """Salience statistics over all document tokens of a collection."""

    mean: float  # over tokens
    deviation: float  # standard deviation within a document, mean over documents
    relative: float  # deviation / mean within a document, averaged over documents with salience
    sparsity: float  # share of silent tokens

    @property
    def flat(self) -> bool:
        """Whether all tokens within a document have about the same salience."""
        return self.relative < FLAT

    def __str__(self) -> str:
        flat = f", less than {FLAT:g}: the gate is flat" if self.flat else ""
        return (
            f"salience {self.mean:.3f} on average; its deviation within a document is {self.deviation:.3f}, "
            f"{self.relative:.3f} of the mean{flat}; {self.sparsity:.0%} of the tokens are silent"
        )


def measure_gate(salience: Float[np.ndarray, " t"], offsets: Integer[np.ndarray, " n_and_one"]) -> Gate:
    """Compute a gate's statistics. Document n has the tokens salience[offsets[n]:offsets[n + 1]].

    >>> measure_gate(np.array([2.0, 0.0, 1.0, 1.0]), np.array([0, 2, 4]))
    Gate(mean=1.0, deviation=0.5, relative=0.5, sparsity=0.25)
    """
    lengths = np.diff(offsets)
    salience = salience[offsets[0] : offsets[-1]].astype(float)
    owners = np.repeat(np.arange(len(lengths)), lengths)
    sizes = np.maximum(lengths, 1)
    means = np.bincount(owners, salience, len(lengths)) / sizes
    squares = np.bincount(owners, (salience - means[owners]) ** 2, len(lengths)) / sizes
    largest = np.zeros(len(lengths))
    np.maximum.at(largest, owners, salience)
    silent = salience <= SILENT * largest[owners]
    deviations = np.sqrt(squares)
    weighs = means > 0
    real = lengths > 0

    def mean(values: np.ndarray) -> float:
        return float(values.mean()) if len(values) else 0.0

    relative = mean(deviations[weighs] / means[weighs])
    return Gate(mean(salience), mean(deviations[real]), relative, mean(silent))
