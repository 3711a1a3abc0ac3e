"""Run one trainer of the training benchmark in a new process: python -m parts.trainers JOB

JOB is a JSON object with the fields of `Job`. All trainers start from the same encoder and projection, and
see the same batches in the same order. The module runs in the environment of the measured trainer. Trainers'
requirements conflict with each other and with ours, so each trainer is imported inside a function.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from parts.shared import memory, tell

CHECKED = 32  # pairs for the loss that must be equal in every row
WARMUP = 1  # steps before the timed steps
TEMPERATURE = 1.0  # temperature of the softmax over sums of MaxSim; the peers' default
LEARNING_RATE = 2e-5


@dataclass(frozen=True)
class Job:
    """A trainer and its data. Lengths are in tokens, including special tokens; rel is Σⱼ maxᵢ dᵢᵀqⱼ."""

    system: str  # a key of SYSTEMS
    mini_batch: int  # texts per forward pass of gradient caching; 0 = no caching
    batch: int
    steps: int  # timed steps
    work: str  # folder of encoder/, projection.safetensors and pairs.jsonl
    dim: int
    query_length: int
    document_length: int
    precision: str  # no, bf16
    device: str  # cpu, cuda
    threads: int
    memory: int  # maximum bytes of the process on a CPU; 0 = no limit
    seed: int

    @property
    def all_steps(self) -> int:
        return WARMUP + self.steps

    @property
    def encoder(self) -> str:
        return f"{self.work}/encoder"

    def pairs(self) -> list[tuple[str, str]]:
        """Return the (query, document) pairs; every trainer's batch k is the k-th block of `batch` pairs."""
        with open(f"{self.work}/pairs.jsonl", encoding="utf-8") as file:
            lines = map(json.loads, islice(file, max(self.all_steps * self.batch, CHECKED)))
            return [(line["query"], line["document"]) for line in lines]

    def projection(self) -> Any:
        from safetensors.torch import load_file

        return load_file(f"{self.work}/projection.safetensors")["projection"]


def ours(job: Job, folder: Path) -> float:
    """Train ColBERT with paradigms.train, and return the loss on the first CHECKED pairs before training."""
    import torch
    from accelerate import Accelerator
    from accelerate.utils import send_to_device

    from paradigms import PARADIGMS
    from paradigms.align import QueryToDocument
    from paradigms.data import Corpus
    from paradigms.train.contrastive import Contrastive
    from paradigms.train.examples import Example, step_batches
    from paradigms.train.loop import TrainingSettings, train

    settings = {"dim": job.dim, "query_length": job.query_length, "document_length": job.document_length}
    paradigm = PARADIGMS["colbert"](job.encoder, skip="", **settings)
    paradigm = paradigm.with_alignment(QueryToDocument(), normalise="one")
    projection = paradigm.encoder.projection
    assert isinstance(projection, torch.nn.Linear)
    projection.load_state_dict({"weight": job.projection()})
    used = job.all_steps * job.batch
    pairs = job.pairs()
    corpus = Corpus([str(n) for n in range(len(pairs))], [document for _, document in pairs])
    every = [Example(query, n, (), (n,)) for n, (query, _) in enumerate(pairs)]
    # Place the examples so that they are drawn in the order of the pairs.
    examples = every[:used]
    batches = step_batches(used, job.batch, job.all_steps, seed=job.seed)
    for example, place in zip(every, (place for batch in batches for place in batch), strict=False):
        examples[place] = example
    objective = Contrastive(paradigm, corpus, examples, TEMPERATURE, chunk=job.mini_batch)
    accelerator = Accelerator(cpu=job.device == "cpu", mixed_precision=job.precision)
    paradigm.to(accelerator.device)
    with paradigm.evaluating(), torch.no_grad(), accelerator.autocast():
        checked = send_to_device(objective.collate(every[:CHECKED]), accelerator.device)
        loss = objective.loss(paradigm, checked).item()
    sizes = {"steps": job.all_steps, "batch_size": job.batch, "chunk": job.mini_batch, "seed": job.seed}
    training = TrainingSettings(**sizes, learning_rate=LEARNING_RATE, warmup=0.0, log_every=1)
    train(paradigm, objective, training, folder, accelerator=accelerator, progress=False)
    return loss


def sentence_transformers(job: Job, folder: Path) -> float:
    """Train with sentence-transformers' multi-vector trainer (from version 6.0) and contrastive losses."""
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
    linear = {"bias": False, "activation_function": torch.nn.Identity()}
    linear["module_input_name"] = "token_embeddings"
    model = MultiVectorEncoder(
        modules=[
            Transformer(job.encoder, **lengths),
            Dense(weight.shape[1], job.dim, **linear, init_weight=weight),
            MultiVectorMask(skiplist_words=[]),
            Normalize(module_input_name="token_embeddings"),
        ],
        device=job.device,
    )
    scale = 1 / TEMPERATURE
    loss = losses.MultiVectorMultipleNegativesRankingLoss(model, scale=scale)
    if job.mini_batch:
        kind = losses.CachedMultiVectorMultipleNegativesRankingLoss
        loss = kind(model, scale=scale, mini_batch_size=job.mini_batch)
    return _fit(job, folder, MultiVectorEncoderTrainer, MultiVectorEncoderTrainingArguments, model, loss)


def pylate(job: Job, folder: Path) -> float:
    """Train with PyLate's contrastive losses and PyLate's collator, which pads to the full length."""
    import torch
    from pylate import losses, models, utils
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments

    plain = {"query_prefix": "", "document_prefix": "", "do_query_expansion": False}
    plain |= {"query_length": job.query_length, "document_length": job.document_length}
    model = models.ColBERT(job.encoder, device=job.device, embedding_size=job.dim, **plain, skiplist_words=[])
    with torch.no_grad():
        model[-1].linear.weight.copy_(job.projection())
    loss = losses.Contrastive(model, temperature=TEMPERATURE)
    if job.mini_batch:
        loss = losses.CachedContrastive(model, mini_batch_size=job.mini_batch, temperature=TEMPERATURE)
    trainer, arguments = SentenceTransformerTrainer, SentenceTransformerTrainingArguments
    return _fit(job, folder, trainer, arguments, model, loss, utils.ColBERTCollator(model.tokenize))


def _fit(
    job: Job,
    folder: Path,
    trainer_type: Any,
    arguments_type: Any,
    model: Any,
    loss: Any,
    collator: Any = None,
) -> float:
    """Train with transformers' Trainer, which both peers extend; other settings keep the peer's defaults."""
    import torch
    from datasets import Dataset
    from torch.utils.data import BatchSampler, SequentialSampler

    pairs = job.pairs()
    same = {"learning_rate": LEARNING_RATE, "weight_decay": 0.01, "max_grad_norm": 1.0}  # as in our trainer
    quiet = {"logging_steps": 1, "save_strategy": "no", "report_to": "none", "disable_tqdm": True}
    arguments = arguments_type(
        output_dir=str(folder),
        max_steps=job.all_steps,
        per_device_train_batch_size=job.batch,
        batch_sampler=lambda rows, batch_size, drop_last, **_: BatchSampler(
            SequentialSampler(rows), batch_size, drop_last
        ),
        seed=job.seed,
        bf16=job.precision == "bf16",
        use_cpu=job.device == "cpu",
        **same,
        **quiet,
    )
    trainer = trainer_type(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_list([{"query": q, "document": d} for q, d in pairs]),
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


def main(job: Job) -> dict[str, Any]:
    """Return seconds and CPU seconds of each step, memory in bytes, and the loss on the first CHECKED pairs.

    A step lasts from the end of the previous step to the end of this step, so it includes reading and
    tokenising the batch. CPU time sums all threads. The loss, without dropout, is the same for every system.
    """
    if job.memory and job.device == "cpu":
        resource.setrlimit(resource.RLIMIT_DATA, (job.memory, job.memory))
    import numpy as np
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    torch.set_num_threads(job.threads)
    ends: list[tuple[float, float]] = []
    peak = 0

    def step_ended(*_: Any) -> None:  # all trainers call this function
        nonlocal peak
        if job.device == "cuda":
            torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() if job.device == "cuda" else memory("VmHWM")
        ends.append((time.perf_counter(), time.process_time()))

    hook = register_optimizer_step_post_hook(step_ended)
    with TemporaryDirectory() as folder:
        loss = SYSTEMS[job.system](job, Path(folder))
    hook.remove()
    seconds, cpu_seconds = np.diff(ends[WARMUP - 1 :], axis=0).T.tolist()
    names = ("retrieval-paradigms" if job.system == "ours" else job.system, "torch", "transformers")
    answer = {"seconds": seconds, "cpu_seconds": cpu_seconds, "memory": peak, "loss": loss}
    return answer | {"versions": {name: version(name) for name in names}}


if __name__ == "__main__":
    tell(main(Job(**json.loads(sys.argv[1]))))
