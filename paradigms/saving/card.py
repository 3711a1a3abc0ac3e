"""The README.md of a checkpoint: the model, its training data and settings, and its measures."""

import json
from pathlib import Path
from typing import Any

from paradigms.io.checks import json_or_empty, read_json
from paradigms.model import Trainable

UNTOLD = {"output", "tracker", "load", "fingerprint"}  # settings that do not describe the model

BAR = "\\|"  # in a cell of a table


def model_card(
    model: Trainable, results: str | Path | None = None, layout: str = "sentence-transformers"
) -> str:
    """Write the text of a model's card.

    results: the training script's results folder, with config.json and table.md. layout: the layout of the
    saved model. Raises FileNotFoundError if the results have no config.json.
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
    tags = [layout, "retrieval", model.name]
    if "align" in described:
        A, Z = described["align"], described["normalise"]
        formula = f": rel(d, q) = 1/Z · Σ(DᵀQ ⊙ A), with the alignment `{A}` and Z = `{Z}`"
    lines = [
        "---",
        f"library_name: {layout}",
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
