"""A flat dataclass → command-line flags, --config FILE.yaml and --help: the settings of every script."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from jsonargparse import ArgumentParser, set_parsing_settings

Settings = TypeVar("Settings")


def from_command_line(
    kind: type[Settings], description: str, arguments: Sequence[str] | None = None
) -> Settings:
    """An instance of the dataclass `kind` from flags; a flag beats the YAML file, which beats the default.

    The string under each field is its help text. Wrong names and types end the program with a message.
    """
    set_parsing_settings(docstring_parse_attribute_docstrings=True)
    parser = ArgumentParser(description=description.strip())
    parser.add_argument("--config", action="config", help="YAML file of settings; flags after it win")
    parser.add_class_arguments(kind)
    values = parser.parse_args(arguments)
    return kind(**{name: value for name, value in values.as_dict().items() if name != "config"})
