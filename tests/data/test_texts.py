"""Documents without queries: text files cut into passages, JSON lines."""

import gzip
import json

import pytest

from paradigms.data import Problems
from paradigms.data.beir import read_corpus, write_corpus
from paradigms.data.texts import MARKER, json_lines, text_passages


@pytest.fixture
def folder(tmp_path):
    notes = tmp_path / "notes"
    (notes / "deep").mkdir(parents=True)
    (notes / "b.md").write_text("One two three.\n\nFour five six seven.\neight", encoding="utf-8")
    (notes / "deep" / "a.txt").write_bytes("\ufeffnaïve café".encode())
    (notes / "picture.png").write_bytes(b"\x89PNG\0\xff")
    (notes / "latin.txt").write_bytes("naïve".encode("latin-1"))
    (notes / "empty.txt").write_text(" \n")
    (notes / ".hidden").write_text("not to be read")
    (notes / ".git").mkdir()
    (notes / ".git" / "HEAD").write_text("not to be read")
    (notes / "own.index").mkdir()
    (notes / "own.index" / MARKER).write_text("{}")
    (notes / "own.index" / "corpus.jsonl").write_text("not to be read")
    return notes


def test_passages_are_named_by_the_line_that_they_begin_on(folder):
    problems = Problems()
    found = list(text_passages(folder, problems, words=3))
    assert found == [
        ("b.md:1", "b.md", "One two three."),
        ("b.md:3", "b.md", "Four five six"),
        ("b.md:3.2", "b.md", "seven.\neight"),
        ("deep/a.txt:1", "deep/a.txt", "naïve café"),
    ]
    assert problems.counts == {"file that is not UTF-8 text (left out)": 2, "file without text (left out)": 1}
    assert problems.examples["file that is not UTF-8 text (left out)"] == ["latin.txt", "picture.png"]


def test_what_has_no_white_space_is_cut_and_kept(tmp_path):
    (tmp_path / "ja.txt").write_text("猫は動物です。犬も動物です。", encoding="utf-8")
    (tmp_path / "row.csv").write_text("x\na,b,c,d,e f")
    found = [text for _, _, text in text_passages(tmp_path, Problems(), words=4)]
    assert found == ["猫は動物", "です。犬も", "動物です。", "x\na,b,c,", "d,e f"]


def test_links_to_itself_one_file_and_a_hidden_folder_that_is_asked_for(folder):
    (folder / "deep" / "up").symlink_to(folder)
    for source, ids in {"": ["b.md:1", "deep/a.txt:1"], "b.md": ["b.md:1"], ".git": ["HEAD:1"]}.items():
        assert [id for id, _, _ in text_passages(folder / source, Problems(), words=100)] == ids


def test_json_lines_of_several_forms(tmp_path):
    rows = [
        {"_id": "x", "title": " T ", "text": "body"},
        {"id": 7, "contents": "other"},
        {"text": "numbered"},
        {"docid": "x", "text": "again"},
        {"docid": "y", "text": " "},
        {"_id": None, "text": "no id"},
    ]
    file = tmp_path / "rows.jsonl.gz"
    file.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    problems = Problems()
    assert list(json_lines(file, problems)) == [
        ("x", "T", "T body"),
        ("7", "", "other"),
        ("3", "", "numbered"),
        ("y", "", ""),
        ("6", "", "no id"),
    ]
    counted = {"duplicate document id (first one kept)", "document with empty text (kept)"}
    assert set(problems.counts) == counted


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: bad JSON"),
        ("[1]", "line 2: bad JSON .a list"),
        ('{"abstract": "x", "_id": 1}', "line 2: none of text, .* keys are abstract, _id"),
        ('{"text": null}', "line 2: none of text"),
        ('{"text": "x", "id": true}', "line 2: no usable id, .*True"),
    ],
)
def test_bad_json_lines_are_named(tmp_path, line, message):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"text": "good"}\n' + line)
    with pytest.raises(ValueError, match=message):
        list(json_lines(file, Problems()))


@pytest.mark.parametrize("name", ["corpus.jsonl", "corpus.jsonl.gz"])
def test_a_corpus_is_read_as_it_was_written(tmp_path, name):
    documents = [("a", "Title", "Title text"), ("b", "path/of/b", "no title in here"), ("c", "", "")]
    write_corpus(documents, tmp_path / name)
    corpus = read_corpus(tmp_path / name)
    assert list(zip(corpus.ids, corpus.titles, corpus, strict=True)) == documents


def test_an_empty_corpus_is_refused(tmp_path):
    write_corpus([], tmp_path / "corpus.jsonl")
    with pytest.raises(ValueError, match="holds no document"):
        read_corpus(tmp_path / "corpus.jsonl")


def test_any_name_of_a_file_makes_an_id(tmp_path):
    for name in (b"my notes.txt", b"my%20notes.txt", b"a\nb", b"\xff", b"\xfe"):
        with open(bytes(tmp_path) + b"/" + name, "w") as stream:
            stream.write("text")
    ids = [id for id, _, _ in text_passages(tmp_path, Problems())]
    assert sorted(ids) == ["%FE:1", "%FF:1", "a%0Ab:1", "my%20notes.txt:1", "my%2520notes.txt:1"]
