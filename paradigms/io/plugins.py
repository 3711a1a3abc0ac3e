"""Plug-ins: users' Python files that register an alignment, Z, imputation, encoder or paradigm.

Every script and command accepts `--plugin FILE`, and `paradigms.load` accepts `plugin=FILE`. A checkpoint
only names the plug-ins that it needs, and is refused without them.
"""

import importlib
import sys
import traceback
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

LOADED: list[Path] = []  # the plug-ins that this process has imported


def load_plugins(files: str | Path | Iterable[str | Path]) -> None:
    """Import each file as a module with the file's name, once per process.

    The file's folder is appended to `sys.path` for spawned processes.
    """
    for file in [files] if isinstance(files, str | Path) else files:
        path = Path(file).resolve()
        if path.suffix != ".py" or not path.is_file():
            raise FileNotFoundError(f"plug-in {file}: no such Python file")
        if str(path.parent) not in sys.path:
            sys.path.append(str(path.parent))
        importlib.invalidate_caches()
        spec = find_spec(path.stem) if path.stem.isidentifier() else None
        if spec is None or Path(spec.origin or "").resolve() != path:
            raise ValueError(f"plug-in {file}: {path.stem} is not a free module name: rename the file")
        try:
            importlib.import_module(path.stem)
        except Exception as error:  # from the user's own code
            at = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
            line = error.lineno if isinstance(error, SyntaxError) else at[-1] if at else None
            where = f"plug-in {file}" + (f", line {line}" if line else "")
            raise ValueError(f"{where}: {type(error).__name__}: {error}") from error
        if path not in LOADED:
            LOADED.append(path)


def plugin_of(registered: Any) -> str:
    """Return the name of the plug-in file that defines a function or class, or "" if it is built in."""
    module = str(registered.__module__)
    if module.partition(".")[0] == "paradigms":
        return ""
    return Path(getattr(sys.modules.get(module), "__file__", None) or module).name
