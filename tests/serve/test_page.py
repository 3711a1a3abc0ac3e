"""The live page in a real browser: every control by pointer or keyboard, and hostile texts."""

import json
from itertools import pairwise
from urllib.parse import parse_qs, quote
from xml.etree import ElementTree

import pytest

from paradigms import PARADIGMS
from paradigms.align import TopK
from paradigms.baselines.bm25 import BM25
from paradigms.data import Corpus, Split
from paradigms.retrieve import Indexed
from tests import browser
from tests.serve.served import QUERY, SLASH, needed, serving

pytestmark = [needed, browser.needed, pytest.mark.slow]
NAMES = ("bm25", "colbert", "aligner", "fused")


@pytest.fixture(scope="module", name="retrievers")
def four_retrievers(retrievers):
    return {name: retrievers[name] for name in NAMES}


@pytest.fixture(scope="module")
def address(retrievers):
    with serving(retrievers) as port:
        yield f"http://127.0.0.1:{port}/"


@pytest.fixture
def page(tab, address):
    """The page after one query has been typed."""
    tab.resize(1280, 900)
    tab.open(address)
    tab.wait("document.querySelectorAll('#shown input').length === 4")
    tab.click("#query")
    tab.type(QUERY)
    listed(tab, 4)
    yield tab
    assert tab.errors == []


def listed(tab, systems):
    """Wait until so many columns have documents."""
    tab.wait(f"document.querySelectorAll('.column:has(.entry)').length === {systems}")


def column(tab, name):
    """[(document, score)] of a system as the page shows them."""
    entries = f"[...document.querySelectorAll('.entry')].filter((one) => one.dataset.system === '{name}')"
    return tab.script(
        f"{entries}.map((one) => [one.dataset.id, one.querySelector('.name').lastChild.data ?? "
        "one.querySelector('.name').lastChild.textContent])"
    )


def entry(name, document):
    return f".entry[data-system='{name}'][data-id='{document}']"


def opened(tab, name="colbert", document="7"):
    """Open a document, and wait for the cards of all systems: the fusion's names its parts."""
    tab.click(entry(name, document))
    tab.wait("document.querySelectorAll('#systems .card').length === 4")


def state(tab):
    return {name: values[0] for name, values in parse_qs(tab.script("location.hash.slice(1)")).items()}


def shown(value):
    return str(float(f"{value:.4g}")).removesuffix(".0")


def test_what_is_typed_is_searched_by_every_system(page, retrievers):
    """Typing searches; columns show each system's documents and scores, and lines join equal documents."""
    for name, retriever in retrievers.items():
        ranked = retriever.search({"q": QUERY}, 10)["q"]
        assert [id for id, _ in column(page, name)] == list(ranked)
        assert [score for _, score in column(page, name)] == [shown(score) for score in ranked.values()]
    columns = [{id for id, _ in column(page, name)} for name in NAMES]
    assert page.count("#joins path") == sum(len(a & b) for a, b in pairwise(columns))
    page.fill("#query", "zzz")
    page.wait("document.querySelector('.column .quiet').textContent.startsWith('nothing found')")
    assert state(page)["query"] == "zzz"


def test_a_document_opens_with_the_cards_of_all_systems(page, retrievers):
    opened(page)
    assert page.texts("#systems h3") == ["bm25", "colbert", "aligner", "fused"]
    assert "A fusion of bm25 and colbert, whose cards" in page.text("#systems .card:nth-child(4)")
    assert page.script("document.querySelector('#text').value") == "the cold sea and fish"
    ranked = list(retrievers["colbert"].search({"q": QUERY}, 100)["q"])
    assert page.texts(".rank")[1] == f"rank {1 + ranked.index('7')}"
    assert page.count(f"{entry('bm25', '7')}[aria-pressed=true]") == 1
    page.point("#systems .card:nth-child(2) .tokens.query .token")
    pointed = page.text("#systems .card:nth-child(2) .linked")
    assert pointed.startswith("fish ↔ ")
    assert "(S " in pointed
    page.click("#close")
    page.wait("document.querySelector('#opened').hidden")
    assert "document" not in state(page)


def test_another_a_acts_at_once_on_ranks_and_links(page, retrievers):
    opened(page)
    links = "document.querySelectorAll('#systems .card')[1].querySelector('.facts').textContent"
    before = page.script(links)
    page.choose("#align", "TopK")
    page.wait(f"{links} !== {json.dumps(before)}")
    page.fill("#knobs input[name=k]", "3")
    page.wait(f"{links}.includes('15 links')")  # three for each of five query tokens
    model = retrievers["colbert"].model.with_alignment(TopK(3))
    run = retrievers["colbert"].search({"q": QUERY}, 100)
    other = Indexed(retrievers["colbert"].index, model).rerank({"q": QUERY}, run)["q"]
    first = [shown(score) for score in list(other.values())[:10]]
    said = "colbert is not ranked by TopK(k=3)"
    browser.until(lambda: [score for _, score in column(page, "colbert")] == first, said)
    page.choose("#normalise", "total")
    page.wait(f"{links}.includes('Z 15')")
    chosen = {"query": QUERY, "judged": "q1", "document": "7", "align": "TopK(k=3)", "normalise": "total"}
    assert state(page) == chosen
    page.click("#plain")
    page.wait(f"{links} === {json.dumps(before)}")
    assert "align" not in state(page)


def test_a_sentence_says_which_number_is_wrong(page):
    page.choose("#align", "Buckets")
    assert page.script("document.querySelector('#knobs input[name=seed]').placeholder") == "0"
    page.choose("#align", "Entropic")
    page.fill("#knobs input[name=k]", "-1")
    page.wait("document.querySelector('#message').textContent.includes('Entropic: k must be above 0')")
    page.fill("#knobs input[name=k]", "1")
    page.wait("document.querySelector('#message').textContent === ''")
    page.errors.clear()  # the browser logs each answer of status 400
    page.fill("#k", "500")
    assert page.text("#message") == "documents must be a whole number from 1 to 100; there are 10"
    page.wait("window.waitingFor === 0")
    assert page.text("#message")  # no late answer removes it
    page.fill("#query", f"{QUERY} 5")  # leaves the field
    assert page.script("document.querySelector('#k').value") == "10"
    page.wait("window.waitingFor === 0")
    assert len(column(page, "bm25")) == 10


def test_an_edited_document_changes_its_tokens_and_scores(page):
    opened(page)
    rel = "document.querySelector('#systems .facts b').textContent"
    before = page.script(rel)
    page.fill("#text", "fish fish fish sea cold <b>bold</b>")
    page.wait(f"{rel} !== {json.dumps(before)}")
    page.wait("document.querySelectorAll('#systems .card')[3].textContent.includes('its corpus only')")
    page.wait("document.querySelectorAll('#systems .card')[1].textContent.includes('bold')")
    tokens = page.texts("#systems .card:nth-child(2) .tokens.document .token")
    assert tokens[:4] == ["fish", "fish", "fish", "sea"]
    assert page.count("#systems .token b") == 0
    assert state(page)["text"].startswith("fish fish")
    page.fill("#text", " ")
    page.wait("document.querySelector('#message').textContent.startsWith('The document is empty')")
    assert page.count("#systems .card") == 0
    page.click("#undo")
    page.wait(f"document.querySelector('#systems .facts b') && {rel} === {json.dumps(before)}")
    assert page.text("#message") == ""
    assert "text" not in state(page)


def test_two_documents_side_by_side_say_why(page, retrievers):
    """The page lists differences by query token, which add up to the difference of rel."""
    opened(page)
    page.choose("#other", SLASH)
    page.wait("document.querySelectorAll('#why .card').length === 3")
    rows = "[...document.querySelectorAll('#why .card:nth-child(2) tr')]"
    differences = page.script(f"{rows}.map((row) => row.cells[3].textContent)")
    mine, theirs = (retrievers["colbert"].explain(QUERY, id)[0].rel for id in ("7", SLASH))
    assert sum(map(float, differences[1:-1])) == pytest.approx(mine - theirs, abs=0.01)
    above = "7" if mine >= theirs else SLASH
    assert page.text("#why .card:nth-child(2) .quiet").startswith(f"{above} is above")


def test_a_link_holds_the_whole_state(page, address):
    opened(page)
    page.choose("#align", "TopK")
    page.choose("#other", SLASH)
    page.fill("#k", "5")
    page.click("#shown label:nth-of-type(3) input")
    page.wait("document.querySelectorAll('#systems .card').length === 4")
    page.click("#systems .card:nth-child(2) .tokens.query .token")
    page.wait("document.querySelector('#link').href.includes('hold=')")
    page.fill("#text", "the cold sea and fish swim")
    page.wait("document.querySelectorAll('#systems .card')[1].textContent.includes('swim')")
    link, chosen = page.script("document.querySelector('#link').href"), state(page)
    assert {*chosen} == {"query", "judged", "document", "other", "align", "text", "k", "without", "hold"}
    page.open(link)
    page.wait("document.querySelectorAll('#systems .card').length === 3")  # the fusion scores no edited text
    page.wait("document.querySelectorAll('.token.active').length > 0")
    page.wait("document.querySelectorAll('.entry[data-system=colbert]').length === 5")
    assert state(page) == chosen
    assert page.script("document.querySelector('#query').value") == QUERY
    assert column(page, "aligner") == []


def test_a_walk_goes_through_the_queries_where_two_systems_differ(page):
    page.choose("#first", "bm25")
    page.choose("#second", "colbert")
    page.click("#walk")
    page.wait("document.querySelector('#difference').value.startsWith('1 of 2')")
    first = state(page)["judged"]
    assert page.script("document.querySelector('#previous').disabled")
    page.click("#next")
    page.wait("document.querySelector('#difference').value.startsWith('2 of 2')")
    assert {first, state(page)["judged"]} == {"q1", "q2"}
    page.click("#previous")
    page.wait("document.querySelector('#difference').value.startsWith('1 of 2')")
    assert state(page)["judged"] == first


def test_the_view_is_saved_as_an_image_and_as_a_page(page, tab):
    opened(page)
    for button, name in (("#save-svg", "alignment.svg"), ("#save-html", "alignment.html")):
        page.click(button)
        file = page.downloads / name
        browser.until(file.is_file, f"no {name}")
    image = ElementTree.parse(page.downloads / "alignment.svg").getroot()
    texts = " ".join(one.text for one in image.iter("{http://www.w3.org/2000/svg}text"))
    assert "colbert" in texts
    assert "1. " in texts
    assert len(list(image.iter("{http://www.w3.org/2000/svg}path"))) > 5
    cards = page.texts("#systems .token")
    page.open((page.downloads / "alignment.html").as_uri())
    assert page.texts(".card h3") == ["bm25", "colbert", "aligner"]
    assert page.texts(".token") == cards


def test_the_keyboard_alone_is_enough(tab, address):
    """Type, tab to a document, open it, reach a token, hold it, and let it go."""
    tab.open(address)
    tab.wait("document.querySelectorAll('#shown input').length === 4")
    assert tab.script("document.activeElement.id") == "query"
    tab.type(QUERY)
    tab.script("window.loaded = 1")
    tab.press("Enter")
    listed(tab, 4)
    assert tab.script("window.loaded") == 1  # a form that is sent would load the page again

    def tab_to(condition):
        for _ in range(80):
            if tab.script(condition):
                return
            tab.press("Tab")
        raise AssertionError(f"the Tab key never reaches {condition}")

    tab_to("document.activeElement.matches('.column:nth-child(2) .entry')")
    tab.press("Enter")
    tab.wait("document.querySelectorAll('#systems .card').length === 4")
    tab_to("document.activeElement.matches('#systems .token')")
    tab.press("Enter")
    assert "hold" in state(tab)
    tab.press("Escape")
    assert "hold" not in state(tab)
    assert tab.errors == []


def hostile() -> list[str]:
    """Texts that a page might run, or be broken by."""
    code = "window.broken = 1"
    return [
        f"</script><script>{code}</script>",
        f"<img src=x onerror='{code}'>",
        f"<iframe srcdoc='<script>parent.{code}</script>'></iframe>",
        f"<style>@import 'javascript:{code}'; * {{ display: none }}</style>",
        "<meta http-equiv=refresh content='0;url=https://evil.example/'>",
        f'" onmouseover="{code}',
        "&amp;&lt;&quot;&#39;",
        "__proto__",
        "\u2028line\u2029separators \x00nul\x1b[31mescape\x07",
        "\u202eright to left\u202c \u2066isolate 👩‍🔬🧪 e\u0301 漢字",
        "a" * 2000 + "\nline\ttab\r\nreturn",
    ]


def test_hostile_texts_stay_texts(tab, tiny_bert):
    """Queries, documents, titles, ids and system names are shown literally, and no script runs."""
    texts = hostile()
    ids = [f"{n} {text}" for n, text in enumerate(texts)]
    corpus = Corpus(ids, [f"fish {text}" for text in texts], texts)
    judged = Split(dict(zip(corpus.ids, texts, strict=True)), {corpus.ids[0]: {corpus.ids[1]: 1}})
    index = Indexed.build(PARADIGMS["colbert"](tiny_bert, document_length=24), corpus)
    bm25 = BM25(corpus)
    with serving({texts[0]: bm25, texts[1]: index, "__proto__": bm25}, corpus, judged) as port:
        address = f"http://127.0.0.1:{port}/"
        tab.open(address)
        tab.wait("document.querySelectorAll('#shown input').length === 3")
        elements = "document.querySelectorAll('script, img, iframe, style, base, meta, link, form').length"
        before = tab.script(elements)
        tab.fill("#k", "100")
        tab.fill("#query", "fish")
        tab.wait(f"document.querySelectorAll('.entry').length === {3 * len(texts)}")
        for name in (texts[0], texts[1], "__proto__"):
            assert name in tab.texts(".column h3")
        seen = set(tab.script("[...document.querySelectorAll('.entry')].map((one) => one.dataset.id)"))
        assert seen == set(corpus.ids)
        for n, text in enumerate(texts):
            id = quote(corpus.ids[n], safe="")
            query = quote(f"fish {text}".replace("\x00", ""), safe="")
            tab.open(f"{address}#query={query}&document={id}&other={id}&judged={id}&without={query}")
            tab.wait("document.querySelectorAll('#systems .card').length === 3")
            value = tab.script("document.querySelector('#text').value")
            assert value.split() == f"fish {text}".split()
            assert tab.script("window.broken") is None
            assert tab.script(elements) == before
            assert tab.script("location.origin + '/'") == address
            assert tab.errors == [], text


def test_a_token_in_the_address_opens_the_page(tab, retrievers):
    with serving({"bm25": retrievers["bm25"]}, token="secret-token") as port:
        tab.open(f"http://127.0.0.1:{port}/")
        tab.wait("document.querySelector('#message').textContent.startsWith('the token is missing')")
        tab.open(f"http://127.0.0.1:{port}/#token=secret-token")
        tab.wait("document.querySelectorAll('#shown input').length === 1")
        assert "secret" not in tab.script("location.href")
