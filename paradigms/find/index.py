"""Search and rerank one store with encoded queries.

There are two ways to score (`Recipe.search`):

- gather: score by `core.rel`, from all stored tokens of a candidate;
- impute: retrieve the k' best document tokens for each query token, and score documents from these tokens
  alone. With an exact token search, the score is `impute.imputed_rel` (Lee et al. 2023, Eq. 4).

Documents without tokens are never returned, because their rel of 0 would rank above negative cosines;
reranking scores them −∞. Queries without tokens return no documents. The caller sets the number of threads
(`torch.set_num_threads`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from paradigms.core import Tokens
from paradigms.find import recall
from paradigms.find.ranking import Queries, Ranked, scores, top_documents
from paradigms.recipe import Recipe
from paradigms.store.build import Advance
from paradigms.store.columns import DEFECTS, MANIFEST
from paradigms.store.store import Store


@runtime_checkable
class Finder(Protocol):
    """A search algorithm: a frozen dataclass whose fields trade speed for recall."""

    def search(self, store: Store, recipe: Recipe, parts: Queries, k: int, advance: Advance) -> Ranked:
        """Return the k best documents for each query, best first.

        store: a store with at least one token. parts: queries [b, 1, j, h] in float32. advance: callback that
        receives the number of queries just completed.
        """


class Index:
    """Search and rerank a store. finder: None means the default finder for the store's kind."""

    def __init__(self, store: Store, finder: Finder | None = None) -> None:
        self.store = store
        self.finder: Finder = store.kind.finder if finder is None else finder

    def __len__(self) -> int:
        return len(self.store)

    def with_finder(self, **settings: Any) -> "Index":
        """Return an index with changed finder settings, such as probes=16."""
        finder: Any = self.finder
        return Index(self.store, replace(finder, **settings))

    def tuned(self, recipe: Recipe, queries: Sequence[Tokens]) -> "Index":
        """Measure and store the finder's recall (`recall`), which chooses its settings of 0; see `Finder`.

        queries: encoded queries, each [b, 1, j, h]. Raises ValueError for a restricted index.
        """
        if self.store.whole is not self.store:
            raise ValueError(f"{self.store} is restricted to some documents: measure the whole index")
        if not isinstance(self.finder, recall.Approximate) or not self.store.living_tokens:
            return self
        parts = [self.checked(recipe, query) for query in queries]
        with torch.inference_mode():
            weighed = [recipe.with_salience(part) for part in parts if part.mask.any()]
            choices = recall.measure(
                self.finder, self.store, weighed[0][0] if weighed else recipe, [part for _, part in weighed]
            )
        return Index(self.store.describe(recall=[asdict(choice) for choice in choices]), self.finder)

    @property
    def choices(self) -> list[recall.Choice]:
        """The settings that the build chose, with their recall; empty for an exhaustive search."""
        return recall.choices(self.store)

    def _finder(self, recipe: Recipe, k: int) -> Any:
        try:
            return recall.chosen(self.finder, self.store, recipe.search, k)
        except DEFECTS as error:
            raise self.store.files.damaged(MANIFEST, error) from error

    def only(self, ids: Iterable[str]) -> "Index":
        """Return an index restricted to these documents, without writing anything.

        Exact searches return the same results as an index built from these documents alone. Raises KeyError,
        naming the document, if a document is unknown.
        """
        return Index(self.store.only(ids), self.finder)

    def search_tokens(
        self,
        recipe: Recipe,
        queries: Tokens | Sequence[Tokens],
        k: int = 100,
        *,
        advance: Advance = lambda n: None,
    ) -> Ranked:
        """Return the k best documents for each query [b, 1, j, h], best first, or fewer if fewer match.

        queries: one batch, or a sequence of batches. advance: receives the number of queries just completed.
        """
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        if recipe.search != "impute" and recipe.reads_pool:
            raise ValueError(
                f"the alignment {recipe.align} of {recipe.name} reads the whole pool, "
                "which a search in blocks never sees: set the recipe's search to 'impute', or rerank"
            )
        parts = [self.checked(recipe, q) for q in ([queries] if isinstance(queries, Tokens) else queries)]
        full = [any(row) for part in parts for row in part.mask.flatten(1).tolist()]
        if not self.store.living_tokens or not any(full):
            return [{} for _ in full]
        with torch.inference_mode():
            weighed = [recipe.with_salience(part) for part in parts]
            recipe = weighed[0][0]
            parts = [part for _, part in weighed]
            ranked = self._finder(recipe, k).search(self.store, recipe, parts, min(k, len(self)), advance)
        return [row if tokens else {} for row, tokens in zip(ranked, full, strict=True)]

    @torch.inference_mode()
    def rerank_tokens(
        self, recipes: Sequence[Recipe], queries: Tokens, candidates: Sequence[Sequence[str]]
    ) -> list[Ranked]:
        """Rescore each query's candidates with each recipe, best first. If possible, S is computed only once.

        queries: [b, 1, j, h]. For an imputing recipe, a query's candidates form its pool.
        """
        for recipe in recipes:
            queries = self.checked(recipe, queries)
        if len(recipes) == 1:  # several share one S and one salience
            recipe, queries = recipes[0].with_salience(queries)
            recipes = [recipe]
        if len(candidates) != len(queries.mask):
            raise ValueError(f"{len(queries.mask)} queries need as many candidates, not {len(candidates)}")
        store = self.store
        ranked: list[Ranked] = [[] for _ in recipes]
        for n, ids in enumerate(candidates):
            rows = np.sort(store.positions(ids))
            values = scores(store, recipes, queries[n : n + 1], rows)
            values[:, torch.from_numpy(store.offsets[rows] == store.offsets[rows + 1])] = -torch.inf
            for new, row in zip(ranked, values, strict=True):
                new.append(top_documents(store, row, rows, len(rows)))
        return ranked

    def certified(self, recipe: Recipe, queries: Tokens, k: int = 10) -> list[tuple[dict[str, float], bool]]:
        """Return each query's k best documents, and whether these are proved to be the k best.

        The proof concerns the scores in the store that was passed to `Store.certify`. The error of a score is
        at most Σⱼ ‖qⱼ‖ / Z times the document's stored distance. Raises ValueError if the store has no
        errors, or if the recipe's rel is not a sum of maxima whose Z depends on the query alone.
        """
        store = self.store
        fits = recipe.align.is_maxsim(store.longest) and recipe.normalise in ("one", "query_tokens")
        salient = "salience" in store.columns or queries.salience is not None
        if not fits or recipe.search == "impute" or salient:
            raise ValueError(f"the scores of {recipe.name} are not sums of maxima, so errors have no bound")
        if len(store.errors) != len(store.ids):
            raise ValueError(f"{store} has no errors: call certify with the store of all tokens")
        rows = store.with_tokens()
        queries = self.checked(recipe, queries)
        ranked = []
        one = torch.ones(1, 1, 1, 1)
        for n in range(len(queries.mask)):
            query = queries[n : n + 1]
            lengths = query.vectors[query.mask].norm(dim=-1)
            reach = float(lengths.sum() / recipe.normalise_function(one, query, query))
            values: Tensor = scores(store, [recipe], query, rows)[0]
            above, below = store.errors[rows].T * reach
            top = np.argsort(-(exact := values.cpu().numpy()), kind="stable")[:k]
            rest = np.delete(np.arange(len(rows)), top)
            sure = (exact - below)[top].min(initial=np.inf) > (exact + above)[rest].max(initial=-np.inf)
            ranked.append((top_documents(store, values, rows, k) if len(lengths) else {}, bool(sure)))
        return ranked

    def checked(self, recipe: Recipe, queries: Tokens) -> Tokens:
        """Convert queries to float32. Raises ValueError if this store cannot score them."""
        store = self.store
        shape = queries.vectors.shape
        if queries.side == "document" or shape[1] != 1 or shape[-1] != store.dim:
            given = f"those of {queries.side or 'tokens'} {list(shape)}"
            raise ValueError(f"queries need axes [b, 1, j, {store.dim}] to search {store}, not {given}")
        if "ids" in recipe.align.reads and "ids" not in store.manifest["fields"]:
            raise ValueError(f"{store} holds no ids of tokens, which {recipe.name} reads")
        if queries.vectors.dtype != torch.float32 or queries.vectors.requires_grad:
            queries = queries.map(lambda t: t.detach().float() if t.is_floating_point() else t)
        checks = {"vectors": queries.vectors}
        if queries.salience is not None:
            checks["salience values"] = queries.vectors * queries.salience[..., None]
        for name, values in checks.items():
            finite = values.square().sum(-1).isfinite() | ~queries.mask
            if not finite.all():
                first = int((~finite).flatten(1).any(1).nonzero()[0])
                where = f"query {first} of {len(finite)}"
                raise ValueError(f"{where} has {name} that are not finite, or too large")
        return queries
