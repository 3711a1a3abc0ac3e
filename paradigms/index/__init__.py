"""Indexes over the token vectors of any paradigm: search end to end, rerank any run.

`columns` keeps files that change by whole commits, `store` the tokens of documents in them, all or by
`pruning` the most salient; `base` is what every index can do: build, open, search, rerank, add, delete,
compact. `exact` scores every document, `faiss_index` those that FAISS finds. `compressed` keeps `codes` of tokens and looks into a few lists of
them, with the inner loops of `kernels` and `loops`.
"""

from paradigms.index.compressed import CompressedIndex
from paradigms.index.exact import ExactIndex
from paradigms.index.faiss_index import FaissIndex

__all__ = ["CompressedIndex", "ExactIndex"]
