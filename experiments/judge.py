"""Judge the claims of finished studies again, from the values that they kept, without training.

A study writes values.npz, the value of each query and seed behind its verdicts, and `fill_pages.py --take`
copies it beside the page. This script judges by the claims that printed.yaml has now, and prints the verdicts
that differ from the study's table, and the CPU hours of the studies. The exit status is 1 if any differs.

    .venv/bin/python experiments/judge.py
    .venv/bin/python experiments/judge.py --results '[results/token-retrieval-pydocs]'

With --without-copies it judges the studies of one collection without the test queries whose documents have a
near copy among the documents of training queries, and prints the verdicts whose word changes.

    .venv/bin/python experiments/judge.py --without-copies path/to/debian
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
    without_copies: str = ""
    """collection whose studies are judged without near copies of training documents"""
    write: bool = False
    """write the new verdicts into the studies' results; then run fill_pages.py"""

    def __post_init__(self) -> None:
        if self.write and self.without_copies:
            raise SystemExit("write: verdicts without near copies are printed, not written")


launch(__name__, Settings, __doc__, device=False)  # before the slow imports

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from studies.claims import ABOUT, again
from studies.pages import STUDY, VALUES, Rows

from paradigms.data import Collection, load_collection, near
from paradigms.data.within import NEAR
from paradigms.io.checks import read_json
from paradigms.io.files import write_json
from paradigms.io.terminal import Terminal


def main(settings: Settings) -> int:
    console = Terminal()
    copies: dict[str, bool] | None = None
    if settings.without_copies:
        with refusing():
            collection = load_collection(settings.without_copies)
            copies = near_copies(collection)
        count = f"{sum(copies.values()):,} of {len(copies):,} test queries"
        console.print(f"{count} are about near copies of training documents and left out", soft_wrap=True)
    folders = [Path(folder) for folder in settings.results]
    files = [folder / STUDY for folder in folders] or sorted(ROOT.glob("experiments/papers/*/results/*.json"))
    differing = 0
    judged = 0
    studies = 0
    minutes = 0.0
    for file in files:
        with refusing():
            study = read_json(file)
        minutes += study.get("minutes", 0.0)
        with refusing(f"{file}: "):
            values = file.with_name(VALUES) if folders else file.with_suffix(f".{VALUES}")
            if not values.is_file() and any(map(is_mean, study["sections"].values())):
                raise ValueError(f"its verdicts rest on {values.name}, which is missing")
            rows = judged_again(values, copies) if values.is_file() else {}
            if unknown := rows.keys() - study["sections"].keys():
                raise ValueError(f"{values.name} has a section {min(unknown)!r}, which the study lacks")
            studies += bool(rows)
            if copies is not None and not rows and f"path/to/{collection.name}]" in study["command"]:
                console.print(f"{file.stem} has not kept its queries' ids", highlight=False)
        for section, of_section in rows.items():
            judged += sum(row["measured"] != "–" for row in of_section)
            changes = list(differences(study["sections"][section]["rows"], of_section, copies is not None))
            differing += len(changes)
            for line in changes:
                console.print(f"{file.stem}, {section}: {line}", highlight=False, soft_wrap=True)
            study["sections"][section]["rows"] = of_section
        if settings.write and rows:
            write_json(file, study)
    count = f"{judged} verdicts of {studies} studies judged again, {differing} differ"
    hours = f"{minutes / 60:.1f} CPU hours"
    console.print(f"{count}; the {len(files)} studies read took {hours}", highlight=False)
    return int(differing > 0)


def is_mean(section: dict[str, Any]) -> bool:
    """Return whether a section has a verdict on a mean over queries, and not on a count or a proof."""
    return any("verdict" in row and "[" in row["measured"] for row in section["rows"])


def near_copies(collection: Collection) -> dict[str, bool]:
    """Return, for each test query, whether a relevant document is a near copy of a training query's."""

    def relevant(split: str) -> dict[str, list[str]]:
        judgements = collection.split(split).judgements
        return {query: [id for id, grade in of.items() if grade > 0] for query, of in judgements.items()}

    train = relevant("train")
    test = relevant("test")
    originals = sorted({id for ids in train.values() for id in ids})
    others = sorted({id for ids in test.values() for id in ids})
    texts = [collection.corpus[collection.corpus.position(id)] for id in [*originals, *others]]
    copied = near.near_copies(texts, NEAR, originals=len(originals))[len(originals) :]
    copies = {id for id, copy in zip(others, copied, strict=True) if copy}
    return {query: not copies.isdisjoint(ids) for query, ids in test.items()}


def judged_again(file: Path, copies: Mapping[str, bool] | None) -> dict[str, Rows]:
    """Judge each section of claims. copies: test queries to leave out, of the collection of the studies."""
    sections: dict[str, dict[str, np.ndarray]] = {}
    with np.load(file, allow_pickle=False) as values:
        for name in values.files:
            section, _, key = name.partition("/")
            sections.setdefault(section, {})[key] = values[name]
    omitted = {query for query, copy in (copies or {}).items() if copy}
    if copies is not None:
        queries = {name: {*json.loads(str(part[ABOUT]))["queries"]} for name, part in sections.items()}
        judged = [name for name, of_part in queries.items() if of_part and of_part <= copies.keys()]
        sections = {name: sections[name] for name in judged}
    return {section: again(of_section, omitted) for section, of_section in sections.items()}


def differences(before: Rows, after: Rows, words: bool) -> Iterator[str]:
    """Yield a line for each row that is new, missing or different. words: other verdicts of the same rows."""
    old, new = ({key(row): row for row in rows} for rows in (before, after))
    row = {"verdict": "no row", "measured": "–"}
    for name in [name for name in old if name in new] if words else dict.fromkeys([*old, *new]):
        both = [old.get(name, row), new.get(name, row)]
        verdicts = {part["verdict"].partition(":")[0] for part in both}
        if len(verdicts) > 1 or (not words and both[0] != both[1]):
            cells = [" → ".join(dict.fromkeys(row[cell] for row in both)) for cell in row]
            yield f"{' · '.join(name)}: {cells[0]} ({cells[1]})"


def key(row: dict[str, Any]) -> tuple[str, ...]:
    return row["place"], row["claim"], row["quantity"]
