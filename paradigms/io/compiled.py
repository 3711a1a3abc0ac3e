"""Clear numba's on-disk cache for a function when any compiled module in the function's folder changes.

numba itself only checks the file that defines the function, and loads the argument types before that check.
Without this module, cached code would call old versions of functions in other files, and raise
AttributeError if another file renamed a type.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from numba import njit


def cached_njit(**options: Any) -> Callable[[Any], Any]:
    """Decorate a function with `numba.njit(cache=True)`, after deleting outdated code from the cache.

    options: further arguments of `numba.njit`.
    """

    def compiled(function: Any) -> Any:
        made = njit(cache=True, **options)(function)
        if hasattr(made, "stats"):  # absent if NUMBA_DISABLE_JIT is set
            _delete_older(Path(made.stats.cache_path), Path(function.__code__.co_filename).parent)
        return made

    return compiled


@cache
def _delete_older(code: Path, sources: Path) -> None:
    """Delete compiled code in `code` that is older than the newest module in `sources` that uses `njit`."""
    newest = max(file.stat().st_mtime for file in sources.glob("*.py") if b"njit" in file.read_bytes())
    for file in code.glob("*.nb[ci]"):
        with suppress(OSError):  # deleted by another process, or not permitted
            if file.stat().st_mtime < newest:
                file.unlink()
