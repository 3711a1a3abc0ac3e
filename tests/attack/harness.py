"""How the tries of an attack are made and counted.

A try ends in one of `OUTCOMES`: refused by an error that names what is wrong; harmless; obscure, an error
that names nothing; silent, a wrong result without an error; lost, where what was stored before is gone;
crashed, which is a signal, a hang, or code of the attacker that was run.

Every decision of a try comes from its `draw`, a seeded generator.
"""

import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import NamedTuple

FORK = multiprocessing.get_context("fork")
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

    def tries(told: Connection) -> None:
        for seed in seeds:
            told.send(attempt(attack, random.Random(seed), sound))

    process, outcomes = started(tries)
    for seed in seeds:
        outcome = "crashed"
        with suppress(EOFError):
            outcome = outcomes.recv() if outcomes.poll(PATIENCE) else outcome
        yield outcome
        if outcome == "crashed":
            print(f"crashed: seed {seed}", file=sys.stderr)
            break
    process.kill()
    process.join()


def started(work: Callable[[Connection], object]) -> tuple[ForkProcess, Connection]:
    """A process that calls `work` with one end of a pipe, and the other end."""
    near, far = FORK.Pipe(duplex=False)
    process = FORK.Process(target=work, args=(far,))
    process.start()
    far.close()
    return process, near


def together(*works: Callable[[], object]) -> list[BaseException | None]:
    """Run functions in processes of their own, all at once; return what each raised, a signal as Crashed."""

    def telling(work: Callable[[], object], told: Connection) -> None:
        try:
            work()
        except BaseException as error:
            told.send(error)

    running = [started(partial(telling, work)) for work in works]
    errors: list[BaseException | None] = []
    for process, told in running:
        error = None
        with suppress(EOFError):
            error = told.recv()
        process.join()
        errors.append(Crashed(f"exit status {process.exitcode}") if process.exitcode else error)
    return errors


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
