"""Average the results of compare.py over several folders, giving every collection the same weight.

BEIR reports CQADupStack in this way: the twelve parts are searched separately, and the measures are averaged.

    for part in path/to/cqadupstack/*/; do
        .venv/bin/python experiments/compare.py --collection $part --steps 0 \\
            --output results/cqa/$(basename $part)
    done
    .venv/bin/python experiments/average.py --folders '[results/cqa]'

Intervals and tests resample the queries within each collection. Writes table.md and table.csv to the
output folder.
"""

from pathlib import Path

from studies.settings import Baseline, Output, launch, refusing

from paradigms.io.command_line import flags


@flags()
class Settings(Output, Baseline):
    """Settings that select the results to average."""

    folders: list[str]
    """results folders of compare.py, or one folder that contains such folders"""

    def __post_init__(self) -> None:
        if len(self.folders) == 1 and not Path(self.folders[0], FILE).is_file():
            self.folders = [str(file.parent) for file in sorted(Path(self.folders[0]).glob(f"*/{FILE}"))]
        missing = next((folder for folder in self.folders if not Path(folder, FILE).is_file()), None)
        if missing or len(self.folders) < 2:
            missing = missing or "two or more results folders"
            raise SystemExit(f"folders: {missing} without {FILE} of compare.py")
        super().__post_init__()


FILE = "per_query.csv"

launch(__name__, Settings, __doc__, device=False)  # before the slow imports

import csv

import numpy as np

from paradigms.evaluate import PerQuery, csv_table, markdown_table, result_table, rich_table
from paradigms.io.files import lock_until_exit, write_text
from paradigms.io.terminal import Terminal


def main(settings: Settings) -> None:
    with refusing():
        parts = {folder: read_per_query(Path(folder, FILE)) for folder in settings.folders}
        stages = joined(parts)
    tables = []
    for stage, systems in stages.items():
        if settings.baseline not in systems:
            raise SystemExit(f"baseline: no {settings.baseline!r} in {stage}; there are {', '.join(systems)}")
        title = f"{stage}: the mean of {len(parts)} collections"
        primary = list(systems[settings.baseline].values)[:1]
        tables.append(result_table(title, systems, baseline=settings.baseline, primary=primary))
        Terminal().print(rich_table(tables[-1]))
    output = lock_until_exit(settings.output)
    write_text(output / "table.md", "\n\n".join(map(markdown_table, tables)) + "\n")
    write_text(output / "table.csv", csv_table(*tables))


def read_per_query(file: Path) -> dict[tuple[str, str], dict[str, dict[str, float]]]:
    """Read (stage, system) → measure → query → value. Raises ValueError, naming an invalid line."""
    tables: dict[tuple[str, str], dict[str, dict[str, float]]] = {}
    with file.open(encoding="utf-8", newline="") as stream:
        for number, row in enumerate(csv.DictReader(stream), 2):
            try:
                values = tables.setdefault((row["stage"], row["system"]), {}).setdefault(row["measure"], {})
                values[row["query"]] = float(row["value"])
            except (KeyError, ValueError, TypeError) as error:
                raise ValueError(f"{file}, line {number}: {error!r}") from error
    return tables


def joined(parts: dict[str, dict]) -> dict[str, dict[str, PerQuery]]:
    """Merge the parts, in groups: stage → system → values. Raises ValueError if their systems differ."""
    first_name, first = next(iter(parts.items()))
    stages: dict[str, dict[str, PerQuery]] = {}
    for (stage, system), measures in first.items():
        for folder, part in parts.items():
            if part.get((stage, system), {}).keys() != measures.keys():
                raise ValueError(f"{folder} has other measures of {system}, {stage}, than {first_name}")
        queries = {folder: list(next(iter(part[stage, system].values()))) for folder, part in parts.items()}
        rows = [(folder, query) for folder, texts in queries.items() for query in texts]
        values = {
            m: np.array([parts[part][stage, system][m][query] for part, query in rows]) for m in measures
        }
        names = [" ".join(row) for row in rows]
        groups = [folder for folder, _ in rows]
        stages.setdefault(stage, {})[system] = PerQuery(queries=names, values=values, groups=groups)
    return stages
