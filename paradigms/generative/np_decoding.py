"""logit_c = d^−½ h_iᵀ C_c: the output vectors are the corpus's own token vectors, in clusters (NP-decoding).

Lee et al., "Nonparametric Decoding for Generative Retrieval", Findings of ACL 2023; Wu et al. 2024, Eq. 20.
An encoder reads every identifier in its document's context, and the vectors of each surface token are
clustered. The clusters are the decoder's vocabulary: START = 0, END = 1, then those of each surface token in
their order. BASE clusters once, by the pretrained encoder; ASYNC again during training
(`Generative.refresh`).
"""

import tempfile
from collections.abc import Iterator
from itertools import islice, repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from safetensors import safe_open
from torch import Tensor, nn

from paradigms.data import Corpus
from paradigms.generative.grouped_kmeans import Groups, grouped_kmeans
from paradigms.generative.identifiers import END, FIRST, START, Identifiers, tokenize
from paradigms.generative.ngrams import Branches, ranges
from paradigms.generative.settings import GenerativeSettings
from paradigms.io.progress import progress_bar
from paradigms.io.typed import naming

ENCODED = 32  # windows that the encoder reads at once
SORTED = 32  # so many batches' windows are sorted by length, against padding


class Clusters(nn.Module):
    """C ∈ R^{C×h}, the surface token of every cluster, and the cluster of every token of the identifiers.

    surface and labels stay on the CPU, where batches are made; all three are in the state dict.
    """

    def __init__(
        self, vectors: Float[Tensor, "c h"], surface: Int[np.ndarray, " c"], labels: Int[np.ndarray, " t"]
    ) -> None:
        super().__init__()
        # Not a buffer: DistributedDataParallel would send those to every process at every step.
        self.vectors = nn.Parameter(vectors, requires_grad=False)
        self.surface, self.labels = surface, labels

    def get_extra_state(self) -> Int[Tensor, " x"]:
        return torch.from_numpy(np.concatenate([self.surface, self.labels]))

    def set_extra_state(self, state: Int[Tensor, " x"]) -> None:
        self.surface, self.labels = np.split(state.cpu().numpy(), [len(self.vectors)])

    @classmethod
    def load(cls, file: Path, prefix: str) -> "Clusters":
        """From a safetensors file that holds the state dict of a module with these clusters."""
        with naming(file), safe_open(file, "pt") as stored:
            vectors = stored.get_tensor(f"{prefix}vectors")
            rest = stored.get_tensor(f"{prefix}_extra_state").numpy()
        return cls(vectors, *np.split(rest, [len(vectors)]))

    def expand(self, tokens: Int[np.ndarray, " x"]) -> tuple[Int[np.ndarray, " x1"], Int[np.ndarray, " t"]]:
        """The clusters of each surface token, as CSR; of END END. ValueError for a token that has none."""
        first, last = (np.searchsorted(self.surface, tokens, side) for side in ("left", "right"))
        if (lost := np.flatnonzero(first == last)).size:
            raise ValueError(f"the token {tokens[lost[0]]} has no cluster, as no identifier holds it")
        return ranges(first, last)

    def branches(self, found: Branches) -> Branches:
        """The same for a decoder of clusters, where any cluster of a token stands for it."""
        offsets, clusters = self.expand(found.tokens)
        return Branches(offsets[found.offsets], clusters, np.repeat(found.states, np.diff(offsets), axis=0))


def cluster_tokens(
    encoder: Any,
    embeddings: Float[Tensor, "v h"],
    tokenizer: Any,
    corpus: Corpus,
    identifiers: Identifiers,
    settings: GenerativeSettings,
    *,
    old: Clusters | None = None,
) -> Clusters:
    """argmin over C, c of Σ_t ‖x_t − C_c(t)‖², locally, c(t) one of at most k clusters of t's surface token.

    encoder: gives x. embeddings: what the decoder reads; with `old` its vectors. k is `settings.clusters`.
    The encoder reads `document_length` tokens at once, special ones included: a title with its document's
    text behind it, a text in windows.

    Without `old` (BASE), k-means++ seeds Lloyd's algorithm, and a surface token of at most k distinct vectors
    keeps them all. C is scaled to the root mean square of the embeddings, about 100 times that of x:
    unscaled, the softmax stays uniform for long. START has its embedding, END the mean vector of </s>. With
    `old` (ASYNC), the numbers of clusters, the root mean square of C and START's vector stay, and Lloyd's
    algorithm starts from the means of the old clusters' new vectors.

    Independent of the number of threads, but for rounding in the encoder. Vectors lie in a temporary file of
    4·h bytes a token. ValueError for identifiers that are no text, or of another corpus.
    """
    _check(identifiers, corpus)
    tokens, group = np.unique(identifiers.tokens, return_inverse=True)
    groups, reference = Groups.of(group), embeddings.detach().cpu()
    if old is None:
        wanted, warm = np.full(len(tokens), settings.clusters), None
    else:
        offsets, members = old.expand(tokens)
        wanted, warm = np.diff(offsets), old.labels - members[offsets[:-1]][group]
    with tempfile.TemporaryFile() as file:
        vectors = np.memmap(file, np.float32, "w+", shape=(len(group), reference.shape[1]))
        around = _around(tokenizer)
        step = settings.document_length - sum(map(len, around))
        rows = _windows(tokenizer, corpus, identifiers, step)
        end = _embed(encoder, rows, around, groups.place, vectors, old is None)
        centroids, labels = grouped_kmeans(vectors, groups, wanted, warm, 0, old is None)
    numbers = group * centroids.shape[1] + labels
    kept = np.arange(centroids.shape[1]) < wanted[:, None]
    if old is None:
        kept &= (np.bincount(numbers, minlength=kept.size) > 0).reshape(kept.shape)
    table = torch.cat([reference[:1], end[None], centroids[torch.from_numpy(kept)]])
    table[END:] *= _rms(reference if old is None else reference[END:]) / _rms(table[END:])
    surface = np.concatenate([[START, END], np.repeat(tokens, kept.sum(1))])
    return Clusters(table, surface, (FIRST - 1 + kept.ravel().cumsum())[numbers])


def _check(identifiers: Identifiers, corpus: Corpus) -> None:
    if identifiers.kind not in ("title", "text"):
        raise ValueError(f"{identifiers.kind} identifiers are no text: no vectors in context")
    if identifiers.documents != corpus.ids:
        raise ValueError("identifiers and corpus must have the same documents in the same order")
    if not len(identifiers.tokens):
        raise ValueError("the identifiers have no tokens to cluster")
    if identifiers.end not in (None, END) or identifiers.tokens.min() < FIRST:
        raise ValueError(
            f"NP-decoding numbers as T5 does: {START} starts, {END} ends, no identifier holds either; these "
            f"end with {identifiers.end} and hold {identifiers.tokens.min()}"
        )


class _Window(NamedTuple):
    """What the encoder reads at once."""

    ids: list[int]
    own: slice  # which of the identifiers' tokens it begins with; the rest is context


def _around(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The special tokens before and behind a text: T5 has </s> behind, BERT [CLS] before, [SEP] behind."""
    bare, whole = (tokenizer("a", add_special_tokens=special)["input_ids"] for special in (False, True))
    before = next(n for n in range(len(whole)) if whole[n : n + len(bare)] == bare)
    return whole[:before], whole[before + len(bare) :]


def _windows(tokenizer: Any, corpus: Corpus, identifiers: Identifiers, step: int) -> Iterator[_Window]:
    """Every identifier's tokens in windows of `step`, a title's with its document's text behind them."""
    context: Iterator[list[int]] = repeat([])
    if identifiers.kind == "title":
        texts = (corpus[owner] for owner in identifiers.owners.tolist())
        context = (text.ids for text in tokenize(tokenizer, texts, step))
    for n, text in zip(range(len(identifiers)), context, strict=False):
        own, (start, stop) = identifiers[n].tolist(), identifiers.offsets[n : n + 2].tolist()
        row = text if text[: len(own)] == own else own + text
        for first in range(start, stop, step):
            yield _Window(row[first - start :][:step], slice(first, min(first + step, stop)))


@torch.inference_mode()
def _embed(
    encoder: Any,
    windows: Iterator[_Window],
    around: tuple[list[int], list[int]],
    place: Int[np.ndarray, " t"],
    vectors: Float[np.ndarray, "t h"],
    progress: bool,
) -> Float[Tensor, " h"]:
    """Write the vector of token t to vectors[place[t]]; the mean vector of the last special token."""
    device, first = next(encoder.parameters()).device, len(around[0])
    total, count = torch.zeros(vectors.shape[1], dtype=torch.float64), 0
    with progress_bar(progress) as bar:
        task = bar.add_task("embed tokens", total=len(place))
        while some := sorted(islice(windows, ENCODED * SORTED), key=lambda window: len(window.ids)):
            for at in range(0, len(some), ENCODED):
                batch = some[at : at + ENCODED]
                rows = [torch.tensor([*around[0], *window.ids, *around[1]]) for window in batch]
                ids = nn.utils.rnn.pad_sequence(rows, batch_first=True).to(device)
                lengths = torch.tensor([len(row) for row in rows], device=device)
                mask = torch.arange(ids.shape[1], device=device) < lengths[:, None]
                states = encoder(input_ids=ids, attention_mask=mask.long()).last_hidden_state
                states = states.float().cpu()
                for window, row in zip(batch, states, strict=True):
                    places = place[window.own]
                    vectors[places] = row[first : first + len(places)].numpy()
                    total += row[first + len(window.ids)]
                    bar.advance(task, len(places))
                count += len(batch)
    return (total / count).float()


def _rms(vectors: Tensor) -> Tensor:
    return vectors.double().square().mean().sqrt().float()
