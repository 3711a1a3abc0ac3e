"""Outputs that appear complete or not at all: written under a temporary name, then moved into place."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def write_text(path: str | Path, text: str) -> None:
    """Write a text file, atomically; parent folders are made."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.partial")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def write_json(path: str | Path, value: Any) -> None:
    """Write a JSON file, atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


@contextmanager
def new_folder(path: str | Path) -> Iterator[Path]:
    """A temporary folder that becomes `path`, replacing what was there, if the body ends without error.

    A crash between the two renames leaves the old folder under `.NAME.old`; `settle` puts it back.
    """
    path = Path(path)
    settle(path)
    temporary, old = path.with_name(f".{path.name}.partial"), path.with_name(f".{path.name}.old")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    yield temporary
    if path.exists():
        os.replace(path, old)
    os.replace(temporary, path)
    shutil.rmtree(old, ignore_errors=True)


def settle(path: str | Path) -> None:
    """Undo a replacement of folder `path` that was interrupted between its two renames."""
    path = Path(path)
    old = path.with_name(f".{path.name}.old")
    if old.exists() and not path.exists():
        os.replace(old, path)
