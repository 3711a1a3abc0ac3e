"""Which trainings and results folders a comparison has. settings: settings of compare.py."""

import json
from typing import Annotated, Any, NamedTuple

from studies.settings import training_fields
from studies.system_settings import SystemSettings

from paradigms import GENERATIVE, PARADIGMS, Paradigm
from paradigms.io.checks import Range, check_known, check_type
from paradigms.train.loop import TrainingSettings
from paradigms.train.losses import Distillation

UNTRAINED = ".untrained"  # suffix of an untrained system's runs
# Training settings of a small decoder over a frozen encoder.
GENERATIVE_TRAINING: dict[str, Any] = {"steps": 400, "batch_size": 64, "learning_rate": 2e-3, "warmup": 0.05}
MINING = ("negatives", "own_negatives")  # settings of `fit` among a system's training settings


class Training(NamedTuple):
    """A system to train and measure; if `untrained`, it is measured before training."""

    system: str
    seed: int
    untrained: bool = False


def training_settings(system: SystemSettings, settings: Any, seed: int) -> TrainingSettings | None:
    """Return the system's training settings, or None if it is not trained."""
    if system.checkpoint or system.fuse:
        return None
    if system.paradigm in GENERATIVE:
        untrained = {} if settings.steps else {"steps": 0}
        chosen = GENERATIVE_TRAINING | untrained | {"seed": seed} | system.training
        chosen = {"evaluate_every": max(1, chosen["steps"] // 2)} | chosen
    else:
        overrides = {name: value for name, value in system.training.items() if name not in MINING}
        chosen = training_fields(settings) | {"minutes": 0.0, "seed": seed} | overrides
        negatives, _ = hard_negatives(system, settings)
        if system.teacher:
            check_known(Distillation, system.distil)
            if not negatives:
                raise ValueError("a teacher scores hard negatives: set --negatives")
            chosen["distillation"] = Distillation(**system.distil)
    return TrainingSettings(**chosen) if chosen["steps"] else None


def hard_negatives(system: SystemSettings, settings: Any) -> tuple[int, bool]:
    """Return the number of hard negatives per query, and whether the system's own run provides them.

    The system's settings override the common settings. Raises ValueError if the number is negative, or if
    there are no negatives for its own run to provide.
    """
    number = system.training.get("negatives", settings.negatives)
    own_negatives = system.training.get("own_negatives", settings.own_negatives)
    check_type("negatives", number, Annotated[int, Range(0, 1 << 20)])
    check_type("own_negatives", own_negatives, bool)
    if own_negatives and not number:
        raise ValueError("own_negatives mines hard negatives: set negatives")
    return number, own_negatives


def training_runs(settings: Any) -> dict[str, Training]:
    """Map each results folder to its training; a system without training runs for one seed only.

    Encoders that will be trained are first measured untrained. Systems with a teacher come after systems
    without a teacher, and fused systems come last.
    """
    chosen = settings.chosen
    names = sorted(chosen, key=lambda name: (bool(chosen[name].fuse), bool(chosen[name].teacher)))
    untrained = dict[str, Training]()
    runs = dict[str, Training]()
    for number, seed in enumerate(settings.seeds):
        for name in names:
            system = settings.chosen[name]
            ending = f".seed-{seed}" if number else ""
            training = training_settings(system, settings, seed)
            if training and system.paradigm in PARADIGMS:
                untrained[f"{name}{UNTRAINED}{ending}"] = Training(name, seed, untrained=True)
            if training or not number:
                runs[f"{name}{ending}"] = Training(name, seed)
    return untrained | runs


def start_of(name: str, settings: Any) -> str:
    """Describe the encoder from which a system is trained, as JSON: paradigm, backbone and options."""
    system = settings.chosen[name]
    backbone = system.backbone or settings.backbone
    options = settings.options | system.options
    return json.dumps([system.paradigm, backbone, options], sort_keys=True)


def twin(trial: Training, settings: Any) -> str:
    """Return an earlier run of the same untrained encoder and seed, with the same results; "" if none.

    Encoders without random weights are measured once for each seed, too.
    """
    if not trial.untrained:
        return ""

    def encoder(run: Training) -> tuple[str, int, int]:  # below the trained layers, states are rounded
        training = training_settings(settings.chosen[run.system], settings, run.seed)
        assert training is not None
        return start_of(run.system, settings), run.seed, training.trained_layers

    runs = training_runs(settings).items()
    first, other = next(item for item in runs if item[1].untrained and encoder(item[1]) == encoder(trial))
    return "" if other == trial else first


def built(system: SystemSettings, settings: Any) -> Paradigm:
    return PARADIGMS[system.paradigm](
        system.backbone or settings.backbone, **settings.options | system.options
    )
