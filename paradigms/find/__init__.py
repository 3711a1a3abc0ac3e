"""Search and rerank the documents in token stores by rel.

    index = Index(Store.build(kinds.compressed(bits=4), model, ids, texts, "folder"))
    index = open_index("folder")                            # of any kind
    index.search_tokens(model.recipe, model.encode_queries(["a query"]), 10)

`kinds` defines every kind of index: a codec for the tokens, files derived from the rows, and a finder. The
finders are in `scan` (exact), `near_tokens` (FAISS), `lists` (codes), `terms` (postings) and `predictors`
(LEMUR); they share the functions in `ranking`. `index` defines `Index`, which searches one store.
"""

from paradigms.find import kinds
from paradigms.find.index import Finder, Index
from paradigms.find.kinds import INDEXES, open_index
from paradigms.store import Store

__all__ = ["INDEXES", "Finder", "Index", "Store", "kinds", "open_index"]
