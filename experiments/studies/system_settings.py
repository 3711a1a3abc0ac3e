"""The systems of a comparison as settings: nothing here takes time to import."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from paradigms.io.terminal import shown
from paradigms.io.typed import check_known, check_type, check_types

TAKEN = {"bm25", "runs", "pictures", "wandb", "small-t5"}  # in the results folder of a comparison


@dataclass(frozen=True)
class System:
    """One system of a comparison: a paradigm that is trained there, or a checkpoint as it is."""

    paradigm: str = ""  # a key of PARADIGMS or GENERATIVE; of a checkpoint it may be left out
    options: dict[str, Any] = field(
        default_factory=dict
    )  # of the builder; of a checkpoint, fields of `Recipe`
    training: dict[str, Any] = field(default_factory=dict)  # fields of `TrainingSettings`
    backbone: str = ""  # "" = that of all
    checkpoint: str = ""  # a saved paradigm, compared without training
    index: str = ""  # where experiments/encode.py encoded the collection with that checkpoint
    fuse: list[str] = field(default_factory=list)  # systems of the comparison, or bm25, whose runs are fused
    fusion: str = "rrf"  # of `paradigms.evaluate.fusion.METHODS`
    weights: list[float] = field(default_factory=list)  # of these systems; [] = equal, of "sum" chosen on dev


def read_systems(given: list[str] | dict[str, Any]) -> dict[str, System]:
    """name -> system, of a list of paradigms or of a mapping to a system's fields; SystemExit names what is
    wrong with which system."""
    from paradigms import GENERATIVE, PARADIGMS

    known = PARADIGMS | GENERATIVE
    systems = {}
    for name, told in (given if isinstance(given, dict) else {name: {} for name in given}).items():
        if not re.fullmatch(r"[\w+-][\w.+-]*", name) or name in TAKEN:
            raise SystemExit(f"system {name!r}: its name is that of a folder: letters, digits, . + - and _")
        try:
            check_type("its settings", told, dict)
            check_known(System, told)
            unnamed = "checkpoint" in told or "fuse" in told
            system = systems[name] = System(**{"paradigm": "" if unnamed else name} | told)
            check_types(system)
        except ValueError as error:
            raise SystemExit(f"system {name}: {shown(error)}") from error
        if system.fuse:
            check_fused(name, told, given)
            continue
        if system.paradigm not in known and not (system.checkpoint and not system.paradigm):
            raise SystemExit(
                f"system {name}: unknown paradigm {system.paradigm}; there are {', '.join(known)}. One of "
                "your own is registered by its file: --plugin FILE.py"
            )
        if system.checkpoint and (system.training or system.backbone):
            raise SystemExit(f"system {name}: training and backbone are not of a checkpoint")
        if system.index and not system.checkpoint:
            raise SystemExit(f"system {name}: an index goes with the checkpoint that encoded it")
    return systems


def check_fused(name: str, told: dict[str, Any], given: Any) -> None:
    """SystemExit where a fused system has other settings, or fuses what is not there."""
    from paradigms.evaluate.fusion import fuse

    others = (
        [of for of in given if of != name and not given[of].get("fuse")] if isinstance(given, dict) else []
    )
    unknown = [of for of in told["fuse"] if of not in ("bm25", *others)]
    more = told.keys() - {"fuse", "fusion", "weights"}
    if more or unknown or len(told["fuse"]) < 2 or len(set(told["fuse"])) < len(told["fuse"]):
        what = f"{', '.join(sorted(more))} is not of a fused system" if more else f"fuse: {told['fuse']}"
        raise SystemExit(f"system {name}: {what}; it fuses two or more of {', '.join(['bm25', *others])}")
    try:
        fuse(
            [{} for _ in told["fuse"]], [float(w) for w in told.get("weights", ())], told.get("fusion", "rrf")
        )
    except ValueError as error:
        raise SystemExit(f"system {name}: {error}") from error
