"""Measures against hand-computed values, intervals against coverage, tests against enumeration."""

import csv
import io
import re
from itertools import product
from math import log2

import ir_measures
import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from paradigms.data import read_run, write_run
from paradigms.evaluate import (
    MEASURES,
    PerQuery,
    candidates,
    compare,
    csv_table,
    holm,
    markdown_table,
    paired_test,
    per_query,
    result_table,
    rich_matrix,
    rich_table,
    seeds_interval,
    undecided,
)

JUDGEMENTS = {"graded": {"a": 2, "b": 1, "c": 0}, "late": {"d": 1}, "absent": {"a": 1}, "nothing": {"a": 0}}
RUN = {
    "graded": {"x": 9.0, "b": 8.0, "y": 7.0, "a": 6.0},
    "late": {**{f"n{n:02}": 100.0 - n for n in range(10)}, "d": 1.0},
    "unjudged": {"a": 1.0},
}


def test_measures_equal_hand_computed_values():
    results = per_query(RUN, JUDGEMENTS)
    assert results.queries == ["graded", "late", "absent"]
    ideal = 2 / log2(2) + 1 / log2(3)
    expected = {
        "nDCG@10": [(1 / log2(3) + 2 / log2(5)) / ideal, 0, 0],
        "RR@10": [1 / 2, 0, 0],
        "R@1": [0, 0, 0],
        "R@10": [1, 0, 0],
        "R@100": [1, 1, 0],
    }
    assert list(results.values) == list(MEASURES)
    for measure, values in expected.items():
        assert results.values[measure].tolist() == pytest.approx(values), measure
    assert (results.missing, results.without_relevant) == (1, 1)
    assert results.mean("R@100") == pytest.approx(2 / 3)


PRINTED = (*MEASURES, "nDCG@5", "RR", "AP", "P@3", "Judged@10", *(f"Success@{k}" for k in (1, 5, 20, 100)))


def test_any_tool_measures_the_same_of_a_written_run(tmp_path):
    """Runs with ties, also in single precision: tools break them by rising or falling id, or not at all."""
    random = np.random.default_rng(0)
    documents = [f"d{n:02}" for n in range(40)]
    run, judgements = {}, {}
    for query in (f"q{n}" for n in range(30)):
        scores = random.integers(-1, 2, 40) + random.integers(0, 2, 40) * 1e-12
        run[query] = dict(zip(random.permutation(documents).tolist(), scores.tolist(), strict=True))
        grades = random.integers(0, 3, 8).tolist()
        judgements[query] = dict(zip(random.permutation(documents)[:8].tolist(), grades, strict=True))
    file = tmp_path / "system.run"
    write_run(file, run)
    results = per_query(run, judgements, PRINTED, every=True)
    again = per_query(read_run(file), judgements, PRINTED, every=True)
    for measure in PRINTED:
        tool = ir_measures.parse_measure(measure)
        rows = tool.iter_calc(judgements, list(ir_measures.read_trec_run(str(file))))
        values = {row.query_id: row.value for row in rows}
        assert results.values[measure].tolist() == pytest.approx([values[query] for query in results.queries])
        assert (again.values[measure] == results.values[measure]).all()


NUMBERED = ["nDCG", "R", "P", "AP", "Success", "RR", "ERR", "Judged"]


@pytest.mark.parametrize(
    "wrong", [*(f"{m}@{k}" for m in NUMBERED for k in (0, 10.5)), "P(rel=0)@5", "RBP(p=2)"]
)
def test_a_number_that_no_measure_takes_is_named(wrong):
    """Compiled code ends the process at a cutoff of 0."""
    with pytest.raises(ValueError, match=rf"{re.escape(repr(wrong))} is not a measure of ir_measures \(\w+"):
        per_query(RUN, JUDGEMENTS, ["nDCG@10", wrong])


def test_bad_input_is_named():
    for id in ("a", ""):
        with pytest.raises(ValueError, match=f"document '{id}' for query 'q' is NaN"):
            per_query({"q": {id: float("nan")}}, {"q": {id: 1}})
    with pytest.raises(ValueError, match="none of the 1 judged queries"):
        per_query({}, {"q": {"a": 0}})
    with pytest.raises(ValueError, match="NaN"):
        seeds_interval(np.array([[0.0, np.nan]]))


def test_queries_without_results_and_negative_grades_are_measured():
    judgements = {"q": {"a": 1, "b": -1, "c": -2}, "p": {"a": 1}}
    run = {"q": {"c": 3.0, "b": 2.0, "a": 1.0}, "p": {}}
    results = per_query(run, judgements, (*MEASURES, "Judged@10"))
    assert results.missing == 0
    assert results.values["Judged@10"].tolist() == [1, 0]
    assert results.values["RR@10"].tolist() == pytest.approx([1 / 3, 0])
    assert results.values["nDCG@10"].tolist() == pytest.approx([1 / 2, 0])


def test_bootstrap_agrees_with_scipy():
    values = np.random.default_rng(0).beta(0.3, 0.5, size=150)
    ours = seeds_interval(values[None], resamples=20_000)
    resampling = {"n_resamples": 20_000, "method": "percentile", "rng": np.random.default_rng(1)}
    theirs = stats.bootstrap((values,), np.mean, **resampling)
    assert ours.mean == pytest.approx(values.mean())
    assert (ours.low, ours.high) == pytest.approx(tuple(theirs.confidence_interval), abs=0.002)


def test_permutation_test_enumerates_small_cases():
    a = np.array([0.9, 0.4, 0.8, 0.5, 0.7, 0.2])
    b = np.array([0.1, 0.5, 0.3, 0.5, 0.2, 0.1])
    difference = a - b
    sums = [abs(np.dot(signs, difference)) for signs in product([-1, 1], repeat=6)]
    exact = np.mean(np.array(sums) >= abs(difference.sum()) - 1e-12)
    assert paired_test(a, b) == pytest.approx(exact)
    assert paired_test(b, a) == pytest.approx(exact)


def test_holm_on_a_hand_example():
    # sorted .005 .01 .03 .04, times 4 3 2 1 = .02 .03 .06 .04, running maximum .02 .03 .06 .06
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([]) == []
    with pytest.raises(ValueError, match="p-values"):
        holm([0.5, float("nan")])


def systems(queries=120, seed=0):
    generator = np.random.default_rng(seed)
    base = generator.random(queries)
    built = {}
    for name, shift in {"BM25": 0.0, "same": 0.0, "good": 0.15, "bad": -0.15}.items():
        drawn = [generator.normal(0, 0.1, queries) for _ in range(2)]
        values = [np.clip(base + shift + noise, 0, 1) for noise in drawn]
        ids = [f"q{x}" for x in range(queries)]
        built[name] = PerQuery(ids, dict(zip(("nDCG@10", "R@10"), values, strict=True)))
    return built


def test_compare_marks_better_and_worse():
    rows = {(row.system, row.measure): row for row in compare(systems(), "BM25")}
    assert {system: row.mark for (system, _), row in rows.items()} == {"same": "", "good": "†", "bad": "‡"}
    good = rows["good", "nDCG@10"]
    assert good.low < good.difference < good.high
    assert good.p_adjusted == pytest.approx(3 * good.p)
    assert len(compare(systems(), "BM25", ["nDCG@10", "R@10"])) == 6
    with pytest.raises(ValueError, match="'BM26' is not among the systems: BM25, same"):
        compare(systems(), "BM26")
    with pytest.raises(ValueError, match="'other' and 'BM25' were not measured on the same queries"):
        compare({**systems(), "other": systems(queries=119)["good"]}, "BM25")


def test_all_pairs_are_one_family_and_a_triangle():
    rows = compare(systems(), None)
    marks = {(row.system, row.baseline): row.mark for row in rows}
    assert (marks["same", "BM25"], marks["good", "same"], marks["bad", "good"]) == ("", "†", "‡")
    assert max(row.p_adjusted / row.p for row in rows) == pytest.approx(6)
    table = result_table("all", systems(), baseline="BM25")
    assert [(system, len(cells)) for system, cells in table.matrix] == [("same", 1), ("good", 2), ("bad", 3)]
    assert table.matrix[1][1][0].endswith("†")
    assert "6 comparisons" in table.matrix_note
    assert f"| bad | {' | '.join(table.matrix[2][1])} |" in markdown_table(table)
    assert table.matrix[2][1][2] in printed(rich_matrix(table))


def printed(table):
    terminal = io.StringIO()
    Console(width=120, file=terminal).print(table)
    return terminal.getvalue()


def test_tables_show_the_same_rows_everywhere():
    table = result_table("Re|rank", {**systems(), "od|d *one*": systems()["good"]}, baseline="BM25")
    cell = table.rows["good"]["nDCG@10"]
    assert cell.mark == "†"
    markdown = markdown_table(table)
    assert f"| good | **{cell.mean:.3f}**† [{cell.low:.3f}, {cell.high:.3f}] |" in markdown
    assert r"od\|d \*one\*" in markdown
    assert "Holm's correction for 4 comparisons" in markdown
    lines = list(csv.DictReader(io.StringIO(csv_table(table))))
    assert len(lines) == 5 * 2
    assert float(lines[4]["mean"]) == cell.mean
    assert float(lines[4]["p_adjusted"]) < 0.05
    assert lines[5]["p"] == ""
    shown = printed(rich_table(table))
    assert f"{cell.mean:.3f}†" in shown
    assert f"{cell.low:.3f}–{cell.high:.3f}".replace("0.", ".") in shown
    assert "Re|rank" in shown


def test_a_trained_system_stands_beside_itself_untrained():
    """good was as bad before training, bad as good, same the same; each has its mean and an arrow."""
    after = systems()
    untrained = {"good": after["same"], "bad": after["good"], "same": after["same"]}
    table = result_table("t", after, baseline="BM25", untrained=untrained)
    assert {row.system: row.mark for row in table.training} == {"good": "↗", "bad": "↘", "same": "→"}
    alone = paired_test(after["good"].values["nDCG@10"], after["same"].values["nDCG@10"])
    assert table.training[0].p == alone
    assert max(row.p_adjusted / row.p for row in table.training) == pytest.approx(3)  # a family of its own
    cell, before = table.rows["good"]["nDCG@10"], after["same"].mean("nDCG@10")
    assert cell.before == f"{before:.3f} ↗ "
    assert table.rows["good"]["R@10"].before == table.rows["BM25"]["nDCG@10"].before == ""
    assert f"| good | {before:.3f} ↗ **{cell.mean:.3f}**†" in markdown_table(table)
    assert f".{before:.3f} ↗ {cell.mean:.3f}†".replace(".0.", ".") in printed(rich_table(table))
    lines = list(csv.DictReader(io.StringIO(csv_table(table))))
    assert (lines[0]["untrained"], float(lines[4]["untrained"])) == ("", pytest.approx(before))
    means = [after[name].mean("nDCG@10") - row.mean("nDCG@10") for name, row in untrained.items()]
    mean, low, high = map(float, re.findall(r"[+-]\.\d+", table.effect))
    assert mean == pytest.approx(sum(means) / 3, abs=0.001)
    assert low < mean < high
    assert table.note.endswith(f"of all 3 trained systems by {table.effect}.")
    assert result_table("t", after).effect == ""
    with pytest.raises(ValueError, match="not measured on the same queries"):
        result_table("t", after, untrained={"good": systems(queries=119)["good"]})


def test_table_without_baseline_and_with_gaps():
    results = per_query(RUN, JUDGEMENTS)
    table = result_table("retrieve", {"one": results})
    assert table.comparisons == []
    assert "better" not in table.note
    assert "Left out: 1 judged queries without a relevant document." in table.note
    assert "one returned nothing for 1 queries, scored 0." in table.note
    with pytest.raises(ValueError, match="no system"):
        result_table("retrieve", {})


def test_candidates_are_what_was_retrieved_unless_the_relevant_ones_are_asked_for():
    run = {"a": {"x": 3.0, "y": 2.0, "z": 1.0}, "b": {"x": 1.0}, "c": {"y": 2.0, "x": 1.0}, "none": {}}
    judged = {"a": {"z": 1, "y": 1}, "b": {"w": 1, "x": 0}, "c": {"y": 1}, "none": {"x": 1}}
    judged["empty"] = {"x": 0}
    retrieved = candidates(run, 2)
    pools = {query: list(pool) for query, pool in retrieved.items()}
    assert pools == {"a": ["x", "y"], "b": ["x"], "c": ["y", "x"], "none": []}
    assert undecided(retrieved, judged) == 2, "b's one candidate is not relevant, none has no candidate"
    pool = candidates(run, 2, with_relevant=judged)
    assert list(pool["a"]) == ["x", "y", "z"]
    assert list(pool["b"]) == ["x", "w"]
    assert undecided(pool, judged) == 1, "the pool of none is its relevant document"
