"""Check external input: JSON, settings, texts and files that libraries read.

The checks reject wrong values and unknown keys. Every error names the file, line or argument.
"""

import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from numbers import Integral, Real
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
NUMBERS: dict[type, type] = {int: Integral, float: Real}  # accepts numpy's numbers, and integers as floats
LEAST_INT = -(1 << 63)
MOST_INT = (1 << 64) - 1  # what compiled code and seeds can hold
LABELS = 1 << 20
UNSEEN = {"Cc", "Cf", "Mn", "Zl", "Zp", "Zs"}  # categories of characters that show nothing by themselves
HEADER = 8 << 20  # bytes; 100,000 tensors take 6 MB
CHECKSUM = re.compile("[0-9a-f]{64}")  # a SHA-256


class Range(NamedTuple):
    """Bounds on a number, used as `Annotated[int, Range(1, 64)]`. None is always valid.

    Files may contain arbitrary numbers, so upper bounds limit time and memory. They exceed what models need.
    """

    least: float | int
    most: float | int
    above: bool = False  # whether to exclude `least` itself

    def check(self, name: str, value: Any) -> None:
        """Raise ValueError if the value is out of bounds."""
        if value is None:
            return
        if not (value > self.least if self.above else value >= self.least):
            bound = f"{'above' if self.above else 'at least'} {self.least}"
            raise ValueError(f"{name} must be {bound}, got {value}")
        if value > self.most:
            raise ValueError(f"{name} must be at most {self.most}, got {value:.6g}")


class OneLine:
    """A string without line breaks or control characters, used as `Annotated[str, OneLine()]`."""

    def check(self, name: str, value: str) -> None:
        """Raise ValueError if the string contains a line break or control character."""
        if not value.isprintable():
            raise ValueError(f"{name}={value!r:.200}; it must be one line of printable characters")


class Most(NamedTuple):
    """The largest size of a string, list or dict, used as `Annotated[str, Most(100, "characters")]`.

    A string must also be without lone surrogates (`check_text`). None is always valid.
    """

    size: int
    what: str

    def check(self, name: str, value: Any) -> None:
        """Raise ValueError if the value is larger."""
        if isinstance(value, str):
            check_text(value, name)
        if value is not None and len(value) > self.size:
            raise ValueError(f"{name} has {len(value):,} {self.what}, more than {self.size:,}")


def check_types(settings: Any) -> None:
    """Check the fields of a dataclass. Raises ValueError if a type is wrong or a value is not allowed."""
    kinds = get_type_hints(type(settings), include_extras=True)
    for field in fields(settings):
        check_type(field.name, getattr(settings, field.name), kinds[field.name])


def check_type(name: str, value: Any, kind: Any) -> None:
    """Raise ValueError if a value does not have the type `kind`.

    kind: a class, a Literal, a list or mapping, whose entries are checked, too, a union, or an Annotated type
    with a `Range`, `OneLine` or `Most`.
    """
    origin = get_origin(kind)
    if kind is Any:
        return
    if origin is Annotated:
        plain, *bounds = get_args(kind)
        check_type(name, value, plain)
        for bound in bounds:
            bound.check(name, value)
        return
    if origin is Literal:
        # 4.0 and True equal whole numbers, and are none.
        if (type(value), value) not in [(type(entry), entry) for entry in get_args(kind)]:
            raise ValueError(f"{name}={value!r:.200}; there are {', '.join(map(str, get_args(kind)))}")
        return
    members = get_args(kind) if origin in (Union, UnionType) else (kind,)
    classes = [get_origin(member) or member for member in members]  # list[str] counts as list
    if not any(_is(value, allowed) for allowed in classes):
        names = " or ".join("null" if allowed is NoneType else allowed.__name__ for allowed in classes)
        raise ValueError(f"{name}={value!r:.200}; it must be {names}")
    if isinstance(value, int) and not LEAST_INT <= value <= MOST_INT:
        raise ValueError(f"{name} is a whole number of more than 64 bits")
    for member in members:
        if get_origin(member) is not type(value):
            continue
        for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(value, dict):
                check_type(f"a key of {name}", key, get_args(member)[0])
            check_type(f"{name}[{key!r:.80}]", entry, get_args(member)[-1])


def _is(value: Any, kind: type) -> bool:
    return isinstance(value, NUMBERS.get(kind, kind)) and (kind is bool or not isinstance(value, bool))


def read_settings(
    kind: type, file: Path, renewed: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict
) -> Any:
    """Read a flat dataclass from its JSON file. Raises ValueError for unknown keys.

    renewed: function that converts values written by an older version.
    """
    require(file, file.parent)
    with naming(file):
        values = renewed(parse_json(file.read_text(encoding="utf-8"), str(file)))
        check_known(kind, values, "settings that this version does not know")
        return kind(**values)


def check_known(kind: type, values: Iterable[str], what: str = "unknown settings") -> None:
    """Raise ValueError, listing the dataclass's fields, if any name in `values` is not a field."""
    names = [f.name for f in fields(kind)]
    unknown = [name for name in values if name not in names]
    if unknown:
        raise ValueError(f"{what}: {', '.join(map(repr, unknown))}; there are {', '.join(names)}")


def parse_json(text: str | bytes, where: str) -> Any:
    """Parse JSON. Raises ValueError, with a message that starts with `where`, if the text is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: bad JSON ({error})") from error


def json_object(text: str | bytes, where: str) -> dict[str, Any]:
    """Parse a JSON object (`parse_json`). Raises ValueError also for another JSON value."""
    value = parse_json(text, where)
    if not isinstance(value, dict):
        raise ValueError(f"{where}: must be a JSON object")
    return value


@contextmanager
def naming(what: object) -> Iterator[None]:
    """Convert library errors into a ValueError that names `what`, a file or folder.

    Errors that already name `what` are not converted.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
        raise
    except BaseException as error:  # a Rust panic is not an Exception
        named = isinstance(error, ValueError | OSError) and str(what) in str(error)
        if named or isinstance(error, ImportError):
            raise
        kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
        raise ValueError(f"{what}: {kind}{error}") from error


class Named(dict[str, T]):
    """A table of entries by name, such as "me_bert", which "ME-BERT" also finds. what: an entry, in words."""

    def __init__(self, what: str, **entries: T) -> None:
        super().__init__(entries)
        self.what = what

    def __missing__(self, name: object) -> T:
        if (plain := str(name).lower().replace("-", "_")) in self and plain != name:
            return self[plain]
        raise KeyError(f"there is no {self.what} {name!r:.80}; there are {', '.join(self)}")


def _brief(value: object) -> str:
    """Return the start of a value's representation, on one line."""
    return " ".join(repr(value).split())[:60]


def check_several(values: object, what: str) -> None:
    """Raise TypeError if `values` is no iterable, or one string, which would be read letter by letter."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        kind = "string" if isinstance(values, str) else type(values).__name__
        raise TypeError(f"{what} must be a list of strings, got the {kind} {_brief(values)}")


def as_sequence(values: Iterable[T], what: str) -> Sequence[T]:
    """Return a sequence unchanged, and any other iterable as a list in the order of iteration.

    Indexing a pandas Series by a number would look up a label. Raises TypeError for a string or a mapping.
    """
    check_several(values, what)
    if isinstance(values, Mapping):
        raise TypeError(f"{what} must be a list of strings, got a mapping: use list(mapping.values())")
    return values if isinstance(values, Sequence) else list(values)


def check_texts(texts: object, what: str) -> None:
    """Raise TypeError unless `texts` maps ids to texts, all strings, and ValueError as `check_text`.

    what: "document" or "query".
    """
    if not isinstance(texts, Mapping):
        kind = type(texts).__name__
        raise TypeError(f"{what} texts must be a dict, id → text, got the {kind} {_brief(texts)}")
    for id, text in texts.items():
        check_id(id, what)
        check_text(text, f"the text of {what} {id!r}")


def check_id(id: object, what: str) -> None:
    """Raise TypeError unless an id is a string, as in judgements and runs. what: as in `check_texts`."""
    if not isinstance(id, str):
        raise TypeError(f"the id of a {what} must be a string, got {id!r:.80}: use str(id)")


def check_text(text: object, what: str) -> None:
    """Check that a text is a string without lone surrogates.

    what: name of the text in error messages. Raises TypeError or ValueError.
    """
    if not isinstance(text, str):
        raise TypeError(f"{what} is {text!r:.80}: a string is needed")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            place = f"{what} has a lone surrogate, {text[error.start]!r}, at character {error.start}"
            raise ValueError(f"{place}: tokenizers reject it") from None


def is_blank(text: str) -> bool:
    """Return whether a text has no visible character, such as white space or U+200B alone.

    >>> is_blank(" \u200b"), is_blank("a")
    (True, False)
    """
    return all(unicodedata.category(character) in UNSEEN for character in text)


def read_json(file: Path) -> dict[str, Any]:
    """Read a JSON file. Raises ValueError if the file is missing or does not contain an object."""
    if not file.is_file():
        raise ValueError(f"{file} is missing")
    with naming(file):
        return json_object(file.read_text(encoding="utf-8"), str(file))


def json_or_empty(file: Path) -> dict[str, Any]:
    """Read a JSON file with `read_json`; return {} if the file does not exist."""
    return read_json(file) if file.is_file() else {}


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Describe what differs between two JSON objects: "steps: 2 then, 4 now; weights"; "" if nothing does.

    Nested objects are compared by field, and of checksums only the field is named. A field that one object
    lacks differs if its value in the other is true or non-empty.
    """
    parts = []
    for name in sorted(old.keys() | new.keys()):
        a = old.get(name)
        b = new.get(name)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            parts.append(differences(a, b))
        elif a != b and (a or b or (name in old and name in new)):
            parts.append(name if CHECKSUM.fullmatch(f"{a}") else f"{name}: {a} then, {b} now")
    return "; ".join(filter(None, parts))


def check_files(folder: Path) -> None:
    """Raise ValueError if a checkpoint's file is unsafe to read.

    Readers would wait forever for a pipe, socket or device, follow a weight index out of the folder, and make
    lists of all tensors (`check_header`) and of all classes in a configuration.
    """
    for file in sorted(folder.rglob("*")):
        try:
            mode = file.stat().st_mode
        except OSError:  # a dangling link: a missing file, reported if it is needed
            continue
        if not (S_ISREG(mode) or S_ISDIR(mode)):
            raise ValueError(f"{file} is a pipe, socket or device: remove it from the checkpoint")
        for pattern, check in FILE_CHECKS.items():
            if S_ISREG(mode) and file.match(pattern):
                check(file)


def check_header(file: Path) -> None:
    """Raise ValueError if a safetensors header exceeds `HEADER`, since reading it would take minutes."""
    with file.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
    if size > HEADER:
        raise ValueError(f"{file} is damaged, or names too many tensors: its header has {size:,} bytes")


def _check_weight_map(file: Path) -> None:
    with naming(file):
        names = set(map(str, read_json(file).get("weight_map", {}).values()))
    outside = next((name for name in sorted(names) if name != Path(name).name), None)
    if outside is not None:
        raise ValueError(f"{file} names {outside!r:.200}, which is not in its folder")


def _check_labels(file: Path) -> None:
    labels = read_json(file).get("num_labels")
    if isinstance(labels, int) and labels > LABELS:
        raise ValueError(f"{file}: num_labels is {labels:,}, more than {LABELS:,}")


FILE_CHECKS: dict[str, Callable[[Path], None]] = {
    "*.safetensors": check_header,
    "*.safetensors.index.json": _check_weight_map,
    "config.json": _check_labels,
}


def require(file: Path, folder: Path) -> None:
    """Raise FileNotFoundError if a file of a saved paradigm is missing."""
    if not file.is_file():
        raise FileNotFoundError(f"{file} is missing: {folder} is not a saved paradigm (load reads others)")
