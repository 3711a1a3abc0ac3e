"""Read collections with `datasets` (from the Hugging Face hub or a local folder) and `ir_datasets`."""

import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from paradigms.data import layouts
from paradigms.data.assembly import assemble, grade, text_of, title_of
from paradigms.data.beir import SPLITS
from paradigms.data.collection import Collection, Problems, joined
from paradigms.data.lines import json_id

PARTS = ("corpus", "queries", "qrels")
REPORTED = {"miracl": layouts.MIRACL, "lotte": layouts.LOTTE, "dpr-w100": layouts.OPEN_QA}


class Rows(Sequence[str]):
    """The titles or texts (`part`) in a `datasets.Dataset`, which stays memory-mapped on disk."""

    def __init__(self, dataset: Any, positions: np.ndarray, part: Callable[[dict], str]):
        self._dataset = dataset
        self._positions = positions
        self._part = part

    def __len__(self) -> int:
        return len(self._positions)

    def __getitem__(self, index: Any) -> Any:
        return self._part(self._dataset[int(self._positions[index])])

    def __iter__(self) -> Iterator[str]:
        if len(self) == len(self._dataset):
            return map(self._part, self._dataset)
        return map(self._part, self._dataset.select(self._positions))


def read_hub(path: str, prefix: str | None = None) -> Collection:
    """Read a hub dataset, or a local folder that `datasets` reads, in a BEIR hub layout.

    Configurations "corpus" and "queries" contain the documents and queries. Judgements (query-id, corpus-id,
    score, by default 1) are in the configuration "qrels" or "default" (as in mteb/*), or in the dataset
    <path>-qrels (as in BeIR/*). With a prefix such as "de", the configurations are "de-corpus" or "corpus-de"
    and so on, or else the prefix names a split of each configuration, such as NanoSciFact in NanoBEIR-en,
    which is read as test. So is the split "train" of a dataset Nano* that has no other.
    """
    import datasets

    name = f"hf:{path}" + (f":{prefix}" if prefix else "")
    problems = Problems()
    with _quiet(datasets):
        configurations = datasets.get_dataset_config_names(path)
        split = None
        if _configuration(configurations, "corpus", prefix) is None and {*PARTS} <= {*configurations}:
            split = prefix
            prefix = None
        parts = {part: _configuration(configurations, part, prefix, name) for part in ("corpus", "queries")}
        corpus = _rows(datasets, path, parts["corpus"], split)
        queries = _rows(datasets, path, parts["queries"], split)
        qrels = _configuration(configurations, "qrels", prefix)
        judged = datasets.load_dataset(*((path, qrels) if qrels else (f"{path}-qrels", prefix)))
    if split or (list(judged) == ["train"] and path.rstrip("/").rsplit("/", 1)[-1].startswith("Nano")):
        judged = {"test": judged[split or "train"]}
    names = {} if "dev" in judged else {"validation": "dev"}  # as BEIR's folders and papers name it
    return assemble(
        name,
        ((json_id(row, f"{name}, row {n}"), title_of(row), text_of(row)) for n, row in enumerate(corpus)),
        ((json_id(row, f"{name}, query {n}"), row.get("text") or "") for n, row in enumerate(queries)),
        {names.get(part, part): _judgements(rows, part, problems) for part, rows in judged.items()},
        problems=problems,
        stored=lambda positions: (Rows(corpus, positions, title_of), Rows(corpus, positions, text_of)),
    )


def read_irds(identifier: str) -> Collection:
    """Read an `ir_datasets` identifier, such as "beir/scifact/test", or all splits of "beir/scifact"."""
    try:
        ir_datasets = importlib.import_module("ir_datasets")
    except ImportError as error:
        raise ImportError(
            f"irds:{identifier} needs ir_datasets, which is not installed: "
            "pip install 'retrieval-paradigms[ir-datasets]'"
        ) from error
    try:
        dataset = ir_datasets.load(identifier)
    except KeyError:
        raise ValueError(f"irds:{identifier}: ir_datasets has no such identifier") from None
    parts = _splits(ir_datasets, identifier, dataset)
    if not parts:
        raise ValueError(f"irds:{identifier} has no judgements, nor {identifier}/train, /dev or /test")
    queries = {split: list(part.queries_iter()) for split, part in parts.items()}
    return assemble(
        f"irds:{identifier}",
        (
            (document.doc_id, (getattr(document, "title", "") or "").strip(), _plain_text(document))
            for document in dataset.docs_iter()
        ),
        {split: ((query.query_id, _plain_text(query)) for query in rows) for split, rows in queries.items()},
        {
            split: ((row.query_id, row.doc_id, int(row.relevance)) for row in part.qrels_iter())
            for split, part in parts.items()
        },
        answers={
            split: {query.query_id: list(query.answers) for query in rows if getattr(query, "answers", None)}
            for split, rows in queries.items()
        },
        measures=REPORTED.get(identifier.split("/")[0], ()),
    )


def _splits(ir_datasets: Any, identifier: str, dataset: Any) -> dict[str, Any]:
    """Return split -> dataset: the dataset itself if it has judgements, or else what is named below it."""
    if dataset.has_qrels():
        last = identifier.rsplit("/", 1)[-1]
        return {last if last in SPLITS else "test": dataset}
    parts = {}
    for name in SPLITS:
        with suppress(KeyError):
            parts[name] = ir_datasets.load(f"{identifier}/{name}")
    return parts


@contextmanager
def _quiet(datasets: Any) -> Iterator[None]:
    enabled = datasets.utils.logging.is_progress_bar_enabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if enabled:
            datasets.enable_progress_bars()


def _configuration(existing: Sequence[str], part: str, prefix: str | None, required: str = "") -> str | None:
    """Find a part's configuration, or return None; with the dataset's name `required`, raise ValueError."""
    names = [part, "default"] if part == "qrels" else [part]
    if prefix is not None:
        names = [form for name in names for form in (f"{prefix}-{name}", f"{name}-{prefix}")]
        names += [prefix] if part == "qrels" else []
    configuration = next((name for name in names if name in existing), None)
    if required and configuration is None:
        looked = " or ".join(map(repr, names))
        raise ValueError(f"{required} has no configuration {looked}; it has {', '.join(map(repr, existing))}")
    return configuration


def _rows(datasets: Any, path: str, configuration: str | None, split: str | None) -> Any:
    splits = datasets.load_dataset(path, configuration)
    if split is not None and split not in splits:
        raise ValueError(f"hf:{path} has no {split!r} in {configuration}; it has {', '.join(splits)}")
    parts = [splits[split]] if split is not None else list(splits.values())
    return parts[0] if len(parts) == 1 else datasets.concatenate_datasets(parts)


def _judgements(rows: Iterable[dict], split: str, problems: Problems) -> Iterator[tuple[str, str, int]]:
    for number, row in enumerate(rows):
        try:
            yield str(row["query-id"]), str(row["corpus-id"]), grade(row.get("score", 1))
        except (KeyError, TypeError, ValueError) as error:
            problems.add("malformed judgement (left out)", f"{split}, row {number}: {error!r}")


def _plain_text(record: Any) -> str:
    if hasattr(record, "text"):
        return joined(getattr(record, "title", "") or "", record.text or "")
    return record.default_text().strip()
