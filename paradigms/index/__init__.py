"""Indexes over the token vectors of any paradigm: search end to end, rerank any run.

`columns` keeps files that change by whole commits, `store` the tokens of documents in them, all or by
`pruning` the most salient; `grow` makes and changes them. `base` is what every index can do: build, open,
search, rerank, add, delete, compact. `exact` scores every document, `faiss_index` those that FAISS finds.
"""

from paradigms.index.exact import ExactIndex
from paradigms.index.faiss_index import FaissIndex

__all__ = ["ExactIndex", "FaissIndex"]
