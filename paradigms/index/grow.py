"""Building and changing a store: build, prune, add, delete, compact.

Every change is one commit, so a process that is killed leaves the old state; a build makes many to a hidden
folder, and goes on from the last.
"""

import copy
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar

import numpy as np
import torch

from paradigms.core import Tokens
from paradigms.index.building import Alone, Building, Launch, begun
from paradigms.index.checksum import weights_checksum
from paradigms.index.columns import CHUNK, MANIFEST, ColumnFolder, Writer
from paradigms.index.pruning import Fewer, directed_distances
from paradigms.index.shards import SHARD, Shard, check_ids, different, text_shards, token_shards
from paradigms.index.store import (
    DELETED,
    DOCUMENTS,
    ERRORS,
    LENGTHS,
    TokenStore,
    check_entries,
    fewer_of,
    fields_of,
    grown,
)
from paradigms.io.files import atomic_folder, check_marked, locked
from paradigms.io.progress import progress_bar
from paradigms.model import Paradigm

ROUNDING = 1e-5  # of a similarity, at most, of the longer vector's norm
BLOCK = 1 << 16  # padded tokens that go from one index to another at once
Grown = TypeVar("Grown", bound="GrowingStore")
Advance = Callable[[float], object]  # told how many documents of a build, or queries, are just done


class GrowingStore(TokenStore):
    """A store with `build`, `of`, `certify`, `add`, `delete` and `compact`."""

    @classmethod
    def build(
        cls: type[Grown],
        paradigm: Paradigm,
        ids: Iterable[str],
        texts: Iterable[str],
        folder: str | Path,
        *,
        keep: float = 1.0,
        pool: int = 1,
        pooling: Literal["ward", "sequential"] = "ward",
        batch_size: int = 64,
        precision: str = "no",
        progress: bool = False,
        launch: Launch | None = None,
        **settings: Any,
    ) -> Grown:
        """Encode the documents and store their tokens; the folder appears complete or not at all.

        Documents have the rows 0, 1, … in their order. texts may be a stream: only ids and lengths are held,
        beside a shard. A build that was stopped goes on from the last shard that was stored when it is called
        again with the same weights, settings and documents; with others it is refused.

        launch: the processes that share the work (`building`), all of which call this with the same
        arguments, such as accelerate's `Accelerator` or `PartialState`; each returns the index, whose bytes
        are those that one process makes with as many threads. None: this process builds alone.

        keep, pool, pooling: which tokens of a document are stored, as `pruning.Fewer` says.
        precision "bf16" (or "fp16", on a GPU) encodes under autocast; vectors are stored as float16 anyway.
        settings: those of the kind of index, `Settings`. ValueError where ids repeat, a vector does not fit
        float16 or another build was interrupted there; BlockingIOError while another process, not of the
        launch, builds or writes there.
        """
        known, fewer = check_ids(ids, texts), Fewer(keep, pool, pooling)
        shards = text_shards(paradigm, ids, texts, fewer=fewer, batch_size=batch_size, precision=precision)
        with progress_bar(progress) as bar:
            task = bar.add_task(f"encode {paradigm.recipe.name}", total=known)
            return cls._build(
                shards,
                folder,
                fewer,
                settings,
                source={"batch": batch_size, "precision": precision} | paradigm.description(),
                launch=launch,
                advance=lambda n: bar.advance(task, n),
                paradigm=paradigm.recipe.name,
                weights=weights_checksum(paradigm),
                dim=paradigm.encoder.dim,
                fields=fields_of(paradigm),
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
        pool: int = 1,
        pooling: Literal["ward", "sequential"] = "ward",
        **settings: Any,
    ) -> Grown:
        """As `build`, of documents that come encoded: ids and Tokens [1, n, i, h], some at a time.

        paradigm: its name. fields: what is stored of Tokens, of vectors, ids and salience.
        """
        fewer = Fewer(keep, pool, pooling)
        own: dict[str, Any] = {"paradigm": paradigm, "dim": dim, "fields": list(fields)}
        return cls._build(token_shards(parts, fewer), folder, fewer, settings, **own)

    @classmethod
    def of(
        cls: type[Grown],
        index: TokenStore,
        folder: str | Path,
        *,
        keep: float = 1.0,
        pool: int = 1,
        pooling: Literal["ward", "sequential"] = "ward",
        **settings: Any,
    ) -> Grown:
        """An index of this kind in `folder`, of the tokens of another index; nothing is encoded again.

        keep, pool, pooling: as of `build`, of the tokens that are there. settings: those of this kind.
        """
        index, fewer = copy.copy(index), Fewer(keep, pool, pooling)  # one state, whatever is added meanwhile
        parts = ((index.names(rows), index.tokens(rows)) for rows in _blocks(index))
        names = ("paradigm", "weights", "dim", "fields")
        same = {name: index.manifest[name] for name in names if name in index.manifest}
        before = fewer_of(index.manifest)
        both = Fewer(before.keep * keep, before.pool * pool, pooling if pool > 1 else before.pooling)
        return cls._build(token_shards(parts, fewer), folder, both, settings, **same)

    def certify(self, whole: TokenStore) -> None:
        """Store of each document how far its tokens are from those in `whole`: `errors`, [documents, 2].

        The columns are `pruning.directed_distances`, and what sums are rounded by, which bound the error of a
        sum of maxima. An addition or compaction drops them. KeyError names a document that `whole` lacks.
        """
        whole = copy.copy(whole)
        with self._writing() as writer:
            errors = np.zeros((len(self.ids), 2), np.float32)
            for rows in _blocks(self):
                parts = whole.tokens_of(self.names(rows)), self.tokens(rows)
                norms = [part.vectors.norm(dim=-1).where(part.mask, 0).amax(-1)[0] for part in parts]
                longest = torch.maximum(*norms).clamp(min=1)[:, None]
                errors[rows] = directed_distances(*parts) + ROUNDING * longest
            writer.remove(ERRORS)
            writer.append(ERRORS, errors)
            writer.commit()

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
        known, fewer = check_ids(ids, texts), fewer_of(self.manifest)
        shards = text_shards(paradigm, ids, texts, fewer=fewer, batch_size=batch_size, precision=precision)
        with progress_bar(progress) as bar:
            task = bar.add_task(f"encode {paradigm.recipe.name}", total=known)
            self._add(shards, lambda n: bar.advance(task, n))

    def add_from(self, parts: Iterable[tuple[list[str], Tokens]]) -> None:
        """As `add`, of documents that come encoded."""
        self._add(token_shards(parts, fewer_of(self.manifest)))

    def delete(self, ids: Iterable[str]) -> None:
        """Remove documents from all searches, all or none of them; `compact` frees their bytes.

        KeyError names an unknown document.
        """
        with self._writing() as writer:
            writer.append(DELETED, np.unique(self.positions(ids)))
            writer.commit()

    def compact(self) -> None:
        """Rewrite the index without deleted documents, beside the old files: rows move, results stay."""
        with self._writing() as writer:
            if self.living.all():
                return
            kept = np.repeat(self.living, np.diff(self.offsets))
            for name, column in self._columns().items():
                writer.remove(f"{name}.bin")
                step = max(1, CHUNK // np.dtype(column).itemsize)
                for part in (slice(first, first + step) for first in range(0, len(kept), step)):
                    writer.append(f"{name}.bin", self.fields[name][part][kept[part]])
            rows = np.flatnonzero(self.living)
            writer.remove(LENGTHS)
            writer.append(LENGTHS, np.diff(self.offsets)[rows].astype(np.int32))
            writer.remove(DOCUMENTS)
            writer.append(DOCUMENTS, _lines(self.names(rows)))
            writer.remove(DELETED)
            writer.remove(ERRORS)
            self._derive(writer, 0)
            writer.commit(documents=len(rows), tokens=int(kept.sum()))

    @classmethod
    def _build(
        cls: type[Grown],
        shards: Iterator[Shard],
        folder: str | Path,
        fewer: Fewer,
        settings: Mapping[str, Any],
        *,
        source: Mapping[str, Any] = MappingProxyType({}),
        launch: Launch | None = None,
        advance: Advance = lambda n: None,
        **manifest: Any,
    ) -> Grown:
        """Fill a hidden folder beside `folder`, with all processes of the launch, then move it there.

        source: what tokens depend on besides the manifest's entries and what shards are made from.
        """
        chosen = cls.Settings(**settings)
        manifest |= {"settings": asdict(chosen), **asdict(fewer)}
        check_entries(manifest)
        cls._check_settings(chosen, manifest["dim"])
        launch = launch or Alone()
        target = Path(os.path.realpath(folder))
        check_marked(target, [MANIFEST])
        table = ColumnFolder(target.with_name(f".{target.name}.building"), cls.kind)
        described = json.dumps({"shard": SHARD, **source}, sort_keys=True, default=dict)
        building = hashlib.sha256(described.encode()).hexdigest()
        with ExitStack() as stack:
            writer = None
            if launch.process_index == 0:
                writer = stack.enter_context(begun(table, {"building": building, **manifest}))
            launch.wait_for_everyone()
            work, store, count = Building(table, writer), cls(table.folder), 0
            for n, shard in enumerate(different(shards)):
                count = n + 1
                mine = n % launch.num_processes == launch.process_index
                if mine and not work.holds(n, shard.source):
                    work.put(n, shard.source, store._encoded(shard, advance))
                else:
                    advance(len(shard.ids))
            work.check_count(count)
            launch.wait_for_everyone()
            if writer is not None:
                work.append_stored(writer)
                store._derive(writer, 0)
                work.clear(writer)
                busy = locked(target) if target.exists() else nullcontext()
                with busy, atomic_folder(target, [MANIFEST]) as fresh:
                    writer.commit(building=None)
                    os.replace(table.folder, fresh)
        launch.wait_for_everyone()
        return cls(target)

    def _add(self, shards: Iterator[Shard], advance: Advance = lambda n: None) -> None:
        with self._writing() as writer:
            start, state = self.manifest["tokens"], dict(self.manifest)
            for shard in different(shards, self._positions):
                columns = self._encoded(shard, advance)
                for name, rows in columns.items():
                    writer.append(name, rows)
                state |= grown(state, columns)
            writer.remove(ERRORS)
            self._derive(writer, start)
            writer.commit(documents=state["documents"], tokens=state["tokens"])

    @contextmanager
    def _writing(self) -> Iterator[Writer]:
        with ColumnFolder(self.folder, self.kind).writing() as writer:
            self._load()
            yield writer
        self._load()

    def _encoded(self, shard: Shard, advance: Advance) -> dict[str, np.ndarray]:
        """What a shard appends to each file, its documents in their order."""
        pieces: dict[str, list[np.ndarray]] = {}
        lengths = np.zeros(len(shard.ids), np.int32)
        for places, tokens in shard.encode():
            lengths[places] = tokens.mask[0].sum(-1).cpu().numpy()
            columns = self._encode(self._rows(tokens, [shard.ids[place] for place in places]))
            ends = np.cumsum(lengths[places])
            for name, rows in columns.items():
                of = pieces.setdefault(f"{name}.bin", [rows[:0]] * len(lengths))
                for place, piece in zip(places, np.split(rows, ends[:-1]), strict=True):
                    of[place] = piece
            advance(len(places))
        ids = np.frombuffer(_lines(shard.ids), np.uint8)
        return {name: np.concatenate(of) for name, of in pieces.items()} | {LENGTHS: lengths, DOCUMENTS: ids}


def _blocks(store: TokenStore) -> Iterator[np.ndarray]:
    """Rows of the documents that are not deleted, in their order, some tokens at a time."""
    return store.blocks(BLOCK, np.flatnonzero(store.living))


def _lines(ids: Iterable[str]) -> bytes:
    return "".join(json.dumps(id) + "\n" for id in ids).encode()
