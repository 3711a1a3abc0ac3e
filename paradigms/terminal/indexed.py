"""A folder that can be searched: the documents, their index, and which model made it.

corpus.jsonl has the documents in BEIR's form; index/ is any `TokenIndex`; search.json, written last, says
what they were made of. All commands but `rerank` work on such folders.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from paradigms.cross_attention import CrossAttention
from paradigms.data import LAYOUTS, Corpus, Problems, Run
from paradigms.data import load as load_collection
from paradigms.data.beir import read_corpus, write_corpus
from paradigms.data.collection import Digest
from paradigms.data.lines import Document
from paradigms.data.texts import (
    CORPUS,
    INDEX,
    MARKER,
    OWN,
    WORDS,
    is_json_lines,
    json_lines,
    text_passages,
    visible,
)
from paradigms.dpr import dpr
from paradigms.files import write_json
from paradigms.generative.model import Generative
from paradigms.index import INDEXES, open_index
from paradigms.index.base import TokenIndex
from paradigms.model import Paradigm
from paradigms.registry import load
from paradigms.saved import read_settings

OFFLINE = "offline"  # all-MiniLM-L6-v2 as it was trained: one vector a text
ROWS = (CORPUS, f"{CORPUS}.gz")  # the documents of a folder in BEIR layout
NO_INDEX: dict[type, str] = {
    Generative: "whose documents are in its weights: search takes its folder as it is",
    CrossAttention: "which scores pairs of texts and encodes none: rerank takes it",
}


@dataclass(frozen=True)
class Made:
    """search.json: what a folder was made of."""

    source: str  # a name, or the whole path of a folder or file
    model: str  # likewise
    kind: str  # of `INDEXES`
    words: int  # of a passage, where the source is a folder of text files
    fingerprint: str  # of the documents


@dataclass(frozen=True)
class Indexed:
    """An opened folder."""

    folder: Path
    made: Made
    corpus: Corpus
    index: TokenIndex
    model: Paradigm

    @property
    def name(self) -> str:
        return self.folder.name

    def search(self, queries: Mapping[str, str], k: int, *, progress: bool = False) -> Run:
        """The k best documents of every query, best first."""
        return self.index.search(self.model, queries, k, progress=progress)


def open_model(name: str) -> Any:
    """The model of a folder that `paradigms.load` takes, or "offline"; on the GPU if there is one."""
    if name == OFFLINE:
        model: Any = dpr(OFFLINE, pooling="mean", query_length=64, document_length=256)
    else:
        model = load(name)
    return model.to("cuda" if torch.cuda.is_available() else "cpu")


def documents(source: str, problems: Problems, words: int) -> Iterator[Document]:
    """(id, title, text) of text files, of a file of JSON lines, or of a collection by name or folder."""
    path = Path(source)
    rows = next((file for file in (path, *(path / name for name in ROWS)) if is_json_lines(file)), None)
    if rows is not None:
        return json_lines(rows, problems)
    if path.is_file() or (path.is_dir() and not is_collection(path)):
        return text_passages(path, problems, words)
    collection = load_collection(source)
    problems.counts, problems.examples = collection.problems.counts, collection.problems.examples
    return zip(collection.corpus.ids, collection.corpus.titles, collection.corpus, strict=True)


def make(
    source: str,
    folder: Path,
    *,
    model: str = OFFLINE,
    kind: str = "exact",
    words: int = WORDS,
    precision: str = "no",
    batch_size: int = 64,
) -> tuple[Indexed, Problems]:
    """Index a source. A folder that holds the same is left as it is; an interrupted build goes on.

    FileExistsError where the folder holds something else; ValueError where the source has no document.
    """
    problems, digest, file = Problems(), Digest(), folder / MARKER
    place, model_place = _place(source), model if model == OFFLINE else _place(model)
    found = _digested(documents(source, problems, words), digest)
    if file.is_file():
        for _ in found:
            pass
        made, kept = Made(place, model_place, kind, words, digest.hexdigest()), asdict(_made(file))
        changed = [key for key, value in asdict(made).items() if kept[key] != value]
        if changed:
            raise FileExistsError(
                f"{folder} was made with another {', '.join(changed)}: delete it, or choose another output"
            )
        return open_folder(folder), problems
    if folder.exists() and not (folder.is_dir() and visible(folder) <= OWN):
        raise FileExistsError(f"{folder} exists and is no index: choose another output")
    first = next(found, None)
    if first is None:
        raise ValueError("; ".join([f"{source} holds no document", *problems.lines()]))
    paradigm = open_model(model)
    if not isinstance(paradigm, Paradigm):
        raise ValueError(f"{model} holds {paradigm.name}, {NO_INDEX[type(paradigm)]}")
    write_corpus(chain([first], found), folder / CORPUS)
    corpus = read_corpus(folder / CORPUS)
    INDEXES[kind].build(
        paradigm,
        corpus.ids,
        corpus,
        folder / INDEX,
        batch_size=batch_size,
        precision=precision,
        progress=True,
    )
    write_json(file, asdict(Made(place, model_place, kind, words, digest.hexdigest())))
    return open_folder(folder), problems


def open_folder(folder: str | Path) -> Indexed:
    """What `make` made. FileNotFoundError where there is none."""
    folder = Path(folder)
    file = folder / MARKER
    if not file.is_file():
        raise FileNotFoundError(f"{folder} holds no {MARKER}: make it with `python -m paradigms index`")
    made = _made(file)
    index = open_index(folder / INDEX)
    paradigm = open_model(made.model)
    index.check(paradigm)
    return Indexed(folder, made, read_corpus(folder / CORPUS), index, paradigm)


def is_collection(folder: Path) -> bool:
    """Whether the folder has the layout of a collection with queries."""
    return any(recognised(folder) for recognised, _ in LAYOUTS.values())


def _place(name: str) -> str:
    """A path that holds in any current folder; other names are kept."""
    return os.path.abspath(name) if Path(name).exists() else name


def _made(file: Path) -> Made:
    made: Made = read_settings(Made, file)
    return made


def _digested(stream: Iterable[Document], digest: Digest) -> Iterator[Document]:
    for id, title, text in stream:
        digest.add(id, title, text)
        yield id, title, text
