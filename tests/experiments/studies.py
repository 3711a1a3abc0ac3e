"""Every study at a size that a test runs in seconds."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from tests.experiments.scripts import SMALL, pair_flags


class Small(NamedTuple):
    """Flags beside the ones that all studies take, and the tables that they publish."""

    flags: dict[str, object]
    tables: str
    pairs: str = ""  # a family of encoder-decoders: the study trains pairs of models with this backbone
    several: bool = False  # `collections` instead of `collection`
    shared: bool = True  # by several processes
    untested: int = 0  # claims that this run does not measure


ENCODED = ["S-T5", "ColBERT, pairs", "DSI", "DSI-PAWA", "GENRE", "GENRE, half added", "T5-SEAL"]
GATES = ["idf", "random", "entropic", "relu", "hard", "l1", "none"]
STUDIES = {
    "alignment_directions": Small({}, "claims table5 training", "t5"),
    "document_encoding": Small(
        {"steps": 1, "span": 3, "queries": 0, "beams": 40}
        | {"systems": json.dumps([*ENCODED, "SEAL without a model"])},
        "claims_table6 claims_table7 claims_table8 claims_search claims_controls retrieve training added",
        "t5-v1.1",
        untested=3,
    ),
    "low_rank": Small({"paradigm": "genre", "queries": 0}, "claims layers training", "t5-v1.1"),
    "term_matching": Small({}, "claims query_to_document document_to_query training", "t5", untested=4),
    "alignment_adaptation": Small(
        {"depth": 12, "queries": 20, "trained_with": '["k=1", "eps=0.1"]'},
        "claims figure4 figure5 table13 training",
        several=True,
        untested=1,
    ),
    "capacity": Small(
        {"collection": "pydocs", "documents": 100, "lengths": "[30,60]", "vectors": 2}
        | {
            "systems": '["DE-BERT-8","ME-BERT-4","ME-BERT-4x3","CROSS-ATTENTION","BERT-INIT"]',
            "hybrids": '["ME-BERT-4"]',
        }
        | {"train_queries": 12, "dev_queries": 6, "test_queries": 8, "depth": 12, "theory_queries": 2}
        | {"samples": 8},
        "claims training table_rerank table_retrieve figure1 theory",
        untested=1,
    ),
    "hybrid": Small(
        {"rerank_steps": 2, "rerank_negatives": 2, "depth": 10, "rerank_depths": "[2,5]", "negatives": 1}
        | {"query_length": 12, "document_length": 24, "learning_rate": 1e-3, "trained_layers": 1},
        "claims training retrieve rerank",
    ),
    "imputation": Small(
        {"search_tokens": "[3, 10]"}, "claims systems corpus k training", several=True, shared=False
    ),
    "salience_pruning": Small(
        {"methods": json.dumps(GATES), "negatives": 1, "l1": "[0.5, 2]", "depth": 8, "trained_layers": 0},
        "claims document_tokens query_tokens costs gates training",
        untested=2,
    ),
    "token_retrieval": Small(
        {"other_batch_sizes": "[2]", "k_train": "[0.1, 0.3]", "negatives": 1, "search_tokens": "[2, 200]"},
        "claims figure4 figure5 figure6 figure7 table1 table5 training",
        untested=1,
    ),
}


def study_flags(
    study: str, words: Path, tiny_bert: Path, seq2seq: dict[str, Path], folder: Path
) -> dict[str, Any]:
    """Flags of a study of the collection `words`, with its results below `folder`."""
    small = STUDIES[study]
    if small.pairs:
        second = {"second": seq2seq["t5"]} if study == "document_encoding" else {}
        return pair_flags(words, seq2seq[small.pairs], folder, seeds="[0]") | second | small.flags
    flags = {"backbone": tiny_bert, "output": folder / "results", "seeds": "[0]"}
    flags |= {"collections": f"[{words}]"} if small.several else {"collection": words}
    flags |= {"query_length": 8, "document_length": 12}
    if study == "imputation":
        flags |= {"t5": tiny_bert, "trained": f"[{words}]"}
    fields = import_module(study).Settings.__dataclass_fields__
    return {name: value for name, value in (SMALL | flags).items() if name in fields} | small.flags
