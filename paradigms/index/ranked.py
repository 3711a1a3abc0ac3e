"""Documents by their scores: of equal ones the smaller id first."""

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from paradigms.index.grow import GrowingStore
from paradigms.io.typed import check_several

Index = TypeVar("Index", bound="RankedStore")
Made = TypeVar("Made")


class RankedStore(GrowingStore):
    """A store with an order among its documents, and what is made once for each of its states."""

    def only(self: Index, ids: Iterable[str]) -> Index:
        """The index as if it held these documents alone: searches equal those of an index that was built of
        them, where they are exact. Nothing is written, and what is changed later is not seen.

        KeyError names an unknown document.
        """
        check_several(ids, "document ids")
        living = np.zeros(len(self.living), dtype=bool)
        living[[self.position(id) for id in ids]] = True
        part = copy.copy(self)
        part._live(living)
        part._made = {name: made for name, made in self._made.items() if name in ("order", "scannable")}
        return part

    # One integer for score and id, so that the largest keys are the best documents whatever ties: above the
    # score's bits, in an order that integers share with floats, below the place of the id among all ids.

    def _keys(self, scores: Tensor, rows: np.ndarray) -> Tensor:
        """[b, n] scores of the documents at `rows` → int64 keys."""
        bits = (scores.float() + 0.0).view(torch.int32).long()  # + 0 makes −0 into 0
        rank = torch.from_numpy(self._order[1][rows]).to(scores.device)
        return (bits.where(bits >= 0, bits ^ 0x7FFFFFFF) << 32) | (0xFFFFFFFF - rank)

    def _best(self, scores: Tensor, rows: np.ndarray, k: int) -> Tensor:
        """The k largest keys of the documents at `rows`, scores [n] or [1, n], best first."""
        return self._keys(scores.view(1, -1), rows)[0].topk(min(k, len(rows))).values

    def _decode_keys(self, keys: Tensor) -> dict[str, float]:
        """Keys [k] → document id → score, in their order."""
        high, rank = keys >> 32, 0xFFFFFFFF - (keys & 0xFFFFFFFF)
        scores = high.where(high >= 0, high ^ 0x7FFFFFFF).int().view(torch.float32)
        rows = self._order[0][rank.cpu().numpy()]
        return dict(zip(self.names(rows), scores.tolist(), strict=True))

    def _map(self, manifest: Mapping[str, Any]) -> None:
        super()._map(manifest)
        self._made: dict[str, Any] = {}  # of this state, when first needed: copies share it

    def _live(self, living: np.ndarray) -> None:
        super()._live(living)
        lengths = np.diff(self.offsets)
        self.living_tokens = int(lengths[living].sum())
        # Which tokens belong to deleted documents; None where no document is deleted.
        self.dead = None if living.all() else np.repeat(~living, lengths)

    def _kept_once(self, name: str, make: Callable[[], Made]) -> Made:
        """What `make` gives, made once for this state of the folder."""
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    @property
    def _order(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows in the order of their ids, and of every row its place in that order."""
        return self._kept_once("order", self._ranked_ids)

    def _ranked_ids(self) -> tuple[np.ndarray, np.ndarray]:
        by_id = np.array(sorted(range(len(self.ids)), key=self.ids.__getitem__), dtype=np.int64)
        rank = np.empty_like(by_id)
        rank[by_id] = np.arange(len(by_id))
        return by_id, rank
