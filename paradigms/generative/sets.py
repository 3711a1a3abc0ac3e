"""Σ_{t ∈ T_d} max_j w_tᵀq_j: the set part of rel, from the unordered set T_d of tokens that names d.

PAG (Zeng et al. 2024, SIGIR, arXiv:2404.14600) adds the set part to the score of a document's sequence. In
the formula, the set part is rel with A = `DocumentToQuery` (q←d) and Z = 1. It requires no decoding, so its
maximum over the documents of a prefix guides the beams (`beam_search`). PAG uses the decoder's states and
log(1 + max(0, ·)) of the logits; here, Q contains the encoder's states, and S itself is summed.
"""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from paradigms.align import DocumentToQuery, one
from paradigms.core import Interaction, Tokens, interact
from paradigms.data import Corpus
from paradigms.encoder.batches import by_length
from paradigms.encoder.tokenizing import call_tokenizer
from paradigms.io.progress import progress_bar

BATCH = 64  # documents per batch of the encoder


class TokenSets(nn.Module):
    """Vectors w ∈ R^{u×h} of all tokens that occur in a set, and each document's T_d, padded with u."""

    STATE = ("vectors", "tokens", "members")

    def __init__(
        self, vectors: Float[Tensor, "u h"], tokens: Int[Tensor, " u"], members: Int[Tensor, "d m"]
    ) -> None:
        super().__init__()
        self.vectors = nn.Parameter(vectors)
        # Not buffers: DistributedDataParallel broadcasts buffers at every step.
        self.tokens = nn.Parameter(tokens, requires_grad=False)  # the tokenizer's ids
        self.members = nn.Parameter(members, requires_grad=False)  # rows of `vectors`

    def interact(
        self, documents: Int[Tensor, "x n"], states: Float[Tensor, "b j h"], mask: Tensor
    ) -> Interaction:
        """Compute S, A and Z for documents, given by position, and queries, given by encoder states."""
        rows = self.members[documents]
        real = rows < len(self.vectors)
        D = nn.functional.embedding(rows.where(real, 0), self.vectors)
        return interact(Tokens(D, real), Tokens(states[:, None], mask[:, None]), DocumentToQuery(), one)

    def labels(self, tokenizer: Any, document: int) -> list[str]:
        """Return the tokens in a document's set, as the tokenizer writes them."""
        rows = self.members[document]
        return tokenizer.convert_ids_to_tokens(self.tokens[rows[rows < len(self.tokens)]].tolist())

    def all_scores(self, states: Float[Tensor, "b j h"], mask: Tensor) -> Float[Tensor, "b d"]:
        """Compute the set part of rel for every document: max_j once per token, then a sum per document."""
        maxima = (states @ self.vectors.mT).masked_fill(~mask[..., None], -torch.inf).amax(1)
        padded = nn.functional.pad(maxima.mT, (0, 0, 0, 1))
        pad = len(self.vectors)
        return nn.functional.embedding_bag(self.members, padded, mode="sum", padding_idx=pad).mT


@torch.no_grad()
def token_sets(encoder: Any, tokenizer: Any, corpus: Corpus, size: int, length: int) -> TokenSets:
    """T_d: d's `size` tokens with the largest tf/(tf + 1)·idf, among the first `length` tokens of its text.

    w_t begins as x/‖x‖², with x the mean of the encoder's states of t in the corpus, minus the mean of all
    states: an average occurrence of t in a query then adds about 1. PAG takes T_d from a trained sparse
    encoder and w from the language model's head. Special tokens never join a set.
    """
    vocabulary = encoder.get_input_embeddings().num_embeddings
    sums = torch.zeros(vocabulary, encoder.config.hidden_size, device=encoder.device)
    counts = sums.new_zeros(vocabulary)
    terms: list[tuple[np.ndarray, np.ndarray]] = [(np.zeros(0, int),) * 2] * len(corpus)
    parts = by_length([len(text) for text in corpus], rows=BATCH)
    with progress_bar(len(corpus) > BATCH) as bar:
        for part in bar.track(parts, description="token sets"):
            texts = [corpus[i] for i in part]
            rows = call_tokenizer(
                tokenizer, texts, padding=True, truncation=True, max_length=length, return_tensors="pt"
            )
            ids = rows["input_ids"].to(encoder.device)
            mask = rows["attention_mask"].to(encoder.device)
            states = encoder(input_ids=ids, attention_mask=mask).last_hidden_state.float()
            real = ids[mask.bool()]
            sums.index_add_(0, real, states[mask.bool()])
            counts += torch.bincount(real, minlength=vocabulary)
            for i, row, length_of in zip(part, ids.cpu().numpy(), mask.sum(1).tolist(), strict=True):
                terms[i] = np.unique(row[:length_of], return_counts=True)
    frequency = np.bincount(np.concatenate([ids for ids, _ in terms]), minlength=vocabulary)
    idf = np.log(1 + len(corpus) / np.maximum(frequency, 1))
    idf[tokenizer.all_special_ids] = 0
    chosen = [_largest(ids, idf[ids] * n / (n + 1), size) for ids, n in terms]
    tokens = np.unique(np.concatenate(chosen))
    members = np.full((len(corpus), size), len(tokens))
    for member, ids in zip(members, chosen, strict=True):
        member[: len(ids)] = np.searchsorted(tokens, ids)
    of_sets = torch.from_numpy(tokens)
    mean = sums.sum(0) / counts.sum()
    x = sums[of_sets.to(sums.device)] / counts[of_sets.to(sums.device), None] - mean
    vectors = x / x.square().sum(-1, keepdim=True).clamp(min=1e-12)
    return TokenSets(vectors.cpu(), of_sets, torch.from_numpy(members))


def _largest(ids: Int[np.ndarray, " t"], weights: Float[np.ndarray, " t"], k: int) -> Int[np.ndarray, " m"]:
    """Return the ids with the k largest positive weights, ascending; ties go to the smaller id."""
    order = np.argsort(-weights, kind="stable")[:k]
    return np.sort(ids[order[weights[order] > 0]])
