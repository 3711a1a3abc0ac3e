"""A folder that can be searched: the documents, their index, and which model made it.

corpus.jsonl has the documents in BEIR's form; index/ is any `TokenIndex`; search.json, written last, says
what they were made of; .begun, written first, marks a folder that may be gone on with.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from paradigms.baselines.cross_attention import CrossAttention
from paradigms.cli.arguments import OFFLINE
from paradigms.cli.sources import check_source, documents, is_text, words_of
from paradigms.data import Corpus, Problems, Run
from paradigms.data.beir import read_corpus, write_corpus
from paradigms.data.by_document import Passages
from paradigms.data.collection import Digest
from paradigms.data.texts import CORPUS, INDEX, MARKER, WORDS, visible
from paradigms.generative.model import Generative
from paradigms.index import INDEXES, open_index
from paradigms.index.base import TokenIndex
from paradigms.io.files import locked, write_json, write_text
from paradigms.io.typed import read_settings
from paradigms.model import Paradigm
from paradigms.registry import load

BEGUN = ".begun"
NO_INDEX: dict[type, str] = {
    Generative: "whose documents are in its weights: search takes its folder as it is",
    CrossAttention: "which scores pairs of texts and encodes none: rerank takes it",
}


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What `load` is given: names, or the whole paths of folders."""

    model: str = OFFLINE
    document_model: str = ""  # "" = the same
    model_layout: str = ""  # a key of `FORMATS`; "" = its files tell

    @classmethod
    def of(cls, settings: argparse.Namespace) -> Checkpoint:
        """That which a command was given."""
        return cls(
            model=settings.model if settings.model == OFFLINE else whole(settings.model),
            document_model=whole(settings.document_model),
            model_layout=settings.model_layout,
        )

    def open(self, *, pickled: bool) -> Any:
        """The model, on the GPU if there is one; errors as those of `load`."""
        documents, layout = self.document_model or None, self.model_layout or None
        model = load(self.model, documents=documents, layout=layout, pickled=pickled)
        return model.to("cuda" if torch.cuda.is_available() else "cpu")


def whole(name: str) -> str:
    """A path that holds in any current folder; other names are kept."""
    return os.path.abspath(name) if name and Path(name).exists() else name


def words_that_fit(model: Any) -> int:
    """`WORDS`, or what a model reads where that is less: two words for three tokens, as in English prose."""
    if isinstance(model, Generative):  # whose documents are in its weights
        return WORDS
    length = (model if isinstance(model, CrossAttention) else model.encoder.settings).document_length
    return max(1, min(WORDS, 2 * length // 3))


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
    pieces: Passages  # of the documents, which the index holds

    @property
    def name(self) -> str:
        return self.folder.name

    def only(self, ids: Iterable[str]) -> Indexed:
        """With these documents alone (`TokenIndex.only`). KeyError names an unknown one."""
        held = [piece for id in ids for piece in self.pieces.of(id)]
        return replace(self, index=self.index.only(held))

    def search(self, queries: Mapping[str, str], k: int, *, progress: bool = False) -> Run:
        """The k best documents of every query, best first; none of a query without a token."""
        tokenize = self.model.encoder.tokenize
        known = {id: text for id, text in queries.items() if tokenize([text], "query").counts.any()}
        both = partial(self.index.search, self.model), partial(self.index.rerank, self.model)
        found = self.pieces.searching(*both)(known, k, progress=progress)
        return {id: found.get(id, {}) for id in queries}


def make(settings: argparse.Namespace, folder: Path, precision: str) -> tuple[Indexed, Problems]:
    """Index a source. A folder that holds the same is left as it is; an interrupted build goes on.

    settings: of the command `index`. FileExistsError where the folder holds something else; ValueError where
    the source has no document.
    """
    source, checkpoint = settings.source, Checkpoint.of(settings)
    problems, digest, file, begun = Problems(), Digest(), folder / MARKER, folder / BEGUN
    ours = file.is_file() or begun.is_file()
    if not ours and folder.exists() and (not folder.is_dir() or visible(folder)):
        raise FileExistsError(f"{folder} exists and is no index: choose another output")
    check_source(source)
    paradigm = checkpoint.open(pickled=settings.pickled)
    if not isinstance(paradigm, Paradigm):
        why = next(why for kind, why in NO_INDEX.items() if isinstance(paradigm, kind))
        raise ValueError(f"{checkpoint.model} holds {paradigm.name}, {why}")
    passages = settings.passages and not is_text(source)
    words = words_of(source, settings.words, words_that_fit(paradigm), passages)
    found = digest.passing(documents(source, problems, words))
    first = next(found, None)
    if first is None:
        raise ValueError("; ".join([f"{source} holds no document", *problems.lines()]))

    def made() -> dict[str, Any]:
        own = {"source": whole(source), "kind": settings.kind, "words": words, "passages": passages}
        return asdict(Made(**asdict(checkpoint) | own, fingerprint=digest.hexdigest()))

    with locked(folder, make=True):
        if file.is_file():
            for _ in found:
                pass
            _check_made(folder, asdict(read_settings(Made, file)), made())
            return open_folder(folder, paradigm), problems
        write_text(begun, "")
        write_corpus(chain([first], found), folder / CORPUS)
        corpus = Passages(read_corpus(folder / CORPUS), words if passages else 0).corpus
        INDEXES[settings.kind].build(
            paradigm, corpus.ids, corpus, folder / INDEX, precision=precision, progress=True
        )
        write_json(file, made())
        begun.unlink()
        return open_folder(folder, paradigm), problems


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
    made, digest = read_settings(Made, file), Digest()
    index, corpus = open_index(folder / INDEX), read_corpus(folder / CORPUS, digest)
    pieces = Passages(corpus, made.words if made.passages else 0, best)
    if digest.hexdigest() != made.fingerprint or pieces.corpus.ids != index.ids:
        raise ValueError(f"{folder / CORPUS} has other documents than were indexed: index the source again")
    paradigm = paradigm or made.open(pickled=pickled)
    index.check(paradigm)
    return Indexed(folder, made, corpus, index, paradigm, pieces)


def _check_made(folder: Path, kept: Mapping[str, Any], made: Mapping[str, Any]) -> None:
    """FileExistsError where a folder was made of something else."""
    changed = [
        "documents" if name == "fingerprint" else f"{name.replace('_', ' ')} ({value}, not {made[name]})"
        for name, value in kept.items()
        if value != made[name]
    ]
    if changed:
        raise FileExistsError(
            f"{folder} was made with other {', '.join(changed)}: delete it, or choose another output"
        )
