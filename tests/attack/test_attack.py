"""A fast share of the attacks; `make attack` runs them all, and more of each."""

from pathlib import Path

import pytest

from tests.attack.clients import CLIENTS
from tests.attack.harness import Attack, tally
from tests.attack.indexes import INDEXES
from tests.attack.strangers import STRANGERS
from tests.forks import fork

pytestmark = pytest.mark.slow


def survives(name: str, attack: Attack) -> None:
    outcomes = tally(attack, attack.fast, seed=1, forked=False)
    assert outcomes["refused"] + outcomes["harmless"] == attack.fast, f"{name}: {outcomes}"


@pytest.mark.parametrize("name", STRANGERS | CLIENTS)
def test_attacks_are_refused_or_harmless(name: str) -> None:
    survives(name, (STRANGERS | CLIENTS)[name])


def test_writers_that_are_killed_crowded_or_starved_lose_nothing(tmp_path: Path) -> None:
    """Runs in a process without threads, since these attacks fork."""
    assert fork(tmp_path / "log", forking).ended() == (0, "")


def forking() -> None:
    for name, attack in INDEXES.items():
        survives(name, attack)
