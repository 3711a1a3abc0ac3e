"""Build, update and open a searchable folder: documents, their index and the name of the model.

corpus.jsonl contains the documents in BEIR format, and index/ is a `Store`. search.json (`Origin`) is written
last; until then, .begun has its content. An update is one commit of the store, whose manifest then names the
fingerprint of the updated documents. They lie beside corpus.jsonl until they replace it, so a search finds
all documents of one state at any time.

An engine (`paradigms.engines`) may store the vectors in place of index/. It cannot change all documents at
once, so an update removes search.json first, and a search reports an unfinished update.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, compress
from pathlib import Path
from shlex import quote
from typing import Any
from urllib.parse import parse_qs, urlsplit

import torch

from paradigms.cli import show
from paradigms.cli.arguments import OFFLINE, PARADIGM, program
from paradigms.cli.sources import check_source, documents, is_text, words_of
from paradigms.data import Corpus, Problems
from paradigms.data.assembly import Digest
from paradigms.data.beir import read_corpus, write_corpus
from paradigms.data.collection import Document
from paradigms.data.pieces import Pieces
from paradigms.data.texts import CORPUS, INDEX, MARKER, WORDS, visible
from paradigms.encoder.backbone import for_search as encoding_only
from paradigms.engines import COLLECTIONS, EngineRetriever, index_corpus, open_engine
from paradigms.find import INDEXES, Index, open_index
from paradigms.find.recall import Approximate, Choice
from paradigms.identity import identity
from paradigms.io.checks import naming, parse_json, read_settings
from paradigms.io.device import chosen_device
from paradigms.io.files import locked, replace_file, write_json
from paradigms.loading import as_paradigm, load
from paradigms.model import Paradigm
from paradigms.registry import PARADIGMS
from paradigms.retrieve import Indexed, Merged, Passages, Retriever

BEGUN = ".begun"
FRESH = ".fresh.jsonl"  # during an update, the source's current documents
DOCUMENTS = "corpus"  # entry of the store's manifest: fingerprint of the documents at the last update
SECRET = re.compile("password|secret|token(?!i)|credential|(api|access|account)_?key", re.IGNORECASE)
MOVED = 0.5  # share of the documents by which a moved source is recognised


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

        Raises ValueError if --model names a paradigm, or if a paradigm is asked for together with options of
        saved models.
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


def words_that_fit(model: Any) -> int:
    """Return the words per passage: `WORDS`, or fewer if the model reads fewer (2 words per 3 tokens)."""
    length = model.document_length
    return WORDS if length is None else max(1, min(WORDS, 2 * length // 3))


@dataclass(frozen=True, kw_only=True)
class Origin(Checkpoint):
    """The content of search.json, which records the source, settings and model of a searchable folder.

    The permission to read pickled weights (`pickled`) is not stored, so it must be given whenever the folder
    is opened.
    """

    source: str  # a name, or the absolute path of a folder or file
    kind: str  # a key of `INDEXES`
    words: int  # per passage; 0: the source is not cut
    fingerprint: str  # of the documents
    passages: bool = False  # whether the index holds passages of the documents in corpus.jsonl
    engine: str = ""  # ENGINE:PLACE that stores the vectors, if not index/
    engine_options: dict[str, Any] = field(default_factory=dict)

    def command(self, folder: Path) -> str:
        """Return the command that builds or updates the folder."""
        options = {
            "--output": str(folder),
            "--model": self.model,
            "--paradigm": self.paradigm,
            "--document-model": self.document_model,
            "--model-layout": self.model_layout,
            "--kind": "" if self.engine else self.kind,
            "--engine": self.engine,
            "--engine-options": json.dumps(self.engine_options) if self.engine_options else "",
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


def index_source(settings: argparse.Namespace, folder: Path) -> tuple[SearchFolder, Problems]:
    """Index a source, update a finished index (`update`), or resume an interrupted build.

    settings: arguments of the command `index`. Raises FileExistsError if the folder contains anything else or
    has other settings, and ValueError if the source has no documents or another model made the index.
    """
    finished = folder / MARKER
    begun = folder / BEGUN
    ours = finished.is_file() or begun.is_file()
    if not ours and folder.exists() and (not folder.is_dir() or visible(folder)):
        raise FileExistsError(f"{folder} exists and is not an index: choose another output")
    check_source(settings.source)
    if settings.kind and settings.kind not in INDEXES:
        raise ValueError(f"unknown kind {settings.kind!r} of index; there are {', '.join(INDEXES)}")
    checkpoint = Checkpoint.of(settings)
    paradigm = as_paradigm(checkpoint.open(pickled=settings.pickled), checkpoint.model)
    former = None if settings.anew else _former(folder)
    engine, options = _engine(settings, former, folder)
    if engine and settings.kind:
        raise ValueError("the engine stores the vectors: leave out --kind")
    kind = settings.kind or (kind_of(paradigm) if former is None else former.kind)
    kind = engine.partition(":")[0] or kind
    passages = settings.passages and not is_text(settings.source)
    words = words_of(settings.source, settings.words, words_that_fit(paradigm), passages)
    problems = Problems()
    rows = documents(settings.source, problems, words)
    first = next(rows, None)
    if first is None:
        raise ValueError("; ".join([f"{settings.source} holds no document", *problems.lines()]))
    rows = chain([first], rows)
    origin = Origin(
        **asdict(checkpoint),
        source=absolute(settings.source),
        kind=kind,
        words=words,
        passages=passages,
        fingerprint="",
        engine=engine,
        engine_options=options,
    )
    with locked(folder, make=True):
        if former is not None:
            _check_origin(folder, former, origin)
        if engine:
            _fill_engine(folder, origin, rows, paradigm, settings, former)
        elif finished.is_file() and not settings.anew:
            update(folder, origin, rows, paradigm, settings.precision)
        else:
            write_json(begun, asdict(origin))
            finished.unlink(missing_ok=True)
            digest = Digest()
            write_corpus(digest.passing(rows), folder / CORPUS)
            corpus = Pieces(read_corpus(folder / CORPUS), words if passages else 0).corpus
            Indexed.build(
                paradigm,
                corpus,
                folder / INDEX,
                kind=kind,
                precision=settings.precision,
                progress=True,
            )
            write_json(finished, asdict(replace(origin, fingerprint=digest.hexdigest())))
        begun.unlink(missing_ok=True)
        return open_folder(folder, paradigm), problems


def _engine(settings: argparse.Namespace, former: Origin | None, folder: Path) -> tuple[str, dict[str, Any]]:
    """Return the engine and its options, by default those of the former build."""
    options = parse_json(settings.engine_options, "--engine-options")
    if not isinstance(options, dict):
        raise ValueError(f"--engine-options must be a JSON object, got {settings.engine_options}")
    if not settings.engine:
        if options:
            raise ValueError("--engine-options are an engine's: add --engine")
        return ("", {}) if former is None else (former.engine, former.engine_options)
    name, _, place = settings.engine.partition(":")
    if not place:
        raise ValueError(f"--engine {settings.engine} names no place: write ENGINE:PLACE")
    parts = [urlsplit(one) for one in place.split(",")] if "://" in place else []
    named = chain(_names(options), *(parse_qs(part.query) for part in parts))
    if any(part.password for part in parts) or any(map(SECRET.search, named)):
        raise ValueError(
            "--engine or its options have a password or a key, which would be stored: give it by an "
            "environment variable"
        )
    if not parts:
        place = os.path.abspath(place)
    if name in COLLECTIONS:
        options = {COLLECTIONS[name]: re.sub(r"\W", "_", folder.stem)} | options
    return f"{name}:{place}", options


def _names(value: Any) -> Iterator[str]:
    """Yield the names in a JSON value, at any depth."""
    if isinstance(value, dict):
        yield from value
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from _names(part)


def _fill_engine(
    folder: Path,
    origin: Origin,
    rows: Iterable[Document],
    paradigm: Paradigm,
    settings: argparse.Namespace,
    former: Origin | None,
) -> None:
    """Write the source's documents to corpus.jsonl and to the engine. Prints the number of changes.

    former: None for a new folder, whose engine must be empty, or is emptied by --anew. Nothing changes before
    the whole source has been read and the engine's contents are known to be of the same model.
    """
    if former is not None and former.source != origin.source:
        raise FileExistsError(
            f"{folder} holds documents of {former.source}: choose another --output and collection, or add "
            "--anew"
        )
    with closing(open_engine(origin.engine, paradigm, **origin.engine_options)) as engine:
        engine.check(paradigm)
        engine.check_made(identity(paradigm.encoder, anew=True))
        with naming(engine.place):
            stored = engine.stored()
        if former is None and stored and not settings.anew:
            raise ValueError(f"{engine.place} has documents: name another collection, or add --anew")
        digest = Digest()
        write_corpus(digest.passing(rows), folder / FRESH)
        write_json(folder / BEGUN, asdict(origin))
        (folder / MARKER).unlink(missing_ok=True)
        replace_file(folder / FRESH, folder / CORPUS)
        if settings.anew:
            with naming(engine.place):
                engine.delete(stored)
        corpus = Pieces(read_corpus(folder / CORPUS), origin.words if origin.passages else 0).corpus
        encoded, gone = index_corpus(engine, paradigm, corpus, precision=settings.precision, progress=True)
    write_json(folder / MARKER, asdict(replace(origin, fingerprint=digest.hexdigest())))
    show.tell(f"{engine.place} is up to date: {encoded:,} encoded, {gone:,} deleted")


def update(
    folder: Path, origin: Origin, rows: Iterable[Document], paradigm: Paradigm, precision: str
) -> None:
    """Update an index: encode new and changed documents, and delete changed and missing documents.

    origin: new settings. rows: the source's documents. Prints the number of new, changed and missing
    documents. An interruption at any point leaves the documents as they were, or all of them updated.

    Raises ValueError if another model made the index, and FileExistsError if the source is not the former one
    and has less than half of its documents.
    """
    try:
        store = open_index(folder / INDEX).store
        store.check(paradigm)
    except ValueError as error:
        raise ValueError(f"{error} (--anew discards it)") from None
    former = _settle(folder, store.manifest.get(DOCUMENTS))
    before = read_corpus(folder / CORPUS)
    write_corpus(rows, folder / FRESH)
    after = read_corpus(folder / FRESH)
    words = origin.words if origin.passages else 0
    indexed = set(compress(store.ids, store.living))
    same = _unchanged(before, after, indexed, words)
    if origin.source != former.source and len(same) < MOVED * len(before):
        (folder / FRESH).unlink()
        raise FileExistsError(
            f"{folder} holds documents of {former.source}, and {origin.source} has {len(same):,} of its "
            f"{len(before):,}: choose another --output, or add --anew to index {origin.source} instead"
        )
    encoded = after.only(set(after.ids).difference(same))
    digest = Digest()
    write_corpus(digest.passing(_row(after, id) for id in (*same, *encoded.ids)), folder / FRESH)
    fingerprint = digest.hexdigest()
    stays = {piece for pieces in same.values() for piece in pieces}
    if fingerprint != former.fingerprint or indexed != stays:
        added = Pieces(encoded, words).corpus
        store = store.add(
            paradigm,
            added.ids,
            added,
            instead_of=indexed - stays,
            state={DOCUMENTS: fingerprint},
            precision=precision,
            progress=bool(encoded.ids),
        )
    write_json(folder / MARKER, asdict(replace(origin, fingerprint=former.fingerprint)))
    _settle(folder, fingerprint)
    (folder / FRESH).unlink(missing_ok=True)
    changed = len(set(encoded.ids).intersection(before.ids))
    gone = len(set(before.ids).difference(after.ids))
    if encoded.ids or gone:
        counts = f"{len(encoded) - changed:,} added, {changed:,} encoded again, {gone:,} deleted"
        show.tell(f"{folder} is up to date: {counts}")
    index = Index(store.compact())
    if isinstance(index.finder, Approximate) and not index.choices:  # or of less than half of the documents
        Indexed(index, paradigm, Pieces(after, words).corpus, precision=precision).tuned()


def _unchanged(before: Corpus, after: Corpus, indexed: set[str], words: int) -> dict[str, list[str]]:
    """Return the documents that are the same before and after, with their indexed passages."""
    pieces = Pieces(before, words)
    ids = set(after.ids)
    passages = {id: pieces.of(id) for id in before.ids if id in ids and _row(after, id) == _row(before, id)}
    return {id: of for id, of in passages.items() if indexed.issuperset(of)}


def _row(corpus: Corpus, id: str) -> Document:
    position = corpus.position(id)
    return id, corpus.titles[position], corpus[position]


def _settle(folder: Path, fingerprint: str | None) -> Origin:
    """Let the documents of the store's last commit replace the former ones; return what search.json holds.

    fingerprint: of the documents at the last update of the store, or None before the first one.
    """
    origin: Origin = read_settings(Origin, folder / MARKER)
    if fingerprint in (None, origin.fingerprint):
        return origin
    if (folder / FRESH).exists():
        replace_file(folder / FRESH, folder / CORPUS)
    origin = replace(origin, fingerprint=fingerprint)
    write_json(folder / MARKER, asdict(origin))
    return origin


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
            raise ValueError(
                f"the build of {folder} has not ended: unless it is running, resume it: {command}"
            )
        default = folder.with_name(f"{folder.name}.index")
        hint = f"; {default} is one" if is_indexed(default) else ""
        raise FileNotFoundError(
            f"{folder} is not an index of `{program()} index SOURCE`: it has no {MARKER}{hint}"
        )


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
        return _open_engine(folder, origin, paradigm or origin.open(pickled=pickled), best)
    before: tuple[Any, ...] = ()
    while True:
        origin = read_settings(Origin, folder / MARKER)
        index = open_index(folder / INDEX)
        fingerprint = index.store.manifest.get(DOCUMENTS, origin.fingerprint)
        unsettled = fingerprint != origin.fingerprint and (folder / FRESH).exists()
        digest = Digest()
        with suppress(FileNotFoundError):  # an update has just moved the documents
            corpus = read_corpus(folder / (FRESH if unsettled else CORPUS), digest)
            pieces = Pieces(corpus, origin.words if origin.passages else 0)
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


def _open_engine(folder: Path, origin: Origin, paradigm: Paradigm, best: int) -> SearchFolder:
    digest = Digest()
    corpus = read_corpus(folder / CORPUS, digest)
    if digest.hexdigest() != origin.fingerprint:
        raise ValueError(f"{folder / CORPUS} changed after it was indexed: index the source again")
    pieces = Pieces(corpus, origin.words if origin.passages else 0)
    engine = open_engine(origin.engine, paradigm, **origin.engine_options)
    engine.check_made(identity(paradigm.encoder))
    retriever = EngineRetriever(engine, paradigm, pieces.corpus)
    return SearchFolder(folder, origin, corpus, retriever, pieces, best)


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
    merged = Merged(parts)
    corpus = Corpus.joined([one.corpus for one in opened])
    pieces = Pieces(corpus, first.pieces.words)
    origin = replace(first.origin, source="")
    return replace(first, origin=origin, corpus=corpus, index=merged, pieces=pieces)


def kind_of(model: Paradigm) -> str:
    """Return the kind of index for a model's vectors: small for many vectors, exact for one of a text."""
    if model.encoder.dim == 1:
        return "inverted"
    many = not model.encoder.settings.single and model.recipe.align.is_maxsim()
    return "compressed" if many else "exact"


def _former(folder: Path) -> Origin | None:
    """Return the settings with which a folder was built, or its build begun; None for a new folder."""
    files = (file for file in (folder / MARKER, folder / BEGUN) if file.is_file() and file.stat().st_size)
    file = next(files, None)
    return None if file is None else read_settings(Origin, file)


def _check_origin(folder: Path, former: Origin, origin: Origin) -> None:
    """Raise FileExistsError if a folder was built, or its build begun, with other settings.

    The source and the model may have other names, because their contents are compared.
    """
    pairs = {name: (getattr(former, name), getattr(origin, name)) for name in ("kind", "words", "passages")}
    pairs["engine"] = former.engine, origin.engine
    pairs["engine options"] = former.engine_options, origin.engine_options
    changed = [f"{name} ({old}, not {new})" for name, (old, new) in pairs.items() if old != new]
    if changed:
        raise FileExistsError(
            f"{folder} was made with other {', '.join(changed)}: choose another --output, or add --anew to "
            "index everything again"
        )
