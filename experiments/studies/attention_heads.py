"""What each head of a generative model's cross-attention sees of a query and a name: D, Q, W of A = softmax.

For the experiments on Lemmas 5.1 and 5.2 of Wu et al. 2024 (arXiv:2404.00684): S = D W_QᵀW_K Qᵀ with D the
decoder's normalised states and Q the encoder's, W_Q and W_K those of one head of T5 (T5 scales no scores).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from rich.console import Console
from studies.alignment_view import chosen_queries
from studies.shared_settings import ModelSettings
from torch import Tensor

from paradigms import GENERATIVE, Generative, load
from paradigms.data import Collection, Split
from paradigms.generative.decoder import Trace, decode
from paradigms.generative.forced import sequence_scores
from paradigms.generative.small import small_t5
from paradigms.generative.targets import Targets
from paradigms.train.job import fit_generative, training_splits
from paradigms.train.loop import TrainingSettings

Array = np.ndarray
Rows = list[dict[str, Any]]


FREE = {"checkpoints", "seeds", "queries", "output", "tracker"}  # may change within a results folder


@dataclass(frozen=True)
class Pair:
    """A query and a document that is relevant to it."""

    query_id: str
    query: str
    document_id: str


@dataclass(frozen=True)
class Seen:
    """One query and the m tokens of one name, as L layers of H heads see them; double precision."""

    states: Array  # D [L, m, h], after the norm before cross-attention
    memory: Array  # Q [n, h]
    read: tuple[Array, Array]  # W_Q and W_K of the model, [L, H, k, h] each
    attention: Array  # A as the decoder computed it, [L, H, m, n]

    @cached_property
    def documents(self) -> Array:
        """W_Q d_i, [L, H, m, k]."""
        return np.einsum("lhkx,lmx->lhmk", self.read[0], self.states)

    @cached_property
    def queries(self) -> Array:
        """W_K q_j, [L, H, n, k]."""
        return np.einsum("lhkx,nx->lhnk", self.read[1], self.memory)

    @property
    def scores(self) -> Array:
        """S [L, H, m, n], of which A is the softmax over n."""
        return self.documents @ np.swapaxes(self.queries, -1, -2)


def opened(
    settings: ModelSettings, collection: Collection, accelerator: Accelerator, console: Console
) -> Iterator[tuple[str, Generative]]:
    """Every model with its name; one that has to be trained is left in the results folder."""
    if settings.checkpoints:
        for name in settings.checkpoints:
            try:
                model = load(name)
            except (OSError, ValueError) as error:
                raise SystemExit(f"--checkpoints: {name}: {error}") from error
            if not isinstance(model, Generative):
                raise SystemExit(f"--checkpoints: {name} holds {model.name}, which is no generative model")
            yield name, model.to(accelerator.device).eval()
        return
    for seed in settings.seeds:
        folder = Path(settings.output) / "models" / f"seed-{seed}"
        if not (folder / "checkpoint").is_dir():
            console.print(f"{collection.name}, seed {seed}: {settings.paradigm}")
            accelerator.wait_for_everyone()  # before any process can finish it
            model = _trained(seed, settings, collection, folder, accelerator, console)
            if accelerator.is_main_process:
                model.save_pretrained(folder / "checkpoint")
            accelerator.wait_for_everyone()
            accelerator.free_memory()
        saved = load(folder / "checkpoint").to(accelerator.device).eval()
        assert isinstance(saved, Generative)
        yield f"seed {seed}", saved


def _trained(
    seed: int,
    settings: ModelSettings,
    collection: Collection,
    folder: Path,
    accelerator: Accelerator,
    console: Console,
) -> Generative:
    splits, backbone = training_splits(collection, seed), settings.backbone
    if backbone == "small":
        backbone = str(folder / "small-t5")
        if accelerator.is_main_process and not Path(backbone).is_dir():
            texts = [*collection.corpus, *splits[0].queries.values()]
            # Dropout costs a T5 that starts from random weights more steps than it saves from over-fitting.
            small_t5(texts, backbone, width=settings.width, dropout=0.0, seed=seed)
        accelerator.wait_for_everyone()
    torch.manual_seed(seed)
    model = GENERATIVE[settings.paradigm](backbone, collection.corpus).to(accelerator.device)
    if not settings.steps:
        return model
    training = TrainingSettings(
        steps=settings.steps,
        batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
        warmup=0.05,
        save_every=-(-settings.steps // 4),
        seed=seed,
    )
    # No dev measure: what is asked here is no matter of a measure to be chosen by.
    return fit_generative(
        model, collection, splits, {}, 0, training, folder / "training", accelerator, console
    )


def chosen_pairs(split: Split, count: int) -> list[Pair]:
    """`count` judged queries, each with its most relevant document."""
    pairs = []
    for query in chosen_queries(split, count):
        judged = split.judgements[query]
        best = min((d for d in judged if judged[d] > 0), key=lambda d: (-judged[d], d))
        pairs.append(Pair(query, split.queries[query], best))
    return pairs


def best_names(model: Generative, query: str, documents: Sequence[str]) -> list[list[int]]:
    """Of each document's names the one of the largest rel; the names themselves depend on no query.

    SystemExit for a document that the model has no name for.
    """
    positions = {id: n for n, id in enumerate(model.identifiers.documents)}
    names = [model.names(positions[id]) if id in positions else [] for id in documents]
    if not all(names):
        lost = documents[[bool(own) for own in names].index(False)]
        raise SystemExit(f"{model.name} has no name for document {lost!r}: take the model's own collection")
    flat = [name for own in names for name in own]
    (scores,) = sequence_scores(model, model.tokenize([query]), [flat], model.settings.score)
    best, first = [], 0
    for own in names:
        best.append(own[int(scores[first : first + len(own)].argmax())])
        first += len(own)
    return best


def seen(model: Generative, query: str, names: Sequence[Sequence[int]]) -> list[Seen]:
    """What the heads see of a query and each of these names, in one pass."""
    crossing = [block.layer[1].EncDecAttention for block in model.backbone.decoder.block]
    states: list[Tensor] = []
    hooks = [
        attention.q.register_forward_pre_hook(lambda _, inputs: states.append(inputs[0]))
        for attention in crossing
    ]
    targets, trace = Targets.pad([names]).to(model.device), Trace()
    try:
        with model.evaluating(), torch.no_grad():
            memory, past = model.begin(model.tokenize([query]).to(model.device))
            decode(model.backbone.decoder, model.embed(targets.inputs), past, trace)
    finally:
        for hook in hooks:
            hook.remove()
    D, A = torch.stack(states)[:, 0], torch.stack(trace.attention)[:, 0]  # [L, n, m, h], [L, n, m, H, j]
    read = _weights(crossing, "q"), _weights(crossing, "k")
    return [
        Seen(
            _double(D[:, n, : len(name)]),
            _double(memory[0]),
            read,
            np.swapaxes(_double(A[:, n, : len(name)]), 1, 2),
        )
        for n, name in enumerate(names)
    ]


def _weights(crossing: Sequence[Any], name: str) -> Array:
    return np.stack([_double(getattr(a, name).weight.unflatten(0, (a.n_heads, -1))) for a in crossing])


def _double(x: Tensor) -> Array:
    return x.detach().double().cpu().numpy()
