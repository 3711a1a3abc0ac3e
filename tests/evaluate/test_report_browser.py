"""The report's alignment view in a real browser: links to a state, the keyboard, and what it looks like."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from urllib.parse import parse_qs, quote

import numpy as np
import pytest
from matplotlib.image import imread

from paradigms.evaluate import AlignmentExample, Report, write_report
from paradigms.explanation import Explanation

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next((path for name in BROWSERS if (path := shutil.which(name))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason=f"needs a browser, one of {', '.join(BROWSERS)}")


def system(name: str, links: list[tuple[int, int, float, float]], salience: list[float] | None = None):
    tokens = ["[CLS]", "fish", "in", "seas"]
    return Explanation(name, "S", ["fish", "sea"], tokens, links, 2.0, 0.5, document_salience=salience)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
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


def browse(page: Path, state: str = "", script: str = "", picture: Path | None = None) -> str:
    """The page as the browser has it once `script` has run at its end."""
    if script:
        text = page.read_text(encoding="utf-8").replace("</body>", f"<script>{script}</script></body>")
        page = page.with_name("scripted.html")
        page.write_text(text, encoding="utf-8")
    what = ["--dump-dom"] if picture is None else [f"--screenshot={picture}", "--window-size=1000,1600"]
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=2000", "--timeout=20000"]
    done = subprocess.run(
        [str(BROWSER), *flags, *what, f"{page.as_uri()}{state}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout


def state_of(dom: str) -> dict[str, list[str]]:
    link = re.search(r'id="state" href="#alignment\?([^"]*)"', dom)
    return parse_qs(link[1].replace("&amp;", "&"))


def test_a_page_without_a_state_makes_one(page):
    """And shows salience as the ink of a token."""
    dom = browse(page)
    assert state_of(dom) == {"query": ["q 1"], "document": ["one"]}
    assert dom.count('<article class="card">') == 3  # two, and their template
    found = re.findall(r'style="[^"]*--salience: ([\d.]+)', dom)
    assert [float(value) for value in found] == [0.0, 1.0, 0.25, 0.5]


def test_a_link_restores_what_was_chosen_shown_and_held(page):
    given = {"query": "q 1", "document": "two & three", "without": "colbert", "hold": "query sea 0"}
    state = "&".join(f"{name}={quote(value)}" for name, value in given.items())
    dom = browse(page, f"#alignment?{state}")
    assert state_of(dom) == {name: [value] for name, value in given.items()}
    shown = dom[dom.index('<div id="systems">') : dom.index("<template")]
    assert "<h3>aligner</h3>" in shown
    assert "<h3>colbert</h3>" not in shown
    assert "text of two &amp; three" in dom
    assert re.search(r'<p class="linked"[^>]*><b>sea</b> ↔ <b>seas</b> 100%', shown)


def test_an_address_of_nothing_shows_the_first(page):
    dom = browse(page, "#alignment?query=none&document=one")
    assert state_of(dom) == {"query": ["q 1"], "document": ["one"]}


def test_the_keyboard_reaches_holds_and_lets_go(page):
    script = """
      const pressed = (key) => new KeyboardEvent("keydown", {key, bubbles: true});
      const press = (key) => document.activeElement.dispatchEvent(pressed(key));
      const said = () => document.querySelector("#systems .linked").textContent;
      const found = [];
      document.querySelector("#systems .tokens.document .token").focus();
      press("ArrowRight"); found.push(document.activeElement.textContent, said());
      press("End"); found.push(document.activeElement.textContent, said());
      press("Enter"); found.push(location.hash);
      press("Escape"); found.push(location.hash);
      document.title = JSON.stringify(found);
    """
    dom = browse(page, script=script)
    found = re.search(r"<title>(.*?)</title>", dom, re.DOTALL)
    first, first_said, last, last_said, held, free = json.loads(found[1].replace("&amp;", "&"))
    assert (first, last) == ("fish", "seas")
    assert first_said.startswith("fish ↔ fish 100%")
    assert last_said.startswith("seas ↔ sea 100%")
    assert "hold=document+seas+0" in held
    assert "hold" not in free


def test_the_view_is_drawn(page, tmp_path):
    """Blue for links, on a page that is not blank."""
    browse(page, picture=tmp_path / "view.png")
    pixels = imread(tmp_path / "view.png")[..., :3]
    assert pixels.std() > 0.02
    blue = (pixels[..., 2] > pixels[..., 0] + 0.2) & (pixels[..., 2] > 0.4)
    assert np.count_nonzero(blue) > 200
