"""Settings that the studies share, and what they refuse: nothing here takes time to import."""

from dataclasses import dataclass, field
from typing import Any

from studies.shared_settings import EncoderTraining, Tracker

from paradigms.io.settings import folder_name


def at_least(settings: Any, **least: int) -> None:
    """SystemExit for a setting, or a number of a list of them, that is smaller than its least."""
    for name, fewest in least.items():
        value = getattr(settings, name)
        if min(value if isinstance(value, list) else [value], default=fewest) < fewest:
            raise SystemExit(f"{name} must be at least {fewest}, got {value}")


def different(settings: Any, *names: str) -> None:
    """SystemExit for a list without values, or with one of them twice."""
    for name in names:
        values = getattr(settings, name)
        if not values or len(set(values)) < len(values):
            raise SystemExit(f"{name} must be different, and at least one; got {values}")


def known(settings: Any, name: str, names: Any) -> None:
    """SystemExit for a value of the list that is none of the names."""
    different(settings, name)
    if unknown := [value for value in getattr(settings, name) if value not in names]:
        raise SystemExit(f"{name}: unknown {', '.join(unknown)}; there are {', '.join(names)}")


@dataclass
class Results:
    """Where results go. Experiments add fields of their own."""

    output: str = ""
    """results folder; empty: one named after the experiment and the collection"""
    precision: str = "auto"
    """no, bf16, fp16; auto: bf16 where the hardware has it"""
    tracker: Tracker = "wandb"
    """wandb (offline without a key) or none"""

    experiment = "study"  # of results folders

    def __post_init__(self) -> None:
        collection = getattr(self, "collection", "")
        of = f"-{folder_name(collection)}" if collection else ""
        self.output = self.output or f"results/{self.experiment}{of}"


@dataclass
class EncoderStudy(Results, EncoderTraining):
    """Encoders that are trained and measured. Experiments add a collection and fields of their own."""

    documents: int = 2000
    """size of a fixed subset, of pydocs alone; 0: all documents"""
    queries: int = 0
    """test queries that are measured, drawn at random; 0: all"""
    backbone: str = "offline"
    """a Hugging Face encoder by hub name or folder; offline: all-MiniLM-L6-v2 from the Python package"""
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    """of training"""
    query_length: int = 32
    document_length: int = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        different(self, "seeds")
        at_least(self, batch_size=1)


@dataclass
class LexicalStudy(Results):
    """BM25's vectors of a collection, and random projections of them. Experiments add fields of their own."""

    collection: str = "pydocs"
    """pydocs (built in), a folder in BEIR layout, hf:OWNER/NAME or irds:IDENTIFIER"""
    split: str = "test"
    """whose queries"""
    queries: int = 100
    """how many of them, drawn at random"""
    samples: int = 64
    """Gaussian vectors per query for the exact law"""
    seed: int = 0
    """of everything random"""
    precision: str = "no"
    tracker: Tracker = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, queries=1, samples=2)
