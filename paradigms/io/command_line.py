"""A flat dataclass → command-line flags, --config FILE.yaml and --help: the settings of every script.

A script reads its command line before it imports what takes seconds: help and mistakes are told at once.

    @dataclass
    class Settings: ...

    if __name__ == "__main__":
        given = command_line(Settings, __doc__ or "")

    import torch
"""

import logging
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import UnionType
from typing import Any, NoReturn, Union, get_args, get_origin, get_type_hints

import yaml  # type: ignore[import-untyped]
from jsonargparse import ArgumentParser, set_parsing_settings

from paradigms.io.plugins import load_plugins
from paradigms.io.terminal import shown


class Parser(ArgumentParser):
    """An error is told in its own lines: the usage of thirty options would hide it."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        print(f"{shown(message)}\nAll options: --help", file=sys.stderr)
        raise SystemExit(2) from ex

    def check_structures(self, arguments: Sequence[str], hints: Mapping[str, Any]) -> None:
        """An error where a field of lists or mappings is given no JSON or YAML: where it breaks off."""
        for before, word in pairwise(["", *arguments]):
            name, _, value = word.partition("=") if word.startswith("--") else (before, "", word)
            field = name.removeprefix("--").partition(".")[0].rstrip("+")
            if value[:1] not in ("[", "{") or not _structured(hints.get(field)):
                continue
            try:
                yaml.safe_load(value)
            except (yaml.YAMLError, RecursionError, ValueError) as error:
                self.error(f"{name}: no JSON or YAML: {' '.join(str(error).split())}")


def command_line(kind: type, description: str, arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """The values of the dataclass `kind` from flags; a flag beats the YAML file, which beats the default.

    The string under each field is its help text. Wrong names and types end the program with a message. Every
    script also has --config, and --plugin, whose files are imported here.
    """
    # jsonargparse would run the script's `if TYPE_CHECKING` blocks for them.
    hints = get_type_hints(kind)
    vars(kind)["__init__"].__annotations__.update(hints)
    set_parsing_settings(docstring_parse_attribute_docstrings=True)
    parser = Parser(description=description.strip())
    parser.add_argument("--config", action="config", help="YAML file of settings; flags after it win")
    parser.add_argument(
        "--plugin",
        action="append",
        default=[],
        metavar="FILE.py",
        help="registers a paradigm, alignment or encoder of your own; may be repeated, a list in YAML",
    )
    parser.add_class_arguments(kind)
    parser.check_structures(sys.argv[1:] if arguments is None else arguments, hints)
    values = parser.parse_args(arguments).as_dict()
    logging.basicConfig(format="%(message)s")
    if os.environ.get("RANK", "0") == "0":
        logging.getLogger("paradigms").setLevel(logging.INFO)
    try:
        load_plugins(values.pop("plugin"))
    except (FileNotFoundError, ValueError) as error:
        parser.error(str(error))
    values.pop("config", None)
    return values


def _structured(hint: Any) -> bool:
    """Whether values of this type are lists or mappings and no strings."""
    origin = get_origin(hint) or hint
    if origin in (Union, UnionType):
        return str not in get_args(hint) and any(map(_structured, get_args(hint)))
    return isinstance(origin, type) and issubclass(origin, Collection) and origin is not str


def folder_name(collection: str) -> str:
    """A collection's part of a results folder's name: hf-BeIR-scifact, a folder's name, lifestyle-test."""
    if collection.startswith(("hf:", "irds:")):
        return collection.replace(":", "-").replace("/", "-")
    path = Path(collection).resolve()
    return f"{path.parent.name}-{path.name}" if path.name in ("train", "dev", "test") else path.name
