"""Open saved models: `load` for models of any kind, in the layout of this package or of another library."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paradigms.encoder import backbone
from paradigms.encoder.backbone import pretrained
from paradigms.encoder.sources import packaged
from paradigms.encoder.text import TextEncoder
from paradigms.encoder.towers import TwoTowers
from paradigms.io.checks import check_files, json_or_empty, naming
from paradigms.io.files import settle
from paradigms.io.plugins import load_plugins
from paradigms.model import Paradigm
from paradigms.registry import GENERATIVE, PARADIGMS, RERANKERS
from paradigms.rooms import Entry
from paradigms.saved import PICKLED
from paradigms.trainable import Trainable

if TYPE_CHECKING:
    from paradigms.baselines.cross_attention import CrossAttention
    from paradigms.generative.model import Generative

# File that identifies a kind of saved model -> function that opens its folder
KINDS: dict[str, Callable[[Path], Any]] = {
    "paradigm.json": Paradigm.from_pretrained,
    "generative.json": Entry("Generative.from_pretrained"),
    "cross_attention.safetensors": Entry("CrossAttention.from_pretrained"),
    "library.json": Entry("Library.from_pretrained"),
}


def load(
    name: str | Path,
    *,
    documents: str | Path | None = None,
    layout: str | None = None,
    pickled: bool = False,
    plugin: str | Path | Iterable[str | Path] = (),
    for_search: bool = False,
    revision: str | None = None,
) -> Paradigm | Generative | CrossAttention:
    """Open a model by its folder or Hugging Face hub name; "offline" is the encoder of the "offline" extra.

    The folder contains the files of `save_pretrained`, or a checkpoint of another library (`saving.FORMATS`).
    documents: folder or name of the document encoder, if `name` encodes only queries (DPR). layout: format of
    another library's checkpoint, if its files do not identify it. pickled: read the weights, and nothing
    else, from pickled files. plugin: files that register parts of the model (`io.plugins`). for_search: the
    model will only encode texts, so a plain BERT opens without transformers. revision: branch, tag or commit
    of `name` on the hub. Raises FileNotFoundError if the folder does not exist, and ValueError if it cannot
    be read or if the model requires other arguments.
    """
    load_plugins(plugin)
    folder = _folder(name, pickled, revision)
    model: Paradigm | Generative | CrossAttention
    with backbone.for_search() if for_search else nullcontext():
        if documents is not None:
            pair = [folder, _folder(documents, pickled)]
            model = _joined(*(_open(part, layout, pickled) for part in pair))
        else:
            with naming(folder):
                half = json_or_empty(folder / "config.json").get("model_type") == "dpr"
            if half:
                raise ValueError(
                    f"{name} is one of DPR's two encoders: load(questions, documents=passages), at the "
                    "terminal --model QUESTIONS --document-model PASSAGES"
                )
            model = _open(folder, layout, pickled)
    return model.eval() if for_search else model


def as_paradigm(model: Trainable, name: str | Path) -> Paradigm:
    """Return the model if it encodes documents; otherwise, raise ValueError with `name` in the message."""
    if not isinstance(model, Paradigm):
        raise ValueError(
            f"{name} holds {model.name}, which encodes no documents: search a generative model's folder, "
            "and use a reranker with rerank"
        )
    return model


def _folder(name: str | Path, pickled: bool, revision: str | None = None) -> Path:
    name = packaged(name)
    settle(name)
    if Path(name).is_dir():
        if revision is not None:
            raise ValueError(f"{name} is a folder: a revision belongs to a repository of the hub")
        return Path(name)
    if any(str(name).lower() in table for table in (PARADIGMS, GENERATIVE, RERANKERS)):
        raise ValueError(
            f"{name} is a kind of model, and load opens saved models: make one with PARADIGMS, GENERATIVE or "
            "RERANKERS, as in PARADIGMS['colbert']('offline')"
        )
    repository: Path = Entry("download")(str(name), pickled, revision)
    return repository


def _open(folder: Path, layout: str | None, pickled: bool) -> Paradigm | Generative | CrossAttention:
    with naming(folder):
        check_files(folder)
        kind = next((file for file in KINDS if layout is None and (folder / file).is_file()), None)
        if kind is None:
            return Entry("read_checkpoint")(folder, layout=layout, pickled=pickled)
        safe: AbstractContextManager[Path] = nullcontext(folder)
        if any(file.match(pattern) for pattern in PICKLED for file in folder.rglob("*")):
            safe = Entry("safe_weights")(folder, pickled)
        with safe as place:
            return KINDS[kind](place)


def is_reranker(name: str | Path) -> bool:
    """Return whether a saved model scores pairs of texts and cannot encode a text.

    name: folder or hub name. Raises OSError if the model does not exist.
    """
    from transformers import AutoConfig

    if (Path(name) / "cross_attention.safetensors").is_file():
        return True
    if Path(name).is_dir() and not (Path(name) / "config.json").is_file():
        return False
    architectures = pretrained(AutoConfig, name).architectures or []
    return any(architecture.endswith("ForSequenceClassification") for architecture in architectures)


def _joined(queries: Any, documents: Any) -> Paradigm:
    """Join two encoders into a paradigm. Raises ValueError if their recipes differ."""
    for model in (queries, documents):
        if not isinstance(as_paradigm(model, "one folder of the pair").encoder, TextEncoder):
            raise ValueError(f"a pair has two text encoders, but {model.name} is itself a pair")
    if queries.recipe != documents.recipe:
        fields = zip(queries.recipe.described().items(), documents.recipe.described().values(), strict=True)
        differ = [f"{key} ({value} and {other})" for (key, value), other in fields if value != other]
        raise ValueError(
            f"the encoders of queries and documents are not a pair, they differ in {', '.join(differ)}: with "
            "--document-model, set --model too"
        )
    return Paradigm(documents.recipe, TwoTowers(queries.encoder, documents.encoder))
