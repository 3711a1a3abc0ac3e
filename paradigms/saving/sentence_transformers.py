"""Folders of sentence-transformers (one vector, many, or sparse) and of PyLate: a chain of modules.

Read are Transformer, Pooling, Dense, Normalize, Dropout, MultiVectorMask and SpladePooling. Prompts become
markers, PyLate's prefixes too. Up to version 3 PyLate wrote Transformer and Dense alone, and normalised.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paradigms.encoder.backbone import load_tokenizer
from paradigms.encoder.published import MODEL, MODULES, modules, pooling, prompts
from paradigms.encoder.text import bare
from paradigms.io.typed import json_or_empty, read_json
from paradigms.model import Paradigm
from paradigms.saving.heads import POOLED, Head, dense, encoder_with, late_interaction, one_vector
from paradigms.saving.plain import longest
from paradigms.splade import splade

MULTI = ("ColBERT", "MultiVectorEncoder")  # model_type of token vectors: PyLate's, and its own
COMMUTES = ("cls", "mean", "last")  # pooling with a linear map
AUGMENTED = 32  # tokens of a query, where a PyLate folder does not say


@dataclass
class Chain:
    """The settings that the modules of a folder amount to."""

    backbone: Path
    pooling: str = ""  # "" = token vectors
    head: Head | None = None
    normalize: bool = False
    mask: dict[str, Any] = field(default_factory=dict)  # of MultiVectorMask
    sparse: bool = False  # SpladePooling of the logits


def is_sentence_transformers(folder: Path) -> bool:
    return (folder / MODULES).is_file()


def read_sentence_transformers(folder: Path) -> Paradigm:
    """Raise ValueError for a module, or a setting of one, that no paradigm here has."""
    config = json_or_empty(folder / MODEL)
    found = chain(folder)
    multi = config.get("model_type") in MULTI
    pylate = multi and config["model_type"] == MULTI[0]
    settings = json_or_empty(found.backbone / "sentence_bert_config.json")
    lowers(settings, found.backbone)
    if found.sparse:
        return read_sparse(found, config, settings)
    if multi == bool(found.pooling):
        raise ValueError(f"model_type is {config.get('model_type')}, and pooling {found.pooling or 'none'}")
    shared = prompts(config) | {"normalize": found.normalize or pylate}
    if not multi:
        similarity = config.get("similarity_fn_name") or "cosine"
        if similarity not in ("cosine", "dot"):
            raise ValueError(f"similarity is {similarity}")
        shared |= {"normalize": found.normalize or similarity == "cosine", "pooling": found.pooling}
        lengths = both_lengths(settings, found.backbone)
        return one_vector(encoder_with(found.backbone, found.head, **shared, **POOLED, **lengths))
    similarity = str(config.get("similarity_fn_name") or "maxsim").lower()
    if similarity not in ("maxsim", "meanmaxsim"):
        raise ValueError(f"similarity is {similarity}")
    shared |= lengths_of(settings | config, found.backbone, pylate)
    mask = config if pylate else found.mask
    encoder = encoder_with(found.backbone, found.head, **shared, **skipped(mask))
    if not encoder.settings.skip_exact and set(mask.get("skiplist_words") or []) != set(encoder.skipped):
        raise ValueError("the skip list has only some of the tokens that are one character")
    return late_interaction(encoder, mean=similarity == "meanmaxsim")


def read_sparse(found: Chain, config: dict[str, Any], settings: dict[str, Any]) -> Paradigm:
    """SPLADE. Raises ValueError for another similarity than the inner product, and for modules beside it."""
    similarity = config.get("similarity_fn_name") or "dot"
    if similarity != "dot" or found.head is not None or found.normalize or found.pooling:
        raise ValueError(f"SpladePooling with the similarity {similarity}, or with other modules after it")
    given = prompts(config) | both_lengths(settings, found.backbone)
    return splade(found.backbone, most_terms=config.get("max_active_dims"), **given)


def chain(folder: Path) -> Chain:
    steps = modules(folder)
    if not steps or steps[0][0] not in ("Transformer", "MLMTransformer"):
        raise ValueError(f"the first module is {steps[0][0] if steps else 'missing'}, not Transformer")
    found = Chain(steps[0][1])
    for kind, place in steps[1:]:
        if kind == "Pooling":
            found.pooling = pooling(place)
            head = found.head
            if head is not None and (head.activation != "identity" or found.pooling not in COMMUTES):
                raise ValueError(f"{found.pooling} pooling of projected tokens")
        elif kind == "Dense":
            if found.normalize:
                raise ValueError("a Dense after Normalize")
            found.head = dense(place) if found.head is None else found.head.then(dense(place))
        elif kind == "Normalize":
            found.normalize = True
        elif kind == "MultiVectorMask":
            found.mask = read_json(place / "config.json")
        elif kind == "SpladePooling":
            config = read_json(place / "config.json")
            ways = [config.get("pooling_strategy", "max"), config.get("activation_function", "relu")]
            if ways != ["max", "relu"]:
                raise ValueError(f"SpladePooling by {' and '.join(ways)}, not by max and relu")
            found.sparse = True
        elif kind != "Dropout":
            raise ValueError(f"{kind} is a module that no paradigm here has")
    return found


def text_length(settings: dict[str, Any], backbone: Path) -> int:
    """Tokens of a text at most: of the module, of the tokenizer, or of the encoder."""
    limit = longest(backbone)
    of_tokenizer = json_or_empty(backbone / "tokenizer_config.json").get("model_max_length")
    given = [settings.get("max_seq_length"), of_tokenizer]
    return min([limit, *(int(length) for length in given if length and length < 1e6)])


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


def skipped(mask: dict[str, Any]) -> dict[str, Any]:
    """The skip list, of documents."""
    words = mask.get("skiplist_words") or []
    characters = {word: word if len(word) == 1 else bare(word) for word in words}
    longer = next((word for word, character in characters.items() if len(character) != 1), None)
    if longer is not None:
        raise ValueError(f"the skip list has {longer!r}")
    if words and mask.get("skiplist_tasks", ["document"]) != ["document"]:
        raise ValueError(f"the skip list is of {' and '.join(mask['skiplist_tasks'])}")
    if mask.get("keep_only_token_ids"):
        raise ValueError("only some token ids are kept")
    exact = bool(words) and all(len(word) == 1 for word in words)
    return {"skip": "".join(dict.fromkeys(characters.values())), "skip_exact": exact}


def lowers(settings: dict[str, Any], backbone: Path) -> None:
    """Raise ValueError if texts are put in lower case and the tokenizer does not do it anyway."""
    if settings.get("do_lower_case"):
        tokenizer = load_tokenizer(backbone)
        if tokenizer("Ab")["input_ids"] != tokenizer("ab")["input_ids"]:
            raise ValueError("texts are put in lower case before a tokenizer that tells cases apart")
