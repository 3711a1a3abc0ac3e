"""A setting of training acts, is refused, or is listed because it only changes how the same steps run."""

import warnings
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from paradigms.baselines.cross_attention import cross_attention
from paradigms.data import Corpus
from paradigms.train.contrastive import Contrastive, Listwise
from paradigms.train.examples import Example
from paradigms.train.loop import FREE, TrainingSettings, train
from paradigms.train.losses import Distillation, LossSettings, Objective
from tests.generative import test_training as generative
from tests.near import assert_same
from tests.tiny import WORDS, built
from tests.train.test_loop import history, weights, without_dropout

TEXTS = [" ".join(WORDS.split()[7 * n : 7 * n + 6]) for n in range(12)]
CORPUS = Corpus([f"d{n}" for n in range(12)], TEXTS)
EXAMPLES = [
    Example(" ".join(TEXTS[n].split()[1:4]), n, (n + 6, (n + 7) % 12), (n,), (3.0, float(n), -1.0))
    for n in range(6)
]
# How the same steps are computed, when they are measured or stored, and with what rounding.
SAME = {*FREE, "attention", "chunk", "parts", "score_bytes", "evaluate_every", "evaluate_at"}
BASE: dict[str, Any] = {"steps": 2, "batch_size": 2, "learning_rate": 1e-3, "log_every": 1}
# Values other than the defaults; `other` derives the rest from the defaults.
VALUES: dict[str, Any] = {
    "adapted_weights": "bf16",
    "attention": "eager",
    "batch_size": 3,
    "distillation": Distillation(),
    "evaluate_at": [1],
    "gathered_weights": "bf16",
    "head_learning_rate": 1e-2,
    "log_every": 2,
    "matmul_precision": "high",
    "matryoshka": [8],
    "max_grad_norm": 1e-3,
    "minutes": 60.0,
    "salience_learning_rate": 1e-2,
    "temperature": 0.5,
    "workers": 1,
}


def other(name: str) -> Any:
    """A value of a setting that is not its default."""
    (field,) = (field for field in fields(TrainingSettings) if field.name == name)
    if name in VALUES:
        return VALUES[name]
    assert field.default is not MISSING, f"give {name} a value in VALUES"
    return not field.default if isinstance(field.default, bool) else BASE.get(name, field.default) + 1


def objective_of(kind: str, bert: Path, t5: Path) -> Objective:
    torch.manual_seed(0)
    if kind == "contrastive":
        options = {"dim": 16, "salience": "relu", "query_length": 8, "document_length": 12}
        return Contrastive(built("aligner", bert, **options), CORPUS, EXAMPLES)
    if kind == "listwise":
        return Listwise(cross_attention(bert), CORPUS, EXAMPLES)
    model = generative.build("dsi", t5, t5)
    return generative.objective(model)


def trained(objective: Objective, folder: Path, **changes: Any) -> tuple[list[float], torch.Tensor]:
    """The losses of the first steps, and the weights after them."""
    model = without_dropout(objective.model).double()
    settings = TrainingSettings(**BASE | changes)
    train(model, objective, settings, folder, accelerator=Accelerator(cpu=True), progress=False)
    return [line["loss"] for line in history(folder)], weights(model)


CASES = [("contrastive", field.name) for field in fields(TrainingSettings)]
CASES += [(kind, field.name) for kind in ("listwise", "likelihood") for field in fields(LossSettings)]


@pytest.fixture(scope="module")
def plain(tiny_bert, seq2seq, tmp_path_factory):
    """Each objective's training with the defaults."""
    kinds = dict.fromkeys(kind for kind, _ in CASES)
    folder = tmp_path_factory.mktemp("plain")
    return {kind: trained(objective_of(kind, tiny_bert, seq2seq["t5"]), folder / kind) for kind in kinds}


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_each_setting_acts_or_is_refused(kind, name, plain, tiny_bert, seq2seq, tmp_path):
    (losses, after), objective = plain[kind], objective_of(kind, tiny_bert, seq2seq["t5"])
    try:
        results, changed = trained(objective, tmp_path / "run", **{name: other(name)})
    except ValueError as error:
        refused = str(error)
    else:
        refused = ""
    if refused:
        assert name in refused or (name == "distillation" and "teacher" in refused)
        assert not (tmp_path / "run").exists()  # the run has not begun
        return
    if name in SAME:
        assert_same([results[:1], changed], [losses[:1], after])
    else:
        assert results != losses or not torch.equal(changed, after)


def test_training_without_negatives_is_named_before_it_begins(tiny_bert, tmp_path):
    alone = [Example(text, n, (), (n,)) for n, text in enumerate(TEXTS)]
    one = [Example("which?", n, (), tuple(range(12))) for n in range(12)]
    twice = [*alone[:10], *(Example("which?", n, (), (10, 11)) for n in (10, 11))]
    model = built("dpr", tiny_bert)

    def run(examples: list[Example], batch: int) -> list[str]:
        settings, folder = TrainingSettings(steps=6, batch_size=batch), tmp_path / f"{id(examples)}-{batch}"
        options: dict[str, Any] = {"accelerator": Accelerator(cpu=True), "progress": False}
        with warnings.catch_warnings(record=True) as noted:
            train(model, Contrastive(model, CORPUS, examples), settings, folder, **options)
        return [str(warning.message) for warning in noted if "negative" in str(warning.message)]

    for examples, batch in ((alone, 1), (one, 4)):
        with pytest.raises(ValueError, match="training examples of dpr have no negative in their batch of"):
            run(examples, batch)
    assert list(tmp_path.iterdir()) == []
    assert run(alone, 2) == run(EXAMPLES, 1) == run(twice, 12) == []  # the second has hard negatives
    torch.manual_seed(0)
    (warning,) = run([*twice[10:], *twice[:2]], 2)  # seed 0 draws both of them together
    assert warning.startswith("2 of the first 4 training examples of dpr have no negative in their batch")
