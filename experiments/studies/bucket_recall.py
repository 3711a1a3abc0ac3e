"""Measure the recall of fixed-dimensional encodings, and compare it with a prediction from token angles."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from studies.pages import Rows

from paradigms.core import Tokens
from paradigms.muvera import FixedEncoding
from paradigms.store import Store
from theory.buckets import expected_recall, expected_shares

DOCUMENTS = 200  # from the start of the sample
QUERIES = 6
FIRST = 10  # number of best documents that an index should find
CANDIDATES = 20  # number of candidates from fixed encodings that should include the best documents
MEAN = 2.0  # norm of the mean that is added to unit vectors in an extra dimension


def law(exact: Store, queries: Tokens) -> Rows:
    """Predict and measure the recall of the exact top ten among the first CANDIDATES that encodings find.

    Vectors are measured in three forms: unchanged; with a mean of norm MEAN added in an extra dimension,
    which does not change the order by MaxSim; and with this mean added, then subtracted from documents and,
    for the planes only, from queries.
    """
    count = min(DOCUMENTS, len(exact))
    documents, queries = exact.tokens(np.arange(count)), queries[:QUERIES]
    pad = torch.nn.functional.pad
    moved = [replace(t, vectors=pad(t.vectors, (0, 1), value=MEAN)) for t in (documents, queries)]
    cases = {
        "raw": (documents, queries, None),
        f"mean of norm {MEAN:g} added": (*moved, None),
        "mean added, then centred": (*moved, moved[0].vectors[moved[0].mask].mean(0)),
    }
    rows: Rows = []
    for case, (D, Q, centre) in cases.items():
        for planes in (2, 4, 6):
            means, variances, best = moments(D, Q, centre, planes)
            for repetitions in (1, 4, 16):
                each = zip(means, variances, best, strict=True)
                expected = [expected_recall(m, v, repetitions, b, CANDIDATES) for m, v, b in each]
                recalls = []
                for seed in range(16 // repetitions):
                    encoding = FixedEncoding(planes, repetitions, inner=0, seed=seed)
                    scores = encoding.queries(Q, centre) @ encoding.documents(D, centre).T
                    top = scores.topk(min(CANDIDATES, count)).indices.numpy()
                    recalls.append([np.isin(b, t).mean() for b, t in zip(best, top, strict=True)])
                row = {"vectors": case, "planes": planes, "repetitions": repetitions, "documents": count}
                row |= {"queries": len(best), "predicted": float(np.mean(expected))}
                rows.append(row | {"measured": np.mean(recalls, 0).tolist()})
    return rows


def moments(
    D: Tokens, Q: Tokens, centre: torch.Tensor | None, planes: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return means and variances of one repetition's scores, [b, n], and the exact top ten, [b, 10]."""
    zero = torch.zeros(D.vectors.shape[-1]) if centre is None else centre
    means, variances, exact = (np.zeros((len(Q.mask), D.mask.shape[1])) for _ in range(3))
    for b, n in np.ndindex(*means.shape):
        d = (D.vectors[0, n][D.mask[0, n]] - zero).double()
        q = Q.vectors[b, 0][Q.mask[b, 0]].double()
        S = (d @ q.T).numpy()
        unit = [torch.nn.functional.normalize(t, dim=-1) for t in (d, q - zero)]
        A = expected_shares(np.arccos((unit[0] @ unit[1].T).clamp(-1, 1).numpy()), planes)
        mean = (A * S).sum(0)
        means[b, n], variances[b, n] = mean.sum(), ((A * S**2).sum(0) - mean**2).sum()
        exact[b, n] = S.max(0).sum()
    return means, np.maximum(variances, 0), np.argsort(-exact, 1)[:, :FIRST]
