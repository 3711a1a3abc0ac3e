"""Write the tables of the pages from results, so that no number on a page is copied by hand.

Comments in a page request tables, and all text up to the next <!-- end --> is rewritten:

    <!-- claims: token-retrieval-pydocs token-retrieval-scifact -->
    <!-- table: token-retrieval-pydocs table5 -->

The first table has a row for each claim with a verdict for each study, and the studies' commands; the second
table is one section of a study. The names are files in the folder `results` beside the page. --take copies a
study's results into this folder, with the figures that the page shows as results/NAME.SECTION.svg:

    .venv/bin/python experiments/fill_pages.py --page experiments/papers/lee2023/README.md \\
        --take '[results/token-retrieval-pydocs]'

Without arguments, all pages are rewritten from the committed results.
"""

from dataclasses import dataclass, field
from pathlib import Path

from studies.settings import launch, refusing

ROOT = Path(__file__).parents[1]


@dataclass
class Settings:
    """Settings: the page, and the results to copy for it."""

    page: str = ""
    """the page; empty: README.md and the pages below paradigms, theory and experiments"""
    take: list[str] = field(default_factory=list)
    """results folders of studies; their tables and figures are copied beside the page"""

    def __post_init__(self) -> None:
        if self.take and not self.page:
            raise SystemExit("take: which page takes the results? Add --page")


launch(__name__, Settings, __doc__)  # before the slow imports

import re
import shutil
from typing import Any

from studies.pages import STUDY, markdown_rows

from paradigms.io.checks import read_json
from paradigms.io.files import replace_file, write_json, write_text

BLOCK = re.compile(r"(<!-- (claims|table): ([^>]*?) -->\n).*?(<!-- end -->)", re.DOTALL)
FIGURE = re.compile(r"\]\(results/([^)/]+)\.([^)./]+)\.svg\)")


def main(settings: Settings) -> None:
    rooms = (ROOT.glob(f"{room}/**/*.md") for room in ("paradigms", "theory", "experiments"))
    pages = [ROOT / "README.md", *(page for room in rooms for page in sorted(room))]
    with refusing():
        for page in [Path(settings.page)] if settings.page else pages:
            for folder in map(Path, settings.take):
                take(folder, page)
            before = page.read_text(encoding="utf-8")
            if (text := filled(page)) != before:
                write_text(page, text)
                print(f"{page}: written")


def take(folder: Path, page: Path) -> None:
    """Copy a study's rows, and the figures that the page shows, to the folder `results` beside the page.

    Raises ValueError if the folder has no study or a figure is missing.
    """
    kept = page.parent / "results"
    kept.mkdir(exist_ok=True)
    write_json(kept / f"{folder.name}.json", read_json(folder / STUDY))
    for name, section in FIGURE.findall(page.read_text(encoding="utf-8")):
        if name == folder.name:
            temporary = kept / f".{name}.{section}.partial"
            shutil.copyfile(folder / f"{section}.svg", temporary)
            replace_file(temporary, kept / f"{name}.{section}.svg")


def filled(page: Path) -> str:
    """Return the page's text with all tables written from the results beside the page.

    Raises ValueError with the page's name if the study or section of a table does not exist.
    """

    def block(match: re.Match[str]) -> str:
        begin, kind, names, end = match.groups()
        try:
            text = claims(page, names.split()) if kind == "claims" else table(page, *names.split())
        except (KeyError, TypeError, OSError) as error:
            raise ValueError(f"{page}: {kind} {names}: {error!r}") from error
        return f"{begin}\n{text}\n{end}"

    return BLOCK.sub(block, page.read_text(encoding="utf-8"))


def claims(page: Path, names: list[str]) -> str:
    """Return a table with a row for each claim and each study's verdict and interval, and the commands."""
    studies = [_study(page, name) for name in names]
    labels = [study["collection"] or study["title"] for study in studies]
    rows: dict[tuple[str, int], dict[str, str]] = {}
    for label, study in zip(labels, studies, strict=True):
        seen: dict[str, int] = {}
        for row in (row for section in study["sections"].values() for row in section["rows"]):
            if "verdict" in row:
                claim = row["claim"]
                seen[claim] = seen.get(claim, 0) + 1  # a claim may be tested on several models
                blank = {"claim": claim, "measured": row["quantity"], "paper": row["printed"] or "–"}
                cells = rows.setdefault((claim, seen[claim]), blank | dict.fromkeys(labels, "–"))
                cells[label] = ", ".join(
                    part for part in (row["verdict"].partition(":")[0], row["measured"]) if part != "–"
                )
    return markdown_rows(list(rows.values())) + "".join(map(_source, studies))


def table(page: Path, name: str, section: str) -> str:
    """Return one section of a study, with the study's command."""
    study = _study(page, name)
    return markdown_rows(study["sections"][section]["rows"]) + _source(study)


def _study(page: Path, name: str) -> dict[str, Any]:
    return read_json(page.parent / "results" / f"{name}.json")


def _source(study: dict[str, Any]) -> str:
    return (
        f"\n{study['summary']} {study['minutes']:.0f} processor minutes ({study['processor']}):\n\n"
        f"    .venv/bin/python {study['command']}\n"
    )
