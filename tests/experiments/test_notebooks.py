"""The notebooks run from top to bottom, and what they show draws itself."""

import ast
import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from paradigms.align import ALIGNMENTS

FOLDER = Path(__file__).parents[2] / "experiments" / "notebooks"
DRAWN = {"formula": 4, "train_and_compare": 2, "own_alignment": 1}  # cells that show a card or a table


def cells(name: str, kind: str) -> list[str]:
    notebook = json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))
    assert all(not cell.get("outputs") for cell in notebook["cells"])
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == kind]


def value_of(source: str, names: dict[str, Any]) -> Any:
    """Run a cell; return the value of its last line, which a notebook would show."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names) if last else None


def test_all_notebooks_are_run():
    assert {file.stem for file in FOLDER.glob("*.ipynb")} == set(DRAWN)


@pytest.mark.parametrize("name", DRAWN)
def test_a_notebook_runs_and_shows_its_cards(name, tiny_offline, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    names: dict[str, Any] = {"__name__": "__main__"}
    with patch.dict(ALIGNMENTS):
        values = [value_of(source, names) for source in cells(name, "code")]
    shown = [value._repr_html_() for value in values if hasattr(value, "_repr_html_")]
    shown += [value._repr_markdown_() for value in values if hasattr(value, "_repr_markdown_")]
    assert len(shown) == DRAWN[name]
    assert all(text.startswith(("<iframe sandbox", "**300 documents**")) for text in shown)
    if name == "formula":
        by_hand, scored = values[2]
        assert float(by_hand) == pytest.approx(float(scored), rel=1e-5)
