"""Train free vectors, without text, directly on relevance judgments, and measure their critical n.

Weller et al. 2025, "On the Theoretical Limitations of Embedding-Based Retrieval", Figure 2: the critical n is
the largest number n of documents for which all sets of k documents are answered, for one vector and for each
alignment A.
"""

from itertools import takewhile
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from studies.claims import printed
from studies.curves import Curves
from studies.pages import Rows

from paradigms.align import Alignment, AllPairs, DocumentToQuery, QueryToDocument, TopK, one
from paradigms.core import Tokens, rel
from paradigms.io.device import chosen_device
from paradigms.io.progress import progress_bar
from theory import capacity

# A, and "vectors per document × vectors per query". M is one of settings.tokens.
FREE: dict[str, tuple[Alignment, str]] = {
    "one vector": (AllPairs(), "1 × 1"),
    "ME-BERT: max over M": (QueryToDocument(), "M × 1"),
    "ColBERT: q→d": (QueryToDocument(), "M × M"),
    "MVDR: q←d": (DocumentToQuery(), "M × M"),
    "ALIGNER: top-2": (TopK(k=2), "M × M"),
}
# first and last temperature of the loss; small margins count only late
HOT = 0.1
COLD = 0.005
# Adam's first and last learning rate
RATE = 0.05
FINAL_RATE = 1e-4
GROWTH = 1.15  # growth factor of n from one optimisation to the next
LOOK = 50  # steps between checks whether all sets are answered
DEVICE = chosen_device()
PRINTED = printed("weller2025")


def free(settings: Any) -> Rows:
    """Measure the critical n for every combination of an alignment with M and h."""
    rows: Rows = []
    shapes = [
        (name, M) for name, (_, shape) in FREE.items() for M in (settings.tokens if "M" in shape else [1])
    ]
    with progress_bar() as bar:
        for name, M in bar.track(shapes, description="free vectors"):
            start = settings.relevant + 1
            for h in settings.dimensions:
                critical_n = critical(name, M, h, start, settings)
                start = max(start, int(critical_n.min() / GROWTH))
                limit = "≥ " if critical_n.max() >= settings.largest else ""
                row = {"alignment": name, "M": M, "h": h, "critical n": float(critical_n.mean())}
                row["[least, most]"] = f"{limit}[{critical_n.min()}, {critical_n.max()}]"
                rows.append(row | {"random": random_size(h, settings)})
    return rows


def random_size(dimension: int, settings: Any) -> int:
    """Return the largest n from 2k to `largest` with `random_dimension(n, k)` ≤ `dimension`, else 2k − 1."""
    sizes = range(2 * settings.relevant, settings.largest + 1)
    small = takewhile(lambda n: capacity.random_dimension(n, settings.relevant) <= dimension, sizes)
    return max(small, default=2 * settings.relevant - 1)


def critical(name: str, tokens: int, dimension: int, start: int, settings: Any) -> np.ndarray:
    """Return each seed's largest n tried at which all sets are answered; again from k + 1 after a failure."""
    largest = np.full(settings.seeds, settings.relevant)
    n = start
    while n <= settings.largest:
        answered = optimised(name, tokens, dimension, n, settings)
        largest[answered] = n
        if not answered.any():
            break
        n = min(max(n + 1, int(n * GROWTH)), max(settings.largest, n + 1))
    if start > (least := settings.relevant + 1) and (largest < start).any():
        largest = np.maximum(largest, critical(name, tokens, dimension, least, settings))
    return largest


def optimised(name: str, tokens: int, dimension: int, n: int, settings: Any) -> np.ndarray:
    """Train unit vectors on relevance; return, for each seed, whether all sets of k documents rank first.

    The loss is the sum over relevant documents of softplus(log Σ exp over irrelevant scores − the score),
    with scores divided by a falling temperature. Scores are `core.rel` with Z = 1; all seeds train in
    parallel.
    """
    align, shape = FREE[name]
    where = DEVICE
    sets = torch.from_numpy(capacity.all_sets(n, settings.relevant)).to(where)
    queries = len(sets)
    query_tokens = tokens if shape == "M × M" else 1
    mine = torch.zeros(queries, n, dtype=torch.bool, device=where).scatter_(1, sets, True)
    masks = (
        torch.ones(1, n, tokens, dtype=torch.bool, device=where),
        mine.new_ones(queries, 1, query_tokens),
    )
    torch.manual_seed(settings.seed)
    sizes = (settings.seeds, n, tokens, dimension), (settings.seeds, queries, query_tokens, dimension)
    vectors = [torch.randn(size, device=where).requires_grad_() for size in sizes]
    optimizer = torch.optim.Adam(vectors, lr=RATE, fused=where.type == "cuda")

    def scores(documents: torch.Tensor, queries_of_sets: torch.Tensor) -> torch.Tensor:
        unit = [torch.nn.functional.normalize(x, dim=-1) for x in (documents, queries_of_sets)]
        D = Tokens(unit[0][None], masks[0])
        Q = Tokens(unit[1][:, None], masks[1])
        return rel(D, Q, align, one) / query_tokens

    every_seed = torch.vmap(scores)
    answered = torch.zeros(settings.seeds, dtype=torch.bool, device=where)
    for step in range(settings.free_steps + 1):
        rels = every_seed(*vectors)
        if step % LOOK == 0 or step == settings.free_steps:
            worst = rels.detach().masked_fill(~mine, torch.inf).amin(-1)
            highest = rels.detach().masked_fill(mine, -torch.inf).amax(-1)
            answered |= (worst > highest).all(-1)
            if answered.all() or step == settings.free_steps:
                break
        done = step / settings.free_steps
        for group in optimizer.param_groups:
            group["lr"] = RATE * (1 - done) + FINAL_RATE
        logits = rels / (HOT * (COLD / HOT) ** done)
        others = logits.masked_fill(mine, -torch.inf).logsumexp(-1, keepdim=True)
        loss = (torch.nn.functional.softplus(others - logits) * mine).sum() / queries
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return answered.cpu().numpy()


def fits(rows: Rows) -> Rows:
    """Fit n = c · h^p to three or more values of h, without those at which a seed reached the largest n."""
    fitted: Rows = []
    for name, M in dict.fromkeys((row["alignment"], row["M"]) for row in rows):
        points = [row for row in rows if (row["alignment"], row["M"]) == (name, M)]
        points = [row for row in points if row["[least, most]"][0] != "≥"]
        if len(points) >= 3:
            x, y = (np.log([row[key] for row in points]) for key in ("h", "critical n"))
            p, c = np.polyfit(x, y, 1)
            row = {"alignment": name, "M": M, "c": float(np.exp(c)), "p": float(p), "points": len(points)}
            fitted.append(row | {"residual of ln n": float(np.std(y - (p * x + c)))})
    return fitted


def draw_picture(rows: Rows, settings: Any) -> Figure:
    """Plot the critical n against h, the paper's fit, and what random projections guarantee (dotted)."""
    series: dict[str, list[float]] = {}
    for row in rows:
        series.setdefault(f"{row['alignment']}, M = {row['M']}", []).append(row["critical n"])
    random = [random_size(h, settings) for h in settings.dimensions]
    panel = "critical n"
    fit = [float(np.polyval(PRINTED["critical n"], h)) for h in settings.dimensions]
    theirs = {panel: {"one vector, M = 1": [n if n > settings.relevant else None for n in fit]}}
    more: dict[str, Any] = {"dotted": {"random projection": random}, "log_y": [panel], "printed": theirs}
    return Curves("dimension h of a vector", settings.dimensions, {panel: series}, **more).draw()
