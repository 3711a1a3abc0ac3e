"""The service: answers equal the retrievers', wrong requests get one sentence, other sites get nothing."""

import http.client
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from urllib.parse import quote

import pytest
import torch

from paradigms.align import Cost, TopK
from paradigms.baselines.bm25 import BM25
from paradigms.data import Corpus
from paradigms.evaluate.measures import on_split
from paradigms.retrieve import Indexed, Passages
from paradigms.serve.together import Together
from tests.browser import until
from tests.near import assert_same_scores, assert_within_rounding
from tests.serve.served import CORPUS, JUDGED, NAMES, QUERY, SLASH, needed, serving, texts
from tests.tiny import WORDS

pytestmark = needed
JSON = {"Content-Type": "application/json"}
QUERIES = {"queries": {"q": QUERY}}


def request(port, path, body=None, method=None, **headers):
    """(status, JSON) of a request."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    content = None if body is None else body if isinstance(body, bytes) else json.dumps(body)
    sent = (JSON if content is not None else {}) | {name.replace("_", "-"): v for name, v in headers.items()}
    connection.request(method or ("GET" if body is None else "POST"), path, content, sent)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    return answer.status, json.loads(text) if text.startswith((b"{", b"[")) else text.decode()


def answer_to(port, path, body=None, **headers):
    status, answer = request(port, path, body, **headers)
    assert status == 200, answer
    return answer


def run_of(answer):
    return {name: dict(map(tuple, one["run"]["q"])) for name, one in answer["systems"].items()}


class Watched(BM25):
    """BM25 over `CORPUS` that calls a function with the queries of each search."""

    @classmethod
    def by(cls, watch):
        bm25 = cls(CORPUS)
        bm25.watch = watch
        return bm25

    def search(self, queries, k=100, *, progress=False):
        self.watch(queries)
        return super().search(queries, k)


def test_search_and_rerank_are_those_of_the_retrievers(port, retrievers):
    """All systems answer in their order; JSON keeps scores to the last digit."""
    body = {"queries": {"q": QUERY, "r": "red wood"}, "k": 5}
    answer = answer_to(port, "/search", body)
    for name, retriever in retrievers.items():
        expected = retriever.search(body["queries"], 5)
        for query in body["queries"]:
            rows = answer["systems"][name]["run"][query]
            assert [id for id, _ in rows] == list(expected[query])
            assert_same_scores([dict(map(tuple, rows))], [expected[query]])
    run = {"q": ["7", "40", SLASH]}
    answer = run_of(answer_to(port, "/rerank", QUERIES | {"run": run}))
    for name, retriever in retrievers.items():
        expected = retriever.rerank({"q": QUERY}, {"q": dict.fromkeys(run["q"], 0.0)})
        assert_same_scores([answer[name]], expected.values())


def test_another_alignment_ranks_what_was_found(port, retrievers):
    """The order equals `with_alignment`'s, also without salience; systems without a model keep theirs."""
    view = {"align": "TopK(k=3)", "normalise": "total"}
    answer = run_of(answer_to(port, "/search", QUERIES | {"k": 100} | view))
    for name in ("dpr", "colbert", "aligner", "passages"):
        retriever = retrievers[name]
        run = retriever.search({"q": QUERY}, 100)
        inner = retriever.retriever if name == "passages" else retriever
        other = Indexed(inner.index, inner.model.with_alignment(TopK(3), "total"), inner.corpus)
        if name == "passages":
            other = Passages(other, retriever.pieces)
        assert_same_scores([answer[name]], other.rerank({"q": QUERY}, run).values())
    assert answer["bm25"] == retrievers["bm25"].search({"q": QUERY}, 100)["q"]
    plain = QUERIES | {"k": 100}
    without = run_of(answer_to(port, "/search", plain | {"salience": False}))
    assert without["aligner"] != run_of(answer_to(port, "/search", plain))["aligner"]
    assert list(without["colbert"]) == list(retrievers["colbert"].search({"q": QUERY}, 100)["q"])


def test_explanations_are_the_retrievers_and_ranks_those_of_the_list(port, retrievers):
    answer = answer_to(port, "/explain", {"query": QUERY, "document": "7"})["systems"]
    for name, retriever in retrievers.items():
        others = [id for id in retriever.search({"q": QUERY}, 100)["q"] if id != "7"]
        expected = retriever.explain(QUERY, "7", others)
        assert len(answer[name]["cards"]) == len(expected)
        for card, explanation in zip(answer[name]["cards"], expected, strict=True):
            assert card["document"] == explanation.document_tokens
            links = [(i, j) for i, j, _, _ in explanation.links]
            assert list(zip(card["i"], card["j"], strict=True)) == links
            assert card["rel"] == float(f"{explanation.rel:.4g}")
        ranked = list(retriever.search({"q": QUERY}, 100)["q"])
        assert answer[name]["rank"] == 1 + ranked.index("7")


def test_an_edited_document_scores_like_one_of_that_text(port, retrievers):
    """Under the system's own A and another one; the unedited text keeps its score."""
    text, document = "the cold sea and fish", "40"
    for view in ({}, {"align": "TopK(k=2)"}):
        body = {"query": QUERY, "document": document, "systems": ["bm25", *NAMES, "passages"]} | view
        other = answer_to(port, "/explain", body | {"document": "7"})["systems"]
        edited = answer_to(port, "/explain", body | {"text": text})["systems"]
        for name in set(NAMES) - {"xtr"}:  # whose score depends on the other candidates
            assert edited[name]["cards"][0]["rel"] == other[name]["cards"][0]["rel"]
            assert edited[name]["rank"] in (other[name]["rank"], other[name]["rank"] + 1)
        same = answer_to(port, "/explain", body | {"text": texts()[document]})["systems"]
        plain = answer_to(port, "/explain", body)["systems"]
        for name in ("bm25", *NAMES):
            one, two = (answers[name]["cards"][0]["rel"] for answers in (same, plain))
            assert_within_rounding(one, two, torch.float16, 4, scale=1.0)
    fused = answer_to(port, "/explain", body | {"text": text, "systems": ["fused"]})["systems"]["fused"]
    assert fused["error"].startswith("fused scores documents of its corpus only")


def test_documents_queries_and_differences(port, retrievers):
    path = f"/documents/{quote(SLASH, safe='')}"
    assert answer_to(port, path) == {"id": SLASH, "title": f"title {SLASH}", "text": "fish in the sea"}
    absent = {"error": "no document 'none' among the 32 of this corpus"}
    assert request(port, "/documents/none") == (404, absent)
    queries = answer_to(port, "/queries")["queries"]
    assert queries[0] == {"id": "q1", "text": QUERY, "relevant": ["7", SLASH]}
    walked = answer_to(port, "/differences", {"systems": ["bm25", "dpr"]})
    runs = {name: retrievers[name].search(JUDGED.queries, 10) for name in ("bm25", "dpr")}
    values = {name: on_split(run, JUDGED, ["nDCG@10"]) for name, run in runs.items()}
    for row in walked["queries"]:
        at = values["bm25"].queries.index(row["id"])
        assert row["values"] == {name: of.values["nDCG@10"][at] for name, of in values.items()}


def test_encode_gives_the_models_tokens(port, retrievers):
    body = {"system": "colbert", "texts": ["fish", "a cold sea"], "side": "document"}
    rows = answer_to(port, "/encode", body)["texts"]
    tokens = retrievers["colbert"].model.encode_documents(body["texts"])
    for n, row in enumerate(rows):
        assert row["tokens"] == body["texts"][n].split()
        vectors = torch.tensor(row["vectors"])
        assert_within_rounding(vectors, tokens.vectors[0, n][tokens.mask[0, n]], torch.float32, 512)
    status, answer = request(port, "/encode", {"system": "bm25", "texts": ["fish"]})
    assert (status, answer) == (400, {"error": "bm25 does not encode texts"})


ENTRIES = {"query": QUERY, "documents": ["fish"]}
WRONG = [
    ("/search", b"{", 400, "the request: bad JSON"),
    ("/search", [], 400, "the request: must be a JSON object"),
    ("/search", {}, 400, "the request lacks queries"),
    ("/search", QUERIES | {"normalise": "x"}, 400, "unknown Z 'x'; there are one"),
    ("/search", QUERIES | {"K": 3}, 400, "the request has unknown entries: 'K'"),
    ("/search", QUERIES | {"k": 0}, 400, "k must be at least 1, got 0"),
    ("/search", QUERIES | {"k": 10**4000}, 400, "k is a whole number of more than 64 bits"),
    ("/search", {"queries": {"q": " \n"}}, 400, "'q' is blank: nothing can be found by it"),
    ("/search", {"queries": {"q": "\ud800"}}, 400, "queries['q'] has a lone surrogate"),
    ("/search", {"queries": {"q": "x" * 100_001}}, 400, "queries['q'] has 100,001 characters"),
    ("/search", {"queries": {str(n): "x" for n in range(257)}}, 400, "queries has 257 entries"),
    ("/search", QUERIES | {"systems": ["x"]}, 404, "unknown system 'x'; there are bm25"),
    ("/search", QUERIES | {"align": "x"}, 400, "unknown alignment 'x'; there are AllPairs"),
    ("/rerank", QUERIES | {"run": {"q": [7]}}, 400, "run['q'][0]=7; it must be str"),
    ("/explain", {"query": QUERY, "document": "x"}, 404, "no document 'x' among the 32"),
    ("/encode", {"system": "dpr", "texts": ["x"], "side": "x"}, 400, "side='x'; there are query, document"),
    ("/differences", {"systems": ["bm25"]}, 400, "differences compare two systems"),
    ("/search", b" " * (1 << 20) + b"{}", 413, "the request has more than 1,048,576 bytes"),
    ("/systems", {}, 405, "Method Not Allowed"),
    ("/v1/rerank", ENTRIES, 400, "model must name one of bm25, dpr"),
    ("/v1/rerank", ENTRIES | {"model": "dpr", "documents": [3]}, 400, "documents[0]=3; it must be str"),
    ("/v1/rerank", ENTRIES | {"model": "fused"}, 400, "fused scores documents of"),
    ("/v1/embeddings", {"model": "colbert", "input": "x"}, 400, "colbert has no single vector"),
    ("/v1/embeddings", {"model": "dpr", "input": [[1, 2]]}, 400, "input[0]=[1, 2]; it must be str"),
    ("/v1/embeddings", {"model": "dpr", "input": "x", "dimensions": 3}, 400, "the vectors of dpr have"),
]


@pytest.mark.parametrize(("path", "body", "status", "error"), WRONG)
def test_wrong_requests_get_one_sentence(port, path, body, status, error):
    answer = request(port, path, body)
    assert answer[0] == status
    assert answer[1]["error"].startswith(error)
    assert "\n" not in answer[1]["error"]
    assert answer_to(port, "/systems")["documents"] == len(CORPUS)


def test_a_system_that_cannot_answer_says_so_beside_the_others(port):
    body = QUERIES | {"align": "EqualIds()", "systems": ["dpr", "coil"]}
    answer = answer_to(port, "/search", body)["systems"]
    assert "holds no ids of tokens" in answer["dpr"]["error"]
    assert answer["coil"]["run"]["q"]


@pytest.mark.parametrize(
    ("headers", "status", "error"),
    [
        ({"Origin": "https://evil.example"}, 403, "requests of other sites are refused"),
        ({"Origin": "http://localhost:1"}, 403, "requests of other sites are refused"),
        ({"Sec-Fetch-Site": "cross-site"}, 403, "requests of other sites are refused"),
        ({"Host": "localhost.evil.example"}, 403, "this service has another name"),
        ({"Host": "192.0.2.1"}, 403, "this service has another name"),
        ({"Host": "[::1"}, 403, "this service has another name"),
        ({"Host": "evil@localhost"}, 200, ""),  # a name in front of @ is none of the host's
        ({"Content-Type": "text/plain"}, 415, "the request must have the header Content-Type"),
    ],
)
def test_other_sites_and_other_names_are_refused(port, headers, status, error):
    body = QUERIES | {"systems": ["bm25"]}
    answer = request(port, "/search", body, **headers)
    assert answer[0] == status
    assert answer[1].get("error", "").startswith(error)
    if status == 403:
        assert request(port, "/", **headers)[0] == 403


def test_the_page_is_for_its_own_origin_alone(port):
    connection = http.client.HTTPConnection("127.0.0.1", port)
    same = {"Origin": f"http://127.0.0.1:{port}", "Sec-Fetch-Site": "same-origin"}
    for path in ("/", "/page.js", "/page.css", "/cards.js", "/cards.css"):
        connection.request("GET", path, headers=same)
        answer = connection.getresponse()
        assert answer.status == 200
        assert answer.read()
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert "unsafe" not in answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Access-Control-Allow-Origin"] is None
    connection.close()


def test_a_token_guards_everything_but_the_page(retrievers):
    token = "secret-token"
    with serving({"bm25": retrievers["bm25"]}, token=token) as port:
        assert request(port, "/")[0] == 200
        for sent in ({}, {"Authorization": f"Bearer {token}x"}):
            assert request(port, "/search", QUERIES, **sent)[0] == 401
            assert request(port, "/documents/7", **sent)[0] == 401
        mine = {"Authorization": f"Bearer {token}"}
        assert request(port, "/search", QUERIES, **mine)[0] == 200
        assert request(port, "/search", QUERIES, Host="192.0.2.1:80", **mine)[0] == 200
        assert request(port, "/search", QUERIES, Host="evil.example", **mine)[0] == 403


def test_a_host_that_others_reach_needs_a_token(retrievers):
    from paradigms.serve import serve

    for host in ("0.0.0.0", "::", "example.org"):
        with pytest.raises(ValueError, match="set --token"):
            serve(retrievers, CORPUS, host=host)
    with pytest.raises(ValueError, match="at least 8 characters"):
        serve(retrievers, CORPUS, token="short")
    with pytest.raises(ValueError, match="nothing to serve"):
        serve({}, CORPUS)


def test_the_description_names_every_path_and_entry(port):
    paths = answer_to(port, "/openapi.json")["paths"]
    foreign = {"/v1/rerank", "/v2/rerank", "/v1/embeddings"}
    ours = {"/search", "/rerank", "/explain", "/save", "/encode", "/differences"}
    assert {path for path, operations in paths.items() if "post" in operations} == ours | foreign
    search = paths["/search"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert search["required"] == ["queries"]
    k = {"type": "integer", "minimum": 1, "maximum": 1000, "default": 10}
    assert search["properties"]["k"] == k


def test_queries_that_come_together_are_one_search(retrievers):
    """Each query gets its own answer; a failing query does not affect the others."""
    searches = []

    def watch(queries):
        searches.append(len(queries))
        time.sleep(0.05)
        if "poison" in queries.values():
            raise ValueError("poison")

    words = [f"{word} sea" for word in WORDS.split()[:40]]
    with serving({"bm25": Watched.by(watch)}) as port, ThreadPoolExecutor(40) as clients:
        bodies = [{"queries": {"q": text}, "k": 5} for text in (*words, "poison")]
        answers = list(clients.map(lambda body: answer_to(port, "/search", body), bodies))
    assert sum(searches) >= len(words)
    assert max(searches) > 1
    expected = retrievers["bm25"].search({text: text for text in words}, 5)
    for text, answer in zip(words, answers, strict=False):
        assert run_of(answer)["bm25"] == expected[text]
    assert answers[-1]["systems"]["bm25"] == {"error": "poison"}


def test_more_requests_than_may_wait_are_refused(retrievers, monkeypatch):
    monkeypatch.setattr("paradigms.serve.together.WAITING", 0)
    with serving({"bm25": retrievers["bm25"]}) as port:
        assert request(port, "/search", QUERIES)[0] == 503
        assert request(port, "/systems")[0] == 200


def test_a_saved_page_needs_no_service(port):
    body = {"query": "<b>fish", "document": "7", "systems": ["bm25", "colbert"]}
    page = answer_to(port, "/save", body)["html"]
    assert "&lt;b&gt;fish" in page
    assert '"system":"colbert"' in page
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")


COSTLY = {"align": "Buckets(planes=1, repetitions=1000000)"}


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/search", QUERIES | COSTLY, "multiply-adds are allowed"),
        ("/rerank", QUERIES | COSTLY | {"run": {"q": ["7"]}}, "multiply-adds"),
        ("/save", {"query": QUERY, "document": "7"} | COSTLY, "multiply-adds"),
        ("/search", {"queries": dict.fromkeys(map(str, range(99)), "fish")}, "more than 20,000"),
        ("/encode", {"system": "colbert", "texts": ["fish " * 99] * 256}, "more than 20,000"),
    ],
)
def test_a_request_that_costs_too_much_is_refused_before_it_runs(retrievers, path, body, named, monkeypatch):
    """The sentence names what is beyond what is allowed, and nothing has been computed."""

    async def run(*_):
        raise AssertionError("computed")

    monkeypatch.setattr(Together, "run", run)
    monkeypatch.setattr(Together, "each", run)
    monkeypatch.setattr("paradigms.serve.cost.ANSWER", 20_000)
    with serving(retrievers) as port:
        status, answer = request(port, path, body)
    assert status == 400
    assert named in answer["error"]


def test_what_the_systems_themselves_take_is_always_allowed(retrievers):
    """By requests with the systems' own A, though nothing is allowed beside them."""
    texts = ["fish " * 300 + str(n) for n in range(256)]
    with serving(retrievers, most=Cost()) as port:
        many = {str(n): text for n, text in enumerate(texts)}
        answer_to(port, "/search", {"queries": many, "systems": ["bm25", "dpr", "colbert"]})
        few = {str(n): text for n, text in enumerate(texts[:3])}
        answer_to(port, "/search", {"queries": few, "k": 1000})
        answer_to(port, "/rerank", {"queries": few, "run": {"0": CORPUS.ids, "1": CORPUS.ids}})
        for text in (None, texts[0]):
            answer_to(port, "/explain", {"query": texts[0], "document": "7", "text": text})
        answer_to(port, "/encode", {"system": "dpr", "texts": texts})
        assert request(port, "/search", QUERIES | COSTLY)[0] == 400


def test_a_batch_is_bounded_by_what_its_texts_take():
    sizes = []
    bm25 = Watched.by(lambda queries: sizes.append(len(queries)))
    with serving({"bm25": bm25}, most=Cost(1 << 29)) as port:  # and 100,000 characters
        answer_to(port, "/search", {"queries": {str(n): "fish " * 6000 for n in range(7)}})
    assert sizes == [3, 3, 1]


def test_caches_are_bounded_in_bytes(retrievers, monkeypatch):
    """By the size of keys and values, whatever their number; a small change of A is still remembered."""
    from paradigms.serve.systems import Remembered, ServedSystem, View

    monkeypatch.setattr("paradigms.serve.systems.REMEMBERED", 50_000)
    system = ServedSystem("colbert", retrievers["colbert"], CORPUS)
    caches = [value for value in vars(system).values() if isinstance(value, Remembered)]
    for n in range(40):
        system.explain(QUERY, "7", f"fish {n} " + "cold " * 200 * n, View(TopK(1 + n)))
        assert all(cache.bytes <= 50_000 for cache in caches)
    kept = system.ranked(QUERY, View(TopK(40)))
    assert system.ranked(QUERY, View(TopK(40))) is kept


def test_work_stops_when_its_client_has_left(retrievers, monkeypatch):
    """Of many searches in one request, those that had not begun are never made; others are answered."""
    begun, release, together = [], threading.Event(), Together()
    monkeypatch.setattr("paradigms.serve.service.Together", lambda: together)

    def watch(queries):
        begun.append(len(queries))
        release.wait(60)

    body = json.dumps({"queries": {str(n): f"fish {n}" for n in range(200)}})
    with serving({"slow": Watched.by(watch), "colbert": retrievers["colbert"]}) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("POST", "/search", body, JSON)
        until(lambda: begun, "no search began")
        connection.close()
        until(lambda: not together._waiting, "the searches of a client that left still wait")
        release.set()
        assert answer_to(port, "/search", QUERIES | {"systems": ["slow"]})
    assert begun == [64, 1]


HEAD = b"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize("sent", [b"", HEAD, HEAD + b'Content-Length: 500\r\n\r\n{"queries"'])
def test_half_sent_requests_end(port, sent, monkeypatch):
    monkeypatch.setattr("paradigms.serve.patience.PATIENCE", 0.2)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as half:
        half.sendall(sent)
        with suppress(ConnectionResetError):
            assert half.recv(1) == b""


def test_an_answer_that_nobody_reads_ends(monkeypatch):
    """It is cut off where the client has stopped reading."""
    from paradigms.serve.patience import Patient

    texts = {str(n): "fish " * 20_000 for n in range(100)}
    ended, lost = threading.Event(), Patient.connection_lost

    def noted(connection, error):
        lost(connection, error)
        ended.set()

    monkeypatch.setattr(Patient, "connection_lost", noted)
    with serving({"bm25": BM25(texts)}, Corpus.of(texts)) as port, socket.socket() as deaf:
        monkeypatch.setattr("paradigms.serve.patience.PATIENCE", 0.2)
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.settimeout(60)
        deaf.connect(("127.0.0.1", port))
        body = json.dumps({"queries": {"q": "fish"}, "k": 100, "characters": 100_000}).encode()
        deaf.sendall(HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        assert ended.wait(60)
        read = 0
        with suppress(ConnectionResetError):
            while part := deaf.recv(1 << 20):
                read += len(part)
        assert read < 10_000_000


def test_computing_is_not_waiting(retrievers, monkeypatch):
    """A request that is computed for longer than the service waits for clients is answered."""
    monkeypatch.setattr("paradigms.serve.patience.PATIENCE", 0.1)
    with serving({"slow": Watched.by(lambda _: time.sleep(0.5))}) as port:
        assert answer_to(port, "/search", QUERIES)


def test_more_connections_than_allowed_get_one_sentence(retrievers, monkeypatch):
    with serving({"bm25": retrievers["bm25"]}) as port:
        monkeypatch.setattr("paradigms.serve.patience.CONNECTIONS", 1)
        first = http.client.HTTPConnection("127.0.0.1", port)
        first.request("GET", "/systems")
        assert first.getresponse().read()
        with socket.create_connection(("127.0.0.1", port), timeout=60) as second:
            assert b"503 \r\n" in (said := second.recv(1000))
            assert b'{"error": "too many connections' in said
        first.close()
