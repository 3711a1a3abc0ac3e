"""Tokenise texts with the `tokenizers` library, because transformers' wrapper is slow for short queries.

`token_rows` calls the tokenizer that transformers wraps; `LightTokenizer` reads a BERT's tokenizer.json
without transformers. `count_cut` and `read_part` tell what of documents `document_length` cuts off.
"""

import json
import os
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from tokenizers import Tokenizer, decoders, models
from torch import Tensor

from paradigms.encoder.settings import InputFormat
from paradigms.io.checks import json_or_empty

BERT = ("BertTokenizer", "BertTokenizerFast")
CHARACTERS = 8  # characters kept per needed token
LONG = 4  # texts this many times longer than needed are cut
COUNTED = 1_000  # maximum number of documents counted, evenly spaced
BATCH = 1_000  # documents tokenised at once
COUNTED_CHARACTERS = 1_000_000  # per document; longer documents are extrapolated
BETWEEN = re.compile(r"(?<=[^\W_]) (?=[^\W_])")  # a space between two words
BYTES = {f"<0x{byte:02X}>" for byte in range(256)}  # SentencePiece's byte pieces
OPTIONS = ("extra_special_tokens", "additional_special_tokens", "split_special_tokens")
SPECIAL = {name: f"[{name.upper()}]" for name in ("unk", "sep", "pad", "cls", "mask")}
TOKENIZING = threading.RLock()  # held while a tokenizer's truncation and padding are set and used
# A fork waits until no other thread tokenises, as it would copy the lock.
os.register_at_fork(
    before=TOKENIZING.acquire, after_in_parent=TOKENIZING.release, after_in_child=TOKENIZING.release
)


def token_rows(
    tokenizer: Any, texts: Sequence[str], length: int, *, full: bool = False
) -> tuple[Int[Tensor, "x l"], Int[Tensor, "x l"], Int[Tensor, "x l"]]:
    """Tokenise texts; return ids, an attention mask and a mask of special tokens (including padding).

    Texts are cut to `length` tokens and padded to the longest text, or to `length` if `full`, as by
    transformers' tokenizer.
    """
    with TOKENIZING:
        if not tokenizer.is_fast:
            rows = call_tokenizer(
                tokenizer,
                list(texts),
                padding="max_length" if full else True,
                truncation=True,
                max_length=length,
                return_special_tokens_mask=True,
                return_tensors="pt",
            )
            return rows["input_ids"], rows["attention_mask"], rows["special_tokens_mask"]
        backend = tokenizer.backend_tokenizer
        pad = {"pad_id": tokenizer.pad_token_id, "pad_token": tokenizer.pad_token}
        backend.enable_truncation(length, direction=tokenizer.truncation_side)
        backend.enable_padding(length=length if full else None, **pad)
        backend.encode_special_tokens = bool(getattr(tokenizer, "split_special_tokens", False))
        encodings = backend.encode_batch_fast(list(texts))  # omits the tokens' positions in the text
        for row in encodings:
            if not row.ids:  # all texts are empty, and the tokenizer adds no special tokens
                row.pad(1, **pad)
    names = ("ids", "attention_mask", "special_tokens_mask")
    ids, attention, special = (torch.tensor([getattr(row, name) for row in encodings]) for name in names)
    return ids, attention, special


def call_tokenizer(tokenizer: Any, *texts: str | Sequence[str], **options: Any) -> Any:
    """Return tokenizer(*texts, **options), without a warning about long texts.

    A call sets the tokenizer's truncation and padding, which another thread must not use meanwhile.
    """
    with TOKENIZING:
        return tokenizer(*texts, verbose=False, **options)


def beginnings(tokenizer: Any, texts: Sequence[str], length: int) -> list[str]:
    """Cut long texts so that their first `length` tokens stay the same.

    A text is cut before a space between two letters or digits. If the tokenizer first splits texts at spaces,
    the tokens before the cut do not depend on the text after it. A text without such a space is not cut. With
    other tokenizers, no text is cut.
    """
    cut = list(texts)
    characters = CHARACTERS * length
    long = [n for n, text in enumerate(texts) if len(text) > LONG * characters]
    if not long or not _divides_words(tokenizer):
        return cut
    while long:
        for n in long:
            place = BETWEEN.search(texts[n], characters)
            cut[n] = texts[n][: place.start()] if place else texts[n]
        rows = call_tokenizer(tokenizer, [cut[n] for n in long], add_special_tokens=False)["input_ids"]
        short = (n for n, ids in zip(long, rows, strict=True) if len(ids) < length)
        long = [n for n in short if len(cut[n]) < len(texts[n])]
        characters *= LONG
    return cut


def _divides_words(tokenizer: Any) -> bool:
    """Return whether a tokenizer truncates on the right and never merges two words into one token."""
    if not tokenizer.is_fast or tokenizer.truncation_side != "right":
        return False
    backend = tokenizer.backend_tokenizer
    if backend.pre_tokenizer is None:
        return False
    if any(BETWEEN.search(token.content) for token in tokenizer.added_tokens_decoder.values()):
        return False
    words = "ab cd"
    words = words if backend.normalizer is None else backend.normalizer.normalize_str(words)
    pieces = [piece.lower() for piece, _ in backend.pre_tokenizer.pre_tokenize_str(words)]
    return not any("b" in piece and "c" in piece for piece in pieces)


def spell_in_bytes(tokenizer: Any) -> None:
    """Make a tokenizer encode characters outside its SentencePiece vocabulary as UTF-8 byte pieces (mT5).

    SentencePiece does this; transformers maps all such characters to the same unknown token.
    """
    if not tokenizer.is_fast or not isinstance(tokenizer.backend_tokenizer.model, models.Unigram):
        return
    state = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    pieces = [(piece, score) for piece, score in state["vocab"]]
    if state.get("byte_fallback") or not {piece for piece, _ in pieces} >= BYTES:
        return
    backend = tokenizer.backend_tokenizer
    backend.model = models.Unigram(pieces, unk_id=state["unk_id"], byte_fallback=True)
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), backend.decoder])


def tokenizer_state(tokenizer: Any) -> str:
    """Return what determines a tokenizer's output, as JSON, without padding and truncation."""
    state: dict[str, Any] = {
        "truncation_side": getattr(tokenizer, "truncation_side", None),
        "split": bool(getattr(tokenizer, "split_special_tokens", False)),
    }
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        parts = json.loads(backend.to_str())
        state |= {name: part for name, part in parts.items() if name not in ("truncation", "padding")}
    elif hasattr(tokenizer, "get_vocab"):
        state |= {"class": type(tokenizer).__name__, "vocabulary": tokenizer.get_vocab()}
    return json.dumps(state, sort_keys=True)


class LightTokenizer:
    """The part of transformers' BertTokenizer that encoders use, read from tokenizer.json."""

    is_fast = True
    truncation_side = "right"
    padding_side = "right"
    pad_token = "[PAD]"
    mask_token = "[MASK]"
    bos_token_id = None

    def __init__(self, backend: Tokenizer) -> None:
        self.backend_tokenizer = backend
        self.pad_token_id = backend.token_to_id("[PAD]")
        self.cls_token_id = backend.token_to_id("[CLS]")
        self.mask_token_id = backend.token_to_id("[MASK]")
        self.unk_token_id = backend.token_to_id("[UNK]")

    @classmethod
    def read(cls, folder: Path) -> "LightTokenizer | None":
        """Read the tokenizer in a folder; return None unless transformers would build the same tokenizer.

        transformers reads only the vocabulary in tokenizer.json, and the options in tokenizer_config.json.
        """
        file = folder / "tokenizer.json"
        config = json_or_empty(folder / "tokenizer_config.json")
        if config.get("tokenizer_class") not in BERT or not file.is_file():
            return None
        if any(config.get(f"{name}_token", token) != token for name, token in SPECIAL.items()):
            return None
        state = json_or_empty(file)
        normalizer = {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": config.get("tokenize_chinese_chars", True),
            "strip_accents": config.get("strip_accents"),
            "lowercase": config.get("do_lower_case", True),
        }
        model = {name: value for name, value in state.get("model", {}).items() if name != "vocab"}
        usual = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##"}
        single = [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
        single.append({"SpecialToken": {"id": "[SEP]", "type_id": 0}})
        listed = [*state.get("added_tokens", []), *config.get("added_tokens_decoder", {}).values()]
        same = (
            state.get("normalizer") == normalizer
            and state.get("pre_tokenizer") == {"type": "BertPreTokenizer"}
            and model == usual | {"max_input_chars_per_word": 100}
            and (state.get("post_processor") or {}).get("single") == single
            and {token.get("content") for token in listed} == set(SPECIAL.values())
            and config.get("truncation_side", "right") == "right"
            and not any(map(config.get, OPTIONS))
        )
        return cls(Tokenizer.from_file(str(file))) if same else None

    def __len__(self) -> int:
        return int(self.backend_tokenizer.get_vocab_size())

    def __call__(self, texts: Any, *, add_special_tokens: bool = True, **_: Any) -> dict[str, Any]:
        """Tokenise one or more texts, without truncation or padding."""
        backend = self.backend_tokenizer
        backend.no_truncation()
        backend.no_padding()
        if isinstance(texts, str):
            return {"input_ids": backend.encode(texts, add_special_tokens=add_special_tokens).ids}
        rows = backend.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        return {"input_ids": [row.ids for row in rows]}

    @property
    def added_tokens_decoder(self) -> dict[int, Any]:
        return dict(self.backend_tokenizer.get_added_tokens_decoder())

    def get_vocab(self) -> dict[str, int]:
        return dict(self.backend_tokenizer.get_vocab())

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        return [str(self.backend_tokenizer.id_to_token(id)) for id in ids]

    def save_pretrained(self, *_: Any, **__: Any) -> None:
        raise ValueError("this model was opened to search: load it without for_search to save it")


class Cut(NamedTuple):
    cut: int  # documents that are cut
    share: float  # share of tokens cut off
    summary: str  # both numbers as a sentence


def count_cut(encoder: Any, texts: Sequence[str]) -> Cut:
    """Tokenise at most `COUNTED` of the texts and compare their lengths with `document_length`."""
    tokenizer, layout, room = _room(encoder)
    counted = texts[:: -(-len(texts) // COUNTED) or 1]
    full = [layout.prompt + text for text in counted]
    starts = [text[:COUNTED_CHARACTERS] for text in full]
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


def read_part(encoder: Any, texts: Sequence[str]) -> list[str]:
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


def _room(encoder: Any) -> tuple[Any, InputFormat, int]:
    """Return the tokenizer and layout of documents, and how many tokens the layout leaves for text."""
    tower = encoder.of("document")
    layout = tower._layouts["document"]
    around = len(call_tokenizer(tower.tokenizer, "")["input_ids"])
    return tower.tokenizer, layout, layout.length - len(layout.marker) - around
