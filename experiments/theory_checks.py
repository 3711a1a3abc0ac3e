"""Is what the papers prove, derive or assert true? Checks every statement of `theory/`, prints verdicts.

    python experiments/theory_checks.py
    python experiments/theory_checks.py --only 'lemma_*,few_iterations' --samples 10000

Writes checks.json and checks.html to the output folder. The exit code is 1 if a statement of ours (exact law,
corrected form, stated counterexample) fails, 0 otherwise, whatever becomes of the printed forms. Monte-Carlo
theorems are allowed 4 standard errors: with a new seed one of them fails by chance in about 2,000 runs.
"""

import html
import math
import sys
import time
import zlib
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from importlib import import_module

from paradigms.io.settings import command_line


@dataclass
class Settings:
    """Which theorems are checked, on how many instances."""

    samples: int = 2000
    """random instances of a theorem at most; Monte-Carlo theorems draw up to 20 times as many"""
    seed: int = 0
    """seed of all random instances; a theorem's instances do not depend on which others are run"""
    output: str = "results/theory_checks"
    """folder for checks.json and checks.html"""
    only: str = "*"
    """theorems to check, by name or shell pattern, separated by commas"""

    def __post_init__(self) -> None:
        if self.samples < 20 or self.seed < 0:
            raise SystemExit(f"samples {self.samples}, seed {self.seed}; allowed: at least 20, at least 0")


if __name__ == "__main__":  # before the imports that take seconds
    given = command_line(Settings, (__doc__ or "").partition("\n\n")[0])

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from studies.theory_claims import THEOREMS, Evidence, Theorem

from paradigms.io.files import write_json, write_text
from paradigms.io.progress import progress_bar

for chapter in ("projections", "recall", "aligner", "xtr", "generative"):
    import_module(f"studies.theory_claims_{chapter}")  # fills THEOREMS

HOLDS, CORRECTED, FALSE, FAILS = "holds", "holds with correction", "false as printed", "FAILS"
PRINTED_TOLERANCE = 1e-6  # a printed form counts as violated beyond this, in the units of its own check
STYLES = {HOLDS: "green", CORRECTED: "yellow", FALSE: "magenta", FAILS: "bold red"}


@dataclass(frozen=True)
class Result:
    name: str
    theorem: Theorem
    verdict: str
    evidence: Evidence
    seconds: float


def verdict(theorem: Theorem, evidence: Evidence) -> str:
    """Ours first: beyond its tolerance, or NaN, it fails, whatever becomes of the printed form."""
    if not evidence.violation <= evidence.tolerance:
        return FAILS
    if evidence.printed is None:
        return CORRECTED if theorem.correction else HOLDS
    if evidence.printed <= PRINTED_TOLERANCE:
        return HOLDS
    return CORRECTED if theorem.correction else FALSE


def check(name: str, samples: int, seed: int) -> Result:
    """Run one theorem; a check that raises has not shown its statement, and fails."""
    theorem, start = THEOREMS[name], time.perf_counter()
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    try:
        evidence = theorem.check(rng, samples)
    except Exception as error:
        evidence = Evidence(math.inf, 0, detail=f"{type(error).__name__}: {error}")
    return Result(name, theorem, verdict(theorem, evidence), evidence, time.perf_counter() - start)


def chosen(only: str) -> list[str]:
    """Theorems that match one of the comma-separated patterns; a pattern without a match is an error."""
    patterns = [pattern.strip() for pattern in only.split(",")]
    for pattern in patterns:
        if not any(fnmatch(name, pattern) for name in THEOREMS):
            raise SystemExit(f"--only: no theorem matches {pattern!r}; there are: {', '.join(THEOREMS)}")
    return [name for name in THEOREMS if any(fnmatch(name, pattern) for pattern in patterns)]


COLUMNS = (
    "theorem",
    "source",
    "assumption",
    "verdict",
    "largest violation",
    "tightness",
    "samples",
    "seconds",
)


def cells(result: Result) -> tuple[str, ...]:
    """One row of the table, in the order of COLUMNS."""
    evidence, theorem = result.evidence, result.theorem
    text = [theorem.statement]
    if theorem.correction:
        text.append(f"Correct: {theorem.correction}.")
    if evidence.detail:
        text.append(f"Seen: {evidence.detail}.")
    unit = f" {evidence.unit}" if evidence.unit else ""
    violation = f"{evidence.violation:.2g}{unit} (≤\N{NO-BREAK SPACE}{evidence.tolerance:g})"
    if evidence.printed is not None:
        violation += f"\nas printed {evidence.printed:.3g}"
    tightness = "–" if evidence.tightness is None else f"{evidence.tightness:.3g}"
    return (
        "\n".join(text),
        theorem.source,
        theorem.assumption,
        result.verdict,
        violation,
        tightness,
        str(evidence.samples),
        f"{result.seconds:.2f}",
    )


def terminal_table(results: list[Result], width: int) -> Table:
    """The table for a terminal; below 160 columns all but verdict and violation moves under the theorem."""
    wide = width >= 160
    table = Table(title="What holds", show_lines=True)
    for column in COLUMNS if wide else (COLUMNS[0], *COLUMNS[3:5]):
        ratio = {"theorem": 3, "source": 1, "assumption": 1}.get(column)
        side = "right" if column in COLUMNS[5:] else "left"
        table.add_column(column, justify=side, ratio=ratio, max_width=None if wide or ratio else 15)
    for result in results:
        text, source, assumption, verdict, violation, *counts = (escape(cell) for cell in cells(result))
        verdict = f"[{STYLES[result.verdict]}]{verdict}[/]"
        if wide:
            table.add_row(text, source, assumption, verdict, violation, *counts)
        else:
            tightness, samples, seconds = counts
            origin = f"{source}; assumes {assumption}"
            text += f"\n[dim]{origin}; tightness {tightness}; {samples} samples, {seconds} s[/]"
            table.add_row(text, verdict, violation)
    return table


def summary(results: list[Result]) -> str:
    counts = ((name, sum(result.verdict == name for result in results)) for name in STYLES)
    return f"{len(results)} theorems: " + ", ".join(f"{count} {name}" for name, count in counts)


def as_json(results: list[Result], settings: Settings) -> dict:
    """Plain data for checks.json; numbers that are not finite become text, which JSON can hold."""
    rows = []
    for result in results:
        row = {"name": result.name} | asdict(result.theorem) | asdict(result.evidence)
        row |= {"verdict": result.verdict, "seconds": result.seconds}
        del row["check"]
        rows.append(
            {k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
        )
    return {"settings": asdict(settings), "summary": summary(results), "theorems": rows}


PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>What holds</title>
<style>
:root {{ color-scheme: light dark; font: 15px/1.45 system-ui, sans-serif }}
body {{ margin: 2rem auto; max-width: 90rem; padding: 0 1rem }}
div {{ overflow-x: auto }}
table {{ border-collapse: collapse; width: 100% }}
th, td {{ text-align: left; vertical-align: top; padding: .5rem .7rem; border-bottom: 1px solid #8885 }}
td {{ white-space: pre-line }}
td:first-child {{ min-width: min(24rem, 60vw) }}
td:nth-child(4), td:nth-child(5) {{ min-width: 7.5rem }}
td:nth-child(n+6) {{ text-align: right; font-variant-numeric: tabular-nums }}
.holds {{ color: light-dark(#17692f, #7fd08f) }}
.corrected {{ color: light-dark(#8a5a00, #e8b74a) }}
.false {{ color: light-dark(#8b1a6b, #e58fcb) }}
.fails {{ color: light-dark(#b00020, #ff8080); font-weight: bold }}
</style>
<h1>What holds</h1>
<p>{summary}. {samples} samples, seed {seed}. Largest violation: of our statement, with its tolerance, and
of the form as printed where that differs. Tightness: median of bounded quantity over bound, 1 where attained.
</p>
<div><table><thead><tr>{head}</tr></thead><tbody>
{body}
</tbody></table></div></html>
"""
CLASSES = {HOLDS: "holds", CORRECTED: "corrected", FALSE: "false", FAILS: "fails"}


def as_html(results: list[Result], settings: Settings) -> str:
    """One self-contained page with the same table."""
    rows = []
    for result in results:
        row = [f"<td>{html.escape(cell)}</td>" for cell in cells(result)]
        row[3] = row[3].replace("<td>", f'<td class="{CLASSES[result.verdict]}">', 1)
        rows.append(f'<tr id="{result.name}">{"".join(row)}</tr>')
    return PAGE.format(
        summary=summary(results),
        samples=settings.samples,
        seed=settings.seed,
        head="".join(f"<th>{column}</th>" for column in COLUMNS),
        body="\n".join(rows),
    )


def main(settings: Settings) -> int:
    names, results, console = chosen(settings.only), [], Console()
    with progress_bar() as progress:
        task = progress.add_task("checking", total=len(names))
        for name in names:
            progress.update(task, description=name)
            results.append(check(name, settings.samples, settings.seed))
            progress.advance(task)
    console.print(terminal_table(results, console.width))
    console.print(summary(results), highlight=False)
    write_json(f"{settings.output}/checks.json", as_json(results, settings))
    write_text(f"{settings.output}/checks.html", as_html(results, settings))
    console.print(
        f"written to {settings.output}/checks.html and checks.json", highlight=False, soft_wrap=True
    )
    return int(any(result.verdict == FAILS for result in results))


if __name__ == "__main__":
    sys.exit(main(Settings(**given)))
