"""A paradigm = encoder + A + Z, as one trainable, savable module."""

import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from paradigms.align import ALIGNMENTS, NORMALISERS
from paradigms.core import Interaction, Tokens, interact, rel
from paradigms.encoder.batches import Batch
from paradigms.encoder.published import as_published
from paradigms.encoder.settings import SIDES, Side
from paradigms.encoder.text import ENCODERS, TextEncoder, encoder_class
from paradigms.encoder.towers import Encoder, TwoTowers, described
from paradigms.impute import IMPUTATIONS
from paradigms.io.files import atomic_folder, settle, write_json, write_text
from paradigms.io.plugins import plugin_of
from paradigms.io.typed import check_known, json_or_empty, read_settings
from paradigms.recipe import Recipe

# accelerate's name -> the type of matrix products under autocast
PRECISIONS: dict[str, torch.dtype | None] = {"no": None, "bf16": torch.bfloat16, "fp16": torch.float16}
EVALUATING = threading.RLock()  # held by the thread that encodes or scores: see `Trainable.evaluating`
# What of a repository on the hub is settings or weights: the rest, as its card, is neither read nor replaced.
SETTINGS_AND_WEIGHTS = ("*.json", "*.safetensors", "*.model", "*vocab.txt", "*merges.txt", "*.metadata")
PICKLED = ("*.bin", "*.pt")
# What a saved model is made of, in whichever layout.
FILES = (*SETTINGS_AND_WEIGHTS, "*.jinja", "README.md")
FOLDERS = ("backbone", *SIDES, "[0-9]_*")


class Trainable(nn.Module, ABC):
    """What the training loop needs of a model besides its weights."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The paradigm's name."""

    @abstractmethod
    def description(self) -> dict[str, Any]:
        """Every setting: runs of equal descriptions train the same thing."""

    @abstractmethod
    def write(self, folder: Path, *, merged: bool = False) -> None:
        """Every file of the model, into a folder that exists: what `from_pretrained` reads bit for bit.

        merged: adapters become part of the weights that they adapt; they cannot be trained on.
        """

    def save_pretrained(self, folder: str | Path, layout: str = "paradigms", card: str | None = None) -> None:
        """Write the whole model, adapters merged; the folder appears complete or not at all.

        layout: a key of `SAVE_LAYOUTS`. card: text of README.md, by default the layout's own. FileExistsError
        where anything but a model of this layout would be replaced; ValueError for what the layout cannot
        hold.
        """
        if layout not in SAVE_LAYOUTS:
            raise ValueError(f"unknown layout {layout!r}; there are {', '.join(SAVE_LAYOUTS)}")
        chosen = SAVE_LAYOUTS[layout]
        with atomic_folder(folder, chosen.marks) as temporary:
            check_model(Path(folder))
            chosen.write(self, temporary)
            text = chosen.card(self) if card is None else card
            if text:
                write_text(temporary / "README.md", text)

    def push_to_hub(
        self, name: str, layout: str = "paradigms", card: str | None = None, *, private: bool = True
    ) -> None:
        """What `save_pretrained` writes as the repository `name`, made where it is not there yet.

        Settings and weights that it held before are taken out, and stay in its history. The hub's own errors.
        """
        from huggingface_hub import HfApi

        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "model"
            self.save_pretrained(folder, layout, card)
            api = HfApi()
            api.create_repo(name, private=private, exist_ok=True)
            old = [*SETTINGS_AND_WEIGHTS, *PICKLED]
            api.upload_folder(repo_id=name, folder_path=str(folder), delete_patterns=old)

    @classmethod
    @abstractmethod
    def from_pretrained(cls, folder: str | Path) -> Any:
        """What `write` or `save_pretrained` wrote. Weights are safetensors: no code is loaded."""

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def layers(self) -> list[nn.Module]:
        """The backbone's many like modules: what is sharded, and recomputed, one at a time."""
        from transformers.modeling_layers import GradientCheckpointingLayer

        return [module for module in self.modules() if isinstance(module, GradientCheckpointingLayer)]

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Dropout off inside, and the mode restored after; by one thread at a time, of all models."""
        with EVALUATING:
            training = self.training
            self.eval()
            try:
                yield
            finally:
                self.train(training)


class Layout(NamedTuple):
    """How a model lies in a folder."""

    write: Callable[[Any, Path], None]  # every file, into a folder that exists; ValueError: it cannot hold it
    marks: Collection[str]  # files that only such folders have, each one of them
    card: Callable[[Any], str] = lambda model: ""  # README.md where none is given


# File -> the kind of model whose own folders have it. `registry` knows the kinds that are no `Paradigm`.
KINDS: dict[str, type[Trainable]] = {}

# Name -> layout; `formats` adds those of other libraries.
SAVE_LAYOUTS: dict[str, Layout] = {
    "paradigms": Layout(lambda model, folder: model.write(folder, merged=True), KINDS)
}


def check_model(folder: Path) -> None:
    """FileExistsError where a folder holds what no saved model has, and would lose it."""
    for entry in sorted(folder.rglob("*")):
        if not any(entry.match(form) for form in (FOLDERS if entry.is_dir() else FILES)):
            raise FileExistsError(
                f"{folder} would be replaced, and is more than a saved model: it holds "
                f"{entry.relative_to(folder)}. Choose another folder"
            )


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """A context that computes as `precision` says: "no", "bf16", or "fp16" on a GPU; else ValueError."""
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r}")
    if precision == "fp16" and device.type == "cpu":
        raise ValueError("precision fp16 needs a GPU; a processor has bf16")
    kind = PRECISIONS[precision]
    return torch.autocast(device.type, kind, enabled=kind is not None)


class Paradigm(Trainable):
    """rel(d, q) = 1/Z · Σ(DᵀQ ⊙ A) with a text encoder for D and Q: encode, score, explain, save."""

    def __init__(self, recipe: Recipe, encoder: Encoder) -> None:
        super().__init__()
        self.recipe = recipe
        self.encoder = encoder
        self.align, self.normalise = recipe.align_function, recipe.normalise_function

    @classmethod
    def build(
        cls,
        backbone: str | Path,
        settings: Mapping[str, Any],
        defaults: Mapping[str, Any] | None = None,
        **recipe: Any,
    ) -> "Paradigm":
        """From a backbone's name or folder, the encoder's settings as a mapping, and a `Recipe`'s fields.

        defaults: of the paradigm. What the backbone's folder says of its own use beats them (`as_published`),
        and `settings` beat both.
        """
        chosen = {**(defaults or {}), **settings}
        kind = encoder_class(chosen.get("encoder", "text"))
        check_known(kind.Settings, settings)
        whole = kind.Settings(**chosen)
        return cls(Recipe(**recipe), kind(backbone, as_published(backbone, whole, settings.keys())))

    @property
    def name(self) -> str:
        return self.recipe.name

    def description(self) -> dict[str, Any]:
        return asdict(self.recipe) | described(self.encoder)

    @property
    def reads(self) -> frozenset[str]:
        """What A may read: similarity, ids, pool, lengths, salience."""
        salience = {"salience"} if self.encoder.settings.salience != "none" else set()
        return self.recipe.alignment.reads | salience

    def with_alignment(self, align: str, normalise: str | None = None, **knobs: Any) -> "Paradigm":
        """The same encoder under another A, and `normalise` if given: ALIGNER's test-time alignments, MVDR
        (q←d).

        Imputation stands for the alignment it was made for, and goes with it.
        """
        same = self.recipe
        search = same.search if align == same.align else "gather"
        Z = same.normalise if normalise is None else normalise
        recipe = replace(same, align=align, align_knobs=knobs, normalise=Z, search=search)
        return Paradigm(recipe, self.encoder)

    def forward(self, queries: Batch, documents: Batch, chunk: int = 0) -> tuple[Tokens, Tokens]:
        """(Q, D) of tokenised texts in one call, as DistributedDataParallel wants it. chunk: see
        `TextEncoder`.
        """
        return self.encoder(queries, "query", chunk), self.encoder(documents, "document", chunk)

    def encode(self, texts: Sequence[str], side: Side) -> Tokens:
        """Tokens of raw texts, without gradients and without dropout."""
        with self.evaluating(), torch.inference_mode():
            return self.encoder(self.encoder.tokenize(texts, side).to(self.encoder.device), side)

    def encode_queries(self, texts: Sequence[str]) -> Tokens:
        """Q of x queries: axes [x, 1, l, h]."""
        return self.encode(texts, "query")

    def encode_documents(self, texts: Sequence[str]) -> Tokens:
        """D of x documents: axes [1, x, l, h]."""
        return self.encode(texts, "document")

    def interact(self, documents: Tokens, queries: Tokens) -> Interaction:
        """S, A and Z of every query against every candidate."""
        return interact(documents, queries, self.align, self.normalise)

    def score(self, documents: Tokens, queries: Tokens) -> Float[Tensor, "b n"]:
        """rel of every query against every candidate."""
        return rel(documents, queries, self.align, self.normalise)

    def write(self, folder: Path, *, merged: bool = False) -> None:
        self.encoder.save(folder, merged=merged)
        write_json(folder / "paradigm.json", asdict(self.recipe))
        if plugins := self._plugins():
            write_json(folder / "plugins.json", plugins)

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> "Paradigm":
        folder = Path(folder)
        settle(folder)
        for needed, file in json_or_empty(folder / "plugins.json").items():
            part, _, name = needed.partition(" ")
            found = REGISTERED[part].get(name) if part in REGISTERED else None
            if found is None or not plugin_of(found):
                raise ValueError(
                    f"{folder} needs the {needed}, which the plug-in {file} registers: add --plugin {file}, "
                    f"in Python load(..., plugin={file!r})"
                )
        recipe = read_settings(Recipe, folder / "paradigm.json")
        kind = TwoTowers if (folder / "query").is_dir() else TextEncoder
        return cls(recipe, kind.load(folder))

    def _plugins(self) -> dict[str, str]:
        """What of this paradigm is not built in -> the file that registered it: plugins.json."""
        r, own = self.recipe, described(self.encoder)
        encoders = {own["encoder"], own.get("query_tower", own)["encoder"]}
        parts = [("alignment", r.align), ("normaliser", r.normalise), ("imputation", r.imputation)]
        parts += [("encoder", name) for name in sorted(encoders)]
        return {f"{part} {name}": file for part, name in parts if (file := plugin_of(REGISTERED[part][name]))}


# Everything that a plug-in may register and a saved `Paradigm` names.
REGISTERED: dict[str, Mapping[str, Any]] = {
    "alignment": ALIGNMENTS,
    "normaliser": NORMALISERS,
    "imputation": IMPUTATIONS,
    "encoder": ENCODERS,
}
KINDS["paradigm.json"] = Paradigm
