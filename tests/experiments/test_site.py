"""The site: every page is in it, links and anchors lead somewhere, and a browser searches it."""

import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import build_site
import pytest

from tests import browser, needs
from tests.experiments.scripts import run


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    (folder / "api").mkdir()
    (folder / "api" / "paradigms.html").write_text("<title>paradigms</title>")
    run("build_site", output=folder / "out", api=folder / "api")
    return folder / "out"


@needs.mkdocs
@needs.offline_encoder
@pytest.mark.slow
@browser.needed
def test_the_site_in_a_browser(site):
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address, tab = f"http://127.0.0.1:{server.server_port}", browser.Page()
    try:
        tab.open(f"{address}/live/alignments.html")
        assert tab.wait("document.querySelectorAll('.card').length") == len(build_site.UNDER)
        tab.open(f"{address}/experiments/papers/wu2024/details.html")
        assert tab.count("details.note") == tab.count("h2") > 3, "studies are folded"
        tab.open(f"{address}/index.html")
        assert "Functions" in " ".join(tab.texts(".md-tabs__link"))
        tab.click("[data-md-component=search-query]")
        tab.type("imputation")
        tab.wait("document.querySelectorAll('.md-search-result__item').length > 2")
        assert not tab.errors
    finally:
        tab.close()
        server.shutdown()


@needs.mkdocs
@pytest.mark.slow
def test_a_link_that_leads_nowhere_ends_the_build(tmp_path, monkeypatch):
    def collect(folder: Path) -> None:
        folder.mkdir()
        (folder / "README.md").write_text("# A\n[b](nowhere.md)\n")

    monkeypatch.setattr(build_site, "collect", collect)
    with pytest.raises(SystemExit, match="the site was not built"):
        run("build_site", output=tmp_path / "out", api=tmp_path / "none")
