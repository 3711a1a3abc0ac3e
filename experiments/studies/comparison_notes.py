"""What a comparison's report says of its data, systems and trainings, in sentences.

settings: settings of compare.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from studies.systems import CUT, ComparisonData
from studies.trainings import training_settings

from paradigms import GENERATIVE, evaluate
from paradigms.data import Run, Split
from paradigms.data.identical import left_out
from paradigms.encoder.backbone import original
from paradigms.evaluate.gate import measure_gate
from paradigms.evaluate.table import ResultTable
from paradigms.io.checks import read_json
from paradigms.loading import is_reranker
from paradigms.retrieve import Indexed, Retriever
from paradigms.retrieve.wrappers import Wrapper

COLUMNS = {"retrieve": "whole corpus", "rerank": "reranking"}  # names of stages in the overview


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


def rerankable(candidates: Run, test: Split) -> str:
    count = evaluate.undecided(candidates, test.judgements)
    return (
        f"Rerank: for {count} of {len(candidates):,} queries every order of the candidates is as good, since "
        "none or all of them are relevant."
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
    if data.own:
        yield left_out(data.own)


def of_seeds(settings: Any) -> str:
    if len(settings.seeds) == 1:
        return "One training seed: intervals and tests cover the choice of queries, not that of the seed."
    return (
        f"Values are means over {len(settings.seeds)} training seeds; intervals cover the choice of queries "
        "and of seeds, tests that of queries. Curves, alignments and costs are the first seed's."
    )


def unread(costs: Sequence[Mapping[str, Any]]) -> str:
    """State the share of the documents' tokens that encoders do not read, by system if it differs."""
    shares = {cost["system"]: cost.get("% of tokens cut") for cost in costs}
    systems: dict[str, list[str]] = {}
    for name, share in shares.items():
        if share:
            systems.setdefault(f"{share:.1f}%", []).append(name)
    parts = [f"{', '.join(names)} {share}" for share, names in systems.items()]
    if len(parts) == 1:
        return f"Encoders cut documents, and do not read {next(iter(systems))} of all tokens."
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
