"""The report: one file, nothing from outside, hostile text inert, every number shown; and the pictures."""

import json
import re
from dataclasses import asdict
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from paradigms.evaluate import (
    AlignmentExample,
    PerQuery,
    Report,
    SystemAlignment,
    alignment_picture,
    recall_picture,
    result_table,
    write_report,
)
from paradigms.evaluate.report import format_number, recall_chart, spread

HOSTILE = [
    "</script><script>window.broken = 1</script>",
    "<b>bold</b> <img src=x onerror='window.broken = 1'>",
    "\"double\" 'single' `back` ${x} {{ 7 * 7 }} {% raw %} \\u2028 \u2028 \x00 \\",
    "<!-- <script> -->",
    "emoji 👩‍🔬🧪, שלום עולם, مرحبا, 漢字, \ud800",
    "$\\alpha$ mathtext $ and _under_",
]
SYSTEMS = ("BM25", "DPR", "ME-BERT", "ColBERT", "COIL", "ALIGNER", "XTR")
READS = {
    "BM25": "which words are equal.",
    "DPR": "nothing: one vector on each side.",
    "ME-BERT": "the similarities S: the best of the first m document vectors.",
    "ColBERT": "the similarities S: for each query token the most similar document token.",
    "COIL": "the similarities S and the token ids: the most similar among equal ids.",
    "ALIGNER": "the similarities S and both saliences: the top k links, weighted by salience.",
    "XTR": "the similarities S of the whole pool: a link counts if it is within the pool's top k.",
}
QUERIES = {
    "numpy.linalg:solve": "Solve a linear matrix equation, or system of linear scalar equations.",
    "scipy.signal:savgol_filter": "Apply a Savitzky-Golay filter to an array.",
}
DOCUMENTS = {
    "numpy.linalg:solve": (
        "Computes the “exact” solution, x, of the well-determined, i.e., full rank, linear matrix equation "
        "ax = b. Parameters: a, the coefficient matrix; b, the ordinate or dependent variable values. "
        "Returns the solution to the system a x = b, with the shape of b. Raises LinAlgError if a is "
        "singular or not square. Broadcasting rules apply, see the numpy.linalg documentation for details. "
        "The solutions are computed using LAPACK routine _gesv. a must be square and of full rank, all rows"
        " or columns must be linearly independent; if either is not true, use lstsq for the least-squares "
        "best solution of the system or equation."
    ),
    "scipy.signal:savgol_filter": (
        "This is a 1-D filter. If x has dimension greater than 1, axis determines the axis along which the "
        "filter is applied. Parameters: x, the data to be filtered; window_length, the length of the filter"
        " window; polyorder, the order of the polynomial used to fit the samples. polyorder must be less "
        "than window_length."
    ),
}


def pieces(text: str) -> list[str]:
    """Words cut into made-up wordpieces of at most six letters."""
    tokens: list[str] = []
    for word in re.findall(r"\w+|[^\w\s]", text.lower()):
        tokens += [word[:6], *("##" + word[x : x + 6] for x in range(6, len(word), 6))]
    return tokens


def vectors(tokens: list[str], generator: np.random.Generator) -> np.ndarray:
    """Unit vectors, nearly the same for tokens that begin alike."""
    fixed = np.stack([np.random.default_rng(sum(map(ord, token[:4]))).normal(size=24) for token in tokens])
    noisy = fixed + 0.5 * generator.normal(size=fixed.shape)
    return noisy / np.linalg.norm(noisy, axis=1, keepdims=True)


def align(system: str, query: str, document: str, generator: np.random.Generator) -> SystemAlignment:
    q, d = ["[CLS]", "[Q]", *pieces(query), "[SEP]"], ["[CLS]", "[D]", *pieces(document), "[SEP]"]
    if system == "BM25":
        q, d = re.findall(r"\w+", query.lower()), re.findall(r"\w+", document.lower())
        weight = {word: 6 * generator.random() for word in q}
        links = [
            (i, j, weight[b] / d.count(b), 1.0) for j, b in enumerate(q) for i, a in enumerate(d) if a == b
        ]
        return SystemAlignment(system, READS[system], q, d, links, 1.0, sum(s for *_, s, _ in links))
    if system in ("DPR", "ME-BERT"):
        d = ["[pooled]"] if system == "DPR" else d[:8]
        s = generator.random(len(d))
        best = int(s.argmax())
        return SystemAlignment(
            system, READS[system], ["[pooled]"], d, [(best, 0, s[best], 1.0)], 1.0, s[best]
        )
    similarity = vectors(d, generator) @ vectors(q, generator).T
    alignment = np.zeros_like(similarity)
    z, saliences = 1.0, (None, None)
    if system == "ALIGNER":
        saliences = (generator.random(len(q)).tolist(), generator.random(len(d)).tolist())
        for j in range(len(q)):
            alignment[np.argsort(-similarity[:, j])[:4], j] = 1
        alignment *= np.outer(saliences[1], saliences[0])
        z = alignment.sum()
    else:
        allowed = similarity.copy()
        if system == "COIL":
            allowed[np.array(d)[:, None] != np.array(q)[None]] = -np.inf
        for j in range(len(q)):
            if allowed[:, j].max() > (0.35 if system == "XTR" else -np.inf):
                alignment[allowed[:, j].argmax(), j] = 1
        z = max(1.0, alignment.sum()) if system == "XTR" else 1.0
    links = [(int(i), int(j), similarity[i, j], alignment[i, j]) for i, j in np.argwhere(alignment)]
    return SystemAlignment(
        system, READS[system], q, d, links, z, (similarity * alignment).sum() / z, *saliences
    )


def sample_report(queries: int = 300) -> Report:
    """A report of realistic size: seven systems, two stages, long documents."""
    generator = np.random.default_rng(0)
    skill = dict(zip(SYSTEMS, (0.52, 0.46, 0.47, 0.6, 0.58, 0.61, 0.57), strict=True))
    cutoffs = (1, 2, 5, 10, 20, 50, 100)
    tables, curves = [], {}
    for stage, gain in (("Retrieve: search of the whole collection", 0.0), ("Rerank: BM25's 100 best", 0.05)):
        base = generator.normal(0, 0.3, queries)
        results = {}
        for system in SYSTEMS:
            value = np.clip(skill[system] + gain + base + generator.normal(0, 0.12, queries), 0, 1)
            values = {
                m: np.clip(value + shift, 0, 1)
                for m, shift in (
                    ("nDCG@10", 0),
                    ("RR@10", -0.04),
                    ("R@1", -0.15),
                    ("R@10", 0.13),
                    ("R@100", 0.3),
                )
            }
            results[system] = PerQuery([f"q{x}" for x in range(queries)], values)
        tables.append(result_table(stage, results, baseline="BM25"))
    for system in SYSTEMS:
        curves[system] = {k: float(1 - (1 - skill[system] * 0.62) * (0.72 ** np.log(k))) for k in cutoffs}
    costs = [
        {
            "system": system,
            "train seconds": 0 if system == "BM25" else float(generator.uniform(60, 90)),
            "encode seconds": float(generator.uniform(8, 30)),
            "search ms per query": float(generator.uniform(0.2, 9)),
            "bytes per document": int(generator.integers(300, 30000)),
            "parameters": None if system == "BM25" else int(22_713_216 + generator.integers(0, 50000)),
        }
        for system in SYSTEMS
    ]
    examples = []
    for query_id, query in QUERIES.items():
        for document_id, document in DOCUMENTS.items():
            systems = [align(system, query, document, generator) for system in SYSTEMS]
            examples.append(
                AlignmentExample(query_id, document_id, query, document, query_id == document_id, systems)
            )
    return Report(
        title="Seven paradigms on pydocs",
        summary="pydocs, 2,500 documents, 300 test queries (made-up numbers); all-MiniLM-L6-v2, trained for "
        "120 steps of 32 queries with 4 BM25 negatives; seed 0; 12.4 minutes on 2 cores.",
        tables=tables,
        curves=curves,
        costs=costs,
        settings={
            "collection": "pydocs",
            "documents": 2500,
            "steps": 120,
            "batch": 32,
            "learning_rate": 2e-5,
        },
        environment={"python": "3.11.9", "torch": "2.13.0", "transformers": "5.23.0", "threads": 2},
        notes=[
            "XTR's rerank scores use the tokens of the listed documents only.",
            "A subset of pydocs; --size full takes all.",
        ],
        alignments=examples,
    )


def hostile_report() -> Report:
    def system(name: str, query: list[str], document: list[str], links: list) -> SystemAlignment:
        return SystemAlignment(name, HOSTILE[0], query, document, links, 1.0, -0.5)

    examples = [
        AlignmentExample(
            text,
            HOSTILE[0],
            text,
            "",
            False,
            [
                system(text, [text, *HOSTILE], [], []),
                system(
                    "negative",
                    [text, "##" + text, "▁x"],
                    list(HOSTILE),
                    [(0, 1, -0.5, 1.0), (5, 0, 0.25, 1.0)],
                ),
            ],
        )
        for text in HOSTILE
    ]
    results = {text: PerQuery(["q"], {"nDCG@10": np.array([0.5])}) for text in HOSTILE}
    strings = {text: text for text in HOSTILE}
    return Report(
        title=HOSTILE[0],
        summary=HOSTILE[1],
        tables=[result_table(HOSTILE[0], results, baseline=HOSTILE[0])],
        curves={text: {1: 0.2} for text in HOSTILE},
        costs=[{"system": text, text: text} for text in HOSTILE],
        settings=strings,
        environment=strings,
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
        self.feed(path.read_text(encoding="utf-8"))

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
        return json.loads(
            next(text for attributes, text in self.scripts if attributes.get("id") == "alignments")
        )


@pytest.fixture(scope="module")
def sample():
    return sample_report()


@pytest.fixture(scope="module")
def page(sample, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(path, sample)
    return Page(path)


def test_report_needs_nothing_from_outside(page):
    for tag, attributes in page.elements:
        assert tag not in {"iframe", "frame", "object", "embed", "base", "img"}
        assert "src" not in attributes
        if "href" in attributes:
            assert attributes["href"].startswith(("#", "data:,"))
        assert not any(name.startswith("on") for name in attributes)
    policy = [
        a["content"]
        for tag, a in page.elements
        if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy
    assert policy[0].startswith("default-src 'none'")
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|innerHTML|eval\(", page.text)


def test_report_shows_every_number(page, sample):
    for table in sample.tables:
        assert table.title in page.text
        assert table.note in page.text
        for row in table.rows:
            for cell in row.cells.values():
                assert f"{cell.mean:.3f}" in page.text
                assert f"{cell.low:.3f}–{cell.high:.3f}" in page.text
        for row in table.comparisons:
            assert f"{row.p_adjusted:.4f}" in page.text
    for curve in sample.curves.values():
        for value in curve.values():
            assert f"{value:.3f}" in page.text
    for text in [
        sample.title,
        sample.summary,
        *sample.notes,
        "22.7 M",
        "parameters",
        "learning_rate",
        "2.13.0",
    ]:
        assert text in page.text


def test_report_is_plain_data(sample):
    assert json.loads(json.dumps(asdict(sample)))["alignments"][0]["systems"][0]["system"] == "BM25"


def test_links_of_the_page_lead_somewhere(page):
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = [attributes["href"][1:] for tag, attributes in page.elements if tag == "a"]
    assert len(targets) == 6
    assert set(targets) <= set(ids)


def test_alignment_data_holds_what_rel_sums(page, sample):
    data = page.data()
    assert len(data) == len(sample.alignments)
    for shown, example in zip(data, sample.alignments, strict=True):
        assert (shown["query"], shown["document"], shown["relevant"]) == (
            example.query,
            example.document,
            example.relevant,
        )
        for drawn, system in zip(shown["systems"], example.systems, strict=True):
            assert (drawn["system"], drawn["reads"]) == (system.system, system.reads)
            assert (drawn["query"], drawn["document"]) == (system.query_tokens, system.document_tokens)
            assert list(zip(drawn["i"], drawn["j"], strict=True)) == [(i, j) for i, j, _, _ in system.links]
            rel = np.dot(drawn["s"], drawn["a"]) / drawn["Z"]
            assert rel == pytest.approx(drawn["rel"], rel=2e-3, abs=1e-3)
            assert drawn["document_salience"] is None or len(drawn["document_salience"]) == len(
                drawn["document"]
            )


def test_hostile_text_stays_text(tmp_path):
    write_report(tmp_path / "report.html", hostile_report())
    page = Page(tmp_path / "report.html")
    assert len(page.scripts) == 2
    assert not any(tag in {"b", "img"} for tag, _ in page.elements)
    assert "window.broken" not in page.scripts[1][1]
    for shown, text in zip(page.data(), HOSTILE, strict=True):
        assert shown["query"] == text.replace("\ud800", "?")
        assert shown["systems"][0]["document"] == []
    raw = (tmp_path / "report.html").read_text(encoding="utf-8")
    block = raw.split('id="alignments">')[1].split("</script>")[0]
    assert "<" not in block
    assert "{{ 7 * 7 }}" in page.text  # templates inside data are not rendered


@pytest.mark.parametrize(
    "report",
    [
        Report("t", "s"),
        Report("t", "s", curves={"one": {10: 1.0}}, costs=[{"system": "a", "x": float("inf")}]),
        Report("t", "s", curves={"one": {}}),
        Report("t", "s", alignments=[AlignmentExample("q", "d", "q", "d", True, [])]),
    ],
)
def test_reports_with_little_in_them(report, tmp_path):
    write_report(tmp_path / "report.html", report)
    page = Page(tmp_path / "report.html")
    assert ("No alignments were recorded." in page.text) == (not report.alignments)
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"links": [(1, 0, 1.0, 1.0)]},
            r"query 'q', document 'd', system 'S': link \(1, 0\) outside 1 document and 1",
        ),
        ({"links": [(0, -1, 1.0, 1.0)]}, "outside"),
        ({"links": [(0, 0, float("-inf"), 1.0)]}, "system 'S': a number is not finite"),
        ({"rel": float("nan")}, "not finite"),
        ({"query_salience": [0.1, 0.2]}, "query_salience has 2 values for 1 tokens"),
    ],
)
def test_broken_alignments_are_named(change, message, tmp_path):
    fields = {
        "system": "S",
        "reads": "r",
        "query_tokens": ["a"],
        "document_tokens": ["b"],
        "links": [],
        "Z": 1.0,
        "rel": 0.0,
    }
    broken = AlignmentExample("q", "d", "a", "b", True, [SystemAlignment(**{**fields, **change})])
    with pytest.raises(ValueError, match=message):
        write_report(tmp_path / "report.html", Report("t", "s", alignments=[broken]))
    assert not list(tmp_path.iterdir())


def test_chart_puts_recall_where_its_axis_says():
    chart = recall_chart({"a": {1: 0.31, 10: 0.5, 100: 0.9}, "b": {1: 0.4, 100: 0.9}})
    low, high = chart["ticks"][0], chart["ticks"][-1]
    assert (low["value"], high["value"]) == ("0.3", "0.9")
    a, b = chart["lines"]
    expected = low["y"] + (high["y"] - low["y"]) * (0.5 - 0.3) / 0.6
    assert a["points"][1]["y"] == pytest.approx(expected, abs=0.1)
    assert a["points"][1]["x"] == pytest.approx((a["points"][0]["x"] + a["points"][2]["x"]) / 2, abs=0.1)
    assert abs(a["label_y"] - b["label_y"]) >= 15.9
    assert min(a["label_y"], b["label_y"]) == pytest.approx(high["y"], abs=0.1)  # kept inside the axes


def test_spread_keeps_order_and_moves_no_more_than_it_must():
    assert spread([50.0, 0.0, 100.0], 10.0, 0.0, 100.0) == [50.0, 0.0, 100.0]
    assert spread([5.0, 5.0, 5.0], 2.0, 0.0, 9.0) == pytest.approx([3.0, 5.0, 7.0])
    assert spread([5.0, 5.0, 5.0], 2.0, 4.0, 9.0) == pytest.approx([4.0, 6.0, 8.0])
    assert spread([5.0, 5.0, 5.0], 2.0, 0.0, 6.0) == pytest.approx([2.0, 4.0, 6.0])
    assert spread([], 2.0, 0.0, 1.0) == []


def test_numbers_for_people():
    shown = {
        None: "–",
        1234: "1,234",
        22_713_216: "22.7 M",
        0.01234: "0.0123",
        1536.4: "1,536",
        3e9: "3 G",
        "x": "x",
    }
    assert {value: format_number(value) for value in shown} == shown
    assert format_number(True) == "True"
    assert format_number(float("nan")) == "nan"


def test_alignment_picture_shows_the_product(sample, tmp_path):
    example = sample.alignments[3]
    figure = alignment_picture(example, "ColBERT")
    aligned = next(system for system in example.systems if system.system == "ColBERT")
    image = figure.axes[0].images[0].get_array()
    assert image.shape[0] == len(aligned.query_tokens)
    assert image.shape[1] == len({i for i, *_ in aligned.links}) < len(aligned.document_tokens)
    assert image.sum() == pytest.approx(aligned.rel * aligned.Z)  # every link is among the tokens used most
    figure.savefig(tmp_path / "alignment.png")
    assert (tmp_path / "alignment.png").stat().st_size > 5000
    with pytest.raises(ValueError, match=r"no system 'T5' in this example; it holds: BM25, DPR"):
        alignment_picture(example, "T5")


def test_alignment_picture_says_what_it_leaves_out():
    links = [(i, j, 1.0 + i, 1.0) for i in range(299, 199, -1) for j in (0, 63)]
    system = SystemAlignment(
        "S", "r", [f"q{j}" for j in range(64)], [f"d{i}" for i in range(300)], links, 1.0, 1.0
    )
    axes = alignment_picture(AlignmentExample("q", "d", "", "", True, [system]), "S").axes[0]
    said = "shown: 60 of 300 document tokens, those used most; 2 of 64 query tokens, those used most"
    assert said in axes.get_title("left")
    assert [label.get_text() for label in axes.get_xticklabels()] == [f"d{i}" for i in range(240, 300)]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["q0", "q63"]
    unused = SystemAlignment("S", "r", ["q"], [f"d{i}" for i in range(300)], [], 1.0, 0.0)
    axes = alignment_picture(AlignmentExample("q", "d", "", "", True, [unused]), "S").axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == [f"d{i}" for i in range(60)]


@pytest.mark.filterwarnings("ignore:Glyph")
def test_pictures_of_hostile_text_and_of_nothing(tmp_path):
    for example in hostile_report().alignments:
        for system in example.systems:
            alignment_picture(example, system.system).savefig(tmp_path / "a.png")
    recall_picture({text: {1: 0.2, 10: 0.4} for text in HOSTILE}).savefig(tmp_path / "r.png")
    with pytest.raises(ValueError, match="no recall curve"):
        recall_picture({})


def test_recall_picture_draws_each_system(sample):
    axes = recall_picture(sample.curves).axes[0]
    assert [list(line.get_ydata()) for line in axes.lines] == [
        list(curve.values()) for curve in sample.curves.values()
    ]
    assert [text.get_text() for text in axes.texts] == list(SYSTEMS)
