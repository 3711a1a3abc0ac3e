"""A page takes results, and commands are printed without paths. Committed pages test how tables look."""

import json
from pathlib import Path

import numpy as np
import pytest
from studies.claim_tables import verdicts
from studies.page_blocks import Page, filled
from studies.pages import ROOT, STUDY, VALUES, _command

from paradigms.evaluate.claims import REPRODUCED
from tests.experiments.scripts import run


def study(folder: Path) -> str:
    folder.mkdir()
    (folder / "curve.svg").write_text("<svg/>")
    sections = {"sizes": {"rows": [{"k": 1, "share": 0.25}], "text": "Of k."}}
    sections["curve"] = {"heading": "Curve", "text": "As k grows.", "rows": [{"k": 2}]}
    facts = {"title": "T", "summary": "S.", "collection": "a", "command": "experiments/x.py"}
    facts |= {"processor": "P", "minutes": 2.0, "sections": sections}
    (folder / STUDY).write_text(json.dumps(facts))
    return str(folder)


def test_a_page_takes_results(tmp_path: Path):
    page = tmp_path / "page" / "README.md"
    page.parent.mkdir()
    page.write_text(
        "# A\n\n<!-- table: x-b sizes -->\nold\n<!-- end -->\n<!-- figure: x-a curve -->\n<!-- end -->\n"
        "<!-- table: x-a curve sizes -->\n<!-- end -->\nkept\n"
    )
    folders = [study(tmp_path / name) for name in ("x-a", "x-b")]
    run("fill_pages", page=page, take=json.dumps(folders))
    text = page.read_text()
    assert "![Curve](results/x-a.curve.svg)\n\n*Curve.* As k grows.\n\n<!-- end -->" in text
    assert "old" not in text
    source = "S. 2 minutes of CPU time (P):\n\n    .venv/bin/python experiments/x.py\n\n"
    curve, sizes = "| k |\n| --- |\n| 2 |\n", "| k | share |\n| --- | --- |\n| 1 | 0.25 |\n\nOf k.\n"
    assert text.endswith(f"{curve}\n{sizes}\n{source}<!-- end -->\nkept\n"), "a caption stands once"
    assert (page.parent / "results/x-a.curve.svg").read_text() == "<svg/>"
    assert not (page.parent / "results/x-b.curve.svg").exists()
    assert filled(Page(page)) == text
    page.write_text(text.replace("figure: x-a curve", "table: x-a nothing"))
    with pytest.raises(SystemExit, match=r"README.md: table x-a nothing: KeyError\('nothing'\)"):
        run("fill_pages", page=page)
    with pytest.raises(SystemExit, match=r"x-c.study.json is missing"):
        run("fill_pages", page=page, take=json.dumps([str(tmp_path / "x-c")]))


def test_equal_values_of_two_studies_are_one_test(tmp_path: Path):
    """Numbers of a table may be equal without them."""
    row = {"claim": "c", "place": "§1", "quantity": "m: A − B, above −0.02", "sample": "2 queries"}
    row |= {"measured": "+0.000 [+0.000, +0.000]", "verdict": REPRODUCED}
    count = row | {"claim": "d", "quantity": "bytes saved", "measured": "5%"}
    (tmp_path / "results").mkdir()
    for name, shift in {"x-a": 0, "x-b": 0, "x-c": 1, "x-d": None}.items():
        facts = {"sections": {"claims": {"rows": [row, count]}}}
        (tmp_path / "results" / f"{name}.json").write_text(json.dumps(facts))
        if shift is not None:
            sides = {f"claims/m: {side}": np.array([[1.0, 2.0]]) + shift for side in "AB"}
            np.savez(tmp_path / "results" / f"{name}.{VALUES}", **sides)
    judged = Page(tmp_path / "README.md").judged(["x-a", "x-b", "x-c", "x-d"])
    studies = {name: [row["study"] for row in judged if row["claim"] == name] for name in "cd"}
    assert studies == {"c": ["x-a", "x-c", "x-d"], "d": ["x-a", "x-b", "x-c", "x-d"]}
    cell = f"[{row['quantity']}](details.md#x-a): {row['measured']}"
    assert f"| {cell} |" in verdicts("lee2023", judged)


def test_commands_name_no_folder_of_this_machine(tmp_path: Path):
    (tmp_path / "scifact").mkdir()
    given = ["a/b/token.py", "--output", "c", f"--collection={tmp_path}/scifact", "--tracker=none", "--seeds"]
    printed = "experiments/token.py --collection=path/to/scifact --seeds '[0, 1]'"
    assert _command([*given, "[0, 1]"]) == printed
    configuration = ROOT / "experiments" / "configs" / "gpu.yaml"  # a file of the repository
    assert _command(["token.py", "--config", str(configuration)]) == (
        "experiments/token.py --config experiments/configs/gpu.yaml"
    )
