"""How much of long documents an encoder never reads: what lies beyond `document_length` is cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from paradigms.encoder.base import Encoder
from paradigms.encoder.text import TextEncoder
from paradigms.encoder.towers import TwoTowers

COUNTED = 1_000  # documents; of more, as many at even distances
BATCH = 1000  # texts in one call of the tokenizer


class Cut(NamedTuple):
    """Of `counted` among `documents`: how many are cut, and the tokens that are cut of all tokens."""

    documents: int
    counted: int
    cut: int
    tokens: int
    tokens_cut: int
    length: int

    @property
    def share(self) -> float:
        """Of all tokens, those that are cut."""
        return self.tokens_cut / max(1, self.tokens)

    def __str__(self) -> str:
        of = f"{self.counted:,}" + (f" (of {self.documents:,})" if self.counted < self.documents else "")
        return (
            f"{self.cut:,} of {of} texts are longer than {self.length} tokens and cut: "
            f"{100 * self.share:.1f}% of all tokens are not read"
        )


def count_cut(encoder: Encoder, texts: Sequence[str]) -> Cut | None:
    """What the encoder cuts of the documents; None of one that is no `TextEncoder`."""
    if isinstance(encoder, TwoTowers):
        encoder = encoder.of("document")
    if not isinstance(encoder, TextEncoder):
        return None
    layout, around = encoder._layouts["document"], len(encoder.tokenizer("")["input_ids"])
    room = layout.length - len(layout.marker) - around
    places = range(0, len(texts), -(-len(texts) // COUNTED) or 1)
    cut = tokens = lost = 0
    for start in range(0, len(places), BATCH):
        some = [layout.prefix + texts[place] for place in places[start : start + BATCH]]
        for ids in encoder.tokenizer(some, add_special_tokens=False, verbose=False)["input_ids"]:
            tokens += len(ids)
            lost += max(0, len(ids) - room)
            cut += len(ids) > room
    return Cut(len(texts), len(places), cut, tokens, lost, layout.length)
