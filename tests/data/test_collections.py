"""MIRACL, LoTTE, open-domain question answering and EntityQuestions, from small folders in their layouts."""

import csv
import gzip
import json
import pickle
from pathlib import Path

import pytest

from paradigms.data import load_collection, write_folder
from paradigms.data.lines import Lines
from paradigms.io.command_line import folder_name
from paradigms.train.fit import training_splits
from tests.experiments.scripts import run as run_script

PASSAGES = [
    ("12#0", "Ziwa", "Ziwa Viktoria ni ziwa kubwa"),
    ("12#1", "", "维多利亚湖是非洲最大的湖泊"),
    ("7#0", "Mlima", "Kilimanjaro ni mlima mrefu"),
    ("9#0", "Mto", "Nile ni mto"),
]


def put(path: Path, text: str | bytes) -> None:
    """Write a file and its folders; gzipped where the name ends in .gz."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def jsonl(*rows: object) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def miracl(root: Path, corpus: str = "miracl/miracl-v1.0-sw", ending: str = "jsonl.gz") -> Path:
    """A language of MIRACL with its passages, in three shards, in the folder `corpus` of `root`."""
    folder = root / "miracl" / "miracl-v1.0-sw"
    parts = {"docs-0": PASSAGES[:2], "docs-2": PASSAGES[2:3], "docs-10": PASSAGES[3:], "docs-11": []}
    for name, part in parts.items():
        rows = [{"docid": id, "title": title, "text": text} for id, title, text in part]
        put(root / corpus / f"{name}.{ending}", jsonl(*rows))
    topics = {
        "train": "0#1\tziwa gani?\n1\tmlima gani?\n",
        "dev": "1\tmto \tgani?\n2\t哪个湖？\n",
        "test-b": "5\tx\n",
    }
    qrels = {
        "train": "0#1\tQ0\t12#0\t1\n1\tQ0\t7#0\t1\n1\tQ0\t9#0\t0\n",
        "dev": "1\tQ0\t9#0\t1\n2\tQ0\t12#1\t1\n",
    }
    for kind, files in {"topics": topics, "qrels": qrels}.items():
        for split, text in files.items():
            put(folder / kind / f"{kind}.miracl-v1.0-sw-{split}.tsv", text)
    return folder


@pytest.mark.parametrize(
    ("corpus", "ending"),
    [
        ("miracl/miracl-v1.0-sw", "jsonl.gz"),
        ("miracl/miracl-corpus-v1.0-sw", "jsonl"),
        ("miracl-corpus/miracl-corpus-v1.0-sw", "jsonl.gz"),
    ],
)
def test_a_language_of_miracl(tmp_path, corpus, ending):
    collection = load_collection(miracl(tmp_path, corpus, ending))
    assert collection.name == "miracl-v1.0-sw"
    assert collection.measures == ("nDCG@10", "R@100")
    assert collection.corpus.ids == [id for id, _, _ in PASSAGES]
    assert list(collection.corpus) == [f"{title} {text}".strip() for _, title, text in PASSAGES]
    assert list(collection.splits) == ["train", "dev"]  # test-b has no judgements
    assert collection.split("train").queries == {"0#1": "ziwa gani?", "1": "mlima gani?"}
    assert collection.split("dev").queries == {"1": "mto \tgani?", "2": "哪个湖？"}  # 1 is another one here
    assert collection.split("dev").judgements == {"1": {"9#0": 1}, "2": {"12#1": 1}}
    assert not collection.problems
    assert isinstance(collection.corpus._texts, Lines) is (ending == "jsonl")
    assert list(pickle.loads(pickle.dumps(collection.corpus))) == list(collection.corpus)


def nq320k(folder: Path) -> Path:
    put(folder / "collection.tsv", "7\tcats sleep\tCats\n8\tdogs bark\tDogs\n9\tfish swim\n")
    put(folder / "queries.all.tsv", "0\tdo cats sleep\n1\twho swims\n2\twho barks\n")
    put(folder / "triples.train.32.squeeze.tsv", "0\t7\t8\t9\n0\t7\t9\t8\n2\t8\t7\n")
    put(folder / "qrel.dev.tsv", "1\t0\t9\t1\n")
    return folder


def marco(root: Path) -> Path:
    folder = nq320k(root / "marco")
    (folder / "queries.all.tsv").rename(folder / "queries.train.tsv")
    put(folder / "queries.dev.small.tsv", "1\twho swims\n3\twhat sleeps\n")  # Microsoft's name
    put(folder / "qrels.train.tsv", "0\t0\t8\t1\n")
    put(folder / "qrels.test.tsv", "3\t0\t7\t1.0\n")
    return folder


def test_nq320k_and_ms_marco(tmp_path):
    collection = load_collection(nq320k(tmp_path / "nq320k"))
    assert list(collection.corpus) == ["Cats cats sleep", "Dogs dogs bark", "fish swim"]
    assert collection.split("train").queries == {"0": "do cats sleep", "2": "who barks"}
    assert collection.split("train").judgements == {"0": {"7": 1}, "2": {"8": 1}}
    assert collection.split("test").judgements == {"1": {"9": 1}}, "dev, on which papers report"
    collection = load_collection(marco(tmp_path))
    assert {name: of.judgements for name, of in collection.splits.items()} == {
        "dev": {"1": {"9": 1}},
        "test": {"3": {"7": 1}},
        "train": {"0": {"8": 1}},  # the triples do not count beside judgements
    }
    assert collection.split("dev").queries == {"1": "who swims"}


def test_what_follows_a_tab_is_text(tmp_path):
    """Without titles, all after the first tab is text; with titles, all up to the last tab is."""
    folder = nq320k(tmp_path / "plain")
    for cells, texts, titles in (
        ("cats sleep|dogs\tbark|fish\tswim\tfar", ["cats sleep", "dogs\tbark", "fish\tswim\tfar"], [""] * 3),
        ("cats sleep\tCats|dogs\tbark\tDogs", ["Cats cats sleep", "Dogs dogs\tbark"], ["Cats", "Dogs"]),
    ):
        lines = (f"{id}\t{cell}\n" for id, cell in zip((7, 8, 9), cells.split("|"), strict=False))
        put(folder / "collection.tsv", "".join(lines))
        corpus = load_collection(folder).corpus
        assert (list(corpus), list(corpus.titles)) == (texts, titles)


def lotte(root: Path) -> Path:
    folder = root / "lotte" / "lifestyle" / "test"
    put(folder / "collection.tsv", "0\tcats sleep\ta lot\n1\tdogs bark\n2\tfish — swim\n3\tbirds fly\n")
    put(folder / "questions.search.tsv", "0\tdo cats sleep\n1\twho swims\n")
    put(folder / "questions.forum.tsv", "0\twhy do dogs bark?\n")
    put(folder / "qas.search.jsonl", jsonl({"qid": 0, "query": "do cats sleep", "answer_pids": [0]}, QAS))
    put(folder / "qas.forum.jsonl", jsonl({"qid": 0, "query": "", "answer_pids": [1], "url": "u"}))
    return folder


QAS = {"qid": 1, "query": "who swims", "answer_pids": [2, 1]}


def test_a_domain_of_lotte(tmp_path):
    folder = lotte(tmp_path)
    collection = load_collection(folder)
    assert collection.name == folder_name(str(folder)) == "lifestyle-test"
    assert collection.measures == ("Success@5",)
    assert list(collection.corpus) == ["cats sleep\ta lot", "dogs bark", "fish — swim", "birds fly"]
    assert list(collection.splits) == ["search", "forum"]
    assert collection.split("search").queries == {"0": "do cats sleep", "1": "who swims"}
    assert collection.split("search").judgements == {"0": {"0": 1}, "1": {"2": 1, "1": 1}}
    assert collection.split("forum").judgements == {"0": {"1": 1}}
    with pytest.raises(ValueError, match="two splits have different queries with the id '0'"):
        write_folder(collection, tmp_path / "beir")
    assert not (tmp_path / "beir").exists()


WIKIPEDIA = """id\ttext\ttitle
1\t"Aaron ( or ; ""Ahärôn"") is a prophet, high priest"\tAaron
2\tKiel lies on the Baltic Sea\t"Kiel"
3\tLisbon is the capital of Portugal, as everyone knows\tLisbon
4\tPorto lies on the Douro\tPorto
"""


def questions(root: Path, passages: str = "psgs_w100.tsv") -> Path:
    """Wikipedia with Natural Questions, TriviaQA and EntityQuestions."""
    folder = root / "wikipedia"
    put(folder / passages, WIKIPEDIA)
    rows = "who was a prophet\t['Aaron', \"Ahärôn\"]\nwhere is kiel\t['Baltic Sea']\n"
    put(folder / "nq-test.qa.csv", rows)
    put(folder / "trivia-test.csv.gz", '"what is the ""capital"""\t"[\'Lisbon\', \'L\'\'isboa\']"\n')
    put(folder / "squad1-test.jsonl", jsonl({"question": "which sea?", "answer": ["the Baltic Sea", ""]}))
    for relation, rows in {
        "P17": [("Where is Kiel?", ["Germany", "Baltic"]), ("Where is Porto?", ["Portugal"])],
        "P36": [("What is the capital?", ["Lisbon"])],
    }.items():
        listed = [{"question": question, "answers": answers} for question, answers in rows]
        put(folder / "dataset" / "test" / f"{relation}.test.json", json.dumps(listed, indent=1))
        put(folder / "dataset" / "train" / f"{relation}.train.json", json.dumps(listed[:1]))
    return folder


@pytest.mark.parametrize("passages", ["psgs_w100.tsv", "psgs_w100.tsv.gz", "passages.tsv"])
def test_questions_over_wikipedia(tmp_path, passages):
    collection = load_collection(questions(tmp_path, passages))
    assert collection.measures[:2] == ("Success@20", "Success@100")
    assert list(collection.corpus.titles) == ["Aaron", "Kiel", "Lisbon", "Porto"]
    assert collection.corpus[0] == 'Aaron Aaron ( or ; "Ahärôn") is a prophet, high priest'
    assert isinstance(collection.corpus._texts, Lines) is not passages.endswith(".gz")
    assert sorted(collection.splits) == ["nq-test", "squad1-test", "test", "train", "trivia-test"]
    nq = collection.split("nq-test")
    assert nq.queries == {"nq-test-0": "who was a prophet", "nq-test-1": "where is kiel"}
    assert nq.answers == {"nq-test-0": ["Aaron", "Ahärôn"], "nq-test-1": ["Baltic Sea"]}
    assert (nq.judgements, nq.groups) == ({"nq-test-0": {}, "nq-test-1": {}}, {})
    assert collection.split("trivia-test").answers == {"trivia-test-0": ["Lisbon", "Lisboa"]}
    assert collection.split("squad1-test").answers == {"squad1-test-0": ["the Baltic Sea"]}
    entity = collection.split("test")
    assert entity.groups == {"P17.test-0": "P17", "P17.test-1": "P17", "P36.test-0": "P36"}
    assert collection.problems.counts == {"empty answer (left out)": 1}
    with pytest.raises(ValueError, match="wikipedia has answers"):
        write_folder(collection, tmp_path / "beir")
    for file in ("nq-test.qa.csv", "dataset/test/P36.test.json"):  # answers and groups
        before = load_collection(tmp_path / "wikipedia").fingerprint
        data = (tmp_path / "wikipedia" / file).read_text()
        put(tmp_path / "wikipedia" / file, data.replace("Aaron", "Kiel").replace("Lisbon", "Kiel"))
        assert load_collection(tmp_path / "wikipedia").fingerprint != before


HEADERS = {
    "collection.tsv": "pid\tpassage\ttitle\n",
    "psgs_w100.tsv": "",  # has one
    "nq-test.qa.csv": "question\tanswers\n",
    "trivia-test.csv.gz": '"question"\t"answers"\n',
    "topics": "qid\tquery\n",
    "qu": "id\ttext\n",
    "qrel": "query-id\titer\tcorpus-id\tscore\n",
}


@pytest.mark.parametrize("make", [miracl, marco, lotte, questions])
def test_every_file_of_a_layout_may_be_gzipped_and_have_a_header(tmp_path, make):
    folder = make(tmp_path)
    plain = load_collection(folder)
    for file in [*folder.rglob("*.*sv*"), *folder.rglob("*.json*")]:
        start = next((line for name, line in HEADERS.items() if file.name.startswith(name)), "")
        data = file.read_bytes()
        text = start.encode() + (gzip.decompress(data) if file.suffix == ".gz" else data)
        file.unlink()
        put(file.with_name(f"{file.name.removesuffix('.gz')}.gz"), text)
    packed = load_collection(folder)
    assert packed.fingerprint == plain.fingerprint
    assert packed.problems.counts == plain.problems.counts


def test_cells_of_any_length_and_with_any_quotes(tmp_path):
    """Cells are quoted as in CSV or not at all: what is no whole quoted cell is text, with its quotes."""
    folder, long = questions(tmp_path), "mill " * 40_000
    cells = [f'{long}\t"The ""Mill"""', '"Yes," he said\t"Quotes" of men', '"a\tb"\tc', '7" nails\t"']
    put(folder / "psgs_w100.tsv", "".join(f"{n}\t{cell}\n" for n, cell in enumerate(cells)))
    put(folder / "nq-test.qa.csv", "\"Who\" said 'mill'?\t['he']\n")
    collection = load_collection(folder)
    titles = ['The "Mill"', '"Quotes" of men', "c", '"']
    assert list(collection.corpus.titles) == titles
    texts = [long.strip(), '"Yes," he said', "a\tb", '7" nails']
    assert list(collection.corpus) == [f"{title} {text}" for title, text in zip(titles, texts, strict=True)]
    assert collection.split("nq-test").queries == {"nq-test-0": "\"Who\" said 'mill'?"}


LACKS = {
    miracl: [
        ("topics/*-dev.tsv", None, r"topics\.miracl-v1\.0-sw-dev\.tsv: no such file"),
        ("docs-2.jsonl.gz", '{"docid": "7#0"}\n{"doc": 3}\n', r"docs-2\.jsonl\.gz, line 2: no usable id"),
        ("docs-*", None, r"no docs-<n>\.jsonl .*miracl-corpus-v1\.0-sw$"),
        ("qrels/*", None, r"holds no qrels\.\*-<split>\.tsv"),
    ],
    marco: [
        ("qrels.test.tsv", "5\t0\t7\t1\n", r"judges no query that has a text.*queries\.dev\.small.*\.train"),
        ("[qt]r*", None, r"holds no qrels\.<split>\.tsv"),
    ],
    lotte: [
        ("qas.forum.jsonl", jsonl({"qid": 0, "answer_pids": 1}), "line 1: answer_pids=1; it must be list"),
        ("collection.tsv", "0\tcats\n\n1 dogs\n", r"collection\.tsv, line 3: not 2 columns"),
        ("questions.*", None, r"holds no questions\.<split>\.tsv"),
    ],
    questions: [
        ("nq-test.qa.csv", "where\t['x']\nwhere\n", r"nq-test\.qa\.csv, line 2: not 2 columns"),
        ("nq-test.qa.csv", "where\tx\n", "line 1: the answers are not a Python list"),
        ("squad1-test.jsonl", '{"question": "a"}\n', "squad1.* line 1: answers=None; it must be list"),
        ("squad1-test.jsonl", "{\n", r"squad1-test\.jsonl, line 1: bad JSON"),
        ("dev/P17.dev.json", "{}", r"P17\.dev\.json: questions={}; it must be list"),
        ("test/P17.test.json", "[]", r"two question files have one name: .*P17\.test\.json and .*P17"),
        ("psgs_w100.tsv", '1\t"x\ty"\n', r"psgs_w100\.tsv, line 1: not 3 columns"),
    ],
}


@pytest.mark.parametrize(
    ("make", "file", "text", "message"), [(of, *row) for of in LACKS for row in LACKS[of]]
)
def test_what_a_folder_lacks_is_named(tmp_path, make, file, text, message):
    """text: new content of the file; None removes all files that match the pattern."""
    folder = make(tmp_path)
    if text is not None:
        put(folder / file, text)
    for results in folder.glob(file) if text is None else ():
        results.unlink()
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        load_collection(folder)


def test_passages_without_questions_and_unknown_layouts_are_named(tmp_path):
    put(tmp_path / "wikipedia" / "psgs_w100.tsv", WIKIPEDIA)
    with pytest.raises(FileNotFoundError, match="holds passages, but no file of questions"):
        load_collection(tmp_path / "wikipedia")
    with pytest.raises(FileNotFoundError, match=r"none of the layouts BEIR .* MIRACL .* MS MARCO .* DPR"):
        load_collection(tmp_path)


def test_what_is_measured_trains_nothing(tmp_path):
    collection = load_collection(miracl(tmp_path))
    train, dev = training_splits(collection, 0, "dev")
    assert {*train.queries, *dev.queries} == {"0#1", "1"}
    assert {**train.queries, **dev.queries}["1"] == "mlima gani?"
    train, dev = training_splits(collection, seed=0)
    assert (len(train.queries), dev) == (2, collection.split("dev"))
    unjudged, _ = training_splits(load_collection(questions(tmp_path)), seed=0)
    assert not unjudged.queries  # answers alone are no positives


def test_questions_are_compared_by_accuracy(tmp_path, tiny_bert):
    """BM25 finds Kiel, whose text has an answer, and Porto, whose text has none."""
    folder, out = questions(tmp_path), tmp_path / "out"
    flags = {"collection": folder, "split": "test", "output": out, "backbone": tiny_bert, "steps": 0}
    options = '{"query_length": 8, "document_length": 12}'
    run_script("compare", **flags, systems="[dpr]", depth=3, tracker="none", options=options)
    with (out / "per_query.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["system"] == "bm25"]
    values = {row["query"]: row["value"] for row in rows if row["measure"] == "Success@1"}
    assert values == {"P17.test-0": "1.0", "P17.test-1": "0.0", "P36.test-0": "1.0"}
