"""The built-in collection: what becomes a document, that nothing leaks, that it is the same every time."""

import textwrap
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paradigms.data import Collection, Split, load_collection, pydocs
from paradigms.data.near import near_copies, words

REST = " ".join(f"word{i}" for i in range(30))


def similarity(x: str, y: str) -> float:
    """Jaccard similarity of the triples of words."""
    a, b = (set(zip(results, results[1:], results[2:], strict=False)) for results in map(words, (x, y)))
    return len(a & b) / max(len(a | b), 1)


@given(
    st.lists(st.lists(st.sampled_from("abc"), max_size=12).map(" ".join), max_size=12),
    st.sampled_from([0.3, 0.5, 0.8]),
)
def test_near_copies_are_those_that_brute_force_finds(texts, threshold):
    kept: list[str] = []
    expected = []
    for text in texts:
        expected.append(any(similarity(text, other) >= threshold for other in kept))
        if not expected[-1]:
            kept.append(text)
    assert near_copies(texts, threshold) == expected
    originals = len(texts) // 2
    alone = [near_copies([*texts[:originals], text], threshold, originals)[-1] for text in texts[originals:]]
    assert near_copies(texts, threshold, originals) == [False] * originals + alone


@pytest.mark.parametrize(
    ("docstring", "expected"),
    [
        (f"Open the file.\n\n{REST}", ("Open the file.", REST)),
        (f"\n    Open the\n    named file.\n\n      {REST}   \n    ", ("Open the named file.", REST)),
        (f"Open the file.\n\n    {REST}\n\n        more", ("Open the file.", f"{REST}\n\n    more")),
        (f"Open it.\n\n{REST}", None),  # a summary of two words
        ("Open the file.\n\n" + " ".join(["word"] * 29), None),
        (f">>> open the file\n\n{REST}", None),
        (f"Args: the file name\n\n{REST}", None),
    ],
)
def test_a_docstring_divides_into_summary_and_rest(docstring, expected):
    assert pydocs.divided(docstring) == expected


def test_which_definitions_count(tmp_path):
    source = """
        "DOC"
        import nothing_that_exists
        if True:
            def conditional(): "DOC"
        class Public:
            "DOC"
            def method(self):
                "DOC"
                def nested(): "DOC"
            def _private(self): "DOC"
            async def __aenter__(self): "DOC"
        class _Private:
            def method(self): "DOC"
    """
    file = tmp_path / "part.py"
    for n in range(source.count("DOC")):
        source = source.replace("DOC", f"Say what number {n} does.\\n\\n{REST} {n}", 1)
    file.write_text(textwrap.dedent(source))
    results = {item.id: item for item in pydocs.docstrings("numpy.lib.part", file)}
    names = ["", "conditional", "Public", "Public.method", "Public.__aenter__"]
    assert list(results) == [f"numpy.lib.part:{name}" for name in names]
    method = results["numpy.lib.part:Public.method"]
    assert (method.summary, method.rest) == ("Say what number 3 does.", f"{REST} 3")
    assert method.group == "numpy.lib"
    file.write_text("# This file was automatically generated from x\n" + file.read_text())
    assert not list(pydocs.docstrings("x", file))
    file.write_text("def broken(:")
    assert not list(pydocs.docstrings("x", file))


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Set a separate cache, with a few packages of the standard library as the only sources."""
    chosen = ("asyncio", "email", "json", "logging")
    sources = {name: path for name, path in pydocs._sources().items() if name in chosen}
    monkeypatch.setattr(pydocs, "_sources", lambda: sources)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "retrieval-paradigms"


def test_the_cache_is_used_checked_and_rebuilt(small, monkeypatch, capfd):
    builds, build = [], pydocs.build
    monkeypatch.setattr(pydocs, "build", lambda sources: builds.append(1) or build(sources))
    first = load_collection("pydocs")
    assert load_collection("pydocs").fingerprint == first.fingerprint
    assert len(builds) == 1
    (folder,) = (path for path in small.iterdir() if path.is_dir())
    content = (folder / "corpus.jsonl").read_text()
    (folder / "corpus.jsonl").write_text(content.replace("event", "EVENT", 1))
    assert load_collection("pydocs").fingerprint == first.fingerprint
    assert (folder / "corpus.jsonl").read_text() == content
    assert len(builds) == 2

    versions = {**pydocs.installed_versions(), "numpy": "0.0"}
    monkeypatch.setattr(pydocs, "installed_versions", lambda: versions)
    assert load_collection("pydocs").fingerprint != first.fingerprint
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("small")
def test_a_subset_is_fixed_and_in_proportion():
    whole = load_collection("pydocs")
    part = load_collection("pydocs", documents=100)
    assert part.name == "pydocs-100"
    assert len(part.corpus) == 100
    assert part.fingerprint not in (whole.fingerprint, load_collection("pydocs", documents=101).fingerprint)
    assert part.fingerprint == load_collection("pydocs", documents=100).fingerprint
    for name in pydocs.SHARES:
        split, shrunk = whole.split(name), part.split(name)
        counts = [sum(query.startswith("q:") for query in queries.queries) for queries in (split, shrunk)]
        assert abs(counts[1] - 100 * counts[0] / len(whole.corpus)) < 1
        assert shrunk.queries.items() <= split.queries.items()
        assert all(split.judgements[query] == grades for query, grades in shrunk.judgements.items())
    rows = whole.corpus.only(part.corpus.ids)
    assert (rows.ids, list(rows), rows.titles) == (part.corpus.ids, [*part.corpus], [*part.corpus.titles])
    for wrong in (0, len(whole.corpus) + 1):
        with pytest.raises(ValueError, match=f"documents, not {wrong}"):
            load_collection("pydocs", documents=wrong)


@pytest.fixture(scope="module")
def whole():
    return load_collection("pydocs")


def known_items(whole: Collection) -> list[Split]:
    splits = []
    for name in pydocs.SHARES:
        split = whole.split(name)
        queries = {query: text for query, text in split.queries.items() if query.startswith("q:")}
        splits.append(Split(queries, {query: split.judgements[query] for query in queries}))
    return splits


def test_every_summary_has_its_own_document_in_one_split(whole):
    judged = [pair for split in known_items(whole) for pair in split.judgements.items()]
    assert all(query == f"q:{document}" for query, (document,) in judged)
    assert sorted(query.removeprefix("q:") for query, _ in judged) == whole.corpus.ids
    texts = Counter(" ".join(words(text)) for split in known_items(whole) for text in split.queries.values())
    assert texts.most_common(1)[0][1] == 1


@pytest.mark.parametrize(("name", "summaries"), [("parameters", "test"), ("train", "train"), ("dev", "dev")])
def test_the_relevant_documents_of_a_parameter_are_those_that_hold_its_words(name, summaries):
    collection = load_collection("pydocs", documents=800)
    rows = zip(collection.corpus.ids, collection.corpus, strict=True)
    texts = {id: f" {' '.join(words(text))} " for id, text in rows}
    split = collection.split(name)
    described = [query for query in split.queries if query.startswith("p:")]
    assert len(described) > 20
    order = [*pydocs.SHARES]
    later = order[order.index(summaries) + 1 :]
    others = {query[2:] for other in later for query in collection.split(other).queries}
    for query in described[::20]:
        phrase = f" {' '.join(words(split.queries[query]))} "
        assert set(split.judgements[query]) == {id for id, held in texts.items() if phrase in held}
        assert f"q:{query[2:]}" in collection.split(summaries).queries
        assert len(split.judgements[query]) <= pydocs.MOST
        assert others.isdisjoint(split.judgements[query])  # so that no training query is a test query


def group(id: str) -> str:
    module = id.partition(":")[0].split(".")
    return ".".join(module[:2]) if module[0] in pydocs.PACKAGES else module[0]


def test_groups_of_modules_stay_in_one_split(whole):
    home: dict[str, str] = {}
    for name in pydocs.SHARES:
        for query in whole.split(name).queries:
            assert home.setdefault(group(query[2:]), name) == name
    assert len(home) > 200


def test_titles_differ_and_none_holds_its_query(whole):
    titles = dict(zip(whole.corpus.ids, whole.corpus.titles, strict=True))
    repeated = Counter(title for title in titles.values() if title)
    assert repeated.most_common(1)[0][1] == 1
    for split in known_items(whole):
        for query, text in split.queries.items():
            assert f" {' '.join(words(text))} " not in f" {' '.join(words(titles[query[2:]]))} "
