"""Options that several commands have."""

from __future__ import annotations

import argparse

from paradigms.data.texts import WORDS
from paradigms.formats import FORMATS
from paradigms.terminal import show
from paradigms.terminal.checkpoint import OFFLINE


def add_model(command: argparse.ArgumentParser) -> None:
    """A checkpoint, and how it is to be read."""
    command.add_argument(
        "--model", default=OFFLINE, help=f"checkpoint: a folder or a name on the hub (default {OFFLINE})"
    )
    add_reading(command)


def add_reading(command: argparse.ArgumentParser) -> None:
    """How a checkpoint is to be read."""
    command.add_argument(
        "--document-model",
        default="",
        metavar="MODEL",
        help="the encoder of documents, where the model encodes queries alone",
    )
    command.add_argument(
        "--model-layout", default="", choices=list(FORMATS), help="where its files do not tell"
    )
    add_pickled(command)


def add_pickled(command: argparse.ArgumentParser) -> None:
    command.add_argument("--pickled", action="store_true", help="read pickled weights too, as weights alone")


def add_precision(command: argparse.ArgumentParser) -> None:
    command.add_argument("--precision", choices=["auto", "no", "bf16", "fp16"], default="auto")


def add_words(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--words",
        type=count,
        help=f"of a passage of a text file at most (default {WORDS}, fewer where the model reads fewer)",
    )


def add_queries(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--queries", help="file of queries: JSON lines {_id, text}, ID tab TEXT, or lines of text"
    )
    command.add_argument("--split", help="queries of the source, a collection, such as test")


def add_shown(command: argparse.ArgumentParser) -> None:
    command.add_argument("-k", type=count, default=10, help="documents to show (default %(default)s)")
    command.add_argument("--format", choices=list(show.FORMATS), default="table")


def count(text: str) -> int:
    """A number from 1 on."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)
