"""Write the pages' tables from results, so that no number on a page is copied by hand.

Comments in a page request tables and figures, and all text up to the next <!-- end --> is rewritten:

    <!-- claims: token-retrieval-pydocs token-retrieval-scifact -->
    <!-- table: token-retrieval-pydocs table5 -->
    <!-- figure: token-retrieval-pydocs figure4 figure6 -->
    <!-- untested: lee2023 -->

`claims` writes a row for each claim and study, with the verdict; `untested` the paper's other claims;
`table` and `figure` write sections of one study. A table of `a+b` has the rows of study a, and the rows of
study b with other systems. The studies' commands and running times follow; below a figure only if the page
has neither a table nor claims of its study.

A paper's page requests `<!-- verdicts: lee2023 -->`, a row for each claim that a study decides;
`<!-- runs: … -->`, a row for each study; and `<!-- systems: retrieve R@1 nq320k study study -->`, the means
of a section by study, beside the paper's values of that name. All rows of all studies, and the commands, then
stand in details.md beside the page, which is written whole. `<!-- details: study study -->` on another page
does the same for these studies, in PAGE.details.md.

The names refer to files in the folder `results` beside the page (for README.md: experiments/results). --take
copies a study's results there, with the values behind its verdicts (`judge.py`) and the figures that the page
requests:

    .venv/bin/python experiments/fill_pages.py --page experiments/papers/lee2023/README.md \\
        --take '[results/token-retrieval-pydocs]'

Without arguments, all pages are rewritten from the committed results.
"""

from dataclasses import field
from pathlib import Path

from studies.settings import launch, refusing

from paradigms.io.command_line import flags

ROOT = Path(__file__).parents[1]


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


launch(__name__, Settings, __doc__)  # before the slow imports

import re
import shutil
from collections import Counter
from typing import Any

from studies.claims import UNTESTED, printed
from studies.pages import STUDY, VALUES, Rows, markdown_rows, without_paths

from paradigms.evaluate.claims import ONE_SEED
from paradigms.io.checks import read_json
from paradigms.io.files import replace_file, write_json, write_text

KINDS = "claims|table|figure|untested|verdicts|runs|systems|details"
BLOCK = re.compile(rf"(<!-- ({KINDS}): ([^>]*?) -->\n).*?(<!-- end -->)", re.DOTALL)
READOUT = " [about a readout]"
OPEN = ("not decided here", UNTESTED)
DETAILS = "details.md"  # the end of the name of a generated page
UNTRAINED = ", untrained"
# What summaries of studies say of their sample, for the columns of `runs`.
SAMPLE = {
    "queries": r"([\d,]+) test queries",
    "documents": r"over ([\d,]+) documents",
    "models from": r"from '?(?:path/to/)?([^',\s]+)",
    "steps": r"([\d,]+ steps of \d+)",
    "seeds": r"seeds \[([\d, ]+)\]",
}
WALL_TIME = re.compile(r" (The job|After an interruption, the rest of the job) took \d+ s\.")


def main(settings: Settings) -> None:
    rooms = (ROOT.glob(f"{room}/**/*.md") for room in ("paradigms", "theory", "experiments"))
    pages = [
        ROOT / "README.md",
        *(page for room in rooms for page in sorted(room) if not page.name.endswith(DETAILS)),
    ]
    with refusing():
        for page in [Path(settings.page)] if settings.page else pages:
            for folder in map(Path, settings.take):
                take(folder, page)
            written = {page: filled(page)}
            if file := details_of(page):
                written[file] = details(page)
            for file, text in written.items():
                if not file.is_file() or text != file.read_text(encoding="utf-8"):
                    write_text(file, text)
                    print(f"{file}: written")


def results_of(page: Path) -> Path:
    """Return the folder of a page's results: beside the page or, for the main README.md, in experiments."""
    return (ROOT / "experiments" if page.resolve().parent == ROOT else page.parent) / "results"


def take(folder: Path, page: Path) -> None:
    """Copy a study's rows, values and figures on the page to the folder `results` beside the page.

    Raises ValueError if the folder has no study or a figure is missing.
    """
    kept = results_of(page)
    kept.mkdir(exist_ok=True)
    study = read_json(folder / STUDY)
    write_json(kept / f"{folder.name}.json", study | {"summary": without_paths(study["summary"])})
    files = [f"{section}.svg" for section in _sections(page, "figure", folder.name)]
    for name in [*files, *(path.name for path in folder.glob(VALUES))]:
        temporary = kept / f".{folder.name}.{name}.partial"
        shutil.copyfile(folder / name, temporary)
        replace_file(temporary, kept / f"{folder.name}.{name}")


def filled(page: Path) -> str:
    """Return the page with all of its tables and figures rewritten from the results.

    Raises ValueError, naming the page, if a requested study, section or figure does not exist.
    """
    kinds = {"claims": claims, "table": tables, "figure": figures, "untested": untested}
    kinds |= {"verdicts": verdicts, "runs": runs, "systems": systems, "details": link}

    def block(match: re.Match[str]) -> str:
        begin, kind, names, end = match.groups()
        try:
            text = kinds[kind](page, *names.split())
        except (KeyError, TypeError, OSError) as error:
            raise ValueError(f"{page}: {kind} {names}: {error!r}") from error
        return f"{begin}\n{text}\n{end}"

    return BLOCK.sub(block, page.read_text(encoding="utf-8"))


def claims(page: Path, *names: str, source: bool = True) -> str:
    """Make a table of claims: a row for each claim and study, with verdict, interval and sample.

    Of several studies, a column names each one's collection or, if two use the same, the study. Claims that
    no study could measure are listed last, once each. source: whether to describe how the studies were run.
    """
    studies = [_study(page, name) for name in names]
    several = len(studies) > 1
    collections = [study["collection"] for study in studies]
    label, labels = (
        ("collection", collections) if len(set(collections)) == len(names) else ("study", [*names])
    )
    claimed: dict[tuple[str, str], Rows] = {}
    for study, named in zip(studies, labels, strict=True):
        for row in (row for section in study["sections"].values() for row in section["rows"]):
            if "verdict" in row:
                place = _place(row)
                cells = {"claim": row["claim"], "place": place, "measured": row["quantity"]}
                cells |= {label: named} if several else {}
                verdict = (
                    row["verdict"].replace("not decided here", "not decided").partition(f": {ONE_SEED}")[0]
                )
                cells |= {"verdict": verdict, "ours": row["measured"], "the paper": row["printed"] or "–"}
                cells |= {"sample": row["sample"].removesuffix(", 1 seed")}
                claimed.setdefault((row["claim"], place), []).append(cells)
    measured: Rows = []
    open_ones: Rows = []
    for rows in claimed.values():
        decided = [row for row in rows if row["ours"] != "–"]
        measured += [row | {"claim": "", "place": ""} if n else row for n, row in enumerate(decided)]
        blank = {label: "–"} if several else {}
        open_ones += [] if decided else [rows[0] | blank | {"verdict": UNTESTED}]
    return markdown_rows(measured + open_ones) + ("".join(map(_source, studies)) if source else "")


def untested(page: Path, paper: str) -> str:
    """Make a table of a paper's claims that no study on the page has in its tables of claims."""
    text = page.read_text(encoding="utf-8")
    names = [name for _, kind, names, _ in BLOCK.findall(text) if kind == "claims" for name in names.split()]
    return markdown_rows(
        untested_rows(paper, {row["claim"] for name in names for row in _judged(page, name)})
    )


def untested_rows(paper: str, told: set[str]) -> Rows:
    """Return a row for each of the paper's claims that is not in `told`, with what a test takes."""
    told = {claim.removesuffix(READOUT) for claim in told}
    listed = [row for family in printed(paper)["claims"].values() for row in family if "claim" in row]
    cells = {
        row["claim"]: {"claim": row["claim"], "place": row["place"], "verdict": UNTESTED}
        | {"it takes": row.get("takes", "a run with the systems that the claim compares")}
        for row in listed
        if row["claim"] not in told
    }
    return [{key: " ".join(value.split()) for key, value in row.items()} for row in cells.values()]


def verdicts(page: Path, paper: str) -> str:
    """Make a table of the paper's claims that studies decide, one row each, and count the others.

    The number beside a verdict is that of the decided test with the largest sample; if tests contradict each
    other, there is one for each verdict. Controls, which are our own questions, have no row.
    """
    judged: dict[str, Rows] = {}
    for row in (row for name in studies_of(page) for row in _judged(page, name)):
        judged.setdefault(row["claim"].removesuffix(READOUT), []).append(row)
    rows: Rows = []
    undecided = 0
    for claim, tests in judged.items():
        best: dict[str, dict[str, Any]] = {}
        for row in tests:
            word = _word(row)
            if word not in OPEN and _size(row) > _size(best.get(word, {})):
                best[word] = row
        undecided += not best and any(row["measured"] != "–" for row in tests)
        if best and not claim.startswith("Control: "):
            best = dict(sorted(best.items(), reverse=True))  # reproduced first
            counts = Counter(word if word in best else "open" for word in map(_word, tests))
            verdict = ", ".join(f"{counts[word]} {word}" for word in [*best, "open"] if counts[word])
            cells = {"the paper says": f"{claim} ({_place(tests[0])})"}
            cells |= {"here": "; ".join(f"{row['quantity']}: {row['measured']}" for row in best.values())}
            rows.append(cells | {"verdict": verdict if len(counts) > 1 else next(iter(best))})
    families = printed(paper)["claims"].values()
    listed = {row["claim"] for family in families for row in family if "claim" in row}
    tested = {claim for claim, tests in judged.items() if {*map(_word, tests)} != {UNTESTED}}
    return (
        f"{markdown_rows(rows)}\nNot decided here: {undecided} further claims and controls. "
        f"Not tested: {len(listed - tested)} claims. [All tests]({DETAILS}).\n"
    )


def _word(row: dict[str, Any]) -> str:
    """Return a row's verdict without the reason."""
    return str(row["verdict"]).partition(":")[0]


def _size(row: dict[str, Any]) -> float:
    """Return the number of queries of a test, or 0 without a row and at least 1 with one."""
    number = re.match(r"[\d,]+", str(row.get("sample", "")))
    return float(number[0].replace(",", "")) if number else float(bool(row))


def _place(row: dict[str, Any]) -> str:
    return row["place"].partition(" et al. ")[2].partition(", ")[2] or row["place"]


def runs(page: Path, *names: str) -> str:
    """Make a table of studies: what their summaries say of the sample, and the minutes of CPU time."""
    rows: Rows = []
    for name in names:
        study = _study(page, name)
        found = {column: re.search(pattern, study["summary"]) for column, pattern in SAMPLE.items()}
        cells = {column: match[1] if match else "–" for column, match in found.items()}
        rows.append(
            {"study": f"[{name}]({DETAILS}#{name})"}
            | cells
            | {"CPU minutes": f"{study['minutes']:.0f}, {study['processor']}"}
        )
    return markdown_rows(rows)


def systems(page: Path, section: str, measures: str, values: str, *names: str) -> str:
    """Make a table of means by study, untrained in parentheses, for systems of the paper or two studies.

    measures: columns of the section, joined by commas. values: key of the paper's values in printed.yaml.
    """
    columns: dict[str, dict[str, str]] = {}
    for name in names:
        means: dict[str, str] = {}
        for row in _study(page, name)["sections"][section]["rows"]:
            cell = ", ".join(row[measure].partition(" ")[0].lstrip("0") for measure in measures.split(","))
            system = row["system"].removesuffix(UNTRAINED)
            before = means.get(system, "")
            means[system] = cell if system == row["system"] else f"{before} ({cell})".strip()
        columns[name] = means
    paper = printed(paper_of(page))[values]
    rows: Rows = []
    for system in dict.fromkeys(system for means in columns.values() for system in means):
        cells = {name: means.get(system, "") for name, means in columns.items()}
        if system in paper or sum(map(bool, cells.values())) > 1:
            values_of = (f"{value / 100:.3f}".lstrip("0") for value in paper.get(system, []))
            rows.append({"system": system} | cells | {"the paper": ", ".join(values_of)})
    return markdown_rows(rows)


def paper_of(page: Path) -> str:
    """Return the paper whose `verdicts` the page requests, or ""."""
    return next(iter(_requested(page, "verdicts")), "")


def details_of(page: Path) -> Path | None:
    """Return the generated page of a page's details, or None if the page requests none."""
    if paper_of(page):
        return page.with_name(DETAILS)
    return page.with_suffix(f".{DETAILS}") if _requested(page, "details") else None


def _requested(page: Path, kind: str) -> list[str]:
    """Return the names in the page's blocks of this kind."""
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [name for _, of, names, _ in blocks if of == kind for name in names.split()]


def studies_of(page: Path) -> list[str]:
    """Return the studies in a page's details: of a paper's page, all in the results beside it."""
    if paper_of(page):
        return [file.stem for file in sorted(results_of(page).glob("*.json"))]
    return _requested(page, "details")


def link(page: Path, *names: str) -> str:
    return f"[All rows, figures and commands]({page.stem}.{DETAILS}).\n"


def details(page: Path) -> str:
    """Write the page of all rows, figures and commands of the studies that a page sums up."""
    title = page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
    parts = [f"# {title}: all studies\n\nWritten from the results that [the page]({page.name}) sums up.\n"]
    for name in studies_of(page):
        study = _study(page, name)
        parts.append(f"## {name}\n{_source(study)}")
        if _judged(page, name):
            parts.append(claims(page, name, source=False))
        for key, section in study["sections"].items():
            if section["rows"] and "verdict" not in section["rows"][0]:
                picture = results_of(page) / f"{name}.{key}.svg"
                heading = section.get("heading") or key
                drawn = f"![{heading}](results/{picture.name})\n\n" if picture.is_file() else ""
                text = f"\n{section['text']}\n" if section.get("text") else ""
                parts.append(f"### {heading}\n\n{drawn}{markdown_rows(section['rows'])}{text}")
    if not (paper := paper_of(page)):
        return "\n".join(parts)
    listed = untested_rows(paper, {row["claim"] for name in studies_of(page) for row in _judged(page, name)})
    return "\n".join(
        [*parts, "## Claims that no study has tested\n", markdown_rows(listed)] if listed else parts
    )


def _judged(page: Path, name: str) -> Rows:
    sections = _study(page, name)["sections"].values()
    return [row for section in sections for row in section["rows"] if "verdict" in row]


def tables(page: Path, name: str, *sections: str) -> str:
    """Make tables from sections of a study, each with its text, and describe how the study was run.

    The text is left out if it is the caption of a figure on the page. name: names of studies, joined by "+";
    a row of a later study is left out if an earlier study has a row with the same first cell, and a text that
    does not describe all rows names its own. Raises TypeError if the studies' columns differ.
    """
    studies = {part: _study(page, part) for part in name.split("+")}
    parts = []
    for section in sections:
        rows: Rows = []
        texts: dict[str, list[str]] = {}  # text -> first cells of the rows that it describes
        for part, study in studies.items():
            earlier = {_first(row) for row in rows}
            text = study["sections"][section].get("text")
            added = [row for row in study["sections"][section]["rows"] if _first(row) not in earlier]
            if any(row.keys() != rows[0].keys() for row in added if rows):
                raise TypeError(f"the columns of {part} are not those of {name.partition('+')[0]}")
            rows += added
            if added and text and section not in _sections(page, "figure", part):
                texts.setdefault(text, []).extend(map(_first, added))
        parts.append(markdown_rows(rows))
        for text, described in texts.items():
            parts.append(f"{text}\n" if len(described) == len(rows) else f"{', '.join(described)}: {text}\n")
    return "\n".join(parts) + ("" if details_of(page) else "".join(map(_source, studies.values())))


def figures(page: Path, name: str, *sections: str) -> str:
    """Embed the figures of a study's sections, with captions.

    A description of how the study was run follows, unless tables of the study on the page have it.
    """
    study = _study(page, name)
    parts = []
    for section in sections:
        picture = results_of(page.resolve()) / f"{name}.{section}.svg"
        picture.stat()
        heading, text = (study["sections"][section][key] for key in ("heading", "text"))
        caption = f"*{heading}.* {text}".rstrip()
        parts.append(f"![{heading}]({picture.relative_to(page.resolve().parent)})\n\n{caption}\n")
    tabled = details_of(page) or _sections(page, "table", name) or _sections(page, "claims", name)
    return "\n".join(parts) + ("" if tabled else _source(study, summary=False))


def _sections(page: Path, kind: str, study: str) -> list[str]:
    """Return the sections of a study that the page's blocks of this kind write; of claims, its name."""
    found: list[str] = []
    for _, of, names, _ in BLOCK.findall(page.read_text(encoding="utf-8")):
        name, *sections = names.split()
        if of == kind == "claims":
            found += [other for other in (name, *sections) if other == study]
        elif of == kind and study in name.split("+"):
            found += sections
    return found


def _first(row: dict[str, Any]) -> str:
    return str(next(iter(row.values())))


def _study(page: Path, name: str) -> dict[str, Any]:
    return read_json(results_of(page) / f"{name}.json")


def _source(study: dict[str, Any], summary: bool = True) -> str:
    """Describe how a study was run. summary: whether to start with the study's summary of its sample."""
    sample = WALL_TIME.sub("", study["summary"]) + " " if summary else ""  # CPU time stands beside it
    minutes = f"{study['minutes']:.{0 if study['minutes'] >= 1 else 1}f}"
    return (
        f"\n{sample}{minutes} minute{'s' * (minutes != '1')} of CPU time ({study['processor']}):\n\n"
        f"    .venv/bin/python {study['command']}\n"
    )
