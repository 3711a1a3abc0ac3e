"""Does `python -m paradigms advise` choose well? Its regret on collections with judgements.

On every collection the four systems are measured on judged queries, and advised on by known-item queries of
its documents alone. Regret is the best system's mean less the chosen one's; beside it those of always taking
one of the four. Collections that were measured before are taken from the results folder.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from studies.settings import launch, refusing

from paradigms.io.command_line import folder_name


@dataclass
class Settings:
    """On what."""

    collections: list[str] = field(default_factory=lambda: ["pydocs"])
    """names or folders of collections with judgements"""
    split: str = "test"
    """of each, or where it has none its last split"""
    documents: int = 1000
    """of each collection, drawn: those relevant to the queries and others"""
    queries: int = 200
    """of each kind"""
    output: str = "results/advice"


launch(__name__, Settings, __doc__)  # before the imports that take seconds

import numpy as np
from studies.pages import Rows, Section, publish

from paradigms.cli.advise import MEASURE, SYSTEMS, Measured, chance_of_each, drawn, measure
from paradigms.data import load_collection
from paradigms.io.files import write_json
from paradigms.io.typed import read_json

KINDS = ("known-item", "judged")


def main(settings: Settings) -> None:
    folder = Path(settings.output)
    found = {}
    for name in settings.collections:
        file = folder / f"{folder_name(name)}-{settings.split}-{settings.documents}-{settings.queries}.json"
        if not file.is_file():
            with refusing():
                write_json(file, measured(name, settings))
        found[folder_name(name)] = read_json(file)
    summary = f"{MEASURE} on {settings.queries} judged queries and as many known items of each collection."
    publish(settings, "Advice", summary, sections(found))


def measured(name: str, settings: Settings) -> dict[str, dict[str, list[float]]]:
    """kind of query → system → the values of a collection."""
    collection = load_collection(name)
    last = list(collection.splits)[-1]
    split = collection.split(settings.split if settings.split in collection.splits else last)
    found = {}
    for kind, asked in zip(KINDS, (None, split), strict=True):
        corpus, of = drawn(collection.corpus, asked, True, settings.documents, settings.queries)
        found[kind] = {system: row.values.tolist() for system, row in measure(corpus, of).items()}
    return found


def sections(found: dict[str, dict[str, dict[str, list[float]]]]) -> dict[str, Section]:
    """Means on judged queries, what is advised, and regrets with their means over collections."""
    regrets: dict[str, list[float]] = {of: [] for of in ("advise", *(f"always {name}" for name in SYSTEMS))}
    rows: Rows = []
    for name, of in found.items():
        means = {system: float(np.mean(of["judged"][system])) for system in SYSTEMS}
        known = {system: Measured(np.array(of["known-item"][system]), 0, 0) for system in SYSTEMS}
        chances = chance_of_each(known)
        best, chosen = max(means.values()), max(chances, key=chances.__getitem__)
        regrets["advise"].append(best - means[chosen])
        for system in SYSTEMS:
            regrets[f"always {system}"].append(best - means[system])
        advised = {"advised (chance)": f"{chosen} ({chances[chosen]:.0%})", "regret": best - means[chosen]}
        rows.append({"collection": name} | means | advised)
    choices = [
        {"choice": choice, "mean regret": float(np.mean(of)), "largest": max(of)}
        for choice, of in regrets.items()
    ]
    return {
        "table": Section("What is advised", "Means on judged queries.", rows),
        "regrets": Section("Regret by choice", f"Over {len(found)} collections.", choices),
    }
