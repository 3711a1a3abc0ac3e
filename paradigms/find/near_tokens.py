"""top-k_d rel(d, q) among documents whose tokens FAISS finds near the query's.

gather is `core.rel` of the documents with one of the k' (`Recipe.search_tokens`) tokens retrieved for each
query token (Khattab & Zaharia 2020, §3.6); impute is `impute.imputed_rel` of the retrieved similarities (Lee
et al. 2023, Eq. 4). Both are exact for "Flat" and k' of all tokens. Deterministic for one seed, for inverted
lists and flat indexes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from paradigms.core import Tokens
from paradigms.find.nearest import Factory, Nearest
from paradigms.find.ranking import Ranked, gathered, imputed
from paradigms.recipe import Recipe
from paradigms.store.build import Advance
from paradigms.store.columns import Writer
from paradigms.store.store import Store


@dataclass(frozen=True)
class TokenFile:
    """A FAISS file of all token vectors. factory, seed: see `Factory`."""

    factory: str = ""
    seed: int = 0

    def check(self, dim: int) -> None:
        Factory(self.factory).check(dim)

    def write(self, writer: Writer, store: Store, anew: bool) -> None:
        vectors = store.columns["vectors"]
        factory = Factory(self.factory, self.seed)
        factory.write(writer, len(vectors), lambda rows: vectors[rows].astype(np.float32), anew)

    def behind(self, store: Store) -> bool:
        return False

    def open(self, store: Store) -> Nearest:
        return Nearest(store.files, (int(store.offsets[-1]), store.dim))


@dataclass(frozen=True)
class NearTokens:
    """Search among near tokens. probes: inverted lists read per query token."""

    probes: int = 16

    def search(
        self, store: Store, recipe: Recipe, parts: Sequence[Tokens], k: int, advance: Advance
    ) -> Ranked:
        search = imputed if recipe.search == "impute" else gathered
        return search(store, recipe, parts, k, advance, self.token_search)

    def token_search(self, store: Store, vectors: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k most similar stored tokens of each query token [t, h], as FAISS finds and scores them."""
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        queries = np.ascontiguousarray(vectors.float().cpu().numpy())
        near: Nearest = store.derived
        scores, tokens = near(queries, min(k, store.living_tokens), store.dead, self.probes)
        return torch.from_numpy(scores).to(vectors), torch.from_numpy(tokens).to(vectors.device)
