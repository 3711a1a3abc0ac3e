"""README.md of a checkpoint: what it is, what it learned from, with which settings, and what was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from paradigms.model import Paradigm

UNTOLD = {"output", "tracker", "load", "fingerprint"}  # settings that say nothing of the model


def model_card(model: Paradigm, results: Path | None = None) -> str:
    """The card of a model. results: folder of the script that trained it, with config.json and table.md."""
    settings = _json(results, "config.json")
    data = settings.get("collection")
    tags = ["sentence-transformers", "retrieval", model.name]
    lines = [
        "---",
        "library_name: sentence-transformers",
        "tags:",
        *(f"- {tag}" for tag in tags),
        "---",
        "",
        f"# {model.name}",
        "",
        "A retrieval model of retrieval-paradigms: rel(d, q) = 1/Z · Σ(DᵀQ ⊙ A), with the alignment "
        f"`{model.recipe.align}` and Z = `{model.recipe.normalise}`.",
        "",
        "## Training data",
        "",
        f"{data}: its training queries and documents." if data else "Not recorded.",
        "",
        *_table("Settings", model.description()),
    ]
    if settings:
        told = {name: value for name, value in settings.items() if name not in UNTOLD}
        lines += _table("Settings of the training script", told)
    environment = _json(results, "environment.json")
    if environment:
        lines += _table("Where it was trained", environment)
    measured = results / "table.md" if results is not None else None
    told_measures = measured is not None and measured.is_file()
    lines += ["## Measures", ""]
    lines += [measured.read_text(encoding="utf-8")] if measured and told_measures else ["None recorded.", ""]
    return "\n".join(lines)


def results_of(checkpoint: Path) -> Path | None:
    """The results folder that a checkpoint lies in: the nearest folder above it with a config.json.

    None for a name, such as one on the hub.
    """
    if not checkpoint.is_dir():
        return None
    above = checkpoint.resolve().parents[:2]
    return next((folder for folder in above if (folder / "config.json").is_file()), None)


def _json(folder: Path | None, name: str) -> dict[str, Any]:
    file = None if folder is None else folder / name
    return json.loads(file.read_text(encoding="utf-8")) if file is not None and file.is_file() else {}


def _table(title: str, values: dict[str, Any]) -> list[str]:
    rows = [f"| {name} | {json.dumps(value, ensure_ascii=False)} |" for name, value in values.items()]
    return [f"## {title}", "", "| setting | value |", "|---|---|", *rows, ""]
