"""Documents without queries: text files cut into passages, JSON lines."""

import gzip
import io
import json
import sys

import pytest

from paradigms.data import Problems
from paradigms.data.texts import MARKER, json_lines, text_passages
from tests import needs

readers = needs.module("pypdf pypandoc charset_normalizer", "readers of files", "pip install -e '.[files]'")


@pytest.fixture
def folder(tmp_path):
    notes = tmp_path / "notes"
    (notes / "deep").mkdir(parents=True)
    (notes / "b.md").write_text("One two three.\n\nFour five six seven.\neight", encoding="utf-8")
    (notes / "deep" / "a.txt").write_bytes("\ufeffnaïve café".encode())
    (notes / "picture.png").write_bytes(b"\x89PNG\0\xff")
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
    results = list(text_passages(folder, problems, words=3))
    assert results == [
        ("b.md:1", "b.md", "One two three."),
        ("b.md:3", "b.md", "Four five six"),
        ("b.md:3.2", "b.md", "seven.\neight"),
        ("deep/a.txt:1", "deep/a.txt", "naïve café"),
    ]
    assert problems.examples == {
        "file without text (left out)": ["empty.txt"],
        "file that is not text (left out)": ["picture.png"],
    }


def test_what_has_no_white_space_is_cut_and_kept(tmp_path):
    (tmp_path / "ja.txt").write_text("猫は動物です。犬も動物です。", encoding="utf-8")
    (tmp_path / "row.csv").write_text("x\na,b,c,d,e f")
    results = [text for _, _, text in text_passages(tmp_path, Problems(), words=4)]
    assert results == ["猫は動物", "です。犬も", "動物です。", "x\na,b,c,", "d,e f"]


def test_links_one_file_and_a_hidden_folder_that_is_asked_for(folder, tmp_path):
    """Links out of the folder are counted and left out."""
    (folder / "deep" / "up").symlink_to(folder)
    for source, ids in {"b.md": ["b.md:1"], ".git": ["HEAD:1"]}.items():
        assert [id for id, _, _ in text_passages(folder / source, Problems(), words=100)] == ids
    (tmp_path / "secret.txt").write_text("not to be read")
    (folder / "deep" / "link.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "same.md").symlink_to("b.md")
    problems = Problems()
    ids = [id for id, _, _ in text_passages(folder, problems, words=100)]
    assert ids == ["b.md:1", "deep/a.txt:1", "same.md:1"]
    assert problems.examples["link to a file outside of the folder (left out)"] == ["deep/link.txt"]


def test_a_line_without_an_end_is_refused_before_it_fills_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("paradigms.io.gzipped.LONGEST", 1000)
    row = json.dumps({"_id": "x", "text": "a" * 900})
    with gzip.open(tmp_path / "x.jsonl.gz", "wt") as file:
        file.write(f"{row}\n" + "a" * 10_000_000)
    rows = json_lines(tmp_path / "x.jsonl.gz", Problems())
    assert next(rows)[0] == "x"
    with pytest.raises(ValueError, match=r"x\.jsonl\.gz, line 2: longer than 1,000 bytes"):
        next(rows)


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
        ('{"abstract": "x", "_id": 1}', "line 2: none of text, .* keys are abstract, _id"),
        ('{"text": "x", "id": true}', "line 2: no usable id, .*True"),
    ],
)
def test_bad_json_lines_are_named(tmp_path, line, message):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"text": "good"}\n' + line)
    with pytest.raises(ValueError, match=message):
        list(json_lines(file, Problems()))


def test_any_name_of_a_file_makes_an_id(tmp_path):
    for name in (b"my notes.txt", b"my%20notes.txt", b"a\nb", b"\xff", b"\xfe"):
        with open(bytes(tmp_path) + b"/" + name, "w") as stream:
            stream.write("text")
    ids = [id for id, _, _ in text_passages(tmp_path, Problems())]
    assert sorted(ids) == ["%FE:1", "%FF:1", "a%0Ab:1", "my%20notes.txt:1", "my%2520notes.txt:1"]


def test_html_and_json_lines_in_a_folder_of_notes(tmp_path):
    page = "<html><head><style>p {}</style><script>if (a < b) x()</script>\n<title>Sea</title></head>\n"
    (tmp_path / "a.html").write_text(page + "<p>the f<b>ish</b> &amp; the\nsea</p><p>snow</p>")
    (tmp_path / "b.jsonl").write_text('{"title": "Fire", "text": "warm wood"}\n\n{"id": 7, "body": "ice"}\n')
    (tmp_path / "c.jsonl").write_text('{"text": "kept"}\n{"level": "debug"}\n')
    problems = Problems()
    results = [
        (id, title, " ".join(text.split())) for id, title, text in text_passages(tmp_path, problems, 50)
    ]
    assert results == [
        ("a.html:2", "a.html", "Sea the fish & the sea snow"),
        ("b.jsonl:1", "Fire", "Fire warm wood"),
        ("b.jsonl:3", "b.jsonl", "ice"),
        ("c.jsonl:1", "c.jsonl", "kept"),
    ]
    assert problems.counts == {"JSON lines that cannot be read as documents (left out from there)": 1}


ENCODED = {
    "utf-16": "naïve café",
    "cp1252": "Die Straße nach Köln – “gesperrt”, weil Bäume umgestürzt sind.",
    "cp1251": "Привет, мир! Это текст на русском языке для проверки.",
}


@readers
@pytest.mark.parametrize(("encoding", "text"), ENCODED.items())
def test_text_in_other_encodings(tmp_path, encoding, text):
    (tmp_path / "a.txt").write_bytes(text.encode(encoding))
    problems = Problems()
    assert [text for _, _, text in text_passages(tmp_path, problems)] == [text]
    assert len(problems.counts) == (not encoding.startswith("utf"))


WORDS = ["The certificate expires in May.", "Renew it on Monday."]


def pdf(*pages: str, password: str = "") -> bytes:
    """A PDF with a line of text on each page."""
    import pypdf
    from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

    writer = pypdf.PdfWriter()
    name = {"Type": "/Font", "Subtype": "/Type1", "BaseFont": "/Helvetica"}
    font = DictionaryObject({NameObject(f"/{key}"): NameObject(value) for key, value in name.items()})
    for text in pages:
        page = writer.add_blank_page(300, 300)
        fonts = DictionaryObject({NameObject("/F"): font})
        page[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): fonts})
        content = DecodedStreamObject()
        content.set_data(f"BT /F 12 Tf 20 200 Td ({text}) Tj ET".encode())
        page[NameObject("/Contents")] = writer._add_object(content)
    if password:
        writer.encrypt(password, algorithm="RC4-128")
    data = io.BytesIO()
    writer.write(data)
    return data.getvalue()


@readers
def test_pages_of_a_pdf_are_passages_by_number(tmp_path):
    (tmp_path / "a.pdf").write_bytes(pdf(*WORDS))
    (tmp_path / "b.pdf").write_bytes(pdf(""))
    (tmp_path / "c.pdf").write_bytes(pdf("secret", password="password"))
    (tmp_path / "d.pdf").write_text("%PDF-1.4\n1 0 obj\n")
    problems = Problems()
    results = list(text_passages(tmp_path, problems))
    assert results == [("a.pdf:1", "a.pdf", WORDS[0]), ("a.pdf:2", "a.pdf", WORDS[1])]
    reasons = {"b.pdf": "scanned pages", "c.pdf": "encrypted PDF", "d.pdf": "pdf file that cannot be read"}
    for name, reason in reasons.items():
        assert [kind for kind in problems.counts if reason in kind and name in problems.examples[kind][0]]


@readers
@pytest.mark.parametrize("kind", ["docx", "epub", "odt", "rtf"])
def test_documents_of_word_processors_and_ebooks(tmp_path, kind):
    import pypandoc

    source = f"# Server\n\n{WORDS[0]}\n\n| day | task |\n|---|---|\n| one | stop |\n\n{WORDS[1]}"
    options = {"outputfile": str(tmp_path / f"a.{kind}"), "extra_args": ["--standalone"]}
    pypandoc.convert_text(source, kind, format="md", **options)
    (tmp_path / f"b.{kind}").write_bytes(b"PK\x03\x04 damaged")
    problems = Problems()
    results = [(id, text.split()) for id, _, text in text_passages(tmp_path, problems) if id.startswith("a")]
    words = " ".join(["Server", WORDS[0], "day task one stop", WORDS[1]]).split()
    assert results == [(f"a.{kind}:1", words)]
    if kind != "rtf":  # which is text, whatever it holds
        assert list(problems.counts) == [f"{kind} file that cannot be read (left out)"]


def test_a_file_without_its_reader_says_what_to_install(tmp_path, monkeypatch):
    for name in ("pypdf", "pypandoc", "charset_normalizer"):
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("a.pdf", "b.docx", "c.txt", "d.doc"):
        (tmp_path / name).write_bytes(b"\xe9t\xe9")
    problems = Problems()
    assert list(text_passages(tmp_path, problems)) == []
    [(lacking, files), (old, _)] = problems.examples.items()
    assert "pip install 'retrieval-paradigms[files]'" in lacking
    assert files == ["a.pdf (pypdf)", "b.docx (pypandoc)", "c.txt (charset_normalizer)"]
    assert "save it as PDF" in old
