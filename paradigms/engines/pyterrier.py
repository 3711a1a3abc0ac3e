"""Use paradigms in PyTerrier pipelines as indexers, retrievers and rerankers (extra `pyterrier`).

retriever = Indexer(model, "folder").index(dataset.get_corpus_iter())
pt.Experiment([bm25, retriever % 100, bm25 % 100 >> text >> Reranker(model)], topics, qrels, ["ndcg_cut_10"])
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pyterrier as pt

from paradigms import retrieve
from paradigms.data import Corpus, Run
from paradigms.data.beir import read_corpus, write_corpus
from paradigms.encoder.precision import AUTO
from paradigms.find import INDEXES
from paradigms.io.files import replace_file
from paradigms.model import Paradigm
from paradigms.store.build import store_files


class Retriever(pt.Transformer):
    """Retrieve the k best documents per query: qid, query → qid, query, docno, score, rank.

    retriever: any retriever from `paradigms.retrieve`, such as `Indexed` or `BM25`. Ids become strings.
    """

    def __init__(self, retriever: retrieve.Retriever, k: int = 1000) -> None:
        self.retriever, self.k = retriever, k

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        pt.validate.query_frame(inp, extra_columns=["query"])
        inp = inp.astype({"qid": str})
        queries = _texts(inp, "qid", "query")
        run = self.retriever.search(queries, self.k)
        rows = [(q, d, score) for q, documents in run.items() for d, score in documents.items()]
        results = pd.DataFrame(rows, columns=["qid", "docno", "score"])
        topics = inp[pt.model.query_columns(inp)].drop_duplicates("qid")
        return pt.model.add_ranks(topics.merge(results, on="qid"))


class Reranker(pt.Transformer):
    """Rerank with a model: qid, query, docno, text → the same rows with new score and rank.

    model: any kind of model; a generative model identifies documents by docno. Ids become strings.
    """

    def __init__(self, model: retrieve.Model, precision: str = AUTO) -> None:
        self.model, self.precision = model, precision

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        pt.validate.result_frame(inp, extra_columns=["query", "text"])
        inp = inp.astype({"qid": str, "docno": str})
        run: Run = {}
        for query, document in zip(inp["qid"], inp["docno"], strict=True):
            run.setdefault(query, {})[document] = 0.0
        texts = _texts(inp, "docno", "text")
        reranking = retrieve.Reranking(self.model, Corpus.of(texts), precision=self.precision)
        scored = reranking.rerank(_texts(inp, "qid", "query"), run)
        out = inp.drop(columns=[c for c in ("score", "rank") if c in inp])
        pairs = zip(out["qid"], out["docno"], strict=True)
        return pt.model.add_ranks(out.assign(score=[scored[q][d] for q, d in pairs]))


class Indexer(pt.Indexer):
    """Index rows {docno, text} in `folder`, write the texts to its corpus.jsonl, and return a `Retriever`.

    kind: a key of `INDEXES`. k: number of documents per query. settings: arguments of `Store.build`. Raises
    FileExistsError if the folder contains a corpus.jsonl but neither a finished nor an interrupted index.
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
        ours = store_files(self.folder / "index") or (self.folder / ".index.building").is_dir()
        if file.exists() and not ours:
            raise FileExistsError(f"{file} would be replaced, but has no index beside it: use another folder")
        new = file.with_name(f".{file.name}")  # temporary name until the index is built
        write_corpus(((str(row["docno"]), "", row["text"]) for row in iter), new)
        corpus = read_corpus(new)
        settings = {"kind": self.kind, "progress": True, **self.settings}
        index = retrieve.Indexed.build(self.model, corpus, self.folder / "index", **settings)
        replace_file(new, file)
        return Retriever(index, self.k)


def _texts(frame: pd.DataFrame, id: str, text: str) -> dict[str, str]:
    rows = frame.drop_duplicates(id)
    return dict(zip(rows[id], rows[text], strict=True))
