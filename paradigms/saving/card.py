"""Write a checkpoint's README.md, which describes the model, its training and its evaluation results."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paradigms.encoder.backbone import PACKAGED
from paradigms.io.checks import json_or_empty, read_json
from paradigms.model import Trainable

UNTOLD = {"output", "tracker", "load", "fingerprint"}  # settings that do not describe the model

BAR = "\\|"  # in a cell of a table
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
# A comment in the metadata: whoever publishes a model chooses.
LICENSE = "# license: the publisher's choice, such as apache-2.0"


def model_card(
    model: Trainable,
    results: str | Path | None = None,
    layout: str = "sentence-transformers",
    license: str = "",
) -> str:
    """Write the text of a model's card.

    The metadata name the base model and the data sets if the results identify them by their names on the hub,
    and include the tags under which the hub lists dense, sparse and multi-vector models and rerankers.

    results: the training script's results folder, with config.json and table.md. layout: the layout of the
    saved model. license: the hub's identifier for a license; "" leaves the field to the publisher. Raises
    FileNotFoundError if the results have no config.json.
    """
    settings, environment, measured = {}, {}, "None recorded.\n"
    if results is not None:
        config, table = Path(results, "config.json"), Path(results, "table.md")
        if not config.is_file():
            raise FileNotFoundError(f"{results} has no config.json: it is not a results folder")
        settings, environment = read_json(config), json_or_empty(Path(results, "environment.json"))
        measured = table.read_text(encoding="utf-8") if table.is_file() else measured
    described = model.description()
    data, formula = settings.get("collection"), ""
    task, tags = model.hub_task()
    tags = [layout, "retrieval", model.name, *tags]
    if license and not re.fullmatch(r"[\w.+-]+", license):
        raise ValueError(f"a license is an identifier of the hub, such as apache-2.0, not {license!r}")
    if "align" in described:
        A, Z = described["align"], described["normalise"]
        formula = f": rel(d, q) = 1/Z · Σ(DᵀQ ⊙ A), with the alignment `{A}` and Z = `{Z}`"
    lines = [
        "---",
        f"library_name: {layout}",
        f"license: {license}" if license else LICENSE,
        *([f"pipeline_tag: {task}"] if task else []),
        *(f"base_model: {name}" for name in base_models(settings)),
        *(f"datasets:\n- {name}" for name in datasets_of(settings)),
        "tags:",
        *(f"- {tag}" for tag in dict.fromkeys(tags)),
        "---",
        "",
        f"# {model.name}",
        "",
        f"A retrieval model of retrieval-paradigms{formula}.",
        "",
        "## Training data",
        "",
        f"{_line(str(_shortened(data)))}: its training queries and documents." if data else "Not recorded.",
        "",
        *_table("Settings", described),
    ]
    if settings:
        shown = {name: value for name, value in settings.items() if name not in UNTOLD}
        lines += _table("Settings of the training script", shown)
    if environment:
        lines += _table("Where it was trained", environment)
    return "\n".join([*lines, "## Measures", "", measured])


def base_models(settings: Mapping[str, Any]) -> list[str]:
    """Return [hub name of the backbone that training started from] if all systems share one, else []."""
    systems = settings.get("systems")
    own = [one for one in systems.values() if one.get("backbone")] if isinstance(systems, dict) else []
    name = settings.get("backbone")
    name = PACKAGED[name].original if name in PACKAGED else name
    return [str(name)] if not own and _is_hub_name(name) else []


def datasets_of(settings: Mapping[str, Any]) -> list[str]:
    """Return [OWNER/NAME] if the collection's name is hf:OWNER/NAME or hf:OWNER/NAME:PART, else []."""
    data = settings.get("collection")
    name = data.removeprefix("hf:").partition(":")[0] if isinstance(data, str) else ""
    return [name] if str(data).startswith("hf:") and _is_hub_name(name) else []


def _is_hub_name(name: Any) -> bool:
    return isinstance(name, str) and bool(HUB_NAME.fullmatch(name)) and not Path(name).exists()


def results_of(checkpoint: str | Path) -> Path | None:
    """Find the nearest folder above a checkpoint whose config.json has a collection; None for a hub name."""
    if not Path(checkpoint).is_dir():
        return None
    above = Path(checkpoint).resolve().parents[:2]
    return next((folder for folder in above if "collection" in json_or_empty(folder / "config.json")), None)


def _table(title: str, values: dict[str, Any]) -> list[str]:
    cells = {name: json.dumps(_shortened(value), ensure_ascii=False) for name, value in values.items()}
    rows = [f"| {_line(name)} | {_line(cell)} |" for name, cell in cells.items()]
    return [f"## {title}", "", "| setting | value |", "|---|---|", *rows, ""]


def _line(text: str) -> str:
    """Replace characters that would end a line or a table cell."""
    return "".join(c if c.isprintable() else " " for c in text).replace("|", BAR)


def _shortened(value: Any) -> Any:
    """Shorten each absolute or home path in a value to its last part."""
    if isinstance(value, dict):
        return {name: _shortened(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_shortened(part) for part in value]
    local = isinstance(value, str) and value.startswith(("/", "~/")) and value.strip("/").count("/")
    return Path(value).name if local else value
