"""Check the claims of the papers and every statement of `theory/`, and print the verdicts.

    python experiments/theory_checks.py --only 'lemma_*,few_iterations' --samples 10000

checks.json and theory_checks.html in the output folder list every claim with its place in the paper. With
--seeds, each claim's row gives the worst result over all seeds. A seed takes about 5 CPU seconds. The exit
code is 1 if one of our statements fails (an exact law, a corrected form, a counterexample), and 0 otherwise,
even if a printed form is false. Statements tested on draws may deviate by 4.5 standard errors, computed from
exact tail probabilities: with a new seed, a run fails by chance less than once in 1,500 runs.
"""

import math
import time
import zlib
from dataclasses import asdict, replace
from fnmatch import fnmatch
from itertools import product
from typing import Any, NamedTuple

from studies.settings import Output, Seed, at_least, launch

from paradigms.io.command_line import flags


@flags()
class Settings(Output, Seed):
    """Settings for the theorems to check and their random instances."""

    samples: int = 2000
    """maximum number of random instances per theorem; Monte-Carlo theorems draw up to 20 times as many"""
    seeds: int = 1
    """number of seeds to check, from `seed` on"""
    only: str = "*"
    """comma-separated names or shell patterns of the theorems to check"""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, samples=20, seeds=1)


launch(__name__, Settings, __doc__, device=False)  # before the slow imports

import numpy as np
from studies.curves import Curves
from studies.pages import STUDY, Section, print_sections, study, write_page

from paradigms.io.files import lock_until_exit, write_json
from paradigms.io.progress import progress_bar
from paradigms.io.terminal import Terminal
from theory.claims import OURS, THEOREMS, Evidence, Theorem

HOLDS, CORRECTED, FALSE, FAILS = "holds", "holds with correction", "false as printed", "FAILS"
VERDICTS = (HOLDS, CORRECTED, FALSE, FAILS)


class Result(NamedTuple):
    name: str
    theorem: Theorem
    verdict: str
    evidence: Evidence
    seconds: float
    seed: int  # of the largest violation


def verdict(theorem: Theorem, evidence: Evidence) -> str:
    """Judge a theorem: FAILS if the violation of our statement exceeds the tolerance or is NaN."""
    if not evidence.violation <= evidence.tolerance:
        return FAILS
    if evidence.printed is None or evidence.printed <= evidence.allowed:
        return HOLDS
    return CORRECTED if theorem.correction else FALSE


def check(name: str, samples: int, seed: int) -> Result:
    """Run one theorem's check; a check that raises an exception fails."""
    theorem = THEOREMS[name]
    start = time.perf_counter()
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    try:
        evidence = theorem.check(rng, samples)
    except Exception as error:
        evidence = Evidence(math.inf, 0, detail=f"{type(error).__name__}: {error}")
    return Result(name, theorem, verdict(theorem, evidence), evidence, time.perf_counter() - start, seed)


def worst(first: Result, second: Result) -> Result:
    """Combine results of two seeds: the larger violations, pooled samples, the first one's curves."""

    def nearness(result: Result) -> tuple[bool, float]:
        violation = result.evidence.violation
        tolerance = result.evidence.tolerance
        return not violation <= tolerance, violation / (tolerance or 1)

    both = first, second
    farthest = max(both, key=nearness)
    as_printed = max(both, key=lambda result: -math.inf if (p := result.evidence.printed) is None else p)
    evidence = replace(
        farthest.evidence,
        samples=sum(result.evidence.samples for result in both),
        printed=as_printed.evidence.printed,
        allowed=as_printed.evidence.allowed,
        curves=first.evidence.curves,
    )
    word = verdict(first.theorem, evidence)
    seconds = first.seconds + second.seconds
    return farthest._replace(verdict=word, evidence=evidence, seconds=seconds)


def select_theorems(only: str) -> list[str]:
    """Return the theorems that match comma-separated patterns; raise SystemExit if a pattern has no match."""
    patterns = [pattern.strip() for pattern in only.split(",")]
    for pattern in patterns:
        if not any(fnmatch(name, pattern) for name in THEOREMS):
            raise SystemExit(f"--only: no theorem matches {pattern!r}; there are: {', '.join(THEOREMS)}")
    return [name for name in THEOREMS if any(fnmatch(name, pattern) for pattern in patterns)]


def row_of(result: Result) -> dict[str, Any]:
    name, theorem, word, evidence, seconds, _ = result
    text = f"{theorem.claim}.\nChecked: {theorem.statement}." if theorem.claim else f"{theorem.statement}."
    text += f"\nCorrect: {theorem.correction}." if theorem.correction else ""
    text += f"\nMeasured: {evidence.detail}." if evidence.detail else ""
    violation = f"{evidence.violation:.2g} (≤\N{NO-BREAK SPACE}{evidence.tolerance:g})"
    if evidence.printed is not None:
        violation += f"\nas printed {evidence.printed:.3g}{f' {evidence.unit}' if evidence.unit else ''}, "
        violation += f"{evidence.allowed:g} allowed ({evidence.because})"
    row: dict[str, object] = {"claim": text, "check": name, "source": theorem.source}
    row |= {"assumption": theorem.assumption, "verdict": word, "largest violation": violation}
    return row | {"tightness": evidence.tightness, "samples": evidence.samples, "seconds": seconds}


def by_paper(results: list[Result]) -> dict[str, list[Result]]:
    """Group results by paper, and put our laws last."""
    papers = sorted({result.theorem.paper for result in results}, key=lambda paper: (paper == OURS, paper))
    return {paper: [result for result in results if result.theorem.paper == paper] for paper in papers}


def counts(results: list[Result]) -> dict[str, int]:
    return {name: sum(result.verdict == name for result in results) for name in VERDICTS}


def summary(results: list[Result], seeds: str = "") -> str:
    return f"{len(results)} claims{seeds}: " + ", ".join(f"{n} {name}" for name, n in counts(results).items())


def as_json(result: Result) -> dict[str, Any]:
    """Format the result as a row of checks.json; numbers that are not finite become strings."""
    name, theorem, word, evidence, seconds, seed = result
    row = {"name": name} | vars(theorem) | vars(evidence)
    row |= {"paper": theorem.paper, "verdict": word, "seconds": seconds, "seed": seed}
    plain = {key: value for key, value in row.items() if key not in ("check", "curves")}
    return {k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in plain.items()}


def main(settings: Settings) -> int:
    names = select_theorems(settings.only)
    console = Terminal()
    outcomes = dict[str, Result]()
    folder = lock_until_exit(settings.output)
    seeds = range(settings.seed, settings.seed + settings.seeds)
    with progress_bar() as progress:
        for seed, name in progress.track([*product(seeds, names)], description="checking"):
            result = check(name, settings.samples, seed)
            outcomes[name] = worst(outcomes[name], result) if name in outcomes else result
    results = list(outcomes.values())
    rows = [{"claims of": paper} | counts(group) for paper, group in by_paper(results).items()]
    counted = Section("What holds", rows=rows)
    print_sections([counted])
    for result in results:
        if result.verdict == FAILS:
            why = result.evidence.detail or f"off by {result.evidence.violation:.3g}"
            console.print(f"{FAILS}  {result.theorem.source}, {result.name}: {why} (seed {result.seed})")
    total = summary(
        results, f" with seed {seeds[0]}" if len(seeds) == 1 else f", seeds {seeds[0]} to {seeds[-1]}"
    )
    console.print(total, highlight=False)
    report = {"settings": asdict(settings), "summary": total}
    write_json(folder / "checks.json", report | {"theorems": [*map(as_json, results)]})
    instances = sum(result.evidence.samples for result in results)
    text = f"{total}, in {instances:,} instances."
    write_json(folder / STUDY, study(settings, "What holds", text, {"papers": counted}, folder / STUDY))
    about = (
        f"{total}. Claims are in our words; quotation marks hold the paper's. Largest violation: "
        "of our statement, with its tolerance, and of the printed form if it differs. Tightness: median of "
        "bounded quantity / bound, 1 if the bound is attained."
    )
    sections = []
    for paper, group in by_paper(results).items():
        sections.append(Section(paper, summary(group), [*map(row_of, group)]))
        for result in group:
            if curves := result.evidence.curves:
                heading = f"{result.theorem.source}: {result.name}"
                sections.append(Section(heading, result.theorem.statement, figure=Curves(**curves).draw()))
    page = folder / "theory_checks.html"
    write_page(page, "What holds", about, sections, asdict(settings))
    console.print(f"written to {page} and checks.json", highlight=False, soft_wrap=True)
    return int(any(result.verdict == FAILS for result in results))
