"""Is imputation an implicit IDF? MaxSim with floors, on several collections, from two encoders.

XTR (Lee et al. 2023, Eq. 4) imputes the k'-th best similarity, which ranks by each query token's excess over
a quantile of the corpus (`theory/excess.py`). An encoder trained for retrieval and a T5 that was not are
measured as they are, and after training with ColBERT's loss and with Eq. 2 and Eq. 4 in the batch. All
choices are made on dev queries. Collections and seeds may be added to a results folder.
"""

from dataclasses import field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from studies.settings import Collections, EncoderStudy, at_least, different, launch, lengths_of

from paradigms.io.command_line import flags


@flags(documents=0, document_length=96)
class Settings(EncoderStudy, Collections):
    """Settings for encoders, collections and values of k'."""

    backbone: str = "offline"
    """encoder trained for retrieval, by hub name or folder, MiniLM in the tables; empty: none"""
    t5: str = ""
    """T5 that was never trained for retrieval, by hub name or folder; empty: none"""
    trained: list[str] = field(default_factory=list)
    """those of the collections on which the encoders are also trained"""
    search_tokens: list[int] = field(
        default_factory=lambda: [10, 30, 100, 300, 1000, 3000, 10000, 30000, 100000]
    )
    """values of k'"""

    def __post_init__(self) -> None:
        super().__post_init__()
        different(self, "collections", "search_tokens")
        if unknown := {*self.trained} - {*self.collections}:
            raise SystemExit(f"trained: {', '.join(sorted(unknown))} are not in collections")
        at_least(self, search_tokens=1, dev_queries=1)


launch(__name__, Settings, __doc__)  # before the slow imports

from collections.abc import Mapping, Sequence

import numpy as np
from papers.implicit_idf.floors import NDCG, Corpus, Ranker, chosen, estimates_of
from studies.claims import Study
from studies.curves import Curves, Values
from studies.gains import DEV, training_section
from studies.model_runs import Job, StudyData, bind, bind_collection, encoder_job, open_study, run_jobs
from studies.pages import Measured, Section, interval_text, publish

from paradigms import Paradigm, load
from paradigms.align import PoolExcess
from paradigms.colbert import colbert
from paradigms.data.collection import hash_order
from paradigms.evaluate import seeds_interval
from paradigms.find import Index
from paradigms.io.command_line import folder_name
from paradigms.loading import as_paradigm
from paradigms.train.script import begin
from paradigms.xtr import xtr

LOSSES = ["ColBERT", "Eq. 2", "Eq. 4"]
K_TRAIN = 0.05  # share of the batch's tokens that each query token retrieves in training with Eq. 2 and 4
FREE = {"collections", "trained", "seeds"}  # settings that may change in a results folder
PAPER = "implicit_idf"
LARGE = 20_000  # documents of a large collection
SYSTEMS = ("MaxSim", "imputed", "IDF", "IDF, imputed", "table", "sample")
Cells = Mapping[tuple[str, str], Mapping[str, Sequence[Measured]]]  # (encoder, collection) -> loss -> seeds


def main(settings: Settings) -> None:
    accelerator, console = begin(settings)
    bind(settings, accelerator, FREE, ("backbone", "t5"))
    named = {"T5": settings.t5, "MiniLM": settings.backbone}
    encoders = {name: backbone for name, backbone in named.items() if backbone}
    results: dict[tuple[str, str], dict[str, list[Measured]]] = {}  # (encoder, collection) -> loss -> seeds
    for collection in settings.collections:
        data = open_study(settings, accelerator, console, ("training", "dev", "test"), collection)
        bind_collection(data, Path(settings.output) / folder_name(collection))
        for encoder, backbone in encoders.items():
            losses = LOSSES * (collection in settings.trained)
            cells = [("untrained", settings.seeds[0]), *product(losses, settings.seeds)]
            jobs = [job(encoder, backbone, *cell, data) for cell in cells]
            systems = results.setdefault((encoder, folder_name(collection)), {})
            untrained, *trained = run_jobs(jobs, settings, accelerator, console)
            systems["untrained"] = [untrained]
            for (loss, _), result in zip(cells[1:], trained, strict=True):
                # Dev values as `encoder_job` names them, of searching all documents by MaxSim.
                sides = {"untrained": untrained, "trained": result}
                dev = {side: values["dev"]["all"]["MaxSim"] for side, values in sides.items()}
                systems.setdefault(loss, []).append(result | {DEV: dev, "searched": True})
    summary = f"All documents. k' is chosen by {settings.dev_queries} dev queries."
    if settings.trained:
        steps = f"{settings.steps} steps of {settings.batch_size} queries"
        summary += f" Each encoder is trained in {steps}, seeds {settings.seeds}."
    publish(settings, "Imputation", summary, sections_of(results, settings.search_tokens), accelerator)
    accelerator.end_training()


def job(encoder: str, backbone: str, loss: str, seed: int, data: StudyData) -> Job:
    settings: Settings = data.settings
    name = f"{encoder}, {loss}, seed {seed}"
    folder = Path(settings.output) / folder_name(data.collection.name) / folder_name(name)

    def make() -> Paradigm:
        same: dict[str, Any] = lengths_of(settings) | {"skip": "", "special_tokens": False}
        if not loss.startswith("Eq."):
            return colbert(backbone, **same)
        model = xtr(backbone, k_train=K_TRAIN, **same)
        return model if loss == "Eq. 2" else model.with_alignment(PoolExcess(k=K_TRAIN), "query_tokens")

    checkpoint = Path(backbone) if loss == "untrained" else None  # read as `make` does, without training

    def read(saved: Path) -> Paradigm:
        return as_paradigm(load(saved), saved) if checkpoint is None else make()

    return encoder_job(
        name, folder, seed, make, partial(measure, data), data, read=read, checkpoint=checkpoint
    )


def measure(data: StudyData, paradigm: Paradigm, index: Index) -> Measured:
    """Measure all ways to score with one model; dev queries choose the floors.

    "values" map a measure and a system to one value per test query, "dev" a corpus ("all" or "a sixteenth")
    and a system to one value per dev query.
    """
    settings: Settings = data.settings
    corpus = data.collection.corpus
    dev = data.dev_sample
    everything = Corpus.of(index)
    sampled = hash_order(index.store.ids)[: len(index) // 16]
    gold = [id for judged in dev.judgements.values() for id, grade in judged.items() if grade > 0]
    sixteenth = everything.only(index.store.positions({*sampled, *gold}))
    ranker = Ranker(paradigm, index, everything, paradigm.count_corpus(corpus), settings.search_tokens)

    on_dev = ranker.run(dev, choices=True)[1][NDCG]
    on_part = replace(ranker, corpus=sixteenth).run(dev)[1][NDCG]
    imputed = chosen(on_dev, "k'")
    of_part = chosen(on_part, "k'")
    floors = {"imputed": imputed, "IDF, imputed": chosen(on_dev, "IDF, k'"), "same number": of_part}
    floors["same share"] = round(of_part * len(everything.owners) / len(sixteenth.owners))
    texts = [corpus[corpus.position(id)] for id in sampled]
    sample = everything.only(index.store.positions(sampled))
    estimates = estimates_of(paradigm, sample, texts, imputed / len(everything.owners))
    queries, values = ranker.run(data.test, floors=floors, estimates=estimates)
    return {
        "queries": queries,
        "documents": len(index),
        "tokens": len(everything.owners),
        "chosen": {name: {"k": k} for name, k in floors.items()},
        "values": values,
        "dev": {"all": on_dev, "a sixteenth": on_part},
    }


def name_of(encoder: str, loss: str, collection: str) -> str:
    return f"{encoder}{'' if loss == 'untrained' else f' trained with {loss}'} on {collection}"


def study_of(cells: Cells) -> Study:
    """Make one study of all cells, whose hypotheses are one family of tests."""
    values: dict[str, dict[str, Values]] = {}
    trainings: dict[str, Sequence[Measured]] = {}
    names = ("T5", "MiniLM", "untrained", "large T5", "trained", "encoder")
    groups: dict[str, list[str]] = {name: [] for name in names}
    for (encoder, collection), losses in cells.items():
        models = {name_of(encoder, loss, collection): seeds for loss, seeds in losses.items()}
        for measure, sides in Study.of(models).values.items():
            values.setdefault(measure, {}).update(sides)
        untrained = name_of(encoder, "untrained", collection)
        trainings |= {name: seeds for name, seeds in models.items() if name != untrained}
        groups[encoder].append(untrained)
        groups["untrained"].append(untrained)
        if len(losses) > 1:
            groups["trained"] += [collection] * (collection not in groups["trained"])
            groups["encoder"] += [encoder] * (encoder not in groups["encoder"])
        if encoder == "T5":
            groups["large T5"] += [untrained] * (losses["untrained"][0]["documents"] > LARGE)
    return Study(values, groups=groups, trainings=trainings)


def sections_of(cells: Cells, counts: Sequence[int]) -> dict[str, Section]:
    study = study_of(cells)
    encoders = list(dict.fromkeys(encoder for encoder, _ in cells))
    return {
        "training": training_section(study.trainings),
        "claims": study.section(PAPER, "trained" if study.trainings else "imputation"),
        "systems": Section(
            "Systems",
            "nDCG@10 of test queries; dev queries choose k'.",
            [row for cell, losses in cells.items() for row in system_rows(cell, losses, study)],
        ),
        "k": Curves(
            "k'",
            counts,
            {
                f"{NDCG}, {encoder}: imputed − MaxSim": {
                    collection: gains(study, name_of(encoder, "untrained", collection), counts)
                    for one, collection in cells
                    if one == encoder
                }
                for encoder in encoders
            },
        ).section(
            "Imputation by k'", "The change of nDCG@10 of MaxSim by imputation, untrained; test queries."
        ),
        "corpus": corpus_section(cells, counts),
    }


def gains(study: Study, name: str, counts: Sequence[int]) -> list[Values]:
    """Return imputed − MaxSim for each k'."""
    sides = study.values[NDCG]
    return [sides[f"{name}, k' = {k}"] - sides[f"{name}, MaxSim"] for k in counts]


def corpus_section(cells: Cells, counts: Sequence[int]) -> Section:
    """Draw the gain of imputation for T5 by k' on dev queries, in a sixteenth of the documents and in all."""
    values = {place: losses["untrained"][0]["dev"] for (name, place), losses in cells.items() if name == "T5"}
    if not values:
        return Section("Imputation by the size of the corpus")
    panels = {
        f"{NDCG}, {part} of the documents": {
            collection: [np.array([dev[part][f"k' = {k}"]]) - np.array([dev[part]["MaxSim"]]) for k in counts]
            for collection, dev in values.items()
        }
        for part in ("a sixteenth", "all")
    }
    text = "The change of nDCG@10 of MaxSim by imputation, T5 without training; dev queries."
    return Curves("k'", counts, panels).section("Imputation by the size of the corpus", text)


def system_rows(
    cell: tuple[str, str], losses: Mapping[str, Sequence[Measured]], study: Study
) -> list[dict[str, str]]:
    """Make a row for each training of an encoder on a collection."""
    rows = []
    for loss, seeds in losses.items():
        name = name_of(cell[0], loss, cell[1])
        ks = "/".join(f"{seed['chosen']['imputed']['k']:,}" for seed in seeds)
        values = {system: study.values[NDCG][f"{name}, {system}"] for system in SYSTEMS}
        cells = {system: f"{of.mean():.3f}" for system, of in values.items()}
        cells[SYSTEMS[0]] = interval_text(seeds_interval(values[SYSTEMS[0]]))
        rows.append({"encoder": name, "tokens": f"{seeds[0]['tokens']:,}", "k'": ks} | cells)
    return rows
