"""Two processes with half the batch each give the gradient of one process with all of it."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator, debug_launcher
from accelerate.state import AcceleratorState

from paradigms import PARADIGMS, Paradigm
from paradigms.data import Corpus
from paradigms.train.examples import Example, collate
from paradigms.train.loop import TrainingSettings, batch_loss, train

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
    Example("bird and sea", 1, (0, 5), (1,)),
    Example("what keeps the house warm", 2, (6, 7), (2, 5)),
    Example("who read the letter", 3, (8, 4), (3,)),
    Example("a bird, an island", 1, (9, 3), (1, 4)),
]
OPTIONS: dict[str, dict] = {"xtr": {"k_train": 20}, "aligner": {"salience": "entropic"}}


def build(name: str, backbone: Path, seed: int = 0) -> Paradigm:
    torch.manual_seed(seed)
    return PARADIGMS[name](backbone, **({"query_length": 16, "document_length": 32} | OPTIONS.get(name, {})))


def one_of_two() -> Accelerator:
    """The accelerator of a forked process, which has inherited its parent's state and idle threads."""
    AcceleratorState._reset_state(reset_partial_state=True)
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    assert accelerator.num_processes == 2
    return accelerator


def gradients(name: str, backbone: Path, accelerator: Accelerator) -> dict[str, torch.Tensor]:
    """Of the loss of this process's share of EXAMPLES, averaged over processes; dropout is off."""
    paradigm = build(name, backbone)
    model = accelerator.prepare(paradigm)
    model.eval()
    share = len(EXAMPLES) // accelerator.num_processes
    mine = EXAMPLES[accelerator.process_index * share :][:share]
    batch = collate(paradigm.encoder, CORPUS)(mine)
    accelerator.backward(batch_loss(model, paradigm, batch, paradigm.recipe.temperature))
    return {n: p.grad for n, p in paradigm.named_parameters() if p.grad is not None}


def compare_all(backbone: str, folder: str) -> None:
    """In each of two processes: every paradigm against the gradients that one process wrote."""
    accelerator = one_of_two()
    for name in PARADIGMS:
        expected = torch.load(Path(folder) / f"{name}.pt", weights_only=True)
        found = gradients(name, Path(backbone), accelerator)
        assert found.keys() == expected.keys(), name
        scale = max(float(g.abs().max()) for g in expected.values())
        for parameter, value in expected.items():
            error = float((found[parameter] - value).abs().max())
            assert error < 1e-5 * scale, f"{name}: {parameter} differs by {error} of {scale}"


def test_two_processes_give_the_gradient_of_one(tiny_bert: Path, tmp_path: Path) -> None:
    lengths = [len(CORPUS[e.positive]) for e in EXAMPLES]
    assert max(lengths[:2]) != max(lengths[2:])  # the processes pad their documents to different lengths
    for name in PARADIGMS:
        expected = gradients(name, tiny_bert, Accelerator(cpu=True))
        assert any(float(g.abs().max()) > 1e-4 for g in expected.values())
        torch.save(expected, tmp_path / f"{name}.pt")
    debug_launcher(compare_all, (str(tiny_bert), str(tmp_path)), num_processes=2)


def train_in_two(backbone: str, folder: str, steps: int, stop: int) -> None:
    """A run of `steps` with dropout, ended by an error after `stop` of them (0: not at all)."""
    accelerator = one_of_two()
    settings = TrainingSettings(
        steps=steps, batch_size=2, accumulation=2, save_every=2, log_every=1, learning_rate=1e-3
    )
    paradigm, forwards = build("xtr", Path(backbone)), 0

    def interrupt(module: torch.nn.Module, given: tuple) -> None:
        nonlocal forwards
        forwards += 1
        if stop and forwards > stop * settings.accumulation:
            raise KeyboardInterrupt

    hook = paradigm.register_forward_pre_hook(interrupt)
    with suppress(KeyboardInterrupt):
        train(paradigm, CORPUS, EXAMPLES, settings, Path(folder), accelerator=accelerator, progress=False)
    hook.remove()
    weights = torch.cat([p.detach().flatten() for p in paradigm.parameters()])
    both = accelerator.gather(weights[None])
    assert torch.equal(both[0], both[1])


def test_two_processes_log_once_and_go_on_exactly_with_dropout(tiny_bert: Path, tmp_path: Path) -> None:
    for folder, stops in (("whole", [0]), ("interrupted", [3, 0])):
        for stop in stops:
            arguments = (str(tiny_bert), str(tmp_path / folder), 4, stop)
            debug_launcher(train_in_two, arguments, num_processes=2)
    whole, interrupted = (
        (tmp_path / folder / "history.jsonl").read_text() for folder in ("whole", "interrupted")
    )
    assert [json.loads(line)["step"] for line in whole.splitlines()] == [1, 2, 3, 4]
    assert interrupted == whole


def nan_on_one(backbone: str, folder: str) -> None:
    """Only the second process's query vectors are not finite: both stop, with the same error."""
    accelerator = one_of_two()
    paradigm = build("dpr", Path(backbone))
    if accelerator.process_index == 1:
        paradigm.encoder.register_forward_hook(
            lambda module, given, result: result.map(lambda t: t * torch.nan if t.is_floating_point() else t)
        )
    settings = TrainingSettings(steps=2, batch_size=2)
    with pytest.raises(FloatingPointError, match="the loss is nan at step 1"):
        train(paradigm, CORPUS, EXAMPLES, settings, Path(folder), accelerator=accelerator, progress=False)


def test_a_loss_that_is_not_finite_on_one_process_stops_all(tiny_bert: Path, tmp_path: Path) -> None:
    debug_launcher(nan_on_one, (str(tiny_bert), str(tmp_path)), num_processes=2)
