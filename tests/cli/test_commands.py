"""`python -m paradigms`: index, search, rerank, explain and compare on small sources and tiny models."""

import io
import json
import random
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from paradigms import PARADIGMS, load
from paradigms.baselines.bm25 import BM25
from paradigms.baselines.cross_attention import cross_attention
from paradigms.cli import indexing, show
from paradigms.cli.arguments import main, program
from paradigms.cli.indexed import open_folder
from paradigms.cli.oracle import question_of, stored
from paradigms.cli.queries import from_file
from paradigms.data import Corpus, read_run
from paradigms.find import kinds
from paradigms.generative.dsi import dsi
from paradigms.retrieve import Indexed, fuse
from paradigms.store import Store
from paradigms.store.columns import FolderWriter
from tests import needs
from tests.near import assert_same, assert_within_rounding
from tests.saving.test_read import dpr_towers, write_like_xtr
from tests.tiny import TERMS, write_checkpoint, write_collection

TEXTS = {"fish.txt": "the fish in the sea", "fire.txt": "fire and warm wood", "snow.txt": "cold snow on ice"}


@pytest.fixture(scope="module")
def models(tmp_path_factory, tiny_bert, seq2seq):
    """name -> folder of a saved model."""
    root, lengths = tmp_path_factory.mktemp("models"), {"query_length": 12, "document_length": 24}
    built = {}
    for name in ("aligner", "coil", "colbert", "dpr", "xtr"):
        torch.manual_seed(0)
        options = {"dim": 8, "special_tokens": False} if name != "dpr" else {"pooling": "mean"}
        built[name] = PARADIGMS[name](tiny_bert, **options | lengths)
    built["cross_attention"] = cross_attention(tiny_bert, **lengths)
    corpus = Corpus(list(TEXTS), list(TEXTS.values()), list(TEXTS))
    built["dsi"] = dsi(seq2seq["t5"], corpus)
    for name, model in built.items():
        model.save_pretrained(root / name)
    return {name: root / name for name in built}


@pytest.fixture
def source(tmp_path, monkeypatch):
    """A folder of text files, in an empty current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    notes = tmp_path / "notes"
    notes.mkdir()
    for name, text in TEXTS.items():
        (notes / name).write_text(text)
    return notes


@pytest.fixture
def indexed(source, models):
    index("notes", models["colbert"])
    return "notes.index"


def refused(*arguments):
    with pytest.raises(SystemExit) as stopped:
        main([str(word) for word in arguments])
    assert stopped.value.code not in (0, None)
    return str(stopped.value)


def interrupted(owner, name, *arguments):
    """Run a command that Ctrl-C ends where it calls a function."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        assert refused(*arguments) == "130"


def change(source):
    """Change a text, delete another and add one."""
    (source / "fire.txt").write_text("a warm sea")
    (source / "snow.txt").unlink()
    (source / "new.txt").write_text("ice and wood")


def write_rows(path, texts):
    """JSON lines of id -> text."""
    path.write_text("".join(json.dumps({"_id": id, "text": text}) + "\n" for id, text in texts.items()))


def printed(capsys, *arguments):
    """Run a command; return its standard output, and its standard error as one line."""
    capsys.readouterr()
    main([str(word) for word in arguments])
    out, err = capsys.readouterr()
    return out, err.replace("\n", " ")


def index(source, model, *more):
    main(["index", str(source), "--model", str(model), *map(str, more)])


def trec(capsys, *arguments):
    """The last document of each query in what a search prints as a TREC run."""
    out, _ = printed(capsys, "search", "--format", "trec", *arguments)
    return {line.split()[0]: line.split()[2] for line in out.splitlines()}


def rows_of(text):
    return [json.loads(line) for line in text.splitlines()]


def found_by(capsys, *arguments):
    """The rows of JSON that a command prints."""
    return rows_of(printed(capsys, *arguments, "--format", "jsonl")[0])


def test_index_then_search(source, models, capsys):
    _, err = printed(capsys, "index", "notes", "--model", models["colbert"])
    assert "search notes.index" in err
    rows = found_by(capsys, "search", "notes.index", "the fish in the sea", "-k", "2")
    assert [row["rank"] for row in rows] == [1, 2]
    assert (rows[0]["id"], rows[0]["document"]) == ("fish.txt:1", TEXTS["fish.txt"])
    assert rows[0]["score"] >= rows[1]["score"]
    out, _ = printed(capsys, "search", "notes.index", "fire and warm wood", "cold snow on ice")
    assert out.index("1. fire.txt:1") < out.index("1. snow.txt:1")
    assert out.count("fire and warm wood") == 3  # as a query, and as a text for each
    rows = found_by(capsys, "search", models["dsi"], "snow", "-k", "3")  # a generative model has no index
    assert {row["id"] for row in rows} <= set(TEXTS)


COMPRESSED = ("", "ME-BERT", "aligner")  # "" is ColBERT


@pytest.mark.parametrize("name", [*COMPRESSED, "dpr", "coil", "xtr"])
def test_every_paradigm_indexes_with_an_encoder(source, tiny_bert, capsys, monkeypatch, name):
    """By default ColBERT, in 4 bits a number; weights that a paradigm adds are the same when it is opened."""
    kind = "compressed" if name in COMPRESSED else "exact"
    monkeypatch.setattr("paradigms.cli.indexed.OFFLINE", str(tiny_bert))
    _, err = printed(capsys, "index", "notes", *(["--paradigm", name] if name else []))
    assert f"3 passages of notes in notes.index, as {PARADIGMS[name or 'colbert'].__name__}, {kind}" in err
    origin = open_folder("notes.index").origin
    assert (origin.paradigm, origin.kind) == (name or "colbert", kind)
    assert len(found_by(capsys, "search", "notes.index", "the fish in the sea", "-k", "3")) == 3
    assert "up to date" not in printed(capsys, "index", "notes", *(["--paradigm", name] if name else []))[1]


def test_queries_follow_options_or_come_from_the_standard_input(indexed, capsys, monkeypatch):
    search, best = [indexed, "-k", "1"], {"1": "snow.txt:1", "2": "fire.txt:1"}
    assert trec(capsys, *search, "cold snow on ice", "fire and warm wood") == best
    monkeypatch.setattr(sys, "stdin", io.StringIO("cold snow on ice\n\n fire and warm wood \n"))
    assert trec(capsys, *search) == best
    monkeypatch.setattr(sys, "stdin", io.StringIO(" \n"))
    assert "no query: the standard input is empty" in refused("search", indexed)


ERRORS = {
    "search nowhere x": "nowhere is not an index of `python -m paradigms index SOURCE`: it does not exist",
    "search notes x": "; notes.index is one",
    "mcp nowhere": "nowhere is not an index",  # whatever packages are there
    "index notes --model {dsi}": "search a generative model's folder",
    "index notes --model {cross_attention}": "use a reranker with rerank",
    "index notes --model ColBERT": "colbert is a paradigm: --paradigm colbert",
    "index notes --paradigm bm25": "there is no paradigm 'bm25'; there are dpr, me_bert, colbert",
    "index notes --paradigm dpr --model {dpr} --model-layout plain": "--paradigm makes a model of an encoder",
    "index void --model {dpr}": "void holds no document",
    "index notes --engine-options [1]": "must be a JSON object",
    "index notes --engine-options '{{\"a\": 1}}'": "add --engine",
    "search {dsi} --split test": "--split needs an index of a collection",
    "explain notes.index fish --document x": "no document 'x'",
    "search notes.index ' '": "query 1 is blank",
    "compare notes.index -q snow -q ''": "query 2 is blank",
    "compare notes.index": "no query",
    "compare notes.index -q x --split test": "one place",
    "compare notes.index notes.index -q x": "folders need different names",
    "rerank notes": "no query",
    "export {dpr} notes": "notes would be replaced",
    "dimensions notes": "no query has 10 documents",
    "dimensions nowhere": "no such folder",
}


def test_wrong_arguments_are_told(indexed, source, models):
    (source.parent / "void").mkdir()
    for command, message in ERRORS.items():
        assert message.format(**models) in refused(*shlex.split(command.format(**models))), command
    assert {file.name for file in source.iterdir()} == set(TEXTS)
    assert not (source.parent / "void.index").exists()


def test_arguments_that_cannot_be_parsed_are_told(capsys):
    for wrong, message in {
        "search nowhere x -k 0": "at least 1",
        "compare nowhere -q snow other.index": "unrecognized arguments: other.index",
    }.items():
        assert refused(*wrong.split()) == "2"
        assert message in capsys.readouterr().err


def test_printed_commands_are_called_as_this_program_was(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/a b/paradigms"])
    assert program() == "'/a b/paradigms'"


@pytest.mark.parametrize("kind", ["faiss", "compressed"])
def test_indexing_again_brings_an_index_up_to_date(source, models, capsys, kind):
    command = "index", "notes", "--model", models["colbert"], "--kind", kind
    main([str(word) for word in command])
    change(source)
    assert "1 added, 1 encoded again, 1 deleted" in printed(capsys, *command)[1]
    assert "up to date" not in printed(capsys, *command)[1]
    assert answers("notes.index").keys() == {"fish.txt:1", "fire.txt:1", "new.txt:1"}


def answers(name):
    """The scores of all documents for a query."""
    return open_folder(name).retriever.search({"1": "a warm sea"}, 10)["1"]


@pytest.mark.parametrize(
    ("owner", "name", "ended"),
    [
        (indexing, "write_corpus", False),
        (FolderWriter, "append", False),
        (FolderWriter, "commit", False),
        (indexing, "write_json", True),
        (indexing, "replace_file", True),
        (Store, "compact", True),
    ],
)
def test_an_index_is_searchable_while_an_update_stops_anywhere(source, models, capsys, owner, name, ended):
    """A search finds all documents as before the update or as after it, and the same command goes on."""
    build = "index", "notes", "--model", models["colbert"], "--kind", "exact"
    printed(capsys, *build)
    states = [answers("notes.index")]
    change(source)
    printed(capsys, *build, "--output", "fresh.index")
    states.append(answers("fresh.index"))
    assert states[1].keys() == {"fish.txt:1", "fire.txt:1", "new.txt:1"}
    interrupted(owner, name, *build)
    assert answers("notes.index") == pytest.approx(states[ended])
    (source / "fire.txt").write_text(TEXTS["fire.txt"])  # is encoded again if it was updated
    printed(capsys, *build)
    printed(capsys, *build, "--output", "fresh.index")
    assert answers("notes.index") == pytest.approx(answers("fresh.index"))
    assert not list(Path("notes.index").rglob(".*"))


def test_a_refused_update_changes_nothing(source, models, capsys):
    shutil.copytree(models["colbert"], "model")
    index("notes", "model")
    (source / "fire.txt").write_text("a warm sea")
    before = {file: file.read_bytes() for file in Path("notes.index").rglob("*") if file.is_file()}
    (source.parent / "other").mkdir()
    (source.parent / "other" / "fish.txt").write_text(TEXTS["fish.txt"])
    refusals = {
        "other words (16, not 3): choose": ["notes", "--model", "model", "--words", "3"],
        "other has 1 of its 3: choose": ["other", "--model", "model", "--output", "notes.index"],
        "--anew discards it": ["notes", "--model", models["dpr"]],
        "not by this colbert (weights)": ["notes", "--model", "model"],
    }
    for said, command in refusals.items():
        if "weights" in said:
            trained = load("model")
            with torch.no_grad():
                next(trained.parameters()).add_(0.5)
            trained.save_pretrained("model")
        assert said in refused("index", *command)
        assert {file: file.read_bytes() for file in before} == before
    index("notes", "model", "--anew")
    assert answers("notes.index").keys() == {f"{name}:1" for name in TEXTS}


def test_a_source_and_a_model_that_were_moved_continue_their_index(source, models, capsys):
    shutil.copytree(models["colbert"], "model")
    index("notes", "model")
    source.rename("papers")
    Path("model").rename("moved")
    Path("papers/new.txt").write_text("ice and wood")
    command = "index", "papers", "--model", "moved", "--output", "notes.index"
    assert "1 added, 0 encoded again, 0 deleted" in printed(capsys, *command)[1]
    assert len(answers("notes.index")) == 4
    assert open_folder("notes.index").origin.source == str(Path("papers").absolute())


def test_a_build_that_was_interrupted_goes_on(source, models, monkeypatch, capsys):
    """A search tells by which command. The index may lie inside its source, and is not indexed itself."""
    monkeypatch.chdir(source)
    build = "index", ".", "--model", models["colbert"]
    interrupted(Store, "build", *build)
    assert "interrupted; the same command resumes the index" in capsys.readouterr().err
    said, command = refused("search", "notes.index", "x").split(" resume it: python -m paradigms ")
    assert "the build of notes.index has not ended" in said
    assert "other kind (compressed, not faiss)" in refused(*build, "--kind", "faiss")
    assert f"3 passages of {source} in notes.index" in printed(capsys, *shlex.split(command))[1]
    assert "1. snow.txt:1" in printed(capsys, "search", "notes.index", "cold snow on ice")[0]
    assert not (source / "notes.index" / ".begun").exists()


def test_a_kind_that_cannot_hold_the_vectors_leaves_no_folder(source, models, monkeypatch):
    monkeypatch.chdir(source.parent)
    build = "index", "notes", "--model", models["colbert"], "--kind", "inverted"
    assert "one number for each token" in refused(*build)
    assert not Path("notes.index").exists()
    assert "it does not exist" in refused("search", "notes.index", "x")


def test_documents_of_the_users_are_not_replaced_by_an_index(source, models):
    row = json.dumps({"_id": "a", "text": "the fish", "metadata": {"year": 1999}})
    (source.parent / "data").mkdir()
    (source.parent / "data" / "corpus.jsonl").write_text(row)
    for taken in ("data", "notes"):  # the one has no other names than an index
        build = "index", taken, "--output", "data", "--model", models["colbert"]
        assert "data exists and is not an index" in refused(*build)
    assert (source.parent / "data" / "corpus.jsonl").read_text() == row


def test_long_documents_are_split_and_found_whole(source, models, capsys):
    """The end of a document that is beyond the model's 24 tokens is read with --passages alone."""
    long = " ".join(["fish in the sea"] * 8) + " cold snow on ice"
    write_rows(source.parent / "rows.jsonl", TEXTS | {"long.txt": long})
    rows, asked = ["rows.jsonl", "--model", models["colbert"], "--precision", "no"], "cold snow on ice"
    _, err = printed(capsys, "index", *rows, "--output", "cut")
    assert "1 of 4 texts are longer than 24 tokens and cut" in err
    _, err = printed(capsys, "index", *rows, "--output", "split", "--passages", "--words", "4")
    assert "and cut" not in err
    found = {}
    for name in ("cut", "split"):
        found[name] = {row["id"]: row["score"] for row in found_by(capsys, "search", name, asked)}
        assert found[name].keys() == {*TEXTS, "long.txt"}
    as_cosines = {"dtype": torch.float16, "terms": 1, "scale": 1}  # are stored
    assert_within_rounding(found["split"]["long.txt"], found["split"]["snow.txt"], **as_cosines)
    assert found["cut"]["long.txt"] < found["split"]["long.txt"] - 1e-3
    assert found_by(capsys, "search", "split", "--best-passages", "2", asked)[0]["id"] == "long.txt"
    assert "snow" in printed(capsys, "explain", "split", asked, "--document", "long.txt")[0]


@pytest.fixture
def judged(source):
    """A BEIR folder whose queries are its documents."""
    (source.parent / "beir").mkdir()
    texts = list(TEXTS.values())
    return write_collection(source.parent / "beir", texts, texts, {"test": range(3)})


def test_compare_measures_judged_queries(judged, models, capsys, indexed):
    for name in ("colbert", "dpr"):
        index(judged, models[name], "--output", name)
    out, _ = printed(capsys, "compare", "colbert", "-q", "cold snow on ice")
    assert "1 of the first 10 are shared by all" in out
    assert "different documents" in refused("compare", "colbert", indexed, "-q", "x")
    compare = ["compare", "colbert", "dpr", "--split", "test", "--output", "compared"]
    assert "bm25" in printed(capsys, *compare)[0]
    written = {file.name for file in (judged.parent / "compared").iterdir()}
    assert written == {"bm25.run", "colbert.run", "dpr.run", "table.csv", "table.md"}
    best = {q: next(iter(found)) for q, found in read_run("compared/colbert.run").items()}
    assert best == {f"q{n}": f"d{n}" for n in range(3)}


def test_fusion_at_the_terminal(judged, models, capsys, source):
    index(judged, models["colbert"], "--output", "one")
    main(["compare", "one", "--split", "test", "--fuse", "--output", "rrf"])
    runs = [read_run(f"rrf/{name}.run") for name in ("bm25", "one")]
    assert read_run("rrf/fused.run") == fuse(runs)
    rows = found_by(capsys, "search", "one", "--split", "test", "--hybrid")
    found = [(row["query"], row["id"], row["score"]) for row in rows]
    assert found == [(q, d, s) for q, scores in fuse(runs[::-1]).items() for d, s in scores.items()]


@pytest.mark.parametrize(
    "engine",
    [pytest.param("lancedb", marks=needs.lancedb), pytest.param("clickhouse", marks=needs.clickhouse)],
)
def test_an_engine_takes_the_place_of_an_index(source, models, capsys, tmp_path_factory, engine):
    # ClickHouse as a library opens one folder in a process.
    place = tmp_path_factory.getbasetemp() / engine
    name = "xtr" if engine == "clickhouse" else "colbert"
    command = ["index", "notes", "--model", models[name], "--output", "engine.index"]
    address = f"{engine}:{place}"
    assert f"as {name}, {engine}" in printed(capsys, *command, "--engine", address)[1]
    index("notes", models[name], "--kind", "exact")
    query = "warm fire"

    def ranked(folder):
        rows = found_by(capsys, "search", folder, query)
        return {row["id"]: row["score"] for row in rows}

    assert ranked("engine.index") == pytest.approx(ranked("notes.index"), abs=1e-3)
    assert not Path("engine.index/index").exists()
    (source / "fire.txt").write_text("a warm sea")
    (source / "snow.txt").unlink()
    interrupted(Store, "build", *command)
    assert "has not ended" in refused("search", "engine.index", query)
    assert "1 encoded, 0 deleted" in printed(capsys, *command)[1]
    index("notes", models[name], "--kind", "exact")
    assert ranked("engine.index") == pytest.approx(ranked("notes.index"), abs=1e-3)
    assert "sea" in printed(capsys, "explain", "engine.index", query, "--document", "fish.txt:1")[0]
    Path("ids").write_text("fish.txt:1")
    assert len(found_by(capsys, "search", "engine.index", query, "--among", "ids")) == 1
    assert "engine.index" in printed(capsys, "compare", "engine.index", "notes.index", "--query", query)[0]
    other = "index", "notes", "--output", "other", "--model", models[name], "--engine"
    for more, said in (
        ([address, "--kind", "exact"], "leave out --kind"),
        (["clickhouse:http://me:secret@localhost"], "would be stored"),
        (["unknown:folder"], "one of the engines clickhouse"),
        ([address, "--engine-options", '{"nothing": 1}'], "'nothing'; its options: "),
        ([address, "--engine-options", '{"a": [{"api_key": "x"}]}'], "would be stored"),
        ([engine], "write ENGINE:PLACE"),
    ):
        assert said in refused(*other, *more)
    assert not Path("other").exists()
    # What is refused or fails before all is read changes nothing.
    found = ranked("engine.index")
    elsewhere = refused(*command, "--engine", address, "--engine-options", '{"numbers": "x"}')
    assert "other engine options" in elsewhere
    refused(*command, "--model", models["dpr"], "--engine", address, "--anew")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(indexing, "write_corpus", lambda *_: (_ for _ in ()).throw(OSError("no space")))
        assert "no space" in refused(*command)
    assert ranked("engine.index") == found
    if engine == "lancedb":
        assert "has documents" in refused(*other, address)
    assert "searched alone" in refused("search", "engine.index", "notes.index", query)


@needs.clickhouse
@pytest.mark.parametrize(
    ("first", "place", "missing"),
    [
        ("bm25", "colbert.index/bm25", "holds no saved BM25"),
        ("coil.index", "coil.index", "the first stage of colbert.index: "),
    ],
)
def test_a_first_stage_finds_an_engines_candidates(
    source, models, capsys, tmp_path_factory, first, place, missing
):
    (source / "wood.txt").write_text("a cold fish and wood")
    address = f"clickhouse:{tmp_path_factory.getbasetemp() / 'clickhouse'}"

    def command(model, database, **options):
        called = ["index", "notes", "--model", models[model], "--output", f"{model}.index"]
        called += ["--engine", address]
        return *called, "--engine-options", json.dumps({"database": f"{database} {first}"} | options)

    def found(*more):
        return {row["id"]: row["score"] for row in found_by(capsys, "search", "colbert.index", "fish", *more)}

    main([*map(str, command("coil", "terms"))])
    main([*map(str, command("colbert", "vectors"))])
    candidates = {id: score for id, score in found().items() if id in ("fish.txt:1", "wood.txt:1")}
    assert found("-k", "2").keys() != candidates.keys()
    staged = command("colbert", "vectors", first=first, candidates=2)
    assert "0 encoded" in printed(capsys, *staged)[1]
    assert found("-k", "2") == pytest.approx(candidates)
    Path("ids").write_text("snow.txt:1")
    assert found("--among", "ids").keys() == {"snow.txt:1"}
    for wrong, said in (
        ({"candidates": 0}, "candidates must be at least 1"),
        ({"first": "colbert.index"}, "name another index, without a first stage"),
        ({"first": ""}, "first is empty: name bm25, or a folder"),
    ):
        assert said in refused(*command("colbert", "vectors", **{"first": first} | wrong))
    (source / "wood.txt").write_text("warm wood")
    if first == "coil.index":
        assert "give both the same --words" in refused(*staged, "--words", "1", "--anew")
        assert "use one folder, another database" in refused(*staged, "--engine", "clickhouse:elsewhere")
        assert "different documents" in refused("index", "notes", "--output", "colbert.index", *staged[2:4])
        main([*map(str, command("coil", "terms"))])
    staged = command("colbert", "vectors", first=first, candidates=1)
    main([*map(str, staged)])
    if first == "bm25":  # damaged, it is built again
        Path("colbert.index/bm25/settings.json").unlink()
        assert "index the source again" in refused("search", "colbert.index", "fish")
        main([*map(str, staged)])
    assert found("-k", "1").keys() == {"fish.txt:1"}
    Path(place).rename("gone")
    assert missing in refused("search", "colbert.index", "fish")


def test_a_search_among_some_documents(judged, models, capsys):
    index(judged, models["colbert"], "--output", "one", "--passages", "--words", "2")
    ids = judged.parents[0] / "ids"
    ids.write_text("d0\nd2\n")
    rows = found_by(capsys, "search", "one", "fire and warm wood", "--among", "ids")
    assert sorted(row["id"] for row in rows) == ["d0", "d2"]
    ids.write_text("d0\nnowhere\n")
    assert "nowhere" in refused("search", "one", "snow", "--among", "ids")


def test_folders_are_searched_as_one(source, models, capsys):
    """The results and their texts are those of one folder with all documents."""
    rows = {f"d{n}": f"{text} {n}" for n, text in enumerate([*TEXTS.values()] * 3)}
    for folder, ids in (("all", list(rows)), ("one", list(rows)[::2]), ("two", list(rows)[1::2])):
        write_rows(source / f"{folder}.jsonl", {id: rows[id] for id in ids})
        index(f"notes/{folder}.jsonl", models["colbert"])
    parts = ("one.jsonl.index", "two.jsonl.index")
    answers = []
    for folders in (parts, ["all.jsonl.index"]):
        rows = found_by(capsys, "search", *folders, "cold fish", "warm ice", "-k", 4)
        answers.append([(row["query"], row["id"], row["document"]) for row in rows])
    assert answers[0] == answers[1]
    assert "is also in another index" in refused("search", "one.jsonl.index", "one.jsonl.index", "cold")
    assert "--split needs an index" in refused("search", *parts, "--split", "test")


@pytest.mark.parametrize("name", ["xtr", "cross_attention"])
def test_rerank_orders_what_bm25_finds(source, models, capsys, name):
    rows = found_by(capsys, "rerank", "notes", "cold fire in the sea", "--model", models[name])
    assert {row["id"] for row in rows} == {"fish.txt:1", "fire.txt:1", "snow.txt:1"}
    assert [row["score"] for row in rows] == sorted((row["score"] for row in rows), reverse=True)


def test_rerank_of_a_run(source, models, capsys):
    rows = ["a Q0 snow.txt:1 1 9 x", "a Q0 fire.txt:1 2 8 x", "a Q0 fish.txt:1 3 7 x"]
    (source.parent / "first.run").write_text("\n".join([*rows, "b Q0 fire.txt:1 1 1 x"]))
    (source.parent / "queries.tsv").write_text("a\tfire and warm wood\n")
    rerank = ["rerank", "notes", "--model", str(models["colbert"]), "--queries", "queries.tsv"]
    rows = found_by(capsys, *rerank, "--run", "first.run", "--depth", "2")
    assert [row["id"] for row in rows] == ["fire.txt:1", "snow.txt:1"]
    for row, said in (("c Q0 snow.txt:1", "has none of the queries: a"), ("a Q0 no", "no document 'no'")):
        (source.parent / "first.run").write_text(f"{row} 1 9 x\n")
        assert said in refused(*rerank, "--run", "first.run")


@pytest.mark.parametrize("name", ["xtr", "dpr"])
def test_explain_names_the_aligned_tokens(source, models, capsys, name):
    index("notes", models[name], "--output", "explained")
    out, err = printed(capsys, "explain", "explained", "fish in the sea")
    for said in ("fish.txt:1", "rel = ", "[pooled]" if name == "dpr" else "fish"):
        assert said in out
    advice = "has one vector for a text, so no token has a share of the score"
    assert (advice in err) == (f"index {source} --output tokens.index" in err) == (name == "dpr")
    out, _ = printed(capsys, "explain", "explained", "fish in the sea", "--document", "snow.txt:1")
    assert "snow.txt:1" in out


def test_files_of_queries(tmp_path):
    file = tmp_path / "queries"
    for text, found in {
        "one\ntwo\n": {"1": "one", "2": "two"},
        "a\tone\nb\ttwo\twords\n": {"a": "one", "b": "two\twords"},
        '{"_id": 3, "text": "one"}\n': {"3": "one"},
    }.items():
        file.write_text(text)
        assert from_file(str(file)) == found
    for text, message in {
        "": "holds no query",
        "a\tone\nb two\n": "line 2: not 2 columns",
        "a\tone\na\ttwo\n": "line 2: the id 'a' is repeated",
        '{"_id": 1, "text": null}\n': "line 1: the text of the query '1' is blank",
    }.items():
        file.write_text(text)
        with pytest.raises(ValueError, match=message):
            from_file(str(file))


def test_an_index_is_searched_from_any_folder(source, models, capsys, monkeypatch):
    monkeypatch.chdir(models["colbert"].parent)
    index(source, "colbert", "--output", source.parent / "x")
    monkeypatch.chdir(source)
    assert trec(capsys, "../x", "cold snow on ice", "-k", 1) == {"1": "snow.txt:1"}
    index(".", models["colbert"], "--output", "../x")  # the same, by other names


def test_white_space_in_ids_is_refused_before_a_search(source, models, monkeypatch):
    write_rows(source.parent / "rows.jsonl", TEXTS | {"a b": "snow"})
    index("rows.jsonl", models["colbert"])
    for retriever in (BM25, Indexed):
        monkeypatch.setattr(retriever, "search", lambda *_, **__: pytest.fail("it searches"))
    for command in (
        "search rows.jsonl.index snow --format trec",
        "rerank rows.jsonl snow --format trec",
        "compare rows.jsonl.index --query snow --output compared",
    ):
        assert "white space" in refused(*command.split())


@pytest.fixture
def pickled(tiny_bert, tmp_path):
    """A plain encoder whose weights are pickled."""
    folder = tmp_path / "pickled"
    shutil.copytree(tiny_bert, folder)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    return str(folder)


def test_pickled_weights_are_read_where_a_command_is_told_so(source, pickled, tmp_path, capsys):
    """Every command asks again: an index from someone else does not carry the permission."""
    for command in (
        ["index", "notes", "--model", pickled],
        ["search", "notes.index", "snow"],
        ["explain", "notes.index", "snow"],
        ["compare", "notes.index", "-q", "snow"],
        ["rerank", "notes", "snow", "--model", pickled],
        ["export", pickled, str(tmp_path / "safe")],
    ):
        assert "--pickled" in refused(*command)
        main([*command, "--pickled"])
        if command[0] == "index":
            assert 'search notes.index "your question" --pickled' in capsys.readouterr().err
    index("notes", tmp_path / "safe", "--output", "safe.index")


def test_two_towers_are_named_at_the_terminal(source, tmp_path, capsys):
    _, (questions, _), (passages, _) = dpr_towers(tmp_path, 0)
    questions, passages = str(questions), str(passages)
    assert "--model QUESTIONS --document-model PASSAGES" in refused("index", "notes", "--model", questions)
    pair = ["--model", questions, "--document-model", passages]
    main(["index", "notes", *pair, "--precision", "no"])
    found = {row["id"]: row["score"] for row in found_by(capsys, "search", "notes.index", "snow")}
    model = load(questions, documents=passages)
    expected = {f"{id}:1": score for id, score, _ in model.rank("snow", TEXTS)}
    assert found == pytest.approx(expected, rel=1e-3)
    swapped = ["--model", passages, "--document-model", questions]
    assert "not by this dpr (weights)" in refused("index", "notes", *swapped)
    assert "set --model too" in refused("index", "notes", "--document-model", passages)


def test_what_may_be_xtr_is_told_at_the_terminal(source, tmp_path):
    folder = write_checkpoint("t5", tmp_path / "theirs")
    write_like_xtr(folder)
    assert "--model-layout" in refused("index", "notes", "--model", folder)
    index("notes", folder, "--model-layout", "xtr")
    main(["search", "notes.index", "snow"])  # as it was indexed


def test_a_source_that_is_not_there_is_told_with_what_could_be(source):
    message = refused("index", "nowhere")
    assert message.startswith("nowhere: no such folder or file")
    for told in ("folder of text files", "JSON lines", "BEIR", "pydocs", "hf:OWNER/NAME"):
        assert told in message
    assert "hf:" not in refused("index", "pydocs", "--model", "./nowhere")  # a collection, not a folder


@pytest.mark.parametrize(("length", "words"), [(24, 16), (512, 85)])
def test_passages_fit_the_model(source, tiny_bert, capsys, length, words):
    model = PARADIGMS["dpr"](tiny_bert, query_length=12, document_length=length)
    model.save_pretrained("model")
    (source / "long.txt").write_text("word " * 200)
    _, err = printed(capsys, "index", "notes", "--model", "model")
    assert f"passages of at most {words} words" in err
    rows = rows_of((source.parent / "notes.index" / "corpus.jsonl").read_text())
    assert max(len(row["text"].split()) for row in rows) == words
    rerank = "rerank", "notes", "word", "--model", "model"
    assert f"passages of at most {words} words" in printed(capsys, *rerank)[1]
    assert "passages of" not in printed(capsys, *rerank, "--words", "7")[1]


def test_a_score_of_minus_infinity_is_null_and_a_query_without_tokens_finds_nothing(indexed, capsys):
    show.results({"1": "snow"}, {"1": {"a": 2.0, "b": float("-inf")}}, None, "json")
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line, parse_constant=pytest.fail)["score"] for line in lines] == [2.0, None]
    out, _ = printed(capsys, "search", indexed, "\ue000", "snow")  # of private use, which BERT drops
    assert out.count("nothing found") == 1


@pytest.mark.parametrize("queries", [[], ["-q", "fish and cold snow", "-q", "warm wood in the sea"]])
def test_dimensions_of_a_source(source, models, capsys, queries):
    rng = random.Random(0)
    words = [f"word{i}" for i in range(60)] + ["fish", "sea", "fire", "wood", "snow", "ice"]
    texts = {str(i): " ".join(rng.choices(words, k=20)) + ". More." for i in range(80)}
    write_rows(source.parent / "rows.jsonl", texts | {"80": texts["0"]})
    model = ["--model", str(models["dpr"])] if queries else []
    out, _ = printed(capsys, "dimensions", "rows.jsonl", *queries, *model)
    assert "an untrained linear map needs" in out
    assert "truncated SVD" in out
    assert ("queries are titles or first sentences" in out) != bool(queries)
    assert ("An untrained map keeps it as often" in out) == bool(model)
    assert "can rank better than BM25" in out
    assert "1 document has the text of another" in out
    assert ("fewer than 50 queries" in out) == bool(queries)


@pytest.mark.parametrize("name", ["aligner", "coil", "dpr", "xtr"])
def test_oracle_says_what_any_query_vectors_could_answer(judged, models, capsys, name):
    index(judged, models[name], "--output", name)
    out = printed(capsys, "oracle", name, "--split", "test")[0].lower()
    assert "of 3 judged queries, some query vectors" in out
    for said in ("the query encoder loses", "r-precision is", "in rational arithmetic"):
        assert said in out


@pytest.mark.parametrize("name", ["aligner", "coil", "colbert", "dpr"])
def test_oracle_ranks_documents_by_rel(models, name):
    """Its scores are rel but for a factor, with zero vectors for documents without one of the query's ids."""
    model = load(models[name])
    store = Store.build(kinds.exact(), model, TEXTS, TEXTS.values())
    queries = model.encode_queries(["the warm fish", "sea", "snow and snow"]).map(doubled)
    expected = model.score(store.tokens(range(3)).map(doubled), queries)
    for n, row in enumerate(expected):
        question = question_of(stored(store), queries, n, model.recipe.align)
        scores, wanted = question.scores(question.query), row.detach().numpy()
        assert_same(scores / abs(scores).max(), wanted / abs(wanted).max())
    if name == "coil":
        strange = replace(queries, ids=queries.ids + 100_000)
        question = question_of(stored(store), strange, 0, model.recipe.align)
        assert not question.answer(np.array([1])).answerable


@pytest.mark.parametrize("name", ["dpr", "colbert"])
def test_oracle_of_fewer_numbers_is_that_of_an_index_with_as_few(models, name):
    """Projected tokens have length 1, as an index of as few numbers stores them, if the model's have."""
    model = load(models[name])
    short, texts = model.truncated(3), list(TEXTS.values())
    full, fewer = (Store.build(kinds.exact(), m, TEXTS, texts) for m in (model, short))
    axes = np.eye(full.dim)[:, :3]
    study, index = stored(full, axes), stored(fewer)
    assert study.unit
    assert_within_rounding(study.vectors, index.vectors, torch.float16, 4)
    for n in range(3):
        ours = question_of(study, model.encode_queries(texts), n, model.recipe.align)
        theirs = question_of(index, short.encode_queries(texts), n, model.recipe.align)
        assert_within_rounding(ours.query, theirs.query, torch.float32, TERMS)


def doubled(values: torch.Tensor) -> torch.Tensor:
    return values.double() if values.is_floating_point() else values


def test_oracle_refuses_what_it_cannot_judge(indexed, judged, models):
    assert "give --split" in refused("oracle", indexed)
    index(judged, models["colbert"], "--output", "split", "--passages")
    assert "holds passages" in refused("oracle", "split", "--split", "test")
