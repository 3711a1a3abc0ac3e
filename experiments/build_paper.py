"""Typeset findings, tables and figures of the current pages as a PDF.

`make paper` writes build/paper.pdf, a reproducibility paper, and build/imputation.pdf. The texts are
experiments/site/NAME.typ. Tables are read from the pages by heading and number, findings from README, and
figures from the results beside the pages. The build stops if a table or figure is missing.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypedDict

from studies.settings import launch

ROOT = Path(__file__).parents[1]


@dataclass
class Settings:
    """Settings for the text and the output file."""

    text: Literal["paper", "imputation"] = "paper"
    """the text, experiments/site/TEXT.typ"""
    output: str = ""
    """the PDF file, which is overwritten; empty: build/TEXT.pdf"""

    def __post_init__(self) -> None:
        self.output = self.output or str(ROOT / "build" / f"{self.text}.pdf")


launch(__name__, Settings, __doc__, device=False)  # before the slow imports

import re
import shutil
from importlib.util import find_spec
from tempfile import TemporaryDirectory

from paradigms.io.files import replace_file, write_json


class Table(TypedDict):
    """A table of a page: the paragraph above it, if that introduces it, without its colon; and the cells."""

    title: str
    rows: list[list[str]]


SITE = ROOT / "experiments" / "site"
FIGURE = re.compile(r'image\("([^"]+)"')


def main(settings: Settings) -> None:
    if find_spec("typst") is None:
        raise SystemExit("the paper needs typst: make paper installs it")
    import typst

    text = SITE / f"{settings.text}.typ"
    source = text.read_text(encoding="utf-8")
    with TemporaryDirectory() as folder:
        content = Path(folder)
        pages = {name: (ROOT / name).read_text(encoding="utf-8") for name in quoted(source)}
        write_json(content / "tables.json", {name: tables(page) for name, page in pages.items()})
        write_json(content / "findings.json", findings(pages["README.md"]))
        for figure in FIGURE.findall(source):
            (content / figure).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / figure, content / figure)
        for file in (text, SITE / "pages.typ"):
            shutil.copyfile(file, content / file.name)
        output = Path(settings.output)
        output.parent.mkdir(parents=True, exist_ok=True)
        partial = output.with_name(f".{output.name}.partial")
        try:
            typst.compile(content / text.name, output=partial, root=content)
        except typst.TypstError as error:
            raise SystemExit(f"{text.name}: {error}") from error
        replace_file(partial, output)
    print(f"Paper: {settings.output}")


def quoted(text: str) -> list[str]:
    papers = (f"experiments/papers/{name}/README.md" for name in re.findall(r'#verdicts\("(\w+)"\)', text))
    return sorted({"README.md", *re.findall(r'page: "([^"]+)"', text), *papers})


def tables(page: str) -> dict[str, list[Table]]:
    """Return a page's tables, keyed by the heading above them, without Markdown."""
    by_page: dict[str, list[Table]] = {}
    heading = above = ""
    inside = False
    for line in page.splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        if row := line.startswith("|"):
            cells = [plain(cell) for cell in re.split(r"(?<!\\)\|", line.strip()[1:-1])]
            if not inside:
                title = above[:-1] if above.endswith(":") else ""
                by_page.setdefault(heading, []).append({"title": title, "rows": []})
                above = ""
            if not all(set(cell) <= set("-: ") for cell in cells) or not any(cells):
                by_page[heading][-1]["rows"].append(cells)
        elif line:
            above = line
        inside = row
    return by_page


def findings(page: str) -> list[str]:
    return [f"{row[0]}." for row in tables(page)["Findings"][0]["rows"][1:]]


def plain(text: str) -> str:
    return re.sub(r"[`*]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)).replace("\\|", "|").strip()
