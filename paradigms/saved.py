"""A dataclass of settings ↔ the JSON file beside a paradigm's weights: no wrong choice, no unknown key."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints


def check_choices(settings: Any) -> None:
    """ValueError for a field of a dataclass whose Literal type does not list its value."""
    for name, kind in get_type_hints(type(settings)).items():
        if get_origin(kind) is Literal and getattr(settings, name) not in get_args(kind):
            raise ValueError(f"{name}={getattr(settings, name)!r}; there are {', '.join(get_args(kind))}")


def read_settings(kind: type, file: Path) -> Any:
    """A flat dataclass from its JSON file; unknown keys are named, not dropped."""
    require(file, file.parent)
    try:
        values: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        unknown = values.keys() - {f.name for f in fields(kind)}
        if unknown:
            raise ValueError(f"settings that this version does not know: {sorted(unknown)}")
        return kind(**values)
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{file}: {error}") from error


def require(file: Path, folder: Path) -> None:
    """FileNotFoundError where a file of a saved paradigm is not there."""
    if not file.is_file():
        raise FileNotFoundError(f"{file} is missing: {folder} is not a saved paradigm")
