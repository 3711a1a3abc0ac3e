"""Indexes: a tiny one of each kind, and writers of it that are killed, starved of disk space or crowded."""

import contextlib
import errno
import json
import math
import os
import random
import shutil
import signal
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paradigms.align import EqualIds, PoolTopK, QueryToDocument
from paradigms.core import Tokens
from paradigms.find import Index, Store, kinds, lists, open_index
from paradigms.recipe import Recipe
from paradigms.store import view
from paradigms.store.columns import FolderWriter
from tests.attack.harness import Attack, Crashed, Lost, Silent, copied, succeed, together

DIM, COUNT = 32, 24
GATHER = Recipe("colbert", QueryToDocument(), "one")
IMPUTE = Recipe("xtr", PoolTopK(k=8), "retrieved", search="impute", search_tokens=12)
TERMS = Recipe("splade", EqualIds(), "one")
KINDS = {"exact": kinds.exact(), "compressed": kinds.compressed(lists=4), "faiss": kinds.faiss("Flat")}
KINDS |= {"inverted": kinds.inverted(), "lemur": kinds.lemur(width=8, factory="Flat")}
Part = tuple[list[str], Tokens]
Result = list[dict[str, float]]


def parts(first: int = 0, count: int = COUNT, name: str = "d", kind: str = "exact") -> Iterator[Part]:
    """Documents of 0 to 5 tokens, six at a time, that depend on their number alone."""
    for start in range(first, first + count, 6):
        numbers = range(start, min(start + 6, first + count))
        seeds = [torch.Generator().manual_seed(n + 1) for n in numbers]
        vectors = torch.stack([torch.randn(5, DIM, generator=seed) for seed in seeds])
        lengths = torch.tensor([n % 6 for n in numbers])
        tokens = Tokens(vectors[None], (torch.arange(5) < lengths[:, None])[None])
        yield [f"{name}{n}" for n in numbers], as_terms(tokens) if kind == "inverted" else tokens


def as_terms(tokens: Tokens) -> Tokens:
    """Treat the first number of each vector as the weight of a term that no other vector has."""
    ids = torch.arange(tokens.mask.shape[-1]).expand(tokens.mask.shape)
    return Tokens(tokens.vectors[..., :1].abs(), tokens.mask, ids)


def opened(folder: Path) -> Store:
    return open_index(folder).store


def results(store: Store) -> Result:
    vectors = torch.randn(3, 1, 4, DIM, generator=torch.Generator().manual_seed(0))
    queries, index = Tokens(vectors, torch.ones(3, 1, 4) > 0), Index(store)
    if store.kind.name == "inverted":
        return index.search_tokens(TERMS, as_terms(queries), 5)
    return [*index.search_tokens(GATHER, queries, 5), *index.search_tokens(IMPUTE, queries, 5)]


def well_formed(rows: Result, ids: Iterable[str]) -> None:
    """Check that results are finite, sorted and of documents that exist."""
    ids = set(ids)
    for row in rows:
        scores = list(row.values())
        if not row.keys() <= ids or scores != sorted(scores, reverse=True) or not np.isfinite(scores).all():
            raise Silent(f"{row}")


def sound_index(folder: Path, kind: str) -> None:
    dim, fields = (1, ("vectors", "ids")) if kind == "inverted" else (DIM, ("vectors",))
    common = {"paradigm": "colbert", "dim": dim, "fields": fields}
    Store.build_from(KINDS[kind], parts(kind=kind), folder / "index", **common)


def files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file())


def changes_of(draw: random.Random, kind: str) -> list[Callable[[Store], Store]]:
    """Additions, deletions and compactions; some rewrite the lists, some train new centroids."""
    ids, changes = [f"d{n}" for n in range(COUNT)], []
    for turn in range(draw.randrange(2, 6)):
        if turn and draw.random() < 0.4:
            changes.append(Store.compact)
        elif draw.random() < 0.5:
            first, count = 100 + 20 * turn, draw.randrange(1, 19)
            changes.append(partial(added, first=first, count=count, kind=kind))
            ids += [f"d{n}" for n in range(first, first + count)]
        else:
            gone = draw.sample(ids, draw.randrange(1, 4))
            changes.append(partial(Store.delete, ids=gone))
            ids = [id for id in ids if id not in gone]
    return changes


def added(store: Store, first: int, count: int, kind: str) -> Store:
    return store.add_from(parts(first, count, kind=kind))


@contextlib.contextmanager
def stop_at(number: float, full: Path | None) -> Iterator[Callable[[], int]]:
    """Stop at write `number` and each later one, after half of the bytes; yield a count of the writes.

    full: a folder whose disk is full; None stops by kill -9. Other file operations than writes are counted
    too, unless a disk is full, which does not hinder them.
    """
    count, append = 0, FolderWriter.append

    def stop() -> None:
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(full))
        os.kill(os.getpid(), signal.SIGKILL)

    def counted() -> bool:
        nonlocal count
        count += 1
        return count > number

    def appended(self: FolderWriter, name: str, rows: bytes | np.ndarray) -> None:
        if counted():
            data = rows if isinstance(rows, bytes) else rows.tobytes()
            append(self, name, data[: len(data) // 2])
            self.array(name, "uint8")  # flushes
            stop()
        append(self, name, rows)

    def stopping(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments, **more: (stop() if counted() else None) or function(*arguments, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FolderWriter, "append", appended)
        for name in ("fsync", "replace") if full else ("fsync", "replace", "unlink", "truncate"):
            patch.setattr(os, name, stopping(getattr(os, name)))
        yield lambda: count


def changed(draw: random.Random, sound: Path, work: Path, kind: str) -> None:
    """kill -9 or a full disk at any write of a series of changes: one of its states, and the rest goes on."""
    full, changes = draw.random() < 0.5, changes_of(draw, kind)
    few, unlisted = draw.choice([1, 1 << 10]), draw.choice([0, 1 << 20])
    folder, log, number = copied(sound / "index", work), work / "log", math.inf

    def run(folder: Path, changes: list[Callable[[Store], Store]]) -> None:
        """Log the state before and after each change, and the number of writes until then."""
        view.FEW, view.GROWN, lists.UNLISTED = few, 1, unlisted
        warnings.simplefilter("ignore")
        with log.open("w") as states, stop_at(number, folder if full else None) as writes:
            print(json.dumps([0, state(opened(folder))]), file=states, flush=True)
            for change in changes:
                reached = state(change(opened(folder)))
                print(json.dumps([writes(), reached]), file=states, flush=True)

    def state(store: Store) -> list[Any]:
        return [sorted(store.rows_by_id), results(store)]

    def logged() -> list[Any]:
        return [json.loads(line) for line in log.read_text().splitlines()]

    shutil.copytree(folder, work / "whole")
    succeed(lambda: run(work / "whole", changes))
    states = logged()
    number = draw.randrange(states[-1][0])
    [error] = together(lambda: run(folder, changes))
    done, number = len(logged()) - 1, math.inf
    try:
        reached = state(opened(folder))
        if error is None or reached not in [state for _, state in states[done : done + 2]]:
            raise Silent("neither the state before the stopped change nor the one after it")
        succeed(lambda: run(folder, changes[done + (reached != states[done][1]) :]))
    except (OSError, ValueError, KeyError) as failure:
        raise Lost(f"the state after change {done} of {len(changes)}") from failure
    if logged()[-1][1] != states[-1][1]:
        raise Silent("other results after the rest of the changes")
    if full:
        raise error


def crowd(draw: random.Random, sound: Path, work: Path, kind: str) -> None:
    """Two processes add, delete and compact while two others search: nothing fails and nothing is lost."""
    folder, until = copied(sound / "index", work), time.monotonic() + (SUSTAINED if FULL else 1)

    def write(name: str) -> None:
        turn = 0
        while time.monotonic() < until:
            first, turn = 100 + 12 * turn, turn + 1
            new = [f"{name}{n}" for n in range(first, first + 12)]
            insist(lambda store, first=first: store.add_from(parts(first, 12, name, kind)))
            insist(lambda store, new=new: store.delete(new[:-1]))
            if turn % 8 == 0:
                insist(lambda store: store.compact())
        (work / name).write_text(str(turn))

    def insist(change: Callable[[Store], object]) -> None:
        while True:
            with contextlib.suppress(BlockingIOError):
                change(opened(folder))
                return
            time.sleep(0.002)

    def read() -> None:
        while time.monotonic() < until:
            store = opened(folder)
            for _ in range(3):
                well_formed(results(store), store.ids)

    for error in filter(None, together(lambda: write("a"), lambda: write("b"), read, read)):
        raise Crashed("a writer or reader") from error
    last = {f"{name}{111 + 12 * n}" for name in "ab" for n in range(int((work / name).read_text()))}
    if set(opened(folder).rows_by_id) != last | {f"d{n}" for n in range(COUNT)}:
        raise Lost("documents of a writer")


FULL = bool(os.environ.get("ATTACK_FULL"))
SUSTAINED = 120  # seconds of each kind of index: ten minutes together

INDEXES: dict[str, Attack] = {
    f"{title}, {kind}": Attack(
        partial(sound_index, kind=kind), partial(attempt, kind=kind), fast=1, cost=cost
    )
    for title, attempt, cost in (
        ("stopped changes", changed, 3),
        ("two writers and two readers", crowd, 1000),
    )
    for kind in KINDS
}
