"""Make a comparison's tables and report from the runs in the results folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from studies.alignment_view import align_query, chosen_queries
from studies.comparison_notes import (
    COLUMNS,
    effects,
    gates,
    label,
    notes,
    of_seeds,
    rerankable,
    summary,
    unread,
)
from studies.learning import choices, learning, learning_picture
from studies.model_runs import training_cost
from studies.pages import STUDY, Section, study, write_sections
from studies.system_runs import read_stage
from studies.systems import CUT, STAGES, ComparisonData, finished
from studies.trainings import Training, training_runs

from paradigms import evaluate
from paradigms.data import Run, Split, read_run
from paradigms.data.within import learned_share
from paradigms.evaluate import MEASURES, Interval, PerQuery
from paradigms.evaluate.table import Cell, ResultTable
from paradigms.io.checks import read_json
from paradigms.io.files import write_json, write_text
from paradigms.io.progress import progress_bar
from paradigms.train.script import summarise
from paradigms.view.report import Picture, Report, cost_picture, write_pictures, write_report

ALIGNED = 6  # test queries in the report's alignment view


def make_report(data: ComparisonData, where: dict[str, Any], seconds: float, resumed: bool) -> Report:
    """Build the report on a comparison. where: a description of the machine."""
    settings = data.settings
    lexical = ["bm25"] if data.cut is None else ["bm25", CUT]
    folder = Path(settings.output)
    systems = [*lexical, *settings.chosen]
    corpus = data.collection.corpus
    trainings = {name: Training(name, 0) for name in lexical} | training_runs(settings)
    runs = {
        stage: {run: read_stage(folder, run, stage) for run in trainings} for stage in (*STAGES, *data.others)
    }
    splits = judged_splits(data, runs)
    test = splits["retrieve"]
    measures = data.collection.measures or MEASURES
    curve = "Success" if test.answers else "Recall"
    undone = {
        trial.system for run, trial in trainings.items() if training_cost(folder / run).get("step") == 0
    }
    share = learned_share(data.train, data.test)
    labels = {name: label(name, name in undone, share, settings) for name in settings.chosen}
    with progress_bar() as bar:
        measured = {
            stage: {
                name: evaluate.on_split(run, splits[stage], measures)
                for name, run in bar.track(of_stage.items(), description=f"measure {stage}")
            }
            for stage, of_stage in runs.items()
        }
        tables = {
            stage: stage_table(stage, values, trainings, labels, systems, data)
            for stage, values in bar.track(measured.items(), description="test differences")
        }
        curves = {
            name: evaluate.cutoff_curve(runs["retrieve"][name], test, curve)
            for name in bar.track(systems, description="recall curves")
        }
        unfused = ["bm25", *(name for name, system in settings.chosen.items() if not system.fuse)]
        retrievers = {name: finished(name, data) for name in unfused}
        candidates = read_run(folder / "runs" / "candidates.run")
        alignments = [
            example
            for query in bar.track(chosen_queries(test, ALIGNED), description="alignments")
            for example in align_query(query, test, corpus, candidates.get(query, {}), retrievers)
        ]
    evaluate.write_per_query(folder / "per_query.csv", measured)
    learned = learning(settings, where["processes"])
    return Report(
        title=f"Retrieval paradigms on {data.collection.name}",
        summary=summary(data, where, seconds, resumed),
        tables=list(tables.values()),
        curve=curve,
        curves=curves,
        costs=[{"system": name} | costs_of(folder / name) for name in systems],
        settings=asdict(settings),
        environment=where,
        notes=[*notes(data, undone, share), rerankable(candidates, test), *gates(retrievers)],
        alignments=alignments,
        pictures=[
            costs_picture(tables, labels, systems, folder, measures[0]),
            *learning_picture(learned),
            *choices(learned, tables["retrieve"], labels, settings),
        ],
    )


def judged_splits(data: ComparisonData, runs: Mapping[str, Mapping[str, Run]]) -> dict[str, Split]:
    """Return the queries of each stage; answers judge the documents of all runs."""
    corpus = data.collection.corpus
    test = evaluate.with_judgements(
        data.test, corpus, [run for stage in STAGES for run in runs[stage].values()]
    )
    return dict.fromkeys(STAGES, test) | {
        name: evaluate.with_judgements(split, corpus, list(runs[name].values()))
        for name, split in data.others.items()
    }


def stage_table(
    stage: str,
    values: Mapping[str, PerQuery],
    trainings: Mapping[str, Training],
    labels: Mapping[str, str],
    systems: Sequence[str],
    data: ComparisonData,
) -> ResultTable:
    """Make a stage's table, with each system's mean over seeds, beside its untrained encoder."""
    settings = data.settings
    titles = {
        "retrieve": "End to end: the whole corpus searched",
        "rerank": f"Rerank: BM25's top {settings.depth}"
        + (" and the relevant documents" if settings.with_relevant else ""),
    }
    trained, before = (
        {
            labels.get(system, system): evaluate.over_seeds([values[run] for run in of_system])
            for system in systems
            if (of_system := [run for run, t in trainings.items() if t[::2] == (system, untrained)])
        }
        for untrained in (False, True)
    )
    return evaluate.result_table(
        titles.get(stage, f"End to end, queries of the split {stage}"),
        trained,
        baseline=labels.get(settings.baseline, settings.baseline),
        primary=(data.collection.measures or MEASURES)[:1],
        untrained=before,
    )


def costs_picture(
    tables: Mapping[str, ResultTable],
    labels: Mapping[str, str],
    systems: Sequence[str],
    folder: Path,
    measure: str,
) -> Picture:
    """Plot quality against bytes and against milliseconds, for searches of the whole corpus."""
    quality = {
        table.title: {name: interval(table.rows[labels.get(name, name)][measure]) for name in systems}
        for stage, table in tables.items()
        if stage != "rerank"
    }
    paid = {name: costs_of(folder / name) for name in systems}
    size = {name: cost["bytes/document"] for name, cost in paid.items()}
    took = {
        name: (cost["encode ms/query"] or 0) + (cost["search ms/query"] or 0) for name, cost in paid.items()
    }
    costs = {"bytes/document": size, "ms/query, encoding and search": took}
    text = (
        f"{measure} with its 95% interval against what a system costs. A grey line joins the systems that "
        "are better than all cheaper ones. Milliseconds are medians of single queries on this machine."
    )
    rows = [
        {"system": name}
        | {cost: values[name] for cost, values in costs.items()}
        | {kind: f"{values[name].mean:.3f}" for kind, values in quality.items()}
        for name in systems
    ]
    return Picture("cost", "What quality costs", text, cost_picture(quality, costs, measure), rows)


def interval(cell: Cell) -> Interval:
    return Interval(cell.mean, cell.low, cell.high)


def costs_of(folder: Path) -> dict[str, Any]:
    """Return a system's costs, without the row counts that `read_stage` checks."""
    return {name: cost for name, cost in read_json(folder / "costs.json").items() if name != "rows"}


def overview(tables: Mapping[str, ResultTable], costs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Make a row for each system, with the first measure of each stage, recall, and costs.

    tables: stage → table.
    """
    deep = [name for name in tables["retrieve"].measures if name.endswith("@100")][:1]
    rows = []
    for name, cost in zip(tables["retrieve"].rows, costs, strict=True):
        row: dict[str, Any] = {"system": name}
        for stage, table in tables.items():
            measure = table.measures[0]
            row[f"{measure}, {COLUMNS.get(stage, stage)}"] = str(table.rows[name][measure])
            row |= {m: f"{table.rows[name][m].mean:.3f}" for m in deep if stage == "retrieve"}
        milliseconds = (cost["encode ms/query"] or 0) + (cost["search ms/query"] or 0)
        row |= {"bytes/document": cost["bytes/document"], "ms/query": milliseconds}
        rows.append(row | {"training s": cost.get("train s")})
    return rows


def show(report: Report, data: ComparisonData, console: Console) -> None:
    """Print each stage's table, write tables, figures and report to disk, and log tables and figures to W&B.

    study.json contains the values that `fill_pages.py` inserts into the pages: `overview` and the data behind
    the figures.
    """
    settings = data.settings
    accelerator = data.accelerator
    folder = Path(settings.output)
    for table in report.tables:
        console.print(evaluate.rich_table(table))
        if table.pairs:
            console.print(evaluate.rich_matrix(table))
    write_text(
        folder / "table.md", "\n\n".join(evaluate.markdown_table(table) for table in report.tables) + "\n"
    )
    tables = dict(zip((*STAGES, *data.others), report.tables, strict=True))
    for stage, table in tables.items():
        write_text(folder / f"{stage}.csv", evaluate.csv_table(table))
    write_json(folder / "environment.json", report.environment)
    write_report(folder / "report.html", report)
    console.print(f"{report.summary}\nReport: {folder / 'report.html'}")
    pictures = write_pictures(report, folder / "pictures")
    text = f"{of_seeds(settings)} {unread(report.costs)} {effects(tables)}".strip()
    sections = {"overview": Section("Overview", text, overview(tables, report.costs))}
    sections |= {p.name: Section(p.heading, p.text, p.rows, p.figure) for p in report.pictures}
    write_sections(folder, sections)
    write_json(folder / STUDY, study(settings, report.title, report.summary, sections, folder / STUDY))
    if accelerator.trackers:
        import wandb

        run = accelerator.get_tracker("wandb").tracker
        for stage, table in tables.items():
            rows = [[name, *(cell.mean for cell in row.values())] for name, row in table.rows.items()]
            run.log({f"table/{stage}": wandb.Table(columns=["system", *table.measures], data=rows)})
            for name, measured in table.rows.items():
                cell = measured[table.measures[0]]
                values = {"": cell.mean, ", low": cell.low, ", high": cell.high}
                prefix = f"{stage}/{name}, {table.measures[0]}"
                summarise(accelerator, {f"{prefix}{part}": value for part, value in values.items()})
        run.log({picture.stem: wandb.Image(str(picture)) for picture in pictures})
