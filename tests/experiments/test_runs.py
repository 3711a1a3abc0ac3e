"""Each study runs on tiny models, and leaves its tables, figures and claims."""

from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from papers.wu2024 import trained_pairs
from transformers import BertForMaskedLM

from tests.experiments.scripts import SMALL, pair_flags, published, read, run
from tests.tiny import write_headed


class Study(NamedTuple):
    """Flags of a script; the files of its results; the first column of its main table."""

    flags: dict[str, Any]
    files: str
    table: str
    rows: list[str]


ENCODINGS = [
    "S-T5",
    "ColBERT, pairs",
    "DSI",
    "DSI-place",
    "DSI-PAWA",
    "GENRE",
    "GENRE, half added",
    "T5-SEAL",
]
GATES = ["entropic", "relu", "hard", "L1, γ = 0.5", "L1, γ = 2"]
TOKENS = {
    "other_batch_sizes": "[2]",
    "k_train": "[0.1, 0.3]",
    "search_tokens": "[2, 200]",
    "table_tokens": 10,
}
STUDIES = {
    "alignment_adaptation": Study(
        {"indexed_length": 128, "depth": 12, "shots": "[1, 2, 64]", "trained_with": '["k=1"]'},
        "claims figure4 figure4.svg figure5 figure5.svg training",
        "figure5",
        ["words, trained with k=1"],
    ),
    "hybrid": Study(
        {"rerank_steps": 2, "rerank_negatives": 2, "depth": 10, "rerank_depths": "[2,5]"},
        "claims mining rerank rerank.svg retrieve retrieve.svg training",
        "training",
        ["DE-BERT", "ME-BERT", "cross_attention"],
    ),
    "salience_pruning": Study(
        {"methods": '["idf", "random", "entropic", "relu", "hard", "l1", "none"]', "l1": "[0.5, 2]"},
        "claims costs document_tokens document_tokens.svg gates query_tokens query_tokens.svg training",
        "gates",
        GATES,
    ),
    "token_retrieval": Study(
        TOKENS,
        f"claims {' '.join(f'figure{n} figure{n}.svg' for n in (4, 5, 6, 7))} table1 table5 training",
        "table5",
        ["BM25", "ColBERT", "XTR (k_train = 0.1)"],
    ),
    "alignment_directions": Study(
        {},
        "claims table5 training",
        "table5",
        [
            "BM25",
            *(f"MVDR ({way}" for way in ("q→d)", "q←d), Z = 1", "q←d), Z = M")),
            *(f"GR, {score}" for score in ("log probability", "logit", "centred logit", "query part")),
            *("GR, pointwise mutual information", "GR, logit, whole document", "random order"),
        ],
    ),
    "document_encoding": Study(
        {"systems": str([*ENCODINGS, "SEAL without a model"]).replace("'", '"'), "steps": 1, "span": 3},
        "added claims_controls claims_search claims_table6 claims_table7 claims_table8 retrieve retrieve.svg "
        "training",
        "retrieve",
        ["BM25", *ENCODINGS, "SEAL without a model"],
    ),
    "logit_relevance": Study(
        {"paradigm": "genre", "states": 2, "generative_steps": 4},
        "claims states states.svg training",
        "training",
        ["genre"],
    ),
    "low_rank": Study(
        {"paradigm": "genre", "queries": 0},
        "claims cosines layers layers.svg shares training",
        "cosines",
        ["printed", "last", "direct", "exact"],
    ),
    "term_matching": Study(
        {},
        "claims document_to_query document_to_query.svg query_to_document query_to_document.svg training",
        "query_to_document",
        ["MVDR hard", "MVDR soft", "uniform"],
    ),
}
SLOW = {
    "fewer_numbers": Study(
        {"dim": 16, "dims": "[8,4]", "bits": 2, "vectors": 3},
        "bytes bytes.svg frontier training",
        "bytes",
        ["untrained", "control", "matryoshka", "coded", "both", "spans"],
    ),
    "fewer_bytes": Study(
        {"documents": 30, "queries": 5},
        "fewer law recalls same_bytes ways",
        "recalls",
        [2, 4, 6],
    ),
    "imputation": Study(
        {"search_tokens": "[3, 10]"},
        "claims corpus corpus.svg k k.svg systems",
        "systems",
        ["T5 on words", "MiniLM on words"],
    ),
    "trained_methods": Study(
        {},
        "words words-training",
        "words-training",
        [
            *("ColBERT", "clusters in the loss", "ME-BERT", "nested numbers of vectors", "BGE-M3"),
            *("self-distillation", "SPLADE, query weights 1", "learned table"),
        ],
    ),
}
PAIRS = {"alignment_directions", "document_encoding", "logit_relevance", "low_rank", "term_matching"}


def flags_of(
    script: str, study: Study, collection: Path, models: dict[str, Path], folder: Path
) -> dict[str, Any]:
    """The flags that the script has, for these models, and results below the folder."""
    flags = {"collections": f'["{collection}"]', "seeds": "[0]", "negatives": 1, "trained_layers": 0}
    flags |= {
        "collection": collection,
        "output": folder / "results",
        "query_length": 8,
        "document_length": 12,
    }
    flags |= {"backbone": models["t5-v1.1" if script == "token_retrieval" else "bert"]}
    flags |= {"second": models["t5"], "t5": models["bert"], "splade": models["headed"], "depth": 20}
    if script in PAIRS:
        flags |= pair_flags(collection, models["t5-v1.1"], folder, seeds="[0]")
    fields = import_module(script).Settings.__dataclass_fields__
    return {name: value for name, value in (SMALL | flags | study.flags).items() if name in fields}


@pytest.fixture(scope="module")
def models(
    tiny_bert: Path, seq2seq: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    headed = write_headed(BertForMaskedLM, tmp_path_factory.mktemp("headed"))
    return seq2seq | {"bert": tiny_bert, "headed": headed}


@pytest.mark.parametrize("script", [*STUDIES, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_a_study_leaves_its_results(
    script: str, words: Path, models: dict[str, Path], tmp_path: Path
) -> None:
    study = (STUDIES | SLOW)[script]
    run(script, **flags_of(script, study, words, models, tmp_path))
    results = tmp_path / "results"
    assert published(results) == set(study.files.split())
    rows = list(dict.fromkeys(next(iter(row.values())) for row in read(results, study.table)))
    assert rows == study.rows
    claims = [
        row["verdict"] for table in study.files.split() if "claims" in table for row in read(results, table)
    ]
    assert not claims or not all(verdict.startswith("not tested") for verdict in claims)


def test_a_second_run_neither_trains_nor_measures(
    words: Path, models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Systems that a later run adds are trained; those that are there are read."""
    study = STUDIES["document_encoding"]
    for systems in ('["GENRE"]', '["GENRE", "DSI"]'):
        flags = flags_of("document_encoding", study, words, models, tmp_path) | {"systems": systems}
        run("document_encoding", **flags)
        files = [
            *tmp_path.glob("models/seed-0/genre/checkpoint/*"),
            *tmp_path.glob("results/seed-0/GENRE.json"),
        ]
        times = {file: file.stat().st_mtime_ns for file in files}
        assert len(times) > 2
    monkeypatch.setattr(trained_pairs, "trained", None)
    run("document_encoding", **flags)
    assert times == {file: file.stat().st_mtime_ns for file in times}
