"""The tables and figures that comments in a page request, made from the results beside the page."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
from studies.claim_tables import (
    LEAST,
    NOT_DECIDED,
    NOT_TESTED,
    claim_table,
    counted,
    open_rows,
    size,
    untested_rows,
    verdicts,
    word_of,
)
from studies.claims import printed, terms_of
from studies.pages import ROOT, VALUES, Rows, markdown_rows

from paradigms.io.checks import read_json

DETAILS = "details.md"  # the end of the name of a generated page
UNTRAINED = ", untrained"
WITHOUT = "without="
# What summaries and commands of studies say of their sample, for the columns of `runs`.
SAMPLE = {
    "queries": r"([\d,]+) (?:test queries|queries of split test)",
    "documents": r"(?:over |passages: |\. )([\d,]+) (?:documents|of)",
    "models from": r"(?:from '?|--backbone )(?:path/to/)?([^',\s]+)",
    "steps": r"([\d,]+ steps of \d+)",
}
WALL_TIME = re.compile(r" (The job|After an interruption, the rest of the job) took \d+ s\.")


@dataclass(frozen=True)
class Page:
    """A page, its blocks, and the results that they show. Raises ValueError if the page does not exist."""

    path: Path

    @cached_property
    def text(self) -> str:
        if not self.path.is_file():
            raise ValueError(f"{self.path} does not exist")
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def requested(self) -> list[tuple[str, list[str]]]:
        """The kind and the names of each block."""
        return [(kind, names.split()) for _, kind, names, _ in BLOCK.findall(self.text)]

    def names(self, kind: str) -> list[str]:
        """Return the names in all blocks of a kind."""
        return [name for of, names in self.requested if of == kind for name in names]

    def sections(self, kind: str, study: str) -> list[str]:
        """Return the sections of a study that the blocks of a kind, tables or figures, show."""
        blocks = [names for of, names in self.requested if of == kind]
        return [section for name, *sections in blocks if study in name.split("+") for section in sections]

    @property
    def results(self) -> Path:
        """The folder of the results: beside the page or, for the main README.md, in experiments."""
        folder = self.path.resolve().parent
        return (ROOT / "experiments" if folder == ROOT else folder) / "results"

    def study(self, name: str) -> dict[str, Any]:
        return read_json(self.results / f"{name}.json")

    def judged(self, names: Iterable[str]) -> Rows:
        """Return the studies' rows with verdicts, each with its study.

        Studies that share models have a test with the same values, which is returned once.
        """
        rows: dict[tuple[Any, ...], dict[str, Any]] = {}
        for name in names:
            for key, section in self.study(name)["sections"].items():
                for row in (row for row in section["rows"] if "verdict" in row):
                    claim = (row["claim"], row["place"], row["quantity"], word_of(row))
                    rows.setdefault((*claim, self.measured(name, key, row) or name), row | {"study": name})
        return [*rows.values()]

    def measured(self, study: str, section: str, row: dict[str, Any]) -> tuple[bytes, ...]:
        """Return the values of every query and seed behind a row, by side, or nothing if none are kept."""
        if "[" not in row["measured"]:
            return ()
        values = kept_values(self.results / f"{study}.{VALUES}")
        measure, _, contrast = LEAST.sub("", row["quantity"]).partition(": ")
        sides = [f"{section}/{measure}: {side}" for _, side in terms_of(contrast)]
        return tuple(values[side].tobytes() for side in sides) if {*sides} <= values.keys() else ()

    @property
    def paper(self) -> str:
        """The paper whose `verdicts` the page requests, or ""."""
        return next(iter(self.names("verdicts")), "")

    @property
    def details(self) -> Path | None:
        """The generated page of the page's details, or None if the page requests none."""
        if self.paper:
            return self.path.with_name(DETAILS)
        return self.path.with_suffix(f".{DETAILS}") if self.names("details") else None

    @property
    def detailed(self) -> list[str]:
        """The studies in the details: of a paper's page, all in the results beside it."""
        return [f.stem for f in sorted(self.results.glob("*.json"))] if self.paper else self.names("details")


@cache
def kept_values(file: Path) -> dict[str, np.ndarray]:
    """Return the values that a study kept, by section, measure and side."""
    if not file.is_file():
        return {}
    with np.load(file, allow_pickle=False) as values:
        return dict(values)


def filled(page: Page) -> str:
    """Return the page with all of its tables and figures rewritten from the results.

    Raises ValueError, naming the page, if a requested study, section or figure does not exist.
    """

    def block(match: re.Match[str]) -> str:
        begin, kind, names, end = match.groups()
        try:
            text = KINDS[kind](page, *names.split())
        except (KeyError, TypeError, OSError) as error:
            raise ValueError(f"{page.path}: {kind} {names}: {error!r}") from error
        return f"{begin}\n{text}\n{end}"

    return BLOCK.sub(block, page.text)


def runs(page: Page, *names: str) -> str:
    """Make a table of studies: their samples and trainings, without columns that none fills."""
    rows: Rows = []
    for name in names:
        study = page.study(name)
        summary = f"{study['summary']} {study['command']}"
        matches = {column: re.search(pattern, summary) for column, pattern in SAMPLE.items()}
        cells = {column: match[1] if match else "–" for column, match in matches.items()}
        if largest := max(map(size, page.judged([name])), default=0):
            cells["queries"] = f"{largest:,.0f}"
        start = cells["models from"]
        cells["models from"] = "all-MiniLM-L6-v2" if start == "offline" else start.removesuffix("-offline")
        rows.append(
            {"study": f"[{name}]({DETAILS}#{name})"} | cells | {"CPU min": f"{study['minutes']:,.0f}"}
        )
    filled_columns = [column for column in rows[0] if any(row[column] != "–" for row in rows)]
    return markdown_rows([{column: row[column] for column in filled_columns} for row in rows])


def decided(page: Page, paper: str) -> str:
    rest = f"[All tests, and what would decide the open ones]({DETAILS}).\n"
    return f"{verdicts(paper, page.judged(page.detailed))}{rest}"


def systems(page: Page, section: str, measures: str, values: str, *names: str) -> str:
    """Make a table of means by study, after training, for systems of the paper or two studies.

    measures: columns of the section, joined by commas. values: key of the paper's values in printed.yaml.
    """
    columns: dict[str, dict[str, str]] = {}
    for name in names:
        means: dict[str, str] = {}
        for row in page.study(name)["sections"][section]["rows"]:
            cell = ", ".join(row[measure].partition(" ")[0].lstrip("0") for measure in measures.split(","))
            if not row["system"].endswith(UNTRAINED):
                means[row["system"]] = cell
        columns[name] = means
    paper = printed(page.paper)[values]
    rows: Rows = []
    for system in dict.fromkeys(system for means in columns.values() for system in means):
        cells = {name: means.get(system, "") for name, means in columns.items()}
        if system in paper or sum(map(bool, cells.values())) > 1:
            values_of = (f"{value / 100:.3f}".lstrip("0") for value in paper.get(system, []))
            rows.append({"system": system} | cells | {"the paper": ", ".join(values_of)})
    return markdown_rows(rows)


def link(page: Page, *names: str) -> str:
    return f"[All rows, figures and commands]({page.path.stem}.{DETAILS}).\n"


def details(page: Page) -> str:
    """Write the page of all rows, figures and commands of the studies that a page sums up."""
    title = page.text.partition("\n")[0].removeprefix("# ")
    written = f"Written from the results that [the page]({page.path.name}) sums up.\n"
    parts = [f"# {title}: all studies\n\n{written}"]
    for name in page.detailed:
        study = page.study(name)
        parts.append(f"## {name}\n{source(study)}")
        if judged := page.judged([name]):
            parts.append(claim_table(judged))
        for key, section in study["sections"].items():
            if section["rows"] and "verdict" not in section["rows"][0]:
                picture = page.results / f"{name}.{key}.svg"
                heading = section.get("heading") or key
                picture_line = f"![{heading}](results/{picture.name})\n\n" if picture.is_file() else ""
                text = f"\n{section['text']}\n" if section.get("text") else ""
                parts.append(f"### {heading}\n\n{picture_line}{markdown_rows(section['rows'])}{text}")
    judged = page.judged(page.detailed) if page.paper else []
    untested = untested_rows(page.paper, judged) if page.paper else []
    for heading, rows in {
        f"{NOT_DECIDED}: claims of which every test is open": open_rows(judged),
        f"{NOT_TESTED}: claims that no study has tested": untested,
    }.items():
        if rows:
            parts += [f"## {heading}\n", markdown_rows(rows)]
    return "\n".join(parts)


def tables(page: Page, name: str, *sections: str) -> str:
    """Make tables from sections of a study, each with its text, and describe how the study was run.

    The text is left out if it is the caption of a figure on the page. name: names of studies, joined by "+";
    a row of a later study is left out if an earlier study has a row with the same first cell, and a text that
    does not describe all rows names its own. "without=a|b_c" among the sections leaves out the columns "a"
    and "b c", and rows whose first cell begins with one of them; the details have them. Raises TypeError if
    the studies' columns differ.
    """
    studies = {part: page.study(part) for part in name.split("+")}
    options = [section for section in sections if section.startswith(WITHOUT)]
    hidden = tuple(
        word for option in options for word in option.removeprefix(WITHOUT).replace("_", " ").split("|")
    )
    parts = []
    for section in (section for section in sections if section not in options):
        rows: Rows = []
        texts: dict[str, list[str]] = {}  # text -> first cells of the rows that it describes
        for part, study in studies.items():
            earlier = {first(row) for row in rows}
            text = study["sections"][section].get("text")
            added = [row for row in study["sections"][section]["rows"] if first(row) not in earlier]
            if any(row.keys() != rows[0].keys() for row in added if rows):
                raise TypeError(f"the columns of {part} are not those of {name.partition('+')[0]}")
            rows += added
            for column in filter(None, hidden if text else ()):
                text = re.sub(rf"[;.]? ?\b{re.escape(column)}: [^;.]*(?=[;.])", "", text).removeprefix(".")
            if added and text and section not in page.sections("figure", part):
                texts.setdefault(text, []).extend(map(first, added))
        visible = [row for row in rows if not first(row).startswith(hidden)] if hidden else rows
        parts.append(markdown_rows([{k: v for k, v in row.items() if k not in hidden} for row in visible]))
        for text, described in texts.items():
            parts.append(f"{text}\n" if len(described) == len(rows) else f"{', '.join(described)}: {text}\n")
    return "\n".join(parts) + ("" if page.details else "".join(map(source, studies.values())))


def first(row: dict[str, Any]) -> str:
    return str(next(iter(row.values())))


def figures(page: Page, name: str, *sections: str) -> str:
    """Embed a study's figures with captions, and how it was run, unless a table on the page says so."""
    study = page.study(name)
    parts = []
    for section in sections:
        picture = page.results / f"{name}.{section}.svg"
        picture.stat()
        heading = study["sections"][section]["heading"]
        caption = f"*{heading}.* {study['sections'][section]['text']}".rstrip()
        place = picture.relative_to(page.path.resolve().parent)
        parts.append(f"![{heading}]({place})\n\n{caption}\n")
    described = page.details or page.sections("table", name)
    return "\n".join(parts) + ("" if described else source(study, summary=False))


def source(study: dict[str, Any], summary: bool = True) -> str:
    """Describe how a study was run. summary: whether to start with the study's summary of its sample.

    A study whose script was deleted has no command: its summary names the commit that has it.
    """
    sample = WALL_TIME.sub("", study["summary"]) + " " if summary else ""  # CPU time stands beside it
    minutes = f"{study['minutes']:.{0 if study['minutes'] >= 1 else 1}f}"
    command = f":\n\n    .venv/bin/python {study['command']}" if study["command"] else "."
    return f"\n{sample}{counted(minutes, 'minute')} of CPU time ({study['processor']}){command}\n"


KINDS: dict[str, Callable[..., str]] = {
    "table": tables,
    "figure": figures,
    "verdicts": decided,
    "runs": runs,
    "systems": systems,
    "details": link,
}
BLOCK = re.compile(rf"(<!-- ({'|'.join(KINDS)}): ([^>]*?) -->\n).*?(<!-- end -->)", re.DOTALL)
