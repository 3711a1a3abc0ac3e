"""Train a model by minimising a loss over rel, in one or more processes, with accelerate."""

import math
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, TypeVar

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
from paradigms.encoder.backbone import without_weights
from paradigms.encoder.text import TextEncoder
from paradigms.io.checks import Range
from paradigms.io.progress import progress_bar
from paradigms.train.checkpoints import append_history, checkpoint_folder
from paradigms.train.losses import LossSettings, Objective
from paradigms.train.order import mixed_batches
from paradigms.train.parallel import (
    adapted,
    by_main,
    ending_all,
    gathered,
    locked_by_main,
    prepare,
    sharded,
    unwrap,
    waiting_at_most,
)
from paradigms.train.settings import AtLeast0, AtLeast1, Positive, PositiveOrNone, RunOptions
from paradigms.train.state import RunState, note_moved, signature
from paradigms.trainable import Trainable

Trained = TypeVar("Trained", bound=Trainable)
Dev = Float[np.ndarray, " queries"]  # a measure of each dev query, higher is better
# Settings that may change when a run resumes.
FREE = ("log_every", "save_every", "keep", "workers", "recompute", "minutes", "matmul_precision", "patience")
STEP = timedelta(minutes=30)  # how long a process waits for the others within a step
CHECKED = 1000  # batches whose examples must have negatives


@dataclass(kw_only=True)
class TrainingSettings(LossSettings, RunOptions):
    """Settings for one training run. Batch sizes are per process.

    A run resumes with another number of processes if their batches add up to as many examples, and with more
    `steps`: from the resumed step on, learning rates are those of the longer run, above the rates before.
    """

    steps: AtLeast1 = 1000
    batch_size: AtLeast1 = 32
    learning_rate: Positive = 2e-5
    head_learning_rate: PositiveOrNone = None  # of projections and other heads; None = learning_rate
    salience_learning_rate: PositiveOrNone = None  # of salience heads; None = head_learning_rate
    weight_decay: Annotated[float, Range(0, math.inf)] = 0.01
    # share of the steps over which the rate rises; it then falls linearly to 0
    warmup: Annotated[float, Range(0, 1)] = 0.1
    max_grad_norm: Positive = 1.0
    # trained upper layers of each encoder; lower layers are frozen (`freeze`); 0 = all
    trained_layers: AtLeast0 = 0
    seed: int = 0
    evaluate_every: AtLeast0 = 0  # steps between dev measures; 0 = only at the end
    evaluate_at: list[int] = field(default_factory=list)  # numbers of steps after which dev is also measured
    # raise `Paused` at the first step that ends later, with a checkpoint; 0 = never
    minutes: Annotated[float, Range(0, math.inf)] = 0.0
    log_every: AtLeast1 = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.patience and not self.evaluate_every:
            raise ValueError(f"patience={self.patience} counts dev measures: set evaluate_every")


class Paused(Exception):
    """Raised when a training run is out of time or receives SIGTERM; the same call resumes it."""


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

    dev: measures each dev query; all processes call it and receive all values, or the main process alone if
    the launch shards the model; its attribute `digest`, if there is one, must match to resume. The last state
    is returned unless an earlier state, which may be the untrained one, had a higher mean by more than the
    standard error of the last state's mean.

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
    if settings.patience and dev is None:
        raise ValueError(f"patience={settings.patience} counts dev measures, and there are no dev queries")
    accelerator = accelerator or Accelerator()
    began = time.monotonic()
    _check_negatives(objective.configure(settings), settings, accelerator)
    half = accelerator.mixed_precision == "bf16"
    if settings.gathered_weights == "bf16" and not (sharded() and half):
        raise ValueError("gathered_weights=bf16 needs shards (fsdp.yaml) and precision bf16")
    if settings.adapted_weights == "bf16" and (sharded() or not (half and adapted(paradigm))):
        raise ValueError("adapted_weights=bf16 needs adapters (lora_rank), precision bf16, no shards")
    attend(paradigm, settings.attention)
    freeze(paradigm, settings.trained_layers, settings.parts)
    with locked_by_main(folder, accelerator), _multiplying(settings.matmul_precision):
        run = _Run(paradigm, objective, settings, folder, accelerator, dev)
        try:
            with run.noticing_termination():
                run.train(began, progress)
            accelerator.wait_for_everyone()
            unwrap(paradigm, accelerator)
        finally:
            note_moved(paradigm, folder, run.state.signature["weights"])
    if dev is None and not isinstance(paradigm, FSDPModule):
        return paradigm
    place = folder / "best" if dev is not None else checkpoint_folder(folder, settings.steps)
    empty = isinstance(paradigm, FSDPModule) and not accelerator.is_main_process
    with without_weights() if empty else nullcontext():
        return type(paradigm).from_pretrained(place)


class _Run:
    """A training run: optimizer steps, dev measures and the state for checkpoints."""

    def __init__(
        self,
        paradigm: Trainable,
        objective: Objective,
        s: TrainingSettings,
        folder: Path,
        accelerator: Accelerator,
        dev: Callable[[Any], Dev] | None,
    ) -> None:
        self.paradigm = paradigm
        self.objective = objective
        self.settings = s
        self.folder = folder
        self.accelerator = accelerator
        self.dev = dev
        fixed = {name: value for name, value in asdict(s).items() if name not in FREE}
        dev_digest = getattr(dev, "digest", "")
        signed = signature(paradigm, fixed, objective.digest(), folder, accelerator, dev_digest)
        if accelerator.scaler is not None:  # do not start with the scale at which an earlier run ended
            accelerator.scaler.load_state_dict(torch.amp.GradScaler(accelerator.device.type).state_dict())
        accelerator.gradient_accumulation_steps = 1  # more would divide the loss
        accelerator.sync_gradients = True  # False, left by another loop's accumulation, would skip steps
        paradigm.zero_grad()  # a run that failed between a backward pass and its step leaves gradients
        torch.manual_seed(s.seed * 1_000_003 + accelerator.process_index)
        self.model, full = prepare(
            paradigm,
            accelerator,
            recompute=s.recompute,
            gathered_weights=s.gathered_weights,
            adapted_weights=s.adapted_weights,
        )
        optimizer = torch.optim.AdamW(
            _parameter_groups(paradigm, s),
            weight_decay=s.weight_decay,
            fused=accelerator.device.type in ("cpu", "cuda"),  # one pass over memory instead of ten
        )
        self.optimizer = accelerator.prepare_optimizer(optimizer)
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        self.waits = accelerator.device.type == "cpu"  # CPU values can be read at once
        # on the device: step, loss, gradient's norm, share of processes that are to end
        self.unread: list[tuple[int, Tensor, Tensor, Tensor]] = []
        self.terminated = False  # this process has received SIGTERM
        self.ending = False  # one of the processes had received it when the last step read began
        self.loss = math.nan  # of the last step read
        self.norm = math.nan
        self.timed = 0, 0.0  # steps, and seconds in them, when the rate was last logged
        self.state = RunState(paradigm, full, self.optimizer.optimizer, folder, accelerator, signed, s.keep)

    def train(self, began: float, progress: bool) -> None:
        """Resume, and take all remaining steps. began: time at which the call of `train` began."""
        name = f"train {self.paradigm.name}"
        start = self.state.resume()
        self.timed = start, self.state.seconds
        for tracker in self.accelerator.trackers:
            if tracker.name == "wandb":
                axis = f"{self.paradigm.name}/step"
                tracker.tracker.define_metric(f"{self.paradigm.name}/*", step_metric=axis)
        batches = self._batches(start)
        with progress_bar(progress and self.accelerator.is_main_process) as bar:
            task = bar.add_task(name, total=self.settings.steps, completed=start)
            if self.dev is not None and self.state.best == -math.inf:  # no dev measure yet
                bar.update(task, description=f"{name}, dev queries")
                self.measure(start, self.dev)
            for step in range(start, self.settings.steps):
                if self.exhausted(step):
                    break
                with ending_all(self.accelerator, step), waiting_at_most(STEP, self.accelerator.device):
                    self.step(step, batches)
                bar.update(task, completed=step + 1, description=f"{name} loss {self.loss:.3f}")
                self.finish(step + 1, began)

    @contextmanager
    def noticing_termination(self) -> Iterator[None]:
        """Context in which SIGTERM, which clusters send before they kill, ends the run with a checkpoint."""
        if threading.current_thread() is not threading.main_thread():
            yield  # no other thread may set handlers
            return

        def notice(*_: object) -> None:
            self.terminated = True

        before = signal.signal(signal.SIGTERM, notice)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    def _batches(self, start: int) -> Iterator[Any]:
        s = self.settings
        positions = mixed_batches(
            *self.objective.collections(),
            s.batch_size,
            s.steps,
            start=start,
            rank=self.accelerator.process_index,
            world=self.accelerator.num_processes,
            seed=s.seed,
        )
        loader: DataLoader[Any] = DataLoader(
            self.objective.examples,  # type: ignore[arg-type]  # a sequence is a dataset
            batch_sampler=positions,
            collate_fn=self.objective.collate,
            num_workers=s.workers,
            generator=torch.Generator(),  # opening a loader must not draw from dropout's generator
            # copies to the device then overlap with computation
            pin_memory=self.accelerator.device.type == "cuda",
        )
        return iter(loader)

    def step(self, step: int, batches: Iterator[Any]) -> None:
        began = time.perf_counter()
        self.model.train()
        self.objective.prepare(step, self.settings.steps)
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * _schedule(step, self.settings)
        device = self.accelerator.device
        batch = send_to_device(_next(batches), device, non_blocking=device.type == "cuda")
        loss = self.objective.loss(self.model, batch)
        # The mean over processes, so that all stop together; otherwise the others would wait.
        local = torch.stack([loss.detach(), loss.new_full((), self.terminated)])
        mean, ending = self.accelerator.reduce(local, "mean")
        self.accelerator.backward(loss)
        norm = self.accelerator.clip_grad_norm_(self.model.parameters(), self.settings.max_grad_norm)
        self.unread.append((step, mean, gathered(norm), ending))
        if self.waits:
            self.read()
        self.optimizer.step()
        self.optimizer.zero_grad()
        torch.clear_autocast_cache()  # an outer autocast would otherwise reuse old weights
        for group in self.optimizer.param_groups:
            # Fused AdamW does not increment versions, which show changes of few rows, as of the embeddings.
            increment_version(group["params"])
        self.state.seconds += time.perf_counter() - began
        if step == 0 or _due(step + 1, self.settings.log_every):
            self.read()
            steps, seconds = self.timed
            self.timed = step + 1, self.state.seconds
            pairs = (step + 1 - steps) * self.settings.batch_size * self.accelerator.num_processes
            speed = pairs / max(1e-9, self.state.seconds - seconds)
            rate = self.optimizer.param_groups[0]["lr"]
            values = {"loss": self.loss, "gradient_norm": self.norm, "learning_rate": rate}
            self._log(step + 1, values, {"pairs_per_second": speed})

    def read(self) -> None:
        """Read and check the losses and norms of all steps since the last call, which a GPU must finish.

        Raises FloatingPointError at the first non-finite number. With a scaler, gradient norms may be
        infinite: the scaler skips such steps.
        """
        if not self.unread:
            return
        unread = self.unread
        self.unread = []
        values = torch.stack([at_least_float32(value) for _, *row in unread for value in row]).view(-1, 3)
        for (step, *_), (loss, norm, ending) in zip(unread, values.tolist(), strict=True):
            self.ending = self.ending or ending > 0
            for name, value in (("loss", loss), ("gradient's norm", norm)):
                if not math.isfinite(value) and (name == "loss" or self.accelerator.scaler is None):
                    raise FloatingPointError(
                        f"the {name} is {value} at step {step + 1}; the checkpoint before it is kept. A "
                        "smaller learning_rate, a larger temperature or precision 'no' usually helps"
                    )
            self.loss = loss
            self.norm = norm

    def finish(self, done: int, began: float) -> None:
        """Measure and save the state after `done` steps, if due. Raises `Paused` at the limit or SIGTERM."""
        s = self.settings
        last = done == s.steps
        due = last or _due(done, s.evaluate_every) or done in s.evaluate_at
        if due and self.dev is not None:
            self.measure(done, self.dev, last=last)
        last = last or (due and self.exhausted(done))
        late = self.ending and not last
        if not late and not last and s.minutes > 0:  # the main process's clock decides for all
            late = by_main(lambda: time.monotonic() - began > 60 * s.minutes, self.accelerator)
        if last or late or (_due(done, s.save_every) if s.save_every else due):
            self.read()
            self.state.save(done, last=last)
        if late:
            why = "SIGTERM" if self.ending else f"{s.minutes:g} minutes"
            raise Paused(f"{why}: {self.paradigm.name} after {done:,} of {s.steps:,} steps")

    def exhausted(self, done: int) -> bool:
        """Return whether the last `patience` regular dev measures brought no better state."""
        s = self.settings
        if self.dev is None or not s.patience or not done or not _due(done, s.evaluate_every):
            return False
        waited = by_main(lambda: done - self.state.best_step, self.accelerator)
        return waited >= s.patience * s.evaluate_every

    def measure(self, step: int, dev: Callable[[Any], Dev], *, last: bool = False) -> None:
        """Compute the dev measure, and save the paradigm if it is the best so far."""
        self.read()
        model = self.state.full_model()

        def evaluate() -> Dev:
            return dev(model.to(self.accelerator.device))

        values = by_main(evaluate, self.accelerator) if self.state.shards else evaluate()

        def save_best() -> None:
            mean = float(values.mean())
            error = float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else 0.0
            self._log(step, {"dev": mean, "dev_standard_error": error}, {}, dev_values=values.tolist())
            if mean > self.state.best or (last and mean >= self.state.best - error):
                model.save_pretrained(self.folder / "best")
                self.state.best = mean
                self.state.best_step = step

        by_main(save_best, self.accelerator)
        self.state.empty()  # training needs the memory

    def _log(self, step: int, values: dict[str, float], only: dict[str, float], **more: list[float]) -> None:
        name = self.paradigm.name
        # A tracker's steps only rise, but several paradigms train in one run, each from step 0.
        logged = values | only | {"step": step}
        self.accelerator.log({f"{name}/{key}": value for key, value in logged.items()})
        if self.accelerator.is_main_process:
            append_history(self.folder, {"step": step, **values, **more})


def _parameter_groups(paradigm: Trainable, s: TrainingSettings) -> list[dict[str, Any]]:
    heads = s.head_learning_rate or s.learning_rate
    salience = s.salience_learning_rate or heads
    rates = {"backbone": s.learning_rate, "heads": heads, "salience_heads": salience}
    groups: dict[str, dict[str, Any]] = {part: {"params": [], "lr": rate} for part, rate in rates.items()}
    for name, parameter in paradigm.named_parameters():
        if parameter.requires_grad:
            part = next((part for part in rates if part in name.split(".")), "heads")
            groups[part]["params"].append(parameter)
    return [group for group in groups.values() if group["params"]]


def _schedule(step: int, s: TrainingSettings) -> float:
    """Learning-rate factor: linear warm-up over warmup·steps from above 0, then linear decay to 0."""
    rise = max(1, round(s.warmup * s.steps))
    if step < rise:
        return (step + 1) / rise
    return (s.steps - step) / max(1, s.steps - rise)


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def _next(batches: Iterator[Any]) -> Any:
    """Return the next batch. Raises RuntimeError if the worker loading it has died."""
    try:
        return next(batches)
    except (ConnectionError, EOFError) as error:  # of half a batch; torch reports other deaths
        raise RuntimeError(
            f"a DataLoader worker died while it sent a batch, perhaps for lack of memory ({error}): "
            "repeat the command to resume from the last checkpoint, with fewer workers if need be"
        ) from error


def _check_negatives(objective: Objective, s: TrainingSettings, accelerator: Accelerator) -> None:
    """Raise ValueError if the first batches teach nothing without negatives; warn if any example has none."""
    size = s.batch_size
    together = size * accelerator.num_processes
    batches = min(s.steps, max(1, len(objective.examples) // together), CHECKED)
    alone = 0
    for positions in mixed_batches(*objective.collections(), together, batches, seed=s.seed):
        examples = [objective.examples[n] for n in positions]
        alone += objective.without_negatives([examples[n : n + size] for n in range(0, together, size)])
    if not alone:
        return
    count = batches * together
    message = (
        f"{alone:,} of the first {count:,} training examples of {objective.model.name} have no negative "
        f"in their batch of {together}, so ranking them teaches nothing: choose a larger batch_size, or "
        "examples with hard negatives"
    )
    if alone == count and not objective.learns_alone:
        raise ValueError(message)
    if accelerator.is_main_process:
        warnings.warn(message, RuntimeWarning, stacklevel=3)


def freeze(paradigm: Trainable, trained_layers: int, parts: int = 1) -> None:
    """Call `TextEncoder.freeze` on each encoder, and set its `parts`. Raises ValueError if there is none."""
    encoders = [module for module in paradigm.modules() if isinstance(module, TextEncoder)]
    if trained_layers and (not encoders or sharded()):
        why = "shards of its weights" if encoders else "no encoder whose layers could be frozen"
        raise ValueError(f"trained_layers={trained_layers}: {paradigm.name} has {why}; set it to 0")
    for encoder in encoders:
        encoder.freeze(trained_layers)
        encoder.parts = parts


def attend(paradigm: Trainable, attention: str) -> None:
    """Set transformers' implementation of attention; "" changes nothing. Raises ValueError if it fails."""
    backbones: list[Any] = [part for part in paradigm.modules() if hasattr(part, "set_attn_implementation")]
    try:
        for backbone in backbones if attention else ():
            before = backbone.config._attn_implementation
            backbone.set_attn_implementation(attention)  # or of a package with the same kernels
            if backbone.config._attn_implementation == before != attention:  # transformers only logs this
                raise ValueError(f"{type(backbone).__name__} has no choice of attention")
    except (ImportError, ValueError) as error:
        raise ValueError(f"attention={attention!r}: {error}") from error


@contextmanager
def _multiplying(precision: str) -> Iterator[None]:
    """Context that sets torch's float32 matmul precision; "" changes nothing."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision or before)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
