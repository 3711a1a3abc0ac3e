"""Make a comparison's tables, report and remarks from the runs in the results folder.

settings: settings of compare.py.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console
from studies.alignment_view import align_query, chosen_queries
from studies.learning import choices, learning, learning_picture
from studies.model_runs import training_cost
from studies.pages import STUDY, Section, study, write_sections
from studies.system_runs import read_stage
from studies.systems import CUT, STAGES, ComparisonData, finished
from studies.trainings import Training, training_runs, training_settings

from paradigms import GENERATIVE, evaluate
from paradigms.data import read_run
from paradigms.data.identical import left_out
from paradigms.data.within import learned_share
from paradigms.encoder.sources import original
from paradigms.evaluate import MEASURES, Interval, PerQuery
from paradigms.evaluate.gate import measure_gate
from paradigms.evaluate.table import ResultTable
from paradigms.io.checks import read_json
from paradigms.io.files import write_json, write_text
from paradigms.io.progress import progress_bar
from paradigms.loading import is_reranker
from paradigms.retrieve import Indexed, Retriever
from paradigms.retrieve.wrappers import Wrapper
from paradigms.view.report import Picture, Report, cost_picture, write_pictures, write_report

COLUMNS = {"retrieve": "whole corpus", "rerank": "reranking"}  # names of stages in the overview
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
    # Answers judge the documents of all runs.
    of_test = [run for stage in STAGES for run in runs[stage].values()]
    test = evaluate.with_judgements(data.test, corpus, of_test)
    splits = dict.fromkeys(STAGES, test)
    for name, split in data.others.items():
        splits[name] = evaluate.with_judgements(split, corpus, list(runs[name].values()))
    measures = data.collection.measures or MEASURES
    curve = "Success" if test.answers else "Recall"
    undone = {
        trial.system for run, trial in trainings.items() if training_cost(folder / run).get("step") == 0
    }
    share = learned_share(data.train, data.test)
    labels = {name: label(name, name in undone, share, settings) for name in settings.chosen}
    with progress_bar() as bar:
        by_system = {
            stage: {
                name: evaluate.on_split(run, splits[stage], measures)
                for name, run in bar.track(of_stage.items(), description=f"measure {stage}")
            }
            for stage, of_stage in runs.items()
        }
        tables = {
            stage: stage_table(stage, values, trainings, labels, systems, data)
            for stage, values in bar.track(by_system.items(), description="test differences")
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
    evaluate.write_per_query(folder / "per_query.csv", by_system)
    learned = learning(settings, where["processes"])
    equal_orders = (
        f"Rerank: for {evaluate.undecided(candidates, test.judgements)} of {len(candidates):,} queries every "
        "order of the candidates is as good, since none or all of them are relevant."
    )
    return Report(
        title=f"Retrieval paradigms on {data.collection.name}",
        summary=summary(data, where, seconds, resumed),
        tables=list(tables.values()),
        curve=curve,
        curves=curves,
        costs=[{"system": name} | costs_of(folder / name) for name in systems],
        settings=asdict(settings),
        environment=where,
        notes=[*notes(data, undone, share), equal_orders, *gates(retrievers)],
        alignments=alignments,
        pictures=[
            costs_picture(tables, labels, systems, folder, measures[0]),
            *learning_picture(learned),
            *choices(learned, tables["retrieve"], labels, settings),
        ],
    )


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
    seeds: dict[bool, dict[str, list[PerQuery]]] = {False: {}, True: {}}
    for system in systems:
        for run, training in trainings.items():
            if training.system == system:
                seeds[training.untrained].setdefault(labels.get(system, system), []).append(values[run])
    trained = {name: evaluate.over_seeds(runs) for name, runs in seeds[False].items()}
    before = {name: evaluate.over_seeds(runs) for name, runs in seeds[True].items()}
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
    searches = [table for stage, table in tables.items() if stage != "rerank"]
    quality: dict[str, dict[str, Interval]] = {table.title: {} for table in searches}
    for table, name in product(searches, systems):
        cell = table.rows[labels.get(name, name)][measure]
        quality[table.title][name] = Interval(cell.mean, cell.low, cell.high)
    paid = {name: costs_of(folder / name) for name in systems}
    size = {name: cost["bytes/document"] for name, cost in paid.items()}
    took = {name: milliseconds(cost) for name, cost in paid.items()}
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


def costs_of(folder: Path) -> dict[str, Any]:
    """Return a system's costs, without the row counts that `read_stage` checks."""
    return {name: cost for name, cost in read_json(folder / "costs.json").items() if name != "rows"}


def milliseconds(cost: Mapping[str, Any]) -> float:
    """Return a query's milliseconds, to encode it and to search."""
    return (cost["encode ms/query"] or 0) + (cost["search ms/query"] or 0)


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
        row |= {"bytes/document": cost["bytes/document"], "ms/query": milliseconds(cost)}
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
    text = " ".join(filter(None, (of_seeds(settings), unread(report.costs), effects(tables))))
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
        run.log({picture.stem: wandb.Image(str(picture)) for picture in pictures})


def summary(data: ComparisonData, where: Mapping[str, Any], seconds: float, resumed: bool) -> str:
    settings = data.settings
    splits = {settings.split: data.test, **data.others}
    asked_of = " and ".join(f"{len(split.queries):,} {name}" for name, split in splits.items())
    loaded = "".join(
        f", {name} loaded from {system.checkpoint}"
        for name, system in settings.chosen.items()
        if system.checkpoint
    )
    seeds = f"seed{'s' * (len(settings.seeds) > 1)} {', '.join(map(str, settings.seeds))}"
    return (
        f"{asked_of} queries over {len(data.collection.corpus):,} documents. By default, encoders are "
        f"trained from {original(settings.backbone)} for {settings.steps} steps of "
        f"{settings.batch_size * where['processes']} queries, with {seeds}{loaded}. "
        f"{'After an interruption, the rest of the job' if resumed else 'The job'} took {seconds:.0f} s."
    )


def label(name: str, undone: bool, share: float, settings: Any) -> str:
    """Return the system's name for tables, followed, where needed, by a remark on its row."""
    system = settings.chosen[name]
    if system.checkpoint and is_reranker(Path(settings.output, name, "checkpoint")):
        return f"{name} (of BM25's top {settings.depth})"
    if system.paradigm in GENERATIVE and share < 0.5:
        return f"{name} (unseen documents)"
    plain = not (system.checkpoint or system.fuse or training_settings(system, settings, 0))
    return f"{name} (untrained)" if undone or plain else name


def notes(data: ComparisonData, undone: set[str], share: float) -> Iterator[str]:
    """Write the notes below the tables.

    undone: systems whose encoder was better on dev queries before training. share: share of test queries
    whose relevant documents have training queries.
    """
    settings = data.settings
    yield f"Collection fingerprint {data.collection.fingerprint[:16]}."
    yield of_seeds(settings)
    if data.cut is not None:
        yield f"{CUT}: BM25 on {data.read}."
    for name in sorted(undone):
        yield (
            f"{name} is the untrained encoder: on dev queries it was better than after training, by more "
            "than a standard error."
        )
    trainings = {name: training_settings(system, settings, 0) for name, system in settings.chosen.items()}
    trained = [(name, settings.chosen[name], training) for name, training in trainings.items() if training]
    layers = [
        f"{name} {training.trained_layers or 'all'}"
        for name, system, training in trained
        if system.paradigm not in GENERATIVE
    ]
    if layers:
        yield f"Upper layers of the encoder that were trained: {', '.join(layers)}."
    for name, system, training in trained:
        if system.paradigm in GENERATIVE:
            yield (
                f"{name}: a decoder over {system.backbone or settings.backbone}, {training.steps} steps of "
                f"{training.batch_size} pairs: training queries and passages of every document with its "
                f"identifier. It learns the corpus by heart, and {share:.0%} of the test queries ask for "
                "documents that have training queries. Papers divide queries within documents, where all do: "
                "the row says how it does on unseen documents, not what the paradigm can do."
            )
    for name in [name for name, system in settings.chosen.items() if system.fuse]:
        fusion = read_json(Path(settings.output, name, "fusion.json"))
        weights = ", ".join(f"{part} {weight:g}" for part, weight in fusion["weights"].items())
        method = f"fusion ({fusion['fusion']}) of the runs of one seed"
        yield f"{name}: {method} with the weights {weights}{fusion['chosen']}."
    if data.document_queries:
        yield left_out(data.document_queries)


def of_seeds(settings: Any) -> str:
    if len(settings.seeds) == 1:
        return "One training seed: intervals and tests cover the choice of queries, not that of the seed."
    return (
        f"Values are means over {len(settings.seeds)} training seeds; intervals cover the choice of queries "
        "and of seeds, tests that of queries. Curves, alignments and costs are the first seed's."
    )


def unread(costs: Sequence[Mapping[str, Any]]) -> str:
    """State the share of the documents' tokens that encoders do not read, by system if it differs."""
    systems: dict[str, list[str]] = {}
    for cost in costs:
        if share := cost.get("% of tokens cut"):
            systems.setdefault(f"{share:.1f}%", []).append(cost["system"])
    if len(systems) == 1:
        return f"Encoders cut documents, and do not read {next(iter(systems))} of all tokens."
    parts = [f"{', '.join(names)} {share}" for share, names in systems.items()]
    return f"Shares of the documents' tokens that are cut and not read: {'; '.join(parts)}." if parts else ""


def effects(tables: Mapping[str, ResultTable]) -> str:
    """State how training changes the mean of all trained systems, by stage."""
    changed = {COLUMNS.get(stage, stage): table for stage, table in tables.items() if table.effect}
    if not changed:
        return ""
    first = next(iter(changed.values()))
    stages = "; ".join(f"{stage} {table.effect}" for stage, table in changed.items())
    return f"Training changes the mean {first.measures[0]} of all trained systems: {stages}."


def gates(retrievers: Mapping[str, Retriever]) -> Iterator[str]:
    """Describe how active the salience gate is, for each system with salience."""
    for name, retriever in retrievers.items():
        indexed = retriever.retriever if isinstance(retriever, Wrapper) else retriever
        if isinstance(indexed, Indexed) and "salience" in indexed.index.store.columns:
            store = indexed.index.store
            yield f"{name}: {measure_gate(store.columns['salience'], store.offsets)}."
