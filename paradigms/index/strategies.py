"""rel under every alignment strategy from one S: what few-shot alignment adaptation chooses among.

Qian et al. 2022 (ALIGNER), §3.1 and §4.1: a trained model is adapted to a task by choosing the number of
document tokens that each query token aligns with, k or a share p of the document's real length. Strategies
differ in A alone, so texts are encoded once, S = DᵀQ is computed once per candidate, and the columns of S
are sorted once: the k best tokens of a column begin the K best for every k ≤ K, and prefix sums over them
give Σ S ⊙ A and what Z needs for every strategy at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from paradigms.core import Tokens
from paradigms.data import Run
from paradigms.index.exact import ExactIndex
from paradigms.io.progress import progress_bar
from paradigms.model import Paradigm

Strategies = Mapping[str, tuple[str, Mapping[str, Any]]]
# name -> (a key of align.ALIGNMENTS, its knobs), in the order of the paper's Table 7.
STRATEGIES: Strategies = {f"k={k}": ("top_k", {"k": k}) for k in (1, 2, 4, 6, 8)} | {
    f"p={p:g}%": ("top_p", {"p": p / 100}) for p in (0.5, 1.0, 1.5, 2.0)
}
BLOCK = 1 << 14  # padded document tokens scored at once: their columns of S stay in a processor's cache


def rerank_strategies(
    index: ExactIndex,
    paradigm: Paradigm,
    queries: Mapping[str, str],
    run: Run,
    strategies: Strategies = STRATEGIES,
    *,
    progress: bool = False,
) -> dict[str, Run]:
    """Strategy -> the run's queries and documents with rel under that strategy, best first.

    Each equals `index.rerank(paradigm.with_alignment(align, **knobs), queries, run)`; all together read the
    candidates' tokens and compute S once. Equal scores are ordered by document id. KeyError names a query
    without a text or a document outside the index.
    """
    index.check(paradigm)
    unknown = next((query for query in run if query not in queries), None)
    if unknown is not None:
        raise KeyError(f"the run names the query {unknown!r}, which has no text")
    found: dict[str, Run] = {name: {} for name in strategies}
    with torch.inference_mode(), progress_bar(progress) as bar:
        task = bar.add_task(f"rerank {paradigm.recipe.name}, {len(strategies)} strategies", total=len(run))
        for query, candidates in run.items():
            ids = sorted(candidates)
            positions = index.positions(ids)
            encoded = paradigm.encode_queries([queries[query]])
            scores = np.zeros((len(strategies), len(ids)), dtype=np.float32)
            for members in blocks_of_like_length(np.diff(index.offsets)[positions]):
                documents = index.tokens(positions[members].tolist(), encoded.vectors.device)
                scored = strategy_scores(paradigm, documents, encoded, strategies)
                scores[:, members] = scored[:, 0].cpu().numpy()
            orders = np.argsort(-scores, axis=1, kind="stable")
            for name, order, row in zip(strategies, orders, scores, strict=True):
                found[name][query] = dict(zip([ids[n] for n in order], row[order].tolist(), strict=True))
            bar.advance(task)
    return found


def strategy_scores(
    paradigm: Paradigm, documents: Tokens, queries: Tokens, strategies: Strategies = STRATEGIES
) -> Float[Tensor, "s b n"]:
    """rel(d, q) under each of the strategies: `paradigm.with_alignment(align, **knobs).score`, stacked.

    documents: axes [1, n, i, h]. Computed in float32. Where tokens of equal similarity compete for the last
    place and their saliences differ, another of them may be taken. ValueError for a strategy that is not
    top_k or top_p.
    """
    b, n, j = len(queries.mask), documents.mask.shape[1], queries.mask.shape[-1]
    lengths = documents.mask[0].sum(-1)
    kept = {name: aligned(lengths, *strategy) for name, strategy in strategies.items()}
    most = max((int(k.max()) for k in kept.values() if k.numel()), default=1)
    S, u = _best_tokens(documents, queries, min(most, documents.mask.shape[-1]))
    A = u.view(b, j, n, -1) * queries.mask[:, 0, :, None, None]
    if queries.salience is not None:
        A = A * queries.salience[:, 0, :, None, None]
    sums = (S.view(b, j, n, -1) * A).sum(1).cumsum(-1)  # [b, n, K]: ΣS⊙A of the 1, 2, … best tokens
    weights = A.cumsum(-1)  # [b, j, n, K]: their ΣA for each query token
    scores = []
    for k in kept.values():
        last = (k.clamp(max=sums.shape[-1]) - 1)[:, None]
        total = sums.gather(-1, last.expand(b, n, 1))[..., 0]
        # For Z one document token stands for all that a query token aligns with: [b, n, 1, j].
        gathered = weights.gather(-1, last.expand(b, j, n, 1))[..., 0].transpose(1, 2)[:, :, None]
        scores.append(total / paradigm.normalise(gathered, documents, queries))
    return torch.stack(scores)


def blocks_of_like_length(lengths: np.ndarray) -> Iterator[np.ndarray]:
    """Places of documents, shortest first, together at most `BLOCK` padded tokens (or one document)."""
    order = np.argsort(lengths, kind="stable")
    start = 0
    while start < len(order):
        stop = start + 1
        while stop < len(order) and (stop + 1 - start) * lengths[order[stop]] <= BLOCK:
            stop += 1
        yield order[start:stop]
        start = stop


def aligned(lengths: Int[Tensor, " n"], align: str, knobs: Mapping[str, Any]) -> Int[Tensor, " n"]:
    """How many document tokens a query token aligns with, by the documents' real lengths: k, or
    max(⌊p·m⌋, 1) as `align.top_p` has it (Qian et al. 2022, §3.1)."""
    if align == "top_k" and knobs["k"] >= 1:
        return torch.full_like(lengths, knobs["k"])
    if align == "top_p" and 0 < knobs["p"] <= 1:
        return (knobs["p"] * lengths.double() + 1e-9).floor().long().clamp(min=1)
    raise ValueError(f"a strategy is top_k with k >= 1 or top_p with 0 < p <= 1, not {align} with {knobs}")


def _best_tokens(documents: Tokens, queries: Tokens, most: int) -> tuple[Tensor, Tensor]:
    """The `most` best document tokens of every column of S, best first: S and u_d, [b·j, n, most].

    Where a document has fewer tokens both are 0.
    """
    (_, n, i, h), q = documents.vectors.shape, queries.vectors
    S = (q.reshape(-1, h) @ documents.vectors.reshape(n * i, h).T).view(-1, n, i)
    absent = torch.finfo(S.dtype).min
    S.masked_fill_(~documents.mask[0], absent)
    if documents.salience is None:
        best = _sorted(S, most)
        there = best > absent
        return best.where(there, 0), there.to(best.dtype)
    best, places = _sorted_places(S, most)
    there = best > absent
    u = documents.salience[0].expand(len(S), n, i).gather(-1, places)
    return best.where(there, 0), u.where(there, 0)


# numpy's sort uses the processor's vector instructions; on rows as long as a document, sorting all of a row
# with it is many times faster than torch.topk.


def _sorted(S: Tensor, most: int) -> Tensor:
    """The `most` largest of each row, largest first."""
    if S.device.type != "cpu":
        return S.topk(most).values
    return torch.from_numpy(np.sort(S.numpy(), axis=-1)).flip(-1)[..., :most]


def _sorted_places(S: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """As `_sorted`, with their places in the row."""
    if S.device.type != "cpu":
        values, places = S.topk(most)
        return values, places
    # A float32 leaves the lower 29 bits of a float64 empty: they carry the place through the sort, and
    # rounding back drops them.
    keys = S.double()
    keys.view(torch.int64).bitwise_or_(torch.arange(S.shape[-1]))
    keys.numpy().sort(axis=-1)
    best = keys.flip(-1)[..., :most].contiguous()
    return best.float(), best.view(torch.int64) & ((1 << 29) - 1)
