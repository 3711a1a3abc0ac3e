"""Divide a build's documents into shards; a shard is encoded only if it is not stored yet."""

import hashlib
import zlib
from collections.abc import Callable, Container, Iterable, Iterator, Sequence, Sized
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np

from paradigms.core import Tokens
from paradigms.data.assembly import Digest
from paradigms.encoder.batches import ahead, by_length
from paradigms.encoder.precision import autocast
from paradigms.io.checks import check_several, check_text
from paradigms.model import Paradigm
from paradigms.store.pruning import TokenReduction

SHARD = 1024  # most documents that are sorted by length together, so that batches have little padding
SHARD_TOKENS = 1 << 18  # padded tokens after which a shard of already encoded documents ends

Encoded = Iterator[tuple[list[int], Tokens]]
"""Batches that together cover a shard: positions of documents in the shard, and their tokens [1, n, i, h]."""


class Shard(NamedTuple):
    """Consecutive documents that one process encodes, in batches that depend on these documents alone."""

    ids: list[str]
    texts: np.ndarray  # int64, each document's `text_digest`, or 0 if its text is not known
    source: bytes  # SHA-256 of the ids, of these digests, and of tokens that are given
    encode: Callable[[], Encoded]


class Batch(NamedTuple):
    """Encoded documents. texts: each document's `text_digest`; None if the texts are not known."""

    ids: list[str]
    tokens: Tokens  # [1, n, i, h]
    texts: np.ndarray | None = None


def text_digest(text: str) -> int:
    """Return 8 bytes of a BLAKE2b hash of a text, as an integer that is not 0."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True) or 1


def text_shards(
    paradigm: Paradigm,
    ids: Iterable[str],
    texts: Iterable[str],
    *,
    reduction: TokenReduction,
    batch_size: int,
    precision: str,
) -> Iterator[Shard]:
    """Yield shards of at most SHARD texts, which are encoded in batches of similar length, longest first.

    A shard also ends after a text that a hash selects, at a quarter of SHARD or later. Thus a text that is
    added, changed or deleted changes only the shards beside it, wherever it stands.

    Raises ValueError if the numbers of ids and texts differ, and TypeError if a text is not a string.
    """

    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")

    def encode(window: list[tuple[str, str]]) -> Encoded:
        groups = by_length([len(text) for _, text in window], rows=batch_size)
        parts = [[window[n][1] for n in places] for places in groups]
        batches = ahead(lambda texts: paradigm.batch(texts, "document"), parts)
        for places, texts, batch in zip(groups, parts, batches, strict=True):
            with autocast(paradigm.encoder.device, precision):
                tokens = reduction(paradigm.tokens(texts, "document", batch))
            yield places, tokens

    window: list[tuple[str, str]] = []
    for id, text in _pairs(ids, texts):
        check_text(id, "the id of a document")
        check_text(text, f"the text of document {id!r}")
        window.append((id, text))
        selected = zlib.crc32(f"{id} {text}".encode()) % max(1, SHARD // 2) == 0
        if len(window) == SHARD or (selected and len(window) >= SHARD // 4):
            yield _shard(window, encode)
            window = []
    if window:
        yield _shard(window, encode)


def _shard(window: list[tuple[str, str]], encode: Callable[[list[tuple[str, str]]], Encoded]) -> Shard:
    ids = [id for id, _ in window]
    texts = np.array([text_digest(text) for _, text in window], np.int64)
    return Shard(ids, texts, _source(ids, texts).digest(), lambda: encode(window))


Batches = Iterable[Batch | tuple[list[str], Tokens]]


def token_shards(parts: Batches, reduction: TokenReduction) -> Iterator[Shard]:
    """Yield shards of documents that are given as tokens [1, n, i, h]; parts are not divided.

    A shard ends after SHARD documents or SHARD_TOKENS padded tokens.
    """
    batches: list[Batch] = []
    for batch in parts:
        ids, tokens, _ = batch = Batch(*batch)
        if tokens.mask.shape[:2] != (1, len(ids)):
            shape = list(tokens.vectors.shape)
            raise ValueError(f"{len(ids)} ids, {ids[:3]} …, need tokens [1, {len(ids)}, i, h], not {shape}")
        if ids:
            batches.append(batch)
        documents = sum(len(batch.ids) for batch in batches)
        if documents >= SHARD or sum(batch.tokens.mask.numel() for batch in batches) >= SHARD_TOKENS:
            yield _joined(batches, reduction)
            batches = []
    if batches:
        yield _joined(batches, reduction)


def check_ids(ids: Iterable[str], texts: Iterable[str]) -> int | None:
    """Return the number of documents, or None if unknown.

    Raises ValueError if ids repeat or if the numbers of ids and texts differ.
    """
    check_several(ids, "document ids")
    check_several(texts, "document texts")
    if not (isinstance(ids, Sized) and isinstance(texts, Sized)):
        return None
    distinct = len(set(ids))
    if len(ids) != len(texts) or distinct != len(ids):
        raise ValueError(f"{len(texts)} texts need as many different ids, not {distinct} among {len(ids)}")
    return len(ids)


def different(shards: Iterable[Shard], taken: Container[str] = ()) -> Iterator[Shard]:
    """Yield the shards. Raises ValueError if an id is repeated or is in `taken`."""
    seen: set[str] = set()
    for shard in shards:
        for id in shard.ids:
            if id in seen or id in taken:
                raise ValueError(f"document {id!r} already exists: delete it first, or choose another id")
            seen.add(id)
        yield shard


def _pairs(ids: Iterable[str], texts: Iterable[str]) -> Iterator[tuple[str, str]]:
    missing: Any = object()
    for id, text in zip_longest(ids, texts, fillvalue=missing):
        if id is missing or text is missing:
            what = "ids" if id is missing else "texts"
            raise ValueError(f"there are fewer {what} than {'texts' if id is missing else 'ids'}")
        yield id, text


def _joined(batches: list[Batch], reduction: TokenReduction) -> Shard:
    def encode() -> Encoded:
        first = 0
        for ids, tokens, _ in batches:
            yield list(range(first, first + len(ids))), reduction(tokens)
            first += len(ids)

    every = [id for batch in batches for id in batch.ids]
    digests = [np.zeros(len(b.ids), np.int64) if b.texts is None else b.texts for b in batches]
    texts = np.concatenate(digests)
    for id in every:
        check_text(id, "the id of a document")
    source = _source(every, texts)
    for batch in batches:
        source.update(_checksum(batch.tokens))
    return Shard(every, texts, source.digest(), encode)


def _source(ids: Sequence[str], texts: np.ndarray) -> Any:
    """Return a SHA-256 of ids and digests of texts."""
    digest = Digest()
    digest.add(*ids)
    return hashlib.sha256(digest.digest() + texts.tobytes())


def _checksum(tokens: Tokens) -> bytes:
    checksum = hashlib.sha256(tokens.mask.sum(-1).cpu().numpy().tobytes())
    for values in (tokens.vectors, tokens.ids, tokens.salience):
        if values is not None:
            used = values[tokens.mask].cpu()
            used = used.float() if used.is_floating_point() else used
            checksum.update(used.numpy().tobytes())
    return checksum.digest()
