"""How many dimensions do your own vectors need? Lemma 1 of Luan et al. 2021, the exact law, and a simulation.

    python experiments/examples/check_a_bound.py vectors.npy      # rows: a query, its document, the others

The probability that one Gaussian projection to k dimensions ranks the wrong document first depends only on
the margin of the pair; k* is the smallest k that keeps this probability below 5 %.
"""

import sys

if __name__ == "__main__" and "--help" in sys.argv:  # before the slow imports
    sys.exit(print(__doc__))

import numpy as np

from theory.projections import normalized_margin, pairwise_error, pairwise_error_bound, required_dimension


def main(file: str = "", k: int = 64, draws: int = 2000) -> None:
    k, draws = int(k), int(draws)
    rng = np.random.default_rng(0)
    rows = (
        np.load(file, allow_pickle=False)
        if file
        else rng.standard_normal((6, 300)) + np.linspace(0, 1, 6)[:, None]
    )
    query, better, *others = rows if file else (rows[5], rows[5] + 2 * rng.standard_normal(300), *rows[:4])
    print(f"{'margin':>8} {'bound':>8} {'exact':>8} {'drawn':>8} {'k*':>6} {'k of Lemma 1':>13}")
    for worse in others:
        margin = float(normalized_margin(query, better, worse))
        if margin <= 0:
            print(f"{margin:8.3f} the document does not score higher")
            continue
        projected = rng.standard_normal((draws, k, len(query))) @ np.stack([query, better - worse], 1)
        share = float((np.prod(projected, -1).sum(-1) <= 0).mean())
        bound = float(pairwise_error_bound(k, margin))
        exact = float(pairwise_error(k, margin))
        needed = required_dimension(margin, 0.05, "exact")
        printed = required_dimension(margin, 0.05, "lemma1")
        print(f"{margin:8.3f} {bound:8.4f} {exact:8.4f} {share:8.4f} {needed:6.0f} {printed:13.0f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
