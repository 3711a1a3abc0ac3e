"""top-k_d rel(d, q) over an index, and rel of given candidates: one way to search for every kind of index.

Two ways to score (`Recipe.search`):

- gather: `core.rel`, from all stored tokens of a candidate;
- impute: a token search gives the k' best document tokens of each query token, and documents are scored from
  those alone: `impute.imputed_rel` (Lee et al. 2023, Eq. 4), where that token search is exact.

Of equal scores the smaller document id ranks first. Deleted documents are never found. Nor are those without
tokens: their rel of 0 would lie above negative cosines, and a rerank gives them −∞. Queries without tokens
find nothing. Threads are those that the caller set (`torch.set_num_threads`).
"""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from rich.progress import Progress
from torch import Tensor

from paradigms.core import Tokens
from paradigms.data import Run, check_queries
from paradigms.encoder.batches import by_length
from paradigms.impute import retrieved_rel
from paradigms.index.grow import Advance, GrowingStore
from paradigms.index.pruning import most_salient
from paradigms.io.progress import progress_bar
from paradigms.model import Paradigm
from paradigms.recipe import Recipe
from paradigms.scoring.machine import VECTOR
from paradigms.scoring.stored import Packed, Scanned, compiled, score

QUERIES = 64  # encoded at once, texts of like length together
RETRIEVED = 1 << 22  # retrieved tokens, of all query tokens of a slice of queries, that are held at once
CANDIDATES = 1 << 17  # padded tokens of one query's candidates that are scored at once
# Padded tokens of a block of documents, and entries of S at once: on a processor what its cache holds.
SIZES = {"cpu": (1 << 12, 1 << 20)}
LARGE_SIZES = (1 << 17, 1 << 26)

Index = TypeVar("Index", bound="TokenIndex")
Found = list[dict[str, float]]  # of each query its documents and scores, best first


class TokenIndex(GrowingStore, ABC):
    """A store that can be searched: `token_search` is what a kind of index has to bring."""

    def search(
        self,
        paradigm: Paradigm,
        queries: Mapping[str, str],
        k: int = 100,
        *,
        keep: float = 1.0,
        progress: bool = False,
    ) -> Run:
        """The k best documents of every query, best first; fewer where fewer are found.

        keep: β^q, the share of each query's tokens that search, the most salient ones (`pruning`).
        """
        state = copy.copy(self)
        state.check(paradigm)
        with progress_bar(progress) as bar:
            encoded = list(_encode_queries(paradigm, queries, keep))
            ranked = state._search(paradigm.recipe, [part for _, part in encoded], k, bar)
        found = dict(zip((name for names, _ in encoded for name in names), ranked, strict=True))
        return {name: found[name] for name in queries}

    def search_tokens(self, recipe: Recipe, queries: Tokens, k: int = 100) -> Found:
        """As `search`, of queries that come encoded, axes [b, 1, j, h]: of each its documents and scores."""
        with progress_bar(False) as bar:
            return copy.copy(self)._search(recipe, [queries], k, bar)

    def rerank(
        self, paradigm: Paradigm, queries: Mapping[str, str], run: Run, *, progress: bool = False
    ) -> Run:
        """New scores for the run's queries and documents, best first: rel, as `search` defines it.

        An imputing paradigm takes the query's candidates as its pool. KeyError names a query without a text
        or a document outside the index.
        """
        return self.rerank_recipes(paradigm, [paradigm.recipe], queries, run, progress=progress)[0]

    def rerank_recipes(
        self,
        paradigm: Paradigm,
        recipes: Sequence[Recipe],
        queries: Mapping[str, str],
        run: Run,
        *,
        progress: bool = False,
    ) -> list[Run]:
        """`rerank` with each of several recipes for one encoder: queries are encoded, S computed, once."""
        state = copy.copy(self)
        state.check(paradigm)
        check_queries(run, queries)
        for candidates in run.values():
            state.positions(candidates)
        texts = {query: queries[query] for query in run if run[query]}
        found: list[Run] = [{} for _ in recipes]
        with progress_bar(progress) as bar:
            task = bar.add_task(f"rerank {paradigm.recipe.name}", total=len(texts))
            for names, encoded in _encode_queries(paradigm, texts):
                scored = state._rerank(recipes, encoded, [list(run[query]) for query in names])
                for new, scores in zip(found, scored, strict=True):
                    new |= dict(zip(names, scores, strict=True))
                bar.advance(task, len(names))
        return [{query: new.get(query, {}) for query in run} for new in found]

    def rerank_tokens(self, recipe: Recipe, queries: Tokens, candidates: Sequence[Sequence[str]]) -> Found:
        """As `rerank`, of queries that come encoded, axes [b, 1, j, h], and the candidates of each."""
        return copy.copy(self)._rerank([recipe], queries, candidates)[0]

    def certified(self, recipe: Recipe, queries: Tokens, k: int = 10) -> list[tuple[dict[str, float], bool]]:
        """For each query [b, 1, j, h] its k best of all documents here, and whether these are certainly the k
        best of these documents in the index that `certify` was given: no other reaches one within the errors.

        A score errs by at most Σⱼ ‖qⱼ‖ / Z times the document's distance. ValueError for an index without
        errors, or a recipe whose rel is no sum of maxima with a Z that the query sets.
        """
        self = copy.copy(self)
        fits = recipe.is_maxsim(self.longest) and recipe.normalise in ("one", "query_tokens")
        if not fits or recipe.search == "impute" or "salience" in self.fields or queries.salience is not None:
            raise ValueError(f"the scores of {recipe.name} are no sums of maxima, whose errors are bounded")
        rows = self._with_tokens()
        if len(self.errors) != len(self.ids):
            raise ValueError(f"{self.folder} has no errors: call certify with the index of all tokens")
        queries, found = self._checked(recipe, queries), []
        one = torch.ones(1, 1, 1, 1)
        for n in range(len(queries.mask)):
            query = queries[n : n + 1]
            lengths = query.vectors[query.mask].norm(dim=-1)
            reach = float(lengths.sum() / recipe.normalise_function(one, query, query))
            scores = self._scores([recipe], query, rows)[0]
            above, below = self.errors[rows].T * reach
            top = np.argsort(-(values := scores.cpu().numpy()), kind="stable")[:k]
            rest = np.delete(np.arange(len(rows)), top)
            sure = (values - below)[top].min(initial=np.inf) > (values + above)[rest].max(initial=-np.inf)
            found.append((self._best(scores, rows, k) if len(lengths) else {}, bool(sure)))
        return found

    def only(self: Index, ids: Iterable[str]) -> Index:
        """The index as if it held these documents alone: searches equal those of an index that was built of
        them, where they are exact. Nothing is written, and what is changed later is not seen.

        KeyError names an unknown document.
        """
        living = np.zeros(len(self.living), dtype=bool)
        living[self.positions(ids)] = True
        part = copy.copy(self)
        part._live(living)
        part._made = {name: made for name, made in self._made.items() if name in ("order", "scanned")}
        return part

    @abstractmethod
    def token_search(self, vectors: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k most similar stored tokens of each query token [t, h], in no order: similarities and rows.

        Tokens of deleted documents are left out; [t, k'], k' ≤ k. Missing ones are −∞ and row −1.
        """

    @torch.inference_mode()
    def _rerank(
        self, recipes: Sequence[Recipe], queries: Tokens, candidates: Sequence[Sequence[str]]
    ) -> list[list[dict[str, float]]]:
        """For each recipe and query its candidates and scores, best first."""
        for recipe in recipes:
            queries = self._checked(recipe, queries)
        if len(candidates) != len(queries.mask):
            raise ValueError(f"{len(queries.mask)} queries need as many candidates, not {len(candidates)}")
        ranked: list[list[dict[str, float]]] = [[] for _ in recipes]
        for n, ids in enumerate(candidates):
            rows = np.sort(self.positions(ids))
            scores = self._scores(recipes, queries[n : n + 1], rows)
            scores[:, torch.from_numpy(self.offsets[rows] == self.offsets[rows + 1])] = -torch.inf
            for new, own in zip(ranked, scores, strict=True):
                new.append(self._best(own, rows, len(rows)))
        return ranked

    @torch.inference_mode()
    def _search(self, recipe: Recipe, parts: list[Tokens], k: int, bar: Progress) -> Found:
        """Of each query of all parts its k best documents with their scores, best first."""
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        if recipe.search != "impute" and recipe.reads_pool:
            raise ValueError(
                f"the alignment {recipe.align} of {recipe.name} reads the whole pool, "
                "which a search in blocks never sees: set the recipe's search to 'impute', or rerank"
            )
        parts = [self._checked(recipe, queries) for queries in parts]
        there = [some for queries in parts for some in queries.mask.flatten(1).any(1).tolist()]
        if not self.living_tokens or not any(there):
            return [{} for _ in there]
        how = self._impute if recipe.search == "impute" else self._gather
        task = bar.add_task(f"search {recipe.name}", total=len(there))
        found = how(recipe, parts, min(k, len(self)), partial(bar.advance, task))
        return [best if some else {} for best, some in zip(found, there, strict=True)]

    def _gather(self, recipe: Recipe, parts: list[Tokens], k: int, advance: Advance) -> Found:
        """As `_search`: `core.rel` of the documents that own one of the `search_tokens` tokens retrieved for
        each query token."""
        found = []
        for query, _, tokens in self._retrieved(parts, recipe.search_tokens):
            rows = np.unique(self._owners(tokens[tokens >= 0]))
            found.append(self._best(self._scores([recipe], query, rows)[0], rows, k))
            advance(1)
        return found

    def _impute(self, recipe: Recipe, parts: list[Tokens], k: int, advance: Advance) -> Found:
        """As `_gather`, from retrieved tokens alone: Eq. 4."""
        found = []
        for _, scores, tokens in self._retrieved(parts, recipe.search_tokens):
            owners = torch.from_numpy(self._owners(tokens)).to(tokens.device)
            rows, filled = retrieved_rel(scores, owners, self.living_tokens, recipe.imputation)
            found.append(self._best(filled, rows.cpu().numpy(), k))
            advance(1)
        return found

    def _retrieved(self, parts: list[Tokens], k: int) -> Iterator[tuple[Tokens, Tensor, Tensor]]:
        """Each query and the `token_search` of its real tokens; some queries at a time."""
        most = RETRIEVED // min(k, self.living_tokens)
        for queries in parts:
            step = max(1, most // max(1, queries.mask.shape[-1]))
            for start in range(0, len(queries.mask), step):
                some = queries[start : start + step]
                lengths = some.mask[:, 0].sum(-1).tolist()
                found = self.token_search(some.vectors[:, 0][some.mask[:, 0]], k)
                scores, tokens = (t.split(lengths) for t in found)
                yield from zip((some[n : n + 1] for n in range(len(lengths))), scores, tokens, strict=True)

    def _scores(
        self, recipes: Sequence[Recipe], query: Tokens, rows: np.ndarray, packed: Packed | None = None
    ) -> Float[Tensor, "s n"]:
        """`stored.score` with each recipe, of one query and documents by row: from one S in the kernels, or
        one read of the tokens. packed: the query as the kernels read it, where that is known."""
        scores = torch.empty((len(recipes), len(rows)), device=query.mask.device)
        if not len(rows):
            return scores
        scanned = self._scanned(query.mask.device)
        known = [n for n, recipe in enumerate(recipes) if scanned and compiled(recipe)]
        others = [n for n in range(len(recipes)) if n not in known]
        if scanned and known:
            packed = scanned.packed(query) if packed is None else packed
            scores[known] = scanned.relevances([recipes[n] for n in known], packed, rows)[:, 0]
        if others:
            whole, query = any(recipes[n].reads_pool for n in others), _trimmed(query)
            found = []
            for block in [rows] if whole else self.blocks(CANDIDATES, rows):
                documents = self.tokens(block, query.mask.device)
                found.append(torch.cat([score(recipes[n], documents, query) for n in others]))
            scores[others] = torch.cat(found, 1)
        return scores

    def _scanned(self, device: torch.device) -> Scanned | None:
        """What the kernels read, where they can."""
        return self._kept_once("scanned", self._scan) if device.type == "cpu" else None

    def _scan(self) -> Scanned | None:
        from paradigms.scoring import kernels

        if self.manifest["dim"] % VECTOR:
            return None
        vectors = kernels.halves(np.asarray(self.fields["vectors"]))
        return Scanned(vectors, self.offsets, self.fields)

    def _owners(self, tokens: Tensor) -> np.ndarray:
        """The rows of the documents that hold tokens; −1 of −1."""
        return np.searchsorted(self.offsets, tokens.cpu().numpy(), side="right") - 1

    # One integer for score and id, so that the largest keys are the best documents whatever ties: above the
    # score's bits, in an order that integers share with floats, below the place of the id among all ids.

    def _keys(self, scores: Float[Tensor, "b n"], rows: np.ndarray) -> Int[Tensor, "b n"]:
        """The keys of the documents at `rows`."""
        bits = (scores.float() + 0.0).view(torch.int32).long()  # + 0 makes −0 into 0
        rank = torch.from_numpy(self._order[1][rows]).to(scores.device)
        return (bits.where(bits >= 0, bits ^ 0x7FFFFFFF) << 32) | (0xFFFFFFFF - rank)

    def _decoded(self, keys: Int[Tensor, " k"]) -> dict[str, float]:
        """Document id → score, in the order of the keys."""
        high, rank = keys >> 32, 0xFFFFFFFF - (keys & 0xFFFFFFFF)
        scores = high.where(high >= 0, high ^ 0x7FFFFFFF).int().view(torch.float32)
        rows = self._order[0][rank.cpu().numpy()]
        return dict(zip(self.names(rows), scores.tolist(), strict=True))

    def _best(self, scores: Float[Tensor, " n"], rows: np.ndarray, k: int) -> dict[str, float]:
        """The k best of the documents at `rows`, at most, best first."""
        return self._decoded(self._keys(scores[None], rows)[0].topk(min(k, len(rows))).values)

    @property
    def _order(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows in the order of their ids, and of every row its place in that order."""

        def order() -> tuple[np.ndarray, np.ndarray]:
            by_id = np.array(sorted(range(len(self.ids)), key=self.ids.__getitem__), dtype=np.int64)
            return by_id, np.argsort(by_id)

        return self._kept_once("order", order)

    def _checked(self, recipe: Recipe, queries: Tokens) -> Tokens:
        """Queries as documents are scored, in float32. ValueError where these are none for this index."""
        dim = self.manifest["dim"]
        if queries.vectors.shape[1] != 1 or queries.vectors.shape[-1] != dim:
            raise ValueError(
                f"queries need axes [b, 1, j, {dim}] to search {self.folder}, "
                f"not {list(queries.vectors.shape)}"
            )
        if "ids" in recipe.alignment.reads and "ids" not in self.manifest["fields"]:
            raise ValueError(
                f"{self.folder}, made by {self.manifest['paradigm']}, holds no ids of tokens, which "
                f"{recipe.name} reads"
            )
        if queries.vectors.dtype != torch.float32 or queries.vectors.requires_grad:
            queries = queries.map(lambda t: t.detach().float() if t.is_floating_point() else t)
        flat = queries.vectors.flatten()
        if not math.isfinite(flat.dot(flat)):
            finite = queries.vectors.square().sum(-1).isfinite() | ~queries.mask
            bad = (~finite).flatten(1).any(1).nonzero()
            if len(bad):
                raise ValueError(
                    f"query {int(bad[0])} of {len(finite)} has vectors that are not finite, or too large"
                )
        return queries


def _encode_queries(
    paradigm: Paradigm, queries: Mapping[str, str], keep: float = 1.0
) -> Iterator[tuple[list[str], Tokens]]:
    """The names and Q of QUERIES queries of like length at a time; of each, the kept tokens."""
    names = list(queries)
    for places in by_length([len(text) for text in queries.values()], rows=QUERIES):
        some = [names[n] for n in places]
        yield some, most_salient(paradigm.encode_queries([queries[name] for name in some]), keep)


def _trimmed(tokens: Tokens) -> Tokens:
    """Without places that no text of `tokens` has: changes no rel."""
    places = tokens.mask.flatten(0, 1).any(0).nonzero()
    length = int(places.max()) + 1 if len(places) else 1
    return tokens.map(lambda t: t[:, :, :length])
