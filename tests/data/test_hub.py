"""Collections through `datasets`, from local folders laid out as on the hub, and through `ir_datasets`."""

import sys
from collections import namedtuple
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from paradigms.data import Collection, Split, load_collection

DOCUMENTS = [{"_id": "1", "title": "Title", "text": "text"}, {"_id": "2", "title": "", "text": "other"}]
QUERIES = [{"_id": "q1", "text": "one"}, {"_id": "q2", "text": "two"}]
TEST = [{"query-id": "q1", "corpus-id": "2", "score": 2}]
DEV = [{"query-id": "q2", "corpus-id": "1", "score": 1}]


def dataset(folder: Path, configurations: dict[str, dict[str, list[dict]]]) -> str:
    """A local dataset repository: configuration -> split -> rows, as parquet files named in its card."""
    import datasets

    card = ["---", "configs:"]
    for configuration, splits in configurations.items():
        card += [f"- config_name: {configuration}", "  data_files:"]
        for split, rows in splits.items():
            file = f"{configuration}/{split}.parquet"
            (folder / configuration).mkdir(parents=True, exist_ok=True)
            datasets.Dataset.from_list(rows).to_parquet(folder / file)
            card += [f"  - split: {split}", f"    path: {file}"]
    (folder / "README.md").write_text("\n".join([*card, "---", ""]))
    return str(folder)


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def check(collection: Collection) -> None:
    assert list(collection.corpus) == ["Title text", "other"] == [collection.corpus[0], collection.corpus[-1]]
    assert list(collection.corpus.titles) == ["Title", ""]
    assert collection.corpus._texts._dataset.cache_files  # Arrow files that are mapped, not read
    assert collection.split("test") == Split({"q1": "one"}, {"q1": {"2": 2}})
    assert collection.split("dev").judgements == {"q2": {"1": 1}}
    assert not collection.problems


def test_the_layout_of_beir(tmp_path, capfd):
    rows = {"validation": DEV, "test": TEST}
    judged = {name: [{**row, "corpus-id": int(row["corpus-id"])} for row in of] for name, of in rows.items()}
    path = dataset(tmp_path / "tiny", {"corpus": {"corpus": DOCUMENTS}, "queries": {"queries": QUERIES}})
    dataset(tmp_path / "tiny-qrels", {"default": judged})
    capfd.readouterr()
    collection = load_collection(f"hf:{path}")
    assert capfd.readouterr() == ("", "")
    check(collection)
    assert collection.name == f"hf:{path}"


def test_the_layout_of_mteb(tmp_path):
    floats = [{**row, "score": float(row["score"])} for row in TEST]
    parts = {"corpus": {"corpus": DOCUMENTS}, "queries": {"queries": QUERIES}}
    judged = {"default": {"dev": DEV, "test": floats}}
    check(load_collection("hf:" + dataset(tmp_path / "tiny", parts | judged)))


@pytest.mark.parametrize("form", ["de-{}", "{}-de"])
def test_a_prefix_chooses_the_language(tmp_path, form):
    by_id = [{"id": row["_id"], "text": row["text"]} for row in QUERIES]
    parts = {
        form.format("corpus"): {"dev": DOCUMENTS[:1], "test": DOCUMENTS[1:]},
        form.format("queries"): {"dev": by_id[1:], "test": by_id[:1]},
        form.format("qrels"): {"dev": DEV, "test": TEST},
    }
    path = dataset(tmp_path / "tiny", parts)
    check(load_collection(f"hf:{path}:de"))
    with pytest.raises(ValueError, match="no configuration 'fr-corpus' or 'corpus-fr'; it has"):
        load_collection(f"hf:{path}:fr")


def test_problems_of_a_dataset_are_counted_or_refused(tmp_path):
    documents = [{"_id": "1", "title": "", "text": "again"}, {"_id": "3", "title": "", "text": ""}]
    documents = [*DOCUMENTS, *documents]
    judged = [*TEST, {"query-id": "q1", "corpus-id": "9", "score": 1}, {**TEST[0], "score": None}]
    parts = {"corpus": {"corpus": documents}, "queries": {"queries": QUERIES}, "default": {"test": judged}}
    collection = load_collection("hf:" + dataset(tmp_path / "tiny", parts))
    assert list(collection.corpus) == ["Title text", "other", ""] == [collection.corpus[i] for i in range(3)]
    assert list(collection.corpus.titles) == ["Title", "", ""]  # not that of the repeat
    assert collection.problems.counts == {
        "duplicate document id (first one kept)": 1,
        "document with empty text (kept)": 1,
        "judgement for an absent document (left out)": 1,
        "malformed judgement (left out)": 1,
    }


Document = namedtuple("Document", "doc_id text title")
Query = namedtuple("Query", "query_id text")
Topic = namedtuple("Topic", "query_id title description default_text")
Question = namedtuple("Question", "query_id text answers")
Judgement = namedtuple("Judgement", "query_id doc_id relevance iteration")


def fake(queries: list | tuple = (), qrels: list | None = None) -> SimpleNamespace:
    """The part of an ir_datasets dataset that the adapter uses."""
    documents = [Document("1", "text", "Title"), Document("2", "other", "")]
    return SimpleNamespace(
        has_qrels=lambda: qrels is not None,
        docs_iter=lambda: iter(documents),
        queries_iter=lambda: iter(queries),
        qrels_iter=lambda: iter(qrels),
    )


@pytest.fixture
def ir_datasets(monkeypatch):
    topic = Topic("q2", "", "", lambda: "two ")
    registry = {
        "tiny": fake(),
        "tiny/test": fake([Query("q1", "one")], [Judgement("q1", "2", 2, "0")]),
        "tiny/dev": fake([topic], [Judgement("q2", "1", 1, "0")]),
        "tiny/2019": fake([Query("q1", "one")], [Judgement("q1", "2", 1, "0")]),
        "bare": fake(),
        "miracl/sw": fake(),
        "miracl/sw/train": fake([Query("1", "one")], [Judgement("1", "1", 1, "0")]),
        "miracl/sw/dev": fake([Query("1", "another one")], [Judgement("1", "2", 1, "0")]),
        "dpr-w100/natural-questions/dev": fake(
            [Question("0", "one", ("text", "title")), Question("1", "two", ())],
            [Judgement("0", "1", 2, "0"), Judgement("0", "2", -1, "0"), Judgement("1", "2", 1, "0")],
        ),
    }
    module = ModuleType("ir_datasets")
    module.load = registry.__getitem__
    monkeypatch.setitem(sys.modules, "ir_datasets", module)


@pytest.mark.usefixtures("ir_datasets")
def test_identifiers_of_ir_datasets():
    one = load_collection("irds:tiny/test")
    assert (one.name, list(one.splits), one.measures) == ("irds:tiny/test", ["test"], ())
    assert (list(one.corpus), list(one.corpus.titles)) == (["Title text", "other"], ["Title", ""])
    assert one.split("test").judgements == {"q1": {"2": 2}}
    both = load_collection("irds:tiny")
    assert list(both.splits) == ["dev", "test"]
    assert both.split("dev").queries == {"q2": "two"}
    assert list(load_collection("irds:tiny/2019").splits) == ["test"]


@pytest.mark.usefixtures("ir_datasets")
def test_what_papers_report_comes_with_their_identifiers():
    sw = load_collection("irds:miracl/sw")
    assert sw.measures == ("nDCG@10", "R@100")
    assert sw.split("train").queries == {"1": "one"}  # a split numbers its own queries
    assert sw.split("dev").queries == {"1": "another one"}
    questions = load_collection("irds:dpr-w100/natural-questions/dev")
    assert questions.measures[0] == "Success@20"
    assert questions.split("dev").answers == {"0": ["text", "title"]}
    assert questions.split("dev").judgements == {"0": {"1": 2, "2": -1}, "1": {"2": 1}}


@pytest.mark.usefixtures("ir_datasets")
def test_unknown_and_unjudged_identifiers_are_named(monkeypatch):
    with pytest.raises(ValueError, match="irds:nothing: ir_datasets has no such identifier"):
        load_collection("irds:nothing")
    with pytest.raises(ValueError, match="irds:bare has no judgements"):
        load_collection("irds:bare")
    monkeypatch.setitem(sys.modules, "ir_datasets", None)
    with pytest.raises(ImportError, match=r"retrieval-paradigms\[ir-datasets\]"):
        load_collection("irds:beir/scifact/test")


@pytest.mark.parametrize("publisher", ["sentence-transformers", "zeta-alpha-ai"])
def test_nanobeir(tmp_path: Path, publisher: str) -> None:
    """A split of every configuration, or a dataset whose one split is "train"; judgements have no score."""
    qrels = [{"query-id": "q1", "corpus-id": "2"}]
    parts = {"corpus": DOCUMENTS, "queries": QUERIES, "qrels": qrels}
    if publisher == "sentence-transformers":
        other = {"corpus": DOCUMENTS[:1], "queries": QUERIES[:1], "qrels": qrels}
        both = {part: {"NanoSciFact": rows, "NanoNQ": other[part]} for part, rows in parts.items()}
        name = "hf:" + dataset(tmp_path / "NanoBEIR-en", both) + ":NanoSciFact"
        with pytest.raises(ValueError, match="has no 'NanoFiQA' in corpus; it has NanoSciFact, NanoNQ"):
            load_collection(name.replace(":NanoSciFact", ":NanoFiQA"))
    else:
        name = "hf:" + dataset(tmp_path / "NanoSciFact", {part: {"train": of} for part, of in parts.items()})
    collection = load_collection(name)
    assert collection.corpus.ids == ["1", "2"]
    assert list(collection.splits) == ["test"]
    assert collection.split("test").judgements == {"q1": {"2": 1}}
    assert not collection.problems
