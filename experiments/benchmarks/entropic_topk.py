"""Time and error of the exact capped softmax beside the paper's iteration (Eq. 5), forward and backward.

Every document has a length and a budget ⌈α·length⌉ of its own. Both solve the same problems in turns; the
error is the largest |λ − λ*| against the float64 solution of theory/entropic.py. Printed as a table with
ratios, Eq. 5 over exact, and written as JSON. Absolute times belong to the machine, ratios travel.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass

from paradigms.io.settings import command_line


@dataclass
class Settings:
    """Which problems are solved."""

    documents: int = 256
    tokens: int = 256
    """of the longest document; the shortest has half as many"""
    ratio: float = 0.4
    """α: the share of a document's tokens that the budget pays for"""
    eps: float = 0.002
    iterations: int = 20
    """of Eq. 5"""
    repeats: int = 15
    """measured repetitions, after one that is not; the median counts"""
    threads: int = 1
    output: str = "results/benchmarks/entropic_topk.json"


if __name__ == "__main__":  # before the imports that take seconds
    given = command_line(Settings, __doc__ or "")

import torch
from rich.console import Console
from rich.table import Table

from paradigms.io.files import write_json
from paradigms.relax import entropic_topk, token_budget
from theory import entropic


def main(settings: Settings) -> None:
    torch.set_num_threads(settings.threads)
    random = torch.Generator().manual_seed(0)
    shape = (settings.documents, settings.tokens)
    lengths = torch.randint(
        max(1, settings.tokens // 2), settings.tokens + 1, (shape[0], 1), generator=random
    )
    mask = torch.arange(settings.tokens) < lengths
    kinds = {
        "uniform on (0, 1)": torch.rand(shape, generator=random),
        "ReLU of normal": torch.randn(shape, generator=random).relu(),
        "all within 5 ε": 5 * settings.eps * torch.rand(shape, generator=random),
    }
    rows = [{"scores": name} | compare(scores, mask, settings) for name, scores in kinds.items()]
    write_json(settings.output, {"settings": asdict(settings), "torch": torch.__version__, "rows": rows})
    Console().print(as_table(rows, settings))


def compare(scores: torch.Tensor, mask: torch.Tensor, settings: Settings) -> dict[str, float]:
    """Milliseconds of a forward and backward pass, and errors, of both; the two take turns."""
    budget = token_budget(settings.ratio, mask)
    reference = torch.from_numpy(
        entropic.solve(scores.double().numpy(), budget.numpy(), settings.eps, mask.numpy()).gates
    )
    weights = torch.randn(scores.shape, generator=torch.Generator().manual_seed(1))
    seconds: dict[str, list[float]] = {"exact": [], "iterated": []}
    errors: dict[str, float] = {}
    for repeat in range(settings.repeats + 1):
        for name, iterations in (("exact", None), ("iterated", settings.iterations)):
            leaf = scores.clone().requires_grad_()
            start = time.perf_counter()
            gates = entropic_topk(leaf, budget, settings.eps, mask, iterations)
            (gates * weights).sum().backward()
            if repeat:
                seconds[name].append(time.perf_counter() - start)
            errors[name] = float((gates.detach().double() - reference).abs().max())
    exact, iterated = (1000 * statistics.median(seconds[name]) for name in ("exact", "iterated"))
    return {
        "exact_ms": exact,
        "iterated_ms": iterated,
        "ratio": iterated / exact,
        "exact_error": errors["exact"],
        "iterated_error": errors["iterated"],
    }


def as_table(rows: list[dict], settings: Settings) -> Table:
    title = f"{settings.documents} documents × {settings.tokens} tokens, ε = {settings.eps}"
    table = Table(title=f"{title}, {settings.threads} thread(s)")
    eq5 = f"Eq. 5 × {settings.iterations}"
    for column in ("scores", "exact ms", f"{eq5} ms", "ratio", "exact error", f"{eq5} error"):
        table.add_column(column, justify="left" if column == "scores" else "right")
    for row in rows:
        times = (f"{row['exact_ms']:.2f}", f"{row['iterated_ms']:.2f}", f"{row['ratio']:.1f}")
        table.add_row(row["scores"], *times, f"{row['exact_error']:.1e}", f"{row['iterated_error']:.1e}")
    return table


if __name__ == "__main__":
    main(Settings(**given))
