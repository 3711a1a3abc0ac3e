"""A fast share of the attacks that need no process of their own; `make attack` runs them all."""

from __future__ import annotations

import pytest

from tests.attack.attacks import ATTACKS, FORKING
from tests.attack.harness import tally

TRIES = {"arguments": 18, "terminal": 5, "search while written": 2, "checkpoint": 10}


@pytest.mark.parametrize("name", [name for name in ATTACKS if not name.startswith(FORKING)])
def test_attacks_are_refused_or_harmless(name: str) -> None:
    tries = next((count for part, count in TRIES.items() if part in name), 40)
    found = tally(ATTACKS[name], tries, seed=1, forked=False)
    assert found["refused"] + found["harmless"] == tries, found
