"""Compiled code on disk follows every module that it comes from."""

import importlib
import sys

from paradigms.io import compiled

TYPES = """
from typing import NamedTuple
from numba import njit

class {name}(NamedTuple):
    number: int

@njit
def raised(value):
    return {factor} * value.number

make = {name}
"""
LOOPS = """
from paradigms.io.compiled import cached_njit
from types_of_loops import make, raised

@cached_njit(nogil=True)
def total(value):
    return raised(value) + 1
"""


def test_code_is_compiled_anew_when_another_module_of_its_folder_changes(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "loops_of_types.py").write_text(LOOPS)
    for name, factor, hits in (("Old", 2, 0), ("Old", 2, 1), ("Renamed", 3, 0)):
        if not hits:
            (tmp_path / "types_of_loops.py").write_text(TYPES.format(name=name, factor=factor))
        for module in ("types_of_loops", "loops_of_types"):
            sys.modules.pop(module, None)
        importlib.invalidate_caches()
        compiled._delete_older.cache_clear()
        loops = importlib.import_module("loops_of_types")
        assert loops.total(loops.make(10)) == 10 * factor + 1
        assert sum(loops.total.stats.cache_hits.values()) == hits
