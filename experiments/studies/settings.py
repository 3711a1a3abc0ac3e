"""Define and check the settings that the studies share. Importing this module is fast."""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import field, fields
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from paradigms.io.command_line import command_line, flags, folder_name
from paradigms.io.terminal import interruptible, printable

Tracker = Literal["none", "wandb"]
Precision = Literal["auto", "no", "bf16", "fp16"]
LAUNCHERS = ("PMI_", "OMPI_COMM_WORLD_", "MV2_COMM_WORLD_")  # prefixes of what MPI's launchers set
DENSE = ("dpr", "me_bert", "colbert", "coil", "aligner", "xtr")  # what comparisons compare by default
DIVISIONS = {"within": "within documents", "unseen": "unseen documents"}  # names in tables


def launch(
    module: str,
    settings: type,
    description: str | None,
    *,
    processes: bool = False,
    shards: bool = False,
    device: bool = True,
) -> None:
    """Run `main` of the launched script, with settings parsed from the command line.

    A script calls this before its slow imports, so that help and errors appear at once. Nothing happens if
    another module imports the script. processes: whether several processes share the script's work; if not,
    only the first process of a launch runs it. shards: whether the processes may share a model's weights.
    device: whether the script computes on a device, which --device chooses.
    """
    if module == "__main__":
        if not processes:
            leave_to_first()
        with interruptible():
            arguments = command_line(settings, description or "", device=device)
            script = import_module(Path(sys.argv[0]).resolve().stem)
            if processes:
                from paradigms.train.launcher import check_launch

                check_launch(arguments["precision"], shards=shards)
            try:
                raise SystemExit(script.main(script.Settings(**arguments)))
            except Exception as error:
                loop = sys.modules.get("paradigms.train.loop")  # not there if nothing was trained
                if loop is None or not isinstance(error, loop.Paused):
                    raise
                print(f"Paused: {error}. The same command resumes.", file=sys.stderr)
                raise SystemExit(os.EX_TEMPFAIL) from None


def leave_to_first() -> None:
    """End all processes of a launch except the first, which goes on as if it had been started alone."""
    names = [f"{launcher}{name}" for launcher in LAUNCHERS for name in ("RANK", "SIZE")]
    values = {name: os.environ.get(name, "0") for name in ("RANK", "WORLD_SIZE", *names)}
    if any(value != "0" for name, value in values.items() if name.endswith("RANK")):
        raise SystemExit(0)
    if any(int(value) > 1 for value in values.values()):
        print(f"{Path(sys.argv[0]).name} runs in one process; the others end at once.", file=sys.stderr)
    for name in (*values, "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        os.environ.pop(name, None)


@contextmanager
def refusing(before: str = "", after: str = "", *, options: bool = False) -> Iterator[None]:
    """Turn input errors, such as invalid files or data or a diverging loss, into a one-line SystemExit.

    options: also convert errors caused by options that a builder does not have or that need another package.
    Elsewhere, such errors are bugs, so the traceback is shown.
    """
    kinds = ValueError, OSError, KeyError, FloatingPointError, *((TypeError, ImportError) if options else ())
    try:
        yield
    except kinds as error:
        kind = "" if isinstance(error, ValueError | OSError) else f"{type(error).__name__}: "
        raise SystemExit(f"{before}{kind}{printable(error)}{after}") from error


def at_least(settings: Any, **least: int) -> None:
    """Raise SystemExit if a setting, or a number in a setting's list, is below the minimum in `least`."""
    for name, fewest in least.items():
        value = getattr(settings, name)
        if min(value if isinstance(value, list) else [value], default=fewest) < fewest:
            raise SystemExit(f"{name} must be at least {fewest}, got {value}")


def different(settings: Any, *names: str) -> None:
    """Raise SystemExit if one of the settings `names` is an empty list or contains a value twice."""
    for name in names:
        values = getattr(settings, name)
        if not values or len(set(values)) < len(values):
            raise SystemExit(f"{name} must have at least one value, and none twice; got {values}")


def check_names(settings: Any, name: str, names: Any) -> None:
    """Raise SystemExit if the list `name` in the settings contains a value that is not in `names`."""
    different(settings, name)
    if unknown := [value for value in getattr(settings, name) if value not in names]:
        raise SystemExit(f"{name}: unknown {quoted(unknown)}; there are {quoted(names)}")


def quoted(names: Iterable[str]) -> str:
    """Format a list of names for the command line; names that contain commas are quoted."""
    return ", ".join(f'"{name}"' for name in names)


# The flags that several scripts share, each declared once. A script's settings inherit the classes that they
# need, and change defaults as arguments of `flags`.


@flags()
class Output:
    output: str = ""
    """results folder; empty: a folder named after the script and the collection"""

    def __post_init__(self) -> None:
        collection = getattr(self, "collection", "")
        suffix = f"-{folder_name(collection)}" if collection else ""
        self.output = self.output or f"results/{self.experiment}{suffix}"

    @property
    def experiment(self) -> str:
        """Name of the script, as used in the names of results folders."""
        return type(self).__module__.replace("_", "-")


@flags()
class Computing:
    precision: Precision = "auto"
    """auto: bf16 if the hardware multiplies it natively"""


@flags()
class Results(Output, Computing):
    tracker: Tracker = "wandb"
    """wandb (offline without a key) or none"""


@flags()
class CollectionName:
    collection: str = "pydocs"
    """pydocs (built in), hf:OWNER/NAME, irds:IDENTIFIER, or a folder in the BEIR layout or another layout
    from paradigms/data/README.md"""


@flags()
class Documents:
    documents: int = 0
    """number of documents; 0: all. Training and encoding take a fixed subset, of pydocs only"""


@flags()
class OneCollection(CollectionName, Documents):
    """A collection, or a part of it."""


@flags()
class Collections:
    collections: list[str] = field(default_factory=lambda: ["pydocs"])
    """pydocs (built in), hf:OWNER/NAME, irds:IDENTIFIER, or folders of collections"""


@flags()
class Queries:
    queries: int = 0
    """test queries to measure, drawn at random; 0: all"""


@flags()
class OneSplit:
    split: str = "test"
    """split with the queries"""


@flags()
class Backbone:
    backbone: str = "offline"
    """a Hugging Face encoder by hub name or folder; offline: all-MiniLM-L6-v2 from the Python package"""


@flags()
class Lengths:
    query_length: int = 32
    """maximum number of tokens per query"""
    document_length: int = 128
    """maximum number of tokens per document"""


@flags()
class PassageLength:
    passages: int = 0
    """split documents into passages of at most this many words, with their titles, for all encoders; 0:
    truncate documents at the paradigm's document_length"""


@flags()
class Ranking(PassageLength):
    best_passages: int = 1
    """a document's score is the sum over this many of its best passages; 1: MaxP"""
    depth: int = 100
    """documents to retrieve per query, and candidates to rerank"""
    identical_ids: Literal["auto", "leave_out", "keep"] = "auto"
    """documents whose id equals the query's id: keep; leave_out, as BEIR does; auto: leave_out if most of
    these documents contain the query (ArguAna, Quora), keep if ids are equal by chance"""


@flags()
class Options:
    options: dict[str, Any] = field(default_factory=dict)
    """settings of every paradigm, such as '{"dim": 64, "document_length": 256, "lora_rank": 8}'"""


@flags()
class IndexKind:
    index: str = "exact"
    """index of encoded documents: exact (for splade an exact inverted index); faiss; lemur; inverted, in
    8 bits; or compressed, which approximates in a quarter of the bytes"""


@flags()
class Checkpoint:
    checkpoint: str
    """folder of a saved paradigm, such as experiments/train.py writes"""


@flags()
class Threads:
    threads: int = 1


@flags()
class Rounds:
    rounds: int = 5
    """measured rounds, after a warm-up; systems take turns within a round, and medians are reported"""


@flags()
class Seed:
    seed: int = 0


@flags()
class Seeds:
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    """training seeds"""


@flags()
class Training:
    """How a model is trained: fields of `TrainingSettings`."""

    steps: int = 30
    """optimizer steps of each model; 0: untrained models"""
    batch_size: int = 32
    """queries per batch and process"""
    learning_rate: float = 1e-4
    trained_layers: int = 1
    """number of upper encoder layers to train; 0: all. The layers below are frozen: they run once per text,
    and the states are stored on disk, up to 64 GiB and half of the free space. Beyond this limit, the frozen
    layers run in every step"""


@flags()
class HardNegatives:
    negatives: int = 0
    """hard negatives per query, mined from BM25's top 100"""


@flags()
class HeadRate:
    head_learning_rate: float | None = 1e-3
    """learning rate of weights outside the backbone, such as projections or a decoder over an encoder, which
    start untrained; null: learning_rate"""


@flags()
class EncoderTraining(Training, HeadRate, HardNegatives):
    salience_learning_rate: float | None = 8e-3
    """learning rate of salience heads; salience starts equal, and at 1e-3, 30 steps hardly change it; null:
    head_learning_rate"""
    evaluate_every: int = 30
    """steps between dev measurements. The last state is kept, unless an earlier state (or the untrained
    encoder) is better by more than the measure's standard error"""
    evaluate_at: list[int] = field(default_factory=list)
    """more steps at which to measure dev: points of the learning curve"""
    dev_queries: int = 100
    """number of dev queries for measuring nDCG@10 after reranking BM25's first 10 documents and the relevant
    documents; if there are more queries, a hash draws a sample; 0: keep the last state"""


@flags()
class TimeLimit:
    minutes: float = 0.0
    """pause after this many minutes at a checkpoint, with exit status 75; the same command resumes. 0:
    never"""


@flags()
class StudyTraining(EncoderTraining):
    own_negatives: bool = False
    """mine hard negatives from the first 100 documents of the untrained system instead"""


@flags()
class BackboneStudy(Results, OneCollection, Training, HardNegatives, Backbone, Seeds):
    """Models of several kinds, trained from one backbone."""


@flags(documents=2000)
class EncoderStudy(Results, Documents, StudyTraining, Backbone, Lengths, Queries, Seeds):
    def __post_init__(self) -> None:
        super().__post_init__()
        different(self, "seeds")
        at_least(self, batch_size=1)


def lengths_of(settings: Any) -> dict[str, int]:
    """Return the maximum lengths that encoders read, in tokens."""
    return {name: getattr(settings, name) for name in ("query_length", "document_length")}


def training_fields(settings: Any) -> dict[str, Any]:
    """Return the settings that are also fields of `TrainingSettings`."""
    from paradigms.train.loop import TrainingSettings

    return {f.name: getattr(settings, f.name) for f in fields(TrainingSettings) if hasattr(settings, f.name)}
