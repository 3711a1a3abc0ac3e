"""Describe imputation.py: the judged hypotheses, the table of systems and the figures."""

from collections.abc import Mapping, Sequence

import numpy as np
from papers.implicit_idf.floors import NDCG
from studies.claims import Study
from studies.curves import Curves, Values
from studies.gains import training_section
from studies.pages import Measured, Section, shown

from paradigms.evaluate import seeds_interval

PAPER = "implicit_idf"
LARGE = 20_000  # documents of a large collection
SYSTEMS = ("MaxSim", "imputed", "IDF", "IDF, imputed", "table", "regression", "sample", "softplus")
Cells = Mapping[tuple[str, str], Mapping[str, Sequence[Measured]]]  # (encoder, collection) -> loss -> seeds


def name_of(encoder: str, loss: str, collection: str) -> str:
    return f"{encoder}{'' if loss == 'untrained' else f' trained with {loss}'} on {collection}"


def study_of(cells: Cells) -> Study:
    """Make one study of all cells, whose hypotheses are one family of tests."""
    values: dict[str, dict[str, Values]] = {}
    trainings: dict[str, Sequence[Measured]] = {}
    names = ("T5", "MiniLM", "untrained", "large T5", "trained", "encoder")
    groups: dict[str, list[str]] = {name: [] for name in names}
    for (encoder, collection), losses in cells.items():
        for loss, seeds in losses.items():
            name = name_of(encoder, loss, collection)
            for measure, sides in Study.of({name: seeds}).values.items():
                values.setdefault(measure, {}).update(sides)
            if loss != "untrained":
                trainings[name] = seeds
        untrained = name_of(encoder, "untrained", collection)
        groups[encoder].append(untrained)
        groups["untrained"].append(untrained)
        if len(losses) > 1:
            groups["trained"] += [collection] * (collection not in groups["trained"])
            groups["encoder"] += [encoder] * (encoder not in groups["encoder"])
        if encoder == "T5":
            groups["large T5"] += [untrained] * (losses["untrained"][0]["documents"] > LARGE)
    return Study(values, groups=groups, trainings=trainings)


def sections_of(cells: Cells, counts: Sequence[int]) -> dict[str, Section]:
    study = study_of(cells)
    encoders = list(dict.fromkeys(encoder for encoder, _ in cells))
    return {
        "training": training_section(study.trainings),
        "claims": study.section(PAPER, "trained" if study.trainings else "imputation"),
        "systems": Section(
            "Systems",
            "nDCG@10 of test queries; dev queries choose k'.",
            [row for cell, losses in cells.items() for row in system_rows(cell, losses, study)],
        ),
        "k": Curves(
            "k'",
            counts,
            {
                f"{NDCG}, {encoder}: imputed − MaxSim": {
                    collection: gains(study, name_of(encoder, "untrained", collection), counts)
                    for one, collection in cells
                    if one == encoder
                }
                for encoder in encoders
            },
        ).section(
            "Imputation by k'", "The change of nDCG@10 of MaxSim by imputation, untrained; test queries."
        ),
        "corpus": corpus_section(cells, counts),
    }


def gains(study: Study, name: str, counts: Sequence[int]) -> list[Values]:
    """Return imputed − MaxSim for each k'."""
    sides = study.values[NDCG]
    return [sides[f"{name}, k' = {k}"] - sides[f"{name}, MaxSim"] for k in counts]


def corpus_section(cells: Cells, counts: Sequence[int]) -> Section:
    """Draw the gain of imputation for T5 by k' on dev queries, in a sixteenth of the documents and in all."""
    measured = {
        collection: losses["untrained"][0]["dev"]
        for (name, collection), losses in cells.items()
        if name == "T5"
    }
    if not measured:
        return Section("Imputation by the size of the corpus")
    panels = {
        f"{NDCG}, {part} of the documents": {
            collection: [np.array([dev[part][f"k' = {k}"]]) - np.array([dev[part]["MaxSim"]]) for k in counts]
            for collection, dev in measured.items()
        }
        for part in ("a sixteenth", "all")
    }
    text = "The change of nDCG@10 of MaxSim by imputation, T5 without training; dev queries."
    return Curves("k'", counts, panels).section("Imputation by the size of the corpus", text)


def system_rows(
    cell: tuple[str, str], losses: Mapping[str, Sequence[Measured]], study: Study
) -> list[dict[str, str]]:
    """Make a row for each training of an encoder on a collection."""
    rows = []
    for loss, seeds in losses.items():
        name = name_of(cell[0], loss, cell[1])
        ks = "/".join(f"{seed['chosen']['imputed']['k']:,}" for seed in seeds)
        values = {
            system: shown(seeds_interval(study.values[NDCG][f"{name}, {system}"]))
            if n == 0
            else f"{study.values[NDCG][f'{name}, {system}'].mean():.3f}"
            for n, system in enumerate(SYSTEMS)
        }
        rows.append({"encoder": name, "tokens": f"{seeds[0]['tokens']:,}", "k'": ks} | values)
    return rows
