"""Read and check the systems of a comparison, `--systems`, before slow imports."""

import re
from dataclasses import dataclass, field
from typing import Any, Literal

from studies.settings import refusing

from paradigms.io.checks import check_known, check_type, check_types

TAKEN = {"bm25", "bm25-cut", "runs", "pictures", "wandb", "small-t5"}  # files of a comparison


@dataclass(frozen=True)
class SystemSettings:
    """One system in a comparison: a paradigm to train, or a given checkpoint."""

    paradigm: str = ""  # a key of PARADIGMS or GENERATIVE; optional for a checkpoint
    options: dict[str, Any] = field(default_factory=dict)  # builder options; Recipe fields for a checkpoint
    training: dict[str, Any] = field(default_factory=dict)  # fields of `TrainingSettings`
    backbone: str = ""  # "" = the common backbone
    checkpoint: str = ""  # a saved paradigm, compared without training
    index: str = ""  # folder that experiments/encode.py or `paradigms index` made with the checkpoint
    fuse: list[str] = field(default_factory=list)  # systems of the comparison, or bm25, whose runs are fused
    fusion: Literal["rrf", "sum"] = "rrf"
    weights: list[float] = field(default_factory=list)  # for fusion; [] = equal, or for "sum" chosen on dev
    teacher: str = ""  # a system, or bm25, whose scores are learned too
    distil: dict[str, Any] = field(default_factory=dict)  # fields of `Distillation`


def read_systems(listed: list[str] | dict[str, Any]) -> dict[str, SystemSettings]:
    """Read {name: system} from a list of paradigms, or from a mapping of names to fields.

    Raises SystemExit, naming the invalid system and the error.
    """
    systems = {}
    named = listed if isinstance(listed, dict) else {name: {} for name in listed}
    for name, options in named.items():
        if name == "bm25":
            raise SystemExit("system bm25: every comparison has BM25 already: leave it out of the list")
        if name in TAKEN:
            raise SystemExit(f"system {name}: the results folder uses this name itself: choose another")
        if not re.fullmatch(r"[\w+-][\w.+-]*", name):
            raise SystemExit(f"system {name!r}: it also names a folder: use letters, digits, . + - and _")
        with refusing(f"system {name}: ", options=True):
            check_type("its settings", options, dict)
            check_known(SystemSettings, options)
            unnamed = "checkpoint" in options or "fuse" in options
            systems[name] = SystemSettings(**{"paradigm": "" if unnamed else name} | options)
            check_types(systems[name])
            fields = {other: f for other, f in named.items() if other != name and isinstance(f, dict)}
            unfused = ["bm25", *(other for other, f in fields.items() if not f.get("fuse"))]
            teachers = [other for other in unfused if not fields.get(other, {}).get("teacher")]
            _check(systems[name], options, unfused, teachers)
    return systems


def _check(system: SystemSettings, fields: dict[str, Any], others: list[str], teachers: list[str]) -> None:
    """Raise ValueError if fields are incompatible. others: systems to fuse. teachers: to learn from."""
    from paradigms import GENERATIVE, PARADIGMS
    from paradigms.retrieve import fuse

    paradigms = PARADIGMS | GENERATIVE
    parts = system.fuse
    if parts:
        more = fields.keys() - {"fuse", "fusion", "weights"}
        if more or not set(parts) <= set(others) or len(parts) < 2 or len(set(parts)) < len(parts):
            what = f"{', '.join(sorted(more))} cannot be set for a fused system" if more else f"fuse: {parts}"
            raise ValueError(f"{what}; it fuses two or more of {', '.join(others)}")
        fuse([{} for _ in parts], list(map(float, system.weights)), system.fusion)
    elif system.paradigm not in paradigms and not (system.checkpoint and not system.paradigm):
        raise ValueError(
            f"unknown paradigm {system.paradigm}; there are {', '.join(paradigms)}. To use your own "
            "paradigm, add --plugin FILE.py"
        )
    elif system.checkpoint and (system.training or system.backbone):
        raise ValueError("a checkpoint takes neither training nor backbone")
    elif system.index and not system.checkpoint:
        raise ValueError("index needs the checkpoint that encoded it")
    elif (system.distil and not system.teacher) or system.teacher not in ("", *teachers):
        raise ValueError(f"distil needs a teacher, one of {', '.join(teachers)}; got {system.teacher!r}")
    elif system.teacher and (system.checkpoint or system.paradigm in GENERATIVE):
        raise ValueError("only encoders that are trained here learn from a teacher")
