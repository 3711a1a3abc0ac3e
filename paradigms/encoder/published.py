"""What the folder of a pretrained encoder says of its use: pooling, prompts and length, as published.

sentence-transformers and PyLate write modules.json, module configurations and
config_sentence_transformers.json.
"""

import logging
import re
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from paradigms.encoder.backbone import packaged, pretrained
from paradigms.encoder.settings import EncoderSettings
from paradigms.io.typed import json_or_empty, parse_json, read_json

MODULES, MODEL, LENGTH = "modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"
POOLING = {"cls": "cls", "mean": "mean", "max": "max", "lasttoken": "last"}
OLD = re.compile(r"pooling_mode_(?P<mode>\w+?)(_tokens?)?")  # a key of the older form
DOCUMENTS = ("document", "passage", "corpus")  # names of the prompt of documents, the first one counts

logger = logging.getLogger(__name__)


def as_published(backbone: str | Path, settings: EncoderSettings, given: Collection[str]) -> EncoderSettings:
    """The settings, with what the backbone's folder says of itself in place of what is not `given`.

    Pooling, where a side is pooled; prompts, as markers; lengths, at most those of the encoder's training.
    What is taken is logged. ValueError where the folder pools in a way that is not known here.
    """
    folder = _folder(backbone)
    if folder is None or not (folder / MODULES).is_file():
        return settings
    own: dict[str, Any] = {k: v for k, v in prompts(json_or_empty(folder / MODEL)).items() if v}
    pooled = "pooled" in (settings.query_vectors, settings.document_vectors) or settings.pooled_dim
    if pooled and "pooling" not in given:
        try:
            for place in (place for kind, place in modules(folder) if kind == "Pooling"):
                own["pooling"] = pooling(place)
        except ValueError as error:
            raise ValueError(f"{backbone}: {error}; set the pooling yourself") from error
    longest = json_or_empty(folder / LENGTH).get("max_seq_length")
    for name in ("query_length", "document_length"):
        own[name] = min(longest or getattr(settings, name), getattr(settings, name))
    own = {name: v for name, v in own.items() if name not in given and v != getattr(settings, name)}
    if own:
        logger.info("%s: %s, as its folder says", backbone, ", ".join(f"{k}={v!r}" for k, v in own.items()))
    return replace(settings, **own)


def width(backbone: str | Path) -> int:
    """The width of a backbone's vectors, without its weights."""
    from transformers import AutoConfig

    return int(pretrained(AutoConfig, packaged(backbone)).hidden_size)


def modules(folder: Path) -> list[tuple[str, Path]]:
    """(kind, folder) of each module of modules.json. ValueError for a path that leaves the folder."""
    try:
        rows = parse_json((folder / MODULES).read_text(encoding="utf-8"), MODULES)
        steps = [(str(row["type"]).rpartition(".")[2], PurePosixPath(row["path"])) for row in rows]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{MODULES} is no list of modules with type and path ({error})") from error
    for _, path in steps:
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(f"{MODULES} names {str(path)!r:.200}, which lies outside of the folder")
    return [(kind, folder / path) for kind, path in steps]


def pooling(folder: Path) -> str:
    """The one way in which tokens are pooled, in either form of the module's configuration."""
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
    """The markers of both sides: PyLate's prefix, and then the prompt."""
    given = config.get("prompts") or {}
    default = given.get(config.get("default_prompt_name")) or ""
    query = given.get("query")
    document = next((given[name] for name in DOCUMENTS if given.get(name) is not None), None)
    markers = {}
    for side, text in (("query", query), ("document", document)):
        prefix = config.get(f"{side}_prefix") or ""
        prompt = default if text is None else text
        markers[f"{side}_marker"] = prefix + prompt.removeprefix(prefix)
    return markers


def _folder(backbone: str | Path) -> Path | None:
    """The backbone's folder, downloaded by hub name without its weights; None where it cannot be had."""
    backbone = packaged(backbone)
    if Path(backbone).is_dir() or Path(backbone).is_absolute():
        return Path(backbone)
    from huggingface_hub import snapshot_download

    with suppress(Exception):  # loading the backbone will tell
        return Path(snapshot_download(str(backbone), allow_patterns=[MODULES, "*Pooling/*", MODEL, LENGTH]))
    return None
