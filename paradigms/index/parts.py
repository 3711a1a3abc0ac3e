"""Documents on their way into an index, a few at a time: encoded only when they are stored."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sized
from itertools import islice, zip_longest
from typing import Any, NamedTuple

import torch

from paradigms.core import Tokens
from paradigms.index.pruning import most_salient
from paradigms.model import Paradigm, autocast

WINDOW = 4096  # documents whose lengths are sorted together, so that batches hold little padding


class Part(NamedTuple):
    """A few documents: ids, a checksum of what each was made from, and how to get their tokens."""

    ids: list[str]
    sources: list[int]
    tokens: Callable[[], Tokens]  # axes [1, n, i, h]


def text_parts(
    paradigm: Paradigm,
    ids: Iterable[str],
    texts: Iterable[str],
    *,
    keep: float,
    batch_size: int,
    precision: str,
    advance: Callable[[int], object],
) -> Iterator[Part]:
    """Batches of texts of like length, longest first in each window; `advance` is told their sizes."""

    def encode(batch: list[str]) -> Tokens:
        with autocast(paradigm.encoder.device, precision):
            return most_salient(paradigm.encode_documents(batch), keep)

    pairs = _pairs(ids, texts)
    while window := list(islice(pairs, WINDOW)):
        window.sort(key=lambda pair: -len(pair[1]))
        for start in range(0, len(window), batch_size):
            names, batch = map(list, zip(*window[start : start + batch_size], strict=True))
            sources = [zlib.crc32(text.encode(errors="surrogatepass")) for text in batch]
            yield Part(names, sources, lambda batch=batch: encode(batch))  # type: ignore[misc]
            advance(len(names))


def token_parts(parts: Iterable[tuple[list[str], Tokens]], keep: float) -> Iterator[Part]:
    """Documents that come as tokens, axes [1, n, i, h]; ValueError where ids are more or fewer."""
    for ids, tokens in parts:
        if tokens.mask.shape[:2] != (1, len(ids)):
            raise ValueError(
                f"{len(ids)} ids, {ids[:3]} …, need tokens of axes [1, {len(ids)}, i, h], not of "
                f"{list(tokens.vectors.shape)}"
            )
        sources = [_checksum(tokens, n) for n in range(len(ids))]
        yield Part(ids, sources, lambda tokens=tokens: most_salient(tokens, keep))  # type: ignore[misc]


def check_ids(ids: Iterable[str], texts: Iterable[str]) -> int | None:
    """How many documents there are, where that is known. ValueError where it shows that ids do not fit."""
    if not (isinstance(ids, Sized) and isinstance(texts, Sized)):
        return None
    if len(ids) != len(texts) or len(set(ids)) != len(ids):
        raise ValueError(
            f"{len(texts)} texts need as many different ids, not {len(set(ids))} among {len(ids)}"
        )
    return len(ids)


def weights_checksum(paradigm: Paradigm) -> int:
    """One number for all weights: models of equal settings differ in it."""
    checksum = 0
    for weight in paradigm.state_dict().values():
        values = weight.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        checksum = zlib.crc32(values.numpy().data, checksum)
    return checksum


def _pairs(ids: Iterable[str], texts: Iterable[str]) -> Iterator[tuple[str, str]]:
    missing: Any = object()
    for id, text in zip_longest(ids, texts, fillvalue=missing):
        if id is missing or text is missing:
            what = "ids" if id is missing else "texts"
            raise ValueError(f"there are fewer {what} than {'texts' if id is missing else 'ids'}")
        yield id, text


def _checksum(tokens: Tokens, n: int) -> int:
    checksum = 0
    for values in (tokens.vectors, tokens.ids, tokens.salience):
        if values is not None:
            kept = values[0, n][tokens.mask[0, n]].cpu()
            kept = kept.float() if kept.is_floating_point() else kept
            checksum = zlib.crc32(kept.contiguous().numpy().data, checksum)
    return checksum
