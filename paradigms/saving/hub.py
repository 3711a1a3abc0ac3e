"""The hub: download models, convert pickled weights to safetensors, write cards, upload models."""

import json
import re
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from paradigms.encoder.published import MODULES, modules
from paradigms.encoder.sources import original
from paradigms.io.checks import json_or_empty, read_json
from paradigms.saved import M3_HEADS, PICKLED, SETTINGS_AND_WEIGHTS
from paradigms.trainable import Trainable

# Names of pickled weights -> their names as safetensors. COIL keeps its heads in model.pt.
PICKLES = {"pytorch_model*.bin": "model.safetensors", "model.pt": "heads.safetensors"}
PICKLES |= {name: PurePath(name).with_suffix(".safetensors").name for name in M3_HEADS}
MODULE = re.compile(r"\d+_\w+|((query|document)/)?backbone")  # a module's folder
MOST_NAMES = 12  # most files or folders listed in an error


def shortened(names: Iterable[object]) -> str:
    """List the first names, in order, for an error message."""
    ordered = sorted(map(str, names))
    rest = f" and {len(ordered) - MOST_NAMES} more" if len(ordered) > MOST_NAMES else ""
    return ", ".join(ordered[:MOST_NAMES]) + rest or "nothing"


def files_of(folder: Path) -> list[PurePath]:
    """List the paths of a folder's files within it."""
    return [file.relative_to(folder) for file in folder.rglob("*") if file.is_file()]


def pickles(
    name: str, files: Collection[PurePath], modules: Collection[PurePath] = (), *, allowed: bool
) -> dict[PurePath, list[PurePath]]:
    """Map each missing safetensors file to the pickled files that take its place.

    Only the folder itself, its backbones and its modules, such as 2_Dense, are considered. Raises ValueError,
    naming `name`, if there are pickles and the caller does not allow them.
    """
    unsafe: dict[PurePath, list[PurePath]] = {}
    for file in sorted(files):
        if file.parent.name and not MODULE.fullmatch(str(file.parent)) and file.parent not in modules:
            continue
        for pattern, safe in PICKLES.items():
            target = file.with_name(safe)
            parts = f"{target.stem}*{target.suffix}"
            present = any(other.parent == file.parent and other.match(parts) for other in files)
            if file.match(pattern) and not present:
                unsafe.setdefault(target, []).append(file)
    if unsafe and not allowed:
        raise ValueError(
            f"{name} holds pickled weights, {next(iter(unsafe.values()))[0]}: convert them to safetensors, "
            "or, if you trust their author, allow them with pickled=True (at the terminal --pickled)"
        )
    return unsafe


@contextmanager
def safe_weights(folder: Path, pickled: bool) -> Iterator[Path]:
    """Yield the folder, or a temporary copy whose pickled weights are converted to safetensors.

    Raises ValueError if weights are pickled and `pickled` is false.
    """
    files = files_of(folder)
    steps = modules(folder) if (folder / MODULES).is_file() else []
    places = [place.relative_to(folder) for _, place in steps]
    unsafe = pickles(str(folder), files, places, allowed=pickled)
    if not unsafe:
        yield folder
        return
    converted = {file for parts in unsafe.values() for file in parts}
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary) / (folder.resolve().name or "model")
        for file in files:
            (copy / file).parent.mkdir(parents=True, exist_ok=True)
            if file not in converted and not file.name.endswith(".bin.index.json"):
                (copy / file).symlink_to((folder / file).resolve())
        for target, parts in unsafe.items():
            tensors = {name: t for part in parts for name, t in _unpickled(folder / part).items()}
            save_file(tensors, copy / target, metadata={"format": "pt"})
        yield copy


def _unpickled(file: Path) -> dict[str, Tensor]:
    """Load the tensors of a pickled state dict; the returned tensors never share memory."""
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ValueError(f"{file} cannot be read as weights alone: {error}") from error
    entries = state.items() if isinstance(state, dict) else ()
    tensors = {name: t.clone().contiguous() for name, t in entries if isinstance(t, Tensor)}
    if not tensors:
        raise ValueError(f"{file} is not a state dict")
    return tensors


def download(name: str, pickled: bool, revision: str | None = None) -> Path:
    """Download a repository's missing files; return its folder in the cache.

    revision: branch, tag or commit. Raises FileNotFoundError if a path has no folder or the hub has no such
    repository or revision, and ValueError if some weights exist only as pickles and `pickled` is false.
    """
    from huggingface_hub import HfApi, errors, snapshot_download

    if Path(name).is_absolute() or name.startswith(".") or name.count("/") > 1:
        parent = next(folder for folder in Path(name).absolute().parents if folder.is_dir())
        folders = shortened(entry.name for entry in parent.iterdir() if entry.is_dir())
        raise FileNotFoundError(f"{name}: no such folder; {parent} has {folders}")
    files: list[PurePath] = []
    with suppress(Exception):  # the class depends on the hub's HTTP library; the download reports the error
        info = HfApi().model_info(name, revision=revision)
        files = [PurePosixPath(file.rfilename) for file in info.siblings or []]
    pickles(name, files, allowed=pickled)
    patterns = [*SETTINGS_AND_WEIGHTS, *(PICKLED if pickled else ())]
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
    except (
        errors.HFValidationError,
        errors.RepositoryNotFoundError,
        errors.RevisionNotFoundError,
        errors.LocalEntryNotFoundError,
    ) as error:
        raise FileNotFoundError(
            f"{name} is not a folder, and cannot be downloaded from the hub: {error}"
        ) from error


# Cards: the README.md of a model.

UNTOLD = {"output", "tracker", "load", "fingerprint"}  # settings that do not describe the model
BAR = "\\|"  # in a cell of a table
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
# A comment in the metadata: whoever publishes a model chooses.
LICENSE = "# license: the publisher's choice, such as apache-2.0"


def model_card(
    model: Trainable, results: str | Path | None = None, layout: str = "sentence-transformers"
) -> str:
    """Write the text of a model's card.

    results: the training script's results folder, with config.json and table.md. layout: the layout of the
    saved model. Raises FileNotFoundError if the results have no config.json.
    """
    settings: dict[str, Any] = {}
    environment: dict[str, Any] = {}
    measures = "None recorded.\n"
    if results is not None:
        if not Path(results, "config.json").is_file():
            raise FileNotFoundError(f"{results} has no config.json: it is not a results folder")
        settings = read_json(Path(results, "config.json"))
        environment = json_or_empty(Path(results, "environment.json"))
        table = Path(results, "table.md")
        measures = table.read_text(encoding="utf-8") if table.is_file() else measures
    described = model.description()
    formula = ""
    if "align" in described:
        A = described["align"]
        Z = described["normalise"]
        formula = f": rel(d, q) = 1/Z · Σ(DᵀQ ⊙ A), with the alignment `{A}` and Z = `{Z}`"
    data = settings.get("collection")
    task, tags = model.hub_task()
    lines = [
        "---",
        f"library_name: {layout}",
        LICENSE,
        *([f"pipeline_tag: {task}"] if task else []),
        *(f"base_model: {name}" for name in base_models(settings)),
        *(f"datasets:\n- {name}" for name in datasets_of(settings)),
        "tags:",
        *(f"- {tag}" for tag in dict.fromkeys([layout, "retrieval", model.name, *tags])),
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
        recorded = {name: value for name, value in settings.items() if name not in UNTOLD}
        lines += _table("Settings of the training script", recorded)
    if environment:
        lines += _table("Where it was trained", environment)
    return "\n".join([*lines, "## Measures", "", measures])


def base_models(settings: Mapping[str, Any]) -> list[str]:
    """Return [hub name of the backbone that training started from] if all systems share one, else []."""
    systems = settings.get("systems")
    differ = isinstance(systems, dict) and any(system.get("backbone") for system in systems.values())
    name = original(settings.get("backbone", ""))
    return [name] if not differ and _is_hub_name(name) else []


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


def push_to_hub(
    model: Trainable, name: str, layout: str = "paradigms", card: str | None = None, *, private: bool = True
) -> None:
    """Upload a model, as `save_pretrained` writes it, to the repository `name`, creating it if missing.

    Earlier settings and weights are removed from the repository but stay in the history.
    """
    from huggingface_hub import HfApi

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model"
        model.save_pretrained(folder, layout, card)
        api = HfApi()
        api.create_repo(name, private=private, exist_ok=True)
        old = [*SETTINGS_AND_WEIGHTS, *PICKLED]
        api.upload_folder(repo_id=name, folder_path=str(folder), delete_patterns=old)
