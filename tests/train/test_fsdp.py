"""Shards on two processes train what one process trains, and leave a checkpoint that one process opens."""

import json
import shutil
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from safetensors.torch import load_file
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from paradigms import GENERATIVE, PARADIGMS, Generative, Paradigm, load
from paradigms.generative.pairs import Pair
from paradigms.train import parallel
from paradigms.train.contrastive import Contrastive
from paradigms.train.generative import Likelihood
from paradigms.train.loop import TrainingSettings, train
from paradigms.train.losses import Objective
from paradigms.train.state import StoredTensors
from tests import launch
from tests.near import assert_same, assert_within_rounding
from tests.train.test_distributed import CORPUS, EXAMPLES
from tests.train.test_loop import Interrupted, history, interrupted_after

pytestmark = pytest.mark.slow
LENGTHS = {"query_length": 16, "document_length": 32}
# name -> (family, what is built from its folder, settings of training)
CASES: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "aligner": (
        "bert",
        lambda f: PARADIGMS["aligner"](f, eps=0.002, dim=128, **LENGTHS),
        {},
    ),
    "xtr": ("t5", lambda f: PARADIGMS["xtr"](f, k_train=20, lora_rank=2, dora=True, **LENGTHS), {"chunk": 2}),
    "colbert": ("modernbert", lambda f: PARADIGMS["colbert"](f, **LENGTHS), {"recompute": True}),
    "genre": ("seq2seq", lambda f: GENERATIVE["genre"](f, CORPUS), {}),
}


def build(name: str, root: Path, seed: int = 0) -> Any:
    """A case's paradigm in float64 on the checkpoints in `root`; it encodes few texts at once."""
    family, function, _ = CASES[name]
    torch.manual_seed(seed)
    paradigm = function(root / family).double()
    if isinstance(paradigm, Paradigm):
        paradigm.encoder.tokens = {"cpu": 40}
    return paradigm


def objective_of(paradigm: Any) -> Objective:
    if isinstance(paradigm, Generative):
        return Likelihood(paradigm, CORPUS, [Pair(f"d{n}", n) for n in range(len(EXAMPLES))])
    return Contrastive(paradigm, CORPUS, EXAMPLES)


def run(name: str, root: Path, folder: Path, accelerator: Accelerator, **changes: Any) -> Any:
    """Train four steps of four examples in all. Processes build different heads; the first one's are used."""
    paradigm = changes.pop("paradigm", None) or build(name, root, seed=accelerator.process_index)
    settings = {"steps": 4, "batch_size": 4 // accelerator.num_processes, "log_every": 1}
    settings |= {"learning_rate": 1e-3} | CASES[name][2]
    dev = changes.pop("dev", measure)
    return train(
        paradigm,
        objective_of(paradigm),
        TrainingSettings(**settings | changes),
        folder,
        accelerator=accelerator,
        dev=dev,
        progress=False,
    )


def measure(paradigm: Any) -> np.ndarray:
    """A dev measure that reads every weight, in the way that a script's does: by methods, not by forward."""
    if isinstance(paradigm, Paradigm):
        documents, queries = paradigm.encode_documents([CORPUS[1]]), paradigm.encode_queries(["the sea"])
        return paradigm.score(documents, queries)[0].numpy()
    return np.array([sum(float(weight.double().abs().sum()) for weight in paradigm.state_dict().values())])


def last(folder: Path) -> Path:
    """The checkpoint after the last step."""
    return folder / "checkpoints" / "step-4"


def every_case(accelerator: Accelerator, root: Path, folder: Path) -> None:
    """Only the first process reads and returns an encoder; a generative model is built in each process."""
    for name in CASES:
        drawn = partial(build, name, root / "steady", seed=accelerator.process_index)
        paradigm = drawn() if name == "genre" else parallel.built(drawn, accelerator)
        unread = name != "genre" and not accelerator.is_main_process
        assert any(weight.is_meta for weight in paradigm.parameters()) == unread
        trained = run(name, root / "steady", folder / "two" / name, accelerator, paradigm=paradigm)
        assert not isinstance(trained, FSDPModule)
        assert any(weight.is_meta for weight in trained.parameters()) != accelerator.is_main_process


def half_of_everything(accelerator: Accelerator, root: Path, folder: Path) -> None:
    """Weights, gradients and moments: of each a process holds half, and the odd row."""
    paradigm, results = build("aligner", root), []
    sizes = [weight.numel() for weight in paradigm.parameters()]
    rows = [weight[0].numel() for weight in paradigm.parameters()]

    def keep(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        results.append(sum(local_size(weight) for weight in weights))
        results.append(sum(local_size(weight.grad) for weight in weights))
        results.append(sum(local_size(optimizer.state[weight]["exp_avg"]) for weight in weights))

    handle = register_optimizer_step_post_hook(keep)
    run("aligner", root, folder / "half", accelerator, paradigm=paradigm, steps=1)
    handle.remove()
    assert len(results) == 3
    assert max(results) <= (sum(sizes) + sum(rows)) / 2


def local_size(tensor: torch.Tensor | None) -> int:
    assert isinstance(tensor, DTensor)
    return tensor.to_local().numel()


def exact_resume(accelerator: Accelerator, root: Path, folder: Path) -> None:
    """With dropout, adapters and no dev measure: whole, and in two parts, the first ended in step 3 or 4."""
    for target, stop in (("whole", 0), ("parts", 3), ("parts", 0)):
        paradigm = build("xtr", root).float()  # in which a checkpoint is loaded
        paradigm = interrupted_after(paradigm, stop) if stop else paradigm
        with suppress(Interrupted):
            run("xtr", root, folder / target, accelerator, paradigm=paradigm, dev=None, save_every=2)
    assert history(folder / "parts") == history(folder / "whole")
    files = sorted(file.relative_to(last(folder / "whole")) for file in last(folder / "whole").rglob("*.s*"))
    assert len(files) == 7  # weights and moments of two processes, the model's two, and generators
    for file in files:
        parts, reference = (load_file(last(folder / target) / file) for target in ("parts", "whole"))
        assert parts.keys() == reference.keys()
        assert all(torch.equal(parts[key], reference[key]) for key in reference)


def longer(accelerator: Accelerator, root: Path, folder: Path) -> None:
    """Two steps by one process go on as four by two with shards, and the reverse is prepared."""
    run("aligner", root / "steady", folder / "copies to shards", accelerator)
    run("aligner", root / "steady", folder / "shards to copies", accelerator, steps=2)
    with pytest.raises(ValueError, match=r"was trained with other settings .*steps: 4 then, 3 now"):
        run("aligner", root / "steady", folder / "copies to shards", accelerator, steps=3)


def bfloat16(accelerator: Accelerator, root: Path, folder: Path) -> None:
    """Products of layers are in bfloat16, and what is kept is in float32.

    Before the first step, loss and gradient are float32's to the 8 bits of bfloat16. Later ones say less,
    because Adam moves a weight whose gradient is all rounding as far as any other: they are to fall.
    """
    AcceleratorState._reset_state()
    half = Accelerator(mixed_precision="bf16")
    paradigm, kinds = build("aligner", root / "steady").float(), []

    def note(module: nn.Module, inputs: tuple, result: torch.Tensor) -> None:
        if module is paradigm.encoder.projection:  # not the copy that is measured
            kinds.append((result.dtype, torch.is_autocast_cache_enabled()))

    paradigm.encoder.projection.register_forward_hook(note)
    trained = run("aligner", root / "steady", folder / "bf16", half, paradigm=paradigm)
    assert set(kinds) == {(torch.bfloat16, False)}
    assert {weight.dtype for weight in trained.parameters()} == {torch.float32}
    one, two = (history(folder / name)[1:-1] for name in ("one/aligner", "bf16"))
    assert one[0]["loss"] != two[0]["loss"] == pytest.approx(one[0]["loss"], rel=2**-8)
    assert two[0]["gradient_norm"] == pytest.approx(one[0]["gradient_norm"], rel=0.1)
    assert two[-1]["loss"] < two[0]["loss"] / 4


def gathered_in_half(accelerator: Accelerator, root: Path, folder: Path) -> None:
    """Half the bytes: layers see their weights in bfloat16; losses differ little from autocast's alone."""
    AcceleratorState._reset_state()
    half = Accelerator(mixed_precision="bf16")
    paradigm, kinds = build("aligner", root / "steady").float(), set()
    for layer in paradigm.layers:
        layer.register_forward_hook(lambda layer, *_: kinds.update(w.dtype for w in layer.parameters()))
    target = folder / "bf16 gathered"
    run("aligner", root / "steady", target, half, paradigm=paradigm, gathered_weights="bf16")
    assert kinds == {torch.bfloat16}
    one, two = (history(folder / name)[1:-1] for name in ("bf16", "bf16 gathered"))
    assert two[0]["loss"] == pytest.approx(one[0]["loss"], rel=1e-6)  # norms and biases still are 1 and 0
    for mine, theirs in zip(two, one, strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=0.1)  # of steps of 1e-3
    AcceleratorState._reset_state()
    with pytest.raises(ValueError, match=r"gathered_weights=bf16 needs shards .* and precision bf16"):
        run("aligner", root, folder / "no", Accelerator(mixed_precision="no"), gathered_weights="bf16")


CHECKS = (every_case, half_of_everything, exact_resume, longer, bfloat16, gathered_in_half)


@pytest.fixture(scope="module")
def root(checkpoints, seq2seq, tmp_path_factory):
    """The folder in which each family's tiny checkpoint lies under its name; in steady/ without dropout."""
    folder = tmp_path_factory.mktemp("models")
    for name, target in (checkpoints | {"seq2seq": seq2seq["t5"]}).items():
        for place in (folder / name, folder / "steady" / name):
            shutil.copytree(target, place)
        config = json.loads((place / "config.json").read_text())
        steady = {key: 0.0 if "dropout" in key else value for key, value in config.items()}
        (place / "config.json").write_text(json.dumps(steady))
    return folder


@pytest.fixture(scope="module")
def outcomes(root, tmp_path_factory):
    """The folder in which one process left its runs, and two how the checks ended."""
    folder = tmp_path_factory.mktemp("fsdp")
    for name in CASES:
        run(name, root / "steady", folder / "one" / name, Accelerator(cpu=True))
    for target in ("copies to shards", "copies"):
        run("aligner", root / "steady", folder / target, Accelerator(cpu=True), steps=2)
    launch.forked(CHECKS, root, folder, **launch.environment("fsdp.yaml"))
    return folder


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_two_processes(outcomes, check):
    launch.passed(check, outcomes)


def test_longer_with_another_number_of_processes(outcomes, root):
    """Copies or shards, one process or two: the same losses, at the rates of the longer schedule."""
    for target in ("copies", "shards to copies"):
        run("aligner", root / "steady", outcomes / target, Accelerator(cpu=True))
    one, *others = (history(outcomes / name) for name in ("copies", "shards to copies", "copies to shards"))
    rates = [line["learning_rate"] for line in one if "loss" in line]
    assert rates == pytest.approx([1e-3, 1e-3, 1e-3 * 2 / 3, 1e-3 / 3])
    for lines in others:
        for mine, theirs in zip(lines, one, strict=True):
            assert mine.keys() == theirs.keys()
            for name in mine:  # copies resume from float32, the type of models
                assert mine[name] == pytest.approx(theirs[name], rel=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_losses_norms_and_dev_measures_of_one_process(outcomes, name):
    for one, two in zip(*(history(outcomes / runs / name) for runs in ("one", "two")), strict=True):
        assert_same(two, one)


@pytest.mark.parametrize("name", CASES)
def test_one_process_opens_the_checkpoint_of_shards(outcomes, root, name):
    start = build(name, root / "steady").state_dict()
    one, two = (load(last(outcomes / runs / name)).state_dict() for runs in ("one", "two"))
    assert any(float((one[key].double() - start[key].double()).abs().max()) > 1e-3 for key in one)
    assert_within_rounding(two, one, torch.float32, 1)  # the type that models are loaded in
    one, two = (moments(outcomes / runs / name) for runs in ("one", "two"))
    assert_same(two, one)


def moments(folder: Path) -> dict[str, torch.Tensor]:
    """The optimizer's state after the last step; numbers of steps, which are float32, aside."""
    states = StoredTensors(last(folder), "optimizer")
    return {name: states.whole(name) for name in states.names if not name.endswith("step")}
