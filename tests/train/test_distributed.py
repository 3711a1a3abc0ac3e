"""Two processes with half the batch each give the loss and gradient of one process with the whole batch."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file, save_file

from paradigms import PARADIGMS, Paradigm
from paradigms.core import Tokens
from paradigms.data import Corpus
from paradigms.encoder import frozen
from paradigms.encoder.text import Side
from paradigms.train.contrastive import Contrastive
from paradigms.train.examples import Example
from paradigms.train.fit import deleted_after, keep_states
from paradigms.train.loop import TrainingSettings, train
from paradigms.train.losses import Distillation, LossSettings, digest_of
from paradigms.train.script import lock_output
from paradigms.train.state import signature
from tests import launch
from tests.near import assert_same, assert_within_rounding
from tests.tiny import built
from tests.train.test_loop import norms_of_steps

CORPUS = Corpus(
    [f"d{n}" for n in range(10)],
    [
        "the sea",
        "a bird flew over the sea and the island in the morning light",
        "fire, wood and the heat of the sun",
        "a queen read a letter on paper; the lion slept under the tree by the wall of the garden",
        "corn grows well in the field by the mill, near the river and the road",
        "snow",
        "winter snow fell on the mountain",
        "a boat on the river carried wheat, fish and fruit to the market of the town",
        "the old man walked along the river road with his dog",
        "iron ship",
    ],
)
# One document is relevant to two queries: excluded as a negative, on whichever process it lies.
EXAMPLES = [
    Example("bird and sea", 1, (0, 5), (1,), (3.0, -1.0, 0.5)),
    Example("what keeps the house warm", 2, (6, 7), (2, 5), (0.0, 0.25, -4.0)),
    Example("who read the letter", 3, (8, 4), (3,), (1.0, 2.0, 3.0)),
    Example("a bird, an island", 1, (9, 3), (1, 4), (-2.0, -2.0, -7.5)),
]
OPTIONS: dict[str, dict] = {
    "xtr": {"k_train": 20},
    "aligner": {"salience_l1": 0.1},
    "bge_m3": {"self_distillation": True},
}
DISTILLED = "colbert with a teacher"
CASES = (*PARADIGMS, DISTILLED)


def build(name: str, backbone: Path, seed: int = 0) -> Paradigm:
    torch.manual_seed(seed)
    options = {"query_length": 16, "document_length": 32} | OPTIONS.get(name, {})
    return built(name, backbone, **options).double()


def loss_and_gradients(
    name: str, backbone: Path, accelerator: Accelerator, examples: list[Example] = EXAMPLES, chunk: int = 0
) -> dict[str, torch.Tensor]:
    """Of this process's share of the examples, averaged over processes, without dropout."""
    paradigm = build(name.split()[0], backbone)
    model = accelerator.prepare(paradigm)
    model.eval()
    share = len(examples) // accelerator.num_processes
    mine = examples[accelerator.process_index * share :][:share]
    distillation = Distillation("kl", 0.5) if name == DISTILLED else None
    settings = LossSettings(distillation=distillation, chunk=chunk)
    objective = Contrastive(paradigm, CORPUS, mine).configure(settings)
    loss = objective.loss(model, objective.collate(mine))
    accelerator.backward(loss)
    results = {n: p.grad for n, p in paradigm.named_parameters() if p.grad is not None}
    return results | {"loss": accelerator.reduce(loss.detach(), "mean")}


def equal_losses_and_gradients(accelerator: Accelerator, backbone: Path, folder: Path) -> None:
    """Every paradigm's against those that one process wrote, without and with gradients cached."""
    for name, chunk in product(CASES, (0, 1)):
        expected = load_file(folder / f"{name}.safetensors")
        results = loss_and_gradients(name, backbone, accelerator, chunk=chunk)
        assert_same({name: results}, {name: expected})


def stop_together(accelerator: Accelerator, backbone: Path, folder: Path) -> None:
    """Only the second process has non-finite queries: both stop with the same error."""
    paradigm = build("dpr", backbone)
    if accelerator.process_index == 1:

        def spoil(module: torch.nn.Module, inputs: tuple, result: Tokens) -> Tokens:
            return replace(result, vectors=result.vectors * torch.nan) if inputs[1] == "query" else result

        paradigm.encoder.register_forward_hook(spoil)
    settings = TrainingSettings(steps=2, batch_size=2)
    objective = Contrastive(paradigm, CORPUS, EXAMPLES)
    with pytest.raises(FloatingPointError, match="the loss is nan at step 1"):
        train(paradigm, objective, settings, folder / "nan", accelerator=accelerator, progress=False)


def uneven_batches(accelerator: Accelerator, backbone: Path, folder: Path) -> None:
    """Negatives would be lost or counted twice: both processes say so, before anything is exchanged."""
    paradigm = build("dpr", backbone)
    mine = EXAMPLES[: 2 - accelerator.process_index]
    objective = Contrastive(paradigm, CORPUS, mine)
    with pytest.raises(ValueError, match=r"different numbers of documents: \[6, 3\]"):
        objective.loss(accelerator.prepare(paradigm), objective.collate(mine))


def other_examples(accelerator: Accelerator, backbone: Path, folder: Path) -> None:
    """Processes that were given different examples say so before they train."""
    settings, mine = {"batch_size": 1}, digest_of(EXAMPLES[accelerator.process_index :])
    with pytest.raises(ValueError, match="the processes that train dpr have different examples"):
        signature(build("dpr", backbone), settings, mine, folder, accelerator)


def apart(accelerator: Accelerator, backbone: Path, folder: Path) -> None:
    """Folders that the processes do not share are named by both of them, before anything is computed."""
    paradigm, disk = build("dpr", backbone), folder / f"disk{accelerator.process_index}"
    settings, objective = TrainingSettings(steps=1, batch_size=2), Contrastive(paradigm, CORPUS, EXAMPLES)
    objective.collate = lambda examples: pytest.fail("began")  # type: ignore[method-assign]
    named = f"process 1 of 2 does not see what process 0 writes to {disk}"
    with pytest.raises(FileNotFoundError, match=named):
        train(paradigm, objective, settings, disk, accelerator=accelerator, progress=False)
    with pytest.raises(SystemExit, match=named):
        lock_output(disk, accelerator)
    with pytest.raises(FileNotFoundError, match=named), deleted_after(disk / "states", accelerator):
        pass
    lock_output(folder / "shared", accelerator)
    assert list((folder / "shared").iterdir()) == []


def frozen_layers(accelerator: Accelerator, backbone: Path, folder: Path) -> None:
    """Two processes compute the states together and train the upper layers, clipped, to equal weights."""
    frozen.SHARD = 2
    paradigm = build("xtr", backbone).float()
    before = {name: weight.clone() for name, weight in paradigm.state_dict().items()}
    texts: dict[Side, list[str]] = {"document": list(CORPUS), "query": [e.query for e in EXAMPLES]}
    keep_states(paradigm, 1, folder / "states", texts, accelerator)
    split = paradigm.encoder.split
    assert len(split.store) == len(CORPUS) + len(EXAMPLES)
    documents = paradigm.encoder.tokenize(texts["document"], "document")
    assert_within_rounding(split.lower(documents)[0, 0], split.compute(documents)[0, 0], torch.float16, 1)
    settings = TrainingSettings(
        steps=2, batch_size=2, trained_layers=1, learning_rate=1e-3, max_grad_norm=0.01
    )
    objective = Contrastive(paradigm, CORPUS, EXAMPLES)
    with norms_of_steps() as norms:
        train(paradigm, objective, settings, folder / "frozen", accelerator=accelerator, progress=False)
    assert norms == pytest.approx([0.01, 0.01], rel=1e-3)
    weights = torch.cat([p.detach().flatten() for p in paradigm.parameters()])
    both = accelerator.gather(weights[None])
    assert torch.equal(both[0], both[1])
    changed = {
        name for name, weight in paradigm.state_dict().items() if not torch.equal(weight, before[name])
    }
    assert changed == {name for name, p in paradigm.named_parameters() if p.requires_grad}


CHECKS = (
    equal_losses_and_gradients,
    frozen_layers,
    apart,
    stop_together,
    uneven_batches,
    other_examples,
)


@pytest.fixture(scope="module")
def outcomes(tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which two processes noted how the checks ended."""
    folder = tmp_path_factory.mktemp("two")
    lengths = [len(CORPUS[e.positive]) for e in EXAMPLES]
    assert max(lengths[:2]) != max(lengths[2:])  # the processes pad their documents to different lengths
    for name in CASES:
        expected = loss_and_gradients(name, tiny_bert, Accelerator(cpu=True))
        assert any(float(g.abs().max()) > 1e-4 for n, g in expected.items() if n != "loss")
        save_file(expected, folder / f"{name}.safetensors")
        # Each half with a pool of its own is another loss: that processes share theirs shows.
        halves = [
            loss_and_gradients(name, tiny_bert, Accelerator(cpu=True), part)["loss"]
            for part in (EXAMPLES[:2], EXAMPLES[2:])
        ]
        assert float(sum(halves)) / 2 != pytest.approx(float(expected["loss"]), rel=1e-3), name
    launch.forked(CHECKS, tiny_bert, folder)
    return folder


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_two_processes(outcomes: Path, check: Callable[..., None]) -> None:
    launch.passed(check, outcomes)
