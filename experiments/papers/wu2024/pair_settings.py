"""The settings that the studies of Wu et al. 2024 share. Importing this module is fast."""

from typing import Literal

from studies.settings import (
    Backbone,
    HeadRate,
    Lengths,
    OneCollection,
    Queries,
    Results,
    Seeds,
    Training,
    at_least,
    different,
)

from paradigms.io.command_line import flags, folder_name


@flags(batch_size=64, head_learning_rate=2e-3, document_length=192, queries=100)
class PairSettings(Results, OneCollection, Training, HeadRate, Backbone, Lengths, Queries, Seeds):
    """Settings for models, training and evaluation queries."""

    documents: int = 600
    """number of documents: the documents with the most queries (for pydocs, a fixed subset); 0: all"""
    division: Literal["within", "unseen"] = "within"
    """division of queries into train and test. within: every relevant document of a test query also has
    training queries, as in the paper; unseen: the collection's splits, where test documents may have no
    training queries"""
    backbone: str = "offline"
    """T5 or BART by hub name or folder, or an encoder (offline: all-MiniLM-L6-v2) plus a decoder with random
    weights"""
    decoder_layers: int = 2
    """layers of the decoder over an encoder"""
    frozen: bool = True
    """freeze the encoder of generative models; on a CPU, the encoder's states are stored on disk if they
    fit"""
    second: str = "offline"
    """encoder of DPR and of a second ColBERT, besides ColBERT over `backbone`; offline: all-MiniLM-L6-v2"""
    generative_steps: int = 1000
    """training steps of DSI, GENRE and SEAL; `steps` and `trained_layers` are those of DPR and ColBERT"""
    passages: int = 16
    """passages per document from which DSI and GENRE learn the identifier"""
    passage_words: int = 12
    """words per passage; about as many as in a query"""
    span: int = 10
    """tokens per document window that SEAL scores"""
    depth: int = 50
    """BM25 candidates per query"""
    models: str = ""
    """folder of trained models that these scripts share; empty: results/pairs-COLLECTION"""

    def __post_init__(self) -> None:
        at_least(
            self, steps=1, generative_steps=1, batch_size=1, passages=1, passage_words=1, depth=1, span=1
        )
        at_least(self, decoder_layers=1)
        different(self, "seeds")
        suffix = folder_name(self.collection) + "-unseen" * (self.division == "unseen")
        self.models = self.models or f"results/pairs-{suffix}"
        self.output = self.output or f"results/{self.experiment}-{suffix}"
