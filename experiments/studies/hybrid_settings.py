"""Settings of hybrid.py: nothing here takes time to import."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from paradigms.io.settings import folder_name

FURTHER = ("again", "mined")  # rounds that go on from the end of the first
APPROXIMATE = ("faiss", "compressed")  # kinds of index


@dataclass
class Settings:
    """What is trained on what, retrieved, reranked and timed."""

    collection: str = "pydocs"
    """pydocs (built in), a folder in BEIR layout, hf:OWNER/NAME or irds:IDENTIFIER"""
    documents: int = 2000
    """size of a fixed subset, of pydocs alone; 0: all documents"""
    backbone: str = "offline"
    """a Hugging Face encoder by hub name or folder; offline: all-MiniLM-L6-v2 from the Python package"""
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    vectors: int = 3
    """m: of each document of ME-BERT; 3 for passages and 4 for documents in the paper"""
    pooling: Literal["mean", "cls"] = "mean"
    """of DE-BERT's vectors and ME-BERT's query. The paper's is cls, and DE-BERT then ME-BERT with m = 1;
    all-MiniLM-L6-v2 has learned mean, and with cls its first vector wins every maximum of ME-BERT"""
    normalize: bool = False
    """cosines in place of the paper's inner products"""
    rounds: list[str] = field(default_factory=lambda: list(FURTHER))
    """of training after the first, each from its end: mined, with the model's own hard negatives; again, with
    BM25's as before, which tells what more steps do from what other negatives do"""
    steps: int = 200
    """of each round"""
    batch_size: int = 32
    """queries per step and process"""
    negatives: int = 3
    """hard negatives per query, of the first 100 documents"""
    learning_rate: float = 5e-5
    rerank_steps: int = 400
    """of cross-attention"""
    rerank_batch_size: int = 8
    rerank_negatives: int = 7
    """of each query of cross-attention, of BM25's first 100"""
    query_length: int = 32
    document_length: int = 128
    queries: int = 200
    """test queries that are measured, drawn at random; 0: all"""
    dev_queries: int = 200
    """dev queries that choose, drawn at random; 0: all"""
    depth: int = 100
    """documents that each system retrieves, of dense and sparse ones the candidates of their hybrid"""
    rerank_depths: list[int] = field(default_factory=lambda: [2, 5, 10, 20, 50])
    """first documents that cross-attention orders anew"""
    indexes: list[str] = field(default_factory=lambda: ["faiss", "compressed"])
    """approximate searches that are timed"""
    lists: int = 0
    """of each approximate index, whose vectors they divide among them; 0: the square root of their number"""
    probes: list[int] = field(default_factory=lambda: [1, 2, 4, 8, 16, 32])
    """lists that a query looks into"""
    repeats: int = 5
    """of each timed search, in turn with the others; the fastest counts, the first warms up"""
    output: str = ""
    """results folder; empty: results/hybrid-COLLECTION"""
    precision: str = "auto"
    """no, bf16, fp16; auto: bf16 where the hardware has it"""
    tracker: str = "wandb"
    """wandb (offline without a key) or none"""

    def __post_init__(self) -> None:
        self.output = self.output or f"results/hybrid-{folder_name(self.collection)}"
        for name, known in (("rounds", FURTHER), ("indexes", APPROXIMATE)):
            unknown = [value for value in getattr(self, name) if value not in known]
            if unknown:
                raise SystemExit(f"{name} must be some of {', '.join(known)}; got {', '.join(unknown)}")
        for name in ("seeds", "rerank_depths", "probes"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise SystemExit(f"{name} must be different numbers, and at least one; got {values}")
        ones = ("vectors", "steps", "negatives", "rerank_steps", "rerank_negatives", "depth")
        for name in (*ones, "rerank_depths", "probes"):
            values = getattr(self, name)
            if min(values if isinstance(values, list) else [values]) < 1:
                raise SystemExit(f"{name} must be at least 1, got {values}")
        if self.repeats < 2:
            raise SystemExit("repeats must be at least 2: the first of a timed search warms it up")
        if max(self.rerank_depths) > self.depth:
            raise SystemExit(
                f"rerank_depths reach {max(self.rerank_depths)}, and {self.depth} documents are retrieved: "
                "set a larger depth"
            )
