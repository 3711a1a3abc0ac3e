"""Claims as rows of printed.yaml: each can turn and stands on its page; which models training moved."""

import re
from dataclasses import replace
from inspect import unwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import judge as judge_script
import numpy as np
import pytest
from studies import claims, pages
from studies.claim_tables import claim_of, open_rows
from studies.claims import GROUP, PAPERS, Study, listed, printed, sides_of, terms_of
from studies.gains import DEV, UNTRAINED, training_rows, unmoved
from studies.model_runs import some_queries
from studies.page_blocks import Page
from studies.pages import VALUES, publish

from paradigms.data import Split
from paradigms.data.assembly import assemble
from paradigms.evaluate import seeds_interval
from paradigms.evaluate.claims import CONTRADICTED, NO, REPRODUCED, UNDECIDED, YES, judge

QUERIES = 200


FAMILIES = [(paper, family) for paper in PAPERS for family in printed(paper)["claims"]]
ROWS = [(paper, family, row) for paper, family in FAMILIES for row in printed(paper)["claims"][family]]


def study_for(row: dict[str, Any], excess: float) -> Study:
    """Plant values, with each group's name as its member, so that contrasts exceed the bar by `excess`."""
    values: dict[str, dict[str, np.ndarray]] = {}
    noise = np.random.default_rng(0).normal(0, 1e-4, (2, QUERIES))
    groups = {}
    for text in (*listed(row.get("measure", [])), *listed(row["contrast"])):
        groups |= {name: [f"a {name}"] for name in GROUP.findall(text)}
    if "measure" not in row:  # a group of whole contrasts
        groups = {name: ["measure: one − other"] for name in groups}
    groups |= {name: [f"a {name}"] for name in GROUP.findall(row.get("apart", ""))}
    filled = Study({}, groups).filled
    for measure in listed(row.get("measure", "")):
        for contrast in listed(row["contrast"]):
            (text,) = filled(f"{measure}: {contrast}" if measure else contrast)
            measured, _, contrast_of = text.partition(": ")
            terms = terms_of(contrast_of)
            bar = row.get("least", 0.0)
            each = (bar + excess) / sum(abs(weight) for weight, _ in terms)
            sides = values.setdefault(measured, {})
            sides |= {side: np.sign(weight) * each + noise for weight, side in terms}
    for text in filled(row["apart"]) if "apart" in row else []:
        measured, (one, other) = sides_of(text)
        values.setdefault(measured, {}).update({one: noise + 1, other: noise})
    return Study(values, groups, collection=" ".join(row.get("only", [])))


@pytest.mark.parametrize(
    ("paper", "row"), [(paper, row) for paper, _, row in ROWS if "contrast" in row and "within" not in row]
)
def test_every_contrast_can_turn(paper, row):
    """Each contrast of a row by itself: several may share a side."""
    for contrast in listed(row["contrast"]):
        one = row | {"contrast": contrast}
        for excess, words in ((0.3, {REPRODUCED, YES}), (-0.3, {CONTRADICTED, NO})):
            ((_, hits),) = study_for(one, excess).claims(paper, [one])
            assert hits
            assert {verdict.word for verdict in judge(hits)} <= words


@pytest.mark.parametrize("paper", PAPERS)
def test_rows_say_what_they_test(paper):
    keys = {"place", "claim", "control", "contrast", "measure", "least", "within", "limits"}
    keys |= {"about", "only", "changed", "apart", "printed", "counted", "takes", "verdict", "by"}
    for family, rows in printed(paper)["claims"].items():
        for row in rows:
            assert row.get("changed", "measure") == "measure", row
            assert row.keys() <= keys, family
            assert ("control" in row) != ({"place", "claim"} <= row.keys()), row
            assert {"contrast", "counted", "takes", "verdict"} & row.keys(), row
            if row.get("least", 0) < 0 or "within" in row:  # a loss or equality: compared with what?
                for contrast in listed(row["contrast"]):
                    assert " − " in contrast or "gain" in contrast or contrast.startswith("− "), row


@pytest.mark.parametrize("paper", PAPERS)
def test_every_claim_of_a_paper_is_on_its_pages(paper):
    pages = sorted((Path(claims.__file__).parents[1] / "papers" / paper).glob("*.md"))
    text = " ".join(page.read_text(encoding="utf-8") for page in pages)
    told = re.sub(r"\s+", " ", text).replace("\\|", "|")
    rows = [row for of_family in printed(paper)["claims"].values() for row in of_family]
    for row in rows:
        assert row.get("claim", "").strip() in told, row["claim"]
    page = Page(pages[0].with_name("README.md"))
    judged = {claim_of(row).removeprefix("Control: ") for row in page.judged(page.detailed)}
    assert judged <= {row.get("claim", row.get("control")) for row in rows}, "a row of an earlier file"


@pytest.mark.parametrize("contrast", ["a - b", "a − 0.5 · b", "a − 2 * b", "a − "])
def test_a_contrast_that_cannot_be_read_is_refused_with_its_row(contrast):
    row = {"place": "§1", "claim": "c", "measure": "m", "contrast": contrast}
    with pytest.raises(ValueError, match=r"printed.yaml, §1, 'c': .* is no side"):
        Study({}).claims("lee2023", [row])
    with pytest.raises(ValueError, match=r"printed.yaml, §1, 'c': no group {b}; there are: c"):
        Study({}, {"c": ["d"]}).claims("lee2023", [row | {"contrast": "a − {b}"}])
    measured = Study({"m": {"a": level(0.1), "b": level(0.2)}})
    with pytest.raises(ValueError, match=r"printed.yaml, §1, 'c': .* is no side"):
        measured.claims("lee2023", [row | {"contrast": "a − b", "apart": f"m: {contrast}"}])


def test_limits_follow_from_the_factors():
    values = {"m": {"a": level(0.1), "b": level(0.2), "c": level(0.3)}}
    contrasts = ["a − b", "a + b − 2 · c", "− a", "1/2 · a"]
    row = {"place": "§1", "claim": "c", "measure": "m", "contrast": contrasts}
    ((_, hits),) = Study(values).claims("lee2023", [row])
    assert [claim.limits for claim in hits] == [(-1, 1), (-2, 2), (-1, 0), (0, 0.5)]
    ((_, hits),) = Study(values).claims("lee2023", [row | {"limits": [-3, 3]}])
    assert hits[0].limits == (-3, 3)


def level(value: float) -> np.ndarray:
    return np.random.default_rng(1).normal(value, 0.001, (2, 400))


def seeds(gain: float) -> list[dict[str, Any]]:
    """Simulate two seeds of a model whose 60 dev queries gain `gain` on average, with noise of .02."""
    random = np.random.default_rng(0)
    before = random.random((2, 60))
    after = before + gain + 0.02 * random.normal(size=before.shape)
    sides = zip(before.tolist(), after.tolist(), strict=True)
    return [{"kept step": 30, DEV: {"untrained": b, "trained": a}} for b, a in sides]


UP, STILL = seeds(0.05), seeds(0.0)


def test_a_row_is_tested_for_each_member_of_its_groups():
    values = {"nDCG@10": {"A": level(0.5), "B": level(0.3), "C": level(0.7)}}
    row = {"place": "§1", "claim": "c", "measure": "nDCG@10", "contrast": "A − {other}", "least": 0.01}
    study = Study(values, {"other": ["B", "C", "D"]}, printed={"nDCG@10": {"A": [0.6, 0.2], "B": [0.5]}})
    ((_, hits),) = study.claims("lee2023", [row])
    assert [claim.quantity for claim in hits] == ["nDCG@10: A − B", "nDCG@10: A − C"]
    assert [claim.printed for claim in hits] == ["+0.100", ""]
    assert [verdict.word for verdict in judge(hits)] == [REPRODUCED, CONTRADICTED]
    assert not study.claims("lee2023", [row | {"only": ["arguana"]}])[0][1]


def test_models_that_training_did_not_move_leave_a_claim_open():
    values = {"m": {"A, one": level(0.5), "A, two": level(0.3), "AB": level(0.1)}}
    still = Study(values, trainings={"A": STILL, "AB": UP})
    row = {"place": "§1", "claim": "c", "measure": "m", "contrast": "A, one − A, two"}

    def word(study: Study, **changes: Any) -> tuple[str, str]:
        ((_, hits),) = study.claims("lee2023", [row | changes])
        (verdict,) = judge(hits)
        return verdict.word, verdict.reason

    assert word(still) == (UNDECIDED, "training did not move A on dev queries")
    assert word(still, about="readout")[0] == REPRODUCED
    for before, verdict in ((0.4, REPRODUCED), (0.5, UNDECIDED)):  # A, one changed the measure, or did not
        untrained = {f"{UNTRAINED}, one": level(before)[:1], f"{UNTRAINED}, two": level(0.4)[:1]}
        by_measure = Study({"m": values["m"] | untrained}, trainings={"A": STILL})
        assert word(by_measure, changed="measure")[0] == verdict
        assert word(by_measure)[0] == UNDECIDED
    assert word(still, changed="measure")[0] == UNDECIDED, "no untrained model was measured"
    assert word(Study(values, trainings={"A": UP, "AB": STILL}))[0] == REPRODUCED, "AB is no A"
    parts = Study(values, trainings={"model": STILL}, parts={"A": ["model"]})
    assert word(parts)[1] == "training did not move model on dev queries"
    poor = Study(values, undecided=lambda sides: {"unlearned": sides[-1]})
    assert word(poor)[1] == "A, two has not learned enough"
    assert word(poor, about="anything")[0] == REPRODUCED
    near = level(0.4) + 1e-3 * (-1) ** np.arange(level(0.4).shape[-1])
    for other, verdict in ((near, UNDECIDED), (level(0.3), REPRODUCED)):
        trained = Study({"m": values["m"], "n": {"A": level(0.4), "B": other}}, trainings={"A": UP})
        assert word(trained, apart="n: A − B")[0] == verdict
    trained = Study({"m": values["m"], "n": {"A": level(0.4), "B": near}}, trainings={"A": UP})
    reason = word(trained, apart="n: A − B")[1]
    assert reason == "n: A − B is not significant: the trained models may be alike"
    assert word(trained, apart="n: A − C")[1] == "the run did not measure n: A − C"


def test_values_are_judged_again(monkeypatch, tmp_path):
    """By the rows of printed.yaml as they are now, with what left claims open then."""
    place = {"place": "§1", "claim": "c"}
    rows = [
        place | {"measure": "m/n", "contrast": "{any} − B", "least": 0.01},
        place | {"measure": "m/n", "contrast": "B − A", "about": "readout"},
        place | {"measure": "m/n", "contrast": "C − B", "changed": "measure"},
        place | {"measure": "m/n", "contrast": "B − A", "apart": "m/n: E − A"},
        place | {"counted": "bytes"},
        place | {"takes": "more"},
        {"control": "asked", "measure": "m/n", "contrast": "2 · A − C"},
    ]
    monkeypatch.setattr(claims, "printed", lambda paper: {"claims": {"f": rows}})
    means = {"A": 1 / 3, "B": 0.3, "C": 0.9, "D": 0.5, "E": 0.7, UNTRAINED: 0.4}
    study = Study(
        {"m/n": {name: level(at) for name, at in means.items()}},
        {"any": ["A", "C"]},
        {"A": UP, "B": UP, "C": STILL},
        lambda sides: {"unlearned": "C"} if sides == ["C", "B"] else {},
        {"m/n": {"A": [0.5, 0.6], "B": [0.4, 0.4]}},
        counts={"bytes": {"verdict": REPRODUCED}},
        clusters=[f"{n // 2}" for n in range(400)],
        queries=[f"q{n}" for n in range(400)],
    )
    section = study.section("lee2023", "f")
    folder = tmp_path / "study"
    flags = SimpleNamespace(output=str(folder), collection="x")
    monkeypatch.setattr(pages, "asdict", vars)
    publish(flags, "Study", "Summary.", {"claims": section})
    with np.load(folder / VALUES) as kept:
        assert "claims/m/n: D" not in kept.files, "no claim is about it"
        np.testing.assert_array_equal(kept["claims/m/n: A"], level(1 / 3).astype(np.float32))
    assert judge_script.judged_again(folder / VALUES, None) == {"claims": section.rows}
    results = judge_script.Settings(results=[str(folder)])
    assert judge_script.main(results) == 0
    rows[0]["least"] = 0.05
    assert judge_script.main(results) == 1
    assert judge_script.main(replace(results, write=True)) == 1
    assert judge_script.main(results) == 0
    study_file = folder / pages.STUDY
    whole = study_file.read_text()
    study_file.write_text(whole.replace('"claims"', '"others"'))
    with pytest.raises(SystemExit, match=r"values.npz has a section 'claims', which the study lacks"):
        judge_script.main(results)
    study_file.write_text(whole)
    (folder / VALUES).unlink()
    with pytest.raises(SystemExit, match=r"its verdicts rest on values.npz, which is missing"):
        judge_script.main(results)


def test_near_copies_of_training_documents_are_left_out(monkeypatch):
    words = "a small library that reads the files of an old game"
    documents = [("train", "", words), ("copy", "", f"{words} again"), ("other", "", "tools for maps")]
    judged = {"train": [("t", "train", 1)], "test": [("q0", "copy", 1), ("q1", "other", 1)]}
    queries = [(query, query) for query in ("t", "q0", "q1")]
    copies = judge_script.near_copies(assemble("texts", documents, queries, judged))
    assert copies == {"q0": True, "q1": False}

    row = {"place": "§1", "claim": "c", "measure": "m", "contrast": "A − B"}
    monkeypatch.setattr(claims, "printed", lambda paper: {"claims": {"f": [row]}})
    ids = [f"q{n}" for n in range(400)]
    better = level(0.3) + np.where(np.arange(400) < 200, 0.2, -0.05)
    study = Study({"m": {"A": better, "B": level(0.3)}}, queries=ids, clusters=ids)
    values = study.section("lee2023", "f").values
    full, rest = (claims.again(values, omitted)[0] for omitted in ([], ids[:200]))
    assert [row["verdict"] for row in (full, rest)] == [REPRODUCED, CONTRADICTED]


def test_committed_values_give_the_verdicts_of_the_pages(capsys, monkeypatch):
    """With as many resamples as outside of the tests."""
    monkeypatch.setattr("paradigms.evaluate.significance.RESAMPLES", 9_999)
    monkeypatch.setitem(unwrap(seeds_interval).__kwdefaults__, "resamples", 10_000)
    assert judge_script.main(judge_script.Settings()) == 0
    assert re.search(r"[1-9]\d* verdicts of [1-9]\d* studies judged again, 0 differ", capsys.readouterr().out)


def test_a_model_is_moved_where_its_dev_queries_gain_significantly():
    models = {"up": UP, "still": STILL, "down": seeds(-0.05)}
    rows = {row["model"]: row for row in training_rows(models)}
    assert {name: row["moved"] for name, row in rows.items()} == {"up": "yes", "still": "no", "down": "no"}
    assert float(rows["down"]["p"]) < 0.05
    assert rows["up"]["gain"].startswith("+0.049 [+0.04")
    before, after = map(float, rows["up"]["untrained → trained"].split(" → "))
    assert abs(after - before - 0.05) < 0.01


def test_a_claim_names_the_first_model_that_training_did_not_move():
    assert unmoved({"up": UP}) == ""
    assert unmoved({"up": UP, "still": STILL}) == "still"
    assert unmoved({"mine": [{"kept step": None, DEV: {}}]}) == ""  # a checkpoint
    assert unmoved({"blind": [{"kept step": 30, DEV: {}}]}) == "blind, which no training measured"


def test_the_first_queries_of_a_draw_come_from_the_whole_split():
    names = [f"q{n}" for n in range(400)]  # in the order of their articles
    split = Split(dict.fromkeys(names, "text"), {name: {"d": 1} for name in names})
    full = list(some_queries(split, 0).queries)
    assert sorted(full) == sorted(names)
    assert list(some_queries(split, 40).queries) == full[:40]
    assert len({names.index(name) // 40 for name in full[:40]}) > 7
    assert not some_queries(Split({}, {}), 3).queries


def test_a_contrast_that_a_run_did_not_judge_is_judged_by_its_sides(monkeypatch):
    row = {"place": "§1", "claim": "c", "measure": "m", "contrast": ["A − B", "C − B"]}
    monkeypatch.setattr(claims, "printed", lambda paper: {"claims": {"f": [row]}})
    values = {name: level(at) for name, at in {"A": 0.5, "B": 0.3, "C": 0.9}.items()}
    study = Study({"m": values}, undecided=lambda sides: {"unlearned": "C"} if "C" in sides else {})
    kept = study.section("lee2023", "f").values
    row["contrast"] = ["B − A", "A − C", "1/2 · B"]
    words = {row["quantity"]: row["verdict"] for row in claims.again(kept)}
    assert words == {
        "m: B − A": CONTRADICTED,
        "m: A − C": f"{UNDECIDED}: the run did not judge this contrast",
        "m: 1/2 · B": REPRODUCED,
    }


def test_open_claims_are_listed_with_what_they_lack():
    test = {"claim": "c", "place": "§1", "quantity": "m: a − b", "measured": "+0.1", "sample": "40 queries"}
    open_test = test | {"verdict": f"{UNDECIDED}: too few"}
    more = open_test | {"sample": "400 queries", "verdict": f"{UNDECIDED}: a mean of this size: more"}
    decided = {"claim": "d", "verdict": REPRODUCED}
    rows = [open_test, more, open_test | {"claim": "d"}, test | decided, open_test | {"claim": "Control: e"}]
    (listed_row,) = open_rows(
        [*rows, test | {"claim": "f", "measured": "–", "verdict": "not tested: it takes"}]
    )
    assert (listed_row["claim"], listed_row["sample"]) == ("c", "400 queries")
    assert listed_row["open because"] == "a mean of this size: more"
