"""The paper is made of the pages' tables."""

import build_paper
import pytest

from tests import needs
from tests.experiments.scripts import run


def test_tables_and_findings_of_a_page():
    page = """# A
## Findings

| finding | page |
|---|---|
| One [better](x.md) than two | [page](y.md#z) |
| Three | [page](y.md) |

<!-- figure: x y -->

## B

| a | b |
|---|---:|
| `x` | 1\\|2 |
|  | 3 |

text

| c |
|---|
| |
"""
    assert build_paper.findings(page) == ["One better than two.", "Three."]
    assert build_paper.tables(page)["B"] == [[["a", "b"], ["x", "1|2"], ["", "3"]], [["c"], [""]]]


@needs.typst
@pytest.mark.parametrize("text", ["paper", "imputation"])
def test_a_paper_is_set(tmp_path, text):
    run("build_paper", text=text, output=tmp_path / "out" / "paper.pdf")
    assert (tmp_path / "out" / "paper.pdf").read_bytes().startswith(b"%PDF")
