"""Identifiers, d ↦ (d₁, …, d_M): the token sequences that a decoder generates to name a document.

Three functions and `dsi.semantic` build them: `titles` (GENRE: De Cao et al., ICLR 2021), `atomic` (DSI: Tay
et al., NeurIPS 2022) and `text` (SEAL: Bevilacqua et al., NeurIPS 2022). `problems` counts irregular
documents. New vocabularies follow T5's convention: token 0 pads and starts the decoder, 1 ends a sequence,
and 2 is the first free token.
"""

import hashlib
import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from safetensors.numpy import load_file, save_file
from torch import Tensor, nn

from paradigms.baselines import bm25 as lexical
from paradigms.data import Corpus, Problems
from paradigms.encoder.tokenizing import call_tokenizer
from paradigms.io.checks import check_type, is_blank, naming, parse_json, require
from paradigms.io.files import write_json

START, END, FIRST = 0, 1, 2
TITLE_WORDS = 10  # words of the text that replace a missing title
BATCH = 1000  # texts per call of a tokenizer
SPACE = "▁"  # how SentencePiece writes a space; tokenizers without a decoder leave it


@dataclass(frozen=True)
class Identifiers:
    """Token sequences that name documents, one for each document; documents may share a sequence.

    Document n has the tokens tokens[offsets[n] : offsets[n + 1]]; equal sequences are stored separately.
    Raises ValueError if an identifier is empty, contains `end` or uses a token outside the vocabulary.
    """

    kind: str  # "title", "semantic", "residual", "atomic" or "text"
    documents: list[str]  # document ids, in the corpus's order
    tokens: Int[np.ndarray, " t"]  # all identifiers, concatenated, without `end`; int64
    offsets: Int[np.ndarray, " n1"]  # [n + 1]
    vocabulary: int  # tokens are in [0, vocabulary)
    end: int | None  # closes an identifier; None if every substring names the document ("text")
    problems: Problems
    starts: Int[np.ndarray, " s"]  # positions in `tokens` at which spans may begin ("text"), ascending

    def __post_init__(self) -> None:
        count = len(self)
        size = len(self.tokens)
        if (np.diff(self.starts, prepend=-1, append=size) <= 0).any():
            raise ValueError(f"starts must ascend strictly within [0, {size})")
        if len(set(self.documents)) != count:
            raise ValueError("document ids must differ from each other")
        lengths = np.diff(self.offsets)
        complete = len(self.offsets) == count + 1 and self.offsets[0] == 0 and self.offsets[-1] == size
        if not complete or (lengths < 0).any():
            raise ValueError(f"{count} identifiers need {count + 1} ascending offsets, 0 to {size}")
        wrong = (self.tokens < 0) | (self.tokens >= self.vocabulary)
        if self.end is not None:
            wrong |= self.tokens == self.end
            if (lengths == 0).any():
                raise ValueError(f"document {self.documents[lengths.argmin()]!r} has an empty identifier")
        if wrong.any():
            at = int(wrong.argmax())
            document = self.documents[np.searchsorted(self.offsets, at, "right") - 1]
            raise ValueError(
                f"an identifier of document {document!r} holds the token {self.tokens[at]}; they lie in "
                f"[0, {self.vocabulary}), and {self.end} only ends them"
            )

    def __len__(self) -> int:
        return len(self.documents)

    def __getitem__(self, n: int) -> Int[np.ndarray, " m"]:
        """The tokens of document n's identifier, without `end`."""
        return self.tokens[self.offsets[n] : self.offsets[n + 1]]

    @property
    def longest(self) -> int:
        """Length of the longest identifier, including `end`."""
        return int(np.diff(self.offsets).max()) + (self.end is not None)

    @cached_property
    def positions(self) -> dict[str, int]:
        """Map each document id to its position."""
        return {id: n for n, id in enumerate(self.documents)}

    def windows(self, n: int, span: int) -> list[slice]:
        """Slices of `tokens` within identifier n, each `span` long and beginning at one of `starts`.

        Windows may overlap or leave gaps, depending on `starts`. An identifier of at most `span` tokens has
        one window.
        """
        first, last = self.offsets[n : n + 2].tolist()
        at = slice(*np.searchsorted(self.starts, [first, last - span + 1]))
        possible = self.starts[at].tolist() if last - first > span else []
        begins: list[int] = possible[:1]
        while begins and begins[-1] < possible[-1]:
            within = bisect_right(possible, begins[-1] + span) - 1
            begins.append(possible[max(within, bisect_right(possible, begins[-1]))])
        return [slice(at, at + span) for at in begins] or [slice(first, last)] * (first < last)

    @property
    def targets(self) -> tuple[Int[np.ndarray, " t"], Int[np.ndarray, " n1"]]:
        """All target sequences as CSR: `tokens` with `end` after each identifier, and offsets."""
        if self.end is None:
            return self.tokens, self.offsets
        return np.insert(self.tokens, self.offsets[1:], self.end), self.offsets + np.arange(len(self) + 1)

    @property
    def digest(self) -> str:
        """SHA-256 of all fields except `problems`."""
        digest = hashlib.sha256(json.dumps([self.kind, self.documents, self.vocabulary, self.end]).encode())
        for array in (self.tokens, self.offsets, self.starts):
            digest.update(array.astype("<i8").tobytes())
        return digest.hexdigest()

    def joined(self, others: "Identifiers") -> "Identifiers":
        """Return these identifiers followed by `others`; `problems` counts documents of `others` alone.

        Raises ValueError if the kinds differ.
        """
        if (self.kind, self.vocabulary, self.end) != (others.kind, others.vocabulary, others.end):
            raise ValueError(f"identifiers of two kinds cannot be joined: {self.kind} and {others.kind}")
        size = len(self.tokens)
        return replace(
            others,
            documents=self.documents + others.documents,
            tokens=np.concatenate([self.tokens, others.tokens]),
            offsets=np.concatenate([self.offsets, others.offsets[1:] + size]),
            starts=np.concatenate([self.starts, others.starts + size]),
        )

    def save(self, folder: Path) -> None:
        """Write identifiers.safetensors and identifiers.json into an existing folder."""
        arrays = {name: getattr(self, name) for name in ("tokens", "offsets", "starts")}
        save_file(arrays, folder / "identifiers.safetensors")
        plain = {name: getattr(self, name) for name in ("kind", "documents", "vocabulary", "end")}
        write_json(folder / "identifiers.json", {**plain, "problems": asdict(self.problems)})

    @classmethod
    def load(cls, folder: Path) -> "Identifiers":
        """Load identifiers from a folder written by `save`.

        Raises FileNotFoundError or ValueError, naming the file, if a file is missing or damaged.
        """
        plain_file = folder / "identifiers.json"
        arrays_file = folder / "identifiers.safetensors"
        for file in (plain_file, arrays_file):
            require(file, folder)
        with naming(arrays_file):
            arrays: dict[str, Any] = load_file(arrays_file)
        with naming(plain_file):
            plain = parse_json(plain_file.read_text(encoding="utf-8"), str(plain_file))
            plain["problems"] = Problems(**plain["problems"])
            for name, kind in {"kind": str, "vocabulary": int, "end": int | None}.items():
                check_type(name, plain[name], kind)
        with naming(folder):  # either file may be the wrong one
            return cls(**plain, **arrays)


class Tokenized(NamedTuple):
    """A text and its tokens without special tokens."""

    text: str
    ids: list[int]
    ends: list[int]  # character offset at which each token ends
    special: bool  # whether the text spells special tokens, which are dropped


def titles(corpus: Corpus, tokenizer: Any, length: int) -> Identifiers:
    """d ↦ the tokens of d's title, at most `length` including the end token (GENRE).

    If no known token of a title shows a character, the document is named by the first words of its text, or
    else by its id. Long titles are truncated; documents with equal titles share their identifier. tokenizer:
    a fast Hugging Face tokenizer. Raises ValueError if the tokenizer has no end token.
    """
    if tokenizer.eos_token is None:
        raise ValueError("titles need a tokenizer with an eos_token, such as T5's; this tokenizer has none")
    if length < 2:
        raise ValueError(f"length must be at least 2 (one token and the end token), got {length}")
    problems = Problems()
    rows: list[list[int]] = [[] for _ in corpus.ids]
    sources: dict[str, Callable[[int], str]] = {
        "title": lambda i: " ".join(corpus.titles[i].split()),
        "first words": lambda i: " ".join(corpus[i].split()[:TITLE_WORDS]),
        "id": lambda i: corpus.ids[i],
    }
    unnamed = list(range(len(corpus)))
    for source, name in sources.items():
        for i, tokenized in zip(unnamed, tokenize(tokenizer, map(name, unnamed)), strict=True):
            row = tokenized.ids[: length - 1]
            if not row:
                continue
            visible = tokenizer.decode([token for token in row if token != tokenizer.unk_token_id])
            if source != "id" and is_blank(visible.replace(SPACE, " ")):
                problems.add(f"{source} without a visible, known token (not used)", corpus.ids[i])
                continue
            oddities = {
                f"document without a usable title (named by its {source})": source != "title",
                "title that spells special tokens (left out)": tokenized.special,
                f"title of more than {length} tokens with the end (cut)": len(tokenized.ids) > length - 1,
                "title with a token unknown to the tokenizer (kept)": tokenizer.unk_token_id in row,
            }
            for kind in filter(oddities.get, oddities):
                problems.add(kind, corpus.ids[i])
            rows[i] = row
        unnamed = [i for i in unnamed if not rows[i]]
    if unnamed:
        raise ValueError(
            f"{len(unnamed)} documents have no token in title, text or id, for example "
            f"{corpus.ids[unnamed[0]]!r}: they cannot be named"
        )
    end = int(tokenizer.eos_token_id)
    return make("title", corpus.ids, rows, len(tokenizer), end, problems)


def atomic(documents: Sequence[str]) -> Identifiers:
    """d ↦ one token, d's position + 2 (DSI's unstructured atomic identifiers)."""
    rows = [[FIRST + i] for i in range(len(documents))]
    return make("atomic", documents, rows, FIRST + len(rows), END, Problems())


def text(corpus: Corpus, tokenizer: Any, length: int | None = None) -> Identifiers:
    """d ↦ the first `length` tokens of d's text; every substring names d (SEAL).

    tokenizer: a fast Hugging Face tokenizer. A document without tokens cannot be retrieved.
    """
    problems = Problems()
    rows = []
    starts = []
    size = 0
    for id, tokenized in zip(corpus.ids, tokenize(tokenizer, corpus, length), strict=True):
        rows.append(tokenized.ids)
        words = Words(tokenized)
        starts += [size + words.bounds[n] for n in words.starts()]
        size += len(tokenized.ids)
        if not tokenized.ids:
            problems.add("document without tokens (has no name)", id)
        if tokenized.special:
            problems.add("document that spells special tokens (left out)", id)
    return make("text", corpus.ids, rows, len(tokenizer), None, problems, starts)


def make(
    kind: str,
    documents: Sequence[str],
    rows: Sequence[Sequence[int]],
    vocabulary: int,
    end: int | None,
    problems: Problems,
    starts: Sequence[int] = (),
) -> Identifiers:
    """Build Identifiers from one token sequence per document; count shared ones in `problems`."""
    if end is not None:
        sharing: dict[tuple[int, ...], list[str]] = {}
        for row, id in zip(rows, documents, strict=True):
            sharing.setdefault(tuple(row), []).append(id)
        for ids in sharing.values():
            if len(ids) > 1:
                more = f" and {len(ids) - 3} more" if len(ids) > 3 else ""
                problems.add("identifier of several documents (names them all)", ", ".join(ids[:3]) + more)
    offsets = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    tokens = np.fromiter((token for row in rows for token in row), np.int64, int(offsets[-1]))
    begins = np.array(starts, dtype=np.int64)
    return Identifiers(kind, list(documents), tokens, offsets, vocabulary, end, problems, begins)


def tokenize(tokenizer: Any, texts: Iterable[str], length: int | None = None) -> Iterator[Tokenized]:
    """Yield each text's first `length` tokens, without padding and end tokens that the text spells out."""
    special = {tokenizer.pad_token_id, tokenizer.eos_token_id} - {None}
    stream = iter(texts)
    while batch := list(islice(stream, BATCH)):
        encoded = call_tokenizer(
            tokenizer,
            batch,
            add_special_tokens=False,
            split_special_tokens=True,
            return_offsets_mapping=True,
            return_attention_mask=False,
            return_token_type_ids=False,
        )
        rows = zip(batch, encoded["input_ids"], encoded["offset_mapping"], strict=True)
        for text, ids, places in rows:
            plain = [n for n, id in enumerate(ids) if id not in special]
            first = plain[:length]
            ends = [places[n][1] for n in first]
            yield Tokenized(text, [ids[n] for n in first], ends, len(plain) < len(ids))


WORD = re.compile(r"\S+")


class Words:
    """A text's words, except words in which no token ends, and each word's first token."""

    def __init__(self, tokenized: Tokenized) -> None:
        self.text, tokens, ends, _ = tokenized
        places = [match.span() for match in WORD.finditer(self.text)]
        closed = np.array([end for _, end in places[:-1]])
        bounds = [0, *np.searchsorted(ends, closed, side="right").tolist(), len(tokens)]
        filled = [n for n in range(len(places)) if bounds[n] < bounds[n + 1]]
        self.places = [places[n] for n in filled]
        self.words = [self.text[start:end] for start, end in self.places]
        self.bounds = [*(bounds[n] for n in filled), len(tokens)]

    def starts(self, words: int = 1) -> list[int]:
        """Positions where a span of `words` words may start; a stop word counts only if no other word can."""
        every = range(max(0, len(self.words) - words) + 1) if self.words else range(0)
        return [n for n in every if _content(self.words[n])] or list(every)

    def source(self, start: int, words: int) -> str:
        return self.text[self.places[start][0] : self.places[min(start + words, len(self.words)) - 1][1]]

    def span(self, start: int, words: int) -> tuple[int, int]:
        """The first token, and the one after the last, of `words` words from word `start` on."""
        return self.bounds[start], self.bounds[min(start + words, len(self.words))]


@lru_cache(1 << 16)
def _content(word: str) -> bool:
    return bool(lexical.tokenize(word))


@dataclass(frozen=True)
class Targets:
    """n token sequences for each of b queries, padded."""

    ids: Int[Tensor, "b n m"]
    mask: Bool[Tensor, "b n m"]  # False = padding
    start: int = START  # the decoder's input before the first token

    def to(self, device: torch.device | str) -> "Targets":
        return Targets(self.ids.to(device), self.mask.to(device), self.start)

    @property
    def inputs(self) -> Int[Tensor, "b n m"]:
        """The decoder's inputs: the ids shifted by one position."""
        return nn.functional.pad(self.ids[..., :-1], (1, 0), value=self.start)

    @classmethod
    def pad(cls, rows: Sequence[Sequence[Sequence[int]]], start: int = START) -> "Targets":
        """Pad token sequences rows[b][n], with equally many sequences per query. See `Generative.targets`."""
        length = max(len(tokens) for sequences in rows for tokens in sequences)
        ids = [[[*t, *[START] * (length - len(t))] for t in sequences] for sequences in rows]
        mask = [[[place < len(t) for place in range(length)] for t in sequences] for sequences in rows]
        return cls(torch.tensor(ids), torch.tensor(mask), start)
