"""One trainer of the training benchmark in a process of its own: python -m training_parts.trainers FOLDER

FOLDER/job.json is a `Job`; FOLDER/answer.json gets the seconds of every timed step, the peak memory and the
losses. All trainers start from the same encoder and projection, and see the same batches in the same order.

Runs in the environment of the trainer that it measures, whose requirements exclude each other's and ours: so
it imports each inside its own function.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from token_parts.systems import peak_memory

CHECKED = 32  # pairs of the loss that is the same in every row
WARMUP = 1  # steps before the timed ones
TEMPERATURE = 1.0  # of the softmax over the sums of MaxSim; the peers' default
LEARNING_RATE = 2e-5


@dataclass(frozen=True)
class Job:
    """Who trains on what. Lengths are in tokens, special tokens included; rel is Σⱼ maxᵢ dᵢᵀqⱼ."""

    system: str  # a key of SYSTEMS
    mini_batch: int  # texts per forward pass of gradient caching; 0 = no caching
    batch: int
    steps: int
    work: str  # folder of encoder/, projection.safetensors and pairs.jsonl
    dim: int
    query_length: int
    document_length: int
    precision: str  # no, bf16
    device: str  # cpu, cuda
    threads: int
    memory: int  # bytes that the process may hold on a processor; 0 = all
    seed: int

    @property
    def all_steps(self) -> int:
        return WARMUP + self.steps

    @property
    def encoder(self) -> str:
        return str(Path(self.work) / "encoder")

    def pairs(self, number: int) -> list[tuple[str, str]]:
        """The first (query, document) pairs. Batch k of every trainer is the k-th run of `batch` of them."""
        with open(Path(self.work) / "pairs.jsonl", encoding="utf-8") as file:
            lines = [json.loads(line) for line in islice(file, number)]
        return [(line["query"], line["document"]) for line in lines]

    def projection(self) -> Any:
        from safetensors.torch import load_file

        return load_file(Path(self.work) / "projection.safetensors")["projection"]


class Clock:
    """When each optimizer step inside a with statement ended, whoever took it, and the peak memory then."""

    def __init__(self, device: str) -> None:
        self.device, self.peak = device, 0
        self.ends: list[float] = []
        self.cpu_ends: list[float] = []  # in seconds that the processor spent on this process, on all threads

    def __enter__(self) -> Clock:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._hook = register_optimizer_step_post_hook(self._tick)
        return self

    def __exit__(self, *_: Any) -> None:
        self._hook.remove()

    def _tick(self, *_: Any) -> None:
        if self.device == "cuda":
            import torch

            torch.cuda.synchronize()
            self.peak = torch.cuda.max_memory_allocated()
        else:
            self.peak = peak_memory()
        self.ends.append(time.perf_counter())
        self.cpu_ends.append(time.process_time())

    def answer(self) -> dict[str, Any]:
        """From the end of each step to that of the next: reading and tokenising a batch is part of it."""
        of = {"seconds": self.ends, "cpu_seconds": self.cpu_ends}
        times = {
            name: [end - before for before, end in pairwise(ends[WARMUP - 1 :])] for name, ends in of.items()
        }
        return times | {"memory": self.peak}


# --- ours ---------------------------------------------------------------------------------------------


def ours(job: Job, folder: Path) -> float:
    """paradigms.train on ColBERT; the loss that every system answers: see `main`."""
    import torch
    from accelerate import Accelerator

    from paradigms import PARADIGMS
    from paradigms.data import Corpus
    from paradigms.train.contrastive import Contrastive
    from paradigms.train.examples import Example, StepSampler
    from paradigms.train.loop import TrainingSettings, train

    settings = {"dim": job.dim, "query_length": job.query_length, "document_length": job.document_length}
    paradigm = PARADIGMS["colbert"](job.encoder, skip="", **settings)
    paradigm = paradigm.with_alignment("query_to_document", normalise="one")
    projection = paradigm.encoder.projection
    assert isinstance(projection, torch.nn.Linear)
    projection.load_state_dict({"weight": job.projection()})
    used = job.all_steps * job.batch
    pairs = job.pairs(max(used, CHECKED))
    corpus = Corpus([str(n) for n in range(len(pairs))], [document for _, document in pairs])
    given = [Example(query, n, (), (n,)) for n, (query, _) in enumerate(pairs)]
    # Each example lies where the sampler takes it in the pairs' own order.
    examples = given[:used]
    sampler = StepSampler(used, job.batch, job.all_steps, start=0, rank=0, world=1, seed=job.seed)
    for n, place in enumerate(place for batch in sampler for place in batch):
        examples[place] = given[n]
    objective = Contrastive(paradigm, corpus, examples, TEMPERATURE, chunk=job.mini_batch)
    accelerator = Accelerator(cpu=job.device == "cpu", mixed_precision=job.precision)
    paradigm.to(accelerator.device)
    with paradigm.evaluating(), torch.no_grad(), accelerator.autocast():
        checked = objective.collate(given[:CHECKED]).to(accelerator.device)
        loss = objective.loss(paradigm, checked).item()
    training = TrainingSettings(
        steps=job.all_steps,
        batch_size=job.batch,
        chunk=job.mini_batch,
        learning_rate=LEARNING_RATE,
        warmup=0.0,
        seed=job.seed,
        log_every=1,
    )
    train(paradigm, objective, training, folder, accelerator=accelerator, progress=False)
    return loss


# --- peers --------------------------------------------------------------------------------------------


def sentence_transformers(job: Job, folder: Path) -> float:
    """The multi-vector trainer of sentence-transformers, from 6.0 on, with its contrastive losses."""
    import torch
    from sentence_transformers import (
        MultiVectorEncoder,
        MultiVectorEncoderTrainer,
        MultiVectorEncoderTrainingArguments,
    )
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.multi_vector_encoder import losses
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

    lengths = {"query_length": job.query_length, "document_length": job.document_length}
    weight = job.projection()
    model = MultiVectorEncoder(
        modules=[
            Transformer(job.encoder, **lengths),
            Dense(
                weight.shape[1],
                job.dim,
                bias=False,
                activation_function=torch.nn.Identity(),
                init_weight=weight,
                module_input_name="token_embeddings",
            ),
            MultiVectorMask(skiplist_words=[]),
            Normalize(module_input_name="token_embeddings"),
        ],
        device=job.device,
    )
    scale = 1 / TEMPERATURE
    if job.mini_batch:
        loss = losses.CachedMultiVectorMultipleNegativesRankingLoss(
            model, scale=scale, mini_batch_size=job.mini_batch
        )
    else:
        loss = losses.MultiVectorMultipleNegativesRankingLoss(model, scale=scale)
    return _fit(job, folder, MultiVectorEncoderTrainer, MultiVectorEncoderTrainingArguments, model, loss)


def pylate(job: Job, folder: Path) -> float:
    """PyLate's way to train: its collator, which pads to the full length, and its contrastive losses."""
    import torch
    from pylate import losses, models, utils
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments

    model = models.ColBERT(
        job.encoder,
        device=job.device,
        embedding_size=job.dim,
        query_prefix="",
        document_prefix="",
        query_length=job.query_length,
        document_length=job.document_length,
        do_query_expansion=False,
        skiplist_words=[],
    )
    with torch.no_grad():
        model[-1].linear.weight.copy_(job.projection())
    if job.mini_batch:
        loss = losses.CachedContrastive(model, mini_batch_size=job.mini_batch, temperature=TEMPERATURE)
    else:
        loss = losses.Contrastive(model, temperature=TEMPERATURE)
    collator = utils.ColBERTCollator(model.tokenize)
    return _fit(
        job, folder, SentenceTransformerTrainer, SentenceTransformerTrainingArguments, model, loss, collator
    )


def _fit(
    job: Job,
    folder: Path,
    trainer_class: Any,
    arguments_class: Any,
    model: Any,
    loss: Any,
    collator: Any = None,
) -> float:
    """transformers' Trainer, which both peers build on; what is not named here is the peer's default."""
    import torch
    from datasets import Dataset
    from torch.utils.data import BatchSampler, SequentialSampler

    pairs = job.pairs(max(job.all_steps * job.batch, CHECKED))
    arguments = arguments_class(
        output_dir=str(folder),
        max_steps=job.all_steps,
        per_device_train_batch_size=job.batch,
        batch_sampler=lambda rows, batch_size, drop_last, **_: BatchSampler(
            SequentialSampler(rows), batch_size, drop_last
        ),
        learning_rate=LEARNING_RATE,
        weight_decay=0.01,  # as ours
        max_grad_norm=1.0,
        seed=job.seed,
        bf16=job.precision == "bf16",
        use_cpu=job.device == "cpu",
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = trainer_class(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_dict({"query": [q for q, _ in pairs], "document": [d for _, d in pairs]}),
        loss=loss,
        data_collator=collator,
    )
    batch = trainer.data_collator([{"query": q, "document": d} for q, d in pairs[:CHECKED]])
    batch = {name: t.to(job.device) if torch.is_tensor(t) else t for name, t in batch.items()}
    trainer.model.eval()
    with torch.no_grad(), trainer.compute_loss_context_manager():
        checked = trainer.compute_loss(trainer.model, batch).item()
    trainer.train()
    return checked


SYSTEMS: dict[str, Callable[[Job, Path], float]] = {
    "ours": ours,
    "sentence-transformers": sentence_transformers,
    "pylate": pylate,
}


def main(folder: Path) -> None:
    """Answer a job: seconds [steps] by the clock and of CPU time, memory in bytes, versions, and the loss.

    loss: of the first CHECKED pairs, without dropout; it is the same for every system.
    """
    job = Job(**json.loads((folder / "job.json").read_text()))
    if job.memory and job.device == "cpu":
        resource.setrlimit(resource.RLIMIT_DATA, (job.memory, job.memory))
    import torch

    torch.set_num_threads(job.threads)
    with Clock(job.device) as clock:
        loss = SYSTEMS[job.system](job, folder / "run")
    package = "retrieval-paradigms" if job.system == "ours" else job.system
    versions = {name: version(name) for name in (package, "torch", "transformers")}
    answer = clock.answer() | {"loss": loss, "versions": versions}
    (folder / "answer.partial").write_text(json.dumps(answer))
    os.replace(folder / "answer.partial", folder / "answer.json")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
