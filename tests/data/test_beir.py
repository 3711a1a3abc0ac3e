"""Collections from folders and TREC files: what is read, what is refused and what is counted."""

import gzip
import json
import math
import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paradigms.data import (
    Corpus,
    Split,
    load_collection,
    read_judgements,
    read_run,
    write_folder,
    write_judgements,
    write_run,
)
from paradigms.data.collection import best_first
from paradigms.data.lines import Lines

DOCUMENTS = [
    {"_id": "a", "title": "Title", "text": "body of é ☃"},
    {"_id": "b", "text": "no title", "metadata": {"x": 1}},
    {"_id": "c", "title": "", "text": "empty title"},
    {"_id": "4", "title": None, "text": "line\nbreak"},
]
QUERIES = [{"_id": "q1", "text": "one"}, {"_id": "q2", "text": "two"}, {"_id": "q3", "text": "three"}]
QRELS = {"test": "q2\ta\t2\nq1\tb\t1\nq1\tc\t0\n", "train": "q3\t4\t1\n"}
TEXTS = ["Title body of é ☃", "no title", "empty title", "line\nbreak"]
TITLES = ["Title", "", "", ""]


def beir(
    folder: Path,
    documents: Sequence[dict | str] = DOCUMENTS,
    queries: Sequence[dict | str] = QUERIES,
    qrels: dict[str, str] = QRELS,
    *,
    packed: bool = False,
    header: str = "query-id\tcorpus-id\tscore\n",
) -> Path:
    (folder / "qrels").mkdir(parents=True)
    for name, rows in (("corpus", documents), ("queries", queries)):
        data = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows).encode()
        path = folder / (f"{name}.jsonl.gz" if packed else f"{name}.jsonl")
        path.write_bytes(gzip.compress(data) if packed else data)
    for split, lines in qrels.items():
        (folder / "qrels" / f"{split}.tsv").write_text(header + lines, encoding="utf-8")
    return folder


@pytest.mark.parametrize("packed", [False, True])
def test_a_folder_in_beir_layout(tmp_path, packed):
    header = "" if packed else "query-id\tcorpus-id\tscore\n"  # all lines are read where there is none
    collection = load_collection(beir(tmp_path / "tiny", packed=packed, header=header))
    assert collection.name == "tiny"
    assert list(collection.corpus) == TEXTS
    assert list(collection.corpus.titles) == TITLES
    assert collection.corpus.ids == ["a", "b", "c", "4"]
    assert isinstance(collection.corpus._texts, Lines) is not packed
    assert list(collection.splits) == ["train", "test"]
    test = collection.split("test")
    assert test.queries == {"q1": "one", "q2": "two"}
    assert test.judgements == {"q2": {"a": 2}, "q1": {"b": 1, "c": 0}}
    assert collection.split("train").judgements == {"q3": {"4": 1}}
    assert not collection.problems
    with pytest.raises(ValueError, match="tiny has no split 'dev'; it has train, test"):
        collection.split("dev")
    assert list(pickle.loads(pickle.dumps(collection.corpus)).titles) == TITLES  # by a worker process


def test_a_plain_corpus_stays_on_disk(tmp_path):
    """Lines may end with any newline, and blank lines are skipped."""
    folder = beir(tmp_path / "tiny")
    path = folder / "corpus.jsonl"
    path.write_bytes(b"\n" + path.read_bytes().replace(b"\n", b"\r\n\n").rstrip())
    corpus = load_collection(folder).corpus
    assert [corpus[i] for i in (3, 0, -1, np.int64(1))] == [TEXTS[3], TEXTS[0], TEXTS[3], TEXTS[1]]
    assert corpus[1:3] == TEXTS[1:3]
    with pytest.raises(KeyError, match="no document 'zzz'"):
        corpus.position("zzz")
    with pytest.raises(IndexError):
        corpus[4]
    assert list(pickle.loads(pickle.dumps(corpus))) == TEXTS


@pytest.mark.parametrize("packed", [False, True])
def test_titles_stay_with_their_documents(tmp_path, packed):
    """The first of equal ids counts, with its title; white space around a title is removed."""
    documents = [
        {"_id": "a", "title": " A title ", "text": "one"},
        {"_id": "a", "title": "Another", "text": "one"},
        {"_id": "b", "text": "two", "metadata": {"title": "Beside the text"}},
        {"_id": "c", "title": "Both", "text": "three", "metadata": {"title": "Not this"}},
    ]
    qrels = {"test": "q1\ta\t1\n"}
    corpus = load_collection(beir(tmp_path / "tiny", documents, qrels=qrels, packed=packed)).corpus
    assert list(corpus.titles) == ["A title", "Beside the text", "Both"]
    assert list(corpus) == ["A title  one", "two", "Both three"]


def test_problems_are_counted_with_examples(tmp_path):
    documents = [*DOCUMENTS, {"_id": "a", "text": "second a"}, {"_id": "e", "text": " "}]
    queries = [*QUERIES, {"_id": "q1", "text": "second q1"}, {"_id": "q4", "text": ""}]
    qrels = {
        "test": "q1\tb\t1\nq1\tb\t2\nq1\tabsent\t1\nq9\ta\t1\nq1 c 1\nq1\tc\tmuch\nq1\tc\t0.5\nq4\te\t1.0\n",
        "dev": "".join(f"q1\tabsent{i}\t1\n" for i in range(9)),
    }
    collection = load_collection(beir(tmp_path / "tiny", documents, queries, qrels))
    assert list(collection.corpus) == [*TEXTS, ""]
    test = collection.split("test")
    assert (test.queries, test.judgements) == ({"q1": "one", "q4": ""}, {"q1": {"b": 1}, "q4": {"e": 1}})
    assert collection.problems.counts == {
        "duplicate document id (first one kept)": 1,
        "document with empty text (kept)": 1,
        "duplicate query id (first one kept)": 1,
        "query with empty text (kept)": 1,
        "judgement for an absent document (left out)": 10,
        "judgement for an absent query (left out)": 1,
        "repeated judgement (first one kept)": 1,
        "malformed judgement line (left out)": 3,
    }
    shown = str(collection.problems)
    assert "judgement for an absent document (left out): 10, e.g. dev: q1 -> absent0" in shown
    assert "absent5" not in shown


@pytest.mark.parametrize("packed", [False, True])
def test_half_characters_are_replaced_and_counted(tmp_path, packed):
    """JSON can spell lone surrogates, which tokenizers reject; a pair of surrogates is one character."""
    documents = [{"_id": "a", "title": "half \ud83d", "text": "of one \ude00, and a whole \U0001f600"}]
    queries = [{"_id": "q1", "text": "end \ud83d"}]
    qrels = {"test": "q1\ta\t1\n"}
    collection = load_collection(beir(tmp_path / "broken", documents, queries, qrels, packed=packed))
    assert collection.problems.counts == {
        "document with lone surrogates (each replaced by U+FFFD)": 1,
        "query with lone surrogates (each replaced by U+FFFD)": 1,
    }
    corpus = pickle.loads(pickle.dumps(collection.corpus))
    assert list(corpus) == corpus[:] == ["half \ufffd of one \ufffd, and a whole \U0001f600"]
    assert list(corpus.titles) == ["half \ufffd"]
    assert collection.split("test").queries == {"q1": "end \ufffd"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"_id": "x", "text": ', "bad JSON"),
        ('["x"]', "must be a JSON object"),
        ("[" * 100_000, "bad JSON"),
        ('{"_id": null, "text": "no id"}', "no usable id"),
        ('{"_id": "x", "text": 5}', "'text' is not a string but 5"),
    ],
)
@pytest.mark.parametrize("file", ["corpus", "queries"])
def test_a_bad_line_stops_with_file_and_number(tmp_path, line, message, file):
    documents = [*DOCUMENTS[:2], line] if file == "corpus" else DOCUMENTS
    queries = [*QUERIES[:2], line] if file == "queries" else QUERIES
    for packed in (False, True):
        folder = beir(tmp_path / f"{packed}", documents, queries, packed=packed)
        with pytest.raises(ValueError, match=rf"{file}\.jsonl(\.gz)?, line 3: .*{message}"):
            load_collection(folder)


def test_unusable_collections_and_names(tmp_path):
    with pytest.raises(ValueError, match="holds no document"):
        load_collection(beir(tmp_path / "1", documents=[]))
    with pytest.raises(ValueError, match=r"no split holds a judged query\njudgement for an absent document"):
        load_collection(beir(tmp_path / "2", qrels={"test": "q1\tnowhere\t1\n"}))
    with pytest.raises(FileNotFoundError, match=r"qrels/<split>\.tsv"):
        load_collection(beir(tmp_path / "3", qrels={}))
    folder = beir(tmp_path / "4", packed=True)
    with pytest.raises(ValueError, match="is for load"):
        load_collection(folder, documents=2)
    corpus = folder / "corpus.jsonl.gz"
    corpus.write_bytes(corpus.read_bytes()[:-12])
    with pytest.raises(ValueError, match=r"corpus\.jsonl\.gz: not a whole gzip file"):
        load_collection(folder)
    corpus.unlink()
    with pytest.raises(FileNotFoundError, match=r"corpus\.jsonl"):
        load_collection(folder)
    with pytest.raises(FileNotFoundError, match="no collection 'nothing': expected 'pydocs'"):
        load_collection("nothing")
    with pytest.raises(ValueError, match="must be unique"):
        Corpus(["a", "a"], ["x", "y"])
    with pytest.raises(ValueError, match="2 texts, 1 titles"):
        Corpus(["a", "b"], ["x", "y"], ["X"])


def test_the_fingerprint_follows_the_content(tmp_path):
    first = load_collection(beir(tmp_path / "a")).fingerprint
    assert load_collection(beir(tmp_path / "b", packed=True)).fingerprint == first
    rows = QRELS["test"].splitlines(keepends=True)
    turned = beir(tmp_path / "c", qrels={**QRELS, "test": "".join(rows[::-1])})
    assert load_collection(turned).fingerprint == first
    changed = [
        {"documents": [*DOCUMENTS[:3], {"_id": "4", "text": "other"}]},
        {"documents": DOCUMENTS[::-1]},
        {"queries": [{"_id": "q1", "text": "ONE"}, *QUERIES[1:]]},
        {"qrels": {**QRELS, "test": "q2\ta\t1\nq1\tb\t1\nq1\tc\t0\n"}},
        {"qrels": {"dev": QRELS["test"], "train": QRELS["train"]}},
    ]
    others = {load_collection(beir(tmp_path / f"x{i}", **of)).fingerprint for i, of in enumerate(changed)}
    assert len(others | {first}) == 6


def test_write_folder_keeps_titles_and_what_they_are_part_of(tmp_path):
    texts = ["One body", "One  body", "One", "Onebody", "body"]
    corpus = Corpus([f"d{i}" for i in range(5)], texts, ["One"] * 5)
    folder = beir(tmp_path / "tiny", qrels={"test": QRELS["test"]})
    split = Split({"q": "x"}, {"q": {"d1": 1}})
    written = replace(load_collection(folder), corpus=corpus, splits={"test": split})
    for _ in range(2):
        write_folder(written, tmp_path / "copy")
    (tmp_path / "copy" / "annotations.xlsx").write_text("mine")
    with pytest.raises(FileExistsError, match=r"copy would be replaced, but holds annotations\.xlsx"):
        write_folder(written, tmp_path / "copy")
    again = load_collection(tmp_path / "copy").corpus
    assert (list(again), list(again.titles)) == (texts, ["One"] * 5)


WORDS = st.text(st.characters(blacklist_categories=("Z", "C")), min_size=1, max_size=5)
IDS = WORDS.filter(lambda id: id.split() == [id])
SCORES = st.floats(allow_nan=False)


@given(run=st.dictionaries(IDS, st.dictionaries(IDS, SCORES, min_size=1, max_size=5), max_size=4))
def test_a_run_survives_its_file(tmp_path_factory, run):
    path = tmp_path_factory.getbasetemp() / "run.txt.gz"
    write_run(path, run)
    read = read_run(path)
    assert {query: list(scores) for query, scores in read.items()} == {
        query: list(best_first(scores)) for query, scores in run.items()
    }
    for query, scores in read.items():
        single = np.array([*scores.values()]).astype(np.float32)
        assert (single[1:] < single[:-1]).all()
        before = np.array([run[query][document] for document in scores])
        if len(set(before.astype(np.float32).tolist())) == len(before):
            assert scores == run[query]  # no ties: the same floats
        spacing = np.spacing(np.minimum(np.abs(single), np.finfo(np.float32).max))
        close = np.abs(single.astype(float) - before.astype(np.float32)) <= len(before) * 2 * spacing
        assert (close | ~np.isfinite(before.astype(np.float32))).all()
    write_run(path, read)
    assert read_run(path) == read  # nothing moves further


def test_runs_and_judgements_are_written_in_order(tmp_path):
    """A run by score and then by id, in single precision; judgements as they are."""
    path = tmp_path / "deep" / "run.txt"
    write_run(path, {"q": {"b": 0.1, "c": np.float32(0.1).item(), "a": 0.1, "d": math.inf}}, tag="bm25")
    assert path.read_text() == (
        "q Q0 d 1 inf bm25\nq Q0 c 2 0.10000001639127731 bm25\nq Q0 a 3 0.10000000894069672 bm25\n"
        "q Q0 b 4 0.1 bm25\n"
    )
    judgements = {"q1": {"b": 1, "a": 0}, "q2": {"c": 3, "d": -1}}
    write_judgements(path, judgements)
    assert path.read_text() == "q1 0 b 1\nq1 0 a 0\nq2 0 c 3\nq2 0 d -1\n"
    assert read_judgements(path) == judgements


@pytest.mark.parametrize(
    ("read", "first", "line", "message"),
    [
        (read_run, "q Q0 a 1 1.0 tag", "q Q0 d 1", "4 columns instead of 6"),
        (read_run, "q Q0 a 1 1.0 tag", "q Q0 d 1 high tag", "score 'high' is not a number"),
        (read_run, "q Q0 a 1 1.0 tag", "q Q0 d 1 nan tag", "NaN"),
        (read_run, "q Q0 a 1 1.0 tag", "\udcff\udcfe", "not UTF-8"),
        (read_judgements, "q 0 a 1", "q 0 d", "3 columns instead of 4"),
        (read_judgements, "q 0 a 1", "q 0 d inf", "grade 'inf' is not an integer"),
        (read_judgements, "q 0 a 1", "q 0 d 9223372036854775808", "is not an integer of 32 bits"),
    ],
)
def test_bad_lines_are_named(tmp_path, read, first, line, message):
    path = tmp_path / "file.txt"
    path.write_bytes(f"{first}\n\n{line}\n".encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=rf"file\.txt, line 3: .*{message}"):
        read(path)
    with pytest.raises(FileNotFoundError, match="absent"):
        read(tmp_path / "absent")


def test_comments_headers_and_tags_of_trec_files_are_passed_over(tmp_path):
    def read(function, text):
        (tmp_path / "file.txt").write_text(text)
        return function(tmp_path / "file.txt")

    comments = "# k1 0.9 b 0.4 bm25\n#k1 0.9 b 0.4\n# pool depth 100\n#\n# a longer line of some words\n"
    run = {"q": {"a": 2.5}, "#q": {"b": 1.0}}
    for tag in ("", " x"):
        rows = f"q Q0 a 1 2.5{tag}\n#q Q0 b 1 1.0{tag}\n"
        for first in ("", "query Q0 docid rank score tag\n", comments):
            assert read(read_run, first + rows) == run
    for first in ("", "query-id\titer\tcorpus-id\tscore\n", comments):
        assert read(read_judgements, first + "q Q0 a 2\n#q 0 b 1\n") == {"q": {"a": 2}, "#q": {"b": 1}}
    with pytest.raises(ValueError, match=r"line 1: 2 columns instead of"):  # no header: columns are missing
        read(read_run, "query docid\nq Q0 a 1 2.5\n")


@pytest.mark.parametrize(("read", "line"), [(read_run, "q Q0 a 1 {} x\n"), (read_judgements, "q 0 a {}\n")])
def test_repeated_documents_of_trec_files_are_counted(tmp_path, read, line):
    path = tmp_path / "file.txt"
    path.write_text(line.format(2) + line.format(2) + line.format(1))
    with pytest.warns(UserWarning, match=r"file\.txt: repeated document .*: 2, e\.g\. q -> a"):
        assert read(path) == {"q": {"a": 2}}


def test_what_trec_cannot_hold_is_not_written(tmp_path):
    path = tmp_path / "run.txt"
    path.write_text("old")
    for run in ({"q 1": {"a": 1.0}}, {"q": {"a": 1.0, "b c": 0.5}}, {"": {"a": 1.0}}, {"q": {"a": math.nan}}):
        with pytest.raises(ValueError, match=r"a TREC file cannot hold|NaN"):
            write_run(path, run)
    with pytest.raises(ValueError, match="a TREC file cannot hold"):
        write_judgements(path, {"q": {"a\tb": 1}})
    assert path.read_text() == "old"
    write_run(path, {"q": {"a": 1.0}}, tag="my model")
    assert path.read_text() == "q Q0 a 1 1.0 my-model\n"
