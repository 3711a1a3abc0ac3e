"""Test the claims about LIMIT in Weller et al. 2025 (arXiv:2508.21038) on systems that limit.py measures."""

from collections.abc import Mapping
from typing import Any

from studies.curves import Values
from studies.pages import Section, printed, verdicts

from paradigms.evaluate.claims import Claim

PAPER, PRINTED = "Weller et al. 2025", printed("weller2025")
MARGIN = 0.05  # of R@k: "hardly helps"
ONE, SEVERAL = "dpr", ("colbert", "aligner", "xtr", "coil")


def judged(values: Mapping[tuple[str, str], Values], measure: str) -> Section:
    """Make a section with a verdict on every claim whose systems were measured.

    values: (system, "untrained" or "trained"; "–" for BM25) -> values of `measure`, [1, queries].
    """
    made: list[Claim] = []

    def claim(said: str, a: tuple[str, str], b: tuple[str, str], **how: Any) -> None:
        if {a, b} <= values.keys():
            place, statement = PRINTED["limit"][said]
            quantity = f"{measure}, " + " − ".join(s if t == "–" else f"{s}, {t}" for s, t in (a, b))
            made.append(Claim(f"{PAPER}, {place}", statement, quantity, values[a] - values[b], **how))

    for training in ("untrained", "trained"):
        claim("single", ("bm25", "–"), (ONE, training))
        for system in SEVERAL:
            claim("several", (system, training), (ONE, training))
    claim("domain", (ONE, "trained"), (ONE, "untrained"), margin=MARGIN, equal=True)
    for system in SEVERAL:
        if {(system, "trained"), (system, "untrained")} <= values.keys():
            contrast = values[system, "trained"] - values[system, "untrained"]
            question = "does training on queries of the same form help several vectors?"
            made.append(Claim("", question, f"{measure}, {system}, trained − untrained", contrast))
    text = f"“Hardly” is less than {MARGIN}."
    return verdicts(made, text, PRINTED["undecided"])
