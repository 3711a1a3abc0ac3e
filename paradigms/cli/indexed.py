"""Build, update and open a searchable folder: documents, their index and the name of the model.

corpus.jsonl contains the documents in BEIR format, and index/ is a `Store`. search.json (`Made`) is written
last; until then, .begun has its content. An update is one commit of the store, whose manifest then names the
fingerprint of the updated documents. They lie beside corpus.jsonl until they replace it, so a search finds
all documents of one state at any time.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import chain, compress
from pathlib import Path
from shlex import quote
from typing import Any

from paradigms.cli import show
from paradigms.cli.arguments import OFFLINE
from paradigms.cli.sources import check_source, documents, is_text, words_of
from paradigms.data import Corpus, Problems
from paradigms.data.beir import read_corpus, write_corpus
from paradigms.data.collection import Digest, Document
from paradigms.data.pieces import Pieces
from paradigms.data.texts import CORPUS, INDEX, MARKER, WORDS, visible
from paradigms.find import INDEXES, open_index
from paradigms.io.checks import read_settings
from paradigms.io.device import chosen_device
from paradigms.io.files import locked, replace_file, write_json
from paradigms.model import Paradigm
from paradigms.registry import as_paradigm, load
from paradigms.retrieve import Indexed, Merged, Passages, Retriever

BEGUN = ".begun"
FRESH = ".fresh.jsonl"  # during an update, the source's current documents
DOCUMENTS = "corpus"  # entry of the store's manifest: fingerprint of the documents at the last update
MOVED = 0.5  # share of the documents by which a moved source is recognised


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Arguments for `load`, given as model names or absolute folder paths."""

    model: str = OFFLINE
    document_model: str = ""  # "" = the same
    model_layout: str = ""  # a key of `FORMATS`; "" = inferred from the files

    @classmethod
    def of(cls, settings: argparse.Namespace) -> Checkpoint:
        """Return the checkpoint named on the command line."""
        return cls(
            model=settings.model if settings.model == OFFLINE else whole(settings.model),
            document_model=whole(settings.document_model),
            model_layout=settings.model_layout,
        )

    def open(self, *, pickled: bool, for_search: bool = True) -> Any:
        """Load the model onto the `chosen_device`.

        for_search: whether the model will only encode texts. Raises the same errors as `load`.
        """
        documents, layout = self.document_model or None, self.model_layout or None
        model = load(self.model, documents=documents, layout=layout, pickled=pickled, for_search=for_search)
        return model.to(chosen_device())


def whole(name: str) -> str:
    """Make the path of an existing file absolute; return other names unchanged."""
    return os.path.abspath(name) if name and Path(name).exists() else name


def words_that_fit(model: Any) -> int:
    """Return the words per passage: `WORDS`, or fewer if the model reads fewer (2 words per 3 tokens)."""
    length = model.document_length
    return WORDS if length is None else max(1, min(WORDS, 2 * length // 3))


@dataclass(frozen=True, kw_only=True)
class Made(Checkpoint):
    """The content of search.json, which records the source, settings and model of a searchable folder.

    The permission to read pickled weights (`pickled`) is not stored, so it must be given whenever the folder
    is opened.
    """

    source: str  # a name, or the absolute path of a folder or file
    kind: str  # a key of `INDEXES`
    words: int  # per passage; 0: the source is not cut
    fingerprint: str  # of the documents
    passages: bool = False  # whether the index holds passages of the documents in corpus.jsonl

    def command(self, folder: Path) -> str:
        """Return the command that builds or updates the folder."""
        options = {
            "--output": str(folder),
            "--model": self.model,
            "--document-model": self.document_model,
            "--model-layout": self.model_layout,
            "--kind": self.kind,
            "--words": str(self.words or ""),
        }
        listed = "".join(f" {name} {quote(value)}" for name, value in options.items() if value)
        return f"python -m paradigms index {quote(self.source)}{listed}{' --passages' * self.passages}"


@dataclass(frozen=True)
class Opened:
    """An open searchable folder: its documents, index and model."""

    folder: Path
    made: Made
    corpus: Corpus
    index: Indexed | Merged  # of pieces.corpus
    pieces: Pieces
    best: int  # number of passages per document whose scores are summed

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def retriever(self) -> Retriever:
        return Passages(self.index, self.pieces, self.best)

    def only(self, ids: Iterable[str]) -> Opened:
        """Restrict searches to the given documents (`Indexed.only`). Raises KeyError if an id is unknown."""
        return replace(self, index=self.index.only(piece for id in ids for piece in self.pieces.of(id)))


def make(settings: argparse.Namespace, folder: Path, precision: str) -> tuple[Opened, Problems]:
    """Index a source, update a finished index (`update`), or resume an interrupted build.

    settings: arguments of the command `index`. Raises FileExistsError if the folder contains anything else or
    has other settings, and ValueError if the source has no documents or another model made the index.
    """
    source, checkpoint = settings.source, Checkpoint.of(settings)
    problems, digest, file, begun = Problems(), Digest(), folder / MARKER, folder / BEGUN
    ours = file.is_file() or begun.is_file()
    if not ours and folder.exists() and (not folder.is_dir() or visible(folder)):
        raise FileExistsError(f"{folder} exists and is not an index: choose another output")
    check_source(source)
    if settings.kind not in INDEXES:
        raise ValueError(f"unknown kind {settings.kind!r} of index; there are {', '.join(INDEXES)}")
    paradigm = as_paradigm(checkpoint.open(pickled=settings.pickled), checkpoint.model)
    passages = settings.passages and not is_text(source)
    words = words_of(source, settings.words, words_that_fit(paradigm), passages)
    rows = documents(source, problems, words)
    first = next(rows, None)
    if first is None:
        raise ValueError("; ".join([f"{source} holds no document", *problems.lines()]))
    rows = chain([first], rows)
    made = Made(
        **asdict(checkpoint),
        source=whole(source),
        kind=settings.kind,
        words=words,
        passages=passages,
        fingerprint="",
    )
    with locked(folder, make=True):
        if settings.anew:
            file.unlink(missing_ok=True)
        elif known := [place for place in (file, begun) if place.is_file() and place.stat().st_size]:
            _check_made(folder, read_settings(Made, known[0]), made)
        if file.is_file():
            update(folder, made, rows, paradigm, precision)
        else:
            write_json(begun, asdict(made))
            write_corpus(digest.passing(rows), folder / CORPUS)
            corpus = Pieces(read_corpus(folder / CORPUS), words if passages else 0).corpus
            Indexed.build(
                paradigm, corpus, folder / INDEX, kind=settings.kind, precision=precision, progress=True
            )
            write_json(file, asdict(replace(made, fingerprint=digest.hexdigest())))
        begun.unlink(missing_ok=True)
        return open_folder(folder, paradigm), problems


def update(folder: Path, made: Made, rows: Iterable[Document], paradigm: Paradigm, precision: str) -> None:
    """Update an index: encode new and changed documents, and delete changed and missing documents.

    made: new settings. rows: the source's documents. Prints the number of new, changed and missing documents.
    An interruption at any point leaves the documents as they were, or all of them updated.

    Raises ValueError if another model made the index, and FileExistsError if the source is not the former one
    and has less than half of its documents.
    """
    fresh = folder / FRESH
    try:
        store = open_index(folder / INDEX).store
        store.check(paradigm)
    except ValueError as error:
        raise ValueError(f"{error} (--anew discards it)") from None
    former = _settle(folder, store.manifest.get(DOCUMENTS))
    before = read_corpus(folder / CORPUS)
    write_corpus(rows, fresh)
    documents = read_corpus(fresh)
    held = set(compress(store.ids, store.living))
    words = made.words if made.passages else 0

    def row(corpus: Corpus, id: str) -> Document:
        position = corpus.position(id)
        return id, corpus.titles[position], corpus[position]

    old, new = Pieces(before, words), set(documents.ids)
    same = [
        id
        for id in before.ids
        if id in new and row(documents, id) == row(before, id) and held.issuperset(old.of(id))
    ]
    if made.source != former.source and len(same) < MOVED * len(before):
        fresh.unlink()
        raise FileExistsError(
            f"{folder} holds documents of {former.source}, and {made.source} has {len(same):,} of its "
            f"{len(before):,}: choose another --output, or add --anew to index {made.source} instead"
        )
    stays = {piece for id in same for piece in old.of(id)}
    missing = new.difference(same)
    encoded = [id for id in documents.ids if id in missing]
    changed, gone = len(missing.intersection(before.ids)), len(set(before.ids) - new)
    digest = Digest()
    write_corpus(digest.passing(row(documents, id) for id in (*same, *encoded)), fresh)
    wanted = [row(documents, id) for id in encoded]
    titles = [title for _, title, _ in wanted]
    added = Pieces(Corpus(encoded, [text for _, _, text in wanted], titles), words).corpus
    fingerprint = digest.hexdigest()
    if fingerprint != former.fingerprint or held != stays:
        store = store.add(
            paradigm,
            added.ids,
            added,
            instead_of=held - stays,
            state={DOCUMENTS: fingerprint},
            precision=precision,
            progress=bool(encoded),
        )
    write_json(folder / MARKER, asdict(replace(made, fingerprint=former.fingerprint)))
    _settle(folder, fingerprint)
    fresh.unlink(missing_ok=True)
    if encoded or gone:
        counts = f"{len(encoded) - changed:,} added, {changed:,} encoded again, {gone:,} deleted"
        show.tell(f"{folder} is up to date: {counts}")
    store.compact()


def _settle(folder: Path, fingerprint: str | None) -> Made:
    """Let the documents of the store's last commit replace the former ones; return what search.json holds.

    fingerprint: of the documents at the last update of the store, or None before the first one.
    """
    made: Made = read_settings(Made, folder / MARKER)
    if fingerprint in (None, made.fingerprint):
        return made
    if (folder / FRESH).exists():
        replace_file(folder / FRESH, folder / CORPUS)
    made = replace(made, fingerprint=fingerprint)
    write_json(folder / MARKER, asdict(made))
    return made


def is_indexed(folder: str) -> bool:
    """Return whether a folder was made by `make`."""
    return (Path(folder) / MARKER).is_file()


def open_folder(
    folder: str | Path, paradigm: Paradigm | None = None, *, pickled: bool = False, best: int = 1
) -> Opened:
    """Open a folder made by `make`.

    paradigm: the folder's model, if already loaded. best: number of passage scores summed per document, if
    the index contains passages. Raises FileNotFoundError if the folder does not exist, and ValueError if its
    build is unfinished or if corpus.jsonl has changed since it was indexed.
    """
    folder = Path(folder)
    file, begun = folder / MARKER, folder / BEGUN
    if not file.is_file():
        if begun.is_file():
            command = read_settings(Made, begun).command(folder)
            raise ValueError(
                f"the build of {folder} has not ended: unless it is running, resume it: {command}"
            )
        near = folder.with_name(f"{folder.name}.index")
        meant = f"; {near} is one" if (near / MARKER).is_file() else ""
        raise FileNotFoundError(
            f"{folder} is not an index of `python -m paradigms index SOURCE`: it has no {MARKER}{meant}"
        )
    before: tuple[Any, ...] = ()
    while True:
        made, index, digest = read_settings(Made, file), open_index(folder / INDEX), Digest()
        fingerprint = index.store.manifest.get(DOCUMENTS, made.fingerprint)
        unsettled = fingerprint != made.fingerprint and (folder / FRESH).exists()
        with suppress(FileNotFoundError):  # an update has just moved the documents
            corpus = read_corpus(folder / (FRESH if unsettled else CORPUS), digest)
            pieces = Pieces(corpus, made.words if made.passages else 0)
            ids = list(compress(index.store.ids, index.store.living))
            if digest.hexdigest() == fingerprint and pieces.corpus.ids == ids:
                break
        now = made, fingerprint, unsettled, index.store.files.manifest["generation"]
        if now == before:  # no update ended meanwhile
            raise ValueError(f"{folder / CORPUS} changed after it was indexed: index the source again")
        before = now
    paradigm = paradigm or made.open(pickled=pickled)
    index.store.check(paradigm)
    return Opened(folder, made, corpus, Indexed(index, paradigm, pieces.corpus), pieces, best)


def open_folders(folders: Sequence[str | Path], *, pickled: bool = False, best: int = 1) -> Opened:
    """Open several folders, built with one model from different documents, as one folder (`open_folder`).

    Raises ValueError if two folders share a document or differ in passage length.
    """
    opened = [open_folder(folders[0], pickled=pickled, best=best)]
    first = opened[0]
    opened += [open_folder(folder, first.index.model, best=best) for folder in folders[1:]]
    if len(opened) == 1:
        return first
    for other in opened:
        if (other.made.passages, other.made.words) != (first.made.passages, first.made.words):
            raise ValueError(f"the passages of {other.folder} and {first.folder} differ in length")
    merged = Merged([one.index for one in opened if isinstance(one.index, Indexed)])
    corpus = Corpus.joined([one.corpus for one in opened])
    pieces = Pieces(corpus, first.pieces.words)
    made = replace(first.made, source="")
    return replace(first, made=made, corpus=corpus, index=merged, pieces=pieces)


def _check_made(folder: Path, kept: Made, made: Made) -> None:
    """Raise FileExistsError if a folder was built with other settings.

    The source and the model may have other names, because their contents are compared.
    """
    names = ("kind", "words", "passages")
    pairs = {name: (getattr(kept, name), getattr(made, name)) for name in names}
    changed = [f"{name} ({old}, not {new})" for name, (old, new) in pairs.items() if old != new]
    if changed:
        raise FileExistsError(
            f"{folder} was made with other {', '.join(changed)}: choose another --output, or add --anew to "
            "index everything again"
        )
