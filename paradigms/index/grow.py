"""How a store comes to be and changes: built, pruned, added to, deleted from, compacted.

Every change is one commit of its folder or, of a build, many in a hidden folder beside it: what is killed in
the middle leaves the old state, and a build goes on.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from paradigms.core import Tokens
from paradigms.files import atomic_folder
from paradigms.index.columns import CHUNK, Column, ColumnFolder, Writer, locked
from paradigms.index.parts import Part, check_ids, text_parts, token_parts, weights_checksum
from paradigms.index.pruning import most_salient
from paradigms.index.store import DELETED, DOCUMENTS, LENGTHS, TokenStore, fields_of
from paradigms.model import Paradigm
from paradigms.progress import progress_bar

COMMIT = 4096  # documents of a build after which a killed one goes on
PRUNED_BLOCK = 1 << 16  # padded tokens that are pruned at once
SOURCES = "sources.bin"  # while a build goes on, a checksum of what each document was made from
Grown = TypeVar("Grown", bound="GrowingStore")


class GrowingStore(TokenStore):
    """A store that is made with `build` and changes with `add`, `delete` and `compact`."""

    @classmethod
    def build(
        cls: type[Grown],
        paradigm: Paradigm,
        ids: Iterable[str],
        texts: Iterable[str],
        folder: str | Path,
        *,
        keep: float = 1.0,
        batch_size: int = 64,
        precision: str = "no",
        progress: bool = False,
        **settings: Any,
    ) -> Grown:
        """Encode the documents and store their tokens; the folder appears complete or not at all.

        texts may be a stream: only ids and lengths are held, beside a few thousand texts. A build that was
        stopped goes on from its last commit when it is called again with the same weights, settings and
        documents; else it starts afresh, with a warning.

        keep: β^d, the share of each document's tokens that are stored, the most salient ones (`pruning`).
        precision "bf16" (or "fp16", on a GPU) encodes under autocast; vectors are stored as float16 anyway.
        settings: those of the kind of index, `Settings`. ValueError where ids repeat or a vector does not fit
        float16; BlockingIOError where another process is building the folder or writing it.
        """
        known = check_ids(ids, texts)
        source = {"weights": weights_checksum(paradigm), "batch": batch_size, "precision": precision}
        with progress_bar(progress) as bar:
            task = bar.add_task(f"encode {paradigm.recipe.name}", total=known)

            def parts() -> Iterator[Part]:
                bar.reset(task)
                return text_parts(
                    paradigm,
                    ids,
                    texts,
                    keep=keep,
                    batch_size=batch_size,
                    precision=precision,
                    advance=lambda n: bar.advance(task, n),
                )

            return cls._build(
                parts,
                folder,
                source | paradigm.description(),
                once=ids is iter(ids) or texts is iter(texts),
                paradigm=paradigm.recipe.name,
                dim=paradigm.encoder.dim,
                fields=fields_of(paradigm),
                keep=keep,
                settings=asdict(cls.Settings(**settings)),
            )

    @classmethod
    def build_from(
        cls: type[Grown],
        parts: Iterable[tuple[list[str], Tokens]],
        folder: str | Path,
        *,
        paradigm: str,
        dim: int,
        fields: Sequence[str] = ("vectors",),
        keep: float = 1.0,
        **settings: Any,
    ) -> Grown:
        """As `build`, of documents that come encoded: ids and Tokens [1, n, i, h], some at a time.

        paradigm: its name. fields: what is stored of Tokens, of vectors, ids and salience.
        """
        return cls._build(
            lambda: token_parts(parts, keep),
            folder,
            {},
            once=parts is iter(parts),
            paradigm=paradigm,
            dim=dim,
            fields=list(fields),
            keep=keep,
            settings=asdict(cls.Settings(**settings)),
        )

    def prune(self: Grown, keep: float, folder: str | Path) -> Grown:
        """An index in `folder` of the `keep` · length most salient tokens of each document, as `build` makes.

        Nothing is encoded again. Errors as in `pruning.most_salient`.
        """
        blocks = self.blocks(PRUNED_BLOCK)
        kept = ((self.names(b), most_salient(self.tokens(b), keep)) for b in blocks)
        same = {name: self.manifest[name] for name in ("paradigm", "dim", "fields", "settings")}
        whole = self.manifest["keep"]
        return self._build(lambda: token_parts(kept, 1.0), folder, {}, once=True, keep=whole * keep, **same)

    def add(
        self,
        paradigm: Paradigm,
        ids: Iterable[str],
        texts: Iterable[str],
        *,
        batch_size: int = 64,
        precision: str = "no",
        progress: bool = False,
    ) -> None:
        """Encode and store more documents, all or none of them, pruned as those of the build.

        ValueError for an id that the index has, until it is deleted.
        """
        self.check(paradigm)
        known = check_ids(ids, texts)
        with progress_bar(progress) as bar:
            task = bar.add_task(f"encode {paradigm.recipe.name}", total=known)
            self._add(
                text_parts(
                    paradigm,
                    ids,
                    texts,
                    keep=self.manifest["keep"],
                    batch_size=batch_size,
                    precision=precision,
                    advance=lambda n: bar.advance(task, n),
                )
            )

    def add_from(self, parts: Iterable[tuple[list[str], Tokens]]) -> None:
        """As `add`, of documents that come encoded."""
        self._add(token_parts(parts, self.manifest["keep"]))

    def delete(self, ids: Iterable[str]) -> None:
        """Documents that no search finds from now on, all or none of them; their bytes go with `compact`.

        KeyError names an unknown one.
        """
        with self._writing() as writer:
            rows = sorted({self.position(id) for id in ids})
            writer.append(DELETED, np.array(rows, dtype=np.int64))
            writer.commit()

    def compact(self) -> None:
        """Rewrite the index without what was deleted: rows move, no result changes.

        Needs room for the new files beside the old ones.
        """
        with self._writing() as writer:
            if self.living.all():
                return
            kept = _runs(np.repeat(self.living, np.diff(self.offsets)))
            for name, column in self._columns().items():
                writer.restart(f"{name}.bin")
                step = max(1, CHUNK // max(1, column.nbytes))
                for start, stop in kept:
                    for first in range(start, stop, step):
                        writer.append(f"{name}.bin", self.fields[name][first : min(stop, first + step)])
            rows = np.flatnonzero(self.living)
            writer.restart(LENGTHS)
            writer.append(LENGTHS, np.diff(self.offsets)[rows].astype(np.int32))
            writer.restart(DOCUMENTS)
            writer.append(DOCUMENTS, _lines(self.names(rows)))
            writer.remove(DELETED)
            self._derive(writer, 0)
            writer.commit(documents=len(rows), tokens=sum(stop - start for start, stop in kept))

    @classmethod
    def _build(
        cls: type[Grown],
        parts: Callable[[], Iterator[Part]],
        folder: str | Path,
        source: Mapping[str, Any],
        *,
        once: bool,
        **manifest: Any,
    ) -> Grown:
        """Fill a hidden folder beside `folder`, then move it there. once: `parts` cannot be read again."""
        target = Path(os.path.realpath(folder))
        work = target.with_name(f".{target.name}.building")
        described = json.dumps(dict(source), sort_keys=True, default=dict)
        begin = manifest | {"building": hashlib.sha256(described.encode()).hexdigest()}
        table = ColumnFolder(work, cls.kind)
        afresh = False
        while True:
            work.mkdir(parents=True, exist_ok=True)
            try:
                with table.writing(begin, afresh) as writer:
                    try:
                        store = cls(table)
                        state = store._extend(writer, store._missing(parts()), building=True)
                        store._derive(writer, 0)
                        writer.remove(SOURCES)
                        busy = locked(target) if target.exists() else nullcontext()
                        with busy, atomic_folder(target) as fresh:
                            writer.commit(**state, building=None)
                            os.replace(work, fresh)
                    except BaseException:
                        if not table.manifest["documents"]:
                            shutil.rmtree(work, ignore_errors=True)
                        raise
                return cls(ColumnFolder(target, cls.kind))
            except OtherDocuments as error:
                if once:
                    shutil.rmtree(work, ignore_errors=True)
                    raise ValueError(f"{error}; they have been removed: build again") from None
                warnings.warn(f"{error}: starting afresh", stacklevel=3)
                afresh = True

    def _missing(self, parts: Iterator[Part]) -> Iterator[Part]:
        """The parts after those that an interrupted build has stored."""
        sources = self._table.array(SOURCES, Column("uint32"))
        at = 0
        for part in parts:
            if at >= len(self.ids):
                yield part
                continue
            end = at + len(part.ids)
            if part.ids != self.ids[at:end] or part.sources != sources[at:end].tolist():
                break
            at = end
        if at < len(self.ids):
            raise OtherDocuments(f"{self.folder} holds other documents, from an interrupted build")

    def _add(self, parts: Iterator[Part]) -> None:
        with self._writing() as writer:
            start = self.manifest["tokens"]
            state = self._extend(writer, parts)
            self._derive(writer, start)
            writer.commit(**state)

    @contextmanager
    def _writing(self) -> Iterator[Writer]:
        with self._table.writing() as writer:
            self._load()
            yield writer
        self._load()

    def _extend(self, writer: Writer, parts: Iterator[Part], building: bool = False) -> dict[str, int]:
        """Append documents; the manifest's entries that say how many there are then."""
        state = {name: int(self.manifest[name]) for name in ("documents", "tokens")}
        uncommitted, seen = 0, set(self._positions)
        for part in parts:
            for id in part.ids:
                if id in seen:
                    raise ValueError(
                        f"document {id!r} is there already: every id needs one document, or delete it first"
                    )
                seen.add(id)
            tokens = part.tokens()
            lengths = tokens.mask[0].sum(-1).cpu().numpy().astype(np.int32)
            try:
                columns = self._encode(self._rows(tokens))
            except OverflowError as error:
                raise ValueError(f"{error} in documents {part.ids[:3]} …: not finite, or too large") from None
            for name, values in columns.items():
                writer.append(f"{name}.bin", values)
            writer.append(LENGTHS, lengths)
            writer.append(DOCUMENTS, _lines(part.ids))
            if building:
                writer.append(SOURCES, np.array(part.sources, dtype=np.uint32))
            state = {
                "documents": state["documents"] + len(lengths),
                "tokens": state["tokens"] + int(lengths.sum()),
            }
            uncommitted += len(lengths)
            if building and uncommitted >= COMMIT:
                writer.commit(**state)
                uncommitted = 0
        return state


class OtherDocuments(Exception):
    """A build that was called again with documents that are not those of the time before."""


def _lines(ids: Iterable[str]) -> bytes:
    return "".join(json.dumps(id) + "\n" for id in ids).encode()


def _runs(kept: np.ndarray) -> list[tuple[int, int]]:
    """Where runs of True begin and end."""
    edges = np.flatnonzero(np.diff(kept.astype(np.int8), prepend=0, append=0))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
