"""How far is generative retrieval's alignment from rank one?

Wu et al. 2024 (arXiv:2404.00684), Lemmas 5.1 and 5.2. For every head, and for the best name of
each test query's most relevant document, the script measures: the errors of the best rank-one matrix and of
1·softmax(r)ᵀ, compared with independent rows; the lemma's printed bound, with the head's W = W_QᵀW_K; and the
error of rel with elu's kernel in place of exp.
"""

from typing import Any, Literal

from papers.wu2024.pair_settings import PairSettings
from studies.settings import launch

from paradigms.io.command_line import flags


@flags()
class Settings(PairSettings):
    """Settings for models, training, and evaluation queries."""

    paradigm: Literal["dsi", "genre", "seal"] = "seal"
    """paradigm whose alignment is measured: dsi, genre or seal"""


launch(__name__, Settings, __doc__, processes=True)  # before the slow imports

import numpy as np
from papers.wu2024.attention import Array, Seen, best_name, seen
from papers.wu2024.trained_pairs import TaskResults, run_study, sample, unlearned_models
from scipy.special import entr
from studies.claims import Study
from studies.curves import at_path
from studies.model_runs import StudyData
from studies.pages import Measured, Section

from paradigms.io.progress import progress_bar
from theory import kernels
from theory import low_rank as lemma

Heads = dict[str, Array]  # measure -> [seeds, queries, L, H]; see `head_measures`


def main(settings: Settings) -> None:
    tasks: dict[str, tuple[str]] = {settings.paradigm: (settings.paradigm,)}
    run_study(settings, "Low rank", tasks, measure, report, keep_recall=True)


def measure(data: StudyData, _: str, models: list[Any]) -> Measured:
    """Measure every head for every query."""
    (model,) = models
    rng = np.random.default_rng(0)
    rows = []
    norms = None
    positions = {id: n for n, id in enumerate(model.identifiers.documents)}
    pairs = {query: data.most_relevant(query) for query in sorted(data.measured_queries)}
    with progress_bar(True) as bar:
        for query, document in bar.track(pairs.items(), description="attention", total=len(pairs)):
            text = data.test.queries[query]
            view = seen(model, text, best_name(model, text, positions[document]))
            norms = weight_norm(view) if norms is None else norms
            rows.append(head_measures(view, norms, rng))
    heads = {key: np.stack([one[key] for one in rows]).tolist() for key in rows[0]}
    return {"queries": list(pairs), "heads": heads}


def weight_norm(view: Seen) -> tuple[Array, Array]:
    """‖W‖₂ and ‖W‖_∞ for each head's W = W_QᵀW_K, [L, H] each."""
    W = np.einsum("lhkx,lhky->lhxy", *view.read)
    return np.linalg.norm(W, ord=2, axis=(-2, -1)), np.asarray(lemma.row_norm(W))


def head_measures(view: Seen, norms: tuple[Array, Array], rng: np.random.Generator) -> Heads:
    """Compute the quantities that the claims use, for one query and name, each [L, H]."""
    D, Q = view.projected
    S = D @ Q.swapaxes(-1, -2)
    A = lemma.alignment(S)
    printed = lemma.rank_one_as_printed(S)
    errors = {key: np.asarray(value) for key, value in lemma.report(S).items()}
    shuffled = rng.permuted(A, axis=-1)
    return {
        "best_error": errors["best_error"],
        "softmax_error": errors["softmax_error"],
        "shuffled_error": np.asarray(lemma.best_rank_one(shuffled)[1]),
        "unrelated_error": np.asarray(lemma.best_rank_one(same_entropy(A, rng))[1]),
        "printed_error": np.linalg.norm(A - printed, axis=(-2, -1)) / np.linalg.norm(A, axis=(-2, -1)),
        "printed_row_error": np.asarray(lemma.row_norm(A - printed)),
        "row_error": errors["row_error"],
        "stable_rank": errors["stable_rank"],
        "second": np.linalg.svd(A, compute_uv=False)[..., 1:2].sum(-1),
        "shuffled_second": np.linalg.svd(shuffled, compute_uv=False)[..., 1:2].sum(-1),
        "weight": norms[0],
        "weight_rows": norms[1],
        "entropy": entr(A).sum(-1).mean(-1) / np.log(max(2, A.shape[-1])),
        "elu_error": elu_error(D, Q),
    }


def same_entropy(A: Array, rng: np.random.Generator) -> Array:
    """Draw independent rows softmax(β_i g_i), g_i Gaussian; row i has the same entropy as row i of A.

    The entropy falls strictly with β from ln n to 0, so bisection finds β.
    """
    g = rng.standard_normal(A.shape)
    entropies = entr(A).sum(-1)  # of each row, in nats
    # bounds of ln β
    low = np.full(entropies.shape, -20.0)
    high = np.full(entropies.shape, 20.0)
    for _ in range(50):
        middle = (low + high) / 2
        flat = entr(lemma.alignment(np.exp(middle)[..., None] * g)).sum(-1) > entropies
        low, high = np.where(flat, middle, low), np.where(flat, high, middle)
    return lemma.alignment(np.exp(high)[..., None] * g)


def elu_error(D: Array, Q: Array) -> Array:
    """|rel′ − rel| / |rel| for a head, rel = Σ_ij S_ij A_ij; rel′ replaces A_ij by φ(d_i)ᵀφ(q_j)/p, φ = elu.

    p is the softmax's denominator or Σ_j φ(d_i)ᵀφ(q_j), whichever gives the smaller error.
    """
    S = D @ Q.swapaxes(-1, -2)
    product = kernels.elu(D) @ kernels.elu(Q).swapaxes(-1, -2)
    rel = (S * lemma.alignment(S)).sum((-2, -1))
    with np.errstate(over="ignore"):
        others = [product / np.exp(S).sum(-1, keepdims=True), product / product.sum(-1, keepdims=True)]
    return np.min([np.abs((S * A).sum((-2, -1)) - rel) / np.abs(rel) for A in others], axis=0)


def study_of(heads: Heads, unlearned: str = "") -> Study:
    """Return means over layers and heads; theory_checks.py refutes Lemma 5.2 itself."""
    h = heads
    share = "share of (query, head) with"
    shuffled = "A with shuffled rows"
    random = "random rows of its entropies"
    values = {
        "‖A − R‖₂/‖W‖₂": {"A": h["second"] / h["weight"], shuffled: h["shuffled_second"] / h["weight"]},
        "‖A − R‖_∞/‖W‖_∞": {"A": h["row_error"] / h["weight_rows"]},
        "‖A − R‖_F/‖A‖_F": {
            "A": h["best_error"],
            shuffled: h["shuffled_error"],
            random: h["unrelated_error"],
        },
        "‖A − 1rᵀ‖_F/‖A‖_F": {"A": h["printed_error"]},
        f"{share} ‖A − R‖_F/‖A‖_F of at most 0.5": {"A": h["best_error"] <= 0.5},
        f"{share} ‖A − 1rᵀ‖_∞ ≤ 4γ‖W‖_∞, γ = 1": {"A": h["printed_row_error"] <= 4 * h["weight_rows"]},
        f"{share} 4‖W‖_∞ < 2": {"A": 4 * h["weight_rows"] < 2},
        f"{share} a relative error of rel of at most 0.1": {"A": h["elu_error"] <= 0.1},
    }
    means = {
        measure: {side: per_head.mean((2, 3)) for side, per_head in sides.items()}
        for measure, sides in values.items()
    }
    return Study(means, undecided=lambda _: {"unlearned": unlearned})


def report(data: StudyData, results: TaskResults) -> tuple[str, dict[str, Section]]:
    settings: Settings = data.settings
    seeds = results[settings.paradigm]
    heads = {key: at_path(seeds, "heads", key) for key in seeds[0]["heads"]}
    columns = {"rank-one error": "best_error", "1·softmax(r)ᵀ": "softmax_error"}
    columns |= {"shuffled": "shuffled_error", "random": "unrelated_error", "stable rank": "stable_rank"}
    columns |= {"entropy": "entropy", "‖W‖₂": "weight", "‖A − R‖₂": "second"}
    _, _, layers, count = heads["weight"].shape
    summary = f"{settings.paradigm}: {layers} layers of {count} heads, each query with its most relevant "
    return f"{summary}document. {sample(data, results)}", {
        "claims": study_of(heads, "".join(unlearned_models(seeds)))
        .with_queries(seeds[0]["queries"], data)
        .section(
            "wu2024",
            "low rank",
            "One family of tests. R: the best rank-one matrix, or for ‖·‖_∞ 1·softmax(r)ᵀ. The paper gives "
            "no numbers for its words; those in the quantities are ours.",
            controls=settings.paradigm != "seal",  # few rows are always near rank one
        ),
        "layers": Section(
            "Rank-one errors, by layer",
            "‖A − R‖_F/‖A‖_F of the best R and of 1·softmax(r)ᵀ, and of the best R for rows with nothing "
            "in common: A's rows each shuffled, or random rows of A's entropies. Entropy: a share of ln n.",
            [
                {"layer": n + 1} | {name: heads[key][:, :, n].mean(-1) for name, key in columns.items()}
                for n in range(layers)
            ],
        ),
    }
