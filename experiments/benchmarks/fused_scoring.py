"""In-batch ColBERT scoring on a GPU: our kernels beside the plain einsum, and beside the peers' scoring.

Every system scores the same random unit vectors, every query against every document, forward and backward:
its time, its peak memory beyond the vectors, its rate. TFLOP/s count the dense work that the plain einsum
does, 2bnijh forward and three times that in a step, whatever a system really computes: rates compare as times
do. On the smallest batch each system's scores and gradients are first compared with ours in float64.

Without a GPU it says so and ends with status 3. `--interpret true` compares our kernels on the CPU instead,
in Triton's interpreter, on a tiny batch; nothing is timed.
"""

from __future__ import annotations

import gc
import os
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from typing import Any

from paradigms.io.settings import command_line


@dataclass
class Settings:
    """Which batches are scored, and by whom."""

    batches: list[int] = field(default_factory=lambda: [64, 128, 256, 512, 1024])
    """queries in a batch, and as many documents"""
    tokens: list[str] = field(default_factory=lambda: ["32x180", "64x256"])
    """tokens of a query x tokens of a document"""
    dim: int = 128
    precisions: list[str] = field(default_factory=lambda: ["bfloat16", "tf32", "float32"])
    """of bfloat16, float16, float32 (multiplied exactly) and tf32 (float32 multiplied as TF32)"""
    systems: list[str] = field(
        default_factory=lambda: [
            *("kernels", "chunks", "einsum", "pylate", "sentence-transformers"),
            *("late_interaction_kernels", "flash_maxsim"),
        ]
    )
    """rows to run"""
    shortest: float = 1.0
    """lengths are uniform between this share of the longest and the longest"""
    repeats: int = 20
    """measured repetitions, after three that are not; the median counts"""
    interpret: bool = False
    """compare our kernels with the formula on the CPU, on a tiny batch, and time nothing"""
    output: str = "results/benchmarks/fused_scoring.json"

    def __post_init__(self) -> None:
        for kind, given, known in (
            ("system", self.systems, SYSTEMS),
            ("precision", self.precisions, PRECISIONS),
        ):
            if unknown := [name for name in given if name not in known]:
                raise SystemExit(f"unknown {kind} {', '.join(unknown)}; there are {', '.join(known)}")
        if not self.batches or not all(len(t.split("x")) == 2 for t in self.tokens):
            raise SystemExit("give batches, and tokens such as 32x180: of a query x of a document")


if __name__ == "__main__":  # before the imports that take seconds
    given = command_line(Settings, __doc__ or "")

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from paradigms.align import one, query_to_document
from paradigms.core import Tokens
from paradigms.io.files import write_json
from paradigms.io.progress import progress_bar
from paradigms.scoring import in_batch as scoring

MiB = 1 << 20
NO_GPU = 3
DENSE_STEP = 3  # products of the plain einsum: S forward, and the gradients of D and of Q
CHUNK = 100_000_000  # entries that sentence-transformers holds at once
TINY: dict[str, Any] = {
    "batches": [3],
    "tokens": ["5x40"],
    "dim": 20,
    "shortest": 0.1,
    "systems": ["kernels"],
}


@dataclass(frozen=True)
class Precision:
    """How vectors are kept and multiplied, and ‖difference‖/‖reference‖ of our scores and gradients, at most.

    Gradients are rounded as vectors are. A maximum that rounding decides sends its whole gradient elsewhere:
    often where TF32 rounds, which the interpreter does not, now and then where float32 does.
    """

    dtype: torch.dtype
    matmul: str
    largest_error: float


PRECISIONS = {
    "bfloat16": Precision(torch.bfloat16, "highest", 2e-2),
    "float16": Precision(torch.float16, "highest", 1e-2),
    "float32": Precision(torch.float32, "highest", 1e-2),
    "tf32": Precision(torch.float32, "high", 0.1),
}


def kernels(documents: Tokens, queries: Tokens) -> Tensor:
    """Ours: in_batch_rel by `scoring.fused`."""
    return in_batch(documents, queries, {"cuda", "cpu"})


def chunks(documents: Tokens, queries: Tokens) -> Tensor:
    """Ours without Triton: in_batch_rel in chunks of S."""
    return in_batch(documents, queries, set())


def in_batch(documents: Tokens, queries: Tokens, devices: set[str]) -> Tensor:
    """in_batch_rel with Triton's kernels on these devices."""
    before, scoring.FUSED = scoring.FUSED, devices
    try:
        return scoring.in_batch_rel(documents, queries, query_to_document, one)
    finally:
        scoring.FUSED = before


def einsum(documents: Tokens, queries: Tokens) -> Tensor:
    """The plain formula: S in full, padding −∞."""
    S = torch.einsum("bjh,nih->bnji", queries.vectors[:, 0], documents.vectors[0])
    S = S.masked_fill_(~documents.mask[:, :, None], -torch.inf)
    return (S.max(-1).values.float() * queries.mask).sum(-1)


def pylate(documents: Tokens, queries: Tokens) -> Tensor:
    """PyLate's formula, which it computes without extra packages: S in full, padding multiplied by 0."""
    S = torch.einsum("bjh,nih->bnji", queries.vectors[:, 0], documents.vectors[0])
    S = S * queries.mask[..., None] * documents.mask[:, :, None]
    return S.max(-1).values.sum(-1)


def sentence_transformers(documents: Tokens, queries: Tokens) -> Tensor:
    """sentence-transformers' formula: the einsum for some documents at a time; autograd keeps them all."""
    (i, h), rows = documents.vectors.shape[2:], queries.mask.numel()
    size = max(1, (CHUNK - rows * h) // (i * (rows + h)))
    parts = zip(documents.vectors.split(size, 1), documents.mask.split(size, 1), strict=True)
    return torch.cat([einsum(Tokens(*part), queries) for part in parts], 1)


def late_interaction_kernels(documents: Tokens, queries: Tokens) -> Tensor:
    """The package that PyLate takes on a GPU where it is installed."""
    from late_interaction_kernels import maxsim  # type: ignore[import-not-found, unused-ignore]

    return maxsim(queries.vectors[:, 0], documents.vectors[0], queries.mask[:, 0], documents.mask[0])


def flash_maxsim(documents: Tokens, queries: Tokens) -> Tensor:
    """The other package that PyLate takes on a GPU where it is installed."""
    from flash_maxsim import flash_maxsim_batched_train  # type: ignore[import-not-found, unused-ignore]

    lengths = (t.mask.sum(-1, dtype=torch.int32).flatten() for t in (documents, queries))
    return flash_maxsim_batched_train(queries.vectors[:, 0], documents.vectors[0], True, *lengths)


SYSTEMS: dict[str, Callable[[Tokens, Tokens], Tensor]] = {
    "kernels": kernels,
    "chunks": chunks,
    "einsum": einsum,
    "pylate": pylate,
    "sentence-transformers": sentence_transformers,
    "late_interaction_kernels": late_interaction_kernels,
    "flash_maxsim": flash_maxsim,
}
OURS = ("kernels", "chunks")
PACKAGES = ("late_interaction_kernels", "flash_maxsim")


def main(settings: Settings) -> None:
    device = device_for(settings)
    kinds = [(precision, tokens) for precision in settings.precisions for tokens in settings.tokens]
    batches = sorted(settings.batches)
    rows: list[dict[str, Any]] = []
    with progress_bar() as bar:
        task = bar.add_task("scoring", total=len(kinds) * len(batches) * len(settings.systems))
        for precision, tokens in kinds:
            torch.set_float32_matmul_precision(PRECISIONS[precision].matmul)
            for batch in batches:
                for system in settings.systems:
                    row = {"precision": precision, "tokens": tokens, "batch": batch, "system": system}
                    rows.append(row | cell(settings, device, row))
                    bar.advance(task)
    name = torch.cuda.get_device_name() if device == "cuda" else "Triton's interpreter"
    about = {"device": name, "torch": torch.__version__, "settings": asdict(settings)}
    write_json(settings.output, about | {"rows": rows})
    for precision, tokens in kinds:
        of_kind = [row for row in rows if (row["precision"], row["tokens"]) == (precision, tokens)]
        Console().print(as_table(of_kind, f"{name}: {precision}, {tokens} tokens, dimension {settings.dim}"))
    if wrong := [row for row in rows if is_wrong(row)]:
        raise SystemExit(f"{len(wrong)} of our cells failed or differ from float64: see {settings.output}")


def device_for(settings: Settings) -> str:
    """Where to run; the program ends without a GPU, or starts again with kernels that are interpreted."""
    if find_spec("triton") is None:
        print(
            "Triton is not installed; it comes with torch's CUDA builds: pip install triton", file=sys.stderr
        )
        raise SystemExit(NO_GPU)
    if settings.interpret:
        if os.environ.get("TRITON_INTERPRET") != "1":  # which Triton, imported long since, read then
            os.execve(sys.executable, sys.orig_argv, os.environ | {"TRITON_INTERPRET": "1"})
        scoring.FUSED = {"cpu"}
        for name, value in TINY.items():
            setattr(settings, name, value)
        return "cpu"
    if not torch.cuda.is_available():
        print(
            "there is no GPU: nothing to measure. --interpret true checks the kernels here", file=sys.stderr
        )
        raise SystemExit(NO_GPU)
    return "cuda"


def cell(settings: Settings, device: str, row: dict[str, Any]) -> dict[str, Any]:
    """What one system measures on one batch, or why it does not."""
    system = row["system"]
    if system in PACKAGES and find_spec(system) is None:
        return {"failed": "not installed"}
    try:
        sides = random_tokens(settings, device, row)
        found = errors(system, *sides) if row["batch"] == min(settings.batches) else {}
        return found | (measure(system, *sides, settings.repeats) if device == "cuda" else {})
    except torch.OutOfMemoryError:
        return {"failed": "out of memory"}
    except Exception as error:  # a peer's kernel that refuses a batch is a cell as well
        return {"failed": f"{type(error).__name__}: {error}".splitlines()[0]}
    finally:
        gc.collect()  # what the error's frames still hold
        if device == "cuda":
            torch.cuda.empty_cache()


def measure(system: str, documents: Tokens, queries: Tokens, repeats: int) -> dict[str, float]:
    """Milliseconds of the forward pass alone and of a whole step, peak MiB, and TFLOP/s of dense work."""
    score = SYSTEMS[system]
    leaves = (documents.vectors, queries.vectors)
    weights = torch.randn(queries.mask.shape[0], documents.mask.shape[1], device=documents.mask.device)

    def forward() -> None:
        with torch.no_grad():
            score(documents, queries)

    def step() -> None:
        scores = score(documents, queries)
        torch.autograd.grad(scores, leaves, weights.to(scores.dtype))

    step()  # kernels are compiled and tuned before memory is read
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    peak = torch.cuda.max_memory_allocated() - before
    work = 2 * documents.mask.numel() * queries.mask.numel() * documents.vectors.shape[-1] / 1e9
    forward_ms, step_ms = (milliseconds(function, repeats) for function in (forward, step))
    return {
        "forward_ms": forward_ms,
        "step_ms": step_ms,
        "peak_mib": peak / MiB,
        "forward_tflops": work / forward_ms,
        "step_tflops": DENSE_STEP * work / step_ms,
    }


def milliseconds(function: Callable[[], None], repeats: int) -> float:
    """The median of what passes on the GPU, launches included."""
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    for _ in range(3):
        function()
    for start, end in events:
        start.record()
        function()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in events)


def errors(system: str, documents: Tokens, queries: Tokens) -> dict[str, float]:
    """‖x' − x‖/‖x‖ of scores and gradients, x from the same vectors in float64."""
    values = []
    for score, kind in ((SYSTEMS[system], documents.vectors.dtype), (chunks, torch.float64)):
        sides = [
            replace(t, vectors=t.vectors.detach().to(kind).requires_grad_()) for t in (documents, queries)
        ]
        scores = score(*sides)
        weights = torch.randn(scores.shape, generator=torch.Generator().manual_seed(1)).to(scores)
        gradients = torch.autograd.grad(scores, [t.vectors for t in sides], weights)
        values.append([t.detach().double() for t in (scores, *gradients)])
    names = ("scores", "document_gradients", "query_gradients")
    return {
        f"error_of_{name}": float((mine - exact).norm() / exact.norm())
        for name, mine, exact in zip(names, *values, strict=True)
    }


def random_tokens(settings: Settings, device: str, row: dict[str, Any]) -> tuple[Tokens, Tokens]:
    """Unit vectors of documents and queries, with gradients wanted."""
    random, dtype = torch.Generator().manual_seed(0), PRECISIONS[row["precision"]].dtype

    def side(x: int, n: int, length: int) -> Tokens:
        vectors = torch.randn(x, n, length, settings.dim, generator=random)
        vectors = torch.nn.functional.normalize(vectors, dim=-1).to(device, dtype)
        shortest = max(1, round(settings.shortest * length))
        lengths = torch.randint(shortest, length + 1, (x, n, 1), generator=random)
        return Tokens(vectors.requires_grad_(), (torch.arange(length) < lengths).to(device))

    j, i = (int(length) for length in row["tokens"].split("x"))
    return side(1, row["batch"], i), side(row["batch"], 1, j)


def differences(row: dict[str, Any]) -> list[float]:
    return [value for name, value in row.items() if name.startswith("error_of")]


def is_wrong(row: dict[str, Any]) -> bool:
    """Whether one of our cells failed, but for want of memory, or differs from float64 too much."""
    if row["system"] not in OURS:
        return False
    largest = PRECISIONS[row["precision"]].largest_error
    wrong = any(not value <= largest for value in differences(row))  # NaN is wrong too
    return wrong or row.get("failed", "out of memory") != "out of memory"


def as_table(rows: list[dict[str, Any]], title: str) -> Table:
    """One line a cell; ratios are the plain einsum's over the system's, on the same batch."""
    table = Table(title=title)
    for column in ("batch", "system", "forward ms", "step ms", "ratio", "MiB", "ratio ", "TFLOP/s", "error"):
        table.add_column(column, justify="left" if column == "system" else "right")
    plain = {row["batch"]: row for row in rows if row["system"] == "einsum"}
    for row in rows:
        of = plain.get(row["batch"], {})
        cells = [
            number(row.get("forward_ms")),
            number(row.get("step_ms")),
            ratio(of.get("step_ms"), row.get("step_ms")),
            number(row.get("peak_mib"), 0),
            ratio(of.get("peak_mib"), row.get("peak_mib")),
            number(row.get("step_tflops"), 0),
            f"{max(differences(row)):.0e}" if differences(row) else "",
        ]
        if "failed" in row:
            cells[0] = row["failed"]
        table.add_row(str(row["batch"]), row["system"], *cells)
    return table


def number(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def ratio(plain: float | None, own: float | None) -> str:
    return "" if plain is None or own is None else f"{plain / own:.1f}"


if __name__ == "__main__":
    main(Settings(**given))
