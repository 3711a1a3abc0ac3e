"""Readers for folders of sentence-transformers (one vector, many, or sparse) and PyLate.

A folder contains a chain of modules. Supported modules are Transformer, Pooling, Dense, Normalize, Dropout,
MultiVectorMask and SpladePooling. PyLate's prefixes become marker settings. Up to version 3, PyLate wrote
only Transformer and Dense, and normalised vectors without a Normalize module.
"""

import string
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paradigms.encoder.backbone import load_tokenizer, positions
from paradigms.encoder.published import MODEL, MODULES, modules, pooling, prompts
from paradigms.encoder.settings import LONGEST
from paradigms.io.checks import json_or_empty, read_json
from paradigms.model import Paradigm
from paradigms.saving.heads import POOLED, Head, dense, encoder_with, late_interaction, one_vector
from paradigms.saving.plain import LENGTH
from paradigms.splade import splade

MULTI = ("ColBERT", "MultiVectorEncoder")  # model_type of token vectors: PyLate's, and its own
COMMUTES = ("cls", "mean", "last")  # pooling that commutes with a linear map
AUGMENTED = 32  # tokens per query, if a PyLate folder does not set it


@dataclass
class Chain:
    """Settings collected from a folder's modules."""

    backbone: Path
    pooling: str = ""  # "" = token vectors
    head: Head | None = None
    normalize: bool = False
    mask: dict[str, Any] = field(default_factory=dict)  # of MultiVectorMask
    sparse: bool = False  # SpladePooling of the logits


def is_sentence_transformers(folder: Path) -> bool:
    return (folder / MODULES).is_file()


def read_sentence_transformers(folder: Path) -> Paradigm:
    """Read a folder. Raises ValueError if no paradigm supports a module or a module's setting."""
    config = json_or_empty(folder / MODEL)
    parts = chain(folder)
    # PyLate 1.6 over version 5.3 writes no model_type.
    pylate = config.get("model_type", MULTI[0] if "do_query_expansion" in config else "") == MULTI[0]
    multi = pylate or config.get("model_type") == MULTI[1]
    settings = json_or_empty(parts.backbone / "sentence_bert_config.json")
    lowers(settings, parts.backbone)
    if parts.sparse:
        return read_sparse(parts, config, settings)
    if multi == bool(parts.pooling):
        raise ValueError(f"model_type is {config.get('model_type')}, and pooling {parts.pooling or 'none'}")
    shared = prompts(config) | {"normalize": parts.normalize or pylate}
    if not multi:
        similarity = config.get("similarity_fn_name") or "cosine"
        if similarity not in ("cosine", "dot"):
            raise ValueError(f"similarity is {similarity}")
        shared |= {"normalize": parts.normalize or similarity == "cosine", "pooling": parts.pooling}
        lengths = both_lengths(settings, parts.backbone)
        return one_vector(encoder_with(parts.backbone, parts.head, **shared, **POOLED, **lengths))
    similarity = str(config.get("similarity_fn_name") or "maxsim").lower()
    if similarity not in ("maxsim", "meanmaxsim"):
        raise ValueError(f"similarity is {similarity}")
    shared |= lengths_of(settings | config, parts.backbone, pylate)
    shared |= {"skip_tokens": skipped(config if pylate else parts.mask, parts.backbone, pylate)}
    encoder = encoder_with(parts.backbone, parts.head, **shared)
    return late_interaction(encoder, mean=similarity == "meanmaxsim")


def read_sparse(parts: Chain, config: dict[str, Any], settings: dict[str, Any]) -> Paradigm:
    """Read a SPLADE model, an encoder followed by SpladePooling alone.

    Raises ValueError if other modules follow or if the similarity is not the inner product.
    """
    similarity = config.get("similarity_fn_name") or "dot"
    if similarity != "dot" or parts.head is not None or parts.normalize or parts.pooling:
        raise ValueError(f"SpladePooling with the similarity {similarity}, or with other modules after it")
    options = prompts(config) | both_lengths(settings, parts.backbone)
    return splade(parts.backbone, most_terms=config.get("max_active_dims"), **options)


def chain(folder: Path) -> Chain:
    steps = modules(folder)
    if not steps or steps[0][0] not in ("Transformer", "MLMTransformer"):
        raise ValueError(f"the first module is {steps[0][0] if steps else 'missing'}, not Transformer")
    parts = Chain(steps[0][1])
    for kind, place in steps[1:]:
        if kind == "Pooling":
            parts.pooling = pooling(place)
            head = parts.head
            if head is not None and (head.activation != "identity" or parts.pooling not in COMMUTES):
                raise ValueError(f"{parts.pooling} pooling of projected tokens")
        elif kind == "Dense":
            if parts.normalize:
                raise ValueError("a Dense after Normalize")
            parts.head = dense(place) if parts.head is None else parts.head.then(dense(place))
        elif kind == "Normalize":
            parts.normalize = True
        elif kind == "MultiVectorMask":
            parts.mask = read_json(place / "config.json")
        elif kind == "SpladePooling":
            config = read_json(place / "config.json")
            ways = [config.get("pooling_strategy", "max"), config.get("activation_function", "relu")]
            if ways != ["max", "relu"]:
                raise ValueError(f"SpladePooling by {' and '.join(ways)}, not by max and relu")
            parts.sparse = True
        elif kind != "Dropout":
            raise ValueError(f"{kind} is a module that no paradigm supports")
    return parts


def text_length(settings: dict[str, Any], backbone: Path) -> int:
    """Return the maximum number of tokens in a text: the smallest limit of module, tokenizer and encoder."""
    limit = positions(backbone) or LENGTH
    of_tokenizer = json_or_empty(backbone / "tokenizer_config.json").get("model_max_length")
    limits = [settings.get("max_seq_length"), of_tokenizer]
    return min([limit, LONGEST, *(int(length) for length in limits if length and length < 1e6)])


def both_lengths(settings: dict[str, Any], backbone: Path) -> dict[str, Any]:
    whole = text_length(settings, backbone)
    return {name: min(settings.get(name) or whole, whole) for name in ("query_length", "document_length")}


def lengths_of(settings: dict[str, Any], backbone: Path, pylate: bool) -> dict[str, Any]:
    whole = text_length({}, backbone)
    length = settings.get("query_length") or (AUGMENTED if pylate else whole)
    if pylate:
        augments = settings.get("do_query_expansion", True)
        attends = bool(settings.get("attend_to_expansion_tokens"))
    else:
        expansion = settings.get("query_expansion")
        augments, attends = expansion is not None, bool(expansion and expansion.get("attend"))
        if expansion:
            length, token = expansion["length"], expansion.get("token")
            if expansion.get("strategy") != "fixed":
                raise ValueError(f"query expansion by the strategy {expansion.get('strategy')}")
            if token is not None and token != load_tokenizer(backbone).mask_token:
                raise ValueError(f"query expansion with the token {token}")
    return {
        "query_length": min(length, whole),
        "document_length": min(settings.get("document_length") or whole, whole),
        "query_augmentation": augments,
        "attend_augmentation": augments and attends,
    }


def skipped(mask: dict[str, Any], backbone: Path, pylate: bool) -> str:
    """Return the document skip list, as `EncoderSettings.skip_tokens`.

    A word outside the vocabulary is the unknown token for PyLate, which skips punctuation by default; it is
    left out by sentence-transformers. Raises ValueError if the list is not supported.
    """
    words = mask.get("skiplist_words")
    words = list(string.punctuation if pylate else "") if words is None else words
    if words and mask.get("skiplist_tasks", ["document"]) != ["document"]:
        raise ValueError(f"the skip list is of {' and '.join(mask['skiplist_tasks'])}")
    if mask.get("keep_only_token_ids"):
        raise ValueError("only some token ids are kept")
    if not words:
        return ""
    tokenizer = load_tokenizer(backbone, read_json(backbone / "config.json").get("vocab_size"))
    vocabulary = tokenizer.get_vocab()
    unknown = tokenizer.unk_token_id if pylate else None
    ids = {vocabulary.get(word, unknown) for word in words} - {None}
    tokens = tokenizer.convert_ids_to_tokens(sorted(ids))
    spaced = next((token for token in tokens if token.split() != [token]), None)
    if spaced is not None:
        raise ValueError(f"the skip list has {spaced!r}, a token with a space")
    return " ".join(tokens)


def lowers(settings: dict[str, Any], backbone: Path) -> None:
    """Raise ValueError if the module lower-cases texts and the tokenizer distinguishes case."""
    if settings.get("do_lower_case"):
        tokenizer = load_tokenizer(backbone)
        if tokenizer("Ab")["input_ids"] != tokenizer("ab")["input_ids"]:
            raise ValueError("texts are put in lower case before a case-sensitive tokenizer")
