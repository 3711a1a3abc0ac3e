"""Keep numba's compiled code on disk in a folder named after the contents of the sources that it comes from.

numba itself compares the source only of the file that defines a function, and loads the argument types before
that comparison. Cached code would therefore call old versions of functions in other files, use old values of
their constants, and raise AttributeError if another file renamed a type.
"""

import ast
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from importlib.util import resolve_name
from pathlib import Path
from typing import Any

import numba

CONFIG: Any = numba.config
LIBRARIES = sys.stdlib_module_names | {"numba", "llvmlite"}  # their versions are in Python's and numba's keys


def cached_njit(**options: Any) -> Callable[[Any], Any]:
    """Decorate a function with `numba.njit(cache=True, **options)`, for code of the present sources.

    The code is kept in `NUMBA_CACHE_DIR`, beside the source or in the user's cache, whichever is the first to
    be writable. If none is, each process compiles anew.
    """

    def compiled(function: Any) -> Any:
        configured = CONFIG.CACHE_DIR
        folder = _folder(function.__module__, function.__code__.co_filename, configured)
        if folder is None:
            return numba.njit(**options)(function)
        CONFIG.CACHE_DIR = str(folder)
        try:
            return numba.njit(cache=True, **options)(function)
        finally:
            CONFIG.CACHE_DIR = configured

    return compiled


@cache
def _folder(module: str, source: str, configured: str) -> Path | None:
    """Create the folder for a module's compiled code, and delete the code of its former sources.

    Return None if no place is writable.
    """
    file = Path(source).absolute()
    user = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    of_file = f"{file.stem}-{hashlib.sha256(os.fsencode(file)).hexdigest()[:8]}"
    places = [Path(configured).absolute()] if configured else []
    for place in [*places, file.parent / "__pycache__", user / "numba"]:
        folder = place / of_file / digest(module)
        try:
            if not place.is_absolute():  # as the user's is without a home
                continue
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError:
            continue
        for former in folder.parent.iterdir():
            if former != folder:
                shutil.rmtree(former, ignore_errors=True)
        return folder
    return None


def digest(module: str) -> str:
    """Hash the sources of a module and of those that it imports, through all modules that use `njit`."""
    sources: dict[str, bytes] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name not in sources and name.partition(".")[0] not in LIBRARIES:
            sources[name], imported = _source(name)
            waiting += imported
    hashes = b"".join(hashlib.sha256(sources[name]).digest() for name in sorted(sources))
    return hashlib.sha256(hashes).hexdigest()[:16]


@cache
def _source(name: str) -> tuple[bytes, list[str]]:
    """Return a module's source, b"" without one, and the names of what it imports if it uses `njit`."""
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    source = Path(file).read_bytes() if file.endswith(".py") else b""
    imported: list[str] = []
    for node in ast.walk(ast.parse(source)) if b"njit" in source else ():
        if isinstance(node, ast.Import):
            imported += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), sys.modules[name].__package__)
            imported += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return source, imported
