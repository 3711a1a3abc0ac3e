"""Rerank a TREC run with a saved paradigm, and compare both rankings, with intervals and significance tests.

Writes reranked.run, table.md, table.csv, per_query.csv and config.json to the output folder, and fused.run if
--fuse is set. To divide the encoding among several processes or GPUs:

    accelerate launch --config_file experiments/configs/gpus.yaml experiments/rerank.py
"""

import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from studies.settings import (
    Checkpoint,
    Computing,
    OneCollection,
    OneSplit,
    Output,
    Ranking,
    at_least,
    launch,
    refusing,
)

from paradigms.io.command_line import flags, folder_name


@flags(precision="no")
class Settings(OneCollection, OneSplit, Checkpoint, Ranking, Output, Computing):
    """Settings for the models and the run."""

    run: str
    """TREC run to rerank"""
    index: str = ""
    """folder in which experiments/encode.py encoded the collection with the checkpoint; empty: encode the
    candidates"""
    fuse: Literal["", "rrf"] = ""
    """rrf: also fuse the run with its reranking by reciprocal ranks; empty: no fusion"""

    def __post_init__(self) -> None:
        at_least(self, depth=1, best_passages=1)


launch(__name__, Settings, __doc__, processes=True)  # before the slow imports

from accelerate import PartialState
from accelerate.utils import broadcast_object_list, parse_flag_from_env
from encode import open_encoded

from paradigms import load
from paradigms.data import Collection, Run, best_first, check_answered, read_run, write_run
from paradigms.data.identical import left_out, own_documents, without_own
from paradigms.data.pieces import Pieces
from paradigms.encoder.precision import choose_precision, native_precision
from paradigms.evaluate import (
    MEASURES,
    csv_table,
    markdown_table,
    on_split,
    result_table,
    rich_table,
    with_judgements,
    write_per_query,
)
from paradigms.io.files import lock_until_exit, write_json, write_text
from paradigms.io.terminal import Terminal
from paradigms.loading import as_paradigm
from paradigms.retrieve import AllProcesses, Model, Passages, Retriever, fuse, retriever_of
from paradigms.train.heartbeat import start_heartbeat
from paradigms.train.parallel import check_shared
from paradigms.train.script import PATIENCE, open_collection


def main(settings: Settings) -> None:
    state = PartialState(cpu=parse_flag_from_env("ACCELERATE_USE_CPU"), timeout=PATIENCE)
    start_heartbeat()
    automatic = settings.precision == "auto"  # whatever a launcher put in its place
    choose_precision(native_precision(state.device) if automatic else settings.precision)
    console = Terminal(quiet=not state.is_main_process)
    with refusing():
        rerank_run(settings, state, console)
    state.destroy_process_group()


def rerank_run(settings: Settings, state: PartialState, console: Terminal) -> None:
    run = read_run(settings.run)
    model = load(settings.checkpoint).to(state.device)
    output = Path(settings.output or f"results/rerank-{model.name}-{folder_name(settings.collection)}")
    if state.is_main_process:
        lock_until_exit(output)
    collection = open_collection(settings.collection, settings.documents or None, console)
    pool = candidates_of(run, collection, settings, console)
    if settings.passages and model.document_length is None:
        raise ValueError(f"passages: {model.name} names whole documents, and reads no passages")
    reranked = rescored(model, pool, settings, collection, state, console)
    if not state.is_main_process:
        return
    check_answered(reranked, [query for query, documents in pool.items() if documents], settings.run)
    name = model.name
    before = f"run {Path(settings.run).name}"
    split = with_judgements(collection.split(settings.split), collection.corpus, [pool])
    measures = collection.measures or MEASURES
    runs = {before: pool, name: reranked}
    if settings.fuse:
        fused = runs[f"fused ({settings.fuse})"] = fuse([pool, reranked])
        write_run(output / "fused.run", fused, tag="fused")
    values = {part: on_split(of, split, measures) for part, of in runs.items()}
    title = f"Reranked: the first {settings.depth} documents per query"
    table = result_table(title, values, baseline=before, primary=measures[:1])
    write_run(output / "reranked.run", reranked, tag=name)
    write_text(output / "table.md", markdown_table(table))
    write_text(output / "table.csv", csv_table(table))
    write_per_query(output / "per_query.csv", {"rerank": values})
    write_json(output / "config.json", asdict(settings))
    console.print(rich_table(table))
    console.print(f"Reranked run: {output / 'reranked.run'}")


def rescored(
    model: Model,
    pool: Run,
    settings: Settings,
    collection: Collection,
    state: PartialState,
    console: Terminal,
) -> Run:
    """Rescore the pool with the model, using all processes."""
    queries = collection.split(settings.split).queries
    pieces = Pieces(collection.corpus, settings.passages)
    corpus = pieces.corpus
    main = state.is_main_process
    retriever: Retriever
    with ExitStack() as stack:
        if settings.index:
            paradigm = as_paradigm(model, settings.checkpoint)
            retriever = open_encoded(settings.index, paradigm, collection, settings.passages)
        else:
            part = corpus.only(
                piece for documents in pool.values() for d in documents for piece in pieces.of(d)
            )
            cut = model.count_cut(part)
            if cut and cut.cut:
                console.print(cut.summary)
            folder = None
            if state.num_processes > 1:  # processes encode together, and share a folder
                temporary = stack.enter_context(tempfile.TemporaryDirectory())
                [folder] = broadcast_object_list([f"{temporary}/index"])
                check_shared(Path(folder).parent, state)
            retriever = retriever_of(model, part, folder, progress=main, launch=state)
        passages = settings.passages > 0  # whose scores decide how far a process searches
        documents = Passages(AllProcesses(retriever, state, passages), pieces, settings.best_passages)
        reranked = documents.rerank(queries, pool, progress=main)
        state.wait_for_everyone()  # all processes must have read the folder before it is deleted
    return reranked


def candidates_of(run: Run, collection: Collection, settings: Settings, console: Terminal) -> Run:
    """Return first documents by query of the split. Raises ValueError if the run is of another collection."""
    split = collection.split(settings.split)
    judged = {query: scores for query, scores in run.items() if query in split.queries}
    if not judged:
        raise ValueError(f"{settings.run}: none of its {len(run)} queries is in {settings.split}")
    if len(judged) < len(run):
        console.print(f"{len(run) - len(judged):,} queries of {settings.run} are not in {settings.split}.")
    excluded = own_documents(collection.corpus, split, settings.identical_ids)
    if excluded:
        console.print(left_out(excluded))
    pool: Run = {}
    for query, scores in without_own(judged, excluded).items():
        pool[query] = best_first(scores, settings.depth)
        for document in pool[query]:
            try:
                collection.corpus.position(document)
            except KeyError as error:
                raise ValueError(f"{settings.run}, query {query!r}: {error.args[0]}") from error
    return pool
