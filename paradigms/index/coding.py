"""The files of a compressed index: a codec, the codes of all tokens, and for every centroid its tokens.

A build keeps tokens as float16 until all are there, then trains the codec on a sample and puts codes in their
place. Memory is bounded by the sample, a block of tokens and SORTED entries of lists.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import DTypeLike
from safetensors.numpy import load_file, save_file
from torch import Tensor

from paradigms.index.codes import PER_CENTROID, STEPS, Codec, centroids_for, padded_width
from paradigms.index.columns import Files, Writer
from paradigms.index.store import DTYPES, LENGTHS, Rows
from paradigms.io.typed import naming

CODEC, ENTRIES, BEGINS = "codec.safetensors", "entries.bin", "begins.bin"
CODED = 1 << 15  # tokens that are coded at once
SAMPLED = 1 << 12  # tokens of the sample that are read at once: their pages are many times as large
COMMIT = 1 << 21  # tokens of a build after which a killed one goes on coding
SORTED = 1 << 24  # tokens that are put into lists at once


@dataclass(frozen=True)
class CompressedSettings:
    """How tokens are coded: in dim · bits / 8 + 6 bytes, 7 from 2^24 tokens on, and dim for every list."""

    bits: int = 4  # per dimension: 1, 2, 4 or 8
    lists: int = 0  # centroids; 0: the power of two nearest to 4√tokens
    rounds: int = 5  # of k-means
    seed: int = 0

    def __post_init__(self) -> None:
        if self.bits not in STEPS:
            raise ValueError(f"bits must be one of {', '.join(map(str, STEPS))}, got {self.bits}")
        if not 0 <= self.lists <= 1 << 16:
            raise ValueError(f"lists must lie in 1 to 65,536, or be 0 for a number by size, got {self.lists}")
        if self.rounds < 0 or self.seed < 0:
            raise ValueError(f"rounds and seed must be at least 0, got {self.rounds} and {self.seed}")


def code_columns(dim: int, bits: int) -> dict[str, DTypeLike]:
    """What is stored of every token in place of its vector."""
    width = padded_width(dim, bits) * bits // 8
    return {"codes": ("uint8", (width,)), "scales": "uint8", "centroids": "uint16"}


def code(writer: Writer, dim: int, settings: CompressedSettings) -> None:
    """Codes of all tokens in place of their float16, from where a killed build stopped."""
    lengths = writer.array(LENGTHS, "int32")
    state = {"documents": len(lengths), "tokens": int(lengths.sum(dtype=np.int64))}
    if writer.path(CODEC) is None:
        codec = _fit(writer, dim, state["tokens"], settings)
        with writer.replacing(CODEC) as file:
            save_file({"centroids": codec.packed, "units": codec.units, "spread": codec.spread}, file)
        writer.commit(**state)
    codec = read_codec(writer, settings.bits)
    coded = since = len(writer.array("codes.bin", code_columns(dim, settings.bits)["codes"]))
    while coded < state["tokens"]:
        block = _stored(writer, dim, slice(coded, coded + CODED))
        for name, values in codec.encode(block).items():
            writer.append(f"{name}.bin", values)
        coded += len(block)
        if coded - since >= COMMIT:
            writer.commit(**state)
            since = coded
    writer.remove("vectors.bin")


def write_lists(writer: Writer, bits: int) -> None:
    """Of every centroid the numbers of its tokens, ascending, one list after the other."""
    centroids = writer.array("centroids.bin", "uint16")
    sizes = np.zeros(len(read_codec(writer, bits).packed), np.int64)
    for first in range(0, len(centroids), SORTED):
        sizes += np.bincount(centroids[first : first + SORTED], minlength=len(sizes))
    begins = np.concatenate([[0], np.cumsum(sizes)])
    writer.remove(BEGINS)
    writer.append(BEGINS, begins)
    writer.remove(ENTRIES)
    low, width = 0, number_bytes(len(centroids))
    while low < len(sizes):  # as many lists at a time as fit, one at least
        high = max(low + 1, int(np.searchsorted(begins, begins[low] + SORTED, side="right")) - 1)
        found = []
        for first in range(0, len(centroids), SORTED):
            part = np.asarray(centroids[first : first + SORTED])
            found.append(first + np.flatnonzero((part >= low) & (part < high)))
        rows = np.concatenate([np.zeros(0, np.int64), *found])
        rows = rows[np.argsort(centroids[rows], kind="stable")].astype("<i8")
        writer.append(ENTRIES, rows.view(np.uint8).reshape(-1, 8)[:, :width])
        low = high


def read_codec(files: Files, bits: int) -> Codec:
    """The codec that a folder, or what is written to it, has. ValueError where there is none."""
    path = files.path(CODEC)
    if path is None:
        raise ValueError("it is missing")
    with naming(path):
        return Codec(**load_file(path), bits=bits)


def wrong_lists(begins: np.ndarray, entries: np.ndarray, lists: int, tokens: int) -> dict[str, str]:
    """File -> what keeps the two from being `lists` lists, each of ascending tokens; {} where nothing does.

    The compiled search relies on it without looking again.
    """
    if len(begins) != lists + 1 or begins[0] != 0 or (np.diff(begins) < 0).any() or begins[-1] != tokens:
        return {BEGINS: f"not the places of {lists} lists of {tokens} tokens"}
    starts = np.zeros(tokens + 1, bool)  # where an entry may be smaller than the one before it
    starts[begins] = True
    last, wrong = -1, len(entries) != tokens
    for first in range(0, len(entries) * (not wrong), SORTED):
        part = numbers(entries[first : first + SORTED])
        falls = np.diff(part, prepend=last) <= 0
        wrong |= bool((part >= tokens).any() or (falls & ~starts[first : first + len(part)]).any())
        last = int(part[-1])
    return {ENTRIES: f"not {lists} lists of ascending tokens below {tokens}"} if wrong else {}


def number_bytes(count: int) -> int:
    """Bytes that hold the numbers 0 … count − 1."""
    return max(1, ((count - 1).bit_length() + 7) // 8)


def numbers(entries: np.ndarray) -> np.ndarray:
    """Little-endian bytes [n, w] → int64 [n]."""
    full = np.zeros((len(entries), 8), np.uint8)
    full[:, : entries.shape[1]] = entries
    return full.view("<i8").ravel().astype(np.int64)


def _fit(writer: Writer, dim: int, tokens: int, settings: CompressedSettings) -> Codec:
    """The codec for a sample of the tokens."""
    count = settings.lists or centroids_for(tokens)
    random = np.random.default_rng(settings.seed)
    chosen = np.sort(random.choice(tokens, min(tokens, count * PER_CENTROID), replace=False))
    parts = np.array_split(chosen, 1 + len(chosen) // SAMPLED)
    sample = torch.cat([_stored(writer, dim, rows) for rows in parts])
    return Codec.fit(sample, count, settings.bits, seed=settings.seed, rounds=settings.rounds)


def _stored(writer: Writer, dim: int, rows: Rows) -> Tensor:
    """Vectors of a build, float32; what is mapped to read them is let go of at once."""
    vectors = writer.array("vectors.bin", (DTYPES["vectors"], (dim,)))
    return torch.from_numpy(np.array(vectors[rows])).float()
