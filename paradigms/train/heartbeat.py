"""End a launch of several processes within minutes if one of them is lost, such as with its machine.

While one process searches or reads alone, the others may wait for days (`script.PATIENCE`), and a machine
that is gone refuses no connection. Therefore each process counts up a key in the store by which the processes
have found each other, and reads the others' keys. A process that hangs but still runs Python's threads is not
noticed here; within a training step, `loop.STEP` limits how long the others wait.
"""

import atexit
import os
import sys
import threading
import time
from datetime import timedelta

import torch.distributed as dist

BEAT = 10.0  # seconds between two signs of life
SILENCE = (
    600.0  # seconds without one: compiled code may hold Python's lock, so that no sign is given, for minutes
)
ENDED = b"ended"


class Heartbeat(threading.Thread):
    """A thread that gives this process's signs of life, and ends the process if another gives none."""

    def __init__(self, beat: float, silence: float) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self.beat = beat
        self.silence = silence
        self.store = dist.distributed_c10d._get_default_store().clone()  # type: ignore[attr-defined]
        self.store.set_timeout(timedelta(seconds=silence))
        self.rank = dist.get_rank()
        self.keys = [f"heartbeat/{rank}" for rank in range(dist.get_world_size())]
        self.failed = False
        self.ended = threading.Event()
        self.store.set(self.keys[self.rank], "0")

    def run(self) -> None:
        signs = [b""] * len(self.keys)
        heard = [time.monotonic()] * len(self.keys)
        beats = 0
        while not self.ended.wait(self.beat):
            beats += 1
            try:
                self.store.set(self.keys[self.rank], str(beats))
                latest = self.store.multi_get(self.keys)
            except RuntimeError:  # nobody answers: no sign of any process
                latest = signs
            now = time.monotonic()
            heard = [
                now if new != old or new == ENDED else last
                for new, old, last in zip(latest, signs, heard, strict=True)
            ]
            signs = latest
            lost = [rank for rank, last in enumerate(heard) if now - last > self.silence]
            if lost and not self.ended.is_set():
                names = ", ".join(map(str, lost))
                print(
                    f"process {self.rank} ends: no sign of life from process {names} of {len(self.keys)} for "
                    f"{self.silence:.0f} s. The same command resumes.",
                    file=sys.stderr,
                    flush=True,
                )
                os._exit(1)

    def end(self) -> None:
        """Tell the others that this process ended as it should; after an error, tell them nothing."""
        self.ended.set()
        if not self.failed:
            try:
                self.store.set(self.keys[self.rank], ENDED.decode())
            except RuntimeError:  # the store's process has ended before
                return


def start_heartbeat(beat: float = BEAT, silence: float = SILENCE) -> None:
    """Watch the other processes of a launch until this one ends. A single process watches nobody.

    beat: seconds between two signs of life. silence: seconds after which a process without one is lost.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return
    heartbeat = Heartbeat(beat, silence)
    report = sys.excepthook

    def noticed(*error: object) -> None:
        heartbeat.failed = True
        report(*error)  # type: ignore[arg-type]

    sys.excepthook = noticed
    atexit.register(heartbeat.end)
    heartbeat.start()
