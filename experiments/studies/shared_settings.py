"""Settings that several scripts share, and kinds of values: nothing here takes time to import."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from paradigms.io.settings import folder_name
from paradigms.io.terminal import shown
from paradigms.io.typed import check_known, check_type, check_types

Tracker = Literal["none", "wandb"]
DIVISIONS = {"within": "within documents", "unseen": "unseen documents"}  # of queries, as tables name them
# Where it is not 1. ME-BERT's vectors, of a document's first tokens, need two: on pydocs' 203 dev queries
# nDCG@10 is .560 with one and .654 with two (difference .094 ± .017, standard error over queries).
TRAINED_LAYERS = {"me_bert": 2}
TAKEN = {"bm25", "runs", "pictures", "wandb", "small-t5"}  # in the results folder of a comparison


@dataclass
class EncoderTraining:
    """How an encoder is trained: the recipe of the main job. Experiments add fields of their own."""

    steps: int = 30
    batch_size: int = 32
    """queries per step and process"""
    negatives: int = 0
    """hard negatives per query, mined from BM25's top 100"""
    learning_rate: float = 1e-4
    head_learning_rate: float = 1e-3
    """of projections and salience heads, which start untrained"""
    trained_layers: int | None = None
    """upper layers of the encoder that are trained; those below are frozen, and run once a text. 0: all; by
    default 1, of me_bert 2"""
    evaluate_every: int = 30
    """steps between dev measures: the last state is kept, or an earlier one (or the untrained encoder) if
    it is better by more than the measure's standard error"""
    dev_queries: int = 100
    """dev queries of that measure, drawn by a hash where there are more: nDCG@10 of reranking BM25's first 10
    documents and the relevant ones; 0: the last state is kept"""

    def training(self, paradigm: str) -> dict[str, Any]:
        """Fields of `TrainingSettings` for a paradigm."""
        from paradigms.train.loop import TrainingSettings

        names = [field.name for field in fields(TrainingSettings) if hasattr(self, field.name)]
        layers = TRAINED_LAYERS.get(paradigm, 1) if self.trained_layers is None else self.trained_layers
        return {name: getattr(self, name) for name in names} | {"trained_layers": layers}


@dataclass
class PairSettings:
    """What is trained on what, and which queries are measured. Experiments add fields of their own."""

    collection: str = "pydocs"
    """pydocs (built in), a folder in BEIR layout, hf:OWNER/NAME or irds:IDENTIFIER"""
    documents: int = 2000
    """size of a fixed subset, of pydocs alone; 0: all documents"""
    division: Literal["within", "unseen"] = "within"
    """of queries into train and test. within: within documents, each of which has training queries, as in the
    paper; unseen: as the collection has it, where test documents need not have any"""
    backbone: str = "small"
    """a T5 or BART by hub name or folder; an encoder likewise (offline: all-MiniLM-L6-v2), under a decoder
    with random weights; small: a T5 with random weights and the collection's vocabulary"""
    decoder_layers: int = 2
    """of the decoder over an encoder"""
    frozen: bool = False
    """do not train the encoder of generative models; on a CPU its states are kept on disk"""
    second: str = "offline"
    """encoder of DPR, and of ColBERT beside that of the backbone; offline: all-MiniLM-L6-v2"""
    vocabulary: int = 8000
    """tokens of the small T5"""
    width: int = 128
    """of the small T5's vectors"""
    layers: int = 2
    """of the small T5's encoder, and of its decoder"""
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    """of the small T5's weights and of training"""
    steps: int = 2000
    """of DPR and ColBERT; SEAL has as many more as it takes to see as many queries beside its passages"""
    generative_steps: int = 6000
    """of DSI and GENRE"""
    batch_size: int = 64
    learning_rate: float = 1e-3
    head_learning_rate: float | None = None
    """of what is no part of the backbone, such as a decoder over an encoder; null: learning_rate"""
    passages: int = 10
    """of each document, from which DSI and GENRE learn its identifier"""
    passage_words: int = 8
    """of these passages; about as many as a query has"""
    query_length: int = 32
    document_length: int = 128
    span: int = 10
    """tokens of a document's windows, by which SEAL scores it"""
    queries: int = 150
    """test queries that are measured, drawn at random; 0: all"""
    depth: int = 100
    """BM25 candidates of each query, to which the relevant documents are added"""
    models: str = ""
    """folder of the trained models, which experiments share; empty: results/pairs-COLLECTION"""
    output: str = ""
    """results folder; empty: one named after the experiment and the collection"""
    precision: str = "no"
    """no, bf16, fp16; auto: bf16 where the hardware has it"""
    tracker: str = "wandb"
    """wandb (offline without a key) or none"""

    experiment = "pairs"  # of results folders

    def __post_init__(self) -> None:
        if self.division not in DIVISIONS:
            raise SystemExit(f"division must be one of {', '.join(DIVISIONS)}, got {self.division!r}")
        sizes = (
            "decoder_layers",
            "steps",
            "generative_steps",
            "batch_size",
            "passages",
            "passage_words",
            "depth",
            "span",
        )
        for name in (*sizes, "vocabulary", "width", "layers"):
            if getattr(self, name) < 1:
                raise SystemExit(f"{name} must be at least 1, got {getattr(self, name)}")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise SystemExit(f"seeds must be different, and at least one; got {self.seeds}")
        of = folder_name(self.collection) + ("-unseen" if self.division == "unseen" else "")
        self.models = self.models or f"results/pairs-{of}"
        self.output = self.output or f"results/{self.experiment}-{of}"


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
