"""A saved paradigm reranks a TREC run; its measures beside the run's own, with intervals and significance.

The output folder gets reranked.run, table.md, table.csv, per_query.csv and config.json. Several processes or
GPUs share the encoding: accelerate launch --config_file experiments/configs/gpus.yaml experiments/rerank.py
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from paradigms.io.settings import command_line, folder_name


@dataclass
class Settings:
    """Which paradigm reranks which run."""

    checkpoint: str
    """folder of a saved paradigm, such as experiments/train.py writes"""
    run: str
    """TREC run to rerank"""
    collection: str = "pydocs"
    """pydocs (built in), hf:OWNER/NAME, irds:IDENTIFIER, or a folder in the layout of BEIR, MIRACL, LoTTE or
    DPR's and EntityQuestions' question answering"""
    documents: int = 0
    """size of a fixed subset, of pydocs alone; 0: all documents"""
    split: str = "test"
    depth: int = 100
    """first documents of each query that are reranked; the rest is left out, on both sides"""
    index: str = ""
    """folder in which experiments/encode.py encoded the collection with the checkpoint; empty: the candidates
    are encoded"""
    output: str = ""
    """results folder; empty: results/rerank-PARADIGM-COLLECTION"""
    precision: str = "no"
    """of encoding: no, bf16, or fp16 on a GPU"""
    seed: int = 0
    """of the intervals and tests"""

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise SystemExit(f"depth must be at least 1, got {self.depth}")
        if self.precision not in ("no", "bf16", "fp16"):
            raise SystemExit(f"precision must be no, bf16 or fp16, got {self.precision!r}")


if __name__ == "__main__":  # before the imports that take seconds
    given = command_line(Settings, __doc__ or "")

from accelerate import PartialState
from accelerate.utils import broadcast_object_list, parse_flag_from_env
from encode import open_encoded

from paradigms import Paradigm, load
from paradigms.data import Collection, Run, read_run, write_run
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
from paradigms.evaluate.reranking import rerank as rerank_texts
from paradigms.index import ExactIndex
from paradigms.io.files import write_json, write_text
from paradigms.io.terminal import Terminal, shown
from paradigms.train.job import open_collection
from paradigms.train.tracking import PATIENCE


def main(settings: Settings) -> None:
    state = PartialState(cpu=parse_flag_from_env("ACCELERATE_USE_CPU"), timeout=PATIENCE)
    console = Terminal(quiet=not state.is_main_process)
    try:
        rerank(settings, state, console)
    except (ValueError, OSError, KeyError) as error:
        raise SystemExit(shown(error)) from error
    state.destroy_process_group()


def rerank(settings: Settings, state: PartialState, console: Terminal) -> None:
    run = read_run(settings.run)
    paradigm = load(settings.checkpoint).to(state.device)
    collection = open_collection(settings.collection, settings.documents or None, console)
    split = collection.split(settings.split)
    pool = candidates_of(run, collection, settings, console)
    if isinstance(paradigm, Paradigm):
        reranked = rerank_encoded(paradigm, collection, pool, settings, state)
    if not state.is_main_process:
        return
    if not isinstance(paradigm, Paradigm):
        reranked = rerank_texts(
            paradigm, split.queries, collection.corpus, pool, precision=settings.precision, progress=True
        )

    name, before = paradigm.name, f"run {Path(settings.run).name}"
    output = Path(settings.output or f"results/rerank-{name}-{folder_name(settings.collection)}")
    split = with_judgements(split, collection.corpus, [pool])
    measures = collection.measures or MEASURES
    measured = {of: on_split(run, split, measures) for of, run in ((before, pool), (name, reranked))}
    title = f"Reranked: the first {settings.depth} documents per query"
    table = result_table(title, measured, baseline=before, primary=measures[:1], seed=settings.seed)
    write_run(output / "reranked.run", reranked, tag=name)
    write_text(output / "table.md", markdown_table(table))
    write_text(output / "table.csv", csv_table(table))
    write_per_query(output / "per_query.csv", {"rerank": measured})
    write_json(output / "config.json", asdict(settings))
    console.print(rich_table(table))
    console.print(f"Reranked run: {output / 'reranked.run'}")


def rerank_encoded(
    paradigm: Paradigm, collection: Collection, pool: Run, settings: Settings, state: PartialState
) -> Run:
    """The pool with scores of a paradigm that encodes documents, on the main process; none on the others."""
    corpus, queries = collection.corpus, collection.split(settings.split).queries
    if settings.index:
        index = open_encoded(settings.index, paradigm, collection)
        return index.rerank(paradigm, queries, pool, progress=True) if state.is_main_process else {}
    ids = sorted({d for scores in pool.values() for d in scores}, key=corpus.position)
    with tempfile.TemporaryDirectory() as folder:
        [shared] = broadcast_object_list([folder])
        index = ExactIndex.build(
            paradigm,
            ids,
            [corpus[corpus.position(d)] for d in ids],
            f"{shared}/index",
            precision=settings.precision,
            progress=state.is_main_process,
            launch=state,
        )
        reranked = index.rerank(paradigm, queries, pool, progress=True) if state.is_main_process else {}
        state.wait_for_everyone()  # whoever reads the folder is done when it goes
    return reranked


def candidates_of(run: Run, collection: Collection, settings: Settings, console: Terminal) -> Run:
    """The run's first documents for the split's queries. ValueError where it is of another collection."""
    queries = collection.split(settings.split).queries
    known = {query: scores for query, scores in run.items() if query in queries}
    if not known:
        raise ValueError(f"{settings.run}: none of its {len(run)} queries is in {settings.split}")
    if len(known) < len(run):
        console.print(f"{len(run) - len(known):,} queries of {settings.run} are not in {settings.split}.")
    pool: Run = {}
    for query, scores in known.items():
        best = sorted(scores, key=lambda d: (-scores[d], d))[: settings.depth]
        for document in best:
            try:
                collection.corpus.position(document)
            except KeyError as error:
                raise ValueError(f"{settings.run}, query {query!r}: {error.args[0]}") from error
        pool[query] = {document: scores[document] for document in best}
    return pool


if __name__ == "__main__":
    main(Settings(**given))
