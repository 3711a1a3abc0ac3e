"""Build and update searchable folders (`indexed`).

An update is one commit of the store, whose manifest then names the fingerprint of the updated documents. They
lie beside corpus.jsonl until they replace it, so a search finds all documents of one state at any time.

An engine cannot change all documents at once, so an update of its folder removes search.json first, and a
search reports an unfinished update.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Iterable
from contextlib import closing
from dataclasses import asdict, replace
from itertools import chain, compress
from math import inf
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qs, urlsplit

from paradigms.baselines.bm25 import BM25, SAVED
from paradigms.cli import show
from paradigms.cli.indexed import (
    BASELINE,
    BEGUN,
    DOCUMENTS,
    FRESH,
    Checkpoint,
    Origin,
    SearchFolder,
    absolute,
    check_first,
    open_folder,
)
from paradigms.cli.sources import check_source, documents, is_text, words_of
from paradigms.data import Problems
from paradigms.data.assembly import Digest
from paradigms.data.beir import read_corpus, write_corpus
from paradigms.data.collection import Document
from paradigms.data.texts import CORPUS, INDEX, MARKER, visible
from paradigms.engines import COLLECTIONS, engine_class, index_corpus
from paradigms.find import INDEXES, Index, open_index
from paradigms.find.recall import Approximate
from paradigms.identity import identity
from paradigms.io.checks import Range, check_type, json_object, naming, read_settings
from paradigms.io.files import locked, remove_folder, replace_file, write_json
from paradigms.loading import as_paradigm
from paradigms.model import Paradigm
from paradigms.retrieve import Indexed
from paradigms.store.view import fields_of

SECRET = re.compile("password|secret|token(?!i)|credential|(api|access|account)_?key", re.IGNORECASE)
MOVED = 0.5  # share of the documents by which a moved source is recognised


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
    files = [file for file in (finished, begun) if file.is_file() and file.stat().st_size]
    former = read_settings(Origin, files[0]) if files and not settings.anew else None
    engine, options, first_stage = _engine(settings, former, folder)
    if engine and settings.kind:
        raise ValueError("the engine stores the vectors: leave out --kind")
    kind = engine.partition(":")[0] or settings.kind or (kind_of(paradigm) if former is None else former.kind)
    passages = settings.passages and not is_text(settings.source)
    words = words_of(settings.source, settings.words, paradigm.document_length, passages)
    if not engine:
        INDEXES[kind]().check_fits(paradigm.encoder.dim, fields_of(paradigm))
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
        first_stage=first_stage,
    )
    check_first(folder, origin)
    with locked(folder, make=True):
        if former is not None:
            _check_origin(folder, former, origin)
        if engine:
            _fill_engine(folder, origin, rows, paradigm, settings, former)
        elif finished.is_file() and not settings.anew:
            update(folder, origin, rows, paradigm)
        else:
            write_json(begun, asdict(origin))
            finished.unlink(missing_ok=True)
            digest = Digest()
            write_corpus(digest.passing(rows), folder / CORPUS)
            corpus = origin.pieces(read_corpus(folder / CORPUS)).corpus
            Indexed.build(paradigm, corpus, folder / INDEX, kind=kind, progress=True)
            write_json(finished, asdict(replace(origin, fingerprint=digest.hexdigest())))
        begun.unlink(missing_ok=True)
        if first_stage.get("first") != BASELINE:
            remove_folder(folder / BASELINE, SAVED)
        return open_folder(folder, paradigm, pickled=settings.pickled), problems


def _engine(
    settings: argparse.Namespace, former: Origin | None, folder: Path
) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Return the engine, its options and its first stage, by default those of the former build."""
    options = json_object(settings.engine_options, "--engine-options")
    if not settings.engine:
        if options:
            raise ValueError("--engine-options are an engine's: add --engine")
        return ("", {}, {}) if former is None else (former.engine, former.engine_options, former.first_stage)
    name, _, place = settings.engine.partition(":")
    parts = [urlsplit(one) for one in place.split(",")] if "://" in place else []
    named = chain(re.findall(r'"([^"]*)":', json.dumps(options)), *(parse_qs(part.query) for part in parts))
    if any(part.password for part in parts) or any(map(SECRET.search, named)):
        raise ValueError("a password or key with --engine would be stored: use an environment variable")
    if place and not parts:
        place = os.path.abspath(place)
    least = int("first" in options)  # an engine's own candidates may be 0: all documents
    check_type("candidates", options.get("candidates", 1), Annotated[int, Range(least, inf)])
    first_stage: dict[str, Any] = {}
    if "first" in options:
        first_stage = {name: options.pop(name) for name in ("first", "candidates") if name in options}
        first = first_stage["first"]
        check_type("first", first, str)
        if not first:
            raise ValueError(f"first is empty: name {BASELINE}, or a folder made by index")
        if first != BASELINE:
            first_stage["first"] = os.path.abspath(first)
    if name in COLLECTIONS:
        options = {COLLECTIONS[name]: re.sub(r"\W", "_", folder.stem)} | options
    engine_class(f"{name}:{place}", options)
    return f"{name}:{place}", options, first_stage


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
        advice = "choose another --output and collection, or add --anew"
        raise FileExistsError(f"{folder} holds documents of {former.source}: {advice}")
    with closing(origin.open_engine(paradigm)) as engine:
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
        corpus = origin.pieces(read_corpus(folder / CORPUS)).corpus
        if origin.first_stage.get("first") == BASELINE:
            try:
                BM25.load(folder / BASELINE, corpus)
            except (FileNotFoundError, ValueError):
                with naming(folder / BASELINE):
                    BM25(corpus, progress=True).save(folder / BASELINE)
        if settings.anew:
            with naming(engine.place):
                engine.delete(stored)
        encoded, gone = index_corpus(engine, paradigm, corpus, progress=True)
    write_json(folder / MARKER, asdict(replace(origin, fingerprint=digest.hexdigest())))
    show.tell(f"{engine.place} is up to date: {encoded:,} encoded, {gone:,} deleted")


def update(folder: Path, origin: Origin, rows: Iterable[Document], paradigm: Paradigm) -> None:
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
    indexed = set(compress(store.ids, store.living))
    pieces = origin.pieces(before)
    unchanged = [id for id in before.ids if after.has(id) and after.document(id) == before.document(id)]
    passages = {id: pieces.of(id) for id in unchanged}
    same = {id: names for id, names in passages.items() if indexed.issuperset(names)}
    if origin.source != former.source and len(same) < MOVED * len(before):
        (folder / FRESH).unlink()
        raise FileExistsError(
            f"{folder} holds documents of {former.source}, and {origin.source} has {len(same):,} of its "
            f"{len(before):,}: choose another --output, or add --anew to index {origin.source} instead"
        )
    encoded = after.only(set(after.ids).difference(same))
    digest = Digest()
    write_corpus(digest.passing(map(after.document, (*same, *encoded.ids))), folder / FRESH)
    fingerprint = digest.hexdigest()
    stays = {piece for names in same.values() for piece in names}
    if fingerprint != former.fingerprint or indexed != stays:
        added = origin.pieces(encoded).corpus
        store = store.add(
            paradigm,
            added.ids,
            added,
            instead_of=indexed - stays,
            state={DOCUMENTS: fingerprint},
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
        Indexed(index, paradigm, origin.pieces(after).corpus).tuned()


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


def kind_of(model: Paradigm) -> str:
    """Return the kind of index for a model's vectors: small for many vectors, exact for one of a text."""
    if model.encoder.dim == 1:
        return "inverted"
    many = not model.encoder.settings.single and model.recipe.align.is_maxsim()
    return "compressed" if many else "exact"


def _check_origin(folder: Path, former: Origin, origin: Origin) -> None:
    """Raise FileExistsError if a folder was built, or its build begun, with other settings.

    The source and the model may have other names, because their contents are compared.
    """
    changed = []
    for name in ("kind", "words", "passages", "engine", "engine_options"):
        old = getattr(former, name)
        new = getattr(origin, name)
        if old != new:
            changed.append(f"{name.replace('_', ' ')} ({old}, not {new})")
    if changed:
        others = ", ".join(changed)
        raise FileExistsError(f"{folder} was made with other {others}: choose another --output or add --anew")
