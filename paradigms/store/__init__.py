"""The tokens of a corpus under one paradigm, in memory or in a folder: built, changed, never searched.

`store` is the Store; `build` and `building` fill a new one from `shards` of documents, with all of their
tokens or, by `pruning`, fewer. `columns` keeps files that change by whole commits. `kind` says what a kind of
store consists of, `codecs` and `residuals` how its tokens become columns.
"""

from paradigms.store.kind import Codec, Derived, Kind, Quantiser
from paradigms.store.store import Store, open_store

__all__ = ["Codec", "Derived", "Kind", "Quantiser", "Store", "open_store"]
