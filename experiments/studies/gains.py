"""What training changed, and which models have not learned."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from studies.pages import Measured, Section, interval_text

from paradigms.evaluate import holm, paired_test, seeds_interval
from paradigms.evaluate.claims import ALPHA

UNTRAINED = "untrained"  # the system of a side, measured before training
DEV = "dev nDCG@10"  # key of dev values in the results of `model_runs.encoder_job`
LEARNED = 0.5  # share of BM25's measure; a system below this share says nothing about its paradigm


def differences(pairs: Sequence[tuple[Any, Any]]) -> list[tuple[str, float]]:
    """Return each pair's difference, and p of paired tests (Holm). pairs: [seeds, queries] or [queries]."""
    both = [(np.atleast_2d(values), np.atleast_2d(control)) for values, control in pairs]
    tests = holm([paired_test(values.mean(0), control.mean(0)) for values, control in both])
    shown_differences = [interval_text(seeds_interval(values - control), "+") for values, control in both]
    return list(zip(shown_differences, tests, strict=True))


def unlearned(means: Mapping[str, float], bm25: float, models: Iterable[Measured] = ()) -> str:
    """Return the first system below LEARNED times BM25's mean, or one that training made worse; else ""."""
    poor = next((name for name, mean in means.items() if mean < LEARNED * bm25), "")
    worse = any(model.get("kept step") == 0 for model in models)
    return poor or ("a model that training made worse on dev queries" if worse else "")


def training_rows(models: Mapping[str, Sequence[Measured]]) -> list[dict[str, Any]]:
    """Make a row for each model with dev values: how training changed them, tested as in `unmoved`."""
    rows = []
    for name, seeds in models.items():
        if not all(seed.get(DEV) for seed in seeds):
            continue
        before = np.array([seed[DEV]["untrained"] for seed in seeds])
        after = np.array([seed[DEV]["trained"] for seed in seeds])
        p = paired_test(after.mean(0), before.mean(0))
        row = {"model": name, "untrained → trained": f"{before.mean():.3f} → {after.mean():.3f}"}
        row |= {"gain": interval_text(seeds_interval(after - before), "+"), "p": f"{p:.4f}"}
        rows.append(row | {"moved": "yes" if p < ALPHA and after.mean() > before.mean() else "no"})
    return rows


def training_section(models: Mapping[str, Sequence[Measured]]) -> Section:
    searched = [name for name, seeds in models.items() if any(seed.get("searched") for seed in seeds)]
    searching = f" ({', '.join(searched)}: searching all documents)" if searched else ""
    text = (
        "nDCG@10 of the dev queries, reranking BM25's first documents and the relevant ones"
        f"{searching}, before and after training. A claim about what training does counts for models that it "
        "moved: the mean rose, and the model's paired test is significant (without Holm's correction)."
    )
    return Section("What training changed", text, training_rows(models))


def unmoved(models: Mapping[str, Sequence[Measured]]) -> str:
    """Return the first model that training did not improve; "" if all are improved, or trained elsewhere."""
    for name, seeds in models.items():
        if all(seed.get("kept step") is None for seed in seeds):
            continue
        rows = training_rows({name: seeds})
        if not rows or rows[0]["moved"] == "no":
            return name if rows else f"{name}, which no training measured"
    return ""


def same_queries(results: Sequence[Measured]) -> list[str]:
    """Return the queries on which all results were measured. Raises SystemExit if the queries differ."""
    if any(result["queries"] != results[0]["queries"] for result in results):
        raise SystemExit("The results were measured on different queries: choose another --output")
    return results[0]["queries"]
