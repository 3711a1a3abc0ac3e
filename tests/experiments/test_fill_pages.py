"""Tables of pages are written from the results of studies, and commands are printed without paths."""

import json
from pathlib import Path

import fill_pages
import pytest
from studies import claim_tables, page_blocks
from studies.claim_tables import claim_table
from studies.page_blocks import Page, filled, tables
from studies.pages import ROOT, STUDY, _command

from paradigms.evaluate.claims import ONE_SEED
from tests.experiments.scripts import run


def study(folder: Path, collection: str, verdict: str) -> str:
    claim = {"claim": "x is y", "place": "X et al. 2020, §1, Table 2", "quantity": "x − y", "printed": ""}
    claim |= {"sample": "9 queries, 1 seed"}
    rows = [claim | {"measured": "+0.1 [+0.0, +0.2]", "verdict": verdict}] * 2  # of two models
    folder.mkdir()
    (folder / "curve.svg").write_text("<svg/>")
    unmeasured = dict.fromkeys(("quantity", "printed", "measured", "sample"), "–")
    rows += [{"claim": "z", "place": "–", "verdict": "not decided here: c"} | unmeasured]
    sections = {"claims": {"rows": rows[::-1]}, "sizes": {"rows": [{"k": 1, "share": 0.25}], "text": "Of k."}}
    sections["curve"] = {"heading": "Curve", "text": "As k grows.", "rows": [{"k": 2}]}
    facts = {"title": "T", "summary": "S.", "collection": collection, "command": "experiments/x.py"}
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
    folders = [
        study(tmp_path / "x-a", "a", f"reproduced: {ONE_SEED}"),
        study(tmp_path / "x-b", "b", "not decided here: p is 0.06"),
    ]
    run("fill_pages", page=page, take=json.dumps(folders))
    text = page.read_text()
    row = "| {} | {} | x − y | {} | +0.1 [+0.0, +0.2] | – | 9 queries |\n"
    unmeasured = "| z | – | – | not tested | – | – | – |\n"
    for name, verdict in (("x-a", "reproduced"), ("x-b", "not decided: p is 0.06")):
        rows = row.format("x is y", "§1, Table 2", verdict) + row.format("", "", verdict)
        table = claim_table(Page(page).judged([name]))
        assert table.endswith(rows + unmeasured), "claims without a measurement come last"
    assert "![Curve](results/x-a.curve.svg)\n\n*Curve.* As k grows.\n\n<!-- end -->" in text
    assert "old" not in text
    source = "S. 2 minutes of CPU time (P):\n\n    .venv/bin/python experiments/x.py\n\n"
    curve, sizes = "| k |\n| --- |\n| 2 |\n", "| k | share |\n| --- | --- |\n| 1 | 0.25 |\n\nOf k.\n"
    assert text.endswith(f"{curve}\n{sizes}\n{source}<!-- end -->\nkept\n"), "a caption stands once"
    assert (page.parent / "results/x-a.curve.svg").read_text() == "<svg/>"
    assert not (page.parent / "results/x-b.curve.svg").exists()
    assert filled(Page(page)) == text
    joined = json.loads((page.parent / "results/x-b.json").read_text())
    joined["sections"]["sizes"] = {
        "rows": [{"k": 1, "share": 0.5}, {"k": 2, "share": 0.75}],
        "text": "All k.",
    }
    (page.parent / "results/x-b.json").write_text(json.dumps(joined))
    table = "| k | share |\n| --- | --- |\n| 1 | 0.25 |\n| 2 | 0.75 |\n\n1: Of k.\n\n2: All k.\n"
    assert tables(Page(page), "x-a+x-b", "sizes").startswith(f"{table}\nS. "), "rows of x-a, then x-b's"
    page.write_text(text.replace("figure: x-a curve", "table: x-a nothing"))
    with pytest.raises(SystemExit, match=r"README.md: table x-a nothing: KeyError\('nothing'\)"):
        run("fill_pages", page=page)
    with pytest.raises(SystemExit, match=r"x-c.study.json is missing"):
        run("fill_pages", page=page, take=json.dumps([str(tmp_path / "x-c")]))


def test_commands_name_no_folder_of_this_machine(tmp_path: Path):
    (tmp_path / "scifact").mkdir()
    given = ["a/b/token.py", "--output", "c", f"--collection={tmp_path}/scifact", "--tracker=none", "--seeds"]
    printed = "experiments/token.py --collection=path/to/scifact --seeds '[0, 1]'"
    assert _command([*given, "[0, 1]"]) == printed
    configuration = ROOT / "experiments" / "configs" / "gpu.yaml"  # a file of the repository
    assert _command(["token.py", "--config", str(configuration)]) == (
        "experiments/token.py --config experiments/configs/gpu.yaml"
    )


def test_a_paper_s_page_has_a_row_for_each_decided_claim_and_details_have_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    paper = {"claims": {"f": [{"claim": "x is y", "place": "§1"}, {"claim": "never"}]}, "set": {"a": [50.0]}}
    paper["claims"]["f"][1] |= {"place": "§2", "takes": "years"}
    for module in (claim_tables, page_blocks):
        monkeypatch.setattr(module, "printed", lambda name: paper)
    page = tmp_path / "README.md"
    page.write_text(
        "# P\n<!-- verdicts: p -->\n<!-- end -->\n<!-- runs: x-a x-b -->\n<!-- end -->\n"
        "<!-- systems: all R@1 set x-a x-b -->\n<!-- end -->\n"
        "<!-- table: x-a sizes without=k|x_y -->\n<!-- end -->\n"
    )
    for name, verdict, queries in (("x-a", "reproduced", "9"), ("x-b", "contradicted: z", "1,200")):
        folder = tmp_path / name
        study(folder, name, verdict)
        facts = json.loads((folder / STUDY).read_text())
        facts["summary"] = f"{queries} test queries over 300 documents; seeds [0, 1] of models from 'm'."
        for row in facts["sections"]["claims"]["rows"]:
            row |= {"sample": f"{queries} queries", "quantity": "m: x, a − x, b, above 0.1"}
        values = {"a": "0.250 [0.1, 0.4]", "a, untrained": "0.125", "b": "0.5", f"only {name}": "1.0"}
        rows = [{"system": system, "R@1": value} for system, value in values.items()]
        facts["sections"]["all"] = {"heading": "All", "text": "", "rows": rows}
        facts["sections"]["sizes"] |= {"heading": "Sizes", "text": "n: names; k: sizes."}
        facts["sections"]["sizes"]["rows"] = [{"n": n, "k": 1} for n in ("x", "x y z")]
        (tmp_path / "results").mkdir(exist_ok=True)
        (tmp_path / "results" / f"{name}.json").write_text(json.dumps(facts))
    fill_pages.main(fill_pages.Settings(page=str(page)))
    text = page.read_text()
    row = "| x is y (§1, Table 2) | m: x, a − x, b, above 0.1: +0.1 [+0.0, +0.2] |"
    head = f"{claim_tables.IN_PART}\n\n| claim | here | verdict |\n| --- | --- | --- |\n"
    assert f"{head}{row} 2 reproduced, 2 contradicted |\n" in text
    assert "Not tested: 1 claim. [All tests]" in text
    assert "| [x-b](details.md#x-b) | 1,200 | 300 | m |\n" in text, "no column that no study fills"
    assert "| a | .250 | .250 | .500 |\n| b | .5 | .5 |  |\n\n" in text, "without what one study has"
    assert "| n |\n| --- |\n| x |\n\nn: names.\n" in text, "without a column, what it means, and a row"
    details = (tmp_path / "details.md").read_text()
    assert "| never | §2 | not tested | years |" in details
    assert details.count(".venv/bin/python experiments/x.py") == 2
    assert details.count("| x is y | §1, Table 2 |") == 2
    file = tmp_path / "results/x-b.json"
    file.write_text(file.read_text().replace("contradicted: z", "reproduced"))
    row = "| x is y (§1, Table 2) | m: x, a − b: +0.1 [+0.0, +0.2] |"
    head = f"{claim_tables.ALL_REPRODUCED}\n\n| claim | here |\n| --- | --- |\n"
    assert f"{head}{row}\n" in filled(Page(page))
