"""What comes from outside, checked where it comes in: JSON, settings, texts, what a library makes of a file.

No wrong value and no unknown key, and every error names the file, line or argument.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
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
            raise ValueError(f"{name}={value!r:.200}; there are {', '.join(get_args(kind))}")
    elif not any(_is(value, part) for part in _parts(kind)):
        wanted = " or ".join("null" if part is NoneType else part.__name__ for part in _parts(kind))
        raise ValueError(f"{name}={value!r:.200}; it must be {wanted}")


def _parts(kind: Any) -> tuple[Any, ...]:
    """The classes of a union, or the one class that it is."""
    origin = get_origin(kind)
    return get_args(kind) if origin in (Union, UnionType) else (origin or kind,)


def _is(value: Any, kind: type) -> bool:
    return isinstance(value, NUMBERS.get(kind, kind)) and (kind is bool or not isinstance(value, bool))


def read_settings(kind: type, file: Path) -> Any:
    """A flat dataclass from its JSON file; unknown keys are named, not dropped."""
    require(file, file.parent)
    with naming(file):
        values: Mapping[str, Any] = parse_json(file.read_text(encoding="utf-8"), str(file))
        check_known(kind, values, "settings that this version does not know")
        return kind(**values)


def check_known(kind: type, values: Iterable[str], what: str = "unknown settings") -> None:
    """ValueError for names that are no field of a dataclass; it lists the fields."""
    names = [f.name for f in fields(kind)]
    unknown = [name for name in values if name not in names]
    if unknown:
        raise ValueError(f"{what}: {', '.join(map(repr, unknown))}; there are {', '.join(names)}")


def parse_json(text: str | bytes, where: str) -> Any:
    """The value that a JSON text holds. ValueError says where it holds none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: bad JSON ({error})") from error


@contextmanager
def naming(what: object) -> Iterator[None]:
    """ValueError that begins with `what`, a file or folder, for a library's error that does not name it."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
        raise
    except BaseException as error:  # a panic of Rust's is no Exception
        told = isinstance(error, ValueError | OSError) and str(what) in str(error)
        if told or isinstance(error, ImportError):
            raise
        kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
        raise ValueError(f"{what}: {kind}{error}") from error


def check_several(values: object, what: str) -> None:
    """TypeError for one string where several are expected: it would be taken letter by letter."""
    if isinstance(values, str | bytes):
        raise TypeError(f"{what} are one string, {values[:40]!r}, where a list of strings belongs")


def check_text(text: object, what: str) -> None:
    """TypeError where a text is no string, ValueError where it holds half a character: `what` names it."""
    if not isinstance(text, str):
        raise TypeError(f"{what} is {text!r:.80}: a string is needed")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            place = f"{what} has a lone surrogate, {text[error.start]!r}, at character {error.start}"
            raise ValueError(f"{place}: no tokenizer takes it") from None


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file. ValueError names the file where there is none."""
    name = f"{file.parent.name}/{file.name}"
    if not file.is_file():
        raise ValueError(f"{name} is missing")
    with naming(name):
        found = parse_json(file.read_text(encoding="utf-8"), name)
    if not isinstance(found, dict):
        raise ValueError(f"{name}: a {type(found).__name__} where an object belongs")
    return found


def json_or_empty(file: Path) -> dict[str, Any]:
    """As `read_json`; {} where the file does not exist."""
    return read_json(file) if file.is_file() else {}


def require(file: Path, folder: Path) -> None:
    """FileNotFoundError where a file of a saved paradigm is not there."""
    if not file.is_file():
        raise FileNotFoundError(f"{file} is missing: {folder} is not a saved paradigm")
