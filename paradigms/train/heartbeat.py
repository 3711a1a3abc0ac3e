"""End a launch of several processes within minutes if one of them is lost, such as with its machine.

While one process searches or reads alone, the others may wait for days (`script.PATIENCE`). Therefore each
process counts up a key in the store by which they have found each other, and reads the others' keys. For a
process that hangs but runs Python's threads, within a training step, `loop.STEP` limits the others' wait.
"""

import atexit
import os
import sys
import threading
import time
from contextlib import suppress
from datetime import timedelta

import torch.distributed as dist

BEAT = 10.0  # seconds between two signs of life
SILENCE = 600.0  # seconds without one, as compiled code may hold Python's lock for minutes
ENDED = b"ended"


class Heartbeat(threading.Thread):
    """A thread that ends this process if another gives no signs of life; a second one exchanges the signs.

    There are two because a call of the store never returns if the machine that has it is gone.
    """

    def __init__(self) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self.store = dist.distributed_c10d._get_default_store().clone()  # type: ignore[attr-defined]
        self.store.set_timeout(timedelta(seconds=SILENCE))
        self.rank = dist.get_rank()
        self.keys = [f"heartbeat/{rank}" for rank in range(dist.get_world_size())]
        self.signs = [b""] * len(self.keys)
        self.silent = [0] * len(self.keys)  # beats since each process's last sign
        self.failed = False
        self.ended = threading.Event()
        # Apart, because a call of the store never returns if the machine that has it is gone.
        self.exchange = threading.Thread(target=self._exchange, daemon=True)
        self.store.set(self.keys[self.rank], "0")

    def run(self) -> None:
        while self.signs[0] != ENDED:  # process 0 may have the store
            time.sleep(BEAT)
            # Beats and not seconds: while compiled code holds Python's lock, neither thread counts.
            for rank, sign in enumerate(self.signs):
                self.silent[rank] = 0 if sign == ENDED else self.silent[rank] + 1
            most = SILENCE / BEAT
            lost = [rank for rank, beats in enumerate(self.silent) if beats > most]
            if lost:
                without_store = self.silent[self.rank] > most / 2
                names = "0" if without_store else ", ".join(map(str, lost))
                ends = f"process {self.rank} ends: no sign of life from process {names} of {len(self.keys)}"
                print(f"{ends} for {SILENCE:.0f} s. The same command resumes.", file=sys.stderr, flush=True)
                os._exit(1)

    def _exchange(self) -> None:
        beats = 0
        while not self.ended.wait(BEAT):
            beats += 1
            try:
                self.store.set(self.keys[self.rank], str(beats))
                latest = self.store.multi_get(self.keys)
            except RuntimeError:  # nobody answers: no sign of any process
                continue
            for rank, sign in enumerate(latest):
                if sign != self.signs[rank]:
                    self.silent[rank] = 0
            self.signs = latest

    def end(self) -> None:
        """Tell the others that this process ended as it should; after an error, tell them nothing."""
        self.ended.set()
        self.exchange.join(BEAT)  # or its last sign might replace this one
        if not (self.failed or self.exchange.is_alive()):
            with suppress(RuntimeError):  # the store's process has ended before
                self.store.set(self.keys[self.rank], ENDED.decode())


def start_heartbeat() -> None:
    """Watch the other processes of a launch until this one ends. A single process watches nobody."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return
    heartbeat = Heartbeat()
    report = sys.excepthook

    def noticed(*error: object) -> None:
        heartbeat.failed = True
        report(*error)  # type: ignore[arg-type]

    sys.excepthook = noticed
    heartbeat.exchange.start()
    heartbeat.start()
    atexit.register(heartbeat.end)
