"""How the tries of an attack are made and counted.

A try ends in one of `OUTCOMES`: refused by an error that names what is wrong; harmless; obscure, an error
that names nothing; silent, a wrong result without an error; lost, where what was stored before is gone;
crashed, which is a signal, a hang, or code of the attacker that was run.
"""

from __future__ import annotations

import os
import random
import select
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

OUTCOMES = ("refused", "harmless", "obscure", "silent", "lost", "crashed")
PATIENCE = 60  # seconds until a try counts as hanging


class Silent(Exception):
    """A wrong result came without an error."""


class Lost(Exception):
    """What was stored before is not there any more."""


class Ran(Exception):
    """Code of the attacker was run."""


class Attack(NamedTuple):
    """prepare(folder) makes what is attacked; attempt(random, sound, work) attacks a copy in `work`."""

    prepare: Callable[[Path], None]
    attempt: Callable[[random.Random, Path, Path], None]
    named: tuple[str, ...] = ()  # what an error may name beside the folder of the try


def attempt(attack: Attack, seed: int, sound: Path) -> str:
    """The outcome of one try."""
    with tempfile.TemporaryDirectory(prefix="attack") as folder:
        work = Path(folder)
        try:
            attack.attempt(random.Random(seed), sound, work)
        except (Silent, Lost, Ran) as error:
            if os.environ.get("ATTACK_SHOW"):
                traceback.print_exc()
            return {Silent: "silent", Lost: "lost", Ran: "crashed"}[type(error)]
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            told = isinstance(error, ValueError | OSError | KeyError | TypeError | SystemExit)
            names = (folder, *attack.named)
            if told and any(name in str(error) for name in names):
                return "refused"
            if os.environ.get("ATTACK_SHOW"):
                traceback.print_exc()
            return "obscure"
    return "harmless"


def tally(attack: Attack, tries: int, seed: int, *, forked: bool) -> Counter[str]:
    """Outcome -> how many of the tries ended so. forked: in processes of their own, which may crash."""
    with tempfile.TemporaryDirectory(prefix="sound") as folder:
        sound = Path(folder)
        attack.prepare(sound)
        seeds = [seed * 1_000_003 + n for n in range(tries)]
        if not forked:
            return Counter(attempt(attack, each, sound) for each in seeds)
        found: list[str] = []
        while len(found) < tries:
            found += _forked(attack, seeds[len(found) :], sound)
        return Counter(found)


def _forked(attack: Attack, seeds: list[int], sound: Path) -> Iterator[str]:
    """The outcomes up to the first crash, whose seed is told."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        for each in seeds:
            os.write(write, bytes([OUTCOMES.index(attempt(attack, each, sound))]))
        os._exit(0)
    os.close(write)
    done = 0
    try:
        while done < len(seeds):
            if not select.select([read], [], [], PATIENCE)[0] or not (data := os.read(read, 1)):
                print(f"crashed: seed {seeds[done]}", file=sys.stderr)
                yield "crashed"
                return
            done += 1
            yield OUTCOMES[data[0]]
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(read)


@contextmanager
def process(work: Callable[[], object], limit: Callable[[], object] = lambda: None) -> Iterator[int]:
    """The id of a process that does `work`, exits with 0 if that succeeds, and is killed at the end."""
    child = os.fork()
    if not child:
        code = 1
        with suppress(BaseException):
            limit()
            work()
            code = 0
        os._exit(code)
    try:
        yield child
    finally:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def copied(sound: Path, work: Path) -> Path:
    """A copy of what was prepared, which an attempt may damage."""
    return Path(shutil.copytree(sound, work / "copy"))


def damaged(draw: random.Random, data: bytes) -> bytes:
    """The bytes with some flipped, cut, doubled, swapped, overwritten or put in."""
    if not data:
        return bytes(draw.randrange(256) for _ in range(draw.randrange(1, 9)))
    at, more = draw.randrange(len(data)), draw.randrange(1, 1 + min(64, len(data)))
    some, rest = data[at : at + more], data[at + more :]
    return {
        0: data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :],
        1: data[:at],
        2: data[:at] + some + some + rest,
        3: data[:at] + rest,
        4: data[:at] + bytes(len(some)) + rest,
        5: data[:at] + b"\xff" * len(some) + rest,
        6: rest + some + data[:at],
        7: data[:at] + bytes(draw.randrange(256) for _ in some) + rest,
    }[draw.randrange(8)]
