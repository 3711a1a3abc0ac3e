"""A between tokens as HTML: what notebooks show is the report's card, in a frame that reaches nothing."""

import html
import json
import re

import pytest
import torch

from paradigms.core import Interaction
from paradigms.explanation import Explanation, Picture
from paradigms.view import card_data, page
from paradigms.view.report import AlignmentExample
from tests import browser

PAIR = Explanation("colbert", "S", ["fish", "sea"], ["a", "fish"], [(1, 0, 0.5, 1.0)], 2.0, 0.25)


def shown(value: object) -> str:
    """The page in the frame that a notebook shows."""
    frame = value._repr_html_()
    assert re.match(r'<iframe sandbox="allow-scripts" ', frame)
    return html.unescape(re.search(r'srcdoc="([^"]*)"', frame)[1])


def cards(text: str) -> list[dict]:
    return json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])


def test_an_explained_pair_and_a_comparison_show_their_cards():
    (card,) = cards(shown(PAIR))
    assert (card["system"], card["rel"], card["i"], card["j"]) == ("colbert", 0.25, [1], [0])
    example = AlignmentExample("q", "d", "fish <sea>", "a fish", True, [PAIR, PAIR])
    assert len(cards(shown(example))) == 2
    assert "fish &lt;sea&gt;" in shown(example)


def test_an_interaction_shows_what_rel_sums():
    torch.manual_seed(0)
    S, A = torch.randn(2, 1, 3, 2), torch.zeros(2, 1, 3, 2)
    A[:, :, 1] = 1
    interaction = Interaction(S, A, torch.full((2, 1), 2.0))
    drawn = cards(shown(interaction))
    assert [card["system"] for card in drawn] == ["query 0, document 0", "query 1, document 0"]
    for card, rel in zip(drawn, interaction.rel[:, 0].tolist(), strict=True):
        total = sum(s * a for s, a in zip(card["s"], card["a"], strict=True)) / card["Z"]
        assert total == pytest.approx(rel, abs=1e-3)  # drawn with four digits
        assert card["i"] == [1, 1]


@pytest.mark.slow
@browser.needed
def test_a_picture_has_a_grid_of_its_patches(tmp_path, tab):
    """Patches lie over the picture, row by row, and a query token shades those that it is aligned to."""
    dot = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
    names = ["<bos>", *(f"[{n // 3 + 1}, {n % 3 + 1}]" for n in range(6)), "describe"]
    links = [(5, 0, 0.9, 1.0), (7, 1, 0.5, 1.0)]
    drawn = Picture(dot, 300, 200, 3, 2, list(range(1, 7)))
    pair = Explanation("colpali", "S", ["fish", "sea"], names, links, 1.0, 1.4, picture=drawn)
    (tmp_path / "page.html").write_text(page([card_data(pair)], "fish sea"), encoding="utf-8")
    tab.open((tmp_path / "page.html").as_uri())
    assert tab.count(".patches .token") == 6
    every = "[...document.querySelectorAll('.picture, .patches .token')]"
    boxes = tab.script(f"{every}.map((one) => one.getBoundingClientRect().toJSON())")
    frame, first, fifth = boxes[0], boxes[1], boxes[5]  # [2, 2] is the middle of the second row
    assert frame["width"] / frame["height"] == pytest.approx(1.5, rel=0.02)
    assert (first["x"], first["y"]) == pytest.approx((frame["x"], frame["y"]), abs=2)
    middle = fifth["x"] + fifth["width"] / 2, fifth["y"]
    half = frame["x"] + frame["width"] / 2, frame["y"] + frame["height"] / 2
    assert middle == pytest.approx(half, abs=2)
    weights = f"{every}.slice(1).map((one) => +one.style.getPropertyValue('--weight'))"
    assert tab.script(weights) == pytest.approx([0, 0, 0, 0, 1, 0])
    tab.click(".tokens.query .token:nth-of-type(2)")
    assert tab.script(weights) == [0] * 6
    assert tab.errors == []
