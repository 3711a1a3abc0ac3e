"""Flags with dashes or underscores, in the command and the scripts."""

import pytest

from paradigms.cli.arguments import parser
from paradigms.io.flags import spelled


def test_only_flags_are_spelled_anew() -> None:
    words = ["search", "--best_passages", "2", "a_b", "--output=x_y-z", "-k", "3", "--", "--a_b"]
    dashed = ["search", "--best-passages", "2", "a_b", "--output=x_y-z", "-k", "3", "--", "--a_b"]
    assert spelled(words, "-") == dashed
    assert spelled(dashed, "_") == words


@pytest.mark.parametrize("flag", ["--identical-ids", "--identical_ids"])
def test_the_command_reads_both(flag: str) -> None:
    words = spelled(["search", "folder", flag, "keep"], "-")
    assert parser().parse_args(words).identical_ids == "keep"
