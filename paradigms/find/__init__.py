"""Search and rerank the documents in token stores by rel.

    index = Index(Store.build(kinds.compressed(bits=4), model, ids, texts, "folder"))
    index = open_index("folder")                            # of any kind
    index.search_tokens(model.recipe, model.encode_queries(["a query"]), 10)

`kinds` defines every kind of index: a codec for the tokens, files derived from the rows, and a finder. The
finders are in `scan` (exact), `near_tokens` (FAISS), `lists` (codes), `terms` (postings) and `predictors`
(LEMUR); they share the functions in `ranking`. `index` defines `Index`, which searches one store, and
`indexes` defines `Indexes`, which searches several stores together.
"""

from paradigms.find import kinds
from paradigms.find.index import Finder, Index
from paradigms.find.indexes import Indexes
from paradigms.find.kinds import INDEXES, Folders, open_index, open_indexes
from paradigms.store import Store

__all__ = ["INDEXES", "Finder", "Folders", "Index", "Indexes", "Store", "kinds", "open_index", "open_indexes"]
