"""Write the pages' tables from results, so that no number on a page is copied by hand.

Comments in a page request tables and figures, and all text up to the next <!-- end --> is rewritten:

    <!-- table: token-retrieval-pydocs table5 -->
    <!-- figure: token-retrieval-pydocs figure4 figure6 -->

`table` and `figure` write sections of one study; `without=training_s|bm25` among a table's sections leaves
out this column, and rows whose first cell begins so. A table of `a+b` has the rows of study a, and the rows
of study b with other systems. The studies' commands and running times follow; below a figure only if the page
has no table of its study.

A paper's page requests `<!-- verdicts: lee2023 -->`, a row for each claim that a study decides;
`<!-- runs: … -->`, a row for each study; and `<!-- systems: retrieve R@1 nq320k study study -->`, the means
of a section by study, beside the paper's values of that name. All rows of all studies, and the commands, then
stand in details.md beside the page, which is written whole. `<!-- details: study study -->` on another page
does the same for these studies, in PAGE.details.md.

The names refer to files in the folder `results` beside the page (for README.md: experiments/results). --take
copies a study's results there, with the values behind its verdicts (`judge.py`) and the figures that the page
or its details show:

    .venv/bin/python experiments/fill_pages.py --page experiments/papers/lee2023/README.md \\
        --take '[results/token-retrieval-pydocs]'

Without arguments, all pages are rewritten from the committed results.
"""

from dataclasses import field
from pathlib import Path

from studies.settings import launch, refusing

from paradigms.io.command_line import flags


@flags()
class Settings:
    """Settings for the page, and the results to copy for it."""

    page: str = ""
    """the page; empty: README.md and the pages below paradigms, theory and experiments"""
    take: list[str] = field(default_factory=list)
    """results folders of studies; their tables and figures are copied beside the page"""

    def __post_init__(self) -> None:
        if self.take and not self.page:
            raise SystemExit("take: which page takes the results? Add --page")


launch(__name__, Settings, __doc__, device=False)  # before the slow imports

import shutil

from studies.page_blocks import DETAILS, Page, details, filled
from studies.pages import ROOT, STUDY, VALUES, without_paths

from paradigms.io.checks import read_json
from paradigms.io.files import replace_file, write_json, write_text


def main(settings: Settings) -> None:
    rooms = (ROOT.glob(f"{room}/**/*.md") for room in ("paradigms", "theory", "experiments"))
    pages = [page for room in rooms for page in sorted(room) if not page.name.endswith(DETAILS)]
    with refusing():
        for path in [Path(settings.page)] if settings.page else [ROOT / "README.md", *pages]:
            page = Page(path)
            for folder in map(Path, settings.take):
                take(folder, page)
            written = {path: filled(page)}
            if page.details:
                written[page.details] = details(page)
            for file, text in written.items():
                if not file.is_file() or text != file.read_text(encoding="utf-8"):
                    write_text(file, text)
                    print(f"{file}: written")


def take(folder: Path, page: Page) -> None:
    """Copy a study's rows, values and figures on the page to the folder `results` beside the page.

    Figures that a former run left there are replaced, too: the details show them. Raises ValueError if the
    folder has no study or a figure is missing.
    """
    study = read_json(folder / STUDY)
    former = (path.name.removeprefix(f"{folder.name}.") for path in page.results.glob(f"{folder.name}.*.svg"))
    files = sorted({*(f"{section}.svg" for section in page.sections("figure", folder.name)), *former})
    page.results.mkdir(exist_ok=True)
    write_json(page.results / f"{folder.name}.json", study | {"summary": without_paths(study["summary"])})
    for name in [*files, *(path.name for path in folder.glob(VALUES))]:
        temporary = page.results / f".{folder.name}.{name}.partial"
        shutil.copyfile(folder / name, temporary)
        replace_file(temporary, page.results / f"{folder.name}.{name}")
