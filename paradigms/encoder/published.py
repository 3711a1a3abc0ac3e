"""Read the pooling, prompts and length that an encoder's folder publishes (sentence-transformers, PyLate)."""

import logging
import re
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from paradigms.encoder.settings import EncoderSettings
from paradigms.encoder.sources import packaged
from paradigms.io.checks import json_or_empty, parse_json, read_json

MODULES = "modules.json"
MODEL = "config_sentence_transformers.json"
TRANSFORMER = "sentence_bert_config.json"
POOLING = {"cls": "cls", "mean": "mean", "max": "max", "lasttoken": "last"}
OLD = re.compile(r"pooling_mode_(?P<mode>\w+?)(_tokens?)?")  # a key of the older form
DOCUMENTS = ("document", "passage", "corpus")  # names of the document prompt; the first one present counts

logger = logging.getLogger(__name__)


def as_published(backbone: str | Path, settings: EncoderSettings, fixed: Collection[str]) -> EncoderSettings:
    """Replace settings by the pooling, prompts, prefixes and lengths that a backbone's folder publishes.

    Without a published pooling, `default_pooling` is used. Changes are logged. fixed: names of settings that
    keep their values. Raises ValueError if the folder names an unknown pooling.
    """
    folder = _folder(backbone)
    if folder is None:
        return settings
    published: dict[str, Any] = {k: v for k, v in prompts(json_or_empty(folder / MODEL)).items() if v}
    default = default_pooling(backbone)
    if settings.pools and default is not None:
        published["pooling"] = default
    if settings.pools and "pooling" not in fixed and (folder / MODULES).is_file():
        try:
            for place in (place for kind, place in modules(folder) if kind == "Pooling"):
                published["pooling"] = pooling(place)
        except ValueError as error:
            raise ValueError(f"{backbone}: {error}; set the pooling yourself") from error
    longest = json_or_empty(folder / TRANSFORMER).get("max_seq_length")
    for name in ("query_length", "document_length"):
        published[name] = min(longest or getattr(settings, name), getattr(settings, name))
    changes = {k: v for k, v in published.items() if k not in fixed and v != getattr(settings, k)}
    if changes:
        values = ", ".join(f"{k}={v!r}" for k, v in changes.items())
        _report(f"{backbone}: {values}, as its folder states")
    return replace(settings, **changes)


@cache
def _report(line: str) -> None:
    """Log a line once in a process, however many models are built."""
    logger.info(line)


def default_pooling(backbone: str | Path) -> Literal["mean", "last"] | None:
    """Return the pooling for a kind of backbone; None if the kind is unknown or has a [CLS] token.

    A T5 uses the mean, like Sentence-T5 (Ni et al. 2022, arXiv:2108.08877), because its texts have no [CLS].
    A decoder uses the last token, because it alone attends to all tokens.
    """
    folder = _folder(backbone)
    kind = "" if folder is None else str(json_or_empty(folder / "config.json").get("model_type"))
    if "t5" in kind:
        return "mean"
    return "last" if decodes(kind) else None


def decodes(model_type: str) -> bool:
    """Return whether a model type of transformers is a decoder alone, such as Qwen3 or Llama."""
    if model_type == "bert":  # which opens without transformers
        return False
    from transformers.models.auto import modeling_auto as auto

    encoders = auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES, auto.MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES
    return model_type in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and not any(model_type in e for e in encoders)


def modules(folder: Path) -> list[tuple[str, Path]]:
    """Read (kind, folder) of each module in modules.json. Raises ValueError if it lies outside the folder."""
    try:
        rows = parse_json((folder / MODULES).read_text(encoding="utf-8"), MODULES)
        steps = [(str(row["type"]).rpartition(".")[2], PurePosixPath(row["path"])) for row in rows]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{MODULES} is not a list of modules with type and path ({error})") from error
    for _, path in steps:
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(f"{MODULES} names {str(path)!r:.200}, which lies outside of the folder")
    return [(kind, folder / path) for kind, path in steps]


def pooling(folder: Path) -> str:
    """Read the one pooling mode from a module's configuration, in its older or newer format."""
    config = read_json(folder / "config.json")
    if not config.get("include_prompt", True):
        raise ValueError("pooling leaves the prompt out")
    modes = config.get("pooling_mode")
    if modes is None:
        named = [OLD.fullmatch(name) for name, on in config.items() if on is True]
        modes = [match["mode"] for match in named if match]
    modes = [modes] if isinstance(modes, str) else modes
    if len(modes) != 1 or modes[0] not in POOLING:
        raise ValueError(f"pooling is {' and '.join(modes) or 'none'}")
    return POOLING[modes[0]]


def prompts(config: dict[str, Any]) -> dict[str, str]:
    """Read PyLate's prefixes, which are tokens, and the prompts of both sides; "" if there is none.

    The prompt that `default_prompt_name` chooses is for texts that are neither queries nor documents.
    """
    named = config.get("prompts") or {}
    read: dict[str, str] = {}
    for side, names in (("query", ("query",)), ("document", DOCUMENTS)):
        marker = config.get(f"{side}_prefix") or ""
        prompt = next((named[name] for name in names if named.get(name) is not None), "")
        read |= {f"{side}_marker": marker, f"{side}_prompt": prompt.removeprefix(marker)}
    return read


def _folder(backbone: str | Path) -> Path | None:
    """Find the backbone's folder, or download it without weights; return None if neither succeeds."""
    backbone = packaged(backbone)
    if Path(backbone).is_dir() or Path(backbone).is_absolute():
        return Path(backbone)
    from huggingface_hub import snapshot_download

    files = [MODULES, "*Pooling/*", MODEL, TRANSFORMER, "config.json"]
    with suppress(Exception):  # loading the backbone raises the error
        return Path(snapshot_download(str(backbone), allow_patterns=files))
    return None
