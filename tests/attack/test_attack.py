"""A fast share of the attacks; `make attack` runs them all, and more of each."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attack.attacks import ATTACKS
from tests.attack.clients import CLIENTS
from tests.attack.harness import Attack, tally
from tests.attack.strangers import STRANGERS
from tests.forks import fork


def survives(name: str, attack: Attack) -> None:
    found = tally(attack, attack.fast, seed=1, forked=False)
    assert found["refused"] + found["harmless"] == attack.fast, f"{name}: {found}"


pytestmark = pytest.mark.slow
THERE = ATTACKS | STRANGERS | CLIENTS
QUICK = {name: attack for name, attack in THERE.items() if not attack.forks and attack.fast}


@pytest.mark.parametrize("name", QUICK)
def test_attacks_are_refused_or_harmless(name: str) -> None:
    survives(name, QUICK[name])


def test_writers_that_are_killed_crowded_or_starved_lose_nothing(tmp_path: Path) -> None:
    """Runs in a process without threads, since these attacks fork."""
    code, text = fork(tmp_path / "log", forking).ended()
    assert not code, text


def forking() -> None:
    from tests.attack.writers import WRITERS

    for name, attack in (ATTACKS | WRITERS).items():
        if attack.forks and attack.fast:
            survives(name, attack)
