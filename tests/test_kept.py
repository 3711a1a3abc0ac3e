"""What is kept answers as what is made anew, or is refused: one machine over everything that is kept.

A sequence changes weights (in place, through .data, by optimizers), the backbone's files, settings, texts and
a plug-in; it keeps, grows, cuts and opens again. After each step, what is kept must answer for the model and
the texts of that moment as one that is made anew, or be refused by an error. Where its content is that of the
moment, it must answer. KEPT_SEQUENCES=1000 draws so many sequences.
"""

import copy
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from torch import nn

from paradigms import PARADIGMS, Paradigm
from paradigms.encoder.precision import autocast
from paradigms.encoder.settings import SIDES
from paradigms.encoder.text import ENCODERS
from paradigms.find import Store, open_index
from paradigms.io.plugins import load_plugins
from paradigms.retrieve import Indexed
from paradigms.train.fit import keep_states
from tests.near import assert_within_rounding
from tests.tiny import write_checkpoint

QUERIES = {"q": "the red cat", "r": "cold snow on ice", "s": "a river of the sea"}
TEXTS = [
    "the red cat",
    "warm fire and wood",
    "the sea and the river",
    "snow, cold snow on ice",
    "a cat in a house",
    "bread and milk for the king",
    "old iron ships",
    "the moon on the sea",
    "red wine",
]
NAMES = ("dpr", "colbert", "me_bert", "xtr")
SETTINGS: dict[str, list[Any]] = {
    "pooling": ["cls", "mean", "max"],
    "vectors": [2, 3],
    "document_length": [6, 32],
    "document_marker": ["", "[unused0]"],
    "document_prompt": ["", "old "],
    "skip": ["", ","],
    "normalize": [True, False],
    "special_tokens": [True, False],
    "truncate": [None, 16],
    "query_length": [8, 24],
    "query_marker": ["", "[unused1]"],
    "query_augmentation": [False, True],
    "encoder": ["text", "scaled"],
}
CONFIG = {"hidden_act": ["gelu", "relu"], "layer_norm_eps": [1e-12, 0.5], "num_attention_heads": [2, 4]}
FILES: dict[str, list[Any]] = CONFIG | {"words": [["red", "the"], ["the", "red"]], "weights": ["0", "1"]}
EDITED = ("config.json", "tokenizer.json")
# Parts of the names of weights.
PARTS = ["", "attention.self.query", "word_embeddings", "output.dense", "LayerNorm"]
PLUGIN = """
import torch
from dataclasses import replace
from paradigms.encoder.text import ENCODERS, TextEncoder


class Scaled(TextEncoder):
    def forward(self, batch, side, chunk=0):
        tokens = super().forward(batch, side, chunk)
        return replace(tokens, vectors=tokens.vectors * torch.linspace(0, {}, tokens.vectors.shape[-1]))


ENCODERS["scaled"] = Scaled
"""
REFUSED = (ValueError, FileExistsError)
Texts = dict[str, str]
STORED: dict[str, Any] = {"dtype": torch.float16, "terms": 16}  # rounding of stored vectors and states


# --- models and their changes -------------------------------------------------------------------------


@dataclass(frozen=True)
class Description:
    """All that decides what a model computes: its files and settings, and weights that replace the files'."""

    files: Path
    name: str
    settings: dict[str, Any]
    weights: dict[str, torch.Tensor] | None = None

    def made(self) -> Paradigm:
        """The model, in objects that nothing else knows but the tokenizer."""
        made = read(self.files, self.name, tuple(self.settings.items()), ENCODERS.get("scaled"))
        model = copy.deepcopy(made, {id(made.encoder.tokenizer): made.encoder.tokenizer})
        if self.weights is not None:
            model.load_state_dict({name: weight.clone() for name, weight in self.weights.items()})
        return model


@lru_cache(maxsize=8)
def read(files: Path, name: str, settings: tuple[tuple[str, Any], ...], plugin: Any) -> Paradigm:
    """Read a model, which computes nothing itself: copies of it do."""
    torch.manual_seed(0)
    return PARADIGMS[name](files, **dict(settings))


def step(
    weight: nn.Parameter, change: torch.Tensor, kind: type[torch.optim.Optimizer], **options: Any
) -> None:
    """Change a weight by a step of an optimizer."""
    weight.grad = -change
    kind([weight], **options).step()
    weight.grad = None


# How a weight is changed by a tensor, without gradients.
WAYS: dict[str, Callable[[nn.Parameter, torch.Tensor], Any]] = {
    "in place": lambda weight, change: weight.add_(change),
    "by .data": lambda weight, change: weight.data.add_(change),
    "other .data": lambda weight, change: setattr(weight, "data", weight.data + change),
    "by numpy": lambda weight, change: np.add(weight.numpy(), change.numpy(), out=weight.numpy()),
    "by SGD": partial(step, kind=torch.optim.SGD, lr=1.0),
    "by fused AdamW": partial(step, kind=torch.optim.AdamW, lr=0.3, fused=True),
}


# --- what is kept -------------------------------------------------------------------------------------


@dataclass
class Kept:
    """Something that is kept in `folder`, made of the world's model and texts at that moment."""

    world: "World"
    folder: Path
    texts: Texts = field(default_factory=dict)
    made: str = ""  # the world's `content` then
    checked: int = -1  # the world's `version` of the last check

    def __post_init__(self) -> None:
        self.texts, self.made = dict(self.world.texts), self.world.content()
        self.make()

    def make(self) -> None: ...
    def add(self, id: str, text: str) -> None:
        raise NotImplementedError

    def answer(self) -> Any:
        """Its answer for the world's model and texts."""
        raise NotImplementedError

    def anew(self) -> Any:
        """The answer of a new one, made of the same model and texts."""
        return self.world.anew().encode(list(self.world.texts.values()))


class InMemory(Kept):
    """The world's own model, with what it has copied of its weights."""

    def answer(self) -> Any:
        return self.of(self.world.model)

    def anew(self) -> Any:
        return self.of(self.world.anew())

    def of(self, model: Paradigm) -> Any:
        read = self.world.model.encoder.split is not None  # states, which are those of float32
        with autocast(torch.device("cpu"), "no" if read else self.world.precision):
            return [model.encode(TEXTS[:3], side) for side in SIDES]


class OnDisk(Kept):
    """An index in a folder."""

    kind: ClassVar[str] = "exact"

    def make(self) -> None:
        Indexed.build(self.world.model, self.texts, self.folder, kind=self.kind)

    def opened(self) -> Indexed:
        return Indexed.open(self.folder, self.world.model)

    def answer(self) -> Any:
        return self.opened().search(QUERIES)

    def anew(self) -> Any:
        model = self.world.anew()
        dim = min(model.encoder.dim, self.store().dim)
        return Indexed.build(model, self.texts, dim=dim, kind=self.kind).search(QUERIES)

    def store(self) -> Store:
        return open_index(self.folder).store

    def add(self, id: str, text: str) -> None:
        self.store().add(self.world.model, [id], [text])

    def delete(self, id: str) -> None:
        self.store().delete([id]).compact()
        del self.texts[id]


class Compressed(OnDisk):
    """An index of codes, whose centroids are those of its first documents: it does not grow here."""

    kind = "compressed"


class Unkept(OnDisk):
    """An index in memory."""

    def make(self) -> None:
        self.index = Indexed.build(self.world.model, self.texts).index

    def opened(self) -> Indexed:
        return Indexed(self.index, self.world.model)

    def store(self) -> Store:
        return self.index.store

    def add(self, id: str, text: str) -> None:
        self.index = type(self.index)(self.store().add(self.world.model, [id], [text]))

    def delete(self, id: str) -> None:
        self.index = type(self.index)(self.store().delete([id]))
        del self.texts[id]


class States(Kept):
    """Stored states of frozen layers, which models share."""

    def make(self) -> None:
        self.answer()

    def answer(self) -> Any:
        return self.encoded(self.world.described().made())

    def encoded(self, model: Paradigm) -> Any:
        texts = list(self.world.texts.values())
        keep_states(model, 1, self.folder, {"document": texts}, self.world.accelerator, untrained=True)
        return model.encode(texts)


class Read(States):
    """The world's own model, which goes on reading its stored states."""

    def make(self) -> None:
        self.encoded(self.world.model)

    def answer(self) -> Any:
        return self.world.model.encode(list(self.world.texts.values()))


KINDS: dict[str, type[Kept]] = {
    "index": OnDisk,
    "compressed index": Compressed,
    "index in memory": Unkept,
    "states": States,
    "states being read": Read,
}
GROWN = ("index", "index in memory")


@cache
def checkpoints() -> Path:
    """Folder of tiny checkpoints, by the seed of their weights."""
    root = Path(tempfile.mkdtemp())
    for seed in range(2):
        write_checkpoint("bert", root / str(seed), seed=seed)
    return root


# --- the machine --------------------------------------------------------------------------------------


class World(RuleBasedStateMachine):
    """A model in memory, its backbone's files, texts, and what was kept of them."""

    @initialize(
        name=st.sampled_from(NAMES),
        precision=st.sampled_from(["no", "bf16"]),
        whats=st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=4, unique=True),
    )
    def start(self, name: str, precision: str, whats: list[str]) -> None:
        self.precision = precision
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr("paradigms.encoder.precision._native_on_cpu", lambda: False)
        self.patch.setattr("paradigms.store.shards.SHARD", 1)
        self.patch.setattr(sys, "dont_write_bytecode", True)
        self.patch.setattr(os, "fsync", lambda _: None)
        self.patch.setattr("paradigms.io.plugins.LOADED", [])
        self.patch.setitem(ENCODERS, "scaled", None)  # the plug-in's; other tests do not see it
        self.root, self.number = Path(tempfile.mkdtemp()), 0
        self.patch.syspath_prepend(str(self.root))
        self.accelerator = Accelerator(cpu=True)
        self.accelerator.print = lambda *_: None
        self.here = Path(shutil.copytree(checkpoints() / "0", self.root / "backbone"))
        self.edited = {what: values[0] for what, values in FILES.items()}
        self.texts = {f"d{n}": text for n, text in enumerate(TEXTS[:4])}
        self.name, self.version, self.last = name, 0, "nothing"
        self.fresh: tuple[int, Paradigm] | None = None
        self.kept: dict[str, Kept] = {}
        self.plug(1)
        self.open({})
        self.memory = InMemory(self, self.root)
        for what in whats:
            self.keep(what)

    def teardown(self) -> None:
        if not hasattr(self, "patch"):
            return
        self.patch.undo()
        shutil.rmtree(self.root)

    # What the kept ones ask of the world.

    def free(self) -> Path:
        """A folder that does not exist."""
        self.number += 1
        return self.root / str(self.number)

    def described(self) -> Description:
        weights = {name: weight.clone() for name, weight in self.model.state_dict().items()}
        return Description(self.files, self.name, dict(self.settings), weights)

    def anew(self) -> Paradigm:
        """The model of this step, made anew; who changes it makes one of its own."""
        if self.fresh is None or self.fresh[0] != self.version:
            self.fresh = self.version, self.described().made()
        return self.fresh[1]

    def content(self) -> str:
        """What decides the model's D, as far as the machine has changed it."""
        s = asdict(self.model.encoder.settings)
        ours = {name: s[name] for name in s if not name.startswith("query") and name != "attend_augmentation"}
        plugin = self.plugin if s["encoder"] == "scaled" else None
        return json.dumps([self.weights, self.opened, plugin, ours])

    def use(self, described: Description, weights: str, opened: Any) -> None:
        """Take a model into memory. weights, opened: names of its weights and of its other files."""
        self.name, self.settings, self.files = described.name, described.settings, described.files
        self.weights, self.opened, self.model = weights, opened, described.made().eval()

    # Changes.

    def changed(self, how: str) -> None:
        self.last, self.version = how, self.version + 1

    @rule(name=st.sampled_from(NAMES), data=st.data())
    def set(self, name: str, data: st.DataObject) -> None:
        """Another paradigm, or another setting, of the same weights."""
        key = data.draw(st.sampled_from(["", *SETTINGS]))
        other = {key: data.draw(st.sampled_from(SETTINGS[key]))} if key else {}
        described = replace(self.described(), name=self.name if key else name, settings=self.settings | other)
        self.use(described, self.weights, self.opened)
        self.changed(f"set {key or 'paradigm'}")

    @rule(way=st.sampled_from(list(WAYS)), part=st.sampled_from(PARTS))
    def change(self, way: str, part: str) -> None:
        """Other weights in memory."""
        self.changed(f"weights {way}")
        generator = torch.Generator().manual_seed(self.version)
        for name, weight in self.model.named_parameters():
            if part in name:
                with torch.no_grad():
                    WAYS[way](weight, 0.3 * torch.randn(weight.shape, generator=generator))
        self.weights = f"changed {self.version}"

    @rule(data=st.data(), settings=st.booleans())
    def edit(self, data: st.DataObject, settings: bool) -> None:
        """Write one of the backbone's files again, with other content or the same, and open the folder."""
        what = data.draw(st.sampled_from(list(FILES)))
        self.edited[what] = data.draw(st.sampled_from(FILES[what]))
        self.open(self.settings if settings else {})
        self.changed(f"file {what}")

    def open(self, settings: dict[str, Any]) -> None:
        """Write the backbone's files as `edited`, and take the model into memory."""
        config, words = (json.loads((checkpoints() / "0" / file).read_text()) for file in EDITED)
        config |= {name: self.edited[name] for name in CONFIG}
        vocabulary, pair = words["model"]["vocab"], self.edited["words"]
        vocabulary |= dict(zip(pair, [vocabulary[word] for word in sorted(pair)], strict=True))
        for file, content in zip(EDITED, (config, words), strict=True):
            (self.here / file).write_text(json.dumps(content))
        shutil.copy(checkpoints() / self.edited["weights"] / "model.safetensors", self.here)
        opened = [self.edited[what] for what in FILES if what != "weights"]
        files = Path(shutil.copytree(self.here, self.free()))
        self.use(Description(files, self.name, settings), f"file {self.edited['weights']}", opened)

    @rule(number=st.integers(0, 5), text=st.sampled_from(TEXTS))
    def write(self, number: int, text: str) -> None:
        """A text that is new, or another one under the same id."""
        self.texts[f"d{number}"] = text
        self.changed("text")

    @precondition(lambda self: len(self.texts) > 3)
    @rule(data=st.data())
    def erase(self, data: st.DataObject) -> None:
        del self.texts[data.draw(st.sampled_from(list(self.texts)))]
        self.changed("text")

    @rule(factor=st.sampled_from([1, 20]))
    def plug(self, factor: int) -> None:
        """Change the plug-in, and make the model in memory, which may use it, again."""
        file = self.root / "kept_plugin.py"
        file.write_text(PLUGIN.format(factor))
        sys.modules.pop(file.stem, None)
        load_plugins(file)
        self.plugin = factor
        self.changed("plug-in")
        if hasattr(self, "model"):
            self.use(self.described(), self.weights, self.opened)

    # Keeping.

    @rule(what=st.sampled_from(list(KINDS)))
    def keep(self, what: str) -> None:
        self.kept[what] = KINDS[what](self, self.free())

    @precondition(lambda self: any(name in GROWN for name in self.kept))
    @rule(data=st.data(), number=st.integers(6, 9), text=st.sampled_from(TEXTS))
    def grow(self, data: st.DataObject, number: int, text: str) -> None:
        what = data.draw(st.sampled_from([name for name in self.kept if name in GROWN]))
        kept, id = self.kept[what], f"d{number}"
        if id in kept.texts:
            return
        try:
            kept.add(id, text)
        except REFUSED:
            if kept.made == self.content():
                raise
            return
        kept.texts[id] = text
        self.changed("grown")

    @precondition(lambda self: any(isinstance(kept, OnDisk) for kept in self.kept.values()))
    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        kept = self.kept.get(data.draw(st.sampled_from(GROWN)))
        if kept is not None and len(kept.texts) > 1:
            kept.delete(data.draw(st.sampled_from(list(kept.texts))))
            self.changed("cut")

    # Answers.

    @invariant()
    def all_answer(self) -> None:
        if not hasattr(self, "memory"):
            return
        self.check("memory", self.memory)
        for what, kept in list(self.kept.items()):
            self.check(what, kept)

    def check(self, what: str, kept: Kept) -> None:
        """Check that it answers as one made anew, or is refused and its content is another's."""
        if kept.checked == self.version:
            return
        kept.checked = self.version
        try:
            results = kept.answer()
        except REFUSED as error:
            if kept.made == self.content():
                raise AssertionError(f"{what} is refused, though it has the same content") from error
            return
        try:
            assert_within_rounding(results, kept.anew(), **STORED)
        except AssertionError as error:
            raise AssertionError(f"{what} answers otherwise than one made anew ({self.last})") from error


TestKept = World.TestCase
TestKept.settings = settings(
    max_examples=int(os.environ.get("KEPT_SEQUENCES", "6")),
    stateful_step_count=10,
    derandomize="KEPT_SEQUENCES" not in os.environ,
)
