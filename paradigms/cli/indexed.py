"""Open a searchable folder: documents, their index and the name of the model.

corpus.jsonl contains the documents in BEIR format, and index/ is a `Store`. search.json (`Origin`) is written
last; until then, .begun has its content. An engine (`paradigms.engines`) may store the vectors in place of
index/, and another folder or BM25 (bm25/) find its candidates. `indexing` builds and updates folders.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import compress
from pathlib import Path
from shlex import quote
from typing import Any

import torch

from paradigms.baselines.bm25 import BM25
from paradigms.cli.arguments import OFFLINE, PARADIGM, program
from paradigms.data import Corpus
from paradigms.data.assembly import Digest
from paradigms.data.beir import read_corpus
from paradigms.data.pieces import Pieces
from paradigms.data.texts import CORPUS, INDEX, MARKER
from paradigms.encoder.backbone import for_search as encoding_only
from paradigms.engines import Engine, EngineRetriever, open_engine
from paradigms.find import open_index
from paradigms.find.recall import Choice
from paradigms.identity import identity
from paradigms.io.checks import naming, read_settings
from paradigms.io.device import chosen_device
from paradigms.loading import load
from paradigms.model import Paradigm
from paradigms.registry import PARADIGMS
from paradigms.retrieve import Indexed, Merged, Passages, Retriever

BASELINE = "bm25"
BEGUN = ".begun"
FRESH = ".fresh.jsonl"  # during an update, the source's current documents
DOCUMENTS = "corpus"  # entry of the store's manifest: fingerprint of the documents at the last update


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Arguments for `load`, given as model names or absolute folder paths."""

    model: str = OFFLINE
    document_model: str = ""  # "" = the same
    model_layout: str = ""  # a key of `FORMATS`; "" = inferred from the files
    paradigm: str = ""  # a key of `PARADIGMS`, made of the encoder `model`; "" = the model as it was saved

    @classmethod
    def of(cls, settings: argparse.Namespace) -> Checkpoint:
        """Return the checkpoint named on the command line; without one, `PARADIGM` over `OFFLINE`.

        Raises ValueError if --model names a paradigm, or with a paradigm and options of saved models.
        """
        named = settings.model.lower().replace("-", "_")
        if named in PARADIGMS and not Path(settings.model).exists():
            raise ValueError(f"--model names a checkpoint, and {named} is a paradigm: --paradigm {named}")
        saved = settings.document_model or settings.model_layout
        paradigm = getattr(settings, "paradigm", "")
        if paradigm and saved:
            raise ValueError("--paradigm makes a model of an encoder: leave out the options of saved models")
        model = settings.model or OFFLINE
        return cls(
            model=model if model == OFFLINE else absolute(model),
            document_model=absolute(settings.document_model),
            model_layout=settings.model_layout,
            paradigm=paradigm or ("" if settings.model or saved else PARADIGM),
        )

    def open(self, *, pickled: bool, for_search: bool = True) -> Any:
        """Load the model onto the `chosen_device`.

        for_search: whether the model will only encode texts. Raises the same errors as `load`.
        """
        if self.paradigm:
            with torch.random.fork_rng(devices=[]), encoding_only():
                torch.manual_seed(0)  # some paradigms add weights to the encoder's
                return PARADIGMS[self.paradigm](self.model).eval().to(chosen_device())
        documents, layout = self.document_model or None, self.model_layout or None
        model = load(self.model, documents=documents, layout=layout, pickled=pickled, for_search=for_search)
        return model.to(chosen_device())


def absolute(name: str) -> str:
    """Make the path of an existing file absolute; return other names unchanged."""
    return os.path.abspath(name) if name and Path(name).exists() else name


@dataclass(frozen=True, kw_only=True)
class Origin(Checkpoint):
    """The content of search.json, which records the source, settings and model of a searchable folder.

    The permission to read pickled weights (`pickled`) is not stored, but given whenever a folder is opened.
    """

    source: str  # a name, or the absolute path of a folder or file
    kind: str  # a key of `INDEXES`
    words: int  # per passage; 0: the source is not cut
    fingerprint: str  # of the documents
    passages: bool = False  # whether the index holds passages of the documents in corpus.jsonl
    engine: str = ""  # ENGINE:PLACE that stores the vectors, if not index/
    engine_options: dict[str, Any] = field(default_factory=dict)  # arguments of its class
    # `first`, "bm25" or a folder, and `candidates` of `EngineRetriever`, or nothing
    first_stage: dict[str, Any] = field(default_factory=dict)

    def open_engine(self, model: Paradigm) -> Engine:
        """Open the engine that stores the vectors."""
        return open_engine(self.engine, model, **self.engine_options)

    def pieces(self, corpus: Corpus) -> Pieces:
        """Cut the documents in corpus.jsonl into what is indexed."""
        return Pieces(corpus, self.words if self.passages else 0)

    def command(self, folder: Path) -> str:
        """Return the command that builds or updates the folder."""
        engine_options = self.engine_options | self.first_stage
        options = {
            "--output": str(folder),
            "--model": self.model,
            "--paradigm": self.paradigm,
            "--document-model": self.document_model,
            "--model-layout": self.model_layout,
            "--kind": "" if self.engine else self.kind,
            "--engine": self.engine,
            "--engine-options": json.dumps(engine_options) if engine_options else "",
            "--words": str(self.words or ""),
        }
        listed = "".join(f" {name} {quote(value)}" for name, value in options.items() if value)
        return f"{program()} index {quote(self.source)}{listed}{' --passages' * self.passages}"


@dataclass(frozen=True)
class SearchFolder:
    """An open searchable folder: its documents, index and model."""

    folder: Path
    origin: Origin
    corpus: Corpus
    index: Indexed | Merged | EngineRetriever  # of pieces.corpus
    pieces: Pieces
    best: int  # number of passages per document whose scores are summed

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def retriever(self) -> Retriever:
        return Passages(self.index, self.pieces, self.best)

    @property
    def choices(self) -> list[Choice]:
        """What the build of an index in one folder chose for its searches (`find.recall`)."""
        return self.index.index.choices if isinstance(self.index, Indexed) else []

    def only(self, ids: Iterable[str]) -> SearchFolder:
        """Restrict searches to the given documents (`Indexed.only`). Raises KeyError if an id is unknown."""
        return replace(self, index=self.index.only(piece for id in ids for piece in self.pieces.of(id)))


def is_indexed(folder: str | Path) -> bool:
    """Return whether a folder was made by `index_source`."""
    return (Path(folder) / MARKER).is_file()


def check_indexed(folders: Iterable[str | Path]) -> None:
    """Raise FileNotFoundError unless `index_source` made the folders, ValueError if a build is unfinished."""
    for folder in map(Path, folders):
        if is_indexed(folder):
            continue
        if (folder / BEGUN).is_file():
            command = read_settings(Origin, folder / BEGUN).command(folder)
            raise ValueError(f"the build of {folder} has not ended: unless it runs, resume it: {command}")
        default = folder.with_name(f"{folder.name}.index")
        hint = f"; {default} is one" if is_indexed(default) else ""
        reason = f"has no {MARKER}" if folder.exists() else "does not exist"
        raise FileNotFoundError(f"{folder} is not an index of `{program()} index SOURCE`: it {reason}{hint}")


def open_folder(
    folder: str | Path, paradigm: Paradigm | None = None, *, pickled: bool = False, best: int = 1
) -> SearchFolder:
    """Open a folder made by `index_source`.

    paradigm: the folder's model, if already loaded. best: number of passage scores summed per document, if
    the index contains passages. Raises FileNotFoundError if the folder does not exist, and ValueError if its
    build is unfinished or if corpus.jsonl has changed since it was indexed.
    """
    folder = Path(folder)
    check_indexed([folder])
    origin = read_settings(Origin, folder / MARKER)
    if origin.engine:
        return _open_engine(folder, origin, paradigm or origin.open(pickled=pickled), best, pickled)
    before: tuple[Any, ...] = ()
    while True:
        origin = read_settings(Origin, folder / MARKER)
        index = open_index(folder / INDEX)
        fingerprint = index.store.manifest.get(DOCUMENTS, origin.fingerprint)
        unsettled = fingerprint != origin.fingerprint and (folder / FRESH).exists()
        digest = Digest()
        with suppress(FileNotFoundError):  # an update has just moved the documents
            corpus = read_corpus(folder / (FRESH if unsettled else CORPUS), digest)
            pieces = origin.pieces(corpus)
            ids = list(compress(index.store.ids, index.store.living))
            if digest.hexdigest() == fingerprint and pieces.corpus.ids == ids:
                break
        now = origin, fingerprint, unsettled, index.store.files.manifest["generation"]
        if now == before:  # no update ended meanwhile
            raise ValueError(f"{folder / CORPUS} changed after it was indexed: index the source again")
        before = now
    paradigm = paradigm or origin.open(pickled=pickled)
    index.store.check(paradigm)
    return SearchFolder(folder, origin, corpus, Indexed(index, paradigm, pieces.corpus), pieces, best)


def _open_engine(folder: Path, origin: Origin, paradigm: Paradigm, best: int, pickled: bool) -> SearchFolder:
    digest = Digest()
    corpus = read_corpus(folder / CORPUS, digest)
    if digest.hexdigest() != origin.fingerprint:
        raise ValueError(f"{folder / CORPUS} changed after it was indexed: index the source again")
    pieces = origin.pieces(corpus)
    stage = dict(origin.first_stage)
    if stage:
        stage["first"] = _open_first(folder, origin, pieces.corpus, pickled)
    engine = origin.open_engine(paradigm)
    engine.check_made(identity(paradigm.encoder))
    retriever = EngineRetriever(engine, paradigm, pieces.corpus, **stage)
    return SearchFolder(folder, origin, corpus, retriever, pieces, best)


def _open_first(folder: Path, origin: Origin, corpus: Corpus, pickled: bool) -> Retriever:
    """Open what finds a folder's candidates. Raises ValueError if it has other documents than `corpus`."""
    first = origin.first_stage["first"]
    if first == BASELINE:
        try:
            return BM25.load(folder / BASELINE, corpus)
        except (FileNotFoundError, ValueError) as error:
            raise ValueError(f"{error}: index the source again") from error
    check_first(folder, origin)
    opened = open_folder(first, pickled=pickled)
    if not same_texts(opened.pieces.corpus, corpus):
        both = f"{folder} and its first stage, {first},"
        raise ValueError(f"{both} hold different documents or passages: index the source again, into both")
    return opened.index


def check_first(folder: Path, origin: Origin) -> None:
    """Raise ValueError if another index, named as a folder's first stage, cannot find its candidates."""
    first = origin.first_stage.get("first", BASELINE)
    if first == BASELINE:
        return
    with naming(f"the first stage of {folder}"):
        try:
            check_indexed([first])
        except FileNotFoundError as error:
            raise ValueError(str(error)) from error
        other = read_settings(Origin, Path(first) / MARKER)
        if other.first_stage or Path(first).resolve() == folder.resolve():
            raise ValueError(f"name another index, without a first stage, not {first}")
        if (other.words, other.passages) != (origin.words, origin.passages):
            raise ValueError(
                f"passages of {first} have up to {other.words} words, and those of {folder} {origin.words} "
                "(0: not cut): give both the same --words and --passages"
            )
        engines = [one.engine for one in (other, origin) if one.engine.startswith("clickhouse:")]
        places = {os.path.realpath(engine.partition(":")[2]) for engine in engines if "://" not in engine}
        if len(places) > 1:  # of which a process opens one
            raise ValueError(f"{first} is in another folder of ClickHouse: use one folder, another database")


def same_texts(one: Corpus, other: Corpus) -> bool:
    """Return whether two corpora have the same ids and texts, in any order, which an update changes."""
    return dict(zip(one.ids, one, strict=True)) == dict(zip(other.ids, other, strict=True))


def open_folders(folders: Sequence[str | Path], *, pickled: bool = False, best: int = 1) -> SearchFolder:
    """Open several folders, built with one model from different documents, as one folder (`open_folder`).

    Raises ValueError if two folders share a document or differ in passage length.
    """
    opened = [open_folder(folders[0], pickled=pickled, best=best)]
    first = opened[0]
    opened += [open_folder(folder, first.index.model, best=best) for folder in folders[1:]]
    if len(opened) == 1:
        return first
    for other in opened:
        if (other.origin.passages, other.origin.words) != (first.origin.passages, first.origin.words):
            raise ValueError(f"the passages of {other.folder} and {first.folder} differ in length")
    parts = [one.index for one in opened if isinstance(one.index, Indexed)]
    if len(parts) < len(opened):
        raise ValueError("an index in an engine is searched alone: shards are addresses of one engine")
    merged = Merged(parts)  # refuses folders that share a document
    corpus = Corpus.joined([one.corpus for one in opened])
    pieces = first.origin.pieces(corpus)
    origin = replace(first.origin, source="")
    return replace(first, origin=origin, corpus=corpus, index=merged, pieces=pieces)
