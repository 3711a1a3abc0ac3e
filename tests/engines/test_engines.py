"""Engines answer as exact search does: an exhaustive one, and those that are installed."""

from random import Random
from urllib.request import Request, urlopen

import numpy as np
import pytest
import torch
from studies.postgres import postgres

from paradigms import PARADIGMS
from paradigms.align import QueryToDocument
from paradigms.core import Tokens
from paradigms.data import Corpus
from paradigms.engines import (
    ClickHouseEngine,
    EngineRetriever,
    LanceEngine,
    PgvectorEngine,
    QdrantEdgeEngine,
    QdrantEngine,
    hand_over,
    index_corpus,
)
from paradigms.engines.base import MaxSimEngine
from paradigms.find import Index, Store, kinds
from paradigms.recipe import Recipe
from paradigms.retrieve import Indexed
from paradigms.store.arrays import as_tokens
from tests import needs
from tests.near import SCORES, assert_same_run, assert_within_rounding
from tests.tiny import WORDS

LENGTHS = {"query_length": 12, "document_length": 20}
SETTINGS = {
    "colbert": {"dim": 8},
    "dpr": {"pooling": "mean"},
    "inner products": {"pooling": "mean", "normalize": False},
}
ENGINES = [
    "exhaustive",
    pytest.param("lancedb", marks=needs.lancedb),
    pytest.param("qdrant", marks=needs.qdrant),
    pytest.param("qdrant server", marks=needs.qdrant_client),
    pytest.param("pgvector", marks=needs.postgres),
    pytest.param("clickhouse", marks=needs.clickhouse),
]


def texts(count: int, seed: int) -> dict[str, str]:
    draw = Random(seed)
    words = WORDS.split()
    return {f"{seed}/{n}": " ".join(draw.choices(words, k=draw.randint(1, 15))) for n in range(count)}


def write(engine, ids, documents):
    """Store documents given as arrays [vectors, dim]."""
    return engine.write(ids, as_tokens([np.asarray(vectors) for vectors in documents]))


def top(engine, query, k, among=None):
    """The ids and scores, by MaxSim, of the k best documents for a query [vectors, dim]."""
    recipe = Recipe("maxsim", QueryToDocument(), "one")
    return [hit[:2] for hit in engine.rank(as_tokens([query], "query"), recipe, k, among)]


class Exhaustive(MaxSimEngine):
    """The least that an engine must implement."""

    def __init__(self, dim, single=False):
        self.dim, self.single, self.documents, self.metadata = dim, single, {}, {}

    def _add(self, ids, documents, texts):
        self.documents |= zip(ids, zip(documents, texts, strict=True), strict=True)

    def stored(self, ids=None):
        return {id: text for id, (_, text) in self.documents.items() if ids is None or id in ids}

    def delete(self, ids):
        for id in ids:
            self.documents.pop(id, None)

    def _describe(self, metadata):
        self.metadata |= metadata

    def _top(self, query, k, among):
        filtered = (id for id in self.documents if self.where.items() <= self.metadata.get(id, {}).items())
        documents = {id: self.documents[id] for id in filtered if among is None or id in among}
        hits = [(id, float((d @ query.T).max(0).sum()), text) for id, (d, text) in documents.items()]
        return sorted(hits, key=lambda hit: -hit[1])[:k]


@pytest.fixture(scope="module")
def bucket():
    """Settings of LanceDB for an object store of moto, with the bucket `bucket`."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    address = "http://{}:{}".format(*server.get_host_and_port())
    urlopen(Request(f"{address}/bucket", method="PUT")).close()
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region": "us-east-1"}
    yield {"endpoint": address, "allow_http": "true", **keys}
    server.stop()


@pytest.fixture(scope="module")
def server():
    """The address of a PostgreSQL server."""
    try:
        with postgres() as address:
            yield address
    except PermissionError as error:
        pytest.skip(f"PostgreSQL does not run as root, and nobody may not read it: {error}")


@pytest.fixture
def qdrant_server(monkeypatch):
    """In place of a server, the client's imitation of one, within this test."""
    from qdrant_client import QdrantClient

    client = QdrantClient(":memory:")
    monkeypatch.setattr(client, "close", lambda: None)
    monkeypatch.setattr("qdrant_client.QdrantClient", lambda **settings: client)
    return client


@pytest.fixture
def engine_of(request, tmp_path, tmp_path_factory):
    """(name, dim, single) -> an engine, whose documents are those of the last one with this name."""
    edges = []

    def opened(name, dim, single=False, **settings):
        if name == "exhaustive":
            return Exhaustive(dim, single)
        if name == "lancedb":
            return LanceEngine(str(tmp_path / "lance"), dim, single=single, **settings)
        if name == "qdrant":
            while edges:
                edges.pop().close()
            edges.append(QdrantEdgeEngine(tmp_path / "qdrant", dim, single=single, **settings))
            return edges[0]
        if name == "clickhouse":  # as a library, which opens one folder in a process
            place = str(tmp_path_factory.getbasetemp() / "clickhouse")
            return ClickHouseEngine(place, dim, single=single, database=tmp_path.name, **settings)
        if name == "qdrant server":
            request.getfixturevalue("qdrant_server")
            return QdrantEngine("http://server", dim, collection="documents", single=single, **settings)
        address = request.getfixturevalue("server")
        return PgvectorEngine(address, dim, single=single, schema=tmp_path.name, **settings)

    return opened


@pytest.fixture(scope="module", params=SETTINGS)
def indexed(request, tiny_bert, tmp_path_factory):
    torch.manual_seed(0)
    name = "dpr" if request.param == "inner products" else request.param
    model = PARADIGMS[name](tiny_bert, **LENGTHS, **SETTINGS[request.param])
    documents = texts(80, 0) | {"empty": ""}
    store = Store.build(kinds.exact(), model, list(documents), list(documents.values()))
    return model, store.delete(["0/3"])


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_answers_as_exact_search_does(indexed, engine_of, name):
    model, store = indexed
    single = model.name == "dpr"
    engine = engine_of(name, model.encoder.dim, single)
    assert hand_over(store, model, engine) == 79
    queries = texts(6, 1) | {"none": " "}
    expected = Indexed(Index(store), model).search(queries, 10)
    retriever = EngineRetriever(engine, model)
    results = retriever.search(queries, 10)
    assert results.pop("none") == {}
    expected.pop("none")
    assert_same_run(results, expected)
    run = {query: dict.fromkeys([*list(expected[query])[2:5], "0/7", "empty"], 0.0) for query in expected}
    assert_same_run(retriever.rerank(queries, run), Indexed(Index(store), model).rerank(queries, run))
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        retriever.search(queries, 0)
    with pytest.raises(ValueError, match="give the retriever its corpus"):
        retriever.explain("fish", "0/7")
    corpus = Corpus.of(texts(80, 0))
    assert EngineRetriever(engine, model, corpus).search(queries, 10) == retriever.search(queries, 10)
    assert EngineRetriever(engine, model, corpus).explain("fish", "0/7")
    other = EngineRetriever(engine, model, Corpus.of(texts(80, 0) | {"0/7": "fish"}))
    for use in (lambda: other.search(queries, 79), lambda: other.explain("fish", "0/7")):
        with pytest.raises(ValueError, match="other texts for 1 of these documents: '0/7'"):
            use()


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_follows_a_corpus(tiny_bert, engine_of, name, monkeypatch):
    torch.manual_seed(0)
    model = PARADIGMS["colbert"](tiny_bert, **LENGTHS, dim=8)
    engine = engine_of(name, 8)
    before = texts(9, 0)
    after = dict(list(before.items())[:7]) | {"0/2": "bird", "0/3": "", "new": "fish and sea"}
    assert index_corpus(engine, model, Corpus.of(before)) == (9, 0)
    monkeypatch.setattr("paradigms.engines.base.DOCUMENTS", 2)
    assert index_corpus(engine, model, Corpus.of(after)) == (3, 2)
    assert index_corpus(engine, model, Corpus.of(after)) == (1, 0)  # the empty document, which is not stored
    assert engine.stored().keys() == after.keys() - {"0/3"}
    assert_same_run(
        EngineRetriever(engine, model, Corpus.of(after)).search({"q": "bird"}, 9),
        Indexed.build(model, after).search({"q": "bird"}, 9),
    )
    outdated = EngineRetriever(engine, model, Corpus.of(before))
    with pytest.raises(ValueError, match="documents that are not in the corpus, such as 'new'"):
        outdated.search({"q": "bird"}, 9)
    some = ["0/1", "new", "unknown"]
    restricted = EngineRetriever(engine, model).only(some)
    assert restricted.search({"q": "bird"}, 9)["q"].keys() == set(some[:2])
    assert restricted.rerank({"q": "bird"}, {"q": {"0/1": 0.0, "0/2": 0.0}})["q"]["0/2"] == -np.inf
    assert restricted.only(["new", "0/2"]).search({"q": "bird"}, 9)["q"].keys() == {"new"}


@pytest.mark.parametrize("name", ENGINES)
def test_metadata_filters_every_search(engine_of, name):
    engine = engine_of(name, 2)
    vectors = [np.array([row], np.float32) for row in ([1.0, 0.0], [0.8, 0.6], [0.0, 1.0])]
    write(engine, list("abc"), vectors)
    engine.describe({"a": {"kind": "it's", "year": "2020"}, "b": {"kind": "it's", "note": ""}, "c": {}})
    query = vectors[0]
    both = {"kind": "it's", "year": "2020"}
    for where, ids in (({}, "abc"), ({"kind": "it's"}, "ab"), (both, "a"), ({"note": ""}, "b")):
        engine.where = where
        assert [id for id, _ in top(engine, query, 3)] == list(ids)
        assert [id for id, _ in top(engine, query, 3, ["b", "c"])] == [id for id in ids if id != "a"]
    engine.where = {"kind": "it's"}
    write(engine, ["a"], [vectors[2]])
    assert [id for id, _ in top(engine, query, 3)] == ["b", "a"]  # a replaced document keeps its metadata
    engine.delete(["b", "unknown"])
    engine.delete([])
    assert [id for id, _ in top(engine, query, 3)] == ["a"]
    assert engine.stored(["a", "b"]) == {"a": 0}
    with pytest.raises(ValueError, match="there is no document 'b'"):
        engine.describe({"a": {}, "b": {}})


@pytest.mark.parametrize("name", ENGINES[1:])
def test_vectors_in_16_bits(engine_of, name):
    half = "BFloat16" if name == "clickhouse" else "float16"
    engine = engine_of(name, 4, numbers=half)
    vectors = np.array([[0.1, 0.2, 0.3, 0.4], [1, 0, 0, 0]], np.float32)
    write(engine, ["a", "b"], [vectors[:1], vectors[1:]])
    query = vectors[:1]
    exact = {"a": 0.3, "b": 0.1}
    scores = dict(top(engine, query, 2))
    assert scores == pytest.approx(exact, rel=1e-2)
    assert abs(scores["b"] - 0.1) > 1e-6 or name == "qdrant server"  # its imitation stores float32
    assert dict(top(engine_of(name, 4, numbers=half), query, 2)) == scores
    if name == "pgvector":
        engine.approximate()
    with pytest.raises(ValueError, match=r"choose one of (float32, float16|Float32, BFloat16)"):
        engine_of(name, 4, numbers="int4")


@needs.qdrant_client
def test_requests_to_qdrant_are_no_larger_than_a_server_takes(engine_of, monkeypatch):
    engine = engine_of("qdrant server", 8)
    sent, send = [], engine.client.upsert

    def counted(collection, points, wait):
        sent.append(sum(len(point.vector) * 8 for point in points))
        return send(collection, points, wait=wait)

    monkeypatch.setattr(engine.client, "upsert", counted)
    monkeypatch.setattr("paradigms.engines.qdrant.REQUEST", 100)
    write(engine, list("abcde"), [np.ones((n, 8), np.float32) for n in (5, 5, 5, 20, 1)])
    assert sent == [80, 40, 160, 8]
    assert len(top(engine, np.ones((1, 8), np.float32), 9)) == 5


@pytest.mark.parametrize(
    ("name", "engine", "message"),
    [
        *((name, Exhaustive(32), "engines support MaxSim only") for name in ("xtr", "coil", "aligner")),
        ("colbert", Exhaustive(7), "has 32 dimensions, the engine 7"),
        ("colbert", Exhaustive(32, single=True), "several vectors per document, but this engine takes one"),
    ],
)
def test_a_model_that_an_engine_cannot_rank_by_is_refused(tiny_bert, name, engine, message):
    model = PARADIGMS[name](tiny_bert, **LENGTHS)
    store = Store.build(kinds.exact(), model, ["a"], ["fish"])
    with pytest.raises(ValueError, match=message):
        hand_over(store, model, engine)


@pytest.mark.parametrize("name", ENGINES)
def test_what_an_engine_cannot_take_is_named(engine_of, name):
    engine = engine_of(name, 4, True)
    one, two, wide = np.ones((1, 4), np.float32), np.ones((2, 4), np.float32), np.ones((1, 5), np.float32)
    for ids, documents, message in (
        (["a", "b"], [one, two], "'b' has 2 vectors, but this engine takes one"),
        (["a", "b"], [one, np.full((1, 4), np.nan, np.float32)], "'b' has vectors that are not finite"),
        (["b"], [wide], r"'b' needs axes \[vectors, 4\], not \[1, 5\]"),
        (["a", "a"], [one, one], "document 'a' is listed twice"),
    ):
        with pytest.raises(ValueError, match=message):
            write(engine, ids, documents)
    assert top(engine, one, 3) == []  # nothing of these was stored
    assert engine.write([], Tokens(torch.ones(1, 0, 1, 4), torch.ones(1, 0, 1, dtype=torch.bool))) == 0
    write(engine, ["a"], [one])
    assert top(engine, one, 3) == [("a", pytest.approx(4.0))]
    assert top(engine, one[:0], 3) == []
    with pytest.raises(ValueError, match=r"the query needs axes \[vectors, 4\], not \[1, 5\]"):
        top(engine, wide, 3)
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        top(engine, one, 0)


@pytest.mark.parametrize("name", ENGINES[1:-1])
@pytest.mark.parametrize(("dim", "single"), [(5, True), (4, False)])
def test_a_store_of_other_vectors_is_refused(engine_of, name, dim, single):
    engine_of(name, 4, True)
    with pytest.raises(ValueError, match=rf"4.*, not .*\b{dim}\b"):
        engine_of(name, dim, single)
    engine_of(name, 4, True)  # what it was made for is opened


@needs.lancedb
def test_a_lancedb_table_of_another_dtype_or_metric_is_refused(tmp_path):
    import lancedb
    import pyarrow as pa

    half = pa.schema([pa.field("id", pa.string()), pa.field("vector", pa.list_(pa.float16(), 4))])
    lancedb.connect(tmp_path / "half").create_table("documents", schema=half)
    with pytest.raises(ValueError, match=r"list<halffloat>\[4\].*not .*list<float>\[4\]"):
        LanceEngine(str(tmp_path / "half"), 4, single=True)
    engine = LanceEngine(str(tmp_path / "indexed"), 4, single=True)
    draw = np.random.default_rng(0)
    vectors = draw.standard_normal((300, 1, 4)).astype(np.float32)
    write(engine, [str(n) for n in range(300)], list(vectors))
    engine.table.create_index("vector", config=lancedb.index.IvfFlat(distance_type="l2"))
    with pytest.raises(ValueError, match="with the metric l2, not dot"):
        LanceEngine(str(tmp_path / "indexed"), 4, single=True)
    engine.approximate(index_type="IVF_FLAT")  # in its place
    LanceEngine(str(tmp_path / "indexed"), 4, single=True)


@needs.lancedb
def test_lancedb_indexes_many_vectors_a_document_where_cosines_are_inner_products(tmp_path):
    draw = np.random.default_rng(0)
    vectors = draw.standard_normal((600, 5, 16)).astype(np.float32)
    unit = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    ids = [str(n) for n in range(600)]
    exact, engine, long = (LanceEngine(str(tmp_path / name), 16, nprobes=1000) for name in "abc")
    write(exact, ids, list(unit))
    write(engine, ids, list(unit))
    write(long, ids, list(vectors))
    with pytest.raises(ValueError, match=r"document '\d+' has a vector of length"):
        long.approximate(index_type="IVF_FLAT")
    engine.approximate(index_type="IVF_FLAT")
    again = LanceEngine(str(tmp_path / "b"), 16, nprobes=1000)
    for query in unit[:3, :4]:
        expected, results = (dict(top(one, query, 10)) for one in (exact, again))
        both = expected.keys() & results.keys()
        assert len(both) >= 8  # of those near its tokens, LanceDB scores some
        assert_within_rounding({id: results[id] for id in both}, {id: expected[id] for id in both}, **SCORES)
        assert next(iter(results)) == next(iter(expected))
    with pytest.raises(ValueError, match="the query has a vector of length"):
        top(again, 2 * unit[0], 10)


@needs.qdrant_client
def test_settings_are_passed_on_to_qdrant(qdrant_server, monkeypatch):
    from qdrant_client import models

    create, requests = qdrant_server.create_collection, []

    def created(name, vectors_config, **arguments):  # as a client of a server does
        requests.append(models.CreateCollection(vectors=vectors_config, **arguments))
        return create(name, vectors_config=vectors_config, **arguments)

    monkeypatch.setattr(qdrant_server, "create_collection", created)
    quantisation = {"scalar": {"type": "int8", "always_ram": True}}
    settings = {"shard_number": 3, "replication_factor": 2, "quantization_config": quantisation}
    vectors = {"on_disk": True, "hnsw_config": {"m": 0}}  # no graph: for reranking
    engine = QdrantEngine("http://server", 4, collection="documents", settings=settings, vectors=vectors)
    write(engine, ["a"], [np.ones((2, 4), np.float32)])
    (request,) = requests
    sent = request.model_dump(exclude_none=True)
    assert {name: sent[name] for name in settings} == settings
    assert {name: sent["vectors"][name] for name in vectors} == vectors
    again = QdrantEngine("http://server", 4, collection="documents", exact=True)
    assert top(again, np.ones((1, 4), np.float32), 1) == [("a", 4.0)]


@needs.qdrant_client
def test_a_qdrant_collection_of_another_metric_or_with_names_is_refused(qdrant_server):
    from qdrant_client import models

    cosine = models.VectorParams(size=4, distance=models.Distance.COSINE)
    half = models.VectorParams(size=4, distance=models.Distance.DOT, datatype=models.Datatype.FLOAT16)
    for params, said in (
        (cosine, "4 × float32, Cosine"),
        (half, "4 × float16, Dot"),
        ({"title": cosine}, r"names \(title\)"),
    ):
        qdrant_server.delete_collection("documents")
        qdrant_server.create_collection("documents", vectors_config=params)
        with pytest.raises(ValueError, match=f"{said}.*, not one vector per document, 4 × float32, Dot"):
            QdrantEngine("http://server", 4, collection="documents", single=True)
    with pytest.raises(ValueError, match=r"QdrantEdgeEngine.* searches a folder"):
        QdrantEngine("folder", 4, collection="documents")


@needs.qdrant
def test_a_folder_of_qdrant_has_one_process_and_an_index(tmp_path):
    engine = QdrantEdgeEngine(tmp_path / "qdrant", 4)
    draw = np.random.default_rng(0)
    documents = list(draw.standard_normal((500, 3, 4)).astype(np.float32))
    write(engine, [str(n) for n in range(500)], documents)
    with pytest.raises(BlockingIOError, match="qdrant is being written by another process"):
        QdrantEdgeEngine(tmp_path / "qdrant", 4)
    expected = top(engine, documents[7], 5)
    engine.approximate()
    engine.close()
    again = QdrantEdgeEngine(tmp_path / "qdrant", 4, exact=True)
    assert top(again, documents[7], 5) == expected
    again.close()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="the folder holds other files"):
        QdrantEdgeEngine(tmp_path / "other", 4)


@needs.postgres
def test_pgvector_scores_the_documents_of_the_nearest_vectors(engine_of):
    draw = np.random.default_rng(0)
    vectors = draw.standard_normal((200, 5, 16)).astype(np.float32)
    exact = engine_of("pgvector", 16)
    write(exact, [str(n) for n in range(200)], list(vectors))
    exact.approximate(m=8, ef_construction=200)
    few, one = (engine_of("pgvector", 16, nearest=nearest) for nearest in (100, 1))
    few.connection.execute("SET enable_seqscan = off")  # which is faster for so few rows
    for query in vectors[:3, :4]:
        expected, results = dict(top(exact, query, 200)), dict(top(few, query, 10))
        assert list(results)[:3] == list(expected)[:3]
        # In full: of all vectors of a document.
        assert results == pytest.approx({id: expected[id] for id in results})
        assert len(top(one, query[:1], 10)) == 1
    with pytest.raises(ValueError, match="nearest must be from 0 to 1,000, got 1001"):
        engine_of("pgvector", 16, nearest=1001)
    with pytest.raises(ValueError, match=r"PostgreSQL at .*out of bounds"):
        few.approximate(m=1000)
    assert len(top(few, vectors[0], 10)) == 10  # its index is there: a change happens whole or not at all
    before = dict(top(few, vectors[0], 10))
    for _ in range(5):  # what they replace stays in the index
        write(few, [str(n) for n in range(200)], list(vectors))
    assert dict(top(few, vectors[0], 10)) == pytest.approx(before)


@needs.postgres
@pytest.mark.parametrize(
    ("address", "said"),
    {
        "postgresql://me:secret@[h": "address must be like postgresql://user@host/database",
        "postgresql://me:p@secret@127.0.0.1:1/mine": "in a password write @ and / as %40 and %2F",
        "postgresql://me:pa/secret@127.0.0.1:1/mine": "in a password write @ and / as %40 and %2F",
        "postgresql://me:secret@127.0.0.1:1/mine": "PostgreSQL at 127.0.0.1, mine, schema mine: .*refused",
        "host=/nowhere password=secret": "PostgreSQL at /nowhere, default database, .*: .*No such file",
    }.items(),
)
def test_no_error_of_pgvector_says_the_password(address, said):
    with pytest.raises(ValueError, match=said) as error:
        PgvectorEngine(address, 4, schema="mine")
    assert "secret" not in str(error.getrepr(style="short"))


@needs.lancedb
@needs.object_store
def test_lancedb_on_an_object_store_has_an_index_and_names_a_bucket_that_is_not_there(bucket):
    def engine(name):
        return LanceEngine(f"s3://{name}/table", 4, single=True, storage_options=bucket)

    vectors = np.random.default_rng(0).standard_normal((300, 1, 4)).astype(np.float32)
    write(engine("bucket"), [str(n) for n in range(300)], list(vectors))
    engine("bucket").approximate(index_type="IVF_FLAT")
    again = engine("bucket")
    assert again.table.list_indices()
    best = int((vectors[:, 0] @ vectors[0, 0]).argmax())
    assert top(again, vectors[0], 1)[0][0] == str(best)
    with pytest.raises(ValueError, match=r"s3://other/table: .*NoSuchBucket"):
        engine("other")
