"""Paradigms in PyTerrier's pipelines: indexer, retriever and reranker (extra `pyterrier`).

retriever = Indexer(model, "folder").index(dataset.get_corpus_iter())
pt.Experiment([bm25, retriever % 100, bm25 % 100 >> text >> Reranker(model)], topics, qrels, ["ndcg_cut_10"])
"""

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pyterrier as pt

from paradigms.baselines.bm25 import BM25
from paradigms.baselines.cross_attention import CrossAttention
from paradigms.data import Corpus, Run
from paradigms.data.beir import read_corpus, write_corpus
from paradigms.evaluate.reranking import rerank
from paradigms.generative.model import Generative
from paradigms.generative.retriever import GenerativeRetriever
from paradigms.index import INDEXES
from paradigms.index.base import TokenIndex
from paradigms.model import Paradigm


class Retriever(pt.Transformer):
    """qid, query → qid, query, docno, score, rank: the k best documents for each query; ids become texts.

    found: an index with the `model` that made it, a generative model's retriever, or a BM25.
    """

    def __init__(
        self, found: TokenIndex | GenerativeRetriever | BM25, model: Paradigm | None = None, k: int = 1000
    ) -> None:
        if isinstance(found, TokenIndex):
            if model is None:
                raise ValueError("an index is searched with the model that made it: give it as model")
            found.check(model)
        self.found, self.model, self.k = found, model, k

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        pt.validate.query_frame(inp, extra_columns=["query"])
        inp = inp.astype({"qid": str})
        queries = _texts(inp, "qid", "query")
        search: Any = self.found.search
        if self.model is not None:
            search = partial(search, self.model)
        run = search(queries, self.k)
        rows = [(q, d, score) for q, documents in run.items() for d, score in documents.items()]
        found = pd.DataFrame(rows, columns=["qid", "docno", "score"])
        asked = inp[pt.model.query_columns(inp)].drop_duplicates("qid")
        return pt.model.add_ranks(asked.merge(found, on="qid"))


class Reranker(pt.Transformer):
    """qid, query, docno, text → the same rows with score and rank by a model of any kind; ids become texts.

    A generative model scores documents of its own corpus by their docno.
    """

    def __init__(self, model: Paradigm | Generative | CrossAttention, precision: str = "no") -> None:
        self.model, self.precision = model, precision

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        pt.validate.result_frame(inp, extra_columns=["query", "text"])
        inp = inp.astype({"qid": str, "docno": str})
        run: Run = {}
        for query, document in zip(inp["qid"], inp["docno"], strict=True):
            run.setdefault(query, {})[document] = 0.0
        texts = _texts(inp, "docno", "text")
        corpus = Corpus(list(texts), list(texts.values()))
        scored = rerank(self.model, _texts(inp, "qid", "query"), corpus, run, precision=self.precision)
        out = inp.drop(columns=[c for c in ("score", "rank") if c in inp])
        pairs = zip(out["qid"], out["docno"], strict=True)
        return pt.model.add_ranks(out.assign(score=[scored[q][d] for q, d in pairs]))


class Indexer(pt.Indexer):
    """{docno, text} → a `Retriever` over an index in `folder`, which keeps the texts in corpus.jsonl too.

    kind: of `index.INDEXES`; settings: those of its `build`. FileExistsError where a corpus.jsonl is there
    and no index that was made or begun beside it.
    """

    def __init__(
        self, model: Paradigm, folder: str | Path, *, kind: str = "exact", k: int = 1000, **settings: Any
    ) -> None:
        if kind not in INDEXES:
            raise ValueError(f"kind must be one of {', '.join(INDEXES)}, got {kind!r}")
        self.model, self.folder, self.kind = model, Path(folder), kind
        self.k, self.settings = k, settings

    def index(self, iter: Iterable[Mapping[str, str]], **kwargs: Any) -> Retriever:
        file = self.folder / "corpus.jsonl"
        if file.exists() and not any(self.folder.glob("*index*")):  # hidden while it is made
            raise FileExistsError(f"{file} would be replaced, and is no index's: choose another folder")
        new = file.with_name(f".{file.name}")  # until the index has accepted it
        write_corpus(((str(row["docno"]), "", row["text"]) for row in iter), new)
        corpus = read_corpus(new)
        index = INDEXES[self.kind].build(
            self.model, corpus.ids, corpus, self.folder / "index", progress=True, **self.settings
        )
        new.replace(file)
        return Retriever(index, self.model, self.k)


def _texts(frame: pd.DataFrame, id: str, text: str) -> dict[str, str]:
    rows = frame.drop_duplicates(id)
    return dict(zip(rows[id], rows[text], strict=True))
