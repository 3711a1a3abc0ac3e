"""One grammar of flags for the command `paradigms` and all scripts.

Flags are shown with dashes, `--identical-ids`, and also read with underscores, as the entries of a
configuration are written. All commands and scripts have --plugin; most have --device.
"""

import argparse
import re
from collections.abc import Sequence
from typing import Literal

from paradigms.io.device import HELP

FLAG = re.compile(r"--\w[\w-]*")


def spelled(words: Sequence[str], mark: Literal["-", "_"]) -> list[str]:
    """Write the flags among the words of a command line with dashes or with underscores.

    Values are left as they are: `--output=my_results`, and everything after `--`.
    """
    end = words.index("--") if "--" in words else len(words)
    return [spell(word, mark) for word in words[:end]] + list(words[end:])


def spell(word: str, mark: Literal["-", "_"]) -> str:
    """Write the flag at the start of a word with dashes or with underscores."""
    flag = FLAG.match(word)
    return "--" + re.sub("[-_]", mark, flag[0][2:]) + word[flag.end() :] if flag else word


def add_plugin(parser: argparse.ArgumentParser) -> None:
    """Add --plugin."""
    parser.add_argument(
        "--plugin",
        action="append",
        default=[],
        metavar="FILE.py",
        help="Python file that registers your own paradigm, alignment or encoder; may be repeated",
    )


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add --device."""
    parser.add_argument("--device", default="", help=HELP)
