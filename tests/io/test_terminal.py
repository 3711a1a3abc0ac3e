"""Ctrl-C: one line and exit code 130, also while compiled code runs."""

import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = """
from dataclasses import dataclass
from studies.settings import launch

@dataclass
class Settings:
    number: int = 1000000

def main(settings):
    import numba
    @numba.njit
    def spin(n):
        s = 0.0
        for i in range(n):
            s += i % 7
        return s
    spin(1)
    print("ready", flush=True)
    while True:
        spin(settings.number)

launch(__name__, Settings, "x")
"""


def test_an_interrupted_script_prints_one_line(tmp_path):
    script = tmp_path / "busy_script.py"
    script.write_text(SCRIPT)
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "experiments")))
    process = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": paths},
        # A job in the background of a shell ignores SIGINT, and its children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert (process.returncode, error.strip().count("\n")) == (130, 0)
    assert error.strip().startswith("interrupted")
