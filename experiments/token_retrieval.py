"""Does training with in-batch token retrieval find better tokens, and do these tokens suffice for scoring?

Lee et al. 2023 (arXiv:2304.01982), §3 and §5: the same encoder is trained on the same batches with the
objectives of ColBERT and XTR; several values of k_train and of the batch size are used for XTR. All models
are measured in the same way. Seeds, k_train and batch sizes may be added to a results folder.
"""

from dataclasses import asdict, field
from pathlib import Path
from typing import Any

from studies.settings import CollectionName, EncoderStudy, at_least, different, launch, lengths_of

from paradigms.io.command_line import flags


@flags(document_length=96)
class Settings(EncoderStudy, CollectionName):
    """Settings for models, collection, and depths of token search."""

    backbone: str = "offline"
    """encoder or T5 by hub name or folder; offline: all-MiniLM-L6-v2 from the Python package; small: a T5
    with random weights and the collection's vocabulary, trained in full"""
    other_batch_sizes: list[int] = field(default_factory=lambda: [8])
    """batch sizes of more XTRs, besides those that use ColBERT's batches (Figure 7)"""
    k_train: list[int | float] = field(default_factory=lambda: [0.005, 0.05])
    """tokens that each query token retrieves in training: below 1, a share of the batch's tokens, which suits
    batches of any size; from 1 on, a number of tokens, as in the paper"""
    search_tokens: list[int] = field(default_factory=lambda: [3, 10, 30, 100, 300, 1000])
    """values of k' to measure"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.backbone == "small":
            self.trained_layers = 0
        different(self, "k_train", "search_tokens")
        if len({share < 1 for share in self.k_train}) > 1 or min(self.k_train) <= 0:
            raise SystemExit(f"k_train: shares between 0 and 1, or numbers of tokens, got {self.k_train}")
        at_least(self, search_tokens=1, other_batch_sizes=1)

    def searched(self) -> list[int]:
        return sorted({*self.search_tokens, TABLE_TOKENS})

    def models(self) -> list["Model"]:
        """List ColBERT, XTR with every k_train and batch size, and the untrained encoder, for every seed.

        Only the small T5 depends on the seed before training.
        """
        sizes = dict.fromkeys([self.batch_size, *self.other_batch_sizes])
        kinds = [(None, self.batch_size), *((k, size) for size in sizes for k in self.k_train)]
        trained = [Model(*kind, seed) for seed in self.seeds for kind in kinds]
        seeds = self.seeds if self.backbone == "small" else self.seeds[:1]
        return [*trained, *(Model(None, self.batch_size, seed, trained=False) for seed in seeds)]


launch(__name__, Settings, __doc__, processes=True)  # before the slow imports

import torch
from papers.lee2023.token_claims import Model, TokenStudy
from papers.lee2023.token_measures import MEASURES, best_documents, imputed, measure, stored_ids, token_search
from studies.model_runs import Job, StudyData, bind, encoder_job, open_study, run_jobs
from studies.pages import Measured, publish, resampled

from paradigms import Paradigm
from paradigms.colbert import colbert
from paradigms.evaluate import per_query
from paradigms.find import Index
from paradigms.train.generative import t5_folder
from paradigms.train.script import begin
from paradigms.xtr import xtr

# k' for the imputations (Table 5), the costs (Table 1) and the choice of k_train on dev queries
TABLE_TOKENS = 100
FREE = {"seeds", "k_train", "other_batch_sizes"}  # settings that may change in a results folder


def main(settings: Settings) -> None:
    accelerator, console = begin(settings)
    data = open_study(settings, accelerator, console, ("training", "dev", "test"))
    bound = {"fingerprint": data.collection.fingerprint, "table_tokens": TABLE_TOKENS}
    bind(settings, accelerator, FREE, ("backbone",), **bound)
    jobs = [job(model, data) for model in settings.models()]
    results = run_jobs(jobs, settings, accelerator, console)
    if accelerator.is_main_process:
        name = data.collection.name
        lexical = data.lexical(MEASURES)
        study = TokenStudy(name, results, settings.searched(), TABLE_TOKENS, lexical)
        summary = (
            f"{len(lexical.queries)} test queries over {len(data.collection.corpus):,} documents; seeds "
            f"{settings.seeds}. ColBERT and XTR learn from {settings.backbone} in {settings.steps} steps of "
            f"{settings.batch_size * accelerator.num_processes} queries, the same ones in the same order. "
            f"Intervals (95%) resample {resampled(len(settings.seeds))}."
        )
        publish(settings, "Token retrieval", summary, study.sections(), accelerator)
    accelerator.end_training()


def job(model: Model, data: StudyData) -> Job:
    settings: Settings = data.settings
    folder = Path(settings.output) / model.name

    def make() -> Paradigm:
        backbone: str | Path = settings.backbone
        if backbone == "small":
            small = folder.parent / "small-t5"
            backbone = t5_folder("small", data.collection, small, model.seed, data.accelerator)
            torch.manual_seed(model.seed)
        # Both objectives use the same tokens: all tokens of the texts, including punctuation.
        same: dict[str, Any] = lengths_of(settings) | {"skip": "", "special_tokens": False}
        return xtr(backbone, k_train=model.k_train, **same) if model.k_train else colbert(backbone, **same)

    def measure_model(paradigm: Paradigm, index: Index) -> Measured:
        ids = stored_ids(paradigm, index, data.collection.corpus)
        dev = {  # RR@10 of f_XTR', which chooses k_train
            retrieved.query: best_documents(index, *imputed(retrieved, index, TABLE_TOKENS))
            for retrieved in token_search(paradigm, index, data.dev.queries, TABLE_TOKENS)
        }
        chosen_by = per_query(dev, data.dev.judgements, ("RR@10",)).values["RR@10"].tolist()
        keys = asdict(model) | {"dev": chosen_by}
        return keys | measure(paradigm, index, ids, data.test, settings.searched(), TABLE_TOKENS)

    more: dict[str, Any] = {"batch_size": model.batch_size}
    if not model.trained:
        more = {"checkpoint": folder, "read": lambda _: make()}
    return encoder_job(str(model), folder, model.seed, make, measure_model, data, **more)
