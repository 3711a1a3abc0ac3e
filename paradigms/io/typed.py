"""A dataclass of settings ↔ the JSON file beside a paradigm's weights: no wrong value, no unknown key."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

NUMBERS: dict[type, type] = {int: Integral, float: Real}  # numpy's too, and an integer is a float's value


def check_types(settings: Any) -> None:
    """ValueError for a field of a dataclass that has a value of another type, or none of its choices."""
    for name, kind in get_type_hints(type(settings)).items():
        check_type(name, getattr(settings, name), kind)


def check_type(name: str, value: Any, kind: Any) -> None:
    """ValueError where the value is not of a type: a class, some choices (Literal), a mapping, or a union."""
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise ValueError(f"{name}={value!r}; there are {', '.join(get_args(kind))}")
    elif not any(_is(value, part) for part in _parts(kind)):
        wanted = " or ".join("null" if part is NoneType else part.__name__ for part in _parts(kind))
        raise ValueError(f"{name}={value!r}; it must be {wanted}")


def _parts(kind: Any) -> tuple[Any, ...]:
    """The classes of a union, or the one class that it is."""
    origin = get_origin(kind)
    return get_args(kind) if origin in (Union, UnionType) else (origin or kind,)


def _is(value: Any, kind: type) -> bool:
    return isinstance(value, NUMBERS.get(kind, kind)) and (kind is bool or not isinstance(value, bool))


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


class Unreadable(ValueError):
    """What keeps a checkpoint from being read."""


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file. `Unreadable` names the file where there is none."""
    name = f"{file.parent.name}/{file.name}"
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise Unreadable(f"{name} is missing") from error
    except ValueError as error:
        raise Unreadable(f"{name}: bad JSON ({error})") from error
    if not isinstance(found, dict):
        raise Unreadable(f"{name}: a {type(found).__name__} where an object belongs")
    return found


def json_or_empty(file: Path) -> dict[str, Any]:
    """As `read_json`; {} where the file does not exist."""
    return read_json(file) if file.is_file() else {}


def require(file: Path, folder: Path) -> None:
    """FileNotFoundError where a file of a saved paradigm is not there."""
    if not file.is_file():
        raise FileNotFoundError(f"{file} is missing: {folder} is not a saved paradigm")
