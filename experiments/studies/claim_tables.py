"""Tables of claims: a study's, and a paper's from all studies that judge them."""

import re
from collections import Counter
from typing import Any

from studies.claims import UNTESTED, printed
from studies.pages import Rows, markdown_rows

from paradigms.evaluate.claims import CONTRADICTED, ONE_SEED, REPRODUCED

READOUT = " [about a readout]"
OPEN = ("not decided here", UNTESTED)
# The headings above a paper's tables of decided claims.
ALL_REPRODUCED = "Reproduced:"
REPRODUCED_IN_PART = "Reproduced by some tests:"
REFUTED = "Contradicted by some tests:"
WITHOUT_INTERVAL = "By a count or a proof:"
HEADINGS = (ALL_REPRODUCED, REPRODUCED_IN_PART, REFUTED, WITHOUT_INTERVAL)
NOT_DECIDED = "Not decided here"
NOT_TESTED = "Not tested"
LEAST = re.compile(
    r", (?:above (−?)|within ±)[\d.e-]+$"
)  # the least effect of a quantity; a loss is negative
COMMON = re.compile(r"(?<=[:,] )([^:−]+), ([^,−]+) − \1, ([^,−]+)$")  # "X, a − X, b" is shown as "X, a − b"


def claim_table(rows: Rows) -> str:
    """Make a table of a study's judged rows, by claim. Claims that it could not measure are last, once."""
    claimed: dict[tuple[str, str], Rows] = {}
    for row in rows:
        verdict = row["verdict"].replace("not decided here", "not decided")
        cells = {"claim": row["claim"], "place": place(row), "measured": row["quantity"]}
        cells |= {"verdict": verdict.partition(f": {ONE_SEED}")[0], "ours": row["measured"]}
        cells |= {"the paper": row["printed"] or "–", "sample": row["sample"].removesuffix(", 1 seed")}
        claimed.setdefault((row["claim"], place(row)), []).append(cells)
    compared: Rows = []
    unmeasured: Rows = []
    for of_claim in claimed.values():
        decided = [row for row in of_claim if row["ours"] != "–"]
        compared += [row | {"claim": "", "place": ""} if n else row for n, row in enumerate(decided)]
        unmeasured += [] if decided else [of_claim[0] | {"verdict": UNTESTED}]
    return markdown_rows(compared + unmeasured)


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


def open_rows(judged: Rows) -> Rows:
    """Return a row for each claim whose tests are all open: that of the most queries, and the reason."""
    claims: dict[str, Rows] = {}
    for row in judged:
        if not row["claim"].startswith("Control: "):
            claims.setdefault(claim_of(row), []).append(row)
    rows: Rows = []
    for claim, tests in claims.items():
        measured = [row for row in tests if row["measured"] != "–"]
        if measured and all(word_of(row) in OPEN for row in tests):
            row = max(measured, key=size)
            cells = {"claim": claim, "place": place(row), "measured": linked(row, row["quantity"])}
            cells |= {"ours": row["measured"], "sample": row["sample"], "open because": reason_of(row)}
            rows.append(cells)
    return rows


def listed_claims(paper: str) -> Rows:
    """Return the rows of printed.yaml that state a claim of the paper."""
    return [row for family in printed(paper)["claims"].values() for row in family if "claim" in row]


def verdicts(paper: str, rows: Rows) -> str:
    """Make tables of the paper's claims that judged rows decide, one row each, and count the others.

    The number is that of the decided test with the largest sample, among those that contradict if any does.
    Claims that all tests reproduce stand first. Controls, which are our own questions, have no row.
    """
    judged: dict[str, Rows] = {}
    for row in rows:
        judged.setdefault(claim_of(row), []).append(row)
    groups: dict[str, Rows] = {heading: [] for heading in HEADINGS}
    undecided = 0
    for claim, tests in judged.items():
        clearest: dict[str, dict[str, Any]] = {}
        for row in tests:
            word = word_of(row)
            if word not in OPEN and size(row) > size(clearest.get(word, {})):
                clearest[word] = row
        if claim.startswith("Control: "):
            continue
        undecided += not clearest and any(row["measured"] != "–" for row in tests)
        if clearest:
            clearest = dict(sorted(clearest.items(), reverse=True))  # reproduced first
            words = [word for word in map(word_of, tests) if word != UNTESTED]
            counts = Counter(word if word in clearest else "open" for word in words)
            verdict = ", ".join(f"{counts[word]} {word}" for word in [*clearest, "open"] if counts[word])
            row = clearest.get(CONTRADICTED, next(iter(clearest.values())))
            quantity = row["quantity"]
            if CONTRADICTED not in clearest:
                quantity = LEAST.sub(lambda match: match[0] if match[1] else "", quantity)
            stated = claim if place(tests[0]) in claim else f"{claim} ({place(tests[0])})"
            quantity = linked(row, COMMON.sub(r"\1, \2 − \3", quantity))
            cells = {"claim": stated, "here": f"{quantity}: {row['measured']}"}
            decided = verdict if len(counts) > 1 else next(iter(clearest))
            if "[" not in row["measured"]:
                groups[WITHOUT_INTERVAL].append(cells | {"verdict": decided})
            elif decided == REPRODUCED:
                groups[ALL_REPRODUCED].append(cells)
            else:
                heading = REFUTED if CONTRADICTED in clearest else REPRODUCED_IN_PART
                groups[heading].append(cells | {"verdict": decided})
    listed = {row["claim"] for row in listed_claims(paper)}
    tested = {claim for claim, tests in judged.items() if {*map(word_of, tests)} != {UNTESTED}}
    written = (f"{heading}\n\n{markdown_rows(group)}\n" for heading, group in groups.items() if group)
    rest = {NOT_DECIDED: undecided, NOT_TESTED: len(listed - tested)}
    said = "".join(f"{name}: {counted(count, 'claim')}. " for name, count in rest.items() if count)
    return f"{''.join(written)}{said}"


def counted(number: int | str, noun: str) -> str:
    """Return a number with its noun, as in "1 claim" and "2 claims"."""
    return f"{number} {noun}{'s' * (str(number) != '1')}"


def linked(row: dict[str, Any], quantity: str) -> str:
    """Return what was measured as a link to its study in the details; a count or a proof has none."""
    study = row.get("study") if "[" in row["measured"] else None
    return f"[{quantity}](details.md#{study})" if study else quantity


def claim_of(row: dict[str, Any]) -> str:
    """Return a judged row's claim, without the remark that it is about a readout."""
    return row["claim"].removesuffix(READOUT)


def word_of(row: dict[str, Any]) -> str:
    """Return a row's verdict without the reason."""
    return str(row["verdict"]).partition(":")[0]


def reason_of(row: dict[str, Any]) -> str:
    """Return the reason of a row's verdict."""
    return str(row["verdict"]).partition(": ")[2]


def size(row: dict[str, Any]) -> float:
    """Return the number of queries of a test, or 0 without a row and at least 1 with one."""
    number = re.match(r"[\d,]+", str(row.get("sample", "")))
    return float(number[0].replace(",", "")) if number else float(bool(row))


def place(row: dict[str, Any]) -> str:
    return row["place"].partition(" et al. ")[2].partition(", ")[2] or row["place"]
