"""Shared by the tests of the scripts: a small collection, and running a script as from a terminal."""

import json
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from studies.claims import Study, printed

from paradigms.evaluate.claims import Verdict, judge
from paradigms.io.command_line import command_line
from tests.tiny import WORDS, write_collection

SMALL = {"steps": 2, "batch_size": 4, "precision": "no", "tracker": "none"}


def write_words(folder: Path) -> Path:
    """Forty documents of 6 to 25 words under titles of two; a query is four words of one."""
    words, random = WORDS.split(), np.random.default_rng(0)
    texts = [list(random.choice(words, 6 + n // 2)) for n in range(40)]
    titles = [" ".join(random.choice(words, 2)) for _ in texts]
    queries = [" ".join(random.choice(text, 4)) for text in texts]
    splits = {"train": range(30), "test": range(30, 40)}
    return write_collection(folder, list(map(" ".join, texts)), queries, splits, titles)


def from_command_line(kind: type, description: str, arguments: Sequence[str]) -> Any:
    """The settings that a script takes from these arguments."""
    return kind(**command_line(kind, description, arguments, device=True))


def settings(script: str, *arguments: str, **flags: object) -> Any:
    """The settings of a script for these flags."""
    module = import_module(script)
    given = [*arguments, *(f"--{name}={value}" for name, value in flags.items())]
    return from_command_line(module.Settings, module.__doc__ or "", given)


def run(script: str, *arguments: str, **flags: object) -> None:
    import_module(script).main(settings(script, *arguments, **flags))


def published(folder: Path) -> set[str]:
    """The tables of a results folder, each of which is there as CSV, JSON and Markdown, and its figures."""
    tables = {path.stem for path in folder.glob("*.md")}
    for name in tables:
        rows = json.loads((folder / f"{name}.json").read_text())
        assert len((folder / f"{name}.md").read_text().splitlines()) == len(rows) + 2
        assert len((folder / f"{name}.csv").read_text().splitlines()) == len(rows) + 1
    figures = {path.name for path in folder.glob("*.svg")}
    assert all((folder / name).read_bytes().startswith(b"<?xml") for name in figures)
    assert (folder / "report.html").read_text().count("data:image/svg+xml") == len(figures)
    return tables | figures


def verdicts(study: Study, paper: str, family: str) -> list[Verdict]:
    """Judge a family of a paper's claims on what a study measured."""
    tested = study.claims(paper, printed(paper)["claims"][family])
    return judge([claim for _, claims in tested for claim in claims])


def unmeasured(study: Study, paper: str, family: str) -> list[str]:
    """Return the contrasts with a side that the study lacks, and the claims whose groups have no members."""
    lacking = []
    for row in printed(paper)["claims"][family]:
        contrasts = list(study.contrasts(row))
        for quantity, terms in contrasts:
            sides = study.values.get(quantity.partition(": ")[0], {})
            lacking += [quantity] * any(side not in sides for _, side in terms)
        if "contrast" in row and not contrasts:
            lacking.append(row.get("claim", row.get("control")))
    return lacking


def training(collection: Path, backbone: Path, output: Path, **changes: object) -> dict[str, Any]:
    """Flags of train.py for four steps of a small ColBERT."""
    flags = {"paradigm": "colbert", "collection": collection, "backbone": backbone, "output": output}
    flags |= {"options": '{"dim": 16, "query_length": 8, "document_length": 12}', "steps": 4}
    return SMALL | flags | {"negatives": 1, "evaluate_every": 2} | changes


def pair_flags(collection: Path, backbone: Path, folder: Path, **changes: object) -> dict[str, Any]:
    """Flags of a study that uses `trained_pairs`, with models and results below `folder`."""
    paths = {"collection": collection, "backbone": backbone}
    paths |= {"models": folder / "models", "output": folder / "results"}
    model = {"frozen": "false", "trained_layers": 0, "query_length": 8, "document_length": 16, "span": 4}
    training = SMALL | {"generative_steps": 3, "passages": 2, "passage_words": 4, "seeds": "[0,1]"}
    measured = {"documents": 0, "depth": 6, "queries": 8, "division": "unseen"}
    return paths | model | training | measured | changes
