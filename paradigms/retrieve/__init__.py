"""Everything that searches is a `Retriever`: an index with its model, a fusion of others, and so on.

    index = Indexed.build(model, corpus, "folder")
    index.search({"q": "a query"}, 10)  # {"q": {document id: score, …}}, best first
    index.rerank({"q": "a query"}, run)  # new scores for the run's documents
    Fused([index, BM25(corpus)]).search({"q": "a query"}, 10)

`BM25` and `GenerativeRetriever` are retrievers too. `retriever_of` makes one from a model of any kind;
`AllProcesses`, `Passages` and `WithoutOwn` wrap another one.
"""

from paradigms.retrieve.fusion import Fused, fuse, union
from paradigms.retrieve.indexed import Indexed
from paradigms.retrieve.reranking import Model, Reranking, retriever_of
from paradigms.retrieve.retriever import Retriever
from paradigms.retrieve.wrappers import AllProcesses, Passages, WithoutOwn
