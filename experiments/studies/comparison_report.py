"""The tables and the report of a comparison, made from the runs in its results folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from rich.console import Console
from studies.alignment_view import align_query, chosen_queries
from studies.comparison_data import Data, training_runs, training_settings
from studies.systems import reranks

from paradigms import GENERATIVE
from paradigms.data import read_run
from paradigms.data.identical import told
from paradigms.data.within import learned_share
from paradigms.evaluate import (
    MEASURES,
    Report,
    ResultTable,
    csv_table,
    cutoff_curve,
    markdown_table,
    on_split,
    over_seeds,
    result_table,
    rich_matrix,
    rich_table,
    with_judgements,
    write_per_query,
    write_pictures,
    write_report,
)
from paradigms.io.files import write_json, write_text
from paradigms.io.progress import progress_bar
from paradigms.train.loop import kept_step

STAGES = ("retrieve", "rerank")  # of the queries of `split`
ALIGNED = 6  # test queries in the report's alignment view


def make_report(
    data: Data, settings: Any, folder: Path, where: dict[str, Any], seconds: float, resumed: bool
) -> Report:
    systems, corpus = ["bm25", *settings.chosen], data.collection.corpus
    trainings = {"bm25": ("bm25", 0)} | training_runs(settings)
    runs = {
        stage: {run: read_run(folder / "runs" / f"{run}.{stage}.run") for run in trainings}
        for stage in (*STAGES, *data.others)
    }
    test = with_judgements(data.test, corpus, [run for stage in STAGES for run in runs[stage].values()])
    asked = dict.fromkeys(STAGES, test) | {
        name: with_judgements(split, corpus, list(runs[name].values())) for name, split in data.others.items()
    }
    measures = data.collection.measures or MEASURES
    curve = "Success" if test.answers else "Recall"
    titles = {
        "retrieve": "End to end: the whole corpus searched",
        "rerank": f"Rerank: BM25's top {settings.depth}"
        + (" and the relevant documents" if any(data.test.judgements.values()) else ""),
    } | {name: f"End to end, queries of the split {name}" for name in data.others}
    undone = {name for run, (name, _) in trainings.items() if kept_step(folder / run / "training") == 0}
    plain = {
        name
        for name, system in settings.chosen.items()
        if not (system.checkpoint or system.fuse or training_settings(system, settings))
    }
    untrained = {name: f"{name} (untrained)" for name in undone | plain}
    share = learned_share(data.train, data.test)
    memorised = {
        name: f"{name} (unseen documents)"
        for name, system in settings.chosen.items()
        if system.paradigm in GENERATIVE and share < 0.5
    }
    second = {
        name: f"{name} (of BM25's top {settings.depth})"
        for name, system in settings.chosen.items()
        if system.checkpoint and reranks(folder / name / "checkpoint")
    }
    labels = untrained | memorised | second
    encoded = {n: Path(of.index or folder / n) for n, of in settings.chosen.items() if not of.fuse}
    candidates = read_run(folder / "runs" / "candidates.run")
    with progress_bar() as bar:
        measured = {
            stage: {
                run: on_split(found, asked[stage], measures)
                for run, found in bar.track(of_stage.items(), description=f"measure {stage}")
            }
            for stage, of_stage in runs.items()
        }
        means = {
            stage: {
                system: over_seeds([found[run] for run, (name, _) in trainings.items() if name == system])
                for system in systems
            }
            for stage, found in measured.items()
        }
        tables = [
            result_table(
                titles[stage],
                {labels.get(name, name): found for name, found in of_stage.items()},
                baseline=labels.get(settings.baseline, settings.baseline),
                primary=measures[:1],
                seed=settings.seed,
            )
            for stage, of_stage in bar.track(means.items(), description="test differences")
        ]
        curves = {
            name: cutoff_curve(runs["retrieve"][name], test, curve)
            for name in bar.track(systems, description="recall curves")
        }
        alignments = [
            example
            for query in bar.track(chosen_queries(test, ALIGNED), description="alignments")
            for example in align_query(
                query, corpus, test, data.bm25, candidates[query], encoded, folder, data.pieces
            )
        ]
    write_per_query(folder / "per_query.csv", measured)
    splits = {settings.split: test, **data.others}
    asked_of = " and ".join(f"{len(split.queries):,} {name}" for name, split in splits.items())
    costs = [{"system": name} | json.loads((folder / name / "costs.json").read_text()) for name in systems]
    loaded = "".join(
        f", {name} loaded from {system.checkpoint}"
        for name, system in settings.chosen.items()
        if system.checkpoint
    )
    last = settings.seed + settings.seeds - 1
    seeds = f"seed {last}" if settings.seeds == 1 else f"seeds {settings.seed} to {last}"
    return Report(
        title=f"Retrieval paradigms on {data.collection.name}",
        summary=(
            f"{asked_of} queries over {len(corpus):,} documents; encoders trained for {settings.steps} "
            f"steps of {settings.batch_size * where['processes']} queries from {settings.backbone}, where "
            f"their system says nothing else, with {seeds}{loaded}. "
            f"{'Gone on with after an interruption, this part' if resumed else 'All of it'} "
            f"took {seconds:.0f} s."
        ),
        tables=tables,
        curve=curve,
        curves=curves,
        costs=costs,
        settings=asdict(settings),
        environment=where,
        notes=[
            f"Collection fingerprint {data.collection.fingerprint[:16]}.",
            "One training seed: intervals and tests cover the choice of queries, not that of the seed."
            if settings.seeds == 1
            else f"Values are means over {settings.seeds} training seeds; intervals cover the choice of "
            "queries and of seeds, tests that of queries. Curves, alignments and costs are the first seed's.",
            *(
                f"{name} is the untrained encoder: on dev queries it was better than after training, by more "
                "than a standard error."
                for name in sorted(undone)
            ),
            *layers_note(settings),
            *generative_note(settings, share),
            *(fused_note(name, folder) for name, system in settings.chosen.items() if system.fuse),
            *filter(None, [told(data.own)]),
        ],
        alignments=alignments,
    )


def fused_note(name: str, folder: Path) -> str:
    """What a fused row is made of."""
    told = json.loads((folder / name / "fusion.json").read_text())
    weights = ", ".join(f"{of} {weight:g}" for of, weight in told["weights"].items())
    how = f"fusion ({told['fusion']}) of the runs of one seed"
    return f"{name}: {how} with the weights {weights}{told['chosen']}."


def layers_note(settings: Any) -> list[str]:
    """How many upper layers each encoder trained."""
    trainings = {name: training_settings(of, settings) for name, of in settings.chosen.items()}
    layers = {
        name: training.trained_layers
        for name, training in trainings.items()
        if training and settings.chosen[name].paradigm not in GENERATIVE
    }
    told = ", ".join(f"{name} {number or 'all'}" for name, number in layers.items())
    return [f"Upper layers of the encoder that were trained: {told}."] if layers else []


def generative_note(settings: Any, share: float) -> list[str]:
    """What a generative row is to be read with."""
    notes = []
    for name, system in settings.chosen.items():
        training = training_settings(system, settings)
        if training and system.paradigm in GENERATIVE:
            notes.append(
                f"{name}: a decoder over {system.backbone or settings.backbone}, {training.steps} steps of "
                f"{training.batch_size} pairs: training queries and passages of every document with its "
                f"identifier. It learns the corpus by heart, and {share:.0%} of the test queries ask for "
                "documents that have training queries. Papers divide queries within documents, where all do: "
                "the row says how it does on unseen documents, not what the paradigm can do."
            )
    return notes


def show(
    report: Report, stages: Sequence[str], folder: Path, accelerator: Accelerator, console: Console
) -> None:
    """Tables, each of one of the stages, to the terminal and as files, the report, and the same to W&B."""
    for table in report.tables:
        console.print(rich_table(table))
        if table.pairs:
            console.print(rich_matrix(table))
    write_text(folder / "table.md", "\n\n".join(markdown_table(table) for table in report.tables) + "\n")
    tables = dict(zip(stages, report.tables, strict=True))
    for stage, table in tables.items():
        write_text(folder / f"{stage}.csv", csv_table(table))
    write_json(folder / "environment.json", report.environment)
    write_report(folder / "report.html", report)
    console.print(f"{report.summary}\nReport: {folder / 'report.html'}")
    pictures = write_pictures(report, folder / "pictures")
    if accelerator.trackers:
        log_to_wandb(tables, pictures, accelerator)


def log_to_wandb(tables: dict[str, ResultTable], pictures: list[Path], accelerator: Accelerator) -> None:
    import wandb

    run = accelerator.get_tracker("wandb").tracker
    for stage, table in tables.items():
        rows = [[row.system, *(row.cells[m].mean for m in table.measures)] for row in table.rows]
        run.log({f"table/{stage}": wandb.Table(columns=["system", *table.measures], data=rows)})
    run.log({picture.stem: wandb.Image(str(picture)) for picture in pictures})
