"""Does a learned encoder keep BM25's ranking better than a random projection to as many dimensions?

Luan et al. (TACL 2021, section 2) bound how faithfully a k-dimensional vector can mimic lexical scores by
what random projections do, and leave open what learned encoders do. Here a single-vector model meets a BM25
teacher on one collection, and each figure stands beside the exact law of a Gaussian projection of BM25's own
vectors to the model's dimension h:
- pairs (BM25's best document, another one) by margin: how often the model agrees, beside 1 − p(h, ε), the
  dimension at which a random projection would agree as often;
- BM25's best document among the model's first r, beside 1 − P(R ≥ r).
Disagreement is no fault by itself: a model may be right where BM25 is wrong.

    python experiments/fidelity.py
    python experiments/fidelity.py --model path/to/trained/dpr --collection path/to/scifact
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from studies.settings import LexicalStudy, at_least

from paradigms.io.settings import command_line


@dataclass
class Settings(LexicalStudy):
    """Which encoder is held against BM25, on which documents."""

    model: str = "offline"
    """folder of a trained single-vector paradigm; offline: the default encoder as it comes"""
    documents: int = 2000
    """size of a fixed subset, of pydocs alone; 0: all documents"""
    margin_bins: int = 8
    """bins of the margin, equally full"""

    experiment = "fidelity"

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, margin_bins=1)


if __name__ == "__main__":  # before the imports that take seconds
    given = command_line(Settings, (__doc__ or "").partition("\n\n")[0])

import numpy as np
from studies.curves import Curves
from studies.pages import Rows, Section, publish, verdict_rows
from studies.projection_runs import mean_required_dimension, open_counts

from paradigms import PARADIGMS, Paradigm
from paradigms.baselines.lexical_vectors import weigh
from paradigms.core import Tokens
from paradigms.encoder.batches import by_length
from paradigms.evaluate.claims import Claim
from paradigms.io.progress import progress_bar
from paradigms.io.terminal import shown
from paradigms.train.job import begin
from theory.collection import Problem, exact_thresholds, required_dimension
from theory.projections import pairwise_error
from theory.recall import recall_failure

RECALL_RANKS = (1, 10, 100)
BATCH = 32  # texts encoded at once
LOWER = (
    "trained non-linear dual encoders might be able to detect precise word overlap with much "
    "lower-dimensional encodings"
)


def main(settings: Settings) -> None:
    accelerator, console = begin(settings)
    model = open_model(settings.model)
    collection, counts = open_counts(settings, console, settings.documents)
    problem = Problem.of(*weigh(counts))
    if max(len(problem.competitors(0, query)[1]) for query in range(len(counts.query_ids))) < 1:
        raise SystemExit(f"{collection.name}: BM25 ranks no document below another for any query")
    documents = single_vectors(model.encode_documents, collection.corpus, "documents")
    texts = [collection.split(settings.split).queries[i] for i in counts.query_ids]
    queries = single_vectors(model.encode_queries, texts, "queries")
    h = documents.shape[1]
    pairs = pair_rows(problem, documents, queries, settings.margin_bins)
    recall, claims = recall_rows(problem, documents @ queries.T, h, settings)
    series = {name: [row[name] for row in pairs] for name in ("model", "random projection")}
    curves = Curves(
        "normalized margin of BM25", [row["margin"] for row in pairs], {"pairs as BM25 orders them": series}
    )
    sections = {
        "claims": Section("What the paper says", "", verdict_rows(claims)),
        "pairs": Section(
            "Pairs (BM25's best document, another) by margin",
            f"Share ordered as BM25 does: by the model, and by a Gaussian projection to its {h} dimensions "
            "(exact). worth: the dimension of a projection that agrees as often as the model.",
            pairs,
            curves.draw(),
        ),
        "recall": Section(
            "BM25's best document in the first r",
            "k: the dimension at which a projection keeps it for 95% of the queries [interval over queries].",
            recall,
        ),
    }
    name = "the offline encoder" if settings.model == "offline" else settings.model
    summary = (
        f"{model.recipe.name}, {h} dimensions; {len(collection.corpus):,} documents, {len(texts)} queries of "
        f"split {settings.split}."
    )
    title = f"Fidelity of {name} to BM25 on {collection.name}"
    publish(settings, title, summary, sections, accelerator)
    accelerator.end_training()


def open_model(name: str) -> Paradigm:
    """The trained paradigm in a folder, or DPR over the default offline encoder."""
    if name == "offline":
        return PARADIGMS["dpr"]("offline")
    try:
        return Paradigm.from_pretrained(name)
    except (FileNotFoundError, ValueError) as error:
        raise SystemExit(f"--model: {shown(error)}") from error


def single_vectors(
    encode: Callable[[Sequence[str]], Tokens], texts: Sequence[str], name: str = ""
) -> np.ndarray:
    """One vector per text, [texts, h]; SystemExit where there are more: their score is no inner product."""
    parts = by_length([len(text) for text in texts], rows=BATCH)
    vectors = []
    with progress_bar(bool(name)) as bar:
        for part in bar.track(parts, description=name):
            tokens = encode([texts[i] for i in part])
            if tokens.vectors.shape[2] != 1:
                raise SystemExit(f"the model gives {tokens.vectors.shape[2]} vectors a text; allowed: one")
            vectors.append(tokens.vectors.reshape(len(part), -1).float().cpu().numpy())
    return np.concatenate(vectors)[np.argsort(np.concatenate(parts))]


def pair_rows(problem: Problem, documents: np.ndarray, queries: np.ndarray, bins: int) -> Rows:
    """Agreement on pairs (BM25's best, another document) by margin, and what a random projection is worth it.

    `documents` [n, h] and `queries` [m, h] are the model's vectors. `worth` is the dimension at which a
    Gaussian projection misorders as many pairs of the bin; none where the model misorders half of them or
    more, or none at all.
    """
    dimension, scores = documents.shape[1], documents @ queries.T
    found = [problem.margins(0, query) for query in range(len(queries))]
    values = np.concatenate([margins for _, _, margins in found])
    right = np.concatenate([scores[best, q] > scores[below, q] for q, (best, below, _) in enumerate(found)])
    rows: Rows = []
    for part in np.array_split(np.argsort(values, kind="stable"), min(bins, len(values))):
        agreement, inside = float(right[part].mean()), values[part]
        sample = inside[:: max(1, len(inside) // 2000)]
        rows.append(
            {
                "margin": float(inside.mean()),
                "pairs": len(part),
                "model": agreement,
                "random projection": 1 - float(np.mean(pairwise_error(dimension, sample))),
                "worth": mean_required_dimension(sample, 1 - agreement) if 0.5 < agreement < 1 else None,
            }
        )
    return rows


def recall_rows(
    problem: Problem, scores: np.ndarray, dimension: int, settings: Settings
) -> tuple[Rows, list[Claim]]:
    """How often BM25's best document stays in the first r among those that BM25 scores lower; the claims."""
    below = [problem.competitors(0, query) for query in range(problem.queries.shape[0])]
    most = max(len(others) for _, others, _ in below)
    ranks = [rank for rank in RECALL_RANKS if rank <= most]
    ahead = np.array(
        [np.sum(scores[others, q] >= scores[best, q]) for q, (best, others, _) in enumerate(below)]
    )
    thresholds = exact_thresholds(problem, ranks, settings.samples, settings.seed)[:, 0]
    usable = ~np.isnan(thresholds[0, :, 0])
    rows: Rows = []
    claims = []
    for rank, found in zip(ranks, thresholds[:, usable], strict=True):
        model = (ahead[usable] < rank).astype(float)
        kept = np.array([1 - recall_failure(dimension, row)[0] for row in found])
        rows.append(
            {
                "r": rank,
                "queries": len(found),
                "model": float(model.mean()),
                "random projection": float(kept.mean()),
                "k for 95%": str(required_dimension(found, seed=settings.seed)),
            }
        )
        quantity = f"BM25's best document in the first {rank}: encoder − projection to {dimension}"
        claims.append(Claim("Luan et al. 2021, §4", LOWER, quantity, (model - kept)[None]))
    return rows, claims


if __name__ == "__main__":
    main(Settings(**given))
