"""The tables and figures that comments in a page request, made from the results beside the page."""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from studies.claims import UNTESTED, printed
from studies.pages import ROOT, Rows, markdown_rows

from paradigms.evaluate.claims import CONTRADICTED, ONE_SEED, REPRODUCED
from paradigms.io.checks import read_json

READOUT = " [about a readout]"
OPEN = ("not decided here", UNTESTED)
DETAILS = "details.md"  # the end of the name of a generated page
UNTRAINED = ", untrained"
WITHOUT = "without="
# The headings above a paper's tables of decided claims.
ALL_REPRODUCED = "Reproduced:"
IN_PART = "Contradicted, or decided in part:"
WITHOUT_INTERVAL = "By a count or a proof:"
LEAST = re.compile(r", (?:above|within) ±?[\d.]+$")  # the least effect of a quantity, unless it is a loss
COMMON = re.compile(r"(?<=[:,] )([^:−]+), ([^,−]+) − \1, ([^,−]+)$")  # "X, a − X, b" is shown as "X, a − b"
# What summaries of studies say of their sample, for the columns of `runs`.
SAMPLE = {
    "queries": r"([\d,]+) (?:test queries|queries of split test)",
    "documents": r"(?:over |passages: |\. )([\d,]+) (?:documents|of)",
    "models from": r"from '?(?:path/to/)?([^',\s]+)",
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
        """Return the studies' rows with verdicts."""
        sections = [section for name in names for section in self.study(name)["sections"].values()]
        return [row for section in sections for row in section["rows"] if "verdict" in row]

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


def claim_table(rows: Rows) -> str:
    """Make a table of a study's judged rows, by claim. Claims that it could not measure are last, once."""
    claimed: dict[tuple[str, str], Rows] = {}
    for row in rows:
        verdict = row["verdict"].replace("not decided here", "not decided")
        cells = {"claim": row["claim"], "place": place(row), "measured": row["quantity"]}
        cells |= {"verdict": verdict.partition(f": {ONE_SEED}")[0], "ours": row["measured"]}
        cells |= {"the paper": row["printed"] or "–", "sample": row["sample"].removesuffix(", 1 seed")}
        claimed.setdefault((row["claim"], place(row)), []).append(cells)
    measured: Rows = []
    unmeasured: Rows = []
    for of_claim in claimed.values():
        decided = [row for row in of_claim if row["ours"] != "–"]
        measured += [row | {"claim": "", "place": ""} if n else row for n, row in enumerate(decided)]
        unmeasured += [] if decided else [of_claim[0] | {"verdict": UNTESTED}]
    return markdown_rows(measured + unmeasured)


def untested_rows(paper: str, judged: Rows) -> Rows:
    """Return a row for each of the paper's claims that no judged row is about, with what a test takes."""
    tested = {claim_of(row) for row in judged}
    cells = {
        row["claim"]: {"claim": row["claim"], "place": row["place"], "verdict": UNTESTED}
        | {"it takes": row.get("takes", "a run with the systems that the claim compares")}
        for row in listed_claims(paper)
        if row["claim"] not in tested
    }
    return [{key: " ".join(value.split()) for key, value in row.items()} for row in cells.values()]


def listed_claims(paper: str) -> Rows:
    """Return the rows of printed.yaml that state a claim of the paper."""
    return [row for family in printed(paper)["claims"].values() for row in family if "claim" in row]


def verdicts(page: Page, paper: str) -> str:
    """Make tables of the paper's claims that studies decide, one row each, and count the others.

    The number is that of the decided test with the largest sample, among those that contradict if any does.
    Claims that all tests reproduce stand first. Controls, which are our own questions, have no row.
    """
    judged: dict[str, Rows] = {}
    for row in page.judged(page.detailed):
        judged.setdefault(claim_of(row), []).append(row)
    groups: dict[str, Rows] = {heading: [] for heading in (ALL_REPRODUCED, IN_PART, WITHOUT_INTERVAL)}
    undecided = 0
    for claim, tests in judged.items():
        best: dict[str, dict[str, Any]] = {}
        for row in tests:
            word = word_of(row)
            if word not in OPEN and size(row) > size(best.get(word, {})):
                best[word] = row
        if claim.startswith("Control: "):
            continue
        undecided += not best and any(row["measured"] != "–" for row in tests)
        if best:
            best = dict(sorted(best.items(), reverse=True))  # reproduced first
            counts = Counter(word if word in best else "open" for word in map(word_of, tests))
            verdict = ", ".join(f"{counts[word]} {word}" for word in [*best, "open"] if counts[word])
            row = best.get(CONTRADICTED, next(iter(best.values())))
            quantity = row["quantity"] if CONTRADICTED in best else LEAST.sub("", row["quantity"])
            stated = claim if place(tests[0]) in claim else f"{claim} ({place(tests[0])})"
            quantity = COMMON.sub(r"\1, \2 − \3", quantity)
            cells = {"claim": stated, "here": f"{quantity}: {row['measured']}"}
            decided = verdict if len(counts) > 1 else next(iter(best))
            if "[" not in row["measured"]:
                groups[WITHOUT_INTERVAL].append(cells | {"verdict": decided})
            elif decided == REPRODUCED:
                groups[ALL_REPRODUCED].append(cells)
            else:
                groups[IN_PART].append(cells | {"verdict": decided})
    listed = {row["claim"] for row in listed_claims(paper)}
    tested = {claim for claim, tests in judged.items() if {*map(word_of, tests)} != {UNTESTED}}
    written = (f"{heading}\n\n{markdown_rows(rows)}\n" for heading, rows in groups.items() if rows)
    rest = {"Not decided here": undecided, "Not tested": len(listed - tested)}
    said = "".join(f"{name}: {counted(count, 'claim')}. " for name, count in rest.items() if count)
    return f"{''.join(written)}{said}[All tests]({DETAILS}).\n"


def counted(number: int | str, noun: str) -> str:
    """Return a number with its noun, as in "1 claim" and "2 claims"."""
    return f"{number} {noun}{'s' * (str(number) != '1')}"


def claim_of(row: dict[str, Any]) -> str:
    """Return a judged row's claim, without the remark that it is about a readout."""
    return row["claim"].removesuffix(READOUT)


def word_of(row: dict[str, Any]) -> str:
    """Return a row's verdict without the reason."""
    return str(row["verdict"]).partition(":")[0]


def size(row: dict[str, Any]) -> float:
    """Return the number of queries of a test, or 0 without a row and at least 1 with one."""
    number = re.match(r"[\d,]+", str(row.get("sample", "")))
    return float(number[0].replace(",", "")) if number else float(bool(row))


def place(row: dict[str, Any]) -> str:
    return row["place"].partition(" et al. ")[2].partition(", ")[2] or row["place"]


def runs(page: Page, *names: str) -> str:
    """Make a table of studies: what their summaries say of the sample, without columns that none fills."""
    rows: Rows = []
    for name in names:
        summary = page.study(name)["summary"]
        found = {column: re.search(pattern, summary) for column, pattern in SAMPLE.items()}
        cells = {column: match[1] if match else "–" for column, match in found.items()}
        if largest := max(map(size, page.judged([name])), default=0):
            cells["queries"] = f"{largest:,.0f}"
        start = cells["models from"]
        cells["models from"] = "all-MiniLM-L6-v2" if start == "offline" else start.removesuffix("-offline")
        rows.append({"study": f"[{name}]({DETAILS}#{name})"} | cells)
    filled_columns = [column for column in rows[0] if any(row[column] != "–" for row in rows)]
    return markdown_rows([{column: row[column] for column in filled_columns} for row in rows])


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
                drawn = f"![{heading}](results/{picture.name})\n\n" if picture.is_file() else ""
                text = f"\n{section['text']}\n" if section.get("text") else ""
                parts.append(f"### {heading}\n\n{drawn}{markdown_rows(section['rows'])}{text}")
    rows = untested_rows(page.paper, page.judged(page.detailed)) if page.paper else []
    if rows:
        parts += ["## Claims that no study has tested\n", markdown_rows(rows)]
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
        shown = [row for row in rows if not first(row).startswith(hidden)] if hidden else rows
        parts.append(markdown_rows([{k: v for k, v in row.items() if k not in hidden} for row in shown]))
        for text, described in texts.items():
            parts.append(f"{text}\n" if len(described) == len(rows) else f"{', '.join(described)}: {text}\n")
    return "\n".join(parts) + ("" if page.details else "".join(map(source, studies.values())))


def first(row: dict[str, Any]) -> str:
    return str(next(iter(row.values())))


def figures(page: Page, name: str, *sections: str) -> str:
    """Embed the figures of a study's sections, with captions.

    A description of how the study was run follows, unless tables of the study on the page have it.
    """
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
    """Describe how a study was run. summary: whether to start with the study's summary of its sample."""
    sample = WALL_TIME.sub("", study["summary"]) + " " if summary else ""  # CPU time stands beside it
    minutes = f"{study['minutes']:.{0 if study['minutes'] >= 1 else 1}f}"
    return (
        f"\n{sample}{counted(minutes, 'minute')} of CPU time ({study['processor']}):\n\n"
        f"    .venv/bin/python {study['command']}\n"
    )


KINDS: dict[str, Callable[..., str]] = {
    "table": tables,
    "figure": figures,
    "verdicts": verdicts,
    "runs": runs,
    "systems": systems,
    "details": link,
}
BLOCK = re.compile(rf"(<!-- ({'|'.join(KINDS)}): ([^>]*?) -->\n).*?(<!-- end -->)", re.DOTALL)
