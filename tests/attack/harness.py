"""How the tries of an attack are made and counted.

A try ends in one of `OUTCOMES`: refused by an error that names what is wrong; harmless; obscure, an error
that names nothing; silent, a wrong result without an error; lost, where what was stored before is gone;
crashed, which is a signal, a hang, or code of the attacker that was run.

Every decision of a try comes from its `draw`, a seeded generator.
"""

from __future__ import annotations

import os
import pickle
import random
import select
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

OUTCOMES = ("refused", "harmless", "obscure", "silent", "lost", "crashed")
PATIENCE = 420  # seconds until a try counts as hanging


class Silent(Exception):
    """A wrong result came without an error."""


class Lost(Exception):
    """Something that had been stored is missing."""


class Crashed(Exception):
    """A signal ended a process, or code of the attacker was run."""


class Attack(NamedTuple):
    """prepare(folder) makes what is attacked; attempt(random, sound, work) attacks a copy in `work`."""

    prepare: Callable[[Path], None]
    attempt: Callable[[random.Random, Path, Path], None]
    named: tuple[str, ...] = ()  # what an error may name beside the folder of the try
    fast: int = 12  # tries in `make test-all`
    cost: int = 1  # tries of `make attack` that one of these takes the time of


def attempt(attack: Attack, draw: random.Random, sound: Path) -> str:
    """The outcome of one try."""
    with tempfile.TemporaryDirectory(prefix="attack") as folder:
        work = Path(folder)
        try:
            attack.attempt(draw, sound, work)
        except (Silent, Lost, Crashed) as error:
            if os.environ.get("ATTACK_SHOW"):
                traceback.print_exc()
            return type(error).__name__.lower()
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
            return Counter(attempt(attack, random.Random(each), sound) for each in seeds)
        outcomes: list[str] = []
        while len(outcomes) < tries:
            outcomes += _forked(attack, seeds[len(outcomes) :], sound)
        return Counter(outcomes)


def _forked(attack: Attack, seeds: list[int], sound: Path) -> Iterator[str]:
    """The outcomes up to the first crash, whose seed is printed."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        for each in seeds:
            os.write(write, bytes([OUTCOMES.index(attempt(attack, random.Random(each), sound))]))
        os._exit(0)
    os.close(write)
    done = 0
    try:
        while done < len(seeds):
            ready = select.select([read], [], [], PATIENCE)[0]
            if not ready or not (data := os.read(read, 1)):
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


class Process:
    """A process that does `work`, and is killed where the block ends."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._read, write = os.pipe()
        self.child = os.fork()
        if not self.child:
            said = b""
            try:
                work()
            except BaseException as error:
                with suppress(BaseException):
                    said = pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"[:9999]))
                    said = pickle.dumps(error) if len(str(error)) < 9999 else said
            os.write(write, said)
            os._exit(bool(said))
        os.close(write)

    def error(self) -> BaseException | None:
        """What the process raised, or the signal that ended it."""
        with open(self._read, "rb", closefd=False) as stream:
            said = stream.read()
        status = os.waitpid(self.child, 0)[1]
        self.child = 0
        if os.WIFSIGNALED(status):
            return Crashed(f"signal {os.WTERMSIG(status)}")
        return pickle.loads(said) if said else None

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *error: object) -> None:
        if self.child:
            os.kill(self.child, signal.SIGKILL)
            os.waitpid(self.child, 0)
        os.close(self._read)


def together(*works: Callable[[], object]) -> list[BaseException | None]:
    """Run functions in processes of their own, all at once; return what each raised."""
    with ExitStack() as stack:
        processes = [stack.enter_context(Process(work)) for work in works]
        return [process.error() for process in processes]


def succeed(*works: Callable[[], object]) -> None:
    """`together`, and the first error is raised here."""
    for error in filter(None, together(*works)):
        raise error


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
