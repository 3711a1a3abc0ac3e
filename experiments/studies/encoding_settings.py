"""Settings of document_encoding.py: nothing here takes time to import."""

from __future__ import annotations

from dataclasses import dataclass, field

from studies.shared_settings import PairSettings

# system -> (its trained model, what a search ranks documents by; none: the model's own way). T5-SEAL and SEAL
# are one model.
SYSTEMS: dict[str, tuple[str, str | None]] = {
    "DPR": ("dpr", None),
    "ColBERT": ("colbert", None),
    "DSI": ("dsi", None),
    "DSI-PAWA": ("dsi-pawa", None),
    "GENRE": ("genre", None),
    "GENRE-PAWA": ("genre-pawa", None),
    "GENRE-NP-BASE": ("genre-np-base", None),
    "GENRE-NP-ASYNC": ("genre-np-async", None),
    "T5-SEAL": ("seal", "spans"),
    "SEAL": ("seal", "keys"),
    "T5-SEAL-NP": ("seal-np", "spans"),
    "T5-SEAL-PAWA": ("seal-pawa", "spans"),
}


@dataclass
class Settings(PairSettings):
    """What is trained on what, and which queries are measured.

    The sizes are those at which a T5 that starts from random weights learns in minutes, by the dev queries of
    pydocs: many cheap steps on short passages.
    """

    systems: list[str] = field(default_factory=lambda: list(SYSTEMS))
    """names in the tables; BM25 is always there"""
    documents: int = 500
    """size of a fixed subset, of pydocs alone; 0: all documents"""
    vocabulary: int = 2000
    """tokens of the small T5"""
    width: int = 64
    """of the small T5's vectors"""
    layers: int = 1
    """of the small T5's encoder, and of its decoder"""
    steps: int = 300
    """of DPR and ColBERT"""
    generative_steps: int = 900
    """of DSI and GENRE; the SEALs have as many as it takes to see `steps` batches of queries"""
    batch_size: int = 32
    learning_rate: float = 3e-3
    models: str = ""
    """folder of ColBERT and T5-SEAL, which experiments can share; empty: in the results folder"""
    passages: int = 10
    """of each document, from which DSI and GENRE learn its identifier"""
    passage_words: int = 8
    """of these passages; about as many as a query has"""
    branching: int = 10
    """clusters a level of DSI's identifiers"""
    embedder: str = ""
    """encoder whose mean-pooled document vectors DSI's identifiers cluster; empty: that of the seed's DPR"""
    digit_rank: int = 0
    """of PAWA's matrices for DSI's digits; 0: the width of the T5, as in NCI"""
    text_rank: int = 8
    """of PAWA's matrices for a text vocabulary, whose size they multiply"""
    clusters: int = 5
    """of NP-decoding, for each surface token"""
    refresh: int = 300
    """steps of training after which ASYNC clusters anew"""
    beams: int = 20
    """of every constrained search"""

    experiment = "document-encoding"

    def __post_init__(self) -> None:
        own = not self.models
        super().__post_init__()
        self.models = f"{self.output}/models" if own else self.models
        unknown = [name for name in self.systems if name not in SYSTEMS]
        if unknown or not self.systems:
            raise SystemExit(f"systems must be some of {', '.join(SYSTEMS)}; got {unknown or 'none'}")
        for name in ("generative_steps", "passages", "passage_words", "text_rank", "clusters", "refresh"):
            if getattr(self, name) < 1:
                raise SystemExit(f"{name} must be at least 1, got {getattr(self, name)}")
