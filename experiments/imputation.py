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

from papers.implicit_idf.floors import NDCG, Corpus, Floor, Ranker, chosen, estimates_of
from papers.implicit_idf.sections import sections_of
from studies.model_runs import Job, StudyData, bind, bind_collection, encoder_job, open_study, run_jobs
from studies.pages import Measured, publish

from paradigms import Paradigm, load
from paradigms.align import PoolExcess
from paradigms.colbert import colbert
from paradigms.data.collection import hash_order
from paradigms.find import Index
from paradigms.io.command_line import folder_name
from paradigms.train.script import begin
from paradigms.xtr import xtr

LOSSES = ["ColBERT", "Eq. 2", "Eq. 4"]
K_TRAIN = 0.05  # share of the batch's tokens that each query token retrieves in training with Eq. 2 and 4
FREE = {"collections", "trained", "seeds"}  # settings that may change in a results folder


def main(settings: Settings) -> None:
    accelerator, console = begin(settings)
    bind(settings, accelerator, FREE, ("backbone", "t5"))
    named = {"T5": settings.t5, "MiniLM": settings.backbone}
    encoders = {name: backbone for name, backbone in named.items() if backbone}
    measured: dict[tuple[str, str], dict[str, list[Measured]]] = {}  # (encoder, collection) -> loss -> seeds
    for collection in settings.collections:
        data = open_study(settings, accelerator, console, ("training", "dev", "test"), collection)
        bind_collection(data, Path(settings.output) / folder_name(collection))
        for encoder, backbone in encoders.items():
            losses = LOSSES * (collection in settings.trained)
            cells = [("untrained", settings.seeds[0]), *product(losses, settings.seeds)]
            jobs = [job(encoder, backbone, *cell, data) for cell in cells]
            systems = measured.setdefault((encoder, folder_name(collection)), {})
            for (loss, _), result in zip(cells, run_jobs(jobs, accelerator, console), strict=True):
                systems.setdefault(loss, []).append(result)
    summary = f"All documents. k' and the edge of softplus are chosen by {settings.dev_queries} dev queries."
    if settings.trained:
        steps = f"{settings.steps} steps of {settings.batch_size} queries"
        summary += f" Each encoder is trained in {steps}, seeds {settings.seeds}."
    publish(settings, "Imputation", summary, sections_of(measured, settings.search_tokens), accelerator)
    accelerator.end_training()


def job(encoder: str, backbone: str, loss: str, seed: int, data: StudyData) -> Job:
    settings: Settings = data.settings
    name = f"{encoder}, {loss}, seed {seed}"
    folder = Path(settings.output) / folder_name(data.collection.name) / folder_name(name)

    def make() -> Paradigm:
        same = lengths_of(settings) | {"skip": "", "special_tokens": False}
        if not loss.startswith("Eq."):
            return colbert(backbone, **same)
        model = xtr(backbone, k_train=K_TRAIN, **same)
        return model if loss == "Eq. 2" else model.with_alignment(PoolExcess(k=K_TRAIN), "query_tokens")

    checkpoint = Path(backbone) if loss == "untrained" else None  # read as `make` does, without training

    def read(saved: Path) -> Paradigm:
        return load(saved) if checkpoint is None else make()

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
    dev = data.dev.only(hash_order(data.dev.queries)[: settings.dev_queries])
    everything = Corpus.of(index)
    drawn = hash_order(index.store.ids)[: len(index) // 16]
    gold = [id for judged in dev.judgements.values() for id, grade in judged.items() if grade > 0]
    sixteenth = everything.only(index.store.positions({*drawn, *gold}))
    ranker = Ranker(paradigm, index, everything, paradigm.count_corpus(corpus), settings.search_tokens)

    on_dev = ranker.run(dev, choices=True)[1][NDCG]
    on_part = replace(ranker, corpus=sixteenth).run(dev)[1][NDCG]
    imputed = chosen(on_dev, "k'")
    of_part = chosen(on_part, "k'")
    floors = {
        "imputed": imputed,
        "IDF, imputed": chosen(on_dev, "IDF, k'"),
        "softplus": chosen(on_dev, "softplus"),
    }
    floors["same number"] = of_part
    floors["same share"] = Floor(round(of_part.k * len(everything.owners) / len(sixteenth.owners)))
    texts = [corpus[corpus.position(id)] for id in drawn]
    sample = everything.only(index.store.positions(drawn))
    estimates = estimates_of(paradigm, sample, texts, imputed.k / len(everything.owners))
    queries, values = ranker.run(data.test, floors=floors, estimates=estimates)
    return {
        "queries": queries,
        "documents": len(index),
        "tokens": len(everything.owners),
        "chosen": {name: floor._asdict() for name, floor in floors.items()},
        "values": values,
        "dev": {"all": on_dev, "a sixteenth": on_part},
    }
