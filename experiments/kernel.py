"""Can rel(d, q) = Σ_ij d_iᵀq_j softmax_j(d_iᵀQ) of a decoder's heads be computed by kernel features like elu?

Wu et al. 2024 (arXiv:2404.00684), Lemma 5.2. D and Q are what each head of cross-attention compares, W_Q x_i
and W_K q_j of a trained model. For each query, its relevant document and BM25's candidates: rel of every head
with the weights of φ(d_i)ᵀφ(q_j) in place of exp(d_iᵀq_j): relative error, and Kendall's τ over candidates.
φ is elu, as printed, or orthogonal positive random features, by their number. Models are trained here, or
read: --checkpoints, such as those in models/ of a results folder of low_rank.py.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from studies.shared_settings import ModelSettings

from paradigms.io.settings import command_line, folder_name


@dataclass
class Settings(ModelSettings):
    """Which models, queries and candidates are looked at, and with how many features."""

    queries: int = 40
    candidates: int = 10
    """of BM25 for each query, beside the relevant document"""
    features: list[int] = field(default_factory=lambda: [16, 32, 64, 128, 256, 512, 1024])
    """numbers of positive random features"""
    draws: list[int] = field(default_factory=lambda: [0, 1, 2])
    """seeds of the features' projections"""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.output = self.output or f"results/kernel-{folder_name(self.collection)}"
        if self.candidates < 2 or not self.draws or not self.features or min(self.features) < 1:
            raise SystemExit("there must be two candidates, a draw, and numbers of features of at least 1")
        self.features = sorted(set(self.features))


if __name__ == "__main__":  # before the imports that take seconds
    given = command_line(Settings, __doc__ or "")

import numpy as np
from rich.console import Console
from scipy.special import logsumexp, softmax
from studies.attention_heads import FREE, Array, Pair, Seen, best_names, chosen_pairs, opened, seen
from studies.kernel_report import BALANCED, POSITIVE, Measured, claims, draw, map_rows
from studies.pages import Section, print_sections, write_page, write_rows

from paradigms import Generative
from paradigms.baselines.bm25 import BM25
from paradigms.data import Run
from paradigms.io.files import write_json
from paradigms.io.progress import progress_bar
from paradigms.train.job import begin, environment, keep_settings, open_collection
from paradigms.train.state import by_main
from theory import kernels


def main(settings: Settings) -> None:
    folder = Path(settings.output)
    accelerator, console = begin(settings)
    subset = settings.documents or None if settings.collection == "pydocs" else None
    collection = open_collection(settings.collection, subset, console)
    kept = asdict(settings) | {"fingerprint": collection.fingerprint}
    by_main(lambda: keep_settings(kept, folder, FREE | {"candidates", "features", "draws"}), accelerator)
    pairs = chosen_pairs(collection.split(settings.split), settings.queries)
    bm25 = BM25.build(collection.corpus, collection.corpus.ids)
    pool = bm25.search({pair.query_id: pair.query for pair in pairs}, settings.candidates)
    models = []
    for name, model in opened(settings, collection, accelerator, console):
        if accelerator.is_main_process:
            models.append(measure(name, model, pairs, pool, settings))
    if accelerator.is_main_process:
        show(settings, folder, collection.name, models, environment(accelerator))
        if accelerator.trackers:
            import wandb

            run = accelerator.get_tracker("wandb").tracker
            run.log({"kernel": wandb.Image(str(folder / "kernel.png"))})
    accelerator.end_training()


def measure(name: str, model: Generative, pairs: list[Pair], pool: Run, settings: Settings) -> Measured:
    """The numbers of every map, [draws, queries] each: medians of errors and means of τ over heads."""
    found: dict[str, list[dict[str, Array]]] = {}
    entries = []
    with progress_bar() as bar:
        task = bar.add_task(f"kernels of {name}", total=len(pairs))
        for pair in pairs:
            candidates = sorted({*pool[pair.query_id], pair.document_id})
            views = seen(model, pair.query, best_names(model, pair.query, candidates))
            entries.append(len(views))
            for key, values in query_measures(views, settings.features, settings.draws).items():
                found.setdefault(key, []).append(values)
            bar.advance(task)
    maps = {
        key: {measure: np.stack([one[measure] for one in rows], axis=1) for measure in rows[0]}
        for key, rows in found.items()
    }
    return Measured(name, [pair.query_id for pair in pairs], float(np.mean(entries)), maps)


def query_measures(views: list[Seen], features: list[int], draws: list[int]) -> dict[str, dict[str, Array]]:
    """map -> measure -> its value for one query under each draw; `views` are those of its candidates."""
    D = np.concatenate([view.documents for view in views], axis=2)  # [L, H, all tokens, k]
    starts = np.cumsum([0] + [view.documents.shape[2] for view in views])[:-1]
    Q = views[0].queries
    S = D @ np.swapaxes(Q, -1, -2)

    def rel(alignment: Array) -> Array:
        return np.add.reduceat((S * alignment).sum(-1), starts, axis=-1)  # [L, H, candidates]

    exact = rel(softmax(S, axis=-1))

    def compared(alignment: Array) -> dict[str, float]:
        other = rel(alignment)
        return {
            "error": float(np.median(np.abs(other - exact) / np.abs(exact))),
            "tau": float(kendall(other, exact).mean()),
        }

    phi_d, phi_q = kernels.elu(D), kernels.elu(Q)
    product = phi_d @ np.swapaxes(phi_q, -1, -2)
    partition = np.exp(logsumexp(S, axis=-1, keepdims=True))
    length = np.linalg.norm(D, axis=-1) * np.linalg.norm(phi_d, axis=-1)
    factor = np.add.reduceat(length, starts, axis=-1)
    plus = kernels.elu_plus_one(D) @ np.swapaxes(kernels.elu_plus_one(Q), -1, -2)
    fixed = {
        "elu": compared(product / product.sum(-1, keepdims=True))
        | {"no weight": float((product <= 0).mean())},
        "elu, softmax's p": compared(product / partition),
        "elu + 1": compared(plus / plus.sum(-1, keepdims=True)),
        "uniform": compared(np.full_like(S, 1 / S.shape[-1])),
        "separable bound": {"tau": float(kendall(factor, exact).mean())},
    }
    found = {
        key: {measure: np.array([value]) for measure, value in one.items()} for key, one in fixed.items()
    }
    for name, (x, y) in ((POSITIVE, (D, Q)), (BALANCED, balanced(D, Q))):
        squares = (x**2).sum(-1)[..., :, None] + (y**2).sum(-1)[..., None, :]
        dot = x @ np.swapaxes(y, -1, -2)
        for m in features:
            rows = []
            for draw_seed in draws:
                estimate = log_kernel(
                    x, y, kernels.orthogonal_projections(x.shape[-1], max(features), draw_seed)[:m]
                )
                seen_error = float(np.median(np.abs(np.expm1(np.minimum(estimate - dot, 700)))))
                rows.append(compared(softmax(estimate, axis=-1)) | {"kernel": seen_error})
            found[f"{name}, {m}"] = {key: np.array([row[key] for row in rows]) for key in rows[0]} | {
                "predicted": np.array([np.median(log_deviation(squares + 2 * dot, m))])
            }
    return found


def balanced(D: Array, Q: Array) -> tuple[Array, Array]:
    """cD and (Q − q̄)/c with equally long vectors: the same softmax, and far smaller ‖d_i + q_j‖.

    softmax_j(d_iᵀq_j) does not change when all q_j lose the same vector, here their mean.
    """
    centred = Q - Q.mean(-2, keepdims=True)
    lengths = [np.linalg.norm(x, axis=-1).mean(-1) for x in (D, centred)]
    c = np.sqrt(lengths[1] / lengths[0])[..., None, None]
    return D * c, centred / c


def log_kernel(x: Array, y: Array, projections: Array) -> Array:
    """ln φ(x_i)ᵀφ(y_j), [..., n, m], with φ `kernels.positive_features`, which vanishes for long vectors."""
    logs = [v @ projections.T - (v**2).sum(-1, keepdims=True) / 2 for v in (x, y)]
    tops = [log.max(-1, keepdims=True) for log in logs]
    left, right = (np.exp(log - top) for log, top in zip(logs, tops, strict=True))
    product = np.maximum(left @ np.swapaxes(right, -1, -2), np.finfo(float).tiny)
    return np.log(product) + tops[0] + np.swapaxes(tops[1], -1, -2) - np.log(len(projections))


def log_deviation(squared: Array, features: int) -> Array:
    """log₁₀ √((e^s − 1)/m) with s = ‖x + y‖²: `kernels.kernel_relative_deviation`, which overflows."""
    s = np.maximum(squared, np.finfo(float).tiny)
    return (s + np.log(-np.expm1(-s)) - np.log(features)) / (2 * np.log(10))


def kendall(a: Array, b: Array) -> Array:
    """τ_b of a and b over the last axis; 0 where either is constant."""
    first, second = np.triu_indices(a.shape[-1], 1)
    left, right = (np.sign(x[..., first] - x[..., second]) for x in (a, b))
    pairs = np.sqrt((left**2).sum(-1) * (right**2).sum(-1))
    return np.divide((left * right).sum(-1), pairs, out=np.zeros_like(pairs), where=pairs > 0)


def show(
    settings: Settings, folder: Path, collection: str, models: list[Measured], where: dict[str, Any]
) -> None:
    """CSV, JSON and Markdown of both tables, the figure, the page, and the tables on the console."""
    sections = [
        Section(
            "What the paper says and what we measured",
            "95% intervals resample models, draws of the projections, and queries.",
            claims(models, settings.features),
            ["kernel"],
        ),
        Section(
            "rel by kernel features",
            "Median of |rel′ − rel|/|rel| of heads and candidates; τ_b over a query's candidates, mean over "
            "heads. kernel error: median of |φ(d)ᵀφ(q)/exp(dᵀq) − 1| over entries; predicted: the median of "
            "√((e^‖d+q‖² − 1)/m), a root mean square, which few features hardly show. balanced: cd_i and "
            "(q_j − q̄)/c, of the same softmax. uniform: A = 1/n, no kernel at all. separable bound: "
            "Σ‖d_i‖‖φ(d_i)‖.",
            map_rows(models),
        ),
    ]
    for name, section in zip(("claims", "maps"), sections, strict=True):
        write_rows(folder / name, section.rows)
    write_json(folder / "environment.json", where)
    summary = (
        f"{len(models)} model(s), {len(models[0].queries)} queries of {collection} with "
        f"{models[0].candidates:.1f} candidates each (mean), {len(settings.draws)} draws of the projections."
    )
    figures = {"kernel": draw(models, settings.features)}
    page = write_page(folder, "Kernel features", summary, sections, figures, asdict(settings) | where)
    print_sections(sections)
    Console().print(f"{summary}\nReport: {page}")


if __name__ == "__main__":
    main(Settings(**given))
