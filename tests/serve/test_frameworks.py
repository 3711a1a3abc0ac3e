"""Requests in the shapes that RAG frameworks send, and a framework itself where it is installed."""

import asyncio
import base64
import os
import sys

import numpy as np
import pytest
import torch

from paradigms import PARADIGMS
from paradigms.align import Cost
from paradigms.cli.arguments import main
from tests.near import assert_within_rounding
from tests.serve.served import CORPUS, QUERY, needed, serving
from tests.serve.test_service import answer_to, request
from tests.tiny import TERMS

pytestmark = needed
# The command with the last of this process's folders of packages, where MCP's may lie.
RUN = "import sys; sys.path.append(sys.argv.pop(1)); from paradigms.cli.arguments import main; main()"
TEXTS = ["wood fire", "the cold sea and fish", " ", "fish in the sea"]


@pytest.mark.parametrize("name", ["dpr", "colbert", "aligner", "xtr", "passages", "reranker"])
def test_texts_are_ranked_as_by_the_model(port, retrievers, name):
    inner = getattr(retrievers[name], "retriever", retrievers[name])
    ranked = inner.model.rank(QUERY, TEXTS)
    body = {"model": name, "query": QUERY, "documents": TEXTS, "top_n": 3, "user": "someone"}
    results = answer_to(port, "/v1/rerank", body)["results"]
    assert [one["index"] for one in results] == [int(result.id) for result in ranked[:3]]
    for one, result in zip(results, ranked, strict=False):
        assert one["relevance_score"] == pytest.approx(result.score, abs=1e-5)


def test_bm25_and_a_reader_of_pairs_rank_texts(port, retrievers):
    documents = [{"text": text} for text in TEXTS]
    body = {"query": QUERY, "documents": documents, "return_documents": True}
    scores = {
        "bm25": [retrievers["bm25"].explain_text(QUERY, text).rel for text in TEXTS],
        "cross": retrievers["cross"].model.score_texts([(QUERY, text) for text in TEXTS]),
    }
    for name, expected in scores.items():
        results = answer_to(port, "/v2/rerank", body | {"model": name})["results"]
        assert [one["document"]["text"] for one in results] == [TEXTS[one["index"]] for one in results]
        got = {one["index"]: one["relevance_score"] for one in results}
        assert [got[n] for n in range(len(TEXTS))] == pytest.approx(expected, abs=1e-5)


def test_one_vector_of_a_text_is_the_models(port, retrievers):
    model = retrievers["dpr"].model
    for side in ("document", "query"):
        expected = np.concatenate(model.encode(TEXTS, side))
        for form in ("float", "base64"):
            body = {"model": "dpr", "input": TEXTS, "encoding_format": form, "input_type": side}
            rows = [one["embedding"] for one in answer_to(port, "/v1/embeddings", body)["data"]]
            if form == "base64":
                rows = [np.frombuffer(base64.b64decode(row), "<f4") for row in rows]
            assert_within_rounding(np.stack(rows), expected, torch.float32, TERMS)
    [only] = answer_to(port, "/v1/embeddings", {"model": "dpr", "input": TEXTS[0]})["data"]
    assert len(only["embedding"]) == model.encoder.dim
    assert [one["id"] for one in answer_to(port, "/v1/models")["data"]] == list(retrievers)


def test_a_text_that_costs_too_much_is_refused(retrievers):
    with serving({"colbert": retrievers["colbert"]}, most=Cost(1 << 20, 10**6)) as port:
        body = {"query": "fish", "documents": ["fish " * 500] * 400}
        assert len(answer_to(port, "/v1/rerank", body)["results"]) == 400  # in batches that are allowed
    with serving({"xtr": retrievers["xtr"]}, most=Cost(1 << 20, 10**6)) as port:
        assert "are allowed" in request(port, "/v1/rerank", body)[1]["error"]


def test_a_framework_reranks_and_embeds(port, retrievers):
    """LlamaIndex, with its classes for Jina's reranker and for services like OpenAI's."""
    packages = "llama-index-postprocessor-jinaai-rerank llama-index-embeddings-openai-like"
    why = f"needs LlamaIndex: pip install {packages}"
    reranks = pytest.importorskip("llama_index.postprocessor.jinaai_rerank", reason=why)
    embeds = pytest.importorskip("llama_index.embeddings.openai_like", reason=why)
    from llama_index.core.schema import NodeWithScore, TextNode

    address = f"http://127.0.0.1:{port}/v1"
    nodes = [NodeWithScore(node=TextNode(text=text), score=0.0) for text in CORPUS[:9]]
    rerank = reranks.JinaRerank(model="colbert", base_url=address, api_key="none", top_n=3)
    ranked = retrievers["colbert"].model.rank(QUERY, CORPUS[:9], 3)
    best = rerank.postprocess_nodes(nodes, query_str=QUERY)
    assert [one.text for one in best] == [result.text for result in ranked]
    assert [one.score for one in best] == pytest.approx([result.score for result in ranked], abs=1e-5)
    embed = embeds.OpenAILikeEmbedding(model_name="dpr", api_base=address, api_key="none")
    vectors = embed.get_text_embedding_batch(TEXTS[:2])
    expected = np.concatenate(retrievers["dpr"].model.encode(TEXTS[:2]))
    assert_within_rounding(np.array(vectors), expected, torch.float32, TERMS)


@pytest.mark.slow
def test_a_language_models_program_searches(tmp_path, tiny_bert):
    """`paradigms mcp` as a program of MCP's own client, over the standard input and output."""
    mcp = pytest.importorskip("mcp", reason="needs MCP: pip install 'mcp>=2'")
    (tmp_path / "notes").mkdir()
    for n, text in enumerate(TEXTS):
        (tmp_path / "notes" / f"{n}.txt").write_text(text)
    model = PARADIGMS["dpr"](tiny_bert)
    model.save(tmp_path / "model")
    folder = str(tmp_path / "notes.index")
    main(["index", str(tmp_path / "notes"), "--model", str(tmp_path / "model"), "--output", folder])
    arguments = ["-c", RUN, *sys.path[-1:], "mcp", folder, "--hybrid"]
    program = mcp.StdioServerParameters(command=sys.executable, args=arguments, env=dict(os.environ))

    async def talk():
        async with mcp.Client(mcp.stdio_client(program)) as client:
            tools = (await client.list_tools()).tools
            best = await client.call_tool("search", {"query": "wood fire", "k": 2})
            full = await client.call_tool("document", {"id": "0.txt:1"})
            wrong = await client.call_tool("search", {"query": " "})
            return [tool.name for tool in tools], best, full, wrong

    tools, best, full, wrong = asyncio.run(talk())
    assert tools == ["search", "document"]
    assert [one["id"] for one in best.structured_content["result"]][:1] == ["0.txt:1"]
    assert full.structured_content["text"] == "wood fire"
    assert wrong.is_error
    assert "blank" in wrong.content[0].text
