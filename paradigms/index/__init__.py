"""Indexes over the token vectors of any paradigm: search end to end, rerank any run.

`columns` keeps files that change by whole commits; `store` keeps the tokens of documents in them, all or by
`pruning` the most salient ones; `grow` builds and changes it from `shards` of documents, which `building`
stores until a build ends. `base` is what every index can do: build, open, search, rerank, add, delete,
compact. `exact` scores every document, `faiss_index` those that FAISS finds; `compressed` keeps `codes` of
tokens and looks into a few lists of them; `inverted` keeps one weight for each token, and `postings`;
`fixed_index` scores the documents whose one vector is near the query's.

    index = CompressedIndex.build(paradigm, ids, texts, "folder", bits=4)
    index = open_index("folder")                  # of any kind
    index.search(paradigm, {"q": "a query"}, 10)  # {"q": {id: score, …}}
"""

from pathlib import Path

from paradigms.index.base import TokenIndex
from paradigms.index.columns import ColumnFolder
from paradigms.index.compressed import CompressedIndex
from paradigms.index.exact import ExactIndex
from paradigms.index.faiss_index import FaissIndex
from paradigms.index.fixed_index import FixedIndex
from paradigms.index.inverted import InvertedIndex

__all__ = [
    "INDEXES",
    "CompressedIndex",
    "ExactIndex",
    "FaissIndex",
    "FixedIndex",
    "InvertedIndex",
    "TokenIndex",
    "open_index",
]

INDEXES: dict[str, type[TokenIndex]] = {
    kind.kind: kind for kind in (ExactIndex, FaissIndex, CompressedIndex, InvertedIndex, FixedIndex)
}


def open_index(folder: str | Path, *, verify: bool = True) -> TokenIndex:
    """The index in a folder, of whichever kind it says it is. Errors as of `TokenIndex.open`."""
    kind = str(ColumnFolder(Path(folder), "any").standing().get("kind"))
    return INDEXES.get(kind, ExactIndex).open(folder, verify=verify)
