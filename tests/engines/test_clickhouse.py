"""ClickHouse scores by every A that is SQL as `core.rel` does, in this process and over HTTP."""

from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from urllib.parse import parse_qsl, urlsplit

import numpy as np
import pyarrow as pa
import pytest
import torch

from paradigms import PARADIGMS
from paradigms.align import (
    ALIGNMENTS,
    NORMALISERS,
    Alignment,
    AllPairs,
    Buckets,
    Entropic,
    EqualIds,
    PoolTopK,
    PositiveEqualIds,
    QueryToDocument,
    one,
)
from paradigms.core import Tokens, rel, similarity
from paradigms.data import Corpus
from paradigms.engines import EngineRetriever, index_corpus
from paradigms.engines.clickhouse import ClickHouseEngine
from paradigms.engines.sql import ALIGNED, JOINED
from paradigms.impute import IMPUTATIONS, imputed_rel
from paradigms.recipe import Recipe
from paradigms.retrieve import Indexed
from paradigms.store.arrays import as_tokens
from tests import needs
from tests.engines.test_engines import LENGTHS, texts, top
from tests.near import assert_same, assert_same_run
from tests.test_laws import CASES, B, Case, H
from tests.test_laws import texts as tokens_of

pytestmark = needs.clickhouse
SQL = {name: case for name, case in CASES.items() if not isinstance(case.A, Buckets | Entropic)}
SQL |= {f"{kind.__name__}, {Z}": Case(kind(), Z) for kind in JOINED for Z in NORMALISERS}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """ClickHouse as a library opens one folder in a process."""
    return str(tmp_path_factory.getbasetemp() / "clickhouse")


@pytest.fixture
def engine_of(folder, request):
    name = "".join(c if c.isalnum() else "_" for c in request.node.name)

    def opened(dim=H, database=name, **settings):
        return ClickHouseEngine(folder, dim, database=database, **settings)

    return opened


def scores_of(hits, ids):
    """The scores of these documents, in this order."""
    scores = {hit.id: hit.score for hit in hits}
    return torch.tensor([scores[id] for id in ids], dtype=torch.float64)


@pytest.mark.parametrize("case", SQL.values(), ids=SQL)
def test_sql_is_rel(engine_of, case):
    documents, queries = tokens_of(case)
    engine = engine_of(numbers="Float64")
    engine.write(list("abcde"), documents)
    recipe = Recipe("case", case.A, case.normalise)
    expected = case.rel(documents, queries)
    for b in range(B):
        query = queries[b : b + 1]
        assert_same(scores_of(engine.rank(query, recipe, 5), "abcde"), expected[b])
        few = engine.rank(query, recipe, 5, among=["b", "d"])
        pool = documents.map(lambda t: t[:, [1, 3]])
        assert_same(scores_of(few, "bd"), case.rel(pool, query)[0])


@pytest.mark.parametrize("imputation", IMPUTATIONS)
def test_sql_imputes(engine_of, imputation):
    case = CASES["colbert"]
    documents, queries = tokens_of(case)
    engine = engine_of(numbers="Float64")
    engine.write(list("abcde"), documents)
    recipe = Recipe("case", case.A, "one", search="impute", search_tokens=4, imputation=imputation)
    S, valid = similarity(documents, queries)
    for b in range(B):
        real = queries.mask[b, 0]
        expected = imputed_rel(S[b : b + 1, ..., real], valid[b : b + 1, ..., real], 4, imputation)[0]
        ranked = engine.rank(queries[b : b + 1], recipe, 5)
        assert len(ranked) > 1
        ids = [hit.id for hit in ranked]
        assert_same(scores_of(ranked, ids), expected[["abcde".index(id) for id in ids]])


@pytest.mark.parametrize("align", [EqualIds(), PositiveEqualIds()])
@pytest.mark.parametrize("least", [0.0, -1.0])
def test_a_search_of_term_weights_reads_its_terms_alone(engine_of, monkeypatch, align, least):
    """If k documents score above 0: otherwise those without the query's terms, whose rel is 0, compete."""
    torch.manual_seed(0)
    engine = engine_of(1, numbers="Float64")
    ids = [f"{n:02}" for n in range(40)]
    terms = torch.randint(0, 12, (1, 40, 5))  # some terms twice, of which the larger weight counts
    weights = torch.empty(1, 40, 5, 1, dtype=torch.float64).uniform_(least, 1)
    documents = Tokens(weights, torch.ones(1, 40, 5, dtype=torch.bool), ids=terms)
    engine.write(ids, documents)
    asked = Tokens(torch.rand(1, 1, 3, 1).double(), documents.mask[:, :1, :3], ids=terms[:, :1, :3])
    expected = rel(documents, asked, align, one)[0]
    statements = []
    best = engine._best
    monkeypatch.setattr(engine, "_best", lambda sql, k: statements.append(sql) or best(sql, k))
    for k in (8, 40):
        ranked = engine.rank(asked, Recipe("terms", align, "one"), k)
        order = sorted(range(40), key=lambda n: (-expected[n].item(), ids[n]))[:k]
        assert_same(scores_of(ranked, [hit.id for hit in ranked]), expected[order])
        assert {hit.id for hit in ranked if hit.score} == {ids[n] for n in order if expected[n]}
    assert expected.topk(8).values[-1] > 0
    assert ["LEFT JOIN" in sql for sql in statements] == [False, False, True]


def test_term_weights_choose_candidates(tiny_bert, engine_of):
    """SPLADE's weights in one database, ColBERT's vectors in another, which has a filter."""
    torch.manual_seed(0)
    documents = Corpus.of(texts(60, 0))
    splade = PARADIGMS["splade"](tiny_bert, tied_head=True, most_terms=12, **LENGTHS)
    colbert = PARADIGMS["colbert"](tiny_bert, **LENGTHS)
    weights = engine_of(1)
    vectors = engine_of(colbert.encoder.dim, database="vectors")
    index_corpus(weights, splade, documents)
    index_corpus(vectors, colbert, documents)
    first = EngineRetriever(weights, splade)
    retriever = EngineRetriever(vectors, colbert, documents, first=first, candidates=8)
    queries = texts(3, 1)
    expected = Indexed.build(colbert, documents).rerank(queries, first.search(queries, 8))
    assert_same_run(retriever.search(queries, 8), expected)
    vectors.describe({id: {"kind": str(n % 2)} for n, id in enumerate(documents.ids)})
    vectors.where = {"kind": "1"}
    assert_same_run(retriever.search(queries, 8), EngineRetriever(vectors, colbert).search(queries, 8))


def test_filters_candidates_and_deletions(engine_of):
    engine = engine_of(2)
    vectors = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [-1.0, 0.0]])
    engine.write(list("abcd"), tokens(*vectors.tolist()))
    engine.describe({id: {"language": "de" if id in "ac" else "it's"} for id in "abcd"})
    query = vectors[:1].numpy()
    engine.condition = r"metadata['language'] = 'it\'s'"
    assert [id for id, _ in top(engine, query, 4)] == ["b", "d"]
    engine.candidates = 1
    assert [id for id, _ in top(engine, query, 4)] == ["b"]
    engine.condition = ""
    engine.approximate()
    engine.approximate()
    assert [id for id, _ in top(engine, query, 4)] == ["a"]
    plan = engine.rows(
        f"EXPLAIN indexes = 1 SELECT document FROM {engine.documents} "
        "ORDER BY cosineDistance(pooled, [1, 0]::Array(Float32)) LIMIT 1"
    )
    assert any("vector_similarity" in row["explain"] for row in plan)
    engine.candidates = 8  # the deleted document counts, and the rows from before `describe`
    engine.delete(["a", "unknown"])
    assert [id for id, _ in top(engine, query, 4)] == ["b", "c", "d"]
    engine.describe({"b": {"language": "fr"}})
    engine.where = {"language": "it's"}  # as b's was, which the index still has
    assert [id for id, _ in top(engine, query, 4)] == ["d"]


def test_a_plug_in_brings_its_own_sql(engine_of, monkeypatch):
    class Least(Alignment, reads={"similarity"}):
        """Each query token is aligned to the document token that is least similar to it."""

        def __call__(self, S, valid, documents, queries):
            return QueryToDocument()(-S, valid, documents, queries)

    del ALIGNMENTS["Least"]  # other tests read them
    documents, queries = tokens_of(CASES["colbert"])
    engine = engine_of(numbers="Float64")
    engine.write(list("abcde"), documents)
    recipe = Recipe("least", Least(), "one")
    with pytest.raises(ValueError, match="has no SQL"):
        engine.rank(queries[:1], recipe, 5)
    monkeypatch.setitem(ALIGNED, Least, lambda align, column: (f"min({column.similarity})", "1"))
    ranked = engine.rank(queries[:1], recipe, 5)
    assert_same(scores_of(ranked, "abcde"), rel(documents, queries[:1], Least(), one)[0])


def tokens(*vectors, ids=None):
    """Documents of one token each."""
    return as_tokens([[vector] for vector in vectors], ids=None if ids is None else [[id] for id in ids])


def test_a_write_is_complete_or_changes_nothing(engine_of, monkeypatch):
    engine = engine_of(2)
    engine.write(["a", "b"], tokens([1.0, 0.0], [0.0, 1.0]))
    engine.describe({"a": {"language": "en"}})
    [connection] = engine.shards
    insert = connection.insert

    def failing(table, rows):
        if table == engine.documents:
            raise OSError("the disk is full")
        insert(table, rows)

    query = torch.tensor([[1.0, 0.0]]).numpy()
    with monkeypatch.context() as patch:
        patch.setattr(connection, "insert", failing)
        for change in (
            lambda: engine.write(["a", "c"], tokens([0.5, 0.0], [2.0, 0.0])),
            lambda: engine.describe({"a": {}}),
        ):
            with pytest.raises(ValueError, match="the disk is full"):
                change()
            assert top(engine, query, 3) == [("a", 1.0), ("b", 0.0)]
    engine.write(["a", "c"], tokens([0.5, 0.0], [2.0, 0.0]))
    ranked = engine.rank(tokens([1.0, 0.0]), Recipe("all", AllPairs(), "one"), 3)
    assert ranked == [("c", 2.0, 0), ("a", 0.5, 0), ("b", 0, 0)]
    engine.where = {"language": "en"}
    assert top(engine, query, 3) == [("a", 0.5)]  # which a replacement keeps
    with pytest.raises(ValueError, match="has documents, and does not record which model"):
        engine_of(2, condition="document = 'none'").claim({"weights": "1"})


def test_many_documents_and_long_queries(engine_of):
    engine = engine_of(1024)
    ids = [f"document {n}" for n in range(20_000)]
    engine_of(2, database="many").write(ids, tokens(*[[n / 20_000, 1.0] for n in range(20_000)]))
    vectors = np.random.default_rng(0).standard_normal((24, 1024)).astype(np.float32)
    engine.write(["a"], as_tokens([vectors]))
    assert top(engine, vectors, 1)[0][0] == "a"
    asked = as_tokens(np.ones((1, 30_000, 1)), "query", ids=[range(30_000)])
    engine = engine_of(1, database="terms", numbers="BFloat16")
    engine.write(["b"], asked.map(lambda t: t[:, :, :100]))
    assert engine.rank(asked, Recipe("terms", EqualIds(), "one"), 1) == [("b", 100, 0)]
    with pytest.raises(ValueError, match=r"too large for ClickHouse \(TOO_BIG_AST\): use fewer query tokens"):
        engine.rank(asked, Recipe("MaxSim", QueryToDocument(), "one"), 1)


def test_a_pool_that_is_empty_or_smaller_than_k(engine_of):
    engine = engine_of(2)
    query = tokens([1.0, 0.0])
    for recipe in (
        Recipe("gathered", PoolTopK(k=1 << 40), "retrieved"),
        Recipe("imputed", QueryToDocument(), "one", search="impute", search_tokens=(1 << 31) - 1),
    ):
        assert engine.rank(query, recipe, 3) == []
        engine.write(["a"], tokens([0.5, 0.0]))
        assert engine.rank(query, recipe, 3, among=["unknown"]) == []
        assert engine.rank(query, recipe, 3) == [("a", 0.5, 0)]
        engine.delete(["a"])


def test_what_it_cannot_take_is_refused(tiny_bert, engine_of):
    engine = engine_of(4)
    engine.write(["a"], tokens([1.0] * 4))
    with pytest.raises(ValueError, match="its vectors have 4 numbers, not 5"):
        engine_of(5)
    with pytest.raises(ValueError, match=r"are Array\(Float32\), not Array\(BFloat16\)"):
        engine_of(4, numbers="BFloat16")
    model = PARADIGMS["colbert"](tiny_bert, dim=4).with_alignment("Entropic(k=1, eps=0.1)")
    with pytest.raises(ValueError, match=r"Entropic.* has no SQL"):
        EngineRetriever(engine, model)
    with pytest.raises(ValueError, match="needs the token ids"):
        engine.rank(tokens([1.0] * 4, ids=[3]), Recipe("coil", EqualIds(), "one"), 1)
    engine.run(f"ALTER TABLE {engine.makers} DROP COLUMN shards")
    with pytest.raises(ValueError, match="another release made it, without shards: index again"):
        engine_of(4)
    engine.run(f"ALTER TABLE {engine.makers} ADD COLUMN shards UInt32")
    with pytest.raises(ValueError, match="no_such_column"):
        top(engine_of(4, condition="no_such_column"), torch.ones(1, 4).numpy(), 1)


@pytest.fixture
def servers(folder):
    """ClickHouse's HTTP interface over the library: three addresses, each with databases of its own."""
    engine = ClickHouseEngine(folder, H)
    [connection] = engine.shards
    lock = Lock()
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            parameters = dict(parse_qsl(urlsplit(self.path).query))
            asked.append((self.headers["X-ClickHouse-User"], self.headers["X-ClickHouse-Key"]))
            renamed = f"over_http_{self.server.server_port}"
            try:
                with lock:
                    if "query" in parameters:
                        rows = pa.ipc.open_stream(body).read_all()
                        table = parameters["query"].split(" INTO ")[1].split(" FORMAT")[0]
                        connection.insert(table.replace("over_http", renamed), rows)
                        answer = b""
                    else:
                        sql = body.decode().replace("over_http", renamed)
                        answer = connection.session.query(sql, "ArrowStream").bytes() or b""
                self.send_response(200)
            except RuntimeError as error:
                self.send_response(404)
                answer = str(error).encode()
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *arguments):
            pass

    with ExitStack() as stack:
        addresses = []
        for _ in range(3):
            http = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
            Thread(target=http.serve_forever, daemon=True).start()
            stack.callback(http.shutdown)
            addresses.append(f"http://reader:secret%40@127.0.0.1:{http.server_port}")
        yield addresses, asked


def test_a_server_is_asked_over_http(servers, monkeypatch):
    [address, *_], asked = servers
    engine = ClickHouseEngine(address, 2, database="over_http", settings={"index_granularity": 256})
    engine.write(["a", "b"], tokens([1.0, 0.0], [0.0, 1.0]))
    assert top(engine, torch.tensor([[0.0, 1.0]]).numpy(), 1) == [("b", pytest.approx(1.0))]
    assert set(asked) == {("reader", "secret@")}
    assert "secret" not in engine.place
    monkeypatch.setenv("CLICKHOUSE_USER", "writer")
    monkeypatch.setenv("CLICKHOUSE_PASSWORD", "a%41")
    ClickHouseEngine(address.replace("reader:secret%40@", ""), 2, database="over_http")
    assert set(asked) == {("reader", "secret@"), ("writer", "a%41")}
    [created] = engine.rows(f"SHOW CREATE TABLE {engine.tokens}")
    assert "index_granularity = 256" in created["statement"]
    engine.condition = "nothing"
    with pytest.raises(ValueError, match=r"127\.0\.0\.1:\d+/over_http: .*nothing"):
        top(engine, torch.eye(2).numpy(), 1)


@pytest.mark.parametrize("name", ["colbert", "xtr", "aligner", "imputed"])
def test_three_shards_answer_as_one(tiny_bert, servers, engine_of, name):
    addresses, _ = servers
    torch.manual_seed(0)
    options = {"search_tokens": 30} if name in ("xtr", "imputed") else {}
    model = PARADIGMS["xtr" if name == "imputed" else name](tiny_bert, **LENGTHS, **options)
    if name == "xtr":
        model = model.with_alignment("PoolExcess(k=40)")  # which gathers
    documents = Corpus.of(texts(60, 0))
    one = engine_of(model.encoder.dim)
    three = ClickHouseEngine(",".join(addresses), model.encoder.dim, database="over_http")
    for engine in (one, three):
        index_corpus(engine, model, documents)
    counts = [row["n"] for row in three.rows(f"SELECT count() AS n FROM {three.documents} FINAL")]
    assert sum(counts) == 60
    assert min(counts) > 0
    with pytest.raises(ValueError, match="address 1 of 2 is that of shard 2 of 3"):
        ClickHouseEngine(",".join(addresses[1:]), model.encoder.dim, database="over_http")
    three.describe({"0/1": {"kind": "a"}, "0/2": {"kind": "a"}})
    three.delete(["0/1"])
    one.delete(["0/1"])
    queries = texts(3, 1)
    expected = EngineRetriever(one, model).search(queries, 10)
    assert_same_run(EngineRetriever(three, model).search(queries, 10), expected)
    three.where = {"kind": "a"}
    assert EngineRetriever(three, model).search({"q": "fish"}, 10)["q"].keys() <= {"0/2"}
