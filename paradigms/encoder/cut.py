"""Count the document tokens that an encoder never reads because `document_length` cuts them off."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from paradigms.encoder.towers import Encoder, TwoTowers

COUNTED = 1_000  # documents that are counted at most, evenly spaced
CHARACTERS = 1_000_000  # tokenised characters per document; longer documents are extrapolated


class Cut(NamedTuple):
    """Truncation of the counted documents."""

    cut: int  # documents that are cut
    share: float  # of the tokens that are cut off
    summary: str  # both numbers in a sentence


def count_cut(encoder: Encoder, texts: Sequence[str]) -> Cut:
    """Tokenise at most `COUNTED` of the texts and compare their lengths with `document_length`."""
    encoder = encoder.of("document") if isinstance(encoder, TwoTowers) else encoder
    layout, around = encoder._layouts["document"], len(encoder.tokenizer("")["input_ids"])
    room = layout.length - len(layout.marker) - around
    places = range(0, len(texts), -(-len(texts) // COUNTED) or 1)
    full = [layout.prefix + texts[place] for place in places]
    starts = [text[:CHARACTERS] for text in full]
    rows = encoder.tokenizer(starts, add_special_tokens=False, verbose=False)["input_ids"] if starts else []
    counts = [
        len(ids) * len(text) // max(1, len(start))
        for ids, text, start in zip(rows, full, starts, strict=True)
    ]
    cut, tokens = sum(count > room for count in counts), sum(counts)
    lost = sum(max(0, count - room) for count in counts)
    share, among = lost / max(1, tokens), f" (of {len(texts):,})" if len(places) < len(texts) else ""
    summary = f"{cut:,} of {len(places):,}{among} texts are longer than {layout.length} tokens and cut: "
    return Cut(cut, share, f"{summary}{100 * share:.1f}% of all tokens are not read")
