"""top-k_d rel(d, q) among documents whose tokens FAISS finds near the query's tokens.

FAISS retrieves k' tokens (`Recipe.search_tokens`) for each query token. gather scores the documents that
contain one of these tokens by `core.rel` (Khattab & Zaharia 2020, §3.6). impute scores documents from the
retrieved similarities by `impute.imputed_rel` (Lee et al. 2023, Eq. 4). Both are exact if the index is "Flat"
and k' is the total number of tokens. Inverted lists and flat indexes give the same results for the same seed.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from paradigms.find.nearest import Nearest, NearestFile
from paradigms.find.ranking import Queries, Ranked, from_tokens
from paradigms.find.scan import Exact
from paradigms.recipe import Recipe
from paradigms.store.build import Advance
from paradigms.store.columns import Writer
from paradigms.store.store import Store


class TokenFile(NearestFile):
    """A FAISS file with all token vectors."""

    def write(self, writer: Writer, store: Store, anew: bool) -> None:
        vectors = store.columns["vectors"]
        self.write_vectors(writer, len(vectors), lambda rows: vectors[rows].astype(np.float32), anew)

    def open(self, store: Store) -> Nearest:
        return Nearest(store.files, (int(store.offsets[-1]), store.dim))


@dataclass(frozen=True)
class NearTokens:
    """Search with FAISS. probes: see `nearest.Nearest`; 0 means what the build chose (`recall`)."""

    probes: int = 0

    def efforts(self, store: Store, k: int) -> Iterator["NearTokens"]:
        nearest: Nearest = store.derived
        return (NearTokens(self.probes or probes) for probes in nearest.efforts())

    def exhaustive(self, store: Store) -> Exact:
        return Exact()

    def search(self, store: Store, recipe: Recipe, parts: Queries, k: int, advance: Advance) -> Ranked:
        return from_tokens(store, recipe, parts, k, advance, self.token_search)

    def token_search(self, store: Store, vectors: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return the similarities and rows of the k tokens that FAISS finds for each query token.

        vectors: query tokens [t, h].
        """
        queries = np.ascontiguousarray(vectors.float().cpu().numpy())
        nearest: Nearest = store.derived
        scores, tokens = nearest(queries, min(k, store.living_tokens), store.dead, self.probes)
        return torch.from_numpy(scores).to(vectors), torch.from_numpy(tokens).to(vectors.device)
