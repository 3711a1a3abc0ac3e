"""numba functions with compiled code on disk that is not older than any compiled module of their folder.

numba compares the function's own file alone, and reads the types of arguments before it does. Code of an
earlier version of the package would raise AttributeError if a type in another module was renamed, and would
go on with what that module was.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from numba import njit


def cached_njit(**options: Any) -> Callable[[Any], Any]:
    """`numba.njit(cache=True)` of a function, whose folder's modules with `njit` its code may come from."""

    def compiled(function: Any) -> Any:
        made = njit(cache=True, **options)(function)
        if hasattr(made, "stats"):  # not if NUMBA_DISABLE_JIT is set
            _delete_older(Path(made.stats.cache_path), Path(function.__code__.co_filename).parent)
        return made

    return compiled


@cache
def _delete_older(code: Path, sources: Path) -> None:
    """Delete compiled code that is older than the newest module that names `njit`."""
    newest = max(file.stat().st_mtime for file in sources.glob("*.py") if b"njit" in file.read_bytes())
    for file in code.glob("*.nb[ci]"):
        with suppress(OSError):  # another process deleted it, or alone may
            if file.stat().st_mtime < newest:
                file.unlink()
