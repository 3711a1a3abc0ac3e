"""Store a corpus's tokens, as encoded by one paradigm, in memory or in a folder.

`view` reads a store, and `store` makes and changes one. `build` and `building` fill a new store from `shards`
of documents, whose tokens can be reduced (`pruning`). `columns` manages files that change in atomic commits.
`kind` defines the parts of a store; `codecs` and `residuals` convert tokens to columns. `paradigms.find`
searches stores.
"""

from paradigms.store.kind import Codec, Derived, Kind, Quantiser
from paradigms.store.store import Store, open_store

__all__ = ["Codec", "Derived", "Kind", "Quantiser", "Store", "open_store"]
