"""Which trainings and results folders a comparison has. settings: settings of compare.py."""

import hashlib
import json
from functools import cache
from typing import Annotated, Any, NamedTuple

import torch
from studies.settings import training_fields
from studies.system_settings import SystemSettings

from paradigms import GENERATIVE, PARADIGMS, Paradigm
from paradigms.generative.settings import TRAINING
from paradigms.io.checks import Range, check_known, check_type
from paradigms.train.loop import TrainingSettings
from paradigms.train.losses import Distillation

UNTRAINED = ".untrained"  # suffix of an untrained system's runs
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
        chosen = TRAINING | untrained | {"seed": seed} | system.training
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
    """Return an earlier run of the same encoder if it is untrained, with the same results; otherwise ""."""

    def layers(name: str, seed: int) -> int:  # below the trained layers, states are rounded
        return training_settings(settings.chosen[name], settings, seed).trained_layers

    if not trial.untrained:
        return ""
    start = start_of(trial.system, settings)
    depth = layers(*trial[:2])
    for run, other in training_runs(settings).items():
        if other == trial:
            break
        if not other.untrained or start_of(other.system, settings) != start or layers(*other[:2]) != depth:
            continue
        seeds = {other.seed, trial.seed}
        if len(seeds) == 1 or len({initial_weights(start, seed) for seed in seeds}) == 1:
            return run
    return ""


@cache
def initial_weights(start: str, seed: int) -> bytes:
    """Hash the untrained weights of an encoder, described as by `start_of`; some may be drawn at random."""
    paradigm, backbone, options = json.loads(start)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        weights = PARADIGMS[paradigm](backbone, **options).state_dict()
    hashed = hashlib.sha256()
    for name, tensor in weights.items():
        hashed.update(name.encode())
        hashed.update(tensor.contiguous().flatten().view(torch.uint8).numpy())
    return hashed.digest()


def built(system: SystemSettings, settings: Any) -> Paradigm:
    return PARADIGMS[system.paradigm](
        system.backbone or settings.backbone, **settings.options | system.options
    )
