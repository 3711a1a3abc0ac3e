"""Count the document tokens that an encoder never reads because `document_length` cuts them off."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from paradigms.encoder.settings import InputFormat
from paradigms.encoder.tokenizing import beginnings, call_tokenizer
from paradigms.encoder.towers import Encoder, TwoTowers

COUNTED = 1_000  # maximum number of documents counted, evenly spaced
BATCH = 1_000  # documents tokenised at once
CHARACTERS = 1_000_000  # tokenised characters per document; longer documents are extrapolated


class Cut(NamedTuple):
    """The extent of truncation in the counted documents."""

    cut: int  # documents that are cut
    share: float  # share of tokens cut off
    summary: str  # both numbers as a sentence


def count_cut(encoder: Encoder, texts: Sequence[str]) -> Cut:
    """Tokenise at most `COUNTED` of the texts and compare their lengths with `document_length`."""
    tokenizer, layout, room = _room(encoder)
    counted = texts[:: -(-len(texts) // COUNTED) or 1]
    full = [layout.prompt + text for text in counted]
    starts = [text[:CHARACTERS] for text in full]
    rows = call_tokenizer(tokenizer, starts, add_special_tokens=False)["input_ids"] if starts else []
    counts = [
        len(ids) * len(text) // max(1, len(start))
        for ids, text, start in zip(rows, full, starts, strict=True)
    ]
    cut = sum(count > room for count in counts)
    lost = sum(max(0, count - room) for count in counts)
    share = lost / max(1, sum(counts))
    among = f" (of {len(texts):,})" if len(counted) < len(texts) else ""
    summary = f"{cut:,} of {len(counted):,}{among} texts are longer than {layout.length} tokens and cut: "
    return Cut(cut, share, f"{summary}{100 * share:.1f}% of all tokens are not read")


def read_part(encoder: Encoder, texts: Sequence[str]) -> list[str]:
    """Cut each document after the last token that the encoder reads."""
    tokenizer, layout, room = _room(encoder)
    read: list[str] = []
    for start in range(0, len(texts), BATCH):
        full = [layout.prompt + text for text in texts[start : start + BATCH]]
        if not tokenizer.is_fast:
            rows = call_tokenizer(tokenizer, full, add_special_tokens=False)["input_ids"]
            for text, ids in zip(full, rows, strict=True):
                part = tokenizer.decode(ids[:room]) if len(ids) > room else text
                read.append(part[len(layout.prompt) :])
            continue
        starts = beginnings(tokenizer, full, layout.length)
        encoded = call_tokenizer(tokenizer, starts, add_special_tokens=False, return_offsets_mapping=True)
        for text, places in zip(full, encoded["offset_mapping"], strict=True):
            end = places[room - 1][1] if len(places) > room else None
            read.append(text[len(layout.prompt) : end])
    return read


def _room(encoder: Encoder) -> tuple[Any, InputFormat, int]:
    """Return the tokenizer and layout of documents, and how many tokens the layout leaves for text."""
    tower: Any = encoder.of("document") if isinstance(encoder, TwoTowers) else encoder
    layout = tower._layouts["document"]
    around = len(call_tokenizer(tower.tokenizer, "")["input_ids"])
    return tower.tokenizer, layout, layout.length - len(layout.marker) - around
