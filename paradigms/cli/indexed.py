"""A folder that can be searched: the documents, their index, and which model made it.

corpus.jsonl has the documents in BEIR's form; index/ is any `TokenIndex`; search.json, written last, says
what they were made of; .begun, written first, marks a folder that may be gone on with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path

from paradigms.baselines.cross_attention import CrossAttention
from paradigms.cli.checkpoint import Checkpoint, whole, words_that_fit
from paradigms.cli.sources import check_source, documents, is_text, words_of
from paradigms.data import Corpus, Problems, Run
from paradigms.data.beir import read_corpus, write_corpus
from paradigms.data.by_document import Passages
from paradigms.data.collection import Digest
from paradigms.data.lines import Document
from paradigms.data.texts import (
    CORPUS,
    INDEX,
    MARKER,
    visible,
)
from paradigms.generative.model import Generative
from paradigms.index import INDEXES, open_index
from paradigms.index.base import TokenIndex
from paradigms.io.files import locked, write_json, write_text
from paradigms.io.typed import read_settings
from paradigms.model import Paradigm

BEGUN = ".begun"
NO_INDEX: dict[type, str] = {
    Generative: "whose documents are in its weights: search takes its folder as it is",
    CrossAttention: "which scores pairs of texts and encodes none: rerank takes it",
}


@dataclass(frozen=True, kw_only=True)
class Made(Checkpoint):
    """search.json: what a folder was made of. Each command is told anew whether weights may be pickled."""

    source: str  # a name, or the whole path of a folder or file
    kind: str  # of `INDEXES`
    words: int  # of a passage; 0 where the source is no text files
    fingerprint: str  # of the documents
    passages: bool = False  # whether the index holds passages of the documents in corpus.jsonl


@dataclass(frozen=True)
class Indexed:
    """An opened folder."""

    folder: Path
    made: Made
    corpus: Corpus
    index: TokenIndex
    model: Paradigm
    pieces: Passages | None = None  # of the documents, where the index holds these

    @property
    def name(self) -> str:
        return self.folder.name

    def only(self, ids: Iterable[str]) -> Indexed:
        """With these documents alone (`TokenIndex.only`). KeyError names an unknown one."""
        ids = list(ids)
        held = [piece for id in ids for piece in self.pieces.of(id)] if self.pieces else ids
        return replace(self, index=self.index.only(held))

    def search(self, queries: Mapping[str, str], k: int, *, progress: bool = False) -> Run:
        """The k best documents of every query, best first; none of a query without a token."""
        tokenize = self.model.encoder.tokenize
        known = {id: text for id, text in queries.items() if tokenize([text], "query").counts.any()}
        search: Callable[..., Run] = partial(self.index.search, self.model)
        if self.pieces:
            search = self.pieces.searching(search, partial(self.index.rerank, self.model))
        found = search(known, k, progress=progress)
        return {id: found.get(id, {}) for id in queries}


def make(
    source: str,
    folder: Path,
    checkpoint: Checkpoint,
    *,
    kind: str = "exact",
    words: int | None = None,
    passages: bool = False,
    pickled: bool = False,
    precision: str = "no",
    batch_size: int = 64,
) -> tuple[Indexed, Problems]:
    """Index a source. A folder that holds the same is left as it is; an interrupted build goes on.

    words: of a passage; None = as many as fit the model. passages: split documents that are no text files,
    which are then found by their best passages. FileExistsError where the folder
    holds something else; ValueError where the source has no document.
    """
    problems, digest, file, begun = Problems(), Digest(), folder / MARKER, folder / BEGUN
    ours = file.is_file() or begun.is_file()
    if not ours and folder.exists() and (not folder.is_dir() or visible(folder)):
        raise FileExistsError(f"{folder} exists and is no index: choose another output")
    with _own(folder):
        check_source(source)
        paradigm = checkpoint.open(pickled=pickled)
        if not isinstance(paradigm, Paradigm):
            why = next(why for kind, why in NO_INDEX.items() if isinstance(paradigm, kind))
            raise ValueError(f"{checkpoint.model} holds {paradigm.name}, {why}")
        passages = passages and not is_text(source)
        words = words_of(source, words, words_that_fit(paradigm), passages)
        found = _digested(documents(source, problems, words), digest)

        def made() -> Made:
            own = {"source": whole(source), "kind": kind, "words": words, "fingerprint": digest.hexdigest()}
            return Made(**asdict(checkpoint) | own, passages=passages)

        if file.is_file():
            for _ in found:
                pass
            _check_made(folder, _made(file), made())
            return open_folder(folder, paradigm), problems
        first = next(found, None)
        if first is None:
            raise ValueError("; ".join([f"{source} holds no document", *problems.lines()]))
        write_text(begun, "")
        write_corpus(chain([first], found), folder / CORPUS)
        corpus = read_corpus(folder / CORPUS)
        corpus = Passages(corpus, words).corpus if passages else corpus
        INDEXES[kind].build(
            paradigm,
            corpus.ids,
            corpus,
            folder / INDEX,
            batch_size=batch_size,
            precision=precision,
            progress=True,
        )
        write_json(file, asdict(made()))
        begun.unlink()
        return open_folder(folder, paradigm), problems


@contextmanager
def _own(folder: Path) -> Iterator[None]:
    """Keep other writers away from the folder, which is made if it is missing, and not left empty."""
    with locked(folder, make=True):
        try:
            yield
        finally:
            with suppress(OSError):  # it holds something
                folder.rmdir()


def open_folder(
    folder: str | Path, paradigm: Paradigm | None = None, *, pickled: bool = False, best: int = 1
) -> Indexed:
    """What `make` made. paradigm: its model, where that is open. FileNotFoundError where there is none.

    best: passages of a document whose scores are summed, where the index holds passages.
    """
    folder = Path(folder)
    file = folder / MARKER
    if not file.is_file():
        near = folder.with_name(f"{folder.name}.index")
        meant = f"; {near} is one" if (near / MARKER).is_file() else ""
        raise FileNotFoundError(
            f"{folder} is no index, which `python -m paradigms index SOURCE` makes: no {MARKER} in it{meant}"
        )
    made, digest = _made(file), Digest()
    index, corpus = open_index(folder / INDEX), read_corpus(folder / CORPUS, digest)
    pieces = Passages(corpus, made.words, best) if made.passages else None
    if digest.hexdigest() != made.fingerprint or (pieces.corpus if pieces else corpus).ids != index.ids:
        raise ValueError(f"{folder / CORPUS} has other documents than were indexed: index the source again")
    paradigm = paradigm or made.open(pickled=pickled)
    index.check(paradigm)
    return Indexed(folder, made, corpus, index, paradigm, pieces)


def _made(file: Path) -> Made:
    made: Made = read_settings(Made, file)
    return made


def _check_made(folder: Path, kept: Made, made: Made) -> None:
    """FileExistsError where a folder was made of something else."""
    now, changed = asdict(made), []
    for name, value in asdict(kept).items():
        if value != now[name]:
            told = (
                "documents"
                if name == "fingerprint"
                else f"{name.replace('_', ' ')} ({value}, not {now[name]})"
            )
            changed.append(told)
    if changed:
        raise FileExistsError(
            f"{folder} was made with other {', '.join(changed)}: delete it, or choose another output"
        )


def _digested(stream: Iterable[Document], digest: Digest) -> Iterator[Document]:
    for id, title, text in stream:
        digest.add(id, title, text)
        yield id, title, text
