"""Parse scripts' command lines: a flat dataclass defines the flags, the entries of --config, and --help.

    @flags(steps=1000, seeds=[0])
    class Settings(Results, OneCollection, EncoderTraining):
        "Settings for the model and the candidates."  # a heading in --help

        depth: int = 100
        "candidates per query"

    if __name__ == "__main__":
        values = command_line(Settings, __doc__ or "")

    import torch

`flags` makes the class a dataclass that inherits flags, each with its type and its help text; a default that
differs from the inherited one is an argument of `flags`. `experiments/studies/settings.py` has the flags that
several scripts share. A script reads its command line before its slow imports, so that help and errors appear
immediately.
"""

import logging
import os
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import UnionType
from typing import (
    Any,
    Literal,
    NoReturn,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import yaml
from jsonargparse import ArgumentParser, DefaultHelpFormatter, get_loader, set_parsing_settings

from paradigms.io.device import choose_device
from paradigms.io.flags import add_device, add_plugin, spell, spelled
from paradigms.io.plugins import load_plugins
from paradigms.io.terminal import printable

Settings = TypeVar("Settings")
# jsonargparse's message about a value of a wrong type
WRONG = re.compile(r'Parser key "(\w+)":\n.*(?:Got|Given) value: ([^\n]*)$', re.DOTALL)
TYPES = {bool: "true or false", int: "an integer", float: "a number", str: "text", type(None): "null"}
TYPES |= {list: "a list", dict: "a mapping"}


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
def flags(**defaults: Any) -> Callable[[type[Settings]], type[Settings]]:
    """Make a class a dataclass of flags, given by keyword. defaults: new defaults for inherited fields."""

    def make(kind: type[Settings]) -> type[Settings]:
        hints = get_type_hints(kind)
        for name, value in defaults.items():
            kind.__annotations__[name] = hints[name]
            changes = isinstance(value, list | dict)
            setattr(kind, name, field(default_factory=partial(copy, value)) if changes else value)
        return dataclass(kw_only=True)(kind)

    return make


class Formatter(DefaultHelpFormatter):
    """Wrap the paragraphs of a description, and leave indented examples as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        wrap = super()._fill_text
        paragraphs = re.split(r"\n{2,}", text)
        return "\n\n".join(p if p.startswith("    ") else wrap(p, width, indent) for p in paragraphs)


class Parser(ArgumentParser):
    """A parser that prints errors without the usage text, whose many options would hide the message.

    hints: field → type.
    """

    hints: Mapping[str, Any] = {}

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        wrong = WRONG.match(message)
        if wrong and wrong[1] in self.hints:
            expected = _described(self.hints[wrong[1]])
            message = f"{spell('--' + wrong[1], '-')}: expected {expected}, got {wrong[2]}"
        print(f"{printable(message)}\nAll options: --help", file=sys.stderr)
        raise SystemExit(2) from ex

    def structured(self, arguments: Sequence[str]) -> list[str]:
        """Add missing brackets to list values: `dpr,colbert` becomes `[dpr,colbert]`.

        Then check that --config files and the values of list and mapping fields are JSON or YAML.
        """
        words: list[str] = []
        for before, word in pairwise(["", *arguments]):
            flag, equals, value = word.partition("=") if word.startswith("--") else (before, "", word)
            bare = flag.startswith("--") and value[:1] not in ("", "[", "{") and value != "null"
            if bare and list in _structures(self.hints.get(flag.removeprefix("--"))):
                value = f"[{value}]"
                word = f"{flag}={value}" if equals else value
            words.append(word)
            field = flag.removeprefix("--").partition(".")[0].rstrip("+")
            if field == "config" and Path(value).is_file():
                flag = value
                value = Path(value).read_text(encoding="utf-8", errors="replace")
            elif not _structures(self.hints.get(field)):
                continue
            try:
                yaml.safe_load(value)
            except (yaml.YAMLError, RecursionError, ValueError) as error:
                self.error(f"{spell(flag, '-')}: not JSON or YAML: {' '.join(str(error).split())}")
        return words


def command_line(
    kind: type, description: str, arguments: Sequence[str] | None = None, *, device: bool = False
) -> dict[str, Any]:
    """Read values for the dataclass `kind`; flags override the YAML file, which overrides defaults.

    The string below each field is its help text. A wrong name or type ends the program with a message. Every
    script also has --config and --plugin. If a flag gives a list where the file has a mapping, the list
    chooses the mapping's entries. device: whether to add --device.
    """
    # jsonargparse would resolve these by running the script's `if TYPE_CHECKING` blocks.
    hints = get_type_hints(kind)
    vars(kind)["__init__"].__annotations__.update(hints)
    set_parsing_settings(docstring_parse_attribute_docstrings=True)
    parser = Parser(description=description.strip(), formatter_class=Formatter)
    parser.hints = hints
    parser.add_argument("--config", action="config", help="YAML file of settings; flags after it win")
    add_plugin(parser)
    if device:
        add_device(parser)
    parser.add_class_arguments(kind)
    for action in parser._actions:
        action.option_strings = [spell(word, "-") for word in action.option_strings]
    words = spelled(sys.argv[1:] if arguments is None else arguments, "_")
    values = parser.parse_args(parser.structured(words)).as_dict()
    logging.basicConfig(format="%(message)s")
    if os.environ.get("RANK", "0") == "0":
        logging.getLogger("paradigms").setLevel(logging.INFO)
    try:
        choose_device(values.pop("device") if device else "")
        load_plugins(values.pop("plugin"))
    except (FileNotFoundError, ValueError) as error:
        parser.error(str(error))
    for file in reversed([file for file in values.pop("config", None) or [] if file is not None]):
        file_values = get_loader("yaml")(Path(str(file)).read_text(encoding="utf-8")) or {}
        for name, entries in file_values.items():
            if isinstance(entries, dict) and isinstance(chosen := values.get(name), list):
                values[name] = {key: entries.get(key, {}) for key in chosen}
    _check_signs(kind, values)
    return values


def _check_signs(kind: type, values: Mapping[str, Any]) -> None:
    """Raise SystemExit, naming the option, if a number is below 0; its default may be, or be null."""
    for option in fields(kind):
        value = values[option.name]
        numbers = value if isinstance(value, list) else [value]
        below = any(isinstance(number, int | float) and number < 0 for number in numbers)
        if below and option.default is not None and value != option.default:
            raise SystemExit(f"{option.name} must be at least 0, got {value}")


def _structures(hint: Any) -> list[type]:
    """Return the classes of lists and mappings that a field takes; [] if it also takes strings."""
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    classes = [get_origin(part) or part for part in parts]
    if str in classes:
        return []
    return [kind for kind in classes if isinstance(kind, type) and issubclass(kind, Collection)]


def _described(hint: Any) -> str:
    """Describe the values of a type."""
    origin = get_origin(hint)
    parts = get_args(hint)
    if origin is Literal:
        return f"one of {', '.join(str(part) or '(empty)' for part in parts)}"
    if origin is list and parts[0] is not Any:
        return f"a list with each entry {_described(parts[0])}"
    if origin in (Union, UnionType):
        return " or ".join(map(_described, parts))
    return TYPES.get(origin or hint, str(hint))


def folder_name(collection: str) -> str:
    """Return a collection's folder name, such as hf-BeIR-scifact, nfcorpus or lifestyle-test."""
    if collection.startswith(("hf:", "irds:")):
        return collection.replace(":", "-").replace("/", "-")
    path = Path(collection).resolve()
    return f"{path.parent.name}-{path.name}" if path.name in ("train", "dev", "test") else path.name
