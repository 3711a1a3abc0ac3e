"""Build, update and open a searchable folder: documents, their index and the name of the model.

corpus.jsonl contains the documents in BEIR format, and index/ is a `Store`. search.json (`Made`) is written
last. .begun marks a folder whose build or update was interrupted and can be resumed.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from paradigms.cli import show
from paradigms.cli.arguments import OFFLINE
from paradigms.cli.sources import check_source, documents, is_text, words_of
from paradigms.data import Corpus, Problems
from paradigms.data.beir import read_corpus, write_corpus
from paradigms.data.collection import Digest, Document
from paradigms.data.pieces import Pieces
from paradigms.data.texts import CORPUS, INDEX, MARKER, WORDS, visible
from paradigms.find import INDEXES, Index, Indexes, open_index
from paradigms.io.checks import read_settings
from paradigms.io.device import chosen_device
from paradigms.io.files import locked, write_json, write_text
from paradigms.model import Paradigm
from paradigms.registry import as_paradigm, load
from paradigms.retrieve import Indexed, Passages, Retriever

BEGUN = ".begun"
FRESH = ".fresh.jsonl"  # during an update, the source's current documents


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


@dataclass(frozen=True)
class Opened:
    """An open searchable folder: its documents, index and model."""

    folder: Path
    made: Made
    corpus: Corpus
    index: Indexed  # of pieces.corpus
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

    settings: arguments of the command `index`. Raises FileExistsError if the folder contains anything else,
    and ValueError if the source has no documents.
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
    rows = digest.passing(documents(source, problems, words))
    first = next(rows, None)
    if first is None:
        raise ValueError("; ".join([f"{source} holds no document", *problems.lines()]))
    rows = chain([first], rows)

    def made() -> dict[str, Any]:
        how = {"source": whole(source), "kind": settings.kind, "words": words, "passages": passages}
        return asdict(Made(**asdict(checkpoint) | how, fingerprint=digest.hexdigest()))

    with locked(folder, make=True):
        if file.is_file():
            old = read_settings(Made, file)
            _check_made(folder, asdict(replace(old, fingerprint="")), made() | {"fingerprint": ""})
            fresh = folder / FRESH
            write_corpus(rows, fresh)
            if begun.is_file() or old.fingerprint != digest.hexdigest():
                update(folder, old, read_corpus(fresh), paradigm, precision)
            fresh.unlink()
            return open_folder(folder, paradigm), problems
        write_text(begun, "")
        write_corpus(rows, folder / CORPUS)
        corpus = Pieces(read_corpus(folder / CORPUS), words if passages else 0).corpus
        how = {"kind": settings.kind, "precision": precision, "progress": True}
        Indexed.build(paradigm, corpus, folder / INDEX, **how)
        write_json(file, made())
        begun.unlink()
        return open_folder(folder, paradigm), problems


def update(folder: Path, made: Made, documents: Corpus, paradigm: Paradigm, precision: str) -> None:
    """Update an index: encode new and changed documents, and delete changed and missing documents.

    Prints the number of new, changed and missing documents. After an interruption at any point, the same call
    continues: changed documents are first deleted from the index, then written to the corpus, then encoded.
    """
    write_text(folder / BEGUN, "")
    store = open_index(folder / INDEX).store.compact()  # an interrupted update may have deleted some
    before = read_corpus(folder / CORPUS)
    held, words = set(store.ids), made.words if made.passages else 0

    def row(corpus: Corpus, id: str) -> Document:
        position = corpus.position(id)
        return id, corpus.titles[position], corpus[position]

    old, new = Pieces(before, words), set(documents.ids)
    same = [
        id
        for id in before.ids
        if id in new and row(documents, id) == row(before, id) and held.issuperset(old.of(id))
    ]
    stays = {piece for id in same for piece in old.of(id)}
    missing = new.difference(same)
    encoded = [id for id in documents.ids if id in missing]
    changed, gone = len(missing.intersection(before.ids)), len(set(before.ids) - new)
    if held - stays:
        store = store.delete(held - stays).compact()
    digest = Digest()
    write_corpus(digest.passing(row(documents, id) for id in (*same, *encoded)), folder / CORPUS)
    if encoded:
        _, titles, texts = zip(*(row(documents, id) for id in encoded), strict=True)
        added = Pieces(Corpus(encoded, texts, titles), words).corpus
        store.add(paradigm, added.ids, added, precision=precision, progress=True)
    write_json(folder / MARKER, asdict(replace(made, fingerprint=digest.hexdigest())))
    (folder / BEGUN).unlink()
    if encoded or gone:
        counts = f"{len(encoded) - changed:,} added, {changed:,} encoded again, {gone:,} deleted"
        show.tell(f"{folder} is up to date: {counts}")


def is_indexed(folder: str) -> bool:
    """Return whether a folder was made by `make`."""
    return (Path(folder) / MARKER).is_file()


def open_folder(
    folder: str | Path, paradigm: Paradigm | None = None, *, pickled: bool = False, best: int = 1
) -> Opened:
    """Open a folder made by `make`.

    paradigm: the folder's model, if already loaded. best: number of passage scores summed per document, if
    the index contains passages. Raises FileNotFoundError if the folder does not exist, and ValueError if an
    update is unfinished or if corpus.jsonl has changed since it was indexed.
    """
    folder = Path(folder)
    file = folder / MARKER
    if not file.is_file():
        near = folder.with_name(f"{folder.name}.index")
        meant = f"; {near} is one" if (near / MARKER).is_file() else ""
        raise FileNotFoundError(
            f"{folder} is not an index of `python -m paradigms index SOURCE`: it has no {MARKER}{meant}"
        )
    if (folder / BEGUN).is_file():
        raise ValueError(
            f"an update of {folder} has not ended: unless it is running, resume it with the command "
            "`python -m paradigms index` that made the index"
        )
    made, digest = read_settings(Made, file), Digest()
    index, corpus = open_index(folder / INDEX), read_corpus(folder / CORPUS, digest)
    pieces = Pieces(corpus, made.words if made.passages else 0)
    if digest.hexdigest() != made.fingerprint or pieces.corpus.ids != index.store.ids:
        raise ValueError(f"{folder / CORPUS} changed after it was indexed: index the source again")
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
    indexes = Indexes([part for one in opened if isinstance(part := one.index.index, Index)])
    corpus = Corpus.joined([one.corpus for one in opened])
    pieces = Pieces(corpus, first.pieces.words)
    joined = replace(first.index, index=indexes, corpus=pieces.corpus)
    return replace(first, made=replace(first.made, source=""), corpus=corpus, index=joined, pieces=pieces)


def _check_made(folder: Path, kept: Mapping[str, Any], made: Mapping[str, Any]) -> None:
    """Raise FileExistsError if a folder was built with other settings or from another source."""
    changed = [
        "documents" if name == "fingerprint" else f"{name.replace('_', ' ')} ({value}, not {made[name]})"
        for name, value in kept.items()
        if value != made[name]
    ]
    if changed:
        raise FileExistsError(
            f"{folder} was made with other {', '.join(changed)}: delete it, or choose another output"
        )
