"""Describe imputation.py: the judged hypotheses, the table of systems and the figures."""

from collections.abc import Mapping, Sequence

import numpy as np
from papers.implicit_idf.floors import NDCG
from studies.claims import HEADING, Study, printed
from studies.curves import Curves, Values
from studies.model_runs import training_section
from studies.pages import Measured, Section, shown

from paradigms.evaluate import seeds_interval
from paradigms.evaluate.claims import judge

PAPER = "implicit_idf"
LARGE = 20_000  # documents of a large collection
SYSTEMS = ("MaxSim", "imputed", "IDF", "IDF, imputed", "table", "regression", "sample", "softplus")
Cells = Mapping[tuple[str, str], Mapping[str, Sequence[Measured]]]  # (encoder, collection) -> loss -> seeds


def name_of(encoder: str, loss: str, collection: str) -> str:
    return f"{encoder}{'' if loss == 'untrained' else f' trained with {loss}'} on {collection}"


def study_of(encoder: str, collection: str, losses: Mapping[str, Sequence[Measured]]) -> Study:
    """Make the study of one encoder on one collection, with and without training."""
    names = {loss: name_of(encoder, loss, collection) for loss in losses}
    untrained = [names["untrained"]] if "untrained" in names else []
    large = losses[next(iter(losses))][0]["documents"] > LARGE
    groups = {encoder: untrained, "untrained": untrained, "from": untrained}
    groups |= {f"large {encoder}": untrained * large}
    groups |= {f"from, {loss}": [name] for loss, name in names.items()}
    return Study.of(
        {names[loss]: seeds for loss, seeds in losses.items()},
        groups=groups,
        trainings={names[loss]: seeds for loss, seeds in losses.items() if loss != "untrained"},
    )


def sections_of(cells: Cells, counts: Sequence[int]) -> dict[str, Section]:
    """Return the page's sections, keyed by file name. All hypotheses of all cells are one family of tests."""
    studies = {cell: study_of(*cell, losses) for cell, losses in cells.items()}
    rows = printed(PAPER)["claims"]["imputation"]
    tested = [
        (row, [claim for s in studies.values() for claim in s.claims(PAPER, [row])[0][1]]) for row in rows
    ]
    verdicts = judge([claim for _, claims in tested for claim in claims])
    first = next(iter(studies.values()))
    others = [first.other(PAPER, row) for row, claims in tested if not claims]
    trained = {name: seeds for study in studies.values() for name, seeds in study.trainings.items()}
    encoders = list(dict.fromkeys(encoder for encoder, _ in cells))
    return {
        "training": training_section(trained),
        "claims": Section(HEADING, "", [*(verdict.row for verdict in verdicts), *others]),
        "systems": Section(
            "Systems",
            "nDCG@10 of test queries, and the k' that dev queries choose.",
            [row for cell, losses in cells.items() for row in system_rows(cell, losses, studies[cell])],
        ),
        "k": Curves(
            "k'",
            counts,
            {
                f"{NDCG}, {encoder}: imputed − MaxSim": {
                    collection: gains(
                        studies[encoder, collection], name_of(encoder, "untrained", collection), counts
                    )
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


def gains(study: Study, name: str, counts: Sequence[int]) -> list[Values | None]:
    """Return imputed − MaxSim for each k'; None if the encoder was not measured without training."""
    sides = study.values[NDCG]
    plain = sides.get(f"{name}, MaxSim")
    return [None if plain is None else sides[f"{name}, k' = {k}"] - plain for k in counts]


def corpus_section(cells: Cells, counts: Sequence[int]) -> Section:
    """Draw the gain of imputation by k' on dev queries, for all documents and for a sixteenth of them."""
    panels = {}
    for (encoder, collection), losses in cells.items():
        result = losses.get("untrained", [{"documents": 0}])[0]
        if result["documents"] > LARGE:
            panels[f"{NDCG}, {encoder} on {collection}"] = {
                corpus: [np.array([values[f"k' = {k}"]]) - np.array([values["MaxSim"]]) for k in counts]
                for corpus, values in result["dev"].items()
            }
    if not panels:
        return Section("Imputation by the size of the corpus")
    text = "The change of nDCG@10 of MaxSim by imputation, untrained; dev queries."
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
        rows.append({"encoder": name, "tokens": f"{seeds[0]['tokens']['all']:,}", "k'": ks} | values)
    return rows
