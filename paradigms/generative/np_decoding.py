"""logit_c = d^−½ h_iᵀ C_c: NP-decoding, whose output vectors are centroids of the corpus's token vectors.

Lee et al., "Nonparametric Decoding for Generative Retrieval", Findings of ACL 2023; Wu et al. 2024, Eq. 20.
An encoder reads every identifier in its document's context, and the vectors of each surface token are
clustered. The clusters form the decoder's vocabulary: START = 0, END = 1, then the clusters of each surface
token in order. BASE clusters once, with the pretrained encoder; ASYNC clusters again during training
(`Generative.refresh`).
"""

import tempfile
from collections.abc import Iterator
from itertools import islice, repeat
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from paradigms.data import Corpus
from paradigms.encoder.tokenizing import call_tokenizer
from paradigms.generative.grouped_kmeans import grouped_kmeans
from paradigms.generative.identifiers import END, FIRST, START, Identifiers, tokenize
from paradigms.generative.ngrams import Branches, ranges
from paradigms.generative.settings import GenerativeSettings
from paradigms.io.progress import progress_bar

ENCODED = 32  # windows per batch of the encoder
SORTED = 32  # batches whose windows are sorted by length together, to reduce padding


class Clusters(nn.Module):
    """Centroids C ∈ R^{C×h}, each cluster's surface token, and the cluster of every identifier token.

    `surface` and `labels` stay on the CPU, where batches are built. The state dict contains C, `surface` and
    `labels`.
    """

    STATE = ("vectors", "_extra_state")

    def __init__(
        self, vectors: Float[Tensor, "c h"], surface: Int[np.ndarray, " c"], labels: Int[np.ndarray, " t"]
    ) -> None:
        super().__init__()
        # Not a buffer: DistributedDataParallel broadcasts buffers at every step.
        self.vectors = nn.Parameter(vectors, requires_grad=False)
        self.surface = surface
        self.labels = labels

    @classmethod
    def of(cls, vectors: Float[Tensor, "c h"], state: Int[Tensor, " x"]) -> "Clusters":
        """Make the clusters of a state dict."""
        return cls(vectors, *np.split(state.numpy(), [len(vectors)]))

    def get_extra_state(self) -> Int[Tensor, " x"]:
        return torch.from_numpy(np.concatenate([self.surface, self.labels]))

    def set_extra_state(self, state: Int[Tensor, " x"]) -> None:
        self.surface, self.labels = np.split(state.cpu().numpy(), [len(self.vectors)])

    def expand(self, tokens: Int[np.ndarray, " x"]) -> tuple[Int[np.ndarray, " x1"], Int[np.ndarray, " t"]]:
        """Return each surface token's clusters as CSR; END is a cluster by itself.

        Raises ValueError if a token has no cluster.
        """
        first = np.searchsorted(self.surface, tokens)
        last = np.searchsorted(self.surface, tokens, "right")
        if (lost := np.flatnonzero(first == last)).size:
            raise ValueError(f"token {tokens[lost[0]]} has no cluster: no identifier contains it")
        return ranges(first, last)

    def branches(self, tokens: Branches) -> Branches:
        """Replace each successor token by all of its clusters."""
        offsets, clusters = self.expand(tokens.tokens)
        return Branches(offsets[tokens.offsets], clusters, np.repeat(tokens.states, np.diff(offsets), axis=0))


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
    """argmin over C, c of Σ_t ‖x_t − C_c(t)‖²: a local minimum, with at most k clusters per surface token.

    encoder: the model that computes x, `settings.document_length` tokens at a time, special tokens included.
    embeddings: the decoder's input vectors; with `old`, the old centroids.

    Without `old` (BASE), k = `settings.clusters`, and a surface token with at most k distinct vectors keeps
    all of them. C is scaled to the root mean square of the embeddings, which is about 100 times larger than
    that of x: without scaling, the softmax stays uniform for many steps. START keeps its embedding; END gets
    the mean vector of </s>. With `old` (ASYNC), the numbers of clusters, the root mean square of C and
    START's vector stay as they are, and k-means starts from the means of the new vectors in each old cluster.

    Vectors are written to a temporary file of 4·h bytes per token. Raises ValueError if the identifiers are
    not text or belong to another corpus.
    """
    _check(identifiers, corpus)
    tokens, group, counts = np.unique(identifiers.tokens, return_inverse=True, return_counts=True)
    reference = embeddings.detach().cpu()
    order = np.argsort(group, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    if old is None:
        sizes = np.full(len(tokens), settings.clusters)
        warm = None
    else:
        offsets, members = old.expand(tokens)
        sizes = np.diff(offsets)
        warm = (old.labels - members[offsets[:-1]][group])[order]
    with tempfile.TemporaryFile() as file:
        vectors = np.memmap(file, np.float32, "w+", shape=(len(group), reference.shape[1]))
        around = _around(tokenizer)
        step = settings.document_length - sum(map(len, around))
        rows = _windows(tokenizer, corpus, identifiers, step)
        end = _embed(encoder, tokenizer, rows, around, place, vectors, old is None)
        starts = np.append(0, counts.cumsum())
        centroids, labels = grouped_kmeans(vectors, starts, sizes, warm, 0, old is None)
    numbers = group * centroids.shape[1] + labels[place]
    used = np.arange(centroids.shape[1]) < sizes[:, None]
    if old is None:
        used &= (np.bincount(numbers, minlength=used.size) > 0).reshape(used.shape)
    table = torch.cat([reference[:1], end[None], torch.from_numpy(centroids[used])])
    table[END:] *= _rms(reference if old is None else reference[END:]) / _rms(table[END:])
    surface = np.concatenate([[START, END], np.repeat(tokens, used.sum(1))])
    return Clusters(table, surface, (FIRST - 1 + used.ravel().cumsum())[numbers])


def _check(identifiers: Identifiers, corpus: Corpus) -> None:
    if identifiers.kind not in ("title", "text"):
        raise ValueError(f"NP-decoding needs identifiers that are text, got {identifiers.kind} identifiers")
    if identifiers.documents != corpus.ids:
        raise ValueError("identifiers and corpus must have the same documents in the same order")
    if not len(identifiers.tokens):
        raise ValueError("the identifiers have no tokens to cluster")
    if identifiers.end not in (None, END) or identifiers.tokens.min() < FIRST:
        raise ValueError(
            f"NP-decoding needs T5's numbering, where {START} starts, {END} ends and no identifier contains "
            f"either; these identifiers end with {identifiers.end} and contain {identifiers.tokens.min()}"
        )


def _around(tokenizer: Any) -> tuple[list[int], list[int]]:
    """Special tokens before and after a text: nothing and </s> for T5, [CLS] and [SEP] for BERT."""
    bare = call_tokenizer(tokenizer, "a", add_special_tokens=False)["input_ids"]
    closed = call_tokenizer(tokenizer, "a")["input_ids"]
    before = next(n for n in range(len(closed)) if closed[n : n + len(bare)] == bare)
    return closed[:before], closed[before + len(bare) :]


def _windows(
    tokenizer: Any, corpus: Corpus, identifiers: Identifiers, step: int
) -> Iterator[tuple[list[int], slice]]:
    """Yield up to `step` tokens to encode, and the slice of the identifiers' tokens with which they begin.

    An identifier may take several windows. The document's text follows a title as context.
    """
    context: Iterator[list[int]] = repeat([])
    if identifiers.kind == "title":
        context = (text.ids for text in tokenize(tokenizer, corpus, step))
    for n, text in zip(range(len(identifiers)), context, strict=False):
        name = identifiers[n].tolist()
        start, stop = identifiers.offsets[n : n + 2].tolist()
        row = text if text[: len(name)] == name else name + text
        for first in range(start, stop, step):
            yield row[first - start :][:step], slice(first, min(first + step, stop))


@torch.inference_mode()
def _embed(
    encoder: Any,
    tokenizer: Any,
    windows: Iterator[tuple[list[int], slice]],
    around: tuple[list[int], list[int]],
    place: Int[np.ndarray, " t"],
    vectors: Float[np.ndarray, "t h"],
    progress: bool,
) -> Float[Tensor, " h"]:
    """Write the vector of token t to vectors[place[t]]; return the mean vector of the last special token."""
    before, after = around
    total = torch.zeros(vectors.shape[1], dtype=torch.float64)
    count = 0
    with progress_bar(progress) as bar:
        task = bar.add_task("embed tokens", total=len(place))
        while part := sorted(islice(windows, ENCODED * SORTED), key=lambda window: len(window[0])):
            for at in range(0, len(part), ENCODED):
                batch = part[at : at + ENCODED]
                rows = {"input_ids": [[*before, *ids, *after] for ids, _ in batch]}
                inputs = tokenizer.pad(rows, padding_side="right", return_tensors="pt").to(encoder.device)
                states = encoder(**inputs).last_hidden_state.float().cpu()
                for (ids, tokens), row in zip(batch, states[:, len(before) :], strict=True):
                    places = place[tokens]
                    vectors[places] = row[: len(places)].numpy()
                    total += row[len(ids)]
                    bar.advance(task, len(places))
                count += len(batch)
    return (total / count).float()


def _rms(vectors: Tensor) -> Tensor:
    return vectors.double().square().mean().sqrt().float()
