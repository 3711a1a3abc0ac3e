"""Paradigms, which combine an encoder, an alignment A and a normaliser Z in one module to train and save."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import wraps
from inspect import Parameter, signature
from itertools import compress, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, ParamSpec, TypeAlias, TypeVar, cast

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from paradigms.align import ALIGNMENTS, NORMALISERS, Alignment, as_alignment
from paradigms.core import Interaction, Tokens, interact, join_documents, rel
from paradigms.encoder.base import Encoder
from paradigms.encoder.batches import Batch, by_length
from paradigms.encoder.cut import Cut, count_cut, read_part
from paradigms.encoder.precision import AUTO, autocast
from paradigms.encoder.published import as_published
from paradigms.encoder.settings import EncoderSettings, Side
from paradigms.encoder.text import ENCODERS, TextEncoder, encoder_class
from paradigms.encoder.towers import TwoTowers, described
from paradigms.explanation import Explanation
from paradigms.impute import IMPUTATIONS
from paradigms.io.checks import (
    as_sequence,
    check_known,
    check_several,
    check_text,
    json_or_empty,
    read_settings,
)
from paradigms.io.files import settle, write_json
from paradigms.io.plugins import plugin_of
from paradigms.io.progress import progress_bar
from paradigms.recipe import Recipe, recipe_fields
from paradigms.saved import save_pretrained
from paradigms.statistics import Statistics, statistics_of

if TYPE_CHECKING:
    from paradigms.data import Corpus
    from paradigms.retrieve import Retriever

EVALUATING = threading.RLock()  # held by the thread that encodes or scores (`Trainable.evaluating`)
COUNTED = 256  # documents tokenised at once to count a corpus
Input: TypeAlias = Any  # a text; some models from other libraries also accept images (`saving.library`)
# What an alignment may read, in words.
READS = {
    "similarity": "the similarities S within the document",
    "vectors": "the side of random planes on which each token lies",
    "pool": "the similarities of the whole candidate pool",
    "ids": "the token ids",
    "lengths": "the document's length",
    "statistics": "the corpus's document frequencies of the query's tokens",
    "salience": "the salience of each token",
}


def _begin_child() -> None:
    """Make a forked process compute with one thread if its parent has computed (`Trainable.evaluating`).

    OpenMP's threads have then begun, and it would wait for them in the child, although no fork copies them.
    """
    EVALUATING.release()
    if Trainable.evaluated:
        torch.set_num_threads(1)


# A fork waits until no other thread encodes, as it would copy the locks that libraries hold meanwhile.
os.register_at_fork(
    before=EVALUATING.acquire, after_in_parent=EVALUATING.release, after_in_child=_begin_child
)


class Trainable(nn.Module, ABC):
    """The interface that the training loop requires of a model."""

    evaluated = False  # whether this process, or one that it was forked from, has entered `evaluating`
    searches: ClassVar[bool] = True  # whether a search need not read every document with every query

    @property
    @abstractmethod
    def name(self) -> str:
        """Return the paradigm's name."""

    @abstractmethod
    def description(self) -> dict[str, Any]:
        """Return all settings. Two runs with equal descriptions train the same model."""

    @abstractmethod
    def write(self, folder: Path, *, merged: bool = False) -> None:
        """Write all files of the model to an existing folder; `from_pretrained` restores it bit for bit.

        merged: add the adapters to the weights that they adapt; the adapters can then no longer be trained.
        """

    @property
    def document_length(self) -> int | None:
        """Return the maximum length of documents in tokens; None if the model's weights store documents."""
        return None

    def count_cut(self, texts: Sequence[str]) -> Cut | None:
        """Return how many documents are truncated, and how far; None if the model encodes no documents."""
        return None

    def hub_task(self) -> tuple[str, list[str]]:
        """Return the task and the tags under which the hub lists models of this kind; ("", []) if none."""
        return "", []

    def check_corpus(self, ids: Sequence[str]) -> None:
        """Raise ValueError if the model can rank only one corpus and `ids` are from another corpus."""

    def retriever(self, corpus: Corpus, precision: str) -> Retriever:
        """Return what searches or reranks the corpus with a model that needs no index (`retriever_of`)."""
        raise NotImplementedError(f"{self.name} encodes documents: search with retrieve.Indexed")

    def save_pretrained(self, folder: str | Path, layout: str = "paradigms", card: str | None = None) -> None:
        """Save this model with `saved.save_pretrained`."""
        save_pretrained(self, folder, layout, card)

    @classmethod
    @abstractmethod
    def from_pretrained(cls, folder: str | Path) -> Any:
        """Read a model saved by `write` or `save_pretrained`. No code is loaded: weights are safetensors."""

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def layers(self) -> list[nn.Module]:
        """Return the backbone's repeated modules, which are sharded and recomputed one at a time."""
        from transformers.modeling_layers import GradientCheckpointingLayer

        return [module for module in self.modules() if isinstance(module, GradientCheckpointingLayer)]

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Disable dropout within this context, which only one thread at a time can enter.

        A fork waits until no other thread is in it. Processes that are forked after a first context compute
        with one thread.
        """
        with EVALUATING:
            Trainable.evaluated = True
            # Not only the model's mode, because models with other alignments share the encoder.
            training = [module for module in self.modules() if module.training]
            for module in training:
                module.training = False
            try:
                yield
            finally:
                for module in training:
                    module.training = True


class Paradigm(Trainable):
    """rel(d, q) = 1/Z · Σ(DᵀQ ⊙ A) with D and Q from a text encoder."""

    def __init__(self, recipe: Recipe, encoder: Encoder) -> None:
        super().__init__()
        self.recipe = recipe
        self.encoder = encoder
        self.align, self.normalise = recipe.align, recipe.normalise_function

    @property
    def name(self) -> str:
        return self.recipe.name

    def description(self) -> dict[str, Any]:
        return self.recipe.described() | described(self.encoder)

    @property
    def document_length(self) -> int:
        return self.encoder.settings.document_length

    @property
    def reads(self) -> frozenset[str]:
        """Return the inputs on which the alignment may depend: similarity, ids, pool, lengths, salience."""
        salience = {"salience"} if self.encoder.settings.salience != "none" else set()
        return self.recipe.align.reads | salience

    def hub_task(self) -> tuple[str, list[str]]:
        settings = self.encoder.settings
        if self.encoder.dim == 1 and "ids" in self.reads:
            return "feature-extraction", ["sparse-encoder", "sparse"]
        if settings.query_vectors == settings.document_vectors == "pooled":
            return "sentence-similarity", ["sentence-similarity", "feature-extraction", "dense"]
        colbert = ["colbert"] if self.recipe.align.is_maxsim() and settings.salience == "none" else []
        return "feature-extraction", ["multi-vector", "late-interaction", *colbert]

    def with_alignment(self, align: Alignment | str, normalise: str | None = None) -> Paradigm:
        """Return a model with the same encoder and another alignment A, such as `TopK(k=2)`.

        normalise: name of the new normaliser Z; None keeps the old one. This is used for ALIGNER's alignments
        at test time and for MVDR (q←d). If the new alignment belongs to a different class, search does not
        impute.
        """
        align, recipe = as_alignment(align), self.recipe
        search = recipe.search if type(align) is type(recipe.align) else "gather"
        Z = recipe.normalise if normalise is None else normalise
        return type(self)(replace(recipe, align=align, normalise=Z, search=search), self.encoder)

    def truncated(self, dim: int | None) -> Paradigm:
        """Return a model with the same weights whose vectors are the first `dim` coordinates, renormalised.

        dim: None keeps all coordinates. Training with `TrainingSettings.matryoshka` prepares a model for
        truncation. Raises ValueError if the vectors have fewer coordinates, or if there is a pooled vector
        besides the tokens (COIL).
        """
        return type(self)(self.recipe, self.encoder.truncated(dim))

    def count_corpus(self, texts: Iterable[str]) -> Statistics:
        """Count the documents in which each token occurs, for alignments that use counts (`align.Idf`)."""
        check_several(texts, "texts")
        encoder, rows = self.encoder, iter(texts)

        def documents() -> Iterator[Tensor]:
            while some := list(islice(rows, COUNTED)):
                batch = encoder.tokenize(some, "document")
                yield from (ids[real] for ids, real in zip(batch.input_ids, batch.counts, strict=True))

        return Statistics.of(documents(), len(encoder.tokenizer))

    def count_cut(self, texts: Sequence[str]) -> Cut | None:
        return count_cut(self.encoder, as_sequence(texts, "texts"))

    def read_part(self, texts: Sequence[str]) -> list[str]:
        """Cut each document after the last token that the encoder reads."""
        return read_part(self.encoder, as_sequence(texts, "texts"))

    def forward(self, queries: Batch, documents: Batch, chunk: int = 0) -> tuple[Tokens, Tokens]:
        """Encode tokenised texts as (Q, D) in one call, as DistributedDataParallel requires.

        chunk: see `TextEncoder.forward`.
        """
        return self.encoder(queries, "query", chunk), self.encoder(documents, "document", chunk)

    def encode(
        self,
        texts: Iterable[str],
        side: Side = "document",
        *,
        batch_size: int = 32,
        device: torch.device | str | None = None,
        progress: bool = False,
    ) -> list[np.ndarray]:
        """Encode each text as a float32 array [l, h]; l = 1 for one pooled vector.

        A text without tokens, such as a blank one, has rel 0 with everything: its pooled vector is 0, or it
        has no token vectors, l = 0.

        batch_size: number of texts, of similar length, to encode together. device: the device to move the
        model to first, for example "cuda". progress: show a progress bar.

        Raises TypeError if `texts` is a string or a mapping, or contains anything but strings.
        """
        texts = as_sequence(texts, "texts")
        for n, text in enumerate(texts):
            check_text(text, f"text {n}")
        if device is not None:
            self.to(device)
        pooled = getattr(self.encoder.settings, f"{side}_vectors") == "pooled"
        arrays: list[np.ndarray] = [np.empty(0)] * len(texts)
        with progress_bar(progress) as bar:
            task = bar.add_task(f"encode {self.name}", total=len(texts))
            for places in by_length([len(text) for text in texts], rows=batch_size):
                tokens = self.tokens([texts[n] for n in places], side)
                vectors, mask = (x.flatten(0, 1).cpu() for x in (tokens.vectors, tokens.mask))
                for n, rows, real in zip(places, vectors.float(), mask, strict=True):
                    arrays[n] = (rows.where(real[:, None], 0) if pooled else rows[real]).numpy()
                bar.advance(task, len(places))
        return arrays

    def tokens(self, texts: Iterable[Input], side: Side) -> Tokens:
        """Encode any number of texts as D or Q in one batch, without gradients or dropout.

        The surrounding `encoder.precision.autocast` sets the precision. Without it, the precision is bf16 if
        the device multiplies bf16 natively.
        """
        device = self.encoder.device
        with self.evaluating(), torch.inference_mode(), autocast(device, AUTO):
            texts = as_sequence(texts, f"{side} texts")
            tokens = self.encoder(self.encoder.tokenize(texts or [""], side).to(device), side)
            return tokens if texts else tokens.map(lambda t: t.narrow(int(side == "document"), 0, 0))

    def encode_queries(self, texts: Iterable[Input]) -> Tokens:
        """Encode x queries as Q, with axes [x, 1, l, h]."""
        return replace(self.tokens(texts, "query"), side="query")

    def encode_documents(self, texts: Iterable[Input]) -> Tokens:
        """Encode x documents as D, with axes [1, x, l, h]."""
        return replace(self.tokens(texts, "document"), side="document")

    def interact(self, documents: Tokens, queries: Tokens) -> Interaction:
        """Compute similarities S, alignment A and normaliser Z for every query and candidate."""
        return interact(documents, queries, self.align, self.normalise)

    def score(self, documents: Tokens, queries: Tokens) -> Float[Tensor, "b n"]:
        """Compute rel for every query and candidate."""
        return rel(documents, queries, self.align, self.normalise)

    def explain(self, query: Input, document: Input, pool: Tokens | None = None) -> Explanation:
        """Explain the score of one pair of texts by its similarities S, alignment A and normaliser Z.

        pool: tokens [1, n, i, h] of the query's other candidates, for an alignment that depends on them
        (XTR).
        """
        queries, documents = self.encode_queries([query]), self.encode_documents([document])
        return self.explain_tokens(query, document, queries, documents, pool)

    def explain_tokens(
        self, query: Input, document: Input, queries: Tokens, documents: Tokens, pool: Tokens | None = None
    ) -> Explanation:
        """Explain one pair's score, like `explain`, given its tokens Q [1, 1, j, h] and D [1, 1, i, h]."""
        joined = documents if pool is None else join_documents([documents, pool])
        with torch.inference_mode():
            interaction = self.interact(joined, queries)
        d_mask, q_mask = documents.mask[0, 0], queries.mask[0, 0]
        whole = interaction.similarity, interaction.alignment
        S, A = (x[0, 0, : len(d_mask)][d_mask][:, q_mask] for x in whole)
        reads = sorted(READS[name] for name in self.reads)
        return Explanation(
            system=self.name,
            reads=" and ".join(reads) if reads else "nothing: there is one pair",
            query_tokens=list(compress(self.encoder.labels(query, "query", queries.ids), q_mask.tolist())),
            document_tokens=list(
                compress(self.encoder.labels(document, "document", documents.ids), d_mask.tolist())
            ),
            links=[(i, j, float(S[i, j]), float(A[i, j])) for i, j in A.nonzero().tolist()],
            Z=float(interaction.normaliser[0, 0]),
            rel=float(interaction.rel[0, 0]),
            query_salience=None if queries.salience is None else queries.salience[0, 0][q_mask].tolist(),
            document_salience=None
            if documents.salience is None
            else documents.salience[0, 0][d_mask].tolist(),
        )

    def write(self, folder: Path, *, merged: bool = False) -> None:
        self.encoder.save(folder, merged=merged)
        write_json(folder / "paradigm.json", self.recipe.described())
        self.write_needed(folder)

    def write_needed(self, folder: Path) -> None:
        """Write the corpus statistics that the alignment reads, and the names of plug-ins."""
        if "statistics" in self.align.reads:
            statistics_of(getattr(self.align, "statistics", "")).save(folder)
        if plugins := self._plugins():
            write_json(folder / "plugins.json", plugins)

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> Paradigm:
        folder = Path(folder)
        settle(folder)
        check_plugins(folder)
        recipe = read_settings(Recipe, folder / "paradigm.json", recipe_fields)
        kind = TwoTowers if (folder / "query").is_dir() else TextEncoder
        encoder = kind.load(folder)
        read_statistics(recipe, folder, encoder)
        return cls(recipe, encoder)

    def _plugins(self) -> dict[str, str]:
        """Return the content of plugins.json: a map from plugin names to the files that registered them."""
        r, encoder = self.recipe, described(self.encoder)
        encoders = {encoder["encoder"], encoder.get("query_tower", encoder)["encoder"]}
        parts = [
            ("alignment", type(r.align).__name__),
            ("normaliser", r.normalise),
            ("imputation", r.imputation),
        ]
        parts += [("encoder", name) for name in sorted(encoders)]
        known = ((part, name) for part, name in parts if name in REGISTERED[part])  # not a wrapped encoder
        return {f"{part} {name}": file for part, name in known if (file := plugin_of(REGISTERED[part][name]))}


def check_plugins(folder: Path) -> None:
    """Raise ValueError if a plug-in that a saved model needs has not been imported."""
    for needed, file in json_or_empty(folder / "plugins.json").items():
        part, _, name = needed.partition(" ")
        registered = REGISTERED[part].get(name) if part in REGISTERED else None
        if registered is None or not plugin_of(registered):
            raise ValueError(
                f"{folder} needs the {needed}, which the plug-in {file} registers: add --plugin {file}, "
                f"in Python load(..., plugin={file!r})"
            )


def read_statistics(recipe: Recipe, folder: Path, encoder: Any) -> None:
    """Load a saved model's corpus statistics, if its alignment reads them."""
    if "statistics" in recipe.align.reads:
        Statistics.load(folder, getattr(recipe.align, "statistics", ""), len(encoder.tokenizer))


P = ParamSpec("P")
S = TypeVar("S", bound=EncoderSettings)


def paradigm(
    kind: Callable[P, S],
) -> Callable[[Callable[[S], Recipe]], Callable[Concatenate[str | Path, P], Paradigm]]:
    """Turn a function from settings to a recipe into a builder, (backbone, **settings) -> Paradigm.

    kind: the dataclass of the settings; its fields are the builder's keywords. Settings that the backbone's
    folder publishes override the defaults (`as_published`), and the caller's settings override both. A class
    in `ENCODERS` may have additional settings. The builder raises ValueError for unknown settings.
    """
    made: Any = kind
    defaults: dict[str, Any] = {field.name: field.default for field in fields(made)}

    def decorate(recipe: Callable[[S], Recipe]) -> Callable[Concatenate[str | Path, P], Paradigm]:
        @wraps(recipe)
        def build(backbone: Any = None, **settings: Any) -> Paradigm:
            if backbone is None:
                raise TypeError(
                    f'{recipe.__name__} needs a backbone: "offline", or the name or folder of an encoder'
                )
            chosen = defaults | settings
            encoder = encoder_class(chosen["encoder"])
            known = {field.name for field in fields(encoder.Settings)}
            if unknown := settings.keys() - known - defaults.keys():
                check_known(made, unknown)
            whole = encoder.Settings(**{name: value for name, value in chosen.items() if name in known})
            of_recipe = recipe(made(**{name: chosen[name] for name in defaults}))
            return Paradigm(of_recipe, encoder(backbone, as_published(backbone, whole, settings.keys())))

        first = Parameter("backbone", Parameter.POSITIONAL_OR_KEYWORD, annotation=str | Path)
        keywords = signature(made).replace(return_annotation=Paradigm)
        build.__signature__ = keywords.replace(  # type: ignore[attr-defined]
            parameters=[first, *keywords.parameters.values()]
        )
        return cast(Callable[Concatenate[str | Path, P], Paradigm], build)

    return decorate


# Everything that a plug-in may register and a saved `Paradigm` names.
REGISTERED: dict[str, Mapping[str, Any]] = {
    "alignment": ALIGNMENTS,
    "normaliser": NORMALISERS,
    "imputation": IMPUTATIONS,
    "encoder": ENCODERS,
}
