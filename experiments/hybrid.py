"""What do vectors, words and both together retrieve, what does reranking add, and at what time of search?

Luan et al. 2021 (TACL), §7: DE-BERT and ME-BERT before and after a round of hard-negative mining, BM25, their
hybrids, and cross-attention over the first candidates of each (Tables 1 and 2, Figure 6); quality against
milliseconds of approximate search with one vector and with m (Figure 7). Dev queries choose the round of
training, BM25's terms and λ. A model that stands in the results folder is not trained again, a seed not
measured again.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from studies.hybrid_settings import Settings

from paradigms.io.settings import command_line

if __name__ == "__main__":  # before the imports that take seconds
    given = command_line(Settings, __doc__ or "")

from accelerate import Accelerator
from studies.approximate_search import time_searches
from studies.hybrid_claims import DE, DENSE, MEASURES, RR, Measured, gather, hybrid_name
from studies.hybrid_models import (
    FIRST,
    RERANKER,
    Bench,
    Settings,
    Sparse,
    model_folder,
    models,
    open_bench,
    train_all,
)
from studies.hybrid_report import describe, draw
from studies.trained_pairs import cost, publish

from paradigms import CrossAttention, Paradigm, load
from paradigms.data import Run, Split
from paradigms.evaluate import per_query
from paradigms.evaluate.hybrid import combine, tune, union
from paradigms.index import ExactIndex
from paradigms.io.files import write_json
from paradigms.train.job import begin, keep_settings
from paradigms.train.state import by_main

FOUND = 10  # documents that a timed search asks for: those that RR@10 looks at


@dataclass(frozen=True)
class Dense:
    """A trained model, the documents' vectors, and what it finds for dev and test queries."""

    model: Paradigm
    index: ExactIndex
    dev: Run
    test: Run


def main(settings: Settings) -> None:
    folder = Path(settings.output)
    accelerator, console = begin(settings)
    bench = open_bench(settings, console)
    kept = asdict(settings) | {"fingerprint": bench.collection.fingerprint}
    kept |= {"processes": accelerator.num_processes, "precision": accelerator.mixed_precision}
    by_main(lambda: keep_settings(kept, folder, free={"seeds", "output", "tracker"}), accelerator)
    files = {seed: folder / f"seed-{seed}" / "measured.json" for seed in settings.seeds}
    # Before any process can finish one, so that all agree on which are left.
    missing = [seed for seed, file in files.items() if not file.is_file()]
    accelerator.wait_for_everyone()
    for seed in missing:
        try:
            train_all(seed, bench, settings, accelerator, console)
            console.print(f"{bench.collection.name}, seed {seed}: measuring")
            by_main(partial(finish, files[seed], seed, bench, settings, accelerator), accelerator)
        except (ValueError, OSError, KeyError, FloatingPointError) as error:
            raise SystemExit(f"{bench.collection.name}, seed {seed}: {error}") from error
    if accelerator.is_main_process:
        found = gather([json.loads(file.read_text(encoding="utf-8")) for file in files.values()])
        summary = (
            f"{len(found.queries)} test queries over {len(bench.collection.corpus):,} documents; seeds "
            f"{settings.seeds}. Every model comes from {settings.backbone} and learns from "
            f"{len(bench.train.queries):,} queries: the dense ones in rounds of {settings.steps} steps of "
            f"{settings.batch_size} queries, cross-attention in {settings.rerank_steps} of "
            f"{settings.rerank_batch_size}. Intervals (95 %) resample seeds and queries."
        )
        publish(
            settings,
            "Sparse, dense, hybrid",
            summary,
            describe(found, settings.vectors),
            draw(found),
            accelerator,
        )
    accelerator.end_training()


# --- measuring --------------------------------------------------------------------------------------


def finish(file: Path, seed: int, bench: Bench, settings: Settings, accelerator: Accelerator) -> None:
    """Write what `measure` finds: the seed is measured."""
    write_json(file, measure(seed, bench, settings, accelerator))


def measure(seed: int, bench: Bench, settings: Settings, accelerator: Accelerator) -> Measured:
    """What a seed's systems do for the test queries, and what the dev queries choose among them."""
    rounds = (FIRST, *settings.rounds)
    with tempfile.TemporaryDirectory(dir=settings.output) as temporary:
        dense = {
            system: {
                round: search(
                    model_folder(name, round, seed, settings), bench, settings, temporary, accelerator
                )
                for round in rounds
            }
            for name, system in DENSE.items()
        }
        dev = {system: {r: rr(of.dev, bench.dev) for r, of in each.items()} for system, each in dense.items()}
        chosen = {system: max(rounds, key=of.__getitem__) for system, of in dev.items()}
        kept = {system: dense[system][round] for system, round in chosen.items()}
        tests = {name: sparse.test for name, sparse in bench.sparse.items()}
        tests |= {system: of.test for system, of in kept.items()}
        weights = {}
        for system, of in kept.items():
            for name, sparse in bench.sparse.items():
                hybrid = hybrid_name(system, name)
                tests[hybrid], tuned = mixed(of, sparse, bench)
                weights[hybrid] = {"round": chosen[system]} | tuned
        wins = {system: first_wins(of, bench.test) for system, of in kept.items()}
        timed = time_searches(
            {system: (of.model, of.index) for system, of in kept.items()},
            bench.test.queries,
            Path(temporary),
            kinds=settings.indexes,
            probes=settings.probes,
            lists=settings.lists,
            k=FOUND,
            repeats=settings.repeats,
        )
    reranker = load(model_folder(RERANKER, FIRST, seed, settings) / "checkpoint").to(accelerator.device)
    assert isinstance(reranker, CrossAttention)
    return {
        "seed": seed,
        "queries": per_query(tests[DE], bench.test.judgements, (RR,)).queries,
        "dev": dev | {name: rr(sparse.dev, bench.dev) for name, sparse in bench.sparse.items()},
        "weights": weights,
        "first wins": wins,
        "retrieve": {system: values(run, bench.test) for system, run in tests.items()},
        "rounds": {
            system: {round: values(of.test, bench.test) for round, of in each.items()}
            for system, each in dense.items()
        },
        "rerank": rerank(reranker, tests, settings.rerank_depths, bench, accelerator.mixed_precision),
        "search": [
            {
                "system": way.system,
                "index": way.kind,
                "probes": way.probes,
                "ms/query": float(way.milliseconds.mean()),
                "bytes/document": way.index.bytes_per_document,
            }
            | {RR: values(way.found, bench.test)[RR]}
            for way in timed
        ],
        "training": [
            {"model": name, "round": round} | cost(model_folder(name, round, seed, settings) / "training")
            for name, round in models(settings)
        ],
    }


def mixed(dense: Dense, sparse: Sparse, bench: Bench) -> tuple[Run, dict[str, float]]:
    """The hybrid's test run, over the candidates of both; its λ, and what the dev queries chose it by."""

    def scores(split: Split, found: Run, others: Run) -> tuple[Run, Run]:
        candidates = union(found, others)
        reranked = dense.index.rerank(dense.model, split.queries, candidates)
        return reranked, sparse.bm25.rerank(split.queries, candidates)

    tuning = tune(*scores(bench.dev, dense.dev, sparse.dev), bench.dev, measure=RR)
    run = combine(*scores(bench.test, dense.test, sparse.test), tuning.weight)
    return run, {"λ": tuning.weight, f"dev {RR}": tuning.curve[tuning.weight]}


def search(folder: Path, bench: Bench, settings: Settings, temporary: str, accelerator: Accelerator) -> Dense:
    """A saved dense model with its documents, searched exactly."""
    model = load(folder / "checkpoint").to(accelerator.device)
    assert isinstance(model, Paradigm)
    corpus, own = bench.collection.corpus, f"{temporary}/{folder.name}"
    index = ExactIndex.build(model, corpus.ids, corpus, own, precision=accelerator.mixed_precision)
    dev, test = (index.search(model, split.queries, settings.depth) for split in (bench.dev, bench.test))
    return Dense(model, index, dev, test)


def first_wins(dense: Dense, split: Split) -> float:
    """Of the documents found, the share whose maximum their first vector gives: 1 is what m = 1 would do."""
    wins: list[bool] = []
    for query, found in dense.test.items():
        encoded = dense.model.encode_queries([split.queries[query]]).to("cpu")
        alignment = dense.model.interact(dense.index.tokens_of(list(found)), encoded).alignment
        wins += (alignment[0, :, 0, 0] > 0).tolist()
    return sum(wins) / max(1, len(wins))


def rerank(
    reranker: CrossAttention, runs: Mapping[str, Run], depths: list[int], bench: Bench, precision: str
) -> Measured:
    """system → depth → RR@10 of each query: its first documents in their new order, the others left out."""
    queries, corpus = bench.test.queries, bench.collection.corpus
    heads = {
        system: {q: {d: of[d] for d in best(of, max(depths))} for q, of in run.items()}
        for system, run in runs.items()
    }
    # A score depends on its pair alone: one pass over all systems' candidates serves each of them.
    scores = reranker.rerank(queries, corpus, union(*heads.values()), precision=precision, progress=True)
    found: Measured = {}
    for system, run in heads.items():
        found[system] = {}
        for depth in depths:
            anew = {q: {d: scores[q][d] for d in best(of, depth)} for q, of in run.items()}
            found[system][str(depth)] = values(anew, bench.test)[RR]
    return found


def best(scores: Mapping[str, float], count: int) -> list[str]:
    """The documents with the largest scores; of equal ones the smaller ids."""
    return sorted(scores, key=lambda document: (-scores[document], document))[:count]


def values(run: Run, split: Split) -> dict[str, list[float]]:
    """Each measure, one value per query."""
    return {name: of.tolist() for name, of in per_query(run, split.judgements, MEASURES).values.items()}


def rr(run: Run, split: Split) -> float:
    """What dev queries choose by."""
    return per_query(run, split.judgements, (RR,)).mean(RR)


if __name__ == "__main__":
    main(Settings(**given))
