"""Load collections of documents, queries and judgements from various sources into a common form.

collection = load_collection("pydocs")                      # the built-in collection
collection = load_collection("path/to/scifact")             # a folder in the layout of BEIR,
collection = load_collection("path/to/lotte/science/test")  # or of MIRACL, MS MARCO, LoTTE or DPR
collection = load_collection("hf:BeIR/scifact")             # a dataset on the Hugging Face hub
collection = load_collection("irds:beir/scifact/test")      # an ir_datasets identifier
test = collection.split("test")                             # .queries, .judgements
print(collection.problems)                                  # problems in the data, counted
"""

from collections.abc import Callable
from pathlib import Path

from paradigms.data.beir import read_folder, write_folder
from paradigms.data.collection import (
    Collection,
    Corpus,
    Judgements,
    Problems,
    Run,
    Split,
    Texts,
    best_first,
    check_answered,
    check_queries,
    hold_out,
)
from paradigms.data.hub import read_hub, read_irds
from paradigms.data.layouts import LAYOUTS
from paradigms.data.pydocs import read_pydocs
from paradigms.data.trec import read_judgements, read_run, write_judgements, write_run


def load_collection(name: str | Path, *, documents: int | None = None) -> Collection:
    """Load a collection: "pydocs", "hf:owner/name[:prefix]", "irds:identifier", or a folder.

    documents: size of a fixed subset, for "pydocs" only. Problems that leave the data usable are counted in
    `collection.problems`.
    """
    if name == "pydocs":
        return read_pydocs(documents)
    if documents is not None:
        raise ValueError(f"documents={documents} is for load_collection('pydocs') only, not {str(name)!r}")
    if isinstance(name, str) and name.startswith("irds:"):
        return read_irds(name.removeprefix("irds:"))
    if isinstance(name, str) and name.startswith("hf:"):
        path, _, prefix = name.removeprefix("hf:").partition(":")
        return read_hub(path, prefix or None)
    return layout_of(Path(name))(Path(name))


def check_collection(name: str | Path) -> None:
    """Check that a folder has a known layout, without reading it; otherwise, raise FileNotFoundError."""
    if not str(name).startswith(("hf:", "irds:")) and name != "pydocs":
        layout_of(Path(name))


def layout_of(folder: Path) -> Callable[[Path], Collection]:
    """Find the reader for a folder's layout. Raises FileNotFoundError if no layout fits."""
    name = str(folder)
    if not folder.is_dir():
        raise FileNotFoundError(
            f"no collection {name!r}: expected 'pydocs', 'hf:owner/name', 'irds:identifier' or a folder "
            f"in the layout of {' or '.join(LAYOUTS)}"
        )
    for recognised, read in LAYOUTS.values():
        if recognised(folder):
            return read
    raise FileNotFoundError(f"{folder} has none of the layouts {', '.join(LAYOUTS)}")
