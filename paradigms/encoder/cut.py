"""How much of long documents an encoder never reads: what lies beyond `document_length` is cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from paradigms.encoder.towers import Encoder, TwoTowers

COUNTED = 1_000  # documents at most, at even distances


class Cut(NamedTuple):
    """How many of the counted documents are cut, the share of their tokens that is, and both in words."""

    cut: int
    share: float
    told: str


def count_cut(encoder: Encoder, texts: Sequence[str]) -> Cut:
    encoder = encoder.of("document") if isinstance(encoder, TwoTowers) else encoder
    layout, around = encoder._layouts["document"], len(encoder.tokenizer("")["input_ids"])
    room = layout.length - len(layout.marker) - around
    places = range(0, len(texts), -(-len(texts) // COUNTED) or 1)
    some = [layout.prefix + texts[place] for place in places]
    rows = encoder.tokenizer(some, add_special_tokens=False, verbose=False)["input_ids"] if some else []
    cut, tokens = sum(len(ids) > room for ids in rows), sum(map(len, rows))
    lost = sum(max(0, len(ids) - room) for ids in rows)
    share, among = lost / max(1, tokens), f" (of {len(texts):,})" if len(places) < len(texts) else ""
    told = f"{cut:,} of {len(places):,}{among} texts are longer than {layout.length} tokens and cut: "
    return Cut(cut, share, f"{told}{100 * share:.1f}% of all tokens are not read")
