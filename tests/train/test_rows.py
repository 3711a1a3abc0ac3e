"""Rows of a user's own pairs, triplets and scored candidates become a corpus and training examples."""

import csv
import gzip
import io
import json
import math

import datasets
import pytest

from paradigms.train.rows import examples_from_rows

SCORED = {"anchor": "cats", "negative_1": "a dog", "negative_2": "a bank"}
ROWS = [
    SCORED | {"positive": "a cat", "scores": [3, 1, 0]},
    SCORED | {"positive": "a kitten", "negative_1": "a bank", "negative_2": "a dog", "scores": [2, 0, 1]},
]


@pytest.mark.parametrize("make", [list, datasets.Dataset.from_list])
def test_rows_become_examples(make):
    corpus, (first, second) = examples_from_rows(make(ROWS))
    assert list(corpus) == ["a cat", "a dog", "a bank", "a kitten"]
    assert (first.query, first.positive, first.negatives) == ("cats", 0, (1, 2))
    assert first.teacher == (3.0, 1.0, 0.0)
    assert (second.positive, second.negatives) == (3, (2, 1))
    assert first.relevant == second.relevant == (0, 3)  # a kitten is no negative of the other row
    corpus, (pair,) = examples_from_rows([{"query": "q", "document": "d"}])
    assert (pair.negatives, pair.teacher, len(corpus)) == ((), (), 1)


PAIRS = [
    {"query": "renew it", "positive": 'Run "renew", twice.', "negative": "Restart\n\nthe printer."},
    {"query": "restore a file", "positive": "Mount the snapshot.", "negative": ""},
]


def as_json(_):
    return "".join(json.dumps(row) + "\n\n" for row in PAIRS)


def as_csv(delimiter):
    text = io.StringIO()
    writer = csv.DictWriter(text, list(PAIRS[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(PAIRS)
    return text.getvalue()


@pytest.mark.parametrize(
    ("write", "delimiter"), [(as_json, ""), (as_csv, ","), (as_csv, "\t"), (as_csv, ";")]
)
@pytest.mark.parametrize("source", ["path", "name", "packed", "file", "bytes", "lines"])
def test_rows_are_read_from_lines(tmp_path, write, delimiter, source):
    text = write(delimiter)
    (tmp_path / "rows").write_bytes(b"\xef\xbb\xbf" + text.encode())
    (tmp_path / "rows.gz").write_bytes(gzip.compress(text.encode()))
    with (
        (tmp_path / "rows").open(newline="", encoding="utf-8") as file,
        (tmp_path / "rows").open("rb") as raw,
    ):
        rows = {"path": tmp_path / "rows", "name": str(tmp_path / "rows"), "packed": tmp_path / "rows.gz"}
        rows |= {"file": file, "bytes": raw, "lines": text.splitlines(keepends=True)}
        corpus, (first, second) = examples_from_rows(rows[source])
    assert list(corpus) == ['Run "renew", twice.', "Restart\n\nthe printer.", "Mount the snapshot."]
    assert (first.query, first.positive, first.negatives) == ("renew it", 0, (1,))
    assert (second.query, second.positive, second.negatives) == ("restore a file", 2, ())


@pytest.mark.parametrize("before", ["", "\n", "\ufeff \r\n\n"])
@pytest.mark.parametrize("write", [as_json, as_csv, lambda _: json.dumps(PAIRS, indent=1)])
def test_blank_lines_may_come_first_and_rows_may_be_an_array(write, before):
    corpus, (first, _) = examples_from_rows((before + write(",")).splitlines(keepends=True))
    assert (len(corpus), first.query) == (3, "renew it")


@pytest.mark.parametrize("empty", [None, "", " \u200b", math.nan])
def test_an_empty_cell_is_no_negative(empty):
    row = {"query": "q", "positive": "p", "negative": empty, "negatives": ["n", empty], "scores": empty}
    corpus, (example,) = examples_from_rows([row])
    assert (list(corpus), example.negatives, example.teacher) == (["p", "n"], (1,), ())


def test_a_long_cell_is_read():
    long = "mill " * 40_000
    corpus, _ = examples_from_rows(["query,positive\n", f"q,{long}\n"])
    assert list(corpus) == [long]


PAIR = {"query": "x", "document": "d"}
WRONG = [
    ({"q": "x", "document": "d"}, "row 3 has none of query, anchor, question; it has q, document"),
    (PAIR | {"document": None}, "document of row 3 is None"),
    (PAIR | {"query": "cats", "negatives": ["a cat"]}, "row 3: a negative is relevant"),
    (PAIR | {"scores": [1, 2]}, "row 3 has 2 scores for 1 documents"),
    (PAIR | {"scores": [math.nan]}, "row 3 has a score that"),
    (PAIR | {"scores": "high"}, "row 3: scores must be a list"),
    (PAIR | {"negative_ids": ["d1"]}, "row 3: 'negative_ids' is"),
    (PAIR | {"negative": 7}, "a negative of row 3 is 7"),
    (PAIR | {"document": " "}, "document of row 3 is blank"),
    (["x", "d"], r"row 3 is \['x', 'd'\]: a dict is needed, or a line"),
]


@pytest.mark.parametrize(("row", "message"), WRONG)
def test_wrong_rows_are_named(row, message):
    error = TypeError if isinstance(row, list) or message.endswith(("is None", "is 7")) else ValueError
    with pytest.raises(error, match=message):
        examples_from_rows([*ROWS, row])


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (['{"query": "q", "document": "d"}\n', "{\n"], "row 2: bad JSON"),
        (["query,document\n", "q,d,e\n"], "row 1 has more cells than the header"),
        (["query,document\n", "q\n"], "document of row 1 is None"),
        (["\n"], "the header has none of query"),
        (['[{"query": "q"\n'], "rows: bad JSON"),
        (['[["q", "d"]]\n'], r"row 1 is \['q', 'd'\]: a dict is needed"),
    ],
)
def test_wrong_lines_are_named(lines, message):
    with pytest.raises((ValueError, TypeError), match=message):
        examples_from_rows(lines)
