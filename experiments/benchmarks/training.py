"""Measure training steps of DPR and ColBERT in queries per CPU second, beside sentence-transformers.

All layers are trained, in float32 and in bf16. All systems start from the same encoder and see the same
batches in the same order; each system has a process of its own, and systems take turns within a round, so
that other load affects all alike. A step includes reading and tokenising its batch. Compare ratios: seconds
depend on the machine.
"""

import json
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from parts.settings import Benchmark
from studies.settings import Backbone, CollectionName, Rounds, Seed, Threads, at_least, launch, refusing

from paradigms.io.command_line import flags
from paradigms.train.checkpoints import HISTORY


@flags(rounds=3)
class Settings(Benchmark, Threads, Rounds, Seed, CollectionName, Backbone):
    """Settings for the pairs, the batches and the rounds.

    A pair is a training query of the collection and one of its relevant documents.
    """

    batch: int = 32
    """pairs of a batch"""
    length: int = 64
    """tokens of a text, at most"""
    steps: int = 1
    """timed steps of a round"""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, batch=2, length=4, rounds=1, threads=1, steps=1)


launch(__name__, Settings, __doc__)  # before the slow imports

import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device
from parts.measuring import memory, new_process
from studies.pages import Rows, Section, publish
from torch.optim.optimizer import register_optimizer_step_post_hook

from paradigms import PARADIGMS, Paradigm
from paradigms.align import QueryToDocument
from paradigms.data import Collection, Corpus, load_collection
from paradigms.encoder.batches import by_length
from paradigms.encoder.precision import native_precision
from paradigms.encoder.sources import packaged
from paradigms.encoder.text import TOKENS
from paradigms.io.device import chosen_device, processor
from paradigms.io.files import lock_until_exit
from paradigms.train.contrastive import Contrastive
from paradigms.train.examples import Example
from paradigms.train.loop import TrainingSettings, train
from paradigms.train.order import mixed_batches

TEMPERATURES = {"dpr": 0.05, "colbert": 1.0}  # of the softmax over rel; the peer's defaults
CHECKED = 8  # pairs for the loss that must be equal in all systems
WARMUP = 1  # untimed steps of a round
RATE = 2e-5
OURS = "ours"
PEER = "sentence-transformers"
Pairs = list[tuple[str, str]]


class Case(NamedTuple):
    """What a round measures."""

    paradigm: str
    precision: str
    system: str = OURS


class Round(NamedTuple):
    """A round's queries per CPU second, and the loss before training.

    On a GPU, seconds are those of the clock. peak: the process's memory in bytes, on a GPU that of the GPU.
    last: the loss of our last step.
    """

    rate: float
    loss: float
    peak: int = 0
    last: float = 0.0


def main(settings: Settings) -> None:
    lock_until_exit(settings.output)
    bf16 = native_precision(chosen_device()) == "bf16"
    rounds: dict[Case, list[Round]] = {case: [] for case in cases(bf16)}
    with refusing():
        pairs = drawn_pairs(settings)
    with ExitStack() as stack:
        keys = {(case.system, case.precision) for case in rounds}
        processes = {key: stack.enter_context(new_process()) for key in keys}
        for _ in range(settings.rounds):
            for case, answers in rounds.items():
                process = processes[case.system, case.precision]
                answers.append(process.submit(measure, settings, case, pairs).result())
    summary = (
        f"Rounds: {settings.rounds}; timed steps in each: {settings.steps}; texts of at most "
        f"{settings.length} tokens; {padding(settings, pairs)}; {settings.threads} thread(s) of "
        f"{processor()}, which other work may have shared."
    )
    summary += "" if bf16 else " bf16 is left out: this processor does not multiply it natively."
    summary += "" if find_spec("sentence_transformers") else f" {PEER} is not installed, and left out."
    publish(settings, "Training", summary, sections(rounds))


def cases(bf16: bool) -> list[Case]:
    systems = (OURS, PEER) if find_spec("sentence_transformers") else (OURS,)
    precisions = ("no", "bf16") if bf16 else ("no",)
    return [Case(*case) for case in product(TEMPERATURES, precisions, systems)]


def drawn_pairs(settings: Settings) -> Pairs:
    """Draw the pairs of all steps of a round."""
    needed = settings.batch * (WARMUP + settings.steps)
    return distinct_pairs(load_collection(settings.collection), needed, settings.seed)


def distinct_pairs(collection: Collection, number: int, seed: int) -> Pairs:
    """Draw training queries, each with a relevant document that is relevant to no other one."""
    split = collection.splits.get("train")
    if split is None:
        raise SystemExit(f"{collection.name} has no training queries")
    queries = sorted(split.judgements)
    places = torch.randperm(len(queries), generator=torch.Generator().manual_seed(seed))
    pairs: Pairs = []
    seen: set[str] = set()
    for query in (queries[n] for n in places.tolist()):
        grades = split.judgements[query]
        ids = (id for id, grade in grades.items() if grade > 0)
        relevant = {collection.corpus[collection.corpus.position(id)] for id in ids}
        if relevant and not relevant & seen:
            seen |= relevant
            pairs.append((split.queries[query], min(relevant)))
        if len(pairs) == number:
            return pairs
    raise SystemExit(
        f"{collection.name} has {len(pairs)} training queries without a relevant document in common, and "
        f"{number} are needed: ask for smaller batches or fewer steps"
    )


def padding(settings: Settings, pairs: Pairs) -> str:
    """Describe how much padding the batches of all layers' steps have, padded as a whole and in our parts."""
    encoder = PARADIGMS["dpr"](settings.backbone, document_length=settings.length).encoder
    size = settings.batch
    tokens = together = parts = 0
    for batch in mixed_batches([len(pairs)], [1.0], size, WARMUP + settings.steps, seed=settings.seed):
        for side in zip(*(pairs[n] for n in batch), strict=True):
            lengths = encoder.tokenize(side, "document").lengths()
            tokens += sum(lengths)
            together += size * max(lengths)
            parts += sum(len(part) * lengths[part[0]] for part in by_length(lengths, TOKENS["cpu"]))
    shares = (f"{1 - tokens / padded:.0%}" for padded in (together, parts))
    return "padding in batches of {} pairs: {} of the tokens, in our parts {}".format(size, *shares)


def measure(settings: Settings, case: Case, pairs: Pairs, changes: Mapping[str, Any] | None = None) -> Round:
    """Train for a round in this process. changes: fields of our `TrainingSettings`."""
    torch.set_num_threads(settings.threads)
    ends: list[float] = []
    hook = register_optimizer_step_post_hook(lambda *_: ends.append(seconds()))
    last = 0.0
    with TemporaryDirectory() as folder:
        place = Path(folder)
        if case.system == OURS:
            loss = ours(settings, case, pairs, place, changes or {})
            last = json.loads((place / HISTORY).read_text(encoding="utf-8").splitlines()[-1])["loss"]
        else:
            loss = sentence_transformers(settings, case, pairs, place)
    hook.remove()
    rate = settings.batch * settings.steps / (ends[-1] - ends[WARMUP - 1])
    on_gpu = chosen_device().type == "cuda"
    return Round(rate, loss, torch.cuda.max_memory_allocated() if on_gpu else memory(), last)


def seconds() -> float:
    """Return this process's CPU seconds or, on a GPU, the clock once its work is done."""
    if chosen_device().type != "cuda":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def contrastive(settings: Settings, paradigm: str, pairs: Pairs) -> tuple[Paradigm, Contrastive]:
    lengths: dict[str, Any] = {"query_length": settings.length, "document_length": settings.length}
    if paradigm == "colbert":  # as the peer's: no token is skipped, and Z = 1
        model = PARADIGMS["colbert"](settings.backbone, skip="", **lengths)
        model = model.with_alignment(QueryToDocument(), normalise="one")
    else:
        model = PARADIGMS["dpr"](settings.backbone, pooling="mean", **lengths)
    corpus = Corpus([str(n) for n in range(len(pairs))], [document for _, document in pairs])
    examples = [Example(query, n, (), (n,)) for n, (query, _) in enumerate(pairs)]
    return model, Contrastive(model.to(chosen_device()), corpus, examples)


def ours(settings: Settings, case: Case, pairs: Pairs, folder: Path, changes: Mapping[str, Any]) -> float:
    """Train with `paradigms.train`; return the loss on the first CHECKED pairs, before training."""
    steps = WARMUP + settings.steps
    training = TrainingSettings(
        steps=steps, batch_size=settings.batch, learning_rate=RATE, warmup=0.0, trained_layers=0,
        seed=settings.seed, temperature=TEMPERATURES[case.paradigm], log_every=steps,
    )  # fmt: skip
    training = replace(training, **changes)
    paradigm, objective = contrastive(settings, case.paradigm, pairs)
    objective.configure(training)
    device = chosen_device()
    accelerator = Accelerator(cpu=device.type == "cpu", mixed_precision=case.precision)
    with paradigm.evaluating(), torch.no_grad(), accelerator.autocast():
        batch = send_to_device(objective.collate(list(objective.examples[:CHECKED])), device)
        loss = objective.loss(paradigm, batch).item()
    train(paradigm, objective, training, folder, accelerator=accelerator, progress=False)
    return loss


def sentence_transformers(settings: Settings, case: Case, pairs: Pairs, folder: Path) -> float:
    """Train all layers with the peer's trainer; return the loss as `ours` does."""
    import sentence_transformers as peer
    from datasets import Dataset
    from sentence_transformers.base.modules import Normalize, Transformer
    from sentence_transformers.multi_vector_encoder.losses import MultiVectorMultipleNegativesRankingLoss
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
    from torch.utils.data import BatchSampler, SequentialSampler

    encoder = str(packaged(settings.backbone))
    scale = 1 / TEMPERATURES[case.paradigm]
    model: Any
    trainer_of: Any
    arguments: Any
    loss: torch.nn.Module
    if case.paradigm == "dpr":
        trainer_of = peer.SentenceTransformerTrainer
        arguments = peer.SentenceTransformerTrainingArguments
        model = peer.SentenceTransformer(encoder, device=str(chosen_device()))
        model.max_seq_length = settings.length
        loss = MultipleNegativesRankingLoss(model, scale=scale)
    else:
        trainer_of = peer.MultiVectorEncoderTrainer
        arguments = peer.MultiVectorEncoderTrainingArguments
        tokens = Transformer(encoder, query_length=settings.length, document_length=settings.length)
        parts = tokens, MultiVectorMask(skiplist_words=[]), Normalize(module_input_name="token_embeddings")
        model = peer.MultiVectorEncoder(modules=list(parts), device=str(chosen_device()))
        loss = MultiVectorMultipleNegativesRankingLoss(model, scale=scale)
    steps = WARMUP + settings.steps
    batches = mixed_batches([len(pairs)], [1.0], settings.batch, steps, seed=settings.seed)
    rows = [{"query": q, "document": d} for batch in batches for q, d in (pairs[n] for n in batch)]
    checked = [{"query": q, "document": d} for q, d in pairs[:CHECKED]]
    trainer = trainer_of(
        model=model,
        args=arguments(
            output_dir=str(folder), max_steps=steps, per_device_train_batch_size=settings.batch,
            batch_sampler=lambda rows, batch_size, drop_last, **_: BatchSampler(
                SequentialSampler(rows), batch_size, drop_last
            ),
            learning_rate=RATE, weight_decay=0.01, max_grad_norm=1.0,  # as in our trainer
            seed=settings.seed, bf16=case.precision == "bf16", use_cpu=chosen_device().type == "cpu",
            save_strategy="no", report_to="none", disable_tqdm=True,
        ),
        train_dataset=Dataset.from_list(rows),
        loss=loss,
    )  # fmt: skip
    batch = trainer.data_collator(checked)
    trainer.model.eval()
    with torch.no_grad(), trainer.compute_loss_context_manager():
        before = trainer.compute_loss(trainer.model, batch).item()
    trainer.train()
    return before


def sections(rounds: Mapping[Case, Sequence[Round]]) -> dict[str, Section]:
    """Make the table of our trainer beside the peer."""
    peers: Rows = []
    apart: dict[str, float] = {}
    for case, answers in rounds.items():
        precision = {"no": "float32"}.get(case.precision, case.precision)
        first = rounds[case._replace(system=OURS)]
        apart[precision] = max(apart.get(precision, 0), abs(answers[0].loss / first[0].loss - 1))
        row = {"paradigm": case.paradigm, "precision": precision, "system": case.system}
        rate = statistics.mean(answer.rate for answer in answers)
        peers.append(row | {"queries a CPU s": rate, "ours / system": ratio(first, answers)})
    equal = " and ".join(f"{value:.0e} in {precision}" for precision, value in apart.items())
    text = (
        "Means of the rounds; brackets: the lowest and the highest ratio of a round. The losses of "
        f"{CHECKED} pairs without dropout differ by at most {equal}, relative to ours."
    )
    return {"peers": Section("All layers trained, by system", text, peers)}


def ratio(numerator: Sequence[Round], denominator: Sequence[Round]) -> str:
    """Format the ratio of rates, round by round, as "mean [lowest, highest]"; "–" for a case by itself."""
    if numerator is denominator:
        return "–"
    values = [n.rate / d.rate for n, d in zip(numerator, denominator, strict=True)]
    return f"{statistics.mean(values):.2f} [{min(values):.2f}, {max(values):.2f}]"
