"""The command line: strings are taken literally; errors about malformed lists and mappings name them."""

import re
from dataclasses import field
from pathlib import Path
from typing import Any

import pytest

from paradigms.cli.arguments import parser
from paradigms.io.command_line import command_line, flags
from paradigms.io.flags import spelled


@flags()
class Settings:
    folder: str = "x"
    out: Path | None = None
    seeds: list[int] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    also: list[str] | None = None
    named: list[str] | dict[str, dict[str, int]] = field(default_factory=list)
    steps: int = 30
    rate: float = 0.5
    part: int = -1
    margin: float | None = None
    verbose: bool = False


@flags(steps=7, seeds=[1], rate=0.25)
class Study(Settings):
    """A study's settings."""

    best_passages: int = 1
    """passages to sum"""


def test_a_class_inherits_flags_and_changes_their_defaults():
    study = Study(rate=0.5)
    assert (study.steps, study.seeds, study.rate, study.part) == (7, [1], 0.5, -1)
    Study().seeds.append(2)
    assert Study().seeds == [1]
    assert Settings().steps == 30
    with pytest.raises(KeyError, match="unknown"):
        flags(unknown=3)(Settings)


@pytest.mark.parametrize("flag", ["--best-passages", "--best_passages"])
def test_flags_have_dashes_or_underscores(flag, capsys):
    words = [f"{flag}=2", "--folder", "my_folder"]
    values = command_line(Study, "", words)
    assert (values["best_passages"], values["folder"]) == (2, "my_folder")
    with pytest.raises(SystemExit):
        command_line(Study, "What\nit does.\n\n    script --a \\\n        --b\n\nMore.", ["--help"])
    shown = capsys.readouterr().out
    assert "\n\nWhat it does.\n\n    script --a \\\n        --b\n\nMore.\n" in shown
    assert "--best-passages" in shown
    arguments = spelled(["search", "folder", flag, "2"], "-")
    assert parser().parse_args(arguments).best_passages == 2
    assert spelled(["a_b", "--o_p=x_y", "--", "--a_b"], "-") == ["a_b", "--o-p=x_y", "--", "--a_b"]


@pytest.mark.parametrize("value", ["[old] x", "{"])
def test_a_string_may_begin_with_a_bracket(value):
    results = command_line(Settings, "", ["--folder", value, f"--out={value}", "--seeds=[1, 2]"])
    assert (results["folder"], str(results["out"]), results["seeds"]) == (value, value, [1, 2])


def test_a_list_needs_no_brackets():
    results = command_line(Settings, "", ["--seeds=1, 2", "--also", "a,b"])
    assert (results["seeds"], results["also"]) == ([1, 2], ["a", "b"])
    assert command_line(Settings, "", ["--also", "null"])["also"] is None


def test_a_list_chooses_entries_of_a_mapping_in_the_config_file(tmp_path):
    file = tmp_path / "systems.yaml"
    file.write_text("named:\n  a: &a {x: 1}\n  b: {<<: *a, y: 2}\n")
    for words, named in {("--named", "b,c"): {"b": {"x": 1, "y": 2}, "c": {}}, (): {"a": {"x": 1}}}.items():
        assert named.items() <= command_line(Settings, "", ["--config", str(file), *words])["named"].items()
    assert command_line(Settings, "", ["--named", "b,c"])["named"] == ["b", "c"]


@pytest.mark.parametrize("field", ["seeds", "options"])
def test_a_broken_list_or_mapping_is_named(field, capsys):
    for given in ("[1, 2", "{a: [" * 5000):
        with pytest.raises(SystemExit):
            command_line(Settings, "", [f"--{field}={given}"])
        assert f"--{field}: not JSON or YAML" in capsys.readouterr().err


@pytest.mark.parametrize("given", ["--steps=-1", "--seeds=[0, -1]", "--part=-2"])
def test_a_number_below_zero_is_named_as_its_option(given):
    name, _, value = given.removeprefix("--").partition("=")
    with pytest.raises(SystemExit, match=f"{name} must be at least 0, got {re.escape(value)}"):
        command_line(Settings, "", [given])
    kept = command_line(Settings, "", ["--part=-1", "--margin=-2", "--steps=0"])
    assert (kept["part"], kept["margin"], kept["steps"]) == (-1, -2, 0)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("--verbose=maybe", "--verbose: expected true or false, got maybe"),
        ("--margin=x", "--margin: expected a number or null, got x"),
        ("--seeds=[x]", "--seeds: expected a list with each entry an integer, got x"),
    ],
)
def test_a_value_of_a_wrong_type_is_named_as_its_option(given, expected, capsys):
    with pytest.raises(SystemExit):
        command_line(Settings, "", [given])
    assert capsys.readouterr().err.startswith(f"{expected}\n")
