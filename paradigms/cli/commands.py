"""What each command does; `arguments` has what it is for."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from shlex import quote

from paradigms.baselines.bm25 import BM25
from paradigms.cli import show
from paradigms.cli.checkpoint import Checkpoint, words_that_fit
from paradigms.cli.indexed import Indexed, make, open_folder
from paradigms.cli.queries import read_queries, refuse_blank, typed
from paradigms.cli.sources import check_source, documents, words_of
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
from paradigms.evaluate.reranking import rerank
from paradigms.formats.card import model_card, results_of
from paradigms.generative.model import SETTINGS as GENERATIVE_SETTINGS
from paradigms.generative.model import Generative
from paradigms.generative.retriever import GenerativeRetriever
from paradigms.io.files import write_text
from paradigms.io.terminal import Terminal
from paradigms.train.tracking import native_precision

BASELINE = "bm25"


def run_index(settings: argparse.Namespace) -> None:
    """Make the folder, or go on with it, and say how it is searched."""
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
    again = "".join(f" --plugin {quote(file)}" for file in settings.plugin) + " --pickled" * settings.pickled
    told.print(
        f'Search them: python -m paradigms search {quote(str(output))} "your question"{again}', soft_wrap=True
    )


def run_search(settings: argparse.Namespace) -> None:
    """Results of the queries that are given, or of each line that is typed."""
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
    """Results of the candidates, which are encoded for this once."""
    check_source(settings.source)
    queries = read_queries(settings, settings.source)
    if not queries:
        raise ValueError("no query: give its text, --queries FILE or --split NAME")
    model = Checkpoint.of(settings).open(pickled=settings.pickled)
    words = words_of(settings.source, settings.words, words_that_fit(model))
    problems, told = Problems(), notes()
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
    """The alignment of one document, among those found where A reads them all."""
    refuse_blank({"1": settings.query})
    opened = open_folder(settings.folder, pickled=settings.pickled)
    run = opened.search({"1": settings.query}, settings.k)["1"]
    document = settings.document or next(iter(run), None)
    if document is None:
        raise ValueError(f"{settings.folder} finds nothing for {settings.query!r}")
    text = opened.corpus[opened.corpus.position(document)]
    others = [other for other in run if other != document]
    pool = None
    if others and opened.model.recipe.reads_pool:
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
    """Every system's run, as a file where that is wanted; side by side, or measured."""
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
    """The folder, and the repository on the hub where there is to be one."""
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
    Terminal().print(rich_table(table))
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


def notes() -> Terminal:
    """What is told beside the results."""
    return Terminal(stderr=True, highlight=False)


def tell_words(settings: argparse.Namespace, words: int, console: Terminal) -> None:
    """How text files were cut, where the user has not said how."""
    if words and not settings.words:
        console.print(f"Text files are cut into passages of at most {words} words (--words)", soft_wrap=True)
