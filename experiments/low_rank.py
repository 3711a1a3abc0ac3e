"""How far is generative retrieval's alignment from rank one, and how much of rel is cross-attention?

Wu et al. 2024 (arXiv:2404.00684), Lemmas 5.1 and 5.2 and Figure 4. For every head, and for the best name of
each test query's most relevant document, the script measures: the errors of the best rank-one matrix and of
1·softmax(r)ᵀ, compared with independent rows; the lemma's printed bound, with the head's W = W_QᵀW_K; the
error of rel with elu's kernel in place of exp; the share of rel that comes from the cross-attention of the
last layer, or of all layers through the residual stream alone; and how much a document's D depends on the
query.
"""

from typing import TYPE_CHECKING, Any, Literal

from studies.settings import PairSettings, launch

from paradigms.io.command_line import flags


@flags()
class Settings(PairSettings):
    """Settings for models, training, and evaluation queries."""

    paradigm: Literal["dsi", "genre", "seal"] = "seal"
    """paradigm whose alignment is measured: dsi, genre or seal"""


launch(__name__, Settings, __doc__, processes=True)  # before the slow imports

import numpy as np
from papers.wu2024.attention import Array, Seen, best_name, seen
from papers.wu2024.trained_pairs import TaskResults, sample, study, unlearned_models
from studies.curves import at_path
from studies.model_runs import StudyData
from studies.pages import Measured, Section, verdicts

from paradigms import Generative
from paradigms.evaluate.claims import READOUT, Claim
from paradigms.generative.interaction import Form, decompose
from paradigms.generative.outputs import ScoreName
from paradigms.io.progress import progress_bar
from paradigms.view.report import PALETTE
from theory import kernels
from theory import low_rank as lemma

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMS: tuple[Form, ...] = ("printed", "last", "direct", "exact")
FORMS_ARE = (
    "printed: Eqs 11 to 14, the last layer's cross-attention without the norm after it. last: the same with "
    "that norm. direct: all layers', by the residual stream alone. exact: all paths"
)
BATCH = 16  # pairs whose rel is decomposed at once
FEW = 10  # queries under which one document's D is compared, and documents that are compared
# Our readings of the paper's words, since the paper gives no numbers.
MUCH_LOWER = 0.5  # ‖A − R‖ is at most this share of ‖W‖
LOW = 0.5  # relative error at which the rank-one matrix has three quarters of ‖A‖_F²
NEARLY_ALL = 0.95  # share of (query, head) pairs
SMALL = 0.1  # relative error of rel
PAPER = "Wu et al. 2024"

Heads = dict[str, Array]  # measure -> [seeds, queries, L, H]; see `head_measures`
Parts = dict[str, Array]  # "scorer, form" -> rel, and the part of rel from Σ(DᵀQ ⊙ A), [2, seeds, queries]


def main(settings: Settings) -> None:
    study(settings, "Low rank", {settings.paradigm: (settings.paradigm,)}, measure, report, keep_recall=True)


def measure(_: Settings, __: str, ___: int, data: StudyData, models: list[Any]) -> Measured:
    """Measure every head for every query, and the parts that make up each query's rel."""
    (model,), rng, measured, norms = models, np.random.default_rng(0), [], None
    positions = {id: n for n, id in enumerate(model.identifiers.documents)}
    pairs, names = relevant(data), []
    texts = [data.test.queries[query] for query in pairs]
    with progress_bar(True) as bar:
        for text, document in bar.track(
            list(zip(texts, pairs.values(), strict=True)), description="attention"
        ):
            names.append(best_name(model, text, positions[document]))
            view = seen(model, text, names[-1])
            norms = weight_norm(view) if norms is None else norms
            measured.append(head_measures(view, norms, rng))
    heads = {key: np.stack([one[key] for one in measured]).tolist() for key in measured[0]}
    more = {"parts": parts_of_rel(model, texts, names), "cosines": cosines_of_D(model, texts, names)}
    return {"queries": list(pairs), "heads": heads} | more


def relevant(data: StudyData) -> dict[str, str]:
    """Map each judged test query to its most relevant document."""
    return {
        query: min((-grade, id) for id, grade in data.test.judgements[query].items() if grade > 0)[1]
        for query in sorted(data.measured)
    }


def weight_norm(view: Seen) -> tuple[Array, Array]:
    """‖W‖₂ and ‖W‖_∞ for each head's W = W_QᵀW_K, [L, H] each."""
    W = np.einsum("lhkx,lhky->lhxy", *view.read)
    return np.linalg.norm(W, ord=2, axis=(-2, -1)), np.asarray(lemma.row_norm(W))


def head_measures(view: Seen, norms: tuple[Array, Array], rng: np.random.Generator) -> Heads:
    """Compute the quantities that the claims use, for one query and name, each [L, H]."""
    D, Q = view.projected
    S = D @ Q.swapaxes(-1, -2)
    A, printed = lemma.alignment(S), lemma.rank_one_as_printed(S)
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
        "entropy": row_entropy(A).mean(-1) / np.log(max(2, A.shape[-1])),
        "elu_error": elu_error(D, Q),
    }


def row_entropy(A: Array) -> Array:
    """−Σ_j A_ij ln A_ij, in nats."""
    return -(A * np.log(A, where=A > 0, out=np.zeros_like(A))).sum(-1)


def same_entropy(A: Array, rng: np.random.Generator) -> Array:
    """Draw independent rows softmax(β_i g_i), g_i Gaussian; row i has the same entropy as row i of A.

    The entropy falls strictly with β from ln n to 0, so bisection finds β.
    """
    g, wanted = rng.standard_normal(A.shape), row_entropy(A)
    low, high = np.full(wanted.shape, -20.0), np.full(wanted.shape, 20.0)  # bounds of ln β
    for _ in range(50):
        middle = (low + high) / 2
        flat = row_entropy(lemma.alignment(np.exp(middle)[..., None] * g)) > wanted
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


def parts_of_rel(
    model: Generative, queries: list[str], names: list[list[int]]
) -> dict[str, list[list[float]]]:
    """Return {"scorer, form": [rel, the part Σ(DᵀQ ⊙ A) of rel]}, each with a value per query and name."""
    shares: dict[str, list[list[float]]] = {}
    scorers: tuple[ScoreName, ...] = ("log_probability", "logit", "centred_logit")
    for scorer in scorers:
        for form in FORMS:
            rel, part = [], []
            for first in range(0, len(queries), BATCH):
                sources = model.tokenize(queries[first : first + BATCH]).to(model.device)
                targets = model.targets([[name] for name in names[first : first + BATCH]]).to(model.device)
                interaction = decompose(model, sources, targets, scorer, form)[-1]
                assert interaction.rest is not None
                rel += interaction.rel[:, 0].tolist()
                part += (interaction.rel - interaction.rest)[:, 0].tolist()
            shares[f"{scorer}, {form}"] = [rel, part]
    return shares


def cosines_of_D(
    model: Generative, queries: list[str], names: list[list[int]]
) -> dict[str, list[list[float]]]:
    """Return {form: [[mean, minimum] per name]} of the cosines of a name's D under two queries.

    `FEW` names are measured. A cosine compares one document token D_lhi under two of the first `FEW` queries.
    """
    queries, names = list(dict.fromkeys(queries))[:FEW], names[:FEW]
    cosines: dict[str, list[list[float]]] = {}
    sources = model.tokenize(queries).to(model.device)
    different = ~np.eye(len(queries), dtype=bool)
    for form in FORMS:
        for name in names:
            targets = model.targets([[name]] * len(queries)).to(model.device)
            D = decompose(model, sources, targets, "logit", form)[0].vectors[:, 0].double().cpu().numpy()
            D /= np.linalg.norm(D, axis=-1, keepdims=True)
            pairs = np.einsum("aik,bik->abi", D, D)[different]
            cosines.setdefault(form, []).append([float(pairs.mean()), float(pairs.min())])
    return cosines


def claims(heads: Heads, paradigm: str, unlearned: str = "") -> list[Claim]:
    """Return claims about means over layers and heads; theory_checks.py refutes Lemma 5.2 itself."""
    h = heads
    figure = "§7.4" if paradigm == "seal" else ""  # Figure 4 shows SEAL; few rows are always near rank one
    lower = "‖A − R‖ is “much lower” than ‖W‖"
    control = "the low error is evidence of low rank"
    bound = "‖A − R‖ ≤ 4‖W‖: Lemma 5.1 with γ = 1, where it leaves γ free and says nothing"
    more = "the bound says more than ‖A − R‖_∞ ≤ 2, which holds of any two alignments"
    low = "the error is “relatively low on average” and so indicates a low rank"
    inherent = "attention “inherently” gives a low-rank matrix"
    kernel = "rel = Σ_ij (1/p_ij) tr(F(d_i)ᵀF(q_j)) with φ = elu"
    small = f"share with a relative error of rel of at most {SMALL} − {NEARLY_ALL}"
    share = f"share of (query, head) with an error of at most {LOW} − {NEARLY_ALL}"
    evidence = "the bound is evidence of low rank"
    apart = f"‖A′ − R‖₂/‖W‖₂ − {MUCH_LOWER}, A′ with shuffled rows"
    random = "error of random rows of its entropies − that of A"
    within = h["printed_row_error"] <= 4 * h["weight_rows"]
    holds, says_more = (
        f"share with ‖A − 1rᵀ‖_∞ ≤ 4γ‖W‖_∞, γ = 1, − {NEARLY_ALL}",
        f"share with 4‖W‖_∞ < 2 − {NEARLY_ALL}",
    )
    statements: list[tuple[str, str, str, Array]] = [
        (figure, lower, f"{MUCH_LOWER} − ‖A − R‖₂/‖W‖₂", MUCH_LOWER - h["second"] / h["weight"]),
        (figure, lower, f"{MUCH_LOWER} − ‖A − R‖_∞/‖W‖_∞", MUCH_LOWER - h["row_error"] / h["weight_rows"]),
        ("", evidence, apart, h["shuffled_second"] / h["weight"] - MUCH_LOWER),
        (figure, low, f"{LOW} − ‖A − R‖_F/‖A‖_F, best R", LOW - h["best_error"]),
        ("", control, "error of its rows shuffled − that of A", h["shuffled_error"] - h["best_error"]),
        ("", control, random, h["unrelated_error"] - h["best_error"]),
        ("§5.2.4", inherent, share, (h["best_error"] <= LOW) - NEARLY_ALL),
        ("appendix B", "R = 1rᵀ, r = d̄ᵀWQ", f"{LOW} − ‖A − 1rᵀ‖_F/‖A‖_F", LOW - h["printed_error"]),
        ("", bound, holds, within - NEARLY_ALL),
        ("", more, says_more, (4 * h["weight_rows"] < 2) - NEARLY_ALL),
        ("Lemma 5.2", kernel, small, (h["elu_error"] <= SMALL) - NEARLY_ALL),
    ]
    return [
        Claim(
            place and f"{PAPER}, {place}",
            statement,
            quantity,
            excess.mean((2, 3)),
            unlearned=unlearned,
            about=READOUT,
        )
        for place, statement, quantity, excess in statements
    ]


def report(settings: Settings, data: StudyData, results: TaskResults) -> tuple[str, dict[str, Section]]:
    """Return the study's summary, and the page's sections keyed by file name."""
    seeds = results[settings.paradigm]
    heads = {key: at_path(seeds, "heads", key) for key in seeds[0]["heads"]}
    parts = {key: at_path(seeds, "parts", key).swapaxes(0, 1) for key in seeds[0]["parts"]}
    columns = {"rank-one error": "best_error", "1·softmax(r)ᵀ": "softmax_error"}
    columns |= {"shuffled": "shuffled_error", "random": "unrelated_error", "stable rank": "stable_rank"}
    columns |= {"entropy": "entropy", "‖W‖₂": "weight", "‖A − R‖₂": "second"}
    _, _, layers, count = heads["weight"].shape
    summary = f"{settings.paradigm}: {layers} layers of {count} heads, each query with its most relevant "
    return f"{summary}document. {sample(data, settings)}", {
        "claims": verdicts(
            claims(heads, settings.paradigm, "".join(unlearned_models(seeds))),
            "One family of tests. R: the best rank-one matrix, or for ‖·‖_∞ 1·softmax(r)ᵀ. The paper gives "
            "no numbers for its words; those in the quantities are ours, chosen before measuring.",
            clusters=data.clusters(seeds[0]["queries"]),
        ),
        "layers": Section(
            "Rank-one errors, by layer",
            "‖A − R‖_F/‖A‖_F of the best R and of 1·softmax(r)ᵀ, and of the best R for rows with nothing "
            "in common: A's rows each shuffled, or random rows of A's entropies. Entropy: a share of ln n.",
            [
                {"layer": n + 1} | {name: heads[key][:, :, n].mean(-1) for name, key in columns.items()}
                for n in range(layers)
            ],
            draw(heads),
        ),
        "shares": Section(
            "Share of rel that Σ(DᵀQ ⊙ A) makes",
            f"{FORMS_ARE}; the rest is the name's prefix and, of a log-probability, the softmax's "
            "denominator. R² of the part taken as rel, over queries; |part| / (|part| + |rest|).",
            [share_row(name, *rel_and_part) for name, rel_and_part in parts.items()],
        ),
        "cosines": Section(
            "D of one document under several queries",
            f"Cosines of a document token D_lhi under two of {FEW} queries, for {FEW} documents: the mean "
            f"with its 95% interval over documents{' and seeds' * (len(seeds) > 1)}, and the least. "
            f"{FORMS_ARE}.",
            [
                {"form": form, "mean": at_path(seeds, "cosines", form)[..., 0]}
                | {"least": f"{at_path(seeds, 'cosines', form)[..., 1].min():.3f}"}
                for form in FORMS
            ],
        ),
    }


def share_row(name: str, rel: Array, part: Array) -> dict[str, Any]:
    """Format the table row for one scorer and one functional form, with the mean R² over seeds.

    name: "scorer, form". rel, part: rel and its part Σ(DᵀQ ⊙ A), each [seeds, queries].
    """
    left, unexplained = rel - rel.mean(1, keepdims=True), rel - part
    total = np.abs(part) + np.abs(unexplained)
    share = np.divide(np.abs(part), total, out=np.zeros_like(total), where=total > 0)
    explained = 1 - (unexplained**2).sum(1) / (left**2).sum(1)
    row = {"scorer, form": name, "R²": float(explained.mean()), "|part| share": share}
    return row | {"mean rel": float(rel.mean()), "mean part": float(part.mean())}


def draw(heads: Heads) -> "Figure":
    """Plot ‖A − R‖ against ‖W‖ for every head, as in Figure 4."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes, weights = figure.subplots(), heads["weight"][:, 0].ravel()
    for number, (key, label) in enumerate((("second", "A"), ("shuffled_second", "A's rows shuffled"))):
        low, middle, high = np.quantile(heads[key], (0.05, 0.5, 0.95), axis=1).reshape(3, -1)
        look: Any = {"fmt": "os"[number], "ms": 4, "lw": 1, "color": PALETTE[number], "label": label}
        axes.errorbar(weights, middle, [middle - low, high - middle], **look)
    axes.axline((1, 1), (2, 2), color="0.4", ls="--", lw=1, label="‖A − R‖₂ = ‖W‖₂")
    axes.set(xscale="log", yscale="log", xlabel="‖W‖₂ of a head", ylabel="‖A − R‖₂, 5 to 95% of queries")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return figure
