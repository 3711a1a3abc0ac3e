"""Train a model by minimising a loss over rel, in one or more processes, with accelerate."""

import json
import math
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device
from jaxtyping import Float
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.distributed.fsdp import FSDPModule
from torch.utils.data import DataLoader

from paradigms.core import at_least_float32
from paradigms.encoder.text import TextEncoder
from paradigms.io.progress import progress_bar
from paradigms.model import Trainable
from paradigms.train.checkpoint import append_history, place, read_progress
from paradigms.train.examples import step_batches
from paradigms.train.fast_cpu import fast_cpu
from paradigms.train.losses import LossSettings, Objective
from paradigms.train.parallel import gathered, prepare, sharded, unwrap
from paradigms.train.state import RunState, by_main, ending_all, locked_by_main, note_moved, signature

Trained = TypeVar("Trained", bound=Trainable)
# Settings that may change when a run resumes.
FREE = ("log_every", "save_every", "keep", "workers", "recompute", "minutes", "matmul_precision")
LOSS, NORM = "loss", "gradient's norm"
CHECKED = 1000  # batches whose examples must have negatives
Dev = Float[np.ndarray, " queries"]  # a measure of each dev query, higher is better


@dataclass(frozen=True, kw_only=True)
class TrainingSettings(LossSettings):
    """Settings for one training run. Batch sizes are per process; steps are optimizer steps."""

    steps: int = 1000
    batch_size: int = 32
    accumulation: int = 1  # batches per optimizer step; each has its own in-batch negatives
    learning_rate: float = 2e-5
    head_learning_rate: float | None = None  # rate of projections and other heads; None = learning_rate
    salience_learning_rate: float | None = None  # rate of salience heads; None = head_learning_rate
    weight_decay: float = 0.01
    warmup: float = 0.1  # share of the steps over which the rate rises; it then falls linearly to 0
    max_grad_norm: float = 1.0
    trained_layers: int = (
        0  # trained upper layers of each encoder; lower layers are frozen (`freeze`); 0 = all
    )
    recompute: bool = False  # recompute activations in the backward pass: less memory, more time
    # Use dropout, attention and products of `train.fast_cpu` on CPUs: ColBERT over all-MiniLM-L6-v2 on a Xeon
    # with AVX2 needs 40% less memory for activations in the same time; on AMD's Zen 5, products are twice as
    # fast.
    fast_cpu: bool = True
    # torch.set_float32_matmul_precision during training: "high" multiplies float32 as TF32 on GPUs with
    # TF32, which the kernels of `scoring.fused` need. "" = leave the process's setting unchanged.
    matmul_precision: str = ""
    seed: int = 0
    evaluate_every: int = 0  # steps between dev measures; 0 = only at the end
    evaluate_at: list[int] = field(default_factory=list)  # numbers of steps after which dev is also measured
    minutes: float = 0.0  # raise `Paused` at the first step that ends later, with a checkpoint; 0 = never
    save_every: int = 0  # steps between checkpoints; 0 = with every dev measure
    keep: int = 2  # checkpoints to keep; a run resumes from the newest intact one
    log_every: int = 10
    workers: int = 0  # processes that tokenise ahead; 0 = in the training process

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("steps", "batch_size", "accumulation", "keep", "log_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        at_least_0 = "weight_decay", "trained_layers", "evaluate_every", "save_every", "workers"
        for name in (*at_least_0, "minutes"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        rates = "learning_rate", "head_learning_rate", "salience_learning_rate"
        for name in (*rates, "max_grad_norm"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name} must be positive, got {value}")
        if self.matmul_precision not in ("", "highest", "high", "medium"):
            raise ValueError(
                f"matmul_precision must be highest, high or medium, got {self.matmul_precision!r}"
            )
        if not 0 <= self.warmup <= 1:
            raise ValueError(f"warmup is a share of the steps, in [0, 1], got {self.warmup}")


class Paused(Exception):
    """Raised when a training run reaches its time limit; the same call resumes from its checkpoint."""


def train(
    paradigm: Trained,
    objective: Objective,
    settings: TrainingSettings,
    folder: Path,
    *,
    accelerator: Accelerator | None = None,
    dev: Callable[[Trained], Dev] | None = None,
    progress: bool = True,
) -> Trained:
    """Minimise the objective; return the paradigm's last state, or an earlier state that `dev` rates higher.

    dev: measures each dev query. The last state is returned unless an earlier state, which may be the
    untrained one, had a higher mean by more than the standard error of the last state's mean.

    folder/checkpoints contains the newest checkpoints; the same call resumes exactly from the last intact
    one. folder/best contains the paradigm to return, and folder/history.jsonl contains the loss curve and the
    dev values. A non-finite loss, a full disk or a dead process ends the run and leaves the checkpoints
    unchanged. On a CPU, a non-finite loss ends the run at once. Reading every loss would slow a GPU, so its
    losses are checked with each log and before anything is measured or saved. Every process calls this with
    the same arguments and sees the same folder. Raises BlockingIOError while another run writes to the
    folder. On CPUs, a resumed run of one or two processes gives the same losses and weights, bit for bit, as
    an uninterrupted run; with more processes, or on GPUs, sums may be rounded in another order.
    """
    if settings.workers and objective.renews:
        raise ValueError(
            f"workers={settings.workers} would make batches before {paradigm.name} renews its clusters: set "
            "workers=0"
        )
    accelerator, began = accelerator or Accelerator(), time.monotonic()
    _check_negatives(objective.configure(settings), settings, accelerator)
    freeze(paradigm, settings.trained_layers)
    with ExitStack() as stack:
        stack.enter_context(locked_by_main(folder, accelerator))
        if settings.fast_cpu:
            stack.enter_context(fast_cpu(paradigm))
        stack.enter_context(_multiplying(settings.matmul_precision))
        run = _Run(paradigm, objective, settings, folder, accelerator)
        stack.callback(note_moved, paradigm, folder, run.state.signature["weights"])
        start = run.state.resume()
        micro = settings.accumulation
        drawn = step_batches(
            len(objective.examples),
            settings.batch_size,
            settings.steps * micro,
            start=start * micro,
            rank=accelerator.process_index,
            world=accelerator.num_processes,
            seed=settings.seed,
        )
        loader: DataLoader[Any] = DataLoader(
            objective.examples,  # type: ignore[arg-type]  # a sequence is a dataset
            batch_sampler=drawn,
            collate_fn=objective.collate,
            num_workers=settings.workers,
            generator=torch.Generator(),  # opening a loader must not draw from dropout's generator
            pin_memory=accelerator.device.type
            == "cuda",  # copies to the device then overlap with computation
        )
        batches = iter(loader)
        with progress_bar(progress and accelerator.is_main_process) as bar:
            task = bar.add_task(f"train {paradigm.name}", total=settings.steps, completed=start)
            if dev is not None and run.state.best == -math.inf:  # no dev measure yet
                bar.update(task, description=f"train {paradigm.name}, dev queries")
                run.measure(start, dev)
            for step in range(start, settings.steps):
                with ending_all(accelerator, step):
                    loss = run.step(step, batches)
                bar.update(task, completed=step + 1, description=f"train {paradigm.name} loss {loss:.3f}")
                done, last = step + 1, step + 1 == settings.steps
                due = last or _due(done, settings.evaluate_every) or done in settings.evaluate_at
                if dev is not None and due:
                    bar.update(task, description=f"train {paradigm.name} loss {loss:.3f}, dev queries")
                    run.measure(done, dev, last=last)
                pause = not last and run.late(began)
                if pause or last or (_due(done, settings.save_every) if settings.save_every else due):
                    run.read()
                    run.state.save(done)
                if pause:
                    raise Paused(f"{paradigm.name} after {done:,} of {settings.steps:,} steps")
        accelerator.wait_for_everyone()
        unwrap(paradigm, accelerator)
    if dev is None and not isinstance(paradigm, FSDPModule):
        return paradigm
    return type(paradigm).from_pretrained(place(folder, settings.steps) if dev is None else folder / "best")


def training_seconds(folder: Path) -> float:
    """Seconds spent in training steps, over all interruptions."""
    progress = read_progress(folder)
    return float(progress["seconds"]) if progress else math.nan


def kept_step(folder: Path) -> int | None:
    """Return the number of steps that led to the state returned by `train`; 0 means untrained.

    Without dev queries, this is the newest checkpoint's step. Returns None if `folder` contains no run.
    """
    progress = read_progress(folder)
    if progress is None:
        return None
    return progress["step"] if progress["best"] == -math.inf else progress["best_step"]


def dev_values(folder: Path) -> dict[int, Dev]:
    """Read a run's values on the dev queries, keyed by number of steps; 0 steps means untrained."""
    file = folder / "history.jsonl"
    lines = map(json.loads, file.read_text(encoding="utf-8").splitlines() if file.is_file() else [])
    return {line["step"]: np.array(line["dev_values"]) for line in lines if "dev_values" in line}


def freeze(paradigm: Trainable, trained_layers: int) -> None:
    """Call `TextEncoder.freeze` on each encoder of the paradigm. Raises ValueError if there is none."""
    encoders = [module for module in paradigm.modules() if isinstance(module, TextEncoder)]
    if trained_layers and (not encoders or sharded()):
        why = "shards of its weights" if encoders else "no encoder whose layers could be frozen"
        raise ValueError(f"trained_layers={trained_layers}: {paradigm.name} has {why}; set it to 0")
    for encoder in encoders:
        encoder.freeze(trained_layers)


def _check_negatives(objective: Objective, s: TrainingSettings, accelerator: Accelerator) -> None:
    """Raise ValueError if the first batches teach nothing without negatives; warn if any example has none."""
    size = s.batch_size
    count = alone = 0
    together = size * accelerator.num_processes
    batches = min(s.steps * s.accumulation, max(1, len(objective.examples) // together), CHECKED)
    for drawn in step_batches(len(objective.examples), together, batches, seed=s.seed):
        examples = [objective.examples[n] for n in drawn]
        count += together
        alone += objective.without_negatives([examples[n : n + size] for n in range(0, together, size)])
    refused = alone == count and not objective.learns_alone
    if refused or (alone and accelerator.is_main_process):
        what = (
            f"{alone:,} of the first {count:,} training examples of {objective.model.name} have no negative "
            f"in their batch of {together}, so ranking them teaches nothing: choose a larger batch_size, or "
            "examples with hard negatives"
        )
        if refused:
            raise ValueError(what)
        warnings.warn(what, RuntimeWarning, stacklevel=3)


class _Run:
    """A training run: optimizer steps, dev measures and the state for checkpoints."""

    def __init__(
        self,
        paradigm: Trainable,
        objective: Objective,
        s: TrainingSettings,
        folder: Path,
        accelerator: Accelerator,
    ) -> None:
        self.paradigm, self.settings, self.folder, self.accelerator = paradigm, s, folder, accelerator
        self.objective = objective
        bound = {name: value for name, value in asdict(s).items() if name not in FREE}
        signed = signature(paradigm, bound, objective.examples, folder, accelerator)
        accelerator.gradient_accumulation_steps = s.accumulation
        if accelerator.scaler is not None:  # do not start with the scale at which an earlier run ended
            accelerator.scaler.load_state_dict(torch.amp.GradScaler(accelerator.device.type).state_dict())
        accelerator.step = 0  # a run that failed within an accumulation leaves a count
        paradigm.zero_grad()  # and gradients
        torch.manual_seed(s.seed * 1_000_003 + accelerator.process_index)
        self.model, full = prepare(paradigm, accelerator, recompute=s.recompute)
        heads = s.head_learning_rate or s.learning_rate
        salience = s.salience_learning_rate or heads
        rates = {"backbone": s.learning_rate, "heads": heads, "salience_heads": salience}
        groups: dict[str, dict[str, Any]] = {part: {"params": [], "lr": rate} for part, rate in rates.items()}
        for name, parameter in paradigm.named_parameters():
            if parameter.requires_grad:
                part = next((part for part in rates if part in name.split(".")), "heads")
                groups[part]["params"].append(parameter)
        optimizer = torch.optim.AdamW(
            [group for group in groups.values() if group["params"]],
            weight_decay=s.weight_decay,
            fused=accelerator.device.type in ("cpu", "cuda"),  # one pass over memory instead of ten
        )
        self.optimizer = accelerator.prepare_optimizer(optimizer)
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        self.waits = accelerator.device.type == "cpu"  # CPU values can be read at once
        self.unread: list[tuple[int, str, Tensor]] = []  # numbers on the device: step, name, value
        self.losses, self.norm = deque([math.nan], maxlen=s.accumulation), math.nan  # of the last step read
        self.state = RunState(paradigm, full, self.optimizer.optimizer, folder, accelerator, signed, s.keep)

    def step(self, step: int, batches: Any) -> float:
        """Take one optimizer step; return the last known loss, averaged over batches and processes."""
        began = time.perf_counter()
        self.model.train()
        self.objective.prepare(step, self.settings.steps)
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * _schedule(step, self.settings)
        for _ in range(self.settings.accumulation):
            device = self.accelerator.device
            batch = send_to_device(self._next(batches), device, non_blocking=device.type == "cuda")
            with self.accelerator.accumulate(self.model):
                loss = self.objective.loss(self.model, batch)
                # The mean over processes, so that all stop together; otherwise the others would wait.
                self._note(step, LOSS, self.accelerator.reduce(loss.detach().clone(), "mean"))
                self.accelerator.backward(loss)
                if self.accelerator.sync_gradients:
                    parameters = self.model.parameters()
                    norm = self.accelerator.clip_grad_norm_(parameters, self.settings.max_grad_norm)
                    self._note(step, NORM, gathered(norm))
                self.optimizer.step()
                self.optimizer.zero_grad()
                torch.clear_autocast_cache()  # an outer autocast would otherwise reuse old weights
        for group in self.optimizer.param_groups:
            # Fused AdamW does not increment versions, which show changes of few rows, as of the embeddings.
            increment_version(group["params"])
        self.state.seconds += time.perf_counter() - began
        if _due(step + 1, self.settings.log_every) or step == 0:
            self.read()
            rate = self.optimizer.param_groups[0]["lr"]
            self._log(step + 1, {"loss": self.loss, "gradient_norm": self.norm, "learning_rate": rate})
        return self.loss

    @property
    def loss(self) -> float:
        """Mean loss of the last step that was read."""
        return sum(self.losses) / len(self.losses)

    def _note(self, step: int, what: str, value: Tensor) -> None:
        """Store a number from a step until `read` checks it. what: the number's name."""
        self.unread.append((step, what, value))
        if self.waits:
            self.read()

    def read(self) -> None:
        """Read and check all numbers noted since the last call, after a GPU has finished their steps.

        Raises FloatingPointError at the first non-finite number. With a scaler, gradient norms may be
        infinite: the scaler skips such steps.
        """
        noted, self.unread = self.unread, []
        values = torch.stack([at_least_float32(value) for _, _, value in noted]).tolist() if noted else []
        for (step, what, _), value in zip(noted, values, strict=True):
            if not math.isfinite(value) and (what == LOSS or self.accelerator.scaler is None):
                raise FloatingPointError(
                    f"the {what} is {value} at step {step + 1}; the checkpoint before it is kept. A smaller "
                    "learning_rate, a larger temperature or precision 'no' usually helps"
                )
            if what == LOSS:
                self.losses.append(value)
            else:
                self.norm = value

    @staticmethod
    def _next(batches: Any) -> Any:
        """Return the next batch. Raises RuntimeError if the worker loading it has died.

        torch itself reports a worker's death, unless the worker leaves half a batch behind.
        """
        try:
            return next(batches)
        except (ConnectionError, EOFError) as error:
            raise RuntimeError(
                f"a DataLoader worker died while it sent a batch, perhaps for lack of memory ({error}): "
                "repeat the command to resume from the last checkpoint, with fewer workers if need be"
            ) from error

    def late(self, began: float) -> bool:
        """Return whether the run has reached its time limit, with the same answer on all processes."""
        minutes = self.settings.minutes
        return minutes > 0 and by_main(lambda: time.monotonic() - began > 60 * minutes, self.accelerator)

    def measure(self, step: int, dev: Callable[[Any], Dev], *, last: bool = False) -> None:
        """Compute the dev measure on the main process, and save the paradigm if it is the best so far."""
        self.read()
        model = self.state.full_model()

        def measured() -> None:
            values = dev(model.to(self.accelerator.device))
            value = float(values.mean())
            error = float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else 0.0
            self._log(step, {"dev": value, "dev_standard_error": error}, dev_values=values.tolist())
            if value > self.state.best or (last and value >= self.state.best - error):
                self.state.save_best(model, value, step)
            if model is not self.paradigm:
                model.cpu()  # the copy of sharded weights: training needs the device's memory

        by_main(measured, self.accelerator)

    def _log(self, step: int, values: dict[str, float], **more: list[float]) -> None:
        """Log `values`, and write them to the history together with `more`."""
        name = self.paradigm.name
        # A tracker's steps only rise, but several paradigms train in one run, each from step 0.
        self.accelerator.log({f"{name}/{key}": value for key, value in (values | {"step": step}).items()})
        if self.accelerator.is_main_process:
            append_history(self.folder / "history.jsonl", {"step": step, **values, **more})


@contextmanager
def _multiplying(precision: str) -> Iterator[None]:
    """Context that sets torch's float32 matmul precision; "" changes nothing."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision or before)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _schedule(step: int, s: TrainingSettings) -> float:
    """Learning-rate factor: linear warm-up over warmup·steps from above 0, then linear decay to 0."""
    rise = max(1, round(s.warmup * s.steps))
    if step < rise:
        return (step + 1) / rise
    return (s.steps - step) / max(1, s.steps - rise)


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
