"""Check training on one GPU: memory, exactness, waits and speed.

gpu-DEVICE.json in the results folder is written after each check; the same command runs those that have not
passed. On a CPU (--device cpu), checks run at small sizes, or say that they need a GPU. Encoders have random
weights; pairs are those of pydocs.
"""

import hashlib
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from studies.settings import Output, check_names, launch

from paradigms.io.command_line import flags


@flags(output="experiments/results")
class Settings(Output):
    """Settings for the checks."""

    checks: list[str] = field(default_factory=list)
    """checks to run, even if they have passed; empty: all that have not passed"""

    def __post_init__(self) -> None:
        if self.checks:
            check_names(self, "checks", CHECKS)


launch(__name__, Settings, __doc__)  # before the slow imports

sys.path.append(str(Path(__file__).parent / "benchmarks"))

import torch
import training
from accelerate.utils import send_to_device
from parts.measuring import MiB, cpu_seconds, medians, new_process
from studies.counted import Living
from studies.pages import ROOT, Rows, Section, print_sections, study
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import BertConfig, BertModel

from paradigms.align import NORMALISERS, Alignment, PoolTopK, QueryToDocument, TopK
from paradigms.core import Tokens, rel
from paradigms.encoder.backbone import load_tokenizer
from paradigms.encoder.precision import autocast
from paradigms.encoder.sources import packaged
from paradigms.io.checks import json_or_empty
from paradigms.io.device import chosen_device, processor
from paradigms.io.files import write_json
from paradigms.io.terminal import Terminal, printable
from paradigms.scoring import in_batch
from paradigms.train.loop import TrainingSettings

ROUNDED = 0.05  # relative difference of losses whose sums are rounded in 16 bits or another order
# Alignments that paradigms train with.
SCORED: dict[str, tuple[Alignment, str]] = {
    "colbert": (QueryToDocument(), "one"),
    "xtr": (PoolTopK(k=320), "retrieved"),
    "aligner": (TopK(k=1), "total"),
}

# Sizes of BERTs; {}: transformers' default, BERT-base.
SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}


@dataclass(frozen=True)
class Place:
    """What the checks share: a device and a temporary folder."""

    device: torch.device
    folder: Path

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def backbone(self) -> str:
        """Write a BERT with random weights, base-sized on a GPU; return its folder."""
        torch.manual_seed(0)
        tokenizer = load_tokenizer(packaged("offline"))
        sizes: dict[str, Any] = {} if self.on_gpu else SMALL
        folder = self.folder / "backbone"
        BertModel(BertConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return str(folder)

    def settings(self) -> training.Settings:
        batch, length, steps = (32, 180, 8) if self.on_gpu else (8, 32, 2)
        return training.Settings(backbone=self.backbone(), batch=batch, length=length, steps=steps)

    def train(self, precision: str = "no", kernels: bool = True, **changes: Any) -> training.Round:
        """Train a ColBERT in a new process. changes: fields of `TrainingSettings`."""
        settings = self.settings()
        case = training.Case("colbert", precision)
        with new_process() as process:
            process.submit(use_kernels, kernels).result()
            pairs = training.drawn_pairs(settings)
            return process.submit(training.measure, settings, case, pairs, changes).result()


def use_kernels(use: bool) -> None:
    in_batch.FUSED = {"cuda"} if use else set()


def in_batch_scores(place: Place) -> Rows:
    """What do in-batch scores cost, forward and backward?"""
    sizes = (512, 32, 180, 128) if place.on_gpu else (16, 8, 24, 16)
    rows: Rows = []
    for vectors in ("tf32", "bfloat16") if place.on_gpu else ("float32",):
        torch.set_float32_matmul_precision("high" if vectors == "tf32" else "highest")
        sides = unit_tokens(place, getattr(torch, vectors.replace("tf32", "float32")), *sizes)
        for name, (align, normalise) in SCORED.items():
            for way in ("plain", "chunks", *["kernels"] * (place.on_gpu and align.is_maximum())):
                use_kernels(way == "kernels")
                score = rel if way == "plain" else in_batch.in_batch_rel
                work = partial(scored, place, sides, score, align, NORMALISERS[normalise])
                costs = {"MiB": peak(place, work) / MiB, "ms": 1000 * medians([work], 3)[0]}
                rows.append({"case": name, "vectors": vectors, "way": way} | costs)
    use_kernels(True)
    torch.set_float32_matmul_precision("highest")
    return rows


def unit_tokens(
    place: Place, dtype: torch.dtype, batch: int, query_tokens: int, document_tokens: int, dim: int
) -> tuple[Tokens, Tokens]:
    """Draw unit vectors for texts with random lengths, uniform between half the maximum and the maximum."""
    random = torch.Generator().manual_seed(0)

    def tokens(x: int, n: int, length: int) -> Tokens:
        vectors = torch.nn.functional.normalize(torch.randn(x, n, length, dim, generator=random), dim=-1)
        mask = torch.arange(length) < torch.randint(length // 2, length + 1, (x, n, 1), generator=random)
        return Tokens(vectors.to(place.device, dtype).requires_grad_(), mask.to(place.device))

    return tokens(1, batch, document_tokens), tokens(batch, 1, query_tokens)


def scored(place: Place, sides: tuple[Tokens, Tokens], score: Any, align: Alignment, normalise: Any) -> None:
    for side in sides:
        side.vectors.grad = None
    score(*sides, align, normalise).float().logsumexp(1).sum().backward()
    if place.on_gpu:
        torch.cuda.synchronize()


def peak(place: Place, work: Callable[[], object]) -> int:
    """Return the most bytes that tensors made by `work` take at once."""
    if not place.on_gpu:
        with Living() as living:
            work()
        return living.peak
    work()  # compiles and tunes kernels
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    return torch.cuda.max_memory_allocated() - before


def dropout_replay(place: Place) -> Rows:
    """Do cached gradients repeat dropout exactly, under autocast?"""
    settings = place.settings()
    model: Any
    model, objective = training.contrastive(settings, "colbert", training.drawn_pairs(settings))
    objective.configure(TrainingSettings(chunk=2))
    states: dict[bytes, list[Tensor]] = {}

    def note(_: object, __: object, inputs: dict[str, Tensor], output: Any) -> None:
        states.setdefault(inputs["input_ids"].cpu().numpy().tobytes(), []).append(output[0].detach())

    model.encoder.backbone.register_forward_hook(note, with_kwargs=True)
    batch = send_to_device(objective.collate([*objective.examples[:8]]), place.device)
    rows: Rows = []
    for precision in ("no", "bf16", *["fp16"] * place.on_gpu):
        states.clear()
        with autocast(place.device, precision):
            objective.loss(model.train(), batch).backward()
        twice = [passes for passes in states.values() if len(passes) == 2]
        difference = max(float((second - first).abs().max()) for first, second in twice)
        assert difference == 0, f"{precision}: states differ by up to {difference}"
        rows.append({"precision": precision, "parts encoded twice": len(twice), "difference": difference})
    return rows


class Reads(TorchDispatchMode):
    """List where values are read that are computed from the batch, for which a GPU would have to finish."""

    def __init__(self) -> None:
        super().__init__()
        self.places: list[str] = []
        self.constants: dict[int, Any] = {}  # Python's numbers as tensors, and results of these

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        result = function(*arguments, **(keywords or {}))
        tensors = [leaf for leaf in tree_leaves((arguments, keywords)) if isinstance(leaf, Tensor)]
        constant = bool(tensors) and all(id(tensor) in self.constants for tensor in tensors)
        if constant or function is torch.ops.aten.lift_fresh.default:
            self.constants |= {id(leaf): leaf for leaf in tree_leaves(result)}
        elif function in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default):
            frames = [frame.filename for frame in traceback.extract_stack()]
            self.places.append([name for name in frames if "/torch/" not in name and name != __file__][-1])
        return result


def host_waits(place: Place) -> Rows:
    """Does a step of ours wait for the GPU?"""
    settings = place.settings()
    model: Any
    if place.on_gpu:
        places = waits_of_steps(settings, place.folder)
        steps = settings.steps - 1
    else:
        model, objective = training.contrastive(settings, "colbert", training.drawn_pairs(settings))
        model.encoder.tokens = {}  # whole batches, as on a GPU
        batch = objective.collate([*objective.examples[:8]])
        with Reads() as reads:
            objective.loss(model.train(), batch).backward()
        places = reads.places
        steps = 1
    rooms = [ROOT / "paradigms", ROOT / "experiments"]  # an environment may be below ROOT, too
    ours = [name for name in places if any(Path(name).is_relative_to(room) for room in rooms)]
    assert not ours, f"{len(ours)} waits in {sorted(set(ours))}"
    return [{"steps": steps, "waits of ours": 0, "of transformers and torch": len(places)}]


def waits_of_steps(settings: training.Settings, folder: Path) -> list[str]:
    """List the files in which steps wait for the GPU; the first steps and the last, which is saved, may."""
    done: list[None] = []

    def after_step(*_: object) -> None:
        done.append(None)
        watched = training.WARMUP <= len(done) < training.WARMUP + settings.steps - 1
        torch.cuda.set_sync_debug_mode("warn" if watched else "default")

    hook = register_optimizer_step_post_hook(after_step)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        case = training.Case("colbert", "no")
        training.ours(settings, case, training.drawn_pairs(settings), folder, {})
    hook.remove()
    return [warning.filename for warning in caught if "synchronizing" in str(warning.message)]


def compared(place: Place, setting: str, values: Sequence[Any], **changes: Any) -> Rows:
    """Train with each value of a setting. Raises AssertionError if last losses differ by `ROUNDED`."""
    runs = {value: place.train(**{setting: value}, **changes) for value in values}
    first, second = (run.last for run in runs.values())
    assert abs(second / first - 1) <= ROUNDED, f"losses differ by {abs(second / first - 1):.1e}"
    return [{setting: value, "pairs / s": run.rate, "MiB": run.peak / MiB} for value, run in runs.items()]


def fp16_scaler(place: Place) -> Rows:
    """Does fp16 train as float32 does?"""
    return compared(place, "precision", ("no", "fp16"))


def parts(place: Place) -> Rows:
    """Do parts of similar length make a training faster, with the same losses?"""
    return compared(place, "parts", (1, 4))


def triton_in_training(place: Place) -> Rows:
    """Do Triton's kernels make a training faster?"""
    return compared(place, "kernels", (False, True), matmul_precision="high")


CHECKS: dict[str, Callable[[Place], Rows]] = {
    check.__name__: check
    for check in (
        in_batch_scores, dropout_replay, host_waits, fp16_scaler, parts, triton_in_training,
    )
}  # fmt: skip
ON_GPU = ("fp16_scaler", "triton_in_training")  # checks that need one


def main(settings: Settings) -> int:
    """Run the checks, and return the exit status: 1 if one has failed."""
    device = chosen_device()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor()
    words = "".join(c if c.isalnum() else " " for c in name.lower()).split()
    file = Path(settings.output, f"gpu-{'-'.join(words)}.json")
    code = b"".join(part.read_bytes() for part in sorted((ROOT / "paradigms").rglob("*.py")))
    version = hashlib.sha256(code + Path(__file__).read_bytes()).hexdigest()[:8]
    summary = f"{name}; torch {torch.__version__}; code {version}."
    stored = json_or_empty(file)
    if stored.get("summary") != summary:
        stored = {}
    figures = {check: Section(**section) for check, section in stored.get("sections", {}).items()}
    rows = {row["check"]: row for row in figures["checks"].rows} if figures else {}
    missing = [check for check in CHECKS if rows.get(check, {}).get("outcome") in (None, "failed")]
    for check in settings.checks or missing:
        Terminal().print(check)
        result, seconds, figures[check] = outcome(check, device)
        question = figures[check].heading
        rows[check] = {"check": check, "decides": question, "outcome": result, "s": seconds}
        figures["checks"] = Section("Checks", "", [rows[check] for check in CHECKS if check in rows])
        minutes = stored.get("minutes", 0.0) + cpu_seconds() / 60
        write_json(file, study(settings, "One GPU", summary, figures, file, minutes))
    print_sections(section for section in figures.values() if section.rows)
    Terminal().print(str(file))
    return int(any(row["outcome"] == "failed" for row in rows.values()))


def outcome(check: str, device: torch.device) -> tuple[str, float | None, Section]:
    """Run a check; return how it ended, its seconds, and its figures or its error."""
    question = (CHECKS[check].__doc__ or "").strip()
    if check in ON_GPU and device.type != "cuda":
        return "needs a GPU", None, Section(question)
    began = time.monotonic()
    rows: Rows = []
    with TemporaryDirectory() as folder:
        try:
            rows = CHECKS[check](Place(device, Path(folder)))
            result = "passed"
        except Exception as error:  # the other checks go on
            rows = [{"error": f"{type(error).__name__}: {printable(error)}"}]
            result = "failed"
    return result, time.monotonic() - began, Section(question, "", rows)
