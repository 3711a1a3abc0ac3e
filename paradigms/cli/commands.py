"""All commands except `dimensions` and `oracle`, with one function for each command."""

from __future__ import annotations

import argparse
import sys
from itertools import takewhile
from pathlib import Path
from shlex import quote

from paradigms import evaluate
from paradigms.baselines.bm25 import BM25
from paradigms.cli import show
from paradigms.cli.arguments import program
from paradigms.cli.indexed import (
    BASELINE,
    Checkpoint,
    SearchFolder,
    check_indexed,
    is_indexed,
    open_folder,
    open_folders,
    same_texts,
)
from paradigms.cli.indexing import index_source
from paradigms.cli.queries import read_queries, refuse_blank, typed_lines
from paradigms.cli.sources import check_source, corpus_of, is_text, words_of
from paradigms.data import Collection, Corpus, Problems, Run, best_first, load_collection, read_run, write_run
from paradigms.data.identical import left_out, own_documents, without_own
from paradigms.data.pieces import Pieces
from paradigms.data.trec import check_ids
from paradigms.generative.model import SETTINGS as GENERATIVE_SETTINGS
from paradigms.generative.retriever import GenerativeRetriever
from paradigms.io.files import write_text
from paradigms.io.gzipped import numbered_lines
from paradigms.io.terminal import Terminal
from paradigms.retrieve import Fused, Passages, Reranking, Retriever, WithoutOwn, fuse
from paradigms.saving.hub import model_card, push_to_hub, results_of

FUSED, TREC = "fused", "trec"


def run_index(settings: argparse.Namespace) -> None:
    """Build, resume or update an index folder, and print the command that searches it."""
    from paradigms.io.command_line import folder_name  # imports jsonargparse, which search does not need

    output = Path(settings.output or f"{folder_name(settings.source)}.index")
    opened, problems = index_source(settings, output)
    report_source(settings, opened.origin.words, problems)
    cut = opened.index.model.count_cut(opened.pieces.corpus)
    if cut and cut.cut:
        show.tell(cut.summary + ("" if opened.origin.words else " (--passages)"))
    origin = opened.origin
    noun = "passage" if origin.words and not origin.passages else "document"
    count = f"{len(opened.corpus):,} {noun}{'s' * (len(opened.corpus) != 1)}"
    show.tell(f"{count} of {settings.source} in {output}, as {opened.index.model.name}, {origin.kind}")
    for choice in opened.choices:
        show.tell(f"A search for {choice.k} finds {choice.recall:.1%} of what an exhaustive one finds")
    again = "".join(f" --plugin {quote(file)}" for file in settings.plugin) + " --pickled" * settings.pickled
    show.tell(f'Search them: {program()} search {quote(str(output))} "your question"{again}')


def run_search(settings: argparse.Namespace) -> None:
    """Print the results for the given queries, or for each line of standard input."""
    corpus: Corpus | None = None
    source: str | None = None
    generative = generative_in(settings)
    retriever: Retriever
    if generative is not None:
        retriever = generative
        ids = generative.model.identifiers.documents
    else:
        folders = [settings.folder, *takewhile(is_indexed, settings.query)]
        settings.query = settings.query[len(folders) - 1 :]
        opened = open_folders(folders, pickled=settings.pickled, best=settings.best_passages)
        corpus = opened.corpus
        source = opened.origin.source or None
        ids = corpus.ids
        if settings.hybrid and settings.among:
            raise ValueError("--hybrid searches all documents: leave out --among")
        if settings.among:
            ids = [line.strip() for _, line in numbered_lines(settings.among)]
            if not ids:
                raise ValueError(f"{settings.among} has no ids")
            opened = opened.only(ids)
        retriever = opened.retriever
        if settings.hybrid:
            retriever = Fused([retriever, BM25(corpus)])
    queries = read_queries(settings, source)
    if settings.format == TREC:
        check_ids([*queries, *ids], "id")
    if queries:
        if corpus is not None and source is not None:
            retriever = WithoutOwn(retriever, identical(settings, source, corpus, queries))
        run = retriever.search(queries, settings.k, progress=len(queries) > 1)
        show.results(queries, run, corpus, settings.format)
        return
    for n, text in enumerate(typed_lines(), 1):
        queries = {str(n): text}
        show.results(queries, retriever.search(queries, settings.k), corpus, settings.format)
    if not queries and not sys.stdin.isatty():
        raise ValueError("no query: the standard input is empty")


def generative_in(settings: argparse.Namespace) -> GenerativeRetriever | None:
    """Open the folder to search if it contains a generative model; otherwise, return None."""
    if not (Path(settings.folder) / GENERATIVE_SETTINGS).is_file():
        return None
    if settings.hybrid or settings.among:
        raise ValueError(f"--hybrid and --among need an index, and {settings.folder} is a model")
    return GenerativeRetriever(Checkpoint(model=settings.folder).open(pickled=False))


def run_rerank(settings: argparse.Namespace) -> None:
    """Encode the candidates and print their ranking, without storing anything."""
    check_source(settings.source)
    queries = read_queries(settings, settings.source)
    if not queries:
        raise ValueError("no query: give its text, --queries FILE or --split NAME")
    model = Checkpoint.of(settings).open(pickled=settings.pickled)
    split = settings.passages and not is_text(settings.source)
    words = words_of(settings.source, settings.words, model.document_length, split)
    problems = Problems()
    corpus = corpus_of(settings.source, words, problems)
    if settings.format == TREC:
        check_ids([*queries, *corpus.ids], "id")
    ids = identical(settings, settings.source, corpus, queries)
    run = without_own(read_run(settings.run, problems), ids) if settings.run else {}
    report_source(settings, words, problems)
    if not settings.run:
        run = WithoutOwn(BM25(corpus), ids).search(queries, settings.depth)
    candidates = {
        query: best_first(scores, settings.depth) for query, scores in run.items() if query in queries
    }
    if not candidates:
        raise ValueError(f"{settings.run} has none of the queries: {', '.join(list(queries)[:3])} …")
    pieces = Pieces(corpus, words if split else 0)
    reranking = Passages(Reranking(model, pieces.corpus), pieces, settings.best_passages)
    reranked = reranking.rerank(queries, candidates, progress=True)
    best = {query: best_first(scores, settings.k) for query, scores in reranked.items()}
    show.results({query: queries[query] for query in best}, best, corpus, settings.format)


def run_explain(settings: argparse.Namespace) -> None:
    """Show one document's alignment; XTR's A also depends on the other search results."""
    refuse_blank({"1": settings.query})
    opened = open_folder(settings.folder, pickled=settings.pickled)
    run = opened.retriever.search({"1": settings.query}, settings.k)["1"]
    document = settings.document or next(iter(run), None)
    if document is None:
        raise ValueError(f"{settings.folder} finds nothing for {settings.query!r}")
    others = [other for other in run if other != document]
    (explanation,) = opened.retriever.explain(settings.query, document, others)
    show.alignment(explanation, settings.query, document)
    if opened.index.model.encoder.settings.single:
        source = quote(opened.origin.source)
        show.tell(
            f"{opened.index.model.name} has one vector for a text, so no token has a share of the score. An "
            f"index of token vectors shows them: {program()} index {source} --output tokens.index"
        )


def run_compare(settings: argparse.Namespace) -> None:
    """Search with all systems, write their runs, and print either measures or the results side by side."""
    systems = open_same(settings)
    source = systems[0].origin.source
    corpus = systems[0].corpus
    queries = read_queries(settings, source)
    if not queries:
        raise ValueError("no query: give its text with --query, --queries FILE or --split NAME")
    if settings.output:
        check_ids([*queries, *corpus.ids], "id")
    retrievers: dict[str, Retriever] = {BASELINE: BM25(corpus)}
    retrievers |= {system.name: system.retriever for system in systems}
    ids = identical(settings, source, corpus, queries)
    runs = {
        name: WithoutOwn(retriever, ids).search(queries, settings.k, progress=name != BASELINE)
        for name, retriever in retrievers.items()
    }
    if settings.fuse:
        runs[FUSED] = fuse(list(runs.values()), k=settings.k)
    output = Path(settings.output) if settings.output else None
    if output is not None:
        for name, run in runs.items():
            write_run(output / f"{name}.run", run, tag=name)
    if settings.split:
        measured(load_collection(source), settings.split, runs, output)
    else:
        show.side_by_side(queries, runs)


def run_serve(settings: argparse.Namespace) -> None:
    """Run the search server until interrupted."""
    from paradigms.io.command_line import folder_name

    check_indexed(settings.folders)
    try:
        from paradigms.serve import serve
    except ImportError as error:
        raise ValueError(f"serve needs packages: pip install starlette uvicorn ({error})") from error
    opened = open_same(settings)
    corpus = opened[0].corpus
    source = opened[0].origin.source
    retrievers: dict[str, Retriever] = {one.name: one.retriever for one in opened}
    bm25 = BM25(corpus) if settings.bm25 or settings.model else None
    if bm25 and settings.bm25:
        retrievers[BASELINE] = bm25
    for folder in settings.model:
        model = Checkpoint(model=folder).open(pickled=settings.pickled)
        model.check_corpus(corpus.ids)
        name = folder_name(folder)
        if name in retrievers:
            raise ValueError(f"two systems have the name {name}")
        searches = model.document_length is None  # the weights hold the documents
        retrievers[name] = GenerativeRetriever(model) if searches else Reranking(model, corpus, bm25)
    if settings.fuse:
        retrievers[FUSED] = Fused(list(retrievers.values()))
    judged = load_collection(source).split(settings.split) if settings.split else None
    serve(retrievers, corpus, judged=judged, host=settings.host, port=settings.port, token=settings.token)


def run_mcp(settings: argparse.Namespace) -> None:
    """Answer a language model's requests on the standard input and output until the input ends."""
    check_indexed(settings.folders)
    try:
        from paradigms.serve import Service
        from paradigms.serve.mcp import mcp_server
    except ImportError as error:
        raise ValueError(f"mcp needs MCP's package: pip install 'mcp>=2' ({error})") from error
    opened = open_folders(settings.folders, pickled=settings.pickled, best=settings.best_passages)
    retriever = opened.retriever
    if settings.hybrid:
        retriever = Fused([retriever, BM25(opened.corpus)])
    service = Service({opened.name: retriever}, opened.corpus)
    try:
        mcp_server(service).run()
    finally:
        service.together.close()


def run_export(settings: argparse.Namespace) -> None:
    """Write a model's folder, and upload it if --push is given."""
    model = Checkpoint.of(settings).open(pickled=settings.pickled, for_search=False)
    card = model_card(model, settings.results or results_of(settings.model), settings.layout)
    model.save_pretrained(settings.output, settings.layout, card)
    show.tell(f"{settings.model} in {settings.output}, with its card in README.md")
    if settings.push:
        try:
            push_to_hub(model, settings.push, settings.layout, card)
        except Exception as error:  # its class depends on the version of the hub's HTTP library
            raise ValueError(f"{settings.push} was not uploaded: {error}") from error
        show.tell(f"and on the hub as {settings.push}")


def measured(collection: Collection, split: str, runs: dict[str, Run], output: Path | None) -> None:
    """Print a table of all systems, tested against BM25; write it to the folder `output` if given."""
    judged = evaluate.with_judgements(collection.split(split), collection.corpus, list(runs.values()))
    measures = collection.measures or evaluate.MEASURES
    values = {name: evaluate.on_split(run, judged, measures) for name, run in runs.items()}
    table = evaluate.result_table(
        f"{collection.name}, {split}", values, baseline=BASELINE, primary=measures[:1]
    )
    Terminal().print(evaluate.rich_table(table))
    if output is not None:
        write_text(output / "table.md", evaluate.markdown_table(table))
        write_text(output / "table.csv", evaluate.csv_table(table))


def open_same(settings: argparse.Namespace) -> list[SearchFolder]:
    """Open folders. Raises ValueError unless all contain the same documents and have different names."""
    best = settings.best_passages
    systems = [open_folder(folder, pickled=settings.pickled, best=best) for folder in settings.folders]
    first, *others = systems
    for other in others:
        same_source = other.origin.source == first.origin.source and not first.origin.passages
        if same_source and other.origin.words != first.origin.words:
            raise ValueError(
                f"{first.folder} has passages of {first.origin.words} words and {other.folder} of "
                f"{other.origin.words}: index both with the same --words"
            )
        if not same_texts(first.corpus, other.corpus):
            raise ValueError(f"{first.folder} and {other.folder} hold different documents")
    names = [BASELINE, FUSED, *(system.name for system in systems)]
    if len(set(names)) < len(names):
        raise ValueError(f"folders need different names, got {', '.join(names)}")
    return systems


def identical(
    settings: argparse.Namespace, source: str, corpus: Corpus, queries: dict[str, str]
) -> frozenset[str]:
    """Find the queries of --split that are also documents (`own_documents`), and print how many."""
    if not settings.split or not queries.keys() & set(corpus.ids):
        return frozenset()
    ids = own_documents(corpus, load_collection(source).split(settings.split), settings.identical_ids)
    if ids:
        show.tell(left_out(ids))
    return ids


def report_source(settings: argparse.Namespace, words: int, problems: Problems) -> None:
    """Print the problems found in the data and, unless --words was given, how text files were split."""
    for line in problems.lines():
        show.tell(line, "yellow")
    if words and not settings.words:
        show.tell(f"Texts are cut into passages of at most {words} words (--words)")
