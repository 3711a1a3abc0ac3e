"""Plug-ins: a user's own Python file that registers an alignment, Z, imputation, encoder or paradigm.

Every script and command takes it as `--plugin FILE`, and `paradigms.load` as `plugin=FILE`. Nothing else
imports it: a checkpoint names the plug-ins that it needs, and loading it without them is an error.
"""

import importlib
import sys
import traceback
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

LOADED: list[Path] = []  # the plug-ins of this process


def load_plugins(files: str | Path | Iterable[str | Path]) -> None:
    """Import each file as the module of its own name, once in this process.

    Its folder is appended to `sys.path`, for spawned processes. FileNotFoundError where there is no such
    file; ValueError where another module has its name, or the file cannot be imported.
    """
    for file in [files] if isinstance(files, str | Path) else files:
        path = Path(file).resolve()
        if path.suffix != ".py" or not path.is_file():
            raise FileNotFoundError(f"plug-in {file}: no such Python file")
        if str(path.parent) not in sys.path:
            sys.path.append(str(path.parent))
        importlib.invalidate_caches()
        found = find_spec(path.stem) if path.stem.isidentifier() else None
        if found is None or Path(found.origin or "").resolve() != path:
            raise ValueError(f"plug-in {file}: {path.stem} is no module name, or taken: rename the file")
        try:
            importlib.import_module(path.stem)
        except Exception as error:  # of the user's own code
            at = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
            line = error.lineno if isinstance(error, SyntaxError) else at[-1] if at else None
            where = f"plug-in {file}" + (f", line {line}" if line else "")
            raise ValueError(f"{where}: {type(error).__name__}: {error}") from error
        if path not in LOADED:
            LOADED.append(path)


def plugin_of(registered: Any) -> str:
    """Name of the file that defines a registered function, class or `Alignment`; "" for what is built in."""
    module = str(getattr(registered, "function", registered).__module__)
    if module.partition(".")[0] == "paradigms":
        return ""
    return Path(getattr(sys.modules.get(module), "__file__", None) or module).name
