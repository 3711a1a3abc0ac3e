"""Build the pages, the live examples and the API reference as one static site with search.

`make site` writes build/site/index.html, which any static host can serve. The site contains every page of the
repository; a broken link or anchor stops the build. The live examples are drawn with the default encoder,
untrained. The API reference is included if `make api` has written it.
"""

from dataclasses import dataclass
from pathlib import Path

from studies.settings import launch

ROOT = Path(__file__).parents[1]


@dataclass
class Settings:
    """Settings for the output folder and the API reference."""

    output: str = str(ROOT / "build" / "site")
    """folder of the site, which is overwritten"""
    api: str = str(ROOT / "build" / "api")
    """folder of the API reference that `make api` writes"""


launch(__name__, Settings, __doc__)  # before the slow imports

import re
import shutil
from dataclasses import replace
from importlib.util import find_spec
from tempfile import TemporaryDirectory

from studies.page_blocks import DETAILS

from paradigms import PARADIGMS, Paradigm
from paradigms.io.files import write_text
from paradigms.view import card_data, page

CONFIG = ROOT / "experiments" / "site" / "mkdocs.yml"
LINK = re.compile(r"\]\(([^)#\s:]+)[)#\s]")
UNDER = ["QueryToDocument()", "DocumentToQuery()", "TopK(k=2)", "TopP(p=0.05)", "Entropic(k=8, eps=0.02)"]
UNDER += ["EqualIds()", "PoolTopK(k=4)", "Buckets(planes=4, repetitions=10)", "AllPairs()"]
WIDE = """.md-grid { max-width: 96rem }
.md-typeset table:not([class]) :is(th, td) { min-width: 6rem; padding: .4em .7em }
@media (min-width: 60em) { .md-typeset table:not([class]) :is(th, td) { min-width: 0 } }
"""  # tables have up to seven columns, which a narrow screen scrolls
FUNCTIONS = ("paradigms.html", "theory.html")
QUERY = "who walked on the moon first?"
DOCUMENT = "In July 1969 Neil Armstrong was the first person to walk on the moon. Buzz Aldrin followed him."
LIVE = f"""# Live examples

The pages below draw rel(d, q) = 1/Z · sum(DᵀQ ⊙ A) for one query, “{QUERY}”, and one document: the
links of A, the entries of S that count, and each token's share of the score. Point at a token, or use the
arrow keys.

- [One ColBERT under every A](alignments.html): the same vectors D and Q, other alignments.
- [Every paradigm](paradigms.html): the same encoder, untrained, with each paradigm's D, Q, A and Z.

`make explore` opens such a page for queries and documents of your own.
"""


def main(settings: Settings) -> None:
    if find_spec("material") is None:
        raise SystemExit("the site needs mkdocs-material: make site installs it")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config
    from mkdocs.exceptions import Abort

    with TemporaryDirectory() as folder:
        pages = Path(folder) / "pages"
        collect(pages)
        config = load_config(str(CONFIG), docs_dir=str(pages), site_dir=settings.output, strict=True)
        if functions := [name for name in FUNCTIONS if (Path(settings.api) / name).is_file()]:
            shutil.copytree(settings.api, pages / "api")
            config.nav.append({"Functions": [{Path(name).stem: f"api/{name}"} for name in functions]})
        try:
            build(config)
        except Abort as error:
            raise SystemExit(f"the site was not built: {error}") from error
    print(f"Site: {Path(settings.output) / 'index.html'}")


def collect(folder: Path) -> None:
    """Copy every page and every linked file to the same path below `folder`, and write the live examples."""
    rooms = [ROOT.glob(f"{room}/**/*.md") for room in ("paradigms", "theory", "experiments", "tests")]
    for source in (*ROOT.glob("*.md"), *(one for room in rooms for one in room)):
        linked = (source.parent / name for name in LINK.findall(source.read_text(encoding="utf-8")))
        for file in (source, *linked):
            copy = folder / file.resolve().relative_to(ROOT)
            if file.is_file() and not copy.exists():
                copy.parent.mkdir(parents=True, exist_ok=True)
                if file.name.endswith(DETAILS):
                    write_text(copy, folded(file.read_text(encoding="utf-8")))
                else:
                    shutil.copyfile(file, copy)
    write_text(folder / "wide.css", WIDE)
    write_text(folder / "live" / "README.md", LIVE)
    colbert = PARADIGMS["colbert"]("offline")
    under = {align: colbert.with_alignment(align) for align in UNDER}
    write_text(folder / "live" / "alignments.html", draw_picture(under))
    every = {name: build("offline") for name, build in PARADIGMS.items() if name != "splade"}  # has no head
    write_text(folder / "live" / "paradigms.html", draw_picture(every))


def folded(text: str) -> str:
    """Fold what stands below each heading of a page of details.

    >>> folded("# A\\n\\ntext\\n\\n## b\\nrows\\n").splitlines()
    ['# A', '', 'text', '', '## b', '', '??? note "Rows, figures and commands"', '', '    rows']
    """
    lines = []
    below = False
    for line in text.splitlines():
        if line.startswith("## "):
            lines += [line, "", '??? note "Rows, figures and commands"', ""]
            below = True
        else:
            lines.append(f"    {line}" if below and line else line)
    return "\n".join(lines) + "\n"


def draw_picture(models: dict[str, Paradigm]) -> str:
    """Explain the example pair under each model, and return the cards as a self-contained HTML page."""
    explained = [replace(model.explain(QUERY, DOCUMENT), system=name) for name, model in models.items()]
    return page([card_data(one) for one in explained], QUERY, DOCUMENT)
