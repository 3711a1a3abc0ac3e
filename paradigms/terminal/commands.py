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
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from shlex import quote

from rich.console import Console

from paradigms.data import Collection, Corpus, Problems, Run, read_run, write_run
from paradigms.data import load as load_collection
from paradigms.evaluate import (
    MEASURES,
    csv_table,
    markdown_table,
    on_split,
    result_table,
    rich_table,
    with_judgements,
)
from paradigms.evaluate.explain import explain
from paradigms.files import write_text
from paradigms.formats.card import model_card, results_of
from paradigms.generative.model import SETTINGS as GENERATIVE_SETTINGS
from paradigms.generative.model import Generative
from paradigms.generative.retriever import GenerativeRetriever
from paradigms.index import INDEXES
from paradigms.index.maxima import reads_pool
from paradigms.lexical import BM25
from paradigms.model import LAYOUTS
from paradigms.reranking import rerank
from paradigms.terminal import options, show
from paradigms.terminal.checkpoint import OFFLINE, Checkpoint
from paradigms.terminal.indexed import Indexed, check_source, documents, make, open_folder, words_of
from paradigms.terminal.queries import read_queries, refuse_blank, typed
from paradigms.train.tracking import native_precision

BASELINE = "bm25"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command; wrong input ends the program with a line and exit code 1."""
    whole = parser()
    settings, rest = whole.parse_known_args(arguments)
    # argparse gives up on texts that come after an option.
    takes_texts = settings.run_command in (run_search, run_rerank)
    if any(word.startswith("-") for word in rest) or (rest and not takes_texts):
        whole.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        settings.query += rest
    try:
        settings.run_command(settings)
    except (ValueError, OSError, KeyError, ImportError) as error:
        raise SystemExit(str(error.args[0]) if isinstance(error, KeyError) else str(error)) from error
    except KeyboardInterrupt:
        more = "; the same command goes on with the index" if settings.run_command is run_index else ""
        raise SystemExit(f"interrupted{more}") from None


def run_index(settings: argparse.Namespace) -> None:
    """Encode a source's documents into a folder that search, explain and compare read."""
    output = Path(settings.output or f"{output_name(settings.source)}.index")
    made, problems = make(
        settings.source,
        output,
        Checkpoint.of(settings),
        kind=settings.kind,
        words=settings.words,
        pickled=settings.pickled,
        precision=precision_of(settings),
    )
    told = notes()
    show.problems(problems, told)
    tell_words(settings, made.made.words, told)
    count = f"{len(made.corpus):,} document{'s' * (len(made.corpus) != 1)}"
    told.print(f"{count} of {settings.source} in {output}", soft_wrap=True)
    again = " --pickled" if settings.pickled else ""
    told.print(
        f'Search them: python -m paradigms search {quote(str(output))} "your question"{again}', soft_wrap=True
    )


def run_search(settings: argparse.Namespace) -> None:
    """The best documents of an indexed folder, or of a saved generative model, for each query."""
    corpus: Corpus | None = None
    find: Callable[..., Run]
    if (Path(settings.folder) / GENERATIVE_SETTINGS).is_file():
        model = Checkpoint(model=settings.folder).open(pickled=False)
        assert isinstance(model, Generative)
        find = GenerativeRetriever(model).search
    else:
        opened = open_folder(settings.folder, pickled=settings.pickled)
        corpus, find = opened.corpus, opened.search
    queries = read_queries(settings, None if corpus is None else opened.made.source)
    if queries:
        run = find(queries, settings.k, progress=len(queries) > 1)
        show.results(queries, run, corpus, settings.format)
        return
    for n, text in enumerate(typed(), 1):
        queries = {str(n): text}
        show.results(queries, find(queries, settings.k), corpus, settings.format)
    if not queries and not sys.stdin.isatty():
        raise ValueError("no query: the standard input is empty")


def run_rerank(settings: argparse.Namespace) -> None:
    """Order the first documents of BM25, or of any run, anew by a model; nothing is indexed."""
    check_source(settings.source)
    queries = read_queries(settings, settings.source)
    if not queries:
        raise ValueError("no query: give its text, --queries FILE or --split NAME")
    model = Checkpoint.of(settings).open(pickled=settings.pickled)
    words, problems, told = words_of(settings.source, settings.words, model), Problems(), notes()
    rows = list(documents(settings.source, problems, words))
    show.problems(problems, told)
    if not rows:
        raise ValueError(f"{settings.source} holds no document")
    tell_words(settings, words, told)
    ids, titles, texts = map(list, zip(*rows, strict=True))
    corpus = Corpus(ids, texts, titles)
    run = read_run(settings.run) if settings.run else BM25.build(corpus, ids).search(queries, settings.depth)
    known = {query: first(scores, settings.depth) for query, scores in run.items() if query in queries}
    if not known:
        raise ValueError(f"{settings.run} names none of the queries: {', '.join(list(queries)[:3])} …")
    found = rerank(model, queries, corpus, known, precision=precision_of(settings), progress=True)
    best = {query: first(scores, settings.k) for query, scores in found.items()}
    show.results({query: queries[query] for query in best}, best, corpus, settings.format)


def run_explain(settings: argparse.Namespace) -> None:
    """Which tokens made a document's score, in colours: the best document's, or that of --document."""
    refuse_blank({"1": settings.query})
    opened = open_folder(settings.folder, pickled=settings.pickled)
    run = opened.search({"1": settings.query}, settings.k)["1"]
    document = settings.document or next(iter(run), None)
    if document is None:
        raise ValueError(f"{settings.folder} finds nothing for {settings.query!r}")
    text = opened.corpus[opened.corpus.position(document)]
    others = [other for other in run if other != document]
    pool = None
    if others and reads_pool(opened.model.recipe):
        pool = opened.index.tokens_of(others, opened.model.encoder.device)
    show.alignment(explain(opened.model, settings.query, text, pool), settings.query, document)
    described = opened.model.description()
    if described["query_vectors"] == described["document_vectors"] == "pooled":
        notes().print(
            f"{opened.model.name} makes one vector of a text: tokens are seen of a model of token vectors, "
            "such as colbert",
            soft_wrap=True,
        )


def run_compare(settings: argparse.Namespace) -> None:
    """BM25 and several indexed folders of the same documents: side by side, or measured on judged queries."""
    systems = [open_folder(folder, pickled=settings.pickled) for folder in settings.folders]
    check_same(systems)
    source, corpus = systems[0].made.source, systems[0].corpus
    queries = read_queries(settings, source)
    if not queries:
        raise ValueError("no query: give its text with --query, --queries FILE or --split NAME")
    runs = {BASELINE: BM25.build(corpus, corpus.ids).search(queries, settings.k)}
    runs |= {one.name: one.search(queries, settings.k, progress=True) for one in systems}
    if settings.output:
        for name, run in runs.items():
            write_run(Path(settings.output) / f"{name}.run", run, tag=name)
    if not settings.split:
        show.side_by_side(queries, runs)
        return
    measured(
        load_collection(source), settings.split, runs, Path(settings.output) if settings.output else None
    )


def run_export(settings: argparse.Namespace) -> None:
    """Write a model as a folder that sentence-transformers 6 opens, or as our own, with a model card."""
    model = Checkpoint.of(settings).open(pickled=settings.pickled)
    card = model_card(model, settings.results or results_of(settings.model), settings.layout)
    model.save_pretrained(settings.output, settings.layout, card)
    told = notes()
    told.print(f"{settings.model} in {settings.output}, with its card in README.md", soft_wrap=True)
    if settings.push:
        try:
            model.push_to_hub(settings.push, settings.layout, card)
        except Exception as error:  # of what kind depends on the version of the hub's HTTP library
            raise ValueError(f"{settings.push} is not on the hub: {error}") from error
        told.print(f"and on the hub as {settings.push}", soft_wrap=True)


def measured(collection: Collection, split: str, runs: dict[str, Run], output: Path | None) -> None:
    """The table of all systems, tested against BM25, to the terminal and as files."""
    judged = with_judgements(collection.split(split), collection.corpus, list(runs.values()))
    measures = collection.measures or MEASURES
    values = {name: on_split(run, judged, measures) for name, run in runs.items()}
    table = result_table(f"{collection.name}, {split}", values, baseline=BASELINE, primary=measures[:1])
    Console().print(rich_table(table))
    if output is not None:
        write_text(output / "table.md", markdown_table(table))
        write_text(output / "table.csv", csv_table(table))


def check_same(systems: list[Indexed]) -> None:
    """ValueError unless all folders hold the same documents, under names of their own."""
    first_one = systems[0]
    for other in systems[1:]:
        same_source = other.made.source == first_one.made.source
        if same_source and other.made.words != first_one.made.words:
            raise ValueError(
                f"{first_one.folder} has passages of {first_one.made.words} words and {other.folder} of "
                f"{other.made.words}: index both with the same --words"
            )
        if other.made.fingerprint != first_one.made.fingerprint:
            raise ValueError(f"{first_one.folder} and {other.folder} hold different documents")
    names = [BASELINE, *(one.name for one in systems)]
    if len(set(names)) < len(names):
        raise ValueError(f"each folder needs a name of its own, got {', '.join(names)}")


def first(scores: dict[str, float], count: int) -> dict[str, float]:
    """The `count` best documents, of equal scores the smaller id."""
    return dict(sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:count])


def output_name(source: str) -> str:
    """A name for what is made of a source: of a path its last part, as it is; of a collection its name."""
    if Path(source).exists():
        return Path(source).resolve().name
    return source.replace(":", "-").replace("/", "-")


def precision_of(settings: argparse.Namespace) -> str:
    return native_precision() if settings.precision == "auto" else settings.precision


def notes() -> Console:
    """What is told beside the results."""
    return Console(stderr=True, highlight=False, markup=False)


def tell_words(settings: argparse.Namespace, words: int, console: Console) -> None:
    """How text files were cut, where the user has not said how."""
    if words and not settings.words:
        console.print(f"Text files are cut into passages of at most {words} words (--words)", soft_wrap=True)


# --- arguments --------------------------------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    """Every command with its arguments."""
    whole = argparse.ArgumentParser(
        "python -m paradigms", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = whole.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Callable[..., None]) -> argparse.ArgumentParser:
        described = str(run.__doc__)
        added = commands.add_parser(name, help=described, description=described)
        added.set_defaults(run_command=run)
        return added

    made = command("index", run_index)
    made.add_argument("source", help="folder of text files, JSON lines, or a collection")
    made.add_argument("--output", help="folder to make; without it SOURCE.index in the current folder")
    made.add_argument("--kind", choices=list(INDEXES), default="exact")
    options.add_model(made)
    options.add_precision(made)
    options.add_words(made)

    found = command("search", run_search)
    found.add_argument("folder", help="made by index, or a saved generative model")
    found.add_argument("query", nargs="*", help="texts; without any they are read from the terminal, by line")
    options.add_pickled(found)
    options.add_queries(found)
    options.add_shown(found)

    ranked = command("rerank", run_rerank)
    ranked.add_argument("source", help="folder of text files, JSON lines, or a collection")
    ranked.add_argument("query", nargs="*", help="texts")
    ranked.add_argument("--run", help="TREC run to take the candidates from; without it BM25 finds them")
    ranked.add_argument("--depth", type=options.count, default=100, help="candidates of each query")
    options.add_model(ranked)
    options.add_precision(ranked)
    options.add_words(ranked)
    options.add_queries(ranked)
    options.add_shown(ranked)

    shown = command("explain", run_explain)
    shown.add_argument("folder", help="made by index")
    shown.add_argument("query")
    shown.add_argument("--document", help="id of the document; without it the best one")
    shown.add_argument(
        "-k", type=options.count, default=10, help="documents among which XTR looks for tokens"
    )
    options.add_pickled(shown)

    written = command("export", run_export)
    written.add_argument("model", help=f"checkpoint: a folder, a name on the hub, or {OFFLINE}")
    written.add_argument("output", help="folder to write: a new one, or that of a model in the same layout")
    written.add_argument("--layout", choices=list(LAYOUTS), default="sentence-transformers")
    written.add_argument(
        "--results", help="folder of the script that trained it; without it the one around it"
    )
    written.add_argument(
        "--push", metavar="OWNER/NAME", help="upload it to the Hugging Face hub too, private"
    )
    options.add_reading(written)

    beside = command("compare", run_compare)
    beside.add_argument("folders", nargs="+", help="made by index from the same source")
    beside.add_argument("-q", "--query", action="append", default=[], help="a text; may be repeated")
    beside.add_argument("--output", help="folder for runs and tables")
    beside.add_argument("-k", type=options.count, default=100, help="documents of each query")
    options.add_pickled(beside)
    options.add_queries(beside)
    return whole
