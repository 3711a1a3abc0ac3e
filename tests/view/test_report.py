"""The report: one file, nothing from outside, hostile text inert, every number shown; and the pictures."""

import json
import re
import warnings
from dataclasses import replace
from html.parser import HTMLParser
from itertools import product
from pathlib import Path
from urllib.parse import parse_qs, quote

import numpy as np
import pytest

from paradigms.evaluate import Interval, PerQuery, result_table
from paradigms.explanation import Explanation
from paradigms.view.report import (
    AlignmentExample,
    Picture,
    Report,
    cost_picture,
    write_pictures,
    write_report,
)
from tests import browser

HOSTILE = [
    "</script><script>window.broken = 1</script>",
    "<b>bold</b> <img src=x onerror='window.broken = 1'>",
    "\"double\" 'single' `back` ${x} {{ 7 * 7 }} {% raw %} \\u2028 \u2028 \x00 \\",
    "<!-- <script> -->",
    "emoji 👩‍🔬🧪, שלום עולם, مرحبا, 漢字, \ud800",
    "$\\alpha$ mathtext $ and _under_",
]
TEXTS = {"numpy.linalg:solve": "solve a linear matrix equation", "scipy.signal:filter": "filter an array"}


def align(system: str, query: str, document: str) -> Explanation:
    """Align each query token to two document tokens, with salience on both sides."""
    generator = np.random.default_rng(len(system))
    q, d = ["[CLS]", *query.split()], ["##" + system, *document.split(), "[SEP]"]
    saliences = generator.random(len(q)).tolist(), generator.random(len(d)).tolist()
    S, A = generator.normal(size=(len(d), len(q))), np.zeros((len(d), len(q)))
    for j in range(len(q)):
        A[np.argsort(-S[:2, j]), j] = 1
    A *= np.outer(saliences[1], saliences[0])
    links = [(int(i), int(j), S[i, j], A[i, j]) for i, j in np.argwhere(A)]
    return Explanation(system, system, q, d, links, A.sum(), (S * A).sum() / A.sum(), *saliences)


@pytest.fixture(scope="module")
def sample():
    """Two stages, two queries and documents; all names are hostile."""
    generator = np.random.default_rng(0)
    tables = []
    for stage in HOSTILE[:2]:
        results = {
            system: PerQuery(
                [f"q{x}" for x in range(40)], {m: generator.random(40) for m in ("nDCG@10", "R@10")}
            )
            for system in HOSTILE
        }
        tables.append(result_table(stage, results, baseline=HOSTILE[0]))
    examples = [
        AlignmentExample(text, d, text, TEXTS[d], d == "scipy.signal:filter", [align(text, q, TEXTS[d])])
        for text, (q, d) in zip(HOSTILE, product(TEXTS.values(), [*TEXTS, next(iter(TEXTS))]), strict=True)
    ]
    return Report(
        title=HOSTILE[0],
        summary="pydocs, 2,500 documents, 300 test queries (made-up numbers)",
        tables=tables,
        curves={system: {k: float(generator.random()) for k in (1, 10, 100)} for system in HOSTILE},
        costs=[{"system": text, "parameters": 22_713_216, "encode seconds": None} for text in HOSTILE],
        settings={text: text for text in HOSTILE} | {"learning_rate": 2e-5},
        environment={"torch": "2.13.0"},
        notes=HOSTILE,
        alignments=examples,
    )


class Page(HTMLParser):
    """Elements with their attributes, scripts, and the text of elements by name."""

    def __init__(self, path: Path):
        super().__init__()
        self.elements: list[tuple[str, dict]] = []
        self.scripts: list[tuple[dict, str]] = []
        self.text = ""
        self.raw = path.read_text(encoding="utf-8")
        self.feed(self.raw)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_data(self, data):
        if self.lasttag == "script" and self.scripts:
            self.scripts[-1] = (self.scripts[-1][0], self.scripts[-1][1] + data)
        self.text += data

    def handle_endtag(self, tag):
        self.lasttag = ""

    def data(self):
        return json.loads(next(text for hits, text in self.scripts if hits.get("id") == "alignments"))


@pytest.fixture(scope="module")
def page(sample, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    with warnings.catch_warnings(action="ignore"):  # glyphs that no font has
        write_report(path, sample)
    return Page(path)


def test_report_needs_nothing_from_outside(page):
    for tag, attributes in page.elements:
        assert tag not in {"iframe", "frame", "object", "embed", "base"}
        assert attributes.get("src", "data:image/png;base64,").startswith("data:image/png;base64,")
        if "href" in attributes:
            assert attributes["href"].startswith(("#", "data:,"))
        assert not any(name.startswith("on") for name in attributes)
    (policy,) = [a["content"] for _, a in page.elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|innerHTML|eval\(", page.text)


def plain(text: str) -> str:
    """A text as UTF-8 can hold it."""
    return text.replace("\ud800", "?")


def test_report_shows_every_number(page, sample):
    for table in sample.tables:
        assert table.title in page.text
        for row in table.rows.values():
            for cell in row.values():
                assert f"{cell.mean:.3f}" in page.text
                assert f"{cell.low:.3f}–{cell.high:.3f}" in page.text
        for row in table.comparisons:
            assert f"{row.p_adjusted:.4f}" in page.text
    for value in sample.curves[HOSTILE[0]].values():
        assert f"{value:.3f}" in page.text
    for text in (sample.title, sample.summary, *map(plain, sample.notes), "22.7 M", "learning_rate"):
        assert text in page.text


def test_alignment_data_holds_what_rel_sums(page, sample):
    data = page.data()
    assert len(data) == len(sample.alignments)
    for shown, example in zip(data, sample.alignments, strict=True):
        assert (shown["query"], shown["document"]) == (plain(example.query), plain(example.document))
        for drawn, system in zip(shown["systems"], example.systems, strict=True):
            assert drawn["document"] == [plain(token) for token in system.document_tokens]
            assert list(zip(drawn["i"], drawn["j"], strict=True)) == [(i, j) for i, j, _, _ in system.links]
            rel = np.dot(drawn["s"], drawn["a"]) / drawn["Z"]
            assert rel == pytest.approx(drawn["rel"], rel=2e-3, abs=1e-3)


def test_hostile_text_stays_text(page):
    assert len(page.scripts) == 2
    assert [tag for tag, _ in page.elements if tag in {"b", "img"}] == ["img"]  # the chart
    assert "window.broken" not in page.scripts[1][1]
    block = page.raw.split('id="alignments">')[1].split("</script>")[0]
    assert "<" not in block
    assert "{{ 7 * 7 }}" in page.text  # templates inside data are not rendered


QUALITY = {
    "summaries": {"a": Interval(0.6, 0.5, 0.7), "b": Interval(0.7, 0.6, 0.8), "c": Interval(0.65, 0.5, 0.8)},
    "parameters": {"a": Interval(0.9, 0.8, 1.0), "b": Interval(0.7, 0.6, 0.8), "free": Interval(1, 1, 1)},
}
COSTS = {"bytes": {"a": 10.0, "b": 100.0, "c": 1000.0}, "ms": {"a": 3.0, "b": 2.0, "c": 1.0, "free": None}}


def test_quality_stands_against_each_cost():
    panels = np.array(cost_picture(QUALITY, COSTS, "nDCG@10").axes).reshape(2, 2)
    bars = {tuple(bar[0].get_xydata()[0]) for bar in panels[1, 1].containers}
    assert bars == {(3, 0.9), (2, 0.7)}  # ms against "parameters", of which "free" has no cost
    best = panels[0, 0].lines[0].get_xydata().tolist()  # c costs more than b and is worse
    assert best == [[10, 0.6], [100, 0.7]]


@pytest.mark.parametrize("drawn", [True, False])
def test_a_picture_or_a_table_alone_stands_on_the_page(sample, tmp_path, drawn: bool):
    figure = cost_picture(QUALITY, COSTS, "nDCG@10") if drawn else None
    rows = [{"system": "<a>", "bytes": 1234567.0}, {"system": "b", "bytes": None}]
    picture = Picture("cost", "What quality costs", "in bytes & ms", figure, rows)
    report = replace(sample, pictures=[picture], alignments=[], curves={"one": {1: 0.5}})
    write_report(tmp_path / "report.html", report)
    page = Page(tmp_path / "report.html")
    assert all(text in page.text for text in ("What quality costs", "<a>", "1.23 M", "–"))
    assert [tag for tag, _ in page.elements].count("img") == 1 + drawn
    written = write_pictures(report, tmp_path / "pictures")
    assert [path.name for path in written] == ["recall.png", "cost.png"][: 1 + drawn]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)


def test_broken_alignments_are_named(tmp_path):
    broken = Explanation("S", "r", ["a"], ["b"], [(0, 0, float("-inf"), 1.0)], 1.0, 0.0)
    example = AlignmentExample("q", "d", "a", "b", True, [broken])
    with pytest.raises(ValueError, match="system 'S': a number is not finite"):
        write_report(tmp_path / "report.html", Report("t", "s", alignments=[example]))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@browser.needed
def test_a_page_makes_a_link_that_restores_what_was_chosen_shown_and_held(tab, tmp_path):
    query, tokens = ["fish", "sea"], ["[CLS]", "fish", "in", "seas"]
    links = [(1, 0, 0.9, 1.0), (3, 1, 0.1, 1.0)]
    systems = [Explanation(name, "S", query, tokens, links, 2.0, 0.5) for name in ("colbert", "dpr")]
    examples = [AlignmentExample("q 1", id, "a & b", id, True, systems) for id in ("one", "two & three")]
    write_report(tmp_path / "report.html", Report("t", "s", alignments=examples))
    address = (tmp_path / "report.html").as_uri()
    tab.open(address)
    tab.wait("location.hash")
    assert parse_qs(tab.script("location.hash").partition("?")[2]) == {"query": ["q 1"], "document": ["one"]}
    assert tab.texts("#systems .card h3") == ["colbert", "dpr"]
    chosen = {"query": "q 1", "document": "two & three", "without": "colbert", "hold": "query sea 0"}
    tab.open(f"{address}#alignment?" + "&".join(f"{name}={quote(value)}" for name, value in chosen.items()))
    tab.wait("document.querySelectorAll('#systems .card').length")
    link = tab.script("document.querySelector('#state').hash")
    assert parse_qs(link.partition("?")[2]) == {name: [value] for name, value in chosen.items()}
    assert tab.texts("#systems .card h3") == ["dpr"]
    assert tab.text("#document-text") == "two & three"
    assert tab.text("#systems .linked").startswith("sea ↔ seas 100%")
    assert tab.errors == []
