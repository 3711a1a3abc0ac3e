"""Search your own texts: index a folder, then ask.

    python -m paradigms index notes
    python -m paradigms search notes.index "how do I renew the certificate?"

A source is a folder of text files, one such file, JSON lines {"_id", "title", "text"} (.jsonl), or a
collection by name or folder (pydocs, hf:OWNER/NAME, irds:IDENTIFIER, BEIR, MIRACL, LoTTE, DPR). A model is
any checkpoint that paradigms.load opens, by folder or name on the hub, or offline, the small encoder that
comes with this project.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import import_module

from paradigms.data.texts import WORDS
from paradigms.io.plugins import load_plugins
from paradigms.io.terminal import shown

OFFLINE = "offline"  # all-MiniLM-L6-v2 as it was trained: one vector a text
# The keys of `index.INDEXES`, `model.SAVE_LAYOUTS` and `formats.FORMATS`, whose import takes seconds.
INDEX_KINDS = ("exact", "faiss", "compressed", "inverted", "fixed")
LAYOUT_NAMES = ("paradigms", "sentence-transformers")
FORMAT_NAMES = (
    "xtr",
    "classifier",
    "sentence-transformers",
    "stanford",
    "dpr",
    "coil",
    "splade",
    "plain",
)
SHOWN = ("table", "jsonl", "trec")  # forms of results


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command; wrong input ends the program with a line and exit code 1."""
    whole = parser()
    settings, rest = whole.parse_known_args(arguments)
    # argparse gives up on texts that come after an option.
    takes_texts = settings.command in ("search", "rerank")
    if any(word.startswith("-") for word in rest) or (rest and not takes_texts):
        whole.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        settings.query += rest
    try:
        load_plugins(settings.plugin)
        # After what argparse tells, as these imports take seconds; `dimensions` needs no torch.
        where = settings.command if settings.command in ("dimensions", "advise") else "commands"
        commands = import_module(f"paradigms.cli.{where}")
        getattr(commands, f"run_{settings.command}")(settings)
    except (ValueError, OSError, KeyError, ImportError) as error:
        raise SystemExit(shown(error.args[0] if isinstance(error, KeyError) else error)) from error
    except KeyboardInterrupt:
        more = "; the same command goes on with the index" if settings.command == "index" else ""
        raise SystemExit(f"interrupted{more}") from None


def parser() -> argparse.ArgumentParser:
    """Every command with its arguments."""
    whole = argparse.ArgumentParser(
        "python -m paradigms", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = whole.add_subparsers(required=True, metavar="COMMAND", dest="command")

    def command(name: str, described: str) -> argparse.ArgumentParser:
        own = commands.add_parser(name, help=described, description=described)
        own.add_argument(
            "--plugin",
            action="append",
            default=[],
            metavar="FILE.py",
            help="registers what the model needs, such as an encoder of your own; may be repeated",
        )
        return own

    made = command(
        "index",
        "Encode a source's documents into a folder that search, explain, compare and dimensions read.",
    )
    made.add_argument("source", help="folder of text files, JSON lines, or a collection")
    made.add_argument("--output", help="folder to make; without it SOURCE.index in the current folder")
    made.add_argument("--kind", choices=INDEX_KINDS, default="exact")
    add_model(made)
    add_precision(made)
    add_words(made)
    add_passages(made)

    found = command(
        "search",
        "The best documents of an indexed folder, or of a saved generative model, for each query.",
    )
    found.add_argument("folder", help="made by index, or a saved generative model")
    found.add_argument("query", nargs="*", help="texts; without any they are read from the terminal, by line")
    add_pickled(found)
    add_best(found)
    found.add_argument(
        "--among", metavar="FILE", help="search these documents alone, an id on each line (not generative)"
    )
    found.add_argument(
        "--hybrid", action="store_true", help="fuse with BM25's results, by reciprocal ranks (not generative)"
    )
    add_queries(found)
    add_shown(found)

    ranked = command(
        "rerank",
        "Order the first documents of BM25, or of any run, anew by a model; nothing is indexed.",
    )
    ranked.add_argument("source", help="folder of text files, JSON lines, or a collection")
    ranked.add_argument("query", nargs="*", help="texts")
    ranked.add_argument("--run", help="TREC run to take the candidates from; without it BM25 finds them")
    ranked.add_argument("--depth", type=count, default=100, help="candidates of each query")
    add_model(ranked)
    add_precision(ranked)
    add_words(ranked)
    add_passages(ranked)
    add_best(ranked)
    add_queries(ranked)
    add_shown(ranked)

    shown = command(
        "explain",
        "Which tokens made a document's score, in colours: the best document's, or that of --document.",
    )
    shown.add_argument("folder", help="made by index")
    shown.add_argument("query")
    shown.add_argument("--document", help="id of the document; without it the best one")
    shown.add_argument("-k", type=count, default=10, help="documents among which XTR looks for tokens")
    add_pickled(shown)

    written = command(
        "export",
        "Write a model as a folder that sentence-transformers 6 opens, or as our own, with a model card.",
    )
    written.add_argument("model", help=f"checkpoint: a folder, a name on the hub, or {OFFLINE}")
    written.add_argument("output", help="folder to write: a new one, or that of a model in the same layout")
    written.add_argument("--layout", choices=LAYOUT_NAMES, default="sentence-transformers")
    written.add_argument(
        "--results", help="folder of the script that trained it; without it the one around it"
    )
    written.add_argument(
        "--push", metavar="OWNER/NAME", help="upload it to the Hugging Face hub too, private"
    )
    add_reading(written)

    beside = command(
        "compare",
        "BM25 and several indexed folders of the same documents: side by side, or measured on judged "
        "queries.",
    )
    beside.add_argument("folders", nargs="+", help="made by index from the same source")
    beside.add_argument("-q", "--query", action="append", default=[], help="a text; may be repeated")
    beside.add_argument(
        "--fuse", action="store_true", help="add the fusion of all: reciprocal ranks, or with --dev a sum"
    )
    beside.add_argument("--dev", metavar="SPLIT", help="queries that choose the weights of that sum, as dev")
    beside.add_argument("--output", help="folder for runs and tables")
    beside.add_argument("-k", type=count, default=100, help="documents of each query")
    add_pickled(beside)
    add_best(beside)
    add_queries(beside)

    needed = command(
        "dimensions",
        "How many dimensions the documents need before a linear map keeps BM25's order; needs no judgements.",
    )
    needed.add_argument("source", help="folder of text files, JSON lines, or a collection")
    needed.add_argument("-q", "--query", action="append", default=[], help="a text; may be repeated")
    needed.add_argument(
        "--model", default="", help=f"checkpoint to place beside linear maps, such as {OFFLINE}"
    )
    add_reading(needed)
    add_words(needed)
    add_queries(needed)

    advised = command(
        "advise",
        "Whether BM25, dense, multi-vector or hybrid retrieval fits the documents; needs no judgements.",
    )
    advised.add_argument("source", help="folder of text files, JSON lines, or a collection")
    advised.add_argument(
        "--documents", type=count, default=1000, help="that are drawn and encoded (default %(default)s)"
    )
    advised.add_argument(
        "--count", type=count, default=200, help="queries that are made of them (default %(default)s)"
    )
    advised.add_argument("--split", help="judged queries of the source, a collection, instead of known items")
    add_words(advised)
    return whole


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
        "--model-layout", default="", choices=FORMAT_NAMES, help="where its files do not tell"
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
        help=f"of a passage at most (default {WORDS}, fewer where the model reads fewer)",
    )


def add_passages(command: argparse.ArgumentParser) -> None:
    """Long documents, which a model cuts."""
    command.add_argument(
        "--passages",
        action="store_true",
        help="split documents of JSON lines or a collection too, into passages of --words; what is found are "
        "documents, by their best passages",
    )


def add_best(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--best-passages",
        type=count,
        default=1,
        metavar="N",
        help="of split documents, the score is the sum of that of the N best passages (default 1: MaxP)",
    )


def add_queries(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--queries", help="file of queries: JSON lines {_id, text}, ID tab TEXT, or lines of text"
    )
    command.add_argument("--split", help="queries of the source, a collection, such as test")
    command.add_argument(
        "--identical-ids",
        choices=["auto", "leave_out", "keep"],
        default="auto",
        help="with --split, a document with the query's id: auto leaves it out where it is the query's text",
    )


def add_shown(command: argparse.ArgumentParser) -> None:
    command.add_argument("-k", type=count, default=10, help="documents to show (default %(default)s)")
    command.add_argument("--format", choices=SHOWN, default="table")


def count(text: str) -> int:
    """A number from 1 on."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)
