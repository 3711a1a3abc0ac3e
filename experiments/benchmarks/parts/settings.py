"""Settings that benchmarks share. Importing this makes `studies` importable."""

import sys
from dataclasses import field
from pathlib import Path

from paradigms.io.command_line import flags

sys.path.append(str(Path(__file__).parents[2]))  # launching a benchmark puts only its own folder on the path

from studies.settings import Output


@flags()
class Benchmark(Output):
    """The results folder of a benchmark."""

    @property
    def experiment(self) -> str:
        return f"benchmarks/{super().experiment}"


@flags()
class Peers:
    """Systems of other projects, and a choice among all."""

    peers: list[str] = field(default_factory=list)
    """folders of virtual environments, each with maxsim-cpu or fast-plaid"""
    systems: list[str] = field(default_factory=list)
    """prefixes of the names of systems to measure; empty: all"""
