"""What is imported when: help comes before all that takes seconds, `import paradigms` brings torch alone."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from paradigms import PARADIGMS
from paradigms.cli import arguments
from paradigms.formats import FORMATS
from paradigms.index import INDEXES
from paradigms.model import SAVE_LAYOUTS

ROOT = Path(__file__).parents[1]
SLOW = {"torch", "transformers", "peft", "faiss", "datasets", "accelerate", "numba", "scipy", "matplotlib"}
SLOW |= {"wandb", "bm25s", "ir_measures", "sentencepiece", "rapidfuzz", "pandas"}
LAUNCHED = ("*.py", "benchmarks/*.py", "examples/*.py")
SCRIPTS = [
    str(file.relative_to(ROOT))
    for folder in LAUNCHED
    for file in sorted((ROOT / "experiments").glob(folder))
    if '\nif __name__ == "__main__"' in file.read_text(encoding="utf-8")
]
COMMANDS = ["index", "search", "rerank", "explain", "export", "compare"]


def run(*command: str) -> tuple[str, set[str]]:
    """What it prints, and those of `SLOW` that it imports."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *command], cwd=ROOT, capture_output=True, text=True, check=True
    )
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    return done.stdout, imported & SLOW


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_of_a_script_imports_nothing_slow(script: str) -> None:
    shown, slow = run(script, "--help")
    assert shown.strip()
    assert not slow


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)])
def test_help_of_the_command_line_imports_nothing_slow(command: list[str]) -> None:
    shown, slow = run("-m", "paradigms", *command, "--help")
    assert shown.startswith("usage: python -m paradigms")
    assert not slow


def test_the_package_imports_torch_when_it_is_used() -> None:
    assert run("-c", "import paradigms, paradigms.io.settings, paradigms.data")[1] == set()
    assert run("-c", "from paradigms import PARADIGMS, load")[1] == {"torch"}


def test_names_written_out_for_help_are_all_there_are() -> None:
    assert tuple(INDEXES) == arguments.INDEX_KINDS
    assert tuple(SAVE_LAYOUTS) == arguments.SAVE_LAYOUTS
    assert tuple(FORMATS) == arguments.FORMATS
    compare, serving = map(importlib.import_module, ("compare", "serving_costs"))
    assert compare.Settings().systems == list(PARADIGMS)
    assert serving.Settings().paradigms == list(PARADIGMS)
