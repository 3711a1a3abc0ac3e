"""Judge the claims of finished studies again, from the values that they kept, without training.

A study writes values.npz, the value of each query and seed behind its verdicts, and `fill_pages.py --take`
copies it beside the page. This script judges by the claims that printed.yaml has now, and prints the verdicts
that differ from the study's table. The exit status is 1 if any does. Studies without values are listed with
the command that measures them again.

    .venv/bin/python experiments/judge.py
    .venv/bin/python experiments/judge.py --results '[results/token-retrieval-pydocs]'
"""

from dataclasses import field
from pathlib import Path

from studies.settings import launch, refusing

from paradigms.io.command_line import flags

ROOT = Path(__file__).parents[1]


@flags()
class Settings:
    """Settings for the studies to judge."""

    results: list[str] = field(default_factory=list)
    """results folders of studies; empty: all studies with results beside the pages of papers"""
    write: bool = False
    """write the new verdicts into the studies' results; then run fill_pages.py"""


launch(__name__, Settings, __doc__, device=False)  # before the slow imports

from collections.abc import Iterator
from typing import Any

import numpy as np
from studies.claims import again
from studies.pages import STUDY, VALUES, Rows

from paradigms.io.checks import read_json
from paradigms.io.files import write_json
from paradigms.io.terminal import Terminal


def main(settings: Settings) -> int:
    console = Terminal()
    folders = [Path(folder) for folder in settings.results]
    files = [folder / STUDY for folder in folders] or sorted(ROOT.glob("experiments/papers/*/results/*.json"))
    lost = list[str]()
    differing = 0
    judged = 0
    kept = 0
    for file in files:
        with refusing():
            study = read_json(file)
        with refusing(f"{file}: "):
            tables = {
                name: part["rows"] for name, part in study["sections"].items() if has_claims(part["rows"])
            }
            values = file.with_name(VALUES) if folders else file.with_suffix(f".{VALUES}")
            if tables and not values.is_file():
                name = file.parent.name if folders else file.stem
                lost.append(f"{name}: .venv/bin/python {study['command']}")
            rows = judged_again(values) if values.is_file() else {}
            kept += bool(rows)
        for section, of_section in rows.items():
            judged += sum(row["measured"] != "–" for row in of_section)
            changes = list(differences(tables.get(section, []), of_section))
            differing += len(changes)
            for line in changes:
                console.print(f"{file.stem}, {section}: {line}", highlight=False, soft_wrap=True)
            study["sections"][section]["rows"] = of_section
        if settings.write and rows:
            write_json(file, study)
    count = f"{judged} verdicts of {kept} studies judged again, {differing} differ"
    console.print(f"{count}; {len(lost)} studies have kept no values", highlight=False)
    for line in lost:
        console.print(f"To measure again, {line}", highlight=False, soft_wrap=True)
    return int(differing > 0)


def has_claims(rows: Rows) -> bool:
    """Return whether some row has a verdict on a mean over queries, and not on a count or a proof."""
    return any(" queries, " in row["sample"] for row in rows if "verdict" in row)


def judged_again(file: Path) -> dict[str, Rows]:
    """Return the rows of each section of claims, judged from the values in a file."""
    sections: dict[str, dict[str, np.ndarray]] = {}
    with np.load(file, allow_pickle=False) as values:
        for name in values.files:
            section, _, key = name.partition("/")
            sections.setdefault(section, {})[key] = values[name]
    return {section: again(of_section) for section, of_section in sections.items()}


def differences(before: Rows, after: Rows) -> Iterator[str]:
    """Yield a line for each claim and contrast whose row is new, missing or different."""
    old, new = ({key(row): row for row in rows} for rows in (before, after))
    for name in dict.fromkeys([*old, *new]):
        if old.get(name) != new.get(name):
            row = {"verdict": "no row", "measured": "–"}
            both = [old.get(name, row), new.get(name, row)]
            cells = [" → ".join(dict.fromkeys(row[cell] for row in both)) for cell in row]
            yield f"{' · '.join(name)}: {cells[0]} ({cells[1]})"


def key(row: dict[str, Any]) -> tuple[str, ...]:
    return row["place"], row["claim"], row["quantity"]
