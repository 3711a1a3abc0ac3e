"""The training loop: it learns, resumes bit for bit, and reports errors."""

import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from safetensors.torch import load_file
from torch.optim.optimizer import register_optimizer_step_pre_hook

from paradigms import PARADIGMS, Paradigm
from paradigms.core import rel
from paradigms.data import Collection, Corpus, Problems, Run, Split
from paradigms.encoder.text import Side
from paradigms.train import fit as fitting
from paradigms.train import fit as states_of
from paradigms.train import loop
from paradigms.train.checkpoints import dev_values, kept_step, training_seconds
from paradigms.train.contrastive import Contrastive
from paradigms.train.examples import Example
from paradigms.train.fit import DevMeasure
from paradigms.train.loop import Paused, TrainingSettings, train
from paradigms.train.losses import contrastive
from paradigms.train.order import mixed_batches
from paradigms.train.parallel import prepare
from tests.near import assert_same, assert_within_rounding
from tests.tiny import TERMS, built

WORDS = "sea bird fire wood queen letter corn field snow mountain boat river ship iron moon star".split()  # noqa: SIM905
CORPUS = Corpus([f"d{n}" for n in range(len(WORDS))], [f"{word} {word} and {word}" for word in WORDS])
EXAMPLES = [Example(f"the {word}", n, (), (n,)) for n, word in enumerate(WORDS)]
SETTINGS = TrainingSettings(
    steps=6, batch_size=4, learning_rate=2e-3, temperature=0.05, save_every=2, log_every=1, warmup=0.3
)


def build(backbone: Path, name: str = "colbert", seed: int = 0, **settings: int) -> Paradigm:
    torch.manual_seed(seed)
    return built(name, backbone, query_length=16, document_length=32, **settings)


def fit(backbone: Path, folder: Path, settings: TrainingSettings = SETTINGS, **options) -> Paradigm:
    """Train from scratch, or resume from `folder`."""
    paradigm = options.pop("paradigm", None) or build(backbone)
    accelerator = options.pop("accelerator", None) or Accelerator(cpu=True)
    examples = options.pop("examples", EXAMPLES)
    objective = Contrastive(paradigm, CORPUS, examples)
    return train(paradigm, objective, settings, folder, accelerator=accelerator, progress=False, **options)


def history(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


def weights(paradigm: Paradigm) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in paradigm.parameters()])


class Interrupted(KeyboardInterrupt):
    pass


def interrupted_after(paradigm: Paradigm, steps: int) -> Paradigm:
    """The same paradigm; its forward pass raises once `steps` passes are done."""
    passes = 0

    def count(module: torch.nn.Module, inputs: tuple) -> None:
        nonlocal passes
        passes += 1
        if passes > steps:
            raise Interrupted

    paradigm.register_forward_pre_hook(count)
    return paradigm


def without_dropout(paradigm: Paradigm) -> Paradigm:
    for module in paradigm.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return paradigm


@pytest.mark.parametrize("name", PARADIGMS)
def test_every_paradigm_learns_a_tiny_problem(tiny_bert, tmp_path, name):
    # COIL's words match from the start: only a high temperature leaves something to learn.
    temperature = {"coil": 100.0}.get(name)
    settings = replace(SETTINGS, steps=30, batch_size=8, temperature=temperature, save_every=0)
    fit(tiny_bert, tmp_path, settings, paradigm=without_dropout(build(tiny_bert, name)))
    losses = [line["loss"] for line in history(tmp_path)]
    assert len(losses) == 30
    assert sum(losses[-5:]) < 0.5 * sum(losses[:5])


def test_an_interrupted_run_goes_on_bit_for_bit_with_dropout(tiny_bert, tmp_path):
    reference = fit(tiny_bert, tmp_path / "whole")
    assert reference.encoder.backbone.config.hidden_dropout_prob > 0
    for done in (3, 5):  # one step after a checkpoint: that step is taken again
        with pytest.raises(Interrupted):
            fit(tiny_bert, tmp_path / "parts", paradigm=interrupted_after(build(tiny_bert), 3))
        assert history(tmp_path / "parts")[-1]["step"] == done
    parts = fit(tiny_bert, tmp_path / "parts", paradigm=build(tiny_bert, seed=1))
    assert torch.equal(weights(parts), weights(reference))
    assert history(tmp_path / "parts") == history(tmp_path / "whole")
    assert [line["step"] for line in history(tmp_path / "whole")] == [1, 2, 3, 4, 5, 6]
    again = fit(tiny_bert, tmp_path / "parts", paradigm=build(tiny_bert, seed=2))
    assert torch.equal(weights(again), weights(reference))  # a finished run is only loaded
    assert training_seconds(tmp_path / "parts") > 0


def test_weights_below_adapters_take_half_the_memory(tiny_bert, tmp_path, bfloat16):
    """Products round these weights anyway: losses and adapters are the same, and the rest stays float32."""
    saved, losses = [], []
    for kind in ("float32", "bf16"):
        torch.manual_seed(0)
        paradigm = PARADIGMS["colbert"](tiny_bert, lora_rank=2, lora_targets=r".*(query|value)")
        kinds: dict[str, torch.dtype] = {}
        paradigm.register_forward_pre_hook(
            lambda model, _, kinds=kinds: kinds.update((n, w.dtype) for n, w in model.named_parameters())
        )
        settings = replace(SETTINGS, steps=3, adapted_weights=kind)
        trained = fit(tiny_bert, tmp_path / kind, settings, paradigm=paradigm, accelerator=bfloat16)
        half = {name for name, dtype in kinds.items() if dtype == torch.bfloat16}
        assert half == {n for n in kinds if ".base_layer." in n and kind == "bf16"}
        assert {weight.dtype for weight in trained.parameters()} == {torch.float32}
        saved.append({n: w for n, w in trained.state_dict().items() if ".lora_" in n})
        losses.append(history(tmp_path / kind))
    assert saved[0].keys() == saved[1].keys() != set()
    assert [line["loss"] for line in losses[0]] == [line["loss"] for line in losses[1]]
    assert all(torch.equal(weight, saved[1][name]) for name, weight in saved[0].items())


def test_a_step_logs_the_loss_and_the_norm_of_its_batch(tiny_bert, tmp_path):
    """Whatever another loop with the same accelerator has left there."""
    settings = replace(SETTINGS, steps=1, max_grad_norm=1e9)
    paradigm = without_dropout(build(tiny_bert)).double()
    reference = build(tiny_bert).double().eval()
    before = weights(paradigm).clone()
    (batch,) = mixed_batches([len(EXAMPLES)], [1.0], 4, 1, seed=0)
    objective = Contrastive(reference, CORPUS, EXAMPLES).configure(settings)
    loss = objective.loss(reference, objective.collate([EXAMPLES[i] for i in batch]))
    loss.backward()
    norm = torch.stack([p.grad.norm() for p in reference.parameters() if p.grad is not None]).norm()
    accelerator = Accelerator(cpu=True)
    accelerator.gradient_accumulation_steps = 3
    with accelerator.accumulate(paradigm):
        pass
    fit(tiny_bert, tmp_path, settings, paradigm=paradigm, accelerator=accelerator)
    (line,) = history(tmp_path)
    assert_same([line["loss"], line["gradient_norm"]], [loss, norm])
    assert not torch.equal(weights(paradigm), before)


@contextmanager
def norms_of_steps() -> Iterator[list[float]]:
    """The norm of the gradient that each step of an optimizer takes."""
    norms: list[float] = []

    def note(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"]]
        norms.append(float(torch.stack([g.norm() for g in gradients if g is not None]).norm()))

    hook = register_optimizer_step_pre_hook(note)
    try:
        yield norms
    finally:
        hook.remove()


@pytest.mark.parametrize("most", [0.01, 1e9])
def test_gradients_are_clipped_to_the_largest_norm(tiny_bert, tmp_path, most):
    with norms_of_steps() as norms:
        fit(tiny_bert, tmp_path, replace(SETTINGS, steps=2, max_grad_norm=most))
    logged = [line["gradient_norm"] for line in history(tmp_path)]
    assert min(logged) > 0.1
    assert norms == pytest.approx([min(norm, most) for norm in logged], rel=1e-3)


def test_the_rate_rises_then_falls_to_nothing(tiny_bert, tmp_path):
    fit(tiny_bert, tmp_path, replace(SETTINGS, steps=10, warmup=0.2))
    logged = [line["learning_rate"] / SETTINGS.learning_rate for line in history(tmp_path)]
    assert logged == pytest.approx([0.5, 1, 1, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125])
    settings = replace(SETTINGS, steps=10)
    assert loop._schedule(0, replace(settings, warmup=0.0)) == 1
    assert [loop._schedule(s, replace(settings, warmup=1.0)) for s in (0, 9)] == pytest.approx([0.1, 1])


@pytest.mark.parametrize("part", ["backbone", "projection", "salience_heads"])
def test_heads_and_salience_heads_have_their_own_rates(tiny_bert, tmp_path, part):
    paradigm = PARADIGMS["aligner"](tiny_bert, dim=16, query_length=16, document_length=32)
    before = {name: weight.detach().clone() for name, weight in paradigm.named_parameters()}
    names = ("learning_rate", "head_learning_rate", "salience_learning_rate")
    parts = ("backbone", "projection", "salience_heads")
    rates = dict.fromkeys(names, 1e-12) | {names[parts.index(part)]: 1e-2}
    fit(tiny_bert, tmp_path, replace(SETTINGS, steps=1, weight_decay=0.0, **rates), paradigm=paradigm)
    for name, weight in paradigm.named_parameters():
        # Softmax and entropic top-k ignore these: their gradients are what rounding leaves.
        if name.endswith(("key.bias", "salience_heads.query.bias", "salience_heads.document.bias")):
            continue
        change = float((weight.detach() - before[name]).abs().max())
        assert (change > 1e-3) == (part in name.split(".")), name
        assert change > 1e-3 or change < 1e-6


@pytest.fixture
def bfloat16():
    AcceleratorState._reset_state()
    yield Accelerator(cpu=True, mixed_precision="bf16")
    AcceleratorState._reset_state()


def products(paradigm: Paradigm) -> list[torch.dtype]:
    """The types of what linear layers give, from now on."""
    kinds: list[torch.dtype] = []
    for module in paradigm.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(lambda module, inputs, result: kinds.append(result.dtype))
    return kinds


def test_bfloat16_trains_on_the_processor_also_inside_another_autocast(tiny_bert, tmp_path, bfloat16):
    """An outer autocast caches cast weights: every step would use the first ones."""
    losses = []
    for around in (nullcontext(), torch.autocast("cpu", torch.bfloat16)):
        paradigm, folder = without_dropout(build(tiny_bert)), tmp_path / str(len(losses))
        kinds = products(paradigm)
        with around:
            fit(tiny_bert, folder, paradigm=paradigm, accelerator=bfloat16)
        assert set(kinds) == {torch.bfloat16}
        losses.append([line["loss"] for line in history(folder)])
    alone, inside = losses
    assert inside == pytest.approx(alone, rel=0.02)
    assert alone[-1] < 0.9 * alone[0]  # or keeping the weights would show nothing


@pytest.mark.parametrize("fails", [False, True])
def test_a_second_training_of_a_model_has_the_precision_that_is_asked_for(
    tiny_bert, tmp_path, bfloat16, fails
):
    """This holds after a training that ended in an error, too."""
    paradigm = interrupted_after(build(tiny_bert), 1) if fails else build(tiny_bert)
    with pytest.raises(Interrupted) if fails else nullcontext():
        fit(tiny_bert, tmp_path / "first", paradigm=paradigm, accelerator=bfloat16)
    paradigm._forward_pre_hooks.clear()  # the interruption
    kinds = products(paradigm)
    for number, precision in enumerate(["no", "bf16", "bf16"]):
        AcceleratorState._reset_state()
        accelerator = Accelerator(cpu=True, mixed_precision=precision)
        fit(tiny_bert, tmp_path / str(number), paradigm=paradigm, accelerator=accelerator)
        assert set(kinds) == {torch.float32 if precision == "no" else torch.bfloat16}
        kinds.clear()


@pytest.mark.parametrize("name", PARADIGMS)
def test_under_bfloat16_layers_alone_compute_in_half(tiny_bert, bfloat16, name):
    """Vectors, rel and the loss are float32's, wherever autocast reaches."""
    # terms of the loss that are no softmax over rel
    terms = {
        "splade": ("query_sparsity", "document_sparsity"),
        "bge_m3": ("dense_loss", "sparse_loss", "token_loss"),
    }
    plain = dict.fromkeys(terms.get(name, ()), 0.0)
    paradigm = without_dropout(built(name, tiny_bert, query_length=16, document_length=32, **plain))
    model, _ = prepare(paradigm, bfloat16)
    objective = Contrastive(paradigm, CORPUS, EXAMPLES[:4])
    batch = objective.collate(EXAMPLES[:4])
    kinds = products(paradigm)
    queries, documents = model(batch.queries, batch.documents)
    assert torch.bfloat16 in kinds
    assert {t.dtype for t in (queries.vectors, documents.vectors)} == {torch.float32}
    scores = rel(documents, queries, paradigm.align, paradigm.normalise)
    none = torch.zeros(4, 4, dtype=torch.bool)
    expected = contrastive(scores, torch.arange(4), none, paradigm.recipe.temperature)
    for context in (nullcontext(), bfloat16.autocast()):
        with context:
            assert_within_rounding(objective.loss(model, batch), expected, torch.float32, TERMS)


@pytest.mark.parametrize(
    ("last", "best"), [(0.71, 3), (0.65, 3), (0.55, 1)], ids=["best", "within the error", "worse"]
)
def test_the_last_state_is_returned_unless_an_earlier_one_is_better_by_more_than_the_error(
    tiny_bert, tmp_path, last, best
):
    measured = [[mean - 0.1, mean + 0.1] for mean in (0.1, 0.7, 0.69, last)]  # the standard error is 0.1
    values, seen = iter(measured), []

    def dev(paradigm: Paradigm) -> np.ndarray:
        seen.append(weights(paradigm).clone())
        return np.array(next(values))

    trained = fit(tiny_bert, tmp_path, replace(SETTINGS, evaluate_every=2), dev=dev)
    assert torch.equal(weights(trained), seen[best])
    assert kept_step(tmp_path) == 2 * best
    assert {step: of.tolist() for step, of in dev_values(tmp_path).items()} == dict(
        zip((0, 2, 4, 6), measured, strict=True)
    )


def test_a_training_ends_when_dev_does_not_improve_and_goes_on_with_more_patience(tiny_bert, tmp_path):
    values = [0.1, 0.5, 0.4, 0.3, 0.2, 0.6, 0.1]
    settings = replace(SETTINGS, evaluate_every=1, save_every=6)

    def dev(paradigm: Paradigm) -> np.ndarray:
        return np.full(2, values[len(dev_values(tmp_path))])

    for patience, ended in ((3, 4), (3, 4), (4, 6)):  # the second time, it has ended before
        fit(tiny_bert, tmp_path, replace(settings, patience=patience), dev=dev)
        assert list(dev_values(tmp_path)) == list(range(ended + 1))
        assert kept_step(tmp_path) == (1 if ended == 4 else 5)
    with pytest.raises(ValueError, match="patience=2 counts dev measures, and there are no dev queries"):
        fit(tiny_bert, tmp_path, replace(settings, patience=2))


def test_a_training_pauses_at_a_checkpoint_and_ends_as_one_that_did_not(tiny_bert, tmp_path, monkeypatch):
    settings = replace(SETTINGS, save_every=6, evaluate_at=[1, 5])
    reference = fit(tiny_bert, tmp_path / "whole", settings, dev=lambda paradigm: np.ones(2))
    clock = iter(range(1000))
    clocks = SimpleNamespace(monotonic=lambda: 60.0 * next(clock), perf_counter=time.perf_counter)
    monkeypatch.setattr(loop, "time", clocks)  # a minute for each question of the loop, not of other threads
    for done in (3, 5, 6):
        minutes = replace(settings, minutes=2.5 if done == 3 else 1.5)
        with nullcontext() if done == 6 else pytest.raises(Paused, match=f"after {done} of 6 steps"):
            paused = fit(tiny_bert, tmp_path / "parts", minutes, dev=lambda paradigm: np.ones(2))
    assert torch.equal(weights(paused), weights(reference))
    assert history(tmp_path / "parts") == history(tmp_path / "whole")
    assert list(dev_values(tmp_path / "parts")) == [0, 1, 5, 6]


def spoilt(paradigm: Paradigm, passes: list[int]) -> Paradigm:
    """The same paradigm, whose vectors are no numbers from step 4 on; it encodes twice in each step."""

    def spoil(module: torch.nn.Module, inputs: tuple, result: Any) -> Any:
        passes.append(1)
        factor = torch.nan if len(passes) > 6 else 1
        return result.map(lambda t: t * factor if t.is_floating_point() else t)

    paradigm.encoder.register_forward_hook(spoil)
    return paradigm


def test_a_loss_that_is_not_finite_stops_and_leaves_the_checkpoint(tiny_bert, tmp_path):
    with pytest.raises(FloatingPointError, match=r"the loss is nan at step 4; the checkpoint"):
        fit(tiny_bert, tmp_path, paradigm=spoilt(build(tiny_bert), []))
    assert torch.isfinite(weights(Paradigm.from_pretrained(tmp_path / "checkpoints/step-2"))).all()
    fit(tiny_bert, tmp_path)  # goes on from step 2 without what spoilt it
    assert [line["step"] for line in history(tmp_path)] == [1, 2, 3, 4, 5, 6]


def test_a_gradient_that_is_not_finite_stops_before_it_is_applied(tiny_bert, tmp_path):
    paradigm = build(tiny_bert)
    weight = next(paradigm.parameters())
    weight.register_hook(lambda gradient: gradient * torch.nan)
    before = weights(paradigm).clone()
    with pytest.raises(FloatingPointError, match="the gradient's norm is nan at step 1"):
        fit(tiny_bert, tmp_path, paradigm=paradigm)
    assert torch.equal(weights(paradigm), before)


@pytest.mark.parametrize("saved", [0, 4])
def test_a_device_that_computes_later_is_read_before_anything_is_kept(
    saved, tiny_bert, tmp_path, monkeypatch
):
    """As on a GPU: losses are read with each log, every 3 steps, and before each checkpoint."""
    build_run = loop._Run.__init__

    def later(run: Any, *args: Any) -> None:
        build_run(run, *args)
        run.waits = False

    monkeypatch.setattr(loop._Run, "__init__", later)
    settings = replace(SETTINGS, steps=6, log_every=3, save_every=saved)
    fit(tiny_bert, tmp_path / "whole", settings)
    monkeypatch.undo()
    fit(tiny_bert, tmp_path / "cpu", settings)
    assert history(tmp_path / "whole") == history(tmp_path / "cpu")
    monkeypatch.setattr(loop._Run, "__init__", later)
    passes: list[int] = []
    with pytest.raises(FloatingPointError, match="the loss is nan at step 4; the checkpoint"):
        fit(tiny_bert, tmp_path / "spoilt", settings, paradigm=spoilt(build(tiny_bert), passes))
    assert len(passes) == 2 * (saved or 6)
    assert not list(tmp_path.glob("spoilt/checkpoints/*"))


def test_a_checkpoint_of_other_settings_or_data_is_refused(tiny_bert, tmp_path):
    fit(tiny_bert, tmp_path, replace(SETTINGS, steps=2))
    with pytest.raises(ValueError, match=r"other settings \(steps: 2 then, 1 now\); choose another folder"):
        fit(tiny_bert, tmp_path, replace(SETTINGS, steps=1))
    other = PARADIGMS["colbert"](tiny_bert, query_length=8, document_length=32)
    with pytest.raises(ValueError, match="query_length: 16 then, 8 now"):
        fit(tiny_bert, tmp_path, replace(SETTINGS, steps=2), paradigm=other)
    with pytest.raises(ValueError, match=r"settings \(examples\)"):
        fit(tiny_bert, tmp_path, replace(SETTINGS, steps=2), examples=EXAMPLES[1:])
    text, grades, results = {"q": "where is the fox"}, {"q": {"d1": 1}}, {"q": {"d2": 1.0}}
    dev, *others = (
        DevMeasure(CORPUS, Split(queries, judged), run, 1, "no")
        for queries, judged, run in (
            (text, grades, results),
            (text, grades, {}),
            ({"q": "where"}, grades, results),
            (text, {"q": {"d1": 2}}, results),
        )
    )
    changed = Corpus(CORPUS.ids, [f"{text}." for text in CORPUS])
    others.append(DevMeasure(changed, Split(text, grades), results, 1, "no"))
    fit(tiny_bert, tmp_path / "dev", replace(SETTINGS, steps=2), dev=dev)
    for other in (None, *others):
        with pytest.raises(ValueError, match=r"settings \(dev queries"):
            fit(tiny_bert, tmp_path / "dev", replace(SETTINGS, steps=2), dev=other)
    fit(tiny_bert, tmp_path / "dev", replace(SETTINGS, steps=2), dev=dev)
    fit(tiny_bert, tmp_path, replace(SETTINGS, steps=2, log_every=7, workers=0, save_every=1, recompute=True))


def test_no_file_is_a_pickle(tiny_bert, tmp_path):
    fit(tiny_bert, tmp_path, dev=lambda paradigm: np.zeros(1))
    names = {file.suffix for file in tmp_path.rglob("*") if file.is_file()}
    assert names <= {".json", ".jsonl", ".safetensors", ".txt"}
    assert load_file(tmp_path / "checkpoints/step-6/random.safetensors")["cpu"].shape[0] == 1


def test_frozen_layers_stay_and_their_states_are_kept_for_those_who_ask(tiny_bert, tmp_path):
    queries = {f"q{n}": f"the {word}" for n, word in enumerate(WORDS)}
    judged = Split(queries, {f"q{n}": {f"d{n}": 1} for n in range(len(WORDS))})
    collection = Collection("words", CORPUS, {"train": judged}, Problems(), "")
    settings = replace(SETTINGS, trained_layers=1, evaluate_every=6)
    run: Run = {query: {"d0": 1.0} for query in queries}
    results = []
    for name, states in (("own", None), ("shared", tmp_path / "states")):
        paradigm, folder = build(tiny_bert, dim=16), tmp_path / name
        before = {name: weight.clone() for name, weight in paradigm.state_dict().items()}
        splits, runs = (judged, judged), (run, run)
        if states is not None:
            texts: dict[Side, list[str]] = {"document": list(CORPUS), "query": list(queries.values())}
            states_of.keep_states(paradigm, 1, states, texts, Accelerator(cpu=True))
        rest = settings, folder, Accelerator(cpu=True)
        trained = fitting.fit(paradigm, collection, splits, runs, 0, 16, *rest, states=states)
        after = trained.state_dict()
        lower = [n for n in before if ".embeddings." in n or ".layer.0." in n]
        assert all(torch.equal(before[n], after[n]) for n in lower)
        assert not torch.equal(before["encoder.projection.weight"], after["encoder.projection.weight"])
        results.append(trained)
    assert torch.equal(*map(weights, results))
    assert not list((tmp_path / "own").rglob("states*"))
    assert len(results[1].encoder.split.store) == 2 * len(WORDS)
    assert results[0].encoder.split is None


def test_the_loss_is_softmax_cross_entropy_without_the_excluded():
    scores = torch.tensor([[1.0, 2.0, 3.0], [0.5, 0.0, -1.0]], dtype=torch.float64)
    excluded = torch.tensor([[True, False, True], [False, False, False]])
    results = contrastive(scores, torch.tensor([0, 1]), excluded, 0.5)
    first = -2 + torch.tensor([2.0, 4.0], dtype=torch.float64).logsumexp(0)
    second = -0 + torch.tensor([1.0, 0.0, -2.0], dtype=torch.float64).logsumexp(0)
    assert_same(results, (first + second) / 2)


def test_the_dev_measure_reranks_candidates_and_the_relevant(tiny_bert):
    queries = {"q0": "where is the letter", "q9": "where is the sea"}
    judged = Split(queries, {"q0": {"d5": 1}, "q9": {"d0": 1}})
    measure = DevMeasure(CORPUS, judged, {"q0": {"d1": 1.0}}, queries=2, precision="no")
    paradigm = build(tiny_bert).train()
    values = measure(paradigm)
    second = 1 / math.log2(3)  # q0's relevant document is first or second of two; q9's is the only one
    first = min((1, second), key=lambda first: abs(values[0] - first))
    assert values.tolist() == pytest.approx([first, 1])
    assert measure(paradigm).tolist() == values.tolist()
    assert paradigm.training


def test_states_are_kept_while_a_run_is_paused(tmp_path):
    accelerator, states = Accelerator(cpu=True), tmp_path / "out" / "states"

    def pause() -> None:
        with states_of.deleted_after(states, accelerator):
            (states / "0123456789abcdef").mkdir()
            raise Paused("after 3 of 6 steps")

    with pytest.raises(Paused):
        pause()
    assert (states / "0123456789abcdef").is_dir()
    with states_of.deleted_after(states, accelerator):
        assert [entry.name for entry in states.iterdir()] == ["0123456789abcdef"]
    assert not states.exists()


def test_dev_queries_are_all_or_drawn_whatever_their_order():
    ids = [f"{package}{n}" for package in "abcd" for n in range(50)]
    queries, judged = dict.fromkeys(ids, "sea"), {id: {"d0": 1} for id in ids}
    for inputs in (queries, dict(reversed(queries.items()))):
        drawn, every = (DevMeasure(CORPUS, Split(inputs, judged), {}, n, "no").queries for n in (40, 200))
        assert every == queries
        assert len(drawn) == 40
        assert list(drawn) == list(DevMeasure(CORPUS, Split(queries, judged), {}, 40, "no").queries)
        assert {id[0] for id in drawn} == set("abcd")


def test_the_precision_of_float32_products_is_that_of_the_training_alone(tiny_bert, tmp_path):
    seen, paradigm, before = set(), build(tiny_bert), torch.get_float32_matmul_precision()
    paradigm.encoder.register_forward_hook(lambda *_: seen.add(torch.get_float32_matmul_precision()))
    fit(tiny_bert, tmp_path, replace(SETTINGS, steps=1, matmul_precision="high"), paradigm=paradigm)
    assert seen == {"high"}
    assert torch.get_float32_matmul_precision() == before == "highest"
    with pytest.raises((ValueError, TypeError), match="matmul_precision"):
        replace(SETTINGS, matmul_precision="tf32")
