"""Search your own texts: index a folder, then ask.

    paradigms index notes
    paradigms search notes.index "how do I renew the certificate?"

A source is a folder of files (text, HTML, PDF, docx, odt, rtf, epub, fb2, pptx, xlsx), a file, JSON lines
{"_id", "title", "text"} (.jsonl), or a collection by name or folder (pydocs, hf:OWNER/NAME, irds:IDENTIFIER,
BEIR, MIRACL, LoTTE, DPR). A model is any checkpoint that paradigms.load opens, by folder or by its name on
the hub, or "offline", the small encoder that comes with this project. Without a model, index and rerank use
ColBERT over that encoder.
"""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from shlex import quote
from types import ModuleType
from typing import Any

from paradigms.data.identical import CHOICES
from paradigms.data.texts import WORDS
from paradigms.io.device import choose_device
from paradigms.io.flags import add_device, add_plugin, spelled
from paradigms.io.plugins import load_plugins
from paradigms.io.terminal import interruptible, printable

OFFLINE = "offline"  # all-MiniLM-L6-v2 as it was trained: one vector per text
PARADIGM = "colbert"  # without --model or --paradigm
# Copied keys of `find.INDEXES`, `saved.SAVE_LAYOUTS` and `saving.FORMATS`, which are slow to import.
INDEX_KINDS = ("exact", "faiss", "compressed", "inverted", "lemur")
LAYOUT_NAMES = ("paradigms", "sentence-transformers", "bge-m3", "onnx", "onnx-int8")
FORMAT_NAMES = (
    *("xtr", "classifier", "bge-m3", "sentence-transformers", "stanford", "dpr", "coil", "splade", "plain"),
    "library",
)


def count(text: str) -> int:
    """Parse an integer of at least 1."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer of at least 1")
    return int(text)


def port(text: str) -> int:
    """Parse a port number, 0 to 65535."""
    if not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 65535")
    return int(text)


# Arguments of argparse's `add_argument`, by option or, if one command differs, by "COMMAND option". Options
# that take a string have the default "".
OPTIONS: dict[str, dict[str, Any]] = {
    "source": {"help": "folder of files, a file, JSON lines, or a collection"},
    "folder": {"help": "folder made by index"},
    "search folder": {
        "help": "folder made by index, or a saved generative model; more folders of the same model may follow"
    },
    "folders": {"nargs": "+", "help": "folders made by index from the same source"},
    "mcp folders": {"nargs": "+", "help": "folders made by index, by one model"},
    "query": {"nargs": "*", "help": "texts; without any, search reads one per line from the terminal"},
    "explain query": {},
    "model": {"help": f"checkpoint: a folder, a name on the hub, or {OFFLINE}"},
    "output": {"help": "folder to write: a new one, or a saved model in the same layout, to be replaced"},
    "--output": {"help": "folder to create (default SOURCE.index in the current folder)"},
    "compare --output": {"help": "folder for runs and tables"},
    "--kind": {
        "help": f"kind of index: {', '.join(INDEX_KINDS)}, or one of a plug-in (default: compressed, with 4 "
        "bits a number, for token vectors such as ColBERT's; inverted for terms; else exact)"
    },
    "--engine": {
        "metavar": "ENGINE:PLACE",
        "help": "store the vectors in clickhouse, lancedb, qdrant_edge, qdrant or postgres, in a folder or "
        "at an address; several addresses of clickhouse, with commas between them, are shards",
    },
    "--engine-options": {
        "default": "{}",
        "metavar": "JSON",
        "help": 'more arguments of the engine\'s class, such as \'{"database": "notes"}\'; with '
        "`first` (bm25, or an index of the same source and --words), that finds `candidates` documents "
        "(default 1000, and at least -k), which the engine scores",
    },
    "--model": {"help": f"checkpoint: a folder or a name on the hub (default: {PARADIGM} over {OFFLINE})"},
    "--paradigm": {
        "help": "make this paradigm of the model, an encoder: dpr, me_bert, colbert, coil, aligner, xtr, "
        f"splade, bge_m3, or one of a plug-in (default: the model as it was saved; without one, {PARADIGM})"
    },
    "dimensions --model": {"help": f"checkpoint to compare with linear maps, such as {OFFLINE}"},
    "--document-model": {
        "metavar": "MODEL",
        "help": "the encoder of documents, if the model encodes only queries",
    },
    "--model-layout": {
        "choices": FORMAT_NAMES,
        "help": "the model's format, if its files do not identify it",
    },
    "--pickled": {"action": "store_true", "help": "read pickled weights too, but run no code in them"},
    "--precision": {
        "choices": ["auto", "no", "bf16", "fp16"],
        "default": "auto",
        "help": "precision of encoding (default: bf16 if the CPU multiplies it natively, else no: float32)",
    },
    "--words": {
        "type": count,
        "help": f"most words of a passage (default {WORDS}, or as many as the model reads)",
    },
    "--passages": {
        "action": "store_true",
        "help": "split documents of JSON lines or a collection, too, into passages of --words; documents are "
        "ranked by their best passages",
    },
    "--anew": {"action": "store_true", "help": "discard the index in --output, finished or not"},
    "--best-passages": {
        "type": count,
        "default": 1,
        "metavar": "N",
        "help": "score split documents by the sum of their N best passages (default 1: MaxP)",
    },
    "--among": {"metavar": "FILE", "help": "search only these documents, one id per line (not generative)"},
    "--hybrid": {"action": "store_true", "help": "fuse with BM25 by reciprocal ranks (not generative)"},
    "--query": {"action": "append", "default": [], "help": "a text; may be repeated"},
    "--queries": {"help": "file of queries: JSON lines {_id, text}, ID tab TEXT, or lines of text"},
    "--split": {"help": "split whose queries to use, such as test, if the source is a collection"},
    "--identical-ids": {
        "choices": CHOICES,
        "default": "auto",
        "help": "with --split, a document with the query's id: auto leaves it out if it is the query",
    },
    "-k": {"type": count, "default": 10, "help": "documents to show (default %(default)s)"},
    "explain -k": {"type": count, "default": 10, "help": "documents among which XTR looks for tokens"},
    "compare -k": {"type": count, "default": 100, "help": "documents per query"},
    "--format": {"choices": ("table", "jsonl", "trec"), "default": "table"},
    "--run": {"help": "TREC run with the candidates (default: BM25 retrieves them)"},
    "--depth": {"type": count, "default": 100, "help": "candidates per query"},
    "--document": {"help": "id of the document (default: the best one)"},
    "--layout": {"choices": LAYOUT_NAMES, "default": "sentence-transformers"},
    "--results": {"help": "results folder of the training script (default: the one around the model)"},
    "--push": {"metavar": "OWNER/NAME", "help": "also upload it, privately, to the Hugging Face hub"},
    "serve --model": {
        "action": "append",
        "default": [],
        "help": "also serve a saved model: a generative one, or one that reranks what BM25 finds",
    },
    "--bm25": {"action": "store_true", "help": "also serve BM25"},
    "serve --fuse": {"action": "store_true", "help": "also serve a fusion of all by reciprocal ranks"},
    "serve --split": {"help": "split whose judged queries the page lists, such as test"},
    "--host": {"default": "127.0.0.1", "help": "address to listen on; beyond this machine with --token"},
    "--port": {"type": port, "default": 8765, "help": "port; 0 chooses a free one (default %(default)s)"},
    "--token": {"help": "text that every request must contain"},
    "--fuse": {"action": "store_true", "help": "add a fusion of all by reciprocal ranks"},
}
ASK_THEORY = ("dimensions", "oracle")  # commands with separate modules, the only ones that import theory
READING = "--document-model --model-layout --pickled"
QUERIES = "--queries --split --identical-ids"
# Command -> (description, options); every command also has --plugin and --device.
COMMANDS = {
    "index": (
        "Encode a source's documents into a folder that search, explain, compare and dimensions read.",
        f"source --output --kind --engine --engine-options --model --paradigm {READING} --precision --words "
        "--passages --anew",
    ),
    "search": (
        "Find the best documents of an indexed folder, or of a saved generative model, for each query.",
        f"folder query --pickled --precision --best-passages --among --hybrid {QUERIES} -k --format",
    ),
    "rerank": (
        "Rerank the first documents of BM25, or of any run, with a model; nothing is indexed.",
        f"source query --run --depth --model --paradigm {READING} --precision --words --passages "
        f"--best-passages {QUERIES} -k --format",
    ),
    "explain": (
        "Show in colours which tokens make the score of the best document, or of --document.",
        "folder query --document -k --pickled --precision",
    ),
    "export": (
        "Write a model in the layout of sentence-transformers 6, or in our own, with a model card.",
        f"model output --layout --results --push {READING}",
    ),
    "compare": (
        "Compare BM25 and indexed folders of the same documents, side by side or measured by judgements.",
        f"folders --query --fuse --output -k --pickled --precision --best-passages {QUERIES}",
    ),
    "serve": (
        "A page to type queries, change A and see why, and a JSON service, over indexed folders and models.",
        "folders --model --bm25 --fuse --split --host --port --token --pickled --precision --best-passages",
    ),
    "mcp": (
        "Tools of a language model (MCP) that search indexed folders of the same model.",
        "folders --hybrid --pickled --precision --best-passages",
    ),
    "dimensions": (
        "Estimate how many dimensions a linear map needs to keep BM25's order; needs no judgements.",
        f"source --query --model {READING} --words {QUERIES}",
    ),
    "oracle": (
        "Is the index the limit, or the query encoder? The judged queries that any vectors could answer.",
        "folder --split --pickled",
    ),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command. On invalid input, print one line and exit with code 1."""
    # Idle OpenMP threads that spin would slow down a machine with other work; torch reads this at its import.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    root = parser()
    settings, rest = root.parse_known_args(spelled(sys.argv[1:] if arguments is None else arguments, "-"))
    # argparse leaves texts that follow an option unparsed.
    takes_texts = settings.command in ("search", "rerank")
    if any(word.startswith("-") for word in rest) or (rest and not takes_texts):
        root.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        settings.query += rest
    resuming = "the same command resumes the index" if settings.command == "index" else ""
    with interruptible(resuming):
        try:
            choose_device(settings.device)
            load_plugins(settings.plugin)
            # Imported after argparse has reported errors, as it takes seconds; `dimensions` needs no torch.
            commands = imported(settings.command if settings.command in ASK_THEORY else "commands")
            if getattr(settings, "precision", "auto") != "auto":
                from paradigms.encoder.precision import choose_precision  # imports torch

                choose_precision(settings.precision)
            getattr(commands, f"run_{settings.command}")(settings)
        except (ValueError, OSError, KeyError, ImportError) as error:
            raise SystemExit(printable(error.args[0] if isinstance(error, KeyError) else error)) from error


def program() -> str:
    """Return the name under which this program was called, for commands that can be pasted."""
    called = Path(sys.argv[0])
    if called.name == "paradigms":
        return called.name if shutil.which(called.name) == sys.argv[0] else quote(sys.argv[0])
    module = called.parts[-2:] == ("paradigms", "__main__.py")
    return f"{quote(sys.orig_argv[0]) if module else 'python'} -m paradigms"


def imported(name: str) -> ModuleType:
    """Import paradigms.cli.NAME; in a process of its own, no garbage collection reads the modules.

    They are hundreds of thousands of objects and hardly any garbage. Collections during the import, after it
    and at the end of the process would take a third of the time of a search.
    """
    if "torch" in sys.modules:  # a program called `main`, or a plug-in came first: collect as usual
        return import_module(f"paradigms.cli.{name}")
    gc.disable()
    try:
        return import_module(f"paradigms.cli.{name}")
    finally:
        gc.freeze()
        gc.enable()


def parser() -> argparse.ArgumentParser:
    """Build the argument parser with all commands."""
    root = argparse.ArgumentParser(
        program(),
        description=(__doc__ or "").replace("    paradigms", f"    {program()}"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = root.add_subparsers(required=True, metavar="COMMAND", dest="command")
    for name, (described, options) in COMMANDS.items():
        command = commands.add_parser(name, help=described, description=described)
        add_plugin(command)
        add_device(command)
        for option in options.split():
            short = ["-q"] if option == "--query" else []
            kind = OPTIONS.get(f"{name} {option}", OPTIONS[option])
            string = option.startswith("-") and not kind.keys() & {"action", "type"}
            command.add_argument(*short, option, **({"default": ""} if string else {}) | kind)
    return root
