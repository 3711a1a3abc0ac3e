"""The report's alignment view in a real browser: permalinks, keyboard and appearance."""

from pathlib import Path
from urllib.parse import parse_qs, quote

import pytest

from paradigms.explanation import Explanation
from paradigms.view.report import AlignmentExample, Report, write_report
from tests import browser

pytestmark = [browser.needed, pytest.mark.slow]


def system(name: str, links: list[tuple[int, int, float, float]], salience: list[float] | None = None):
    tokens = ["[CLS]", "fish", "in", "seas"]
    return Explanation(name, "S", ["fish", "sea"], tokens, links, 2.0, 0.5, document_salience=salience)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Two documents of one query, two systems."""
    systems = [
        system("colbert", [(1, 0, 0.9, 1.0), (3, 1, 0.1, 1.0)]),
        system("aligner", [(1, 0, 0.8, 1.0), (3, 1, 0.2, 0.5)], [0.0, 1.0, 0.25, 0.5]),
    ]
    examples = [
        AlignmentExample("q 1", name, "fish & sea", f"text of {name}", name == "one", systems)
        for name in ("one", "two & three")
    ]
    file = tmp_path_factory.mktemp("report") / "report.html"
    write_report(file, Report(title="Test", summary="A test.", alignments=examples))
    return file


def show(tab: browser.Page, report: Path, state: str = "") -> None:
    tab.open(f"{report.as_uri()}{state}")
    tab.wait("document.querySelectorAll('#systems .card').length")


def state_of(tab: browser.Page) -> dict[str, list[str]]:
    link = tab.script("document.querySelector('#state').hash")
    assert link == tab.script("location.hash")
    return parse_qs(link.partition("?")[2])


def test_a_page_without_a_state_makes_one(tab, report):
    show(tab, report)
    assert state_of(tab) == {"query": ["q 1"], "document": ["one"]}
    assert tab.texts("#systems .card h3") == ["colbert", "aligner"]
    assert tab.errors == []


def test_a_link_restores_what_was_chosen_shown_and_held(tab, report):
    chosen = {"query": "q 1", "document": "two & three", "without": "colbert", "hold": "query sea 0"}
    show(tab, report, "#alignment?" + "&".join(f"{name}={quote(value)}" for name, value in chosen.items()))
    assert state_of(tab) == {name: [value] for name, value in chosen.items()}
    assert tab.texts("#systems .card h3") == ["aligner"]
    assert tab.text("#document-text") == "text of two & three"
    assert tab.text("#systems .linked").startswith("sea ↔ seas 100%")


def test_the_keyboard_reaches_holds_and_lets_go(tab, report):
    show(tab, report)
    tab.script("document.querySelector('#systems .tokens.document .token').focus()")
    for key, token, linked in (
        ("ArrowRight", "fish", "fish ↔ fish 100%"),
        ("End", "seas", "seas ↔ sea 100%"),
    ):
        tab.press(key)
        assert tab.script("document.activeElement.textContent") == token
        assert tab.text("#systems .linked").startswith(linked)
    tab.press("Enter")
    assert state_of(tab)["hold"] == ["document seas 0"]
    tab.press("Escape")
    assert "hold" not in state_of(tab)
