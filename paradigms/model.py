"""Paradigms, which combine an encoder, an alignment A and a normaliser Z in one module to train and save."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import wraps
from inspect import Parameter, signature
from itertools import compress, islice
from pathlib import Path
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeAlias, TypeVar, cast

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from paradigms.align import ALIGNMENTS, NORMALISERS, Alignment, as_alignment
from paradigms.core import Interaction, Tokens, interact, join_documents, rel
from paradigms.encoder.base import Encoder
from paradigms.encoder.batches import Batch, by_length
from paradigms.encoder.precision import AUTO, autocast
from paradigms.encoder.published import as_published
from paradigms.encoder.settings import EncoderSettings, Side
from paradigms.encoder.text import ENCODERS, TextEncoder, encoder_class
from paradigms.encoder.tokenizing import Cut, count_cut, read_part
from paradigms.encoder.towers import TwoTowers, described
from paradigms.explanation import Explanation, Result
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
from paradigms.statistics import Statistics, statistics_of
from paradigms.trainable import Trainable

logger = logging.getLogger(__name__)
COUNTED = 256  # documents tokenised at once to count a corpus
FLOOR_TEXTS = 1000  # texts in which floors are counted
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


class Paradigm(Trainable):
    """rel(d, q) = 1/Z · Σ(DᵀQ ⊙ A) with D and Q from a text encoder."""

    file: ClassVar[str] = "paradigm.json"  # of a saved model: A, Z and τ
    encoder_folder: ClassVar[str] = ""  # in the model's folder

    def __init__(self, recipe: Recipe, encoder: Encoder) -> None:
        super().__init__()
        self.recipe = recipe
        self.encoder = encoder
        self.align = recipe.align
        self.normalise = recipe.normalise_function

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
        if settings.single:
            return "sentence-similarity", ["sentence-similarity", "feature-extraction", "dense"]
        colbert = ["colbert"] if self.recipe.align.is_maxsim() and settings.salience == "none" else []
        return "feature-extraction", ["multi-vector", "late-interaction", *colbert]

    def with_alignment(self, align: Alignment | str, normalise: str | None = None) -> Paradigm:
        """Return a model with the same encoder and another alignment A, such as `TopK(k=2)`.

        normalise: name of the new normaliser Z; None keeps the old one. This is used for ALIGNER's alignments
        at test time and for MVDR (q←d). If the new alignment belongs to a different class, search does not
        impute.
        """
        align = as_alignment(align)
        search = self.recipe.search if type(align) is type(self.recipe.align) else "gather"
        Z = self.recipe.normalise if normalise is None else normalise
        return type(self)(replace(self.recipe, align=align, normalise=Z, search=search), self.encoder)

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
        rows = iter(texts)

        def documents() -> Iterator[Tensor]:
            while part := list(islice(rows, COUNTED)):
                batch = self.encoder.tokenize(part, "document")
                yield from (ids[counts] for ids, counts in zip(batch.input_ids, batch.counts, strict=True))

        return Statistics.of(documents(), len(self.encoder.tokenizer))

    def count_floors(self, texts: Sequence[str], share: float) -> Statistics:
        """Count the corpus, and estimate a floor for each vocabulary token (`align.TableExcess`).

        The first `FLOOR_TEXTS` texts are encoded as documents and as queries. A token's floor is the mean,
        over its occurrences in these queries, of the similarity that `share` of the document tokens reach.
        Tokens without an occurrence have the mean floor of all others.
        """
        texts = as_sequence(texts, "texts")
        counted = self.count_corpus(texts)
        chosen = [text for text in texts[:FLOOR_TEXTS] if text.strip()]
        D = torch.from_numpy(np.concatenate(self.encode(chosen)))
        rank = max(1, round(share * len(D)))
        sums = torch.zeros(len(counted.frequencies))
        occurrences = torch.zeros_like(sums)
        for start in range(0, len(chosen), COUNTED):
            queries = self.encode_queries(chosen[start : start + COUNTED])
            assert queries.ids is not None
            masks = queries.mask[:, 0] & (queries.ids[:, 0] >= 0)
            for vectors, ids, mask in zip(queries.vectors[:, 0], queries.ids[:, 0], masks, strict=True):
                real = ids[mask].cpu()
                floors = (vectors[mask].cpu().float() @ D.T).topk(rank).values[:, -1]
                sums.index_add_(0, real, floors)
                occurrences.index_add_(0, real, torch.ones_like(floors))
        means = sums / occurrences
        floors = means.where(occurrences > 0, means[occurrences > 0].mean())
        return replace(counted, floors=floors)

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
        **other: object,
    ) -> list[np.ndarray]:
        """Encode each text as a float32 array [l, h]; l = 1 for one pooled vector.

        A text without tokens, such as a blank one, has rel 0 with everything: its pooled vector is 0, or it
        has no token vectors, l = 0.

        batch_size: number of texts, of similar length, to encode together. device: the device to move the
        model to first, for example "cuda". progress: show a progress bar.

        Raises TypeError if `texts` is a string or a mapping, or not of strings, and for other arguments.
        """
        for name in other:
            from paradigms.io.guesses import no_argument

            raise no_argument("encode", name)
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
                vectors = tokens.vectors.flatten(0, 1).cpu().float()
                masks = tokens.mask.flatten(0, 1).cpu()
                for n, rows, mask in zip(places, vectors, masks, strict=True):
                    arrays[n] = (rows.where(mask[:, None], 0) if pooled else rows[mask]).numpy()
                bar.advance(task, len(places))
        return arrays

    def tokens(self, texts: Iterable[Input], side: Side, batch: Any = None) -> Tokens:
        """Encode any number of texts as D or Q in one batch, without gradients or dropout.

        batch: what the method `batch` returned for these texts; None tokenises them. The surrounding
        `encoder.precision.autocast` sets the precision. Without it, the precision is bf16 if the device
        multiplies bf16 natively.
        """
        texts = as_sequence(texts, f"{side} texts")
        tokens = self._encoded(self.batch(texts or [""], side) if batch is None else batch, side)
        return tokens if texts else tokens.map(lambda t: t.narrow(int(side == "document"), 0, 0))

    def batch(self, texts: Sequence[Input], side: Side) -> Any:
        """Tokenise texts for `tokens`."""
        return self.encoder.tokenize(texts, side)

    def _encoded(self, batch: Any, side: Side) -> Tokens:
        device = self.encoder.device
        with self.evaluating(), torch.inference_mode(), autocast(device, AUTO):
            return replace(self.encoder(batch.to(device), side), side=side)

    def encode_queries(self, texts: Input | Iterable[Input]) -> Tokens:
        """Encode x queries, or one text, as Q, with axes [x, 1, l, h]."""
        return self.tokens([texts] if isinstance(texts, str) else texts, "query")

    def encode_documents(self, texts: Input | Iterable[Input]) -> Tokens:
        """Encode x documents, or one text, as D, with axes [1, x, l, h]."""
        return self.tokens([texts] if isinstance(texts, str) else texts, "document")

    encode_query = encode_queries
    encode_document = encode_documents

    def similarity(self, queries: Any, documents: Any) -> Float[Tensor, "b n"]:
        """Compute rel for every query and document, each given as Tokens, as one text or as several."""
        Q = queries if isinstance(queries, Tokens) else self.encode_query(queries)
        D = documents if isinstance(documents, Tokens) else self.encode_document(documents)
        return self.score(D, Q)

    def rank(
        self, query: Input, documents: Iterable[Input] | Mapping[str, Input], k: int | None = None
    ) -> list[Result]:
        """Rank k documents, or all, by rel: texts, whose ids are "0", "1" and so on, or id → text."""
        if not isinstance(documents, Mapping):
            documents = {str(n): text for n, text in enumerate(as_sequence(documents, "documents"))}
        texts = list(documents.values())
        starts = range(0, max(1, len(texts)), COUNTED)
        D = join_documents([self.encode_documents(texts[n : n + COUNTED]) for n in starts])
        with torch.inference_mode():
            scores = self.score(D, self.encode_queries([query]))[0].tolist()
        return sorted(map(Result, documents, scores, texts), key=lambda one: (-one.score, one.id))[:k]

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
        return self.explain_tokens(
            query, document, self.encode_queries([query]), self.encode_documents([document]), pool
        )

    def explain_tokens(
        self, query: Input, document: Input, queries: Tokens, documents: Tokens, pool: Tokens | None = None
    ) -> Explanation:
        """Explain one pair's score, like `explain`, given its tokens Q [1, 1, j, h] and D [1, 1, i, h]."""
        joined = documents if pool is None else join_documents([documents, pool])
        with torch.inference_mode():
            interaction = self.interact(joined, queries)
        d_mask = documents.mask[0, 0]
        q_mask = queries.mask[0, 0]
        S = interaction.similarity[0, 0, : len(d_mask)][d_mask][:, q_mask]
        A = interaction.alignment[0, 0, : len(d_mask)][d_mask][:, q_mask]
        query_labels = self.encoder.labels(query, "query", queries.ids)
        document_labels = self.encoder.labels(document, "document", documents.ids)
        u_q = queries.salience
        u_d = documents.salience
        reads = sorted(READS[name] for name in self.reads)
        return Explanation(
            system=self.name,
            reads=" and ".join(reads) if reads else "nothing: there is one pair",
            query_tokens=list(compress(query_labels, q_mask.tolist())),
            document_tokens=list(compress(document_labels, d_mask.tolist())),
            links=[(i, j, float(S[i, j]), float(A[i, j])) for i, j in A.nonzero().tolist()],
            Z=float(interaction.normaliser[0, 0]),
            rel=float(interaction.rel[0, 0]),
            query_salience=None if u_q is None else u_q[0, 0][q_mask].tolist(),
            document_salience=None if u_d is None else u_d[0, 0][d_mask].tolist(),
        )

    def write(self, folder: Path, *, merged: bool = False) -> None:
        self.encoder.save(folder / self.encoder_folder, merged=merged)
        write_json(folder / self.file, self.recipe.described())
        if "statistics" in self.align.reads:
            statistics_of(getattr(self.align, "statistics", "")).save(folder)
        if plugins := self._plugins():
            write_json(folder / "plugins.json", plugins)

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> Paradigm:
        folder = Path(folder)
        settle(folder)
        check_plugins(folder)
        recipe = read_settings(Recipe, folder / cls.file, recipe_fields)
        encoder = cls.load_encoder(folder / cls.encoder_folder)
        if "statistics" in recipe.align.reads:
            Statistics.load(folder, getattr(recipe.align, "statistics", ""), len(encoder.tokenizer))
        return cls(recipe, encoder)

    @staticmethod
    def load_encoder(folder: Path) -> Encoder:
        """Read what `Encoder.save` wrote."""
        return TwoTowers.load(folder) if (folder / "query").is_dir() else TextEncoder.load(folder)

    def _plugins(self) -> dict[str, str]:
        """Return the content of plugins.json: a map from plugin names to the files that registered them."""
        encoder = described(self.encoder)
        parts = [
            ("alignment", type(self.recipe.align).__name__),
            ("normaliser", self.recipe.normalise),
            ("imputation", self.recipe.imputation),
            ("encoder", encoder["encoder"]),
            ("encoder", encoder.get("query_tower", encoder)["encoder"]),
        ]
        registered = {f"{part} {name}": REGISTERED[part].get(name) for part, name in parts}
        return {name: plugin_of(value) for name, value in registered.items() if value and plugin_of(value)}


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
    settings_class: Any = kind
    defaults: dict[str, Any] = {field.name: field.default for field in fields(settings_class)}

    def decorate(recipe: Callable[[S], Recipe]) -> Callable[Concatenate[str | Path, P], Paradigm]:
        @wraps(recipe)
        def build(backbone: Any = None, **settings: Any) -> Paradigm:
            if backbone is None:
                raise TypeError(
                    f'{recipe.__name__} needs a backbone: "offline", or the name or folder of an encoder'
                )
            chosen = defaults | settings
            encoder = encoder_class(chosen["encoder"])
            of_encoder = {field.name for field in fields(encoder.Settings)}
            if unknown := settings.keys() - of_encoder - defaults.keys():
                check_known(settings_class, unknown)
            options = encoder.Settings(**{name: chosen[name] for name in of_encoder & chosen.keys()})
            for name in sorted(settings.keys() & options.idle):
                logger.warning("%s: %s=%r has no effect", recipe.__name__, name, settings[name])
            return Paradigm(
                recipe(settings_class(**{name: chosen[name] for name in defaults})),
                encoder(backbone, as_published(backbone, options, settings.keys())),
            )

        first = Parameter("backbone", Parameter.POSITIONAL_OR_KEYWORD, annotation=str | Path)
        keywords = signature(settings_class).replace(return_annotation=Paradigm)
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
