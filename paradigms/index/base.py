"""top-k_d rel(d, q) over an index, and rel of given candidates: one way to search for every kind of index.

Two ways to score (`Recipe.search`):

- gather: `core.rel`, from all stored tokens of a candidate;
- impute: a token search gives the k' best document tokens of each query token, and documents are scored from
  those alone: `impute.imputed_rel` (Lee et al. 2023, Eq. 4), where that token search is exact.

Of equal scores the smaller document id ranks first. Deleted documents are never found. Nor are those without
tokens: their rel of 0 would lie above negative cosines, and a rerank gives them −∞. Queries without tokens
find nothing. Threads are those that the caller set (`torch.set_num_threads`).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paradigms.core import Tokens
from paradigms.data import Run, check_queries
from paradigms.encoder.batches import by_length
from paradigms.impute import retrieved_rel
from paradigms.index.pruning import most_salient
from paradigms.index.ranked import RankedStore
from paradigms.index.store import on_snapshot
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


class TokenIndex(RankedStore, ABC):
    """A store that can be searched: `token_search` is what a kind of index has to bring."""

    @on_snapshot
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
        self.check(paradigm)
        names = list(queries)
        found: dict[str, dict[str, float]] = {}
        with torch.inference_mode(), progress_bar(progress) as bar:
            encoded = list(_encode_queries(paradigm, list(queries.values()), keep))
            ranked = self._search(paradigm.recipe, [q for _, q in encoded], k, bar)
            for (places, _), rows in zip(encoded, ranked, strict=True):
                found |= {names[place]: row for place, row in zip(places, rows, strict=True)}
        return {name: found[name] for name in names}

    @on_snapshot
    def search_tokens(self, recipe: Recipe, queries: Tokens, k: int = 100) -> list[dict[str, float]]:
        """As `search`, of queries that come encoded, axes [b, 1, j, h]: of each its documents and scores."""
        with torch.inference_mode(), progress_bar(False) as bar:
            return self._search(recipe, [queries], k, bar)[0]

    def rerank(
        self, paradigm: Paradigm, queries: Mapping[str, str], run: Run, *, progress: bool = False
    ) -> Run:
        """New scores for the run's queries and documents, best first: rel, as `search` defines it.

        An imputing paradigm takes the query's candidates as its pool. KeyError names a query without a text
        or a document outside the index.
        """
        return self.rerank_recipes(paradigm, [paradigm.recipe], queries, run, progress=progress)[0]

    @on_snapshot
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
        self.check(paradigm)
        check_queries(run, queries)
        for candidates in run.values():
            self.positions(candidates)
        names = [query for query in run if run[query]]
        found: list[Run] = [{} for _ in recipes]
        with torch.inference_mode(), progress_bar(progress) as bar:
            task = bar.add_task(f"rerank {paradigm.recipe.name}", total=len(names))
            for places, encoded in _encode_queries(paradigm, [queries[query] for query in names]):
                part = [names[place] for place in places]
                scored = self._rerank(recipes, encoded, [list(run[query]) for query in part])
                for new, scores in zip(found, scored, strict=True):
                    new |= dict(zip(part, scores, strict=True))
                bar.advance(task, len(part))
        return [{query: new.get(query, {}) for query in run} for new in found]

    @on_snapshot
    def rerank_tokens(
        self, recipe: Recipe, queries: Tokens, candidates: Sequence[Sequence[str]]
    ) -> list[dict[str, float]]:
        """As `rerank`, of queries that come encoded, axes [b, 1, j, h], and the candidates of each."""
        return self._rerank([recipe], queries, candidates)[0]

    @on_snapshot
    def certified(self, recipe: Recipe, queries: Tokens, k: int = 10) -> list[tuple[dict[str, float], bool]]:
        """For each query [b, 1, j, h] its k best of all documents here, and whether these are certainly the k
        best of these documents in the index that `certify` was given: no other reaches one within the errors.

        A score errs by at most Σⱼ ‖qⱼ‖ / Z times the document's distance. ValueError for an index without
        errors, or a recipe whose rel is no sum of maxima with a Z that the query sets.
        """
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
            scores = self._score_rows(recipe, query, rows)
            above, below = self.errors[rows].T * reach
            top = np.argsort(-(values := scores[0].cpu().numpy()), kind="stable")[:k]
            rest = np.delete(np.arange(len(rows)), top)
            sure = (values - below)[top].min(initial=np.inf) > (values + above)[rest].max(initial=-np.inf)
            best = self._decode_keys(self._best(scores, rows, min(k, len(rows))))
            found.append((best if len(lengths) else {}, bool(sure)))
        return found

    @abstractmethod
    def token_search(self, vectors: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k most similar stored tokens of each query token [t, h], in no order: similarities and rows.

        Tokens of deleted documents are left out; [t, k'], k' ≤ k. Missing ones are −∞ and row −1.
        """

    def _rerank(
        self, recipes: Sequence[Recipe], queries: Tokens, candidates: Sequence[Sequence[str]]
    ) -> list[list[dict[str, float]]]:
        """For each recipe and query its candidates and scores, best first."""
        for recipe in recipes:
            queries = self._checked(recipe, queries)
        if len(candidates) != len(queries.mask):
            raise ValueError(f"{len(queries.mask)} queries need as many candidates, not {len(candidates)}")
        ranked: list[list[dict[str, float]]] = [[] for _ in recipes]
        with torch.inference_mode():
            for row, ids in enumerate(candidates):
                rows = np.sort(self.positions(ids))
                query = queries if len(candidates) == 1 else queries[row : row + 1]
                empty = self.offsets[rows] == self.offsets[rows + 1]
                for new, scores in zip(ranked, self._score_all(recipes, query, rows), strict=True):
                    scores[empty] = -np.inf
                    order = np.lexsort((self._order[1][rows], -scores))
                    new.append(dict(zip(self.names(rows[order]), scores[order].tolist(), strict=True)))
        return ranked

    def _search(self, recipe: Recipe, parts: list[Tokens], k: int, bar: Any) -> list[list[dict[str, float]]]:
        """Of each part and query its k best documents with their scores, best first."""
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        if recipe.search != "impute" and recipe.reads_pool:
            raise ValueError(
                f"the alignment {recipe.align} of {recipe.name} reads the whole pool, "
                "which a search in blocks never sees: set the recipe's search to 'impute', or rerank"
            )
        parts = [self._checked(recipe, queries) for queries in parts]
        if not len(self) or not any(len(queries.mask) for queries in parts):
            return [[{} for _ in queries.mask] for queries in parts]
        how = self._impute if recipe.search == "impute" else self._gather
        ranked = how(recipe, parts, min(k, len(self)), bar)
        return [
            [
                self._decode_keys(keys) if there else {}
                for keys, there in zip(of, q.mask.flatten(1).any(1), strict=True)
            ]
            for of, q in zip(ranked, parts, strict=True)
        ]

    def _gather(self, recipe: Recipe, parts: list[Tokens], k: int, bar: Any) -> list[list[Tensor]]:
        """For each part and query the `_best` keys: `core.rel` of the documents that own one of the
        `search_tokens` tokens retrieved for each query token."""
        task = bar.add_task(f"search {recipe.name}", total=sum(len(q.mask) for q in parts))
        found: list[list[Tensor]] = []
        for queries in parts:
            found.append([])
            for row, _, tokens in self._retrieved(queries, recipe.search_tokens):
                rows = np.unique(self._owners(tokens[tokens >= 0]))
                scores = self._score_rows(recipe, queries[row : row + 1], rows)
                found[-1].append(self._best(scores, rows, k))
                bar.advance(task)
        return found

    def _impute(self, recipe: Recipe, parts: list[Tokens], k: int, bar: Any) -> list[list[Tensor]]:
        """As `_gather`, from retrieved tokens alone: Eq. 4."""
        task = bar.add_task(f"search {recipe.name}", total=sum(len(q.mask) for q in parts))
        found: list[list[Tensor]] = []
        for queries in parts:
            found.append([])
            for _, scores, tokens in self._retrieved(queries, recipe.search_tokens):
                bar.advance(task)
                if not tokens.numel():
                    found[-1].append(tokens.new_zeros(0))
                    continue
                owners = torch.from_numpy(self._owners(tokens)).to(tokens.device)
                rows, filled = retrieved_rel(scores, owners, self.living_tokens, recipe.imputation)
                found[-1].append(self._best(filled, rows.cpu().numpy(), k))
        return found

    def _retrieved(self, queries: Tokens, k: int) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Of each query its place and `token_search` of its real tokens; some queries at a time."""
        lengths = queries.mask[:, 0].sum(-1).tolist()
        most = max(1, RETRIEVED // max(1, min(k, int(self.offsets[-1]))))
        start = 0
        while start < len(lengths):
            stop, count = start + 1, lengths[start]
            while stop < len(lengths) and count + lengths[stop] <= most:
                count, stop = count + lengths[stop], stop + 1
            vectors = queries.vectors[start:stop, 0][queries.mask[start:stop, 0]]
            scores, tokens = self.token_search(vectors, k)
            per_query = lengths[start:stop]
            rows = zip(scores.split(per_query), tokens.split(per_query), strict=True)
            yield from ((start + n, *row) for n, row in enumerate(rows))
            start = stop

    def _score_all(self, recipes: Sequence[Recipe], query: Tokens, rows: np.ndarray) -> np.ndarray:
        """`_score_rows` with each recipe, [s, n]: from one S in the kernels, or one read of the tokens."""
        if len(recipes) == 1:
            return self._score_rows(recipes[0], query, rows).cpu().numpy()
        known = [
            n for n, r in enumerate(recipes) if r.search == "gather" and self._scanned(r, query.mask.device)
        ]
        others = [n for n in range(len(recipes)) if n not in known]
        scores = np.empty((len(recipes), len(rows)), np.float32)
        if known:
            read = self._scannable.relevances([recipes[n] for n in known], self._packed(query), rows)
            scores[known] = read[:, 0].numpy()
        if others:
            scores[others] = self._score_tensors([recipes[n] for n in others], query, rows).cpu().numpy()
        return scores

    def _score_rows(self, recipe: Recipe, query: Tokens, rows: np.ndarray) -> Tensor:
        """`stored.score` of one query and documents by row: [1, n]."""
        scanned = self._scanned(recipe, query.mask.device)
        if scanned and recipe.search == "impute":
            return scanned.imputed(recipe, self._packed(query), rows, self._tokens_in(rows))[0]
        if scanned:
            return scanned.relevance(recipe, self._packed(query), rows)
        return self._score_tensors([recipe], query, rows)

    def _score_tensors(self, recipes: Sequence[Recipe], query: Tokens, rows: np.ndarray) -> Tensor:
        query, whole = _trimmed(query), any(recipe.reads_pool for recipe in recipes) or not len(rows)
        found = []
        for block in [rows] if whole else self.blocks(CANDIDATES, rows):
            documents = self.tokens(block, query.mask.device)
            found.append(torch.cat([score(recipe, documents, query) for recipe in recipes]))
        return torch.cat(found, 1)

    def _scanned(self, recipe: Recipe, device: torch.device) -> Scanned | None:
        """What the kernels read, where they know the recipe and the tokens lie in their reach."""
        if device.type != "cpu" or not compiled(recipe) or self._width % VECTOR:
            return None
        return self._scannable

    @property
    def _scannable(self) -> Scanned:
        return self._kept_once("scannable", self._scan)

    def _scan(self) -> Scanned:
        from paradigms.scoring import kernels

        vectors = kernels.halves(np.asarray(self.fields["vectors"]))
        return Scanned(vectors, self.offsets, self.fields)

    def _packed(self, query: Tokens) -> Packed:
        return Packed(query)

    @property
    def _width(self) -> int:
        return self.manifest["dim"]

    def _tokens_in(self, rows: np.ndarray) -> int:
        return int((self.offsets[rows + 1] - self.offsets[rows]).sum())

    def _owners(self, tokens: Tensor) -> np.ndarray:
        """The rows of the documents that hold tokens; −1 of −1."""
        return np.searchsorted(self.offsets, tokens.cpu().numpy(), side="right") - 1

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
    paradigm: Paradigm, texts: list[str], keep: float = 1.0
) -> Iterator[tuple[list[int], Tokens]]:
    """Q of QUERIES texts of like length at a time, with the places of the texts; of each, the kept tokens."""
    for places in by_length([len(text) for text in texts], rows=QUERIES):
        yield places, most_salient(paradigm.encode_queries([texts[n] for n in places]), keep)


def _trimmed(tokens: Tokens) -> Tokens:
    """Without places that no text of `tokens` has: changes no rel."""
    places = tokens.mask.flatten(0, 1).any(0).nonzero()
    length = int(places.max()) + 1 if len(places) else 1
    return tokens.map(lambda t: t[:, :, :length])
