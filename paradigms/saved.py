"""Saved models: their files, in whichever layout, and the layouts in which a model is written."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from paradigms.io.files import atomic_folder, contents, write_text
from paradigms.rooms import Entry

# Settings and weights in a hub repository; other files, such as its card, are neither read nor replaced.
SETTINGS_AND_WEIGHTS = (
    "*.json",
    "*.safetensors",
    "*backbone/model.onnx",
    "*.model",
    "*vocab.txt",
    "*merges.txt",
    "*.metadata",
    "*.jinja",
)
PICKLED = ("*.bin", "*.pt")  # weights that are read on request only
M3_HEADS = ("colbert_linear.pt", "sparse_linear.pt")  # of BGE-M3
SAVED_FOLDERS = ("backbone/", "library/", "query/", "document/", "[0-9]_*/")
SAVED = (*SETTINGS_AND_WEIGHTS, *M3_HEADS, "README.md", *SAVED_FOLDERS)
ONNX = "model.onnx"  # in a backbone's folder, in place of model.safetensors
EXPORTED = (f"backbone/{ONNX}", f"document/backbone/{ONNX}")
# Each of these files identifies a kind of model (`loading.KINDS`) in the layout "paradigms".
MARKS = ("paradigm.json", "generative.json", "cross_attention.safetensors", "library.json")


class SaveLayout(NamedTuple):
    """A way to store a model in a folder."""

    write: Callable[[Any, Path], None]  # writes all files into an existing folder, or raises ValueError
    marks: Collection[str]  # files, each of which identifies the layout
    card: Callable[[Any], str] = lambda model: ""  # default text of README.md


# Name -> layout.
SAVE_LAYOUTS: dict[str, SaveLayout] = {
    "paradigms": SaveLayout(lambda model, folder: model.write(folder, merged=True), MARKS),
    "sentence-transformers": SaveLayout(
        Entry("write_sentence_transformers"), ("modules.json",), Entry("model_card")
    ),
    "bge-m3": SaveLayout(Entry("write_m3"), M3_HEADS, Entry("model_card")),
    "onnx": SaveLayout(Entry("write_onnx"), EXPORTED),
    "onnx-int8": SaveLayout(partial(Entry("write_onnx"), bits=8), EXPORTED),
}


def save_pretrained(
    model: Any, folder: str | Path, layout: str = "paradigms", card: str | None = None
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


def export(model: Any, layout: str, folder: str | Path = "") -> Path:
    """Write a model in a layout such as "onnx", as `save_pretrained` does, and return its folder.

    folder: default: the model's name and the layout, in the current folder.
    """
    folder = Path(folder or f"{model.name}-{layout}")
    save_pretrained(model, folder, layout)
    return folder
