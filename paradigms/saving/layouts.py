"""Functions that save models to folders, in several layouts, or to the hub."""

import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple

from paradigms.baselines.cross_attention import HEAD, CrossAttention
from paradigms.encoder.published import MODULES
from paradigms.encoder.settings import SIDES
from paradigms.generative.model import SETTINGS as GENERATIVE_SETTINGS
from paradigms.generative.model import Generative
from paradigms.io.files import atomic_folder, contents, write_text
from paradigms.model import Paradigm, Trainable
from paradigms.saving.card import model_card
from paradigms.saving.export import write_sentence_transformers
from paradigms.saving.library import LIBRARY, RECIPE, Library
from paradigms.saving.m3 import HEADS, write_m3
from paradigms.saving.weights import PICKLED, SETTINGS_AND_WEIGHTS

# Files and folders of a saved model, in whichever layout.
SAVED_FOLDERS = ("backbone/", f"{LIBRARY}/", *(f"{side}/" for side in SIDES), "[0-9]_*/")
SAVED = (*SETTINGS_AND_WEIGHTS, *(f"{name}.pt" for name in HEADS), "README.md", *SAVED_FOLDERS)


class SaveLayout(NamedTuple):
    """A way to store a model in a folder."""

    write: Callable[[Any, Path], None]  # writes all files into an existing folder, or raises ValueError
    marks: Collection[str]  # files, each of which identifies the layout
    card: Callable[[Any], str] = lambda model: ""  # default text of README.md


# File -> the kind of model that it identifies.
KINDS: dict[str, type[Trainable]] = {
    "paradigm.json": Paradigm,
    GENERATIVE_SETTINGS: Generative,
    HEAD: CrossAttention,
    RECIPE: Library,
}

# Name -> layout.
SAVE_LAYOUTS: dict[str, SaveLayout] = {
    "paradigms": SaveLayout(lambda model, folder: model.write(folder, merged=True), KINDS),
    "sentence-transformers": SaveLayout(write_sentence_transformers, {MODULES}, model_card),
    "bge-m3": SaveLayout(write_m3, {f"{name}.pt" for name in HEADS}, model_card),
}


def save_pretrained(
    model: Trainable, folder: str | Path, layout: str = "paradigms", card: str | None = None
) -> None:
    """Write the whole model, with merged adapters; the folder appears complete or not at all.

    layout: a key of `SAVE_LAYOUTS`. card: text of README.md; the default is the layout's card. Raises
    FileExistsError if anything but a model in this layout would be replaced, and ValueError if the layout
    cannot hold the model.
    """
    if layout not in SAVE_LAYOUTS:
        raise ValueError(f"unknown layout {layout!r}; there are {', '.join(SAVE_LAYOUTS)}")
    chosen = SAVE_LAYOUTS[layout]
    with atomic_folder(folder, contents(*SAVED, marks=chosen.marks)) as temporary:
        chosen.write(model, temporary)
        text = chosen.card(model) if card is None else card
        if text:
            write_text(temporary / "README.md", text)


def push_to_hub(
    model: Trainable, name: str, layout: str = "paradigms", card: str | None = None, *, private: bool = True
) -> None:
    """Upload a model, as `save_pretrained` writes it, to the repository `name`, creating it if missing.

    Earlier settings and weights are removed from the repository but stay in the history. The hub's errors are
    passed on.
    """
    from huggingface_hub import HfApi

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model"
        save_pretrained(model, folder, layout, card)
        api = HfApi()
        api.create_repo(name, private=private, exist_ok=True)
        old = [*SETTINGS_AND_WEIGHTS, *PICKLED]
        api.upload_folder(repo_id=name, folder_path=str(folder), delete_patterns=old)
