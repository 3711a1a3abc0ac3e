"""How near the alignment of generative retrieval is to rank one, and what of rel its cross-attention makes.

Wu et al. 2024 (arXiv:2404.00684), Lemma 5.1 and Figure 4. For each query, its relevant document's best name
and each head of each layer: the error of the best rank-one matrix and of 1·softmax(r)ᵀ, beside those of rows
without anything in common; the bounds of the lemma, as printed and corrected, with W = W_QᵀW_K of the head.
And the share of rel that the last layer's cross-attention makes, or all layers' by the residual stream alone.
Models are trained here, or read: --checkpoints. Finished ones are not trained again.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from studies.shared_settings import ModelSettings

from paradigms.io.settings import command_line, folder_name


@dataclass
class Settings(ModelSettings):
    """Which models, queries and documents are looked at."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.output = self.output or f"results/low-rank-{folder_name(self.collection)}"


if __name__ == "__main__":  # before the imports that take seconds
    given = command_line(Settings, __doc__ or "")

import numpy as np
from rich.console import Console
from studies.attention_heads import FREE, Array, Pair, Seen, best_names, chosen_pairs, opened, seen
from studies.low_rank_report import FORMS, Measured, claims, draw, head_rows, layer_rows, share_rows
from studies.pages import Section, print_sections, write_page, write_rows

from paradigms import Generative
from paradigms.generative.interaction import decompose
from paradigms.generative.outputs import Scorer
from paradigms.generative.targets import Targets
from paradigms.io.files import write_json
from paradigms.io.progress import progress_bar
from paradigms.train.job import begin, environment, keep_settings, open_collection
from paradigms.train.state import by_main
from theory import low_rank as lemma

BATCH = 16  # pairs whose rel is decomposed at once


def main(settings: Settings) -> None:
    folder = Path(settings.output)
    accelerator, console = begin(settings)
    subset = settings.documents or None if settings.collection == "pydocs" else None
    collection = open_collection(settings.collection, subset, console)
    kept = asdict(settings) | {"fingerprint": collection.fingerprint}
    by_main(lambda: keep_settings(kept, folder, FREE), accelerator)
    pairs = chosen_pairs(collection.split(settings.split), settings.queries)
    models = []
    for name, model in opened(settings, collection, accelerator, console):
        if accelerator.is_main_process:
            models.append(measure(name, model, pairs))
    if accelerator.is_main_process:
        show(settings, folder, collection.name, models, environment(accelerator))
        if accelerator.trackers:
            import wandb

            run = accelerator.get_tracker("wandb").tracker
            run.log({"figure4": wandb.Image(str(folder / "figure4.png"))})
    accelerator.end_training()


def measure(name: str, model: Generative, pairs: list[Pair]) -> Measured:
    """Every head's numbers for every pair, and the parts of each pair's rel."""
    rng = np.random.default_rng(0)
    named = [best_names(model, pair.query, [pair.document_id])[0] for pair in pairs]
    with progress_bar() as bar:
        task = bar.add_task(f"attention of {name}", total=len(pairs))
        found, norms = [], None
        for pair, tokens in zip(pairs, named, strict=True):
            (view,) = seen(model, pair.query, [tokens])
            norms = weight_norms(view) if norms is None else norms
            found.append(head_measures(view, norms, rng))
            bar.advance(task)
    values = {key: np.stack([one[key] for one in found]) for key in found[0]}
    return Measured(name, [pair.query_id for pair in pairs], values, parts(model, pairs, named))


def weight_norms(view: Seen) -> tuple[Array, Array]:
    """‖W‖₂ and ‖W‖_∞ of W = W_QᵀW_K, [L, H] each."""
    W = np.einsum("lhkx,lhky->lhxy", *view.read)
    return np.linalg.norm(W, ord=2, axis=(-2, -1)), np.asarray(lemma.row_norm(W))


def head_measures(view: Seen, norms: tuple[Array, Array], rng: np.random.Generator) -> dict[str, Array]:
    """What the tables are made of, [L, H] each, of one pair; norms as `weight_norms` has them."""
    S = view.scores
    A, R, printed = lemma.alignment(S), lemma.rank_one(S), lemma.rank_one_as_printed(S)
    found = {key: np.asarray(value) for key, value in lemma.report(S).items()}
    size = np.linalg.norm(A, axis=(-2, -1))
    spectral = np.linalg.svd(A, compute_uv=False)
    second = spectral[..., 1] if spectral.shape[-1] > 1 else np.zeros_like(size)
    shuffled, unrelated = rng.permuted(A, axis=-1), same_entropy(A, rng)
    shuffled_second = np.linalg.svd(shuffled, compute_uv=False)[..., 1:2].sum(-1)
    # ½ max‖d_i − d̄‖ diam(Q) ‖W‖₂, as theory.low_rank.norm_bound has it, with ‖W‖₂ computed once.
    D, Q = view.states, view.memory
    radius = np.linalg.norm(D - D.mean(-2, keepdims=True), axis=-1).max(-1)[:, None]
    diameter = np.linalg.norm(Q[:, None] - Q[None], axis=-1).max()
    return found | {
        "spectral_error": second / spectral[..., 0],
        "shuffled_error": np.asarray(lemma.best_rank_one(shuffled)[1]),
        "unrelated_error": np.asarray(lemma.best_rank_one(unrelated)[1]),
        "uniform_error": np.asarray(lemma.best_rank_one(np.full_like(A, 1 / A.shape[-1]))[1]),
        "printed_error": np.linalg.norm(A - printed, axis=(-2, -1)) / size,
        "printed_row_error": np.asarray(lemma.row_norm(A - printed)),
        "norm_bound": radius * diameter * norms[0] / 2,
        "second": second,
        "shuffled_second": shuffled_second,
        "weight": norms[0],
        "weight_rows": norms[1],
        "gamma": np.asarray(lemma.row_norm(A - R)) / (4 * norms[1]),
        "entropy": row_entropy(A).mean(-1) / np.log(max(2, A.shape[-1])),
        "tokens": np.full_like(size, A.shape[-2]),
        "query_tokens": np.full_like(size, A.shape[-1]),
    }


def row_entropy(A: Array) -> Array:
    """−Σ_j A_ij ln A_ij, in nats."""
    return -(A * np.log(A, where=A > 0, out=np.zeros_like(A))).sum(-1)


def same_entropy(A: Array, rng: np.random.Generator) -> Array:
    """Rows softmax(β_i g_i), g_i Gaussian, with the entropy of the same row of A and nothing in common.

    Their entropy falls strictly with β from ln n to 0, so bisection finds β.
    """
    g, wanted = rng.standard_normal(A.shape), row_entropy(A)
    low, high = np.full(wanted.shape, -20.0), np.full(wanted.shape, 20.0)  # ln β
    for _ in range(50):
        middle = (low + high) / 2
        flat = row_entropy(lemma.alignment(np.exp(middle)[..., None] * g)) > wanted
        low, high = np.where(flat, middle, low), np.where(flat, high, middle)
    return lemma.alignment(np.exp(high)[..., None] * g)


def parts(
    model: Generative, pairs: list[Pair], names: list[list[int]]
) -> dict[tuple[str, str], tuple[Array, Array]]:
    """(scorer, form) -> rel of each pair, and the part of it that Σ(DᵀQ ⊙ A) makes; the rest is not it."""
    found: dict[tuple[str, str], tuple[Array, Array]] = {}
    for scorer in get_args(Scorer):
        for form in FORMS:
            rel, part = [], []
            for first in range(0, len(pairs), BATCH):
                rows = slice(first, first + BATCH)
                sources = model.tokenize([pair.query for pair in pairs[rows]]).to(model.device)
                targets = Targets.pad([[name] for name in names[rows]]).to(model.device)
                interaction = decompose(model, sources, targets, scorer, form)[-1]
                assert interaction.rest is not None
                rel += interaction.rel[:, 0].tolist()
                part += (interaction.rel - interaction.rest)[:, 0].tolist()
            found[scorer, form] = np.array(rel), np.array(part)
    return found


def show(
    settings: Settings, folder: Path, collection: str, models: list[Measured], where: dict[str, Any]
) -> None:
    """CSV, JSON and Markdown of every table, the figure, the page, and the tables on the console."""
    shapes = {model.values["best_error"].shape for model in models}
    if len(shapes) > 1:
        raise SystemExit(f"--checkpoints: models of different layers and heads: {sorted(shapes)}")
    sections = [
        Section(
            "What the paper says and what we measured",
            "Means over heads and layers, with 95% intervals that resample models and queries.",
            claims(models),
            ["figure4"],
        ),
        Section(
            "Rank-one errors, by layer",
            "Relative error of the best rank-one matrix (‖·‖_F; σ₂/σ₁), its means in the lowest and highest "
            "head, and what it is for rows that have nothing in common: A's rows each shuffled, or random "
            "rows of A's entropies. Entropy as a share of ln n.",
            layer_rows(models),
        ),
        Section(
            "Share of rel that Σ(DᵀQ ⊙ A) makes",
            "last: the last layer's cross-attention (L1). direct: all layers', by the residual stream alone "
            "(L2). exact: all paths; the rest is the name's prefix and, of a log-probability, the softmax's "
            "denominator. R² of the part taken as rel, r² of its correlation with rel, over pairs; |part| / "
            "(|part| + |rest|) with its interval.",
            share_rows(models),
        ),
    ]
    for name, section in zip(("claims", "layers", "shares"), sections, strict=True):
        write_rows(folder / name, section.rows)
    write_rows(folder / "heads", head_rows(models))
    write_json(folder / "environment.json", where)
    example = models[0].values
    summary = (
        f"{len(models)} model(s), {len(models[0].queries)} queries of {collection} and their relevant "
        f"documents; {example['weight'].shape[1]} layers of {example['weight'].shape[2]} heads; names of "
        f"{example['tokens'].mean():.1f} and queries of {example['query_tokens'].mean():.1f} tokens (means)."
    )
    page = write_page(
        folder, "Low rank", summary, sections, {"figure4": draw(models)}, asdict(settings) | where
    )
    print_sections(sections)
    Console().print(f"{summary}\nReport: {page}")


if __name__ == "__main__":
    main(Settings(**given))
