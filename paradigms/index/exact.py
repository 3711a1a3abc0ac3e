"""top-k_d rel(d, q) over a whole corpus, exactly: float16 token vectors on disk, read in blocks.

Two ways to score (a paradigm's `Recipe.search`):

- gather: every document's tokens are read and `core.rel` is computed; equal to it on the stored vectors;
- impute: an exact token search gives the k' best document tokens of each query token, and documents are
  scored from those alone; equal to `xtr.imputed_rel` on the stored vectors (Lee et al. 2023, Eq. 4).

Memory is bounded by the encoded queries, a block of documents and a slice of queries, whatever the corpus.
Of equal scores the smaller document id ranks first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paradigms.core import Tokens, similarity
from paradigms.data import Run
from paradigms.index.maxima import keeps_maxima, max_rel
from paradigms.index.pruning import most_salient
from paradigms.index.store import TokenStore
from paradigms.model import Paradigm
from paradigms.progress import progress_bar
from paradigms.xtr import imputed_rel

QUERIES = 64  # encoded at once, texts of like length together
TOKEN_BLOCK = 1 << 18  # document tokens that a token search reads at once
GROUP = 8  # similarities that a token search first takes the largest of
# Padded tokens of a block of documents, and entries of S at once: on a processor what its cache holds.
SIZES = {"cpu": (1 << 12, 1 << 20)}
LARGE_SIZES = (1 << 17, 1 << 26)


class ExactIndex(TokenStore):
    """Search and reranking that miss nothing: every document, or every token, is looked at."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._by_id = np.array(sorted(range(len(self.ids)), key=self.ids.__getitem__), dtype=np.int64)
        self._rank = np.empty(len(self.ids), dtype=np.int64)
        self._rank[self._by_id] = np.arange(len(self.ids))

    def search(
        self,
        paradigm: Paradigm,
        queries: Mapping[str, str],
        k: int = 100,
        *,
        keep: float = 1.0,
        progress: bool = False,
    ) -> Run:
        """The k best documents of every query, best first; fewer where the index, or what was retrieved, has
        fewer.

        keep: β^q, the share of each query's tokens that search, the most salient ones (`pruning`).
        """
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        self.check(paradigm)
        impute = paradigm.recipe.search == "impute"
        if "pool" in paradigm.reads and not impute:
            raise ValueError(
                f"the alignment {paradigm.recipe.align} of {paradigm.recipe.name} reads the whole pool, "
                "which a search in blocks never sees: set the recipe's search to 'impute', or rerank"
            )
        found: dict[str, dict[str, float]] = {}
        names = list(queries)
        with torch.inference_mode(), progress_bar(progress) as bar:
            encoded = list(_encode_queries(paradigm, list(queries.values()), keep))
            how = self._impute if impute else self._gather
            parts = how(paradigm, [q for _, q in encoded], min(k, len(self.ids)), bar) if self.ids else []
            for (places, _), keys in zip(encoded, parts, strict=False):
                found |= {names[place]: self._decode(row) for place, row in zip(places, keys, strict=True)}
        return {name: found.get(name, {}) for name in names}

    def rerank(
        self, paradigm: Paradigm, queries: Mapping[str, str], run: Run, *, progress: bool = False
    ) -> Run:
        """New scores for the run's queries and documents, best first.

        An imputing paradigm takes the query's candidates as its pool: k' tokens of theirs are retrieved.
        KeyError names a query without a text or a document outside the index. Memory grows with the
        candidates of one query.
        """
        self.check(paradigm)
        unknown = next((query for query in run if query not in queries), None)
        if unknown is not None:
            raise KeyError(f"the run names the query {unknown!r}, which has no text")
        names = [query for query in run if run[query]]
        places = {query: sorted(map(self.position, run[query])) for query in names}
        found: Run = {}
        with torch.inference_mode(), progress_bar(progress) as bar:
            task = bar.add_task(f"rerank {paradigm.recipe.name}", total=len(names))
            for rows, encoded in _encode_queries(paradigm, [queries[query] for query in names]):
                for row, query in enumerate(names[place] for place in rows):
                    q = encoded[row : row + 1]
                    documents = self.tokens(places[query], q.vectors.device)
                    scores = self._score(paradigm, documents, _trimmed(q))
                    keys = self._keys(scores, np.array(places[query]))
                    found[query] = self._decode(keys[0].sort(descending=True).values)
                    bar.advance(task)
        return {query: found.get(query, {}) for query in run}

    def _score(self, paradigm: Paradigm, documents: Tokens, queries: Tokens) -> Tensor:
        if paradigm.recipe.search == "impute":
            S, valid = similarity(documents, queries)
            return imputed_rel(S, valid, paradigm.recipe.search_tokens)
        if keeps_maxima(paradigm):
            return max_rel(paradigm, documents, queries)
        return paradigm.score(documents, queries)

    def _gather(self, paradigm: Paradigm, parts: list[Tokens], k: int, bar: Any) -> list[list[Tensor]]:
        """For each part and query the keys of its k best documents."""
        task = bar.add_task(f"search {paradigm.recipe.name}", total=len(self.ids))
        best = [torch.zeros((len(q.mask), 0), dtype=torch.long, device=q.mask.device) for q in parts]
        if not parts:
            return []
        device = parts[0].mask.device
        tokens, cells = SIZES.get(device.type, LARGE_SIZES)
        for block in self.blocks(tokens):
            documents = self.tokens(block, device)
            positions = np.arange(block.start, block.stop)
            for n, queries in enumerate(parts):
                rows = max(1, cells // (documents.mask.numel() * queries.mask.shape[-1]))
                starts = range(0, len(queries.mask), rows)
                scores = torch.cat([self._score(paradigm, documents, queries[s : s + rows]) for s in starts])
                keys = torch.cat([best[n], self._keys(scores, positions)], 1)
                best[n] = keys.topk(min(k, keys.shape[1])).values
            bar.advance(task, len(block))
        return [list(keys) for keys in best]

    def _impute(self, paradigm: Paradigm, parts: list[Tokens], k: int, bar: Any) -> list[list[Tensor]]:
        """As `_gather`, from retrieved tokens alone: Eq. 4."""
        task = bar.add_task(f"search {paradigm.recipe.name}", total=sum(len(q.mask) for q in parts))
        wanted = min(paradigm.recipe.search_tokens, int(self.offsets[-1]))
        found = []
        for queries in parts:
            mask = queries.mask[:, 0]
            vectors = queries.vectors[:, 0][mask]  # of real tokens alone
            _, cells = SIZES.get(vectors.device.type, LARGE_SIZES)
            step = max(1, 16 * cells // max(1, min(TOKEN_BLOCK, int(self.offsets[-1]))))
            starts = range(0, max(1, len(vectors)), step)  # of no vector at all one empty slice
            retrieved = [self._token_search(vectors[s : s + step], wanted) for s in starts]
            scores, tokens = map(torch.cat, zip(*retrieved, strict=True))
            lengths = mask.sum(-1).tolist()
            rows = zip(scores.split(lengths), tokens.split(lengths), strict=True)
            found.append([self._imputed(*row, k) for row in rows])
            bar.advance(task, len(mask))
        return found

    def _token_search(self, vectors: Tensor, wanted: int) -> tuple[Tensor, Tensor]:
        """The `wanted` most similar document tokens of each query token [t, h]: similarities and places."""
        stored = self.fields["vectors"]
        scores, tokens = vectors.new_zeros((len(vectors), 0)), vectors.new_zeros((len(vectors), 0)).long()
        for start in range(0, len(stored), TOKEN_BLOCK):
            block = torch.from_numpy(np.array(stored[start : start + TOKEN_BLOCK])).to(vectors)
            new, places = _largest(vectors @ block.T, min(wanted, len(block)))
            scores, tokens = torch.cat([scores, new], 1), torch.cat([tokens, places + start], 1)
            scores, kept = scores.topk(min(wanted, scores.shape[1]), sorted=False)
            tokens = tokens.gather(1, kept)
        return scores, tokens

    def _imputed(self, scores: Tensor, tokens: Tensor, k: int) -> Tensor:
        """Eq. 4 for one query from its retrieved tokens, scores and places [j, k']: keys of the k best."""
        if not tokens.numel():
            return tokens.new_zeros(0)
        owners = np.searchsorted(self.offsets, tokens.cpu().numpy(), side="right") - 1
        candidates, inverse = np.unique(owners, return_inverse=True)
        filled = scores.amin(1, keepdim=True).repeat(1, len(candidates))
        places = torch.from_numpy(inverse.reshape(owners.shape)).to(scores.device)
        filled.scatter_reduce_(1, places, scores, "amax")
        return self._keys(filled.mean(0, keepdim=True), candidates)[0].topk(min(k, len(candidates))).values

    # One integer for score and id, so that the largest keys are the best documents whatever ties: above the
    # score's bits, in an order that integers share with floats, below the place of the id among all ids.

    def _keys(self, scores: Tensor, positions: np.ndarray) -> Tensor:
        """[b, n] scores of the documents at `positions` → int64 keys."""
        bits = (scores.float() + 0.0).view(torch.int32).long()  # + 0 makes −0 into 0
        rank = torch.from_numpy(self._rank[positions]).to(scores.device)
        return (bits.where(bits >= 0, bits ^ 0x7FFFFFFF) << 32) | (0xFFFFFFFF - rank)

    def _decode(self, keys: Tensor) -> dict[str, float]:
        """Keys [k] → document id → score, in their order."""
        high, rank = keys >> 32, 0xFFFFFFFF - (keys & 0xFFFFFFFF)
        scores = high.where(high >= 0, high ^ 0x7FFFFFFF).int().view(torch.float32)
        positions = self._by_id[rank.cpu().numpy()]
        return {self.ids[n]: score for n, score in zip(positions, scores.tolist(), strict=True)}


def _encode_queries(
    paradigm: Paradigm, texts: list[str], keep: float = 1.0
) -> Iterator[tuple[list[int], Tokens]]:
    """Q of QUERIES texts of like length at a time, with the places of the texts; of each, the kept tokens."""
    order = sorted(range(len(texts)), key=lambda n: len(texts[n]))
    for start in range(0, len(order), QUERIES):
        places = order[start : start + QUERIES]
        yield places, most_salient(paradigm.encode_queries([texts[n] for n in places]), keep)


def _trimmed(tokens: Tokens) -> Tokens:
    """Without places that no text of `tokens` has: changes no rel."""
    places = tokens.mask.flatten(0, 1).any(0).nonzero()
    length = int(places.max()) + 1 if len(places) else 1
    return tokens.map(lambda t: t[:, :, :length])


def _largest(S: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """S.topk(k) along rows, in no order: the k largest lie in the k groups with the largest maxima."""
    groups = S.shape[1] // GROUP
    if groups <= k:
        return S.topk(k, sorted=False)
    whole, device = groups * GROUP, S.device
    maxima = S[:, :whole].view(-1, GROUP, groups).amax(1)
    chosen = maxima.topk(k, sorted=False).indices[:, None, :]
    members = (chosen + torch.arange(GROUP, device=device)[:, None] * groups).flatten(1)
    rest = torch.arange(whole, S.shape[1], device=device).expand(len(S), -1)
    members = torch.cat([members, rest], 1)
    values, kept = S.gather(1, members).topk(k, sorted=False)
    return values, members.gather(1, kept)
