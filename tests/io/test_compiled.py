"""Compiled code on disk follows the contents of every module that it comes from."""

import importlib
import os
import sys
from pathlib import Path

import pytest

from paradigms.io import compiled

SOURCES = {
    "numbers_of_types": "FACTOR = {factor}",
    "kinds.types_of_loops": """
from typing import NamedTuple
from numba import njit
from numbers_of_types import FACTOR

class {name}(NamedTuple):
    number: int

@njit
def raised(value):
    return FACTOR * value.number + {added}

make = {name}
""",
    "loops_of_types": """
from paradigms.io.compiled import cached_njit
from kinds import types_of_loops
from kinds.types_of_loops import make
raised = types_of_loops.raised

@cached_njit(nogil=True)
def total(value):
    return raised(value) + 1
""",
}


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write the sources with a date, and import them as a new process would."""
    monkeypatch.syspath_prepend(tmp_path)

    def imported(date: int, **values: object):
        for name, source in SOURCES.items():
            file = tmp_path / f"{name.replace('.', '/')}.py"
            file.parent.mkdir(exist_ok=True)
            file.write_text(source.format(**{"factor": 2, "name": "Old", "added": 0} | values))
            os.utime(file, (date, date))
            for module in (name, name.partition(".")[0]):
                monkeypatch.delitem(sys.modules, module, raising=False)
        importlib.invalidate_caches()
        for function in (compiled._folder, compiled._source):
            function.cache_clear()
        return importlib.import_module("loops_of_types")

    return imported


def test_code_is_that_of_the_present_sources(write):
    """A callee, a type's name or a constant changes in another folder, and dates go backwards."""
    states = ({}, {}, {"name": "Renamed"}, {"factor": 3}, {"added": 5})
    for number, values in enumerate(states):
        loops = write(1_700_000_000 - number, **values)
        total = values.get("factor", 2) * 10 + values.get("added", 0) + 1
        assert loops.total(loops.make(10)) == total
        assert sum(loops.total.stats.cache_hits.values()) == (number == 1)
    former = Path(loops.total.stats.cache_path).parent.parent
    assert len(list(former.iterdir())) == 1  # its code is deleted


@pytest.mark.parametrize("blocked", [0, 1, 2, 3])
def test_code_is_kept_where_something_is_writable(blocked, write, tmp_path, monkeypatch):
    """NUMBA_CACHE_DIR, beside the source, the user's cache, or else nowhere."""
    places = [tmp_path / "given", tmp_path / "__pycache__", tmp_path / "numba"]
    monkeypatch.setattr(compiled.CONFIG, "CACHE_DIR", str(places[0]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for place in places[:blocked]:
        place.touch()  # no folder can be made below a file, not even by root
    loops = write(1_700_000_000)
    assert loops.total(loops.make(10)) == 21
    files = list(tmp_path.rglob("*.nbc"))
    assert bool(files) == (blocked < 3)
    assert all(file.is_relative_to(places[blocked]) for file in files)
