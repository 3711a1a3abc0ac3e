"""Retrievers: everything that searches, such as an index with its model, or a fusion of several retrievers.

    index = Indexed.build(model, corpus, "folder")
    index.search({"q": "a query"}, 10)  # {"q": {document id: score, …}}, best first
    index.rerank({"q": "a query"}, run)  # new scores for the run's documents
    Fused([index, BM25(corpus)]).search({"q": "a query"}, 10)

`Retriever` is the interface. `BM25` and `GenerativeRetriever` are retrievers, too. `retriever_of` makes a
retriever from any kind of model. `AllProcesses`, `Passages` and `WithoutOwn` wrap other retrievers.
"""

from paradigms.retrieve.fusion import Fused, fuse, union
from paradigms.retrieve.indexed import Indexed
from paradigms.retrieve.merged import Merged
from paradigms.retrieve.reranking import Model, Reranking, retriever_of
from paradigms.retrieve.retriever import Retriever
from paradigms.retrieve.wrappers import AllProcesses, Passages, WithoutOwn
