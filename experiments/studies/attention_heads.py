"""What each head of a decoder's cross-attention sees of a query and a name: D, Q and W of A = softmax(S).

S = D W_QᵀW_K Qᵀ with D the decoder's normalised states and Q the encoder's, W_Q and W_K those of one head of
T5, which scales no scores (Lemmas 5.1 and 5.2 of Wu et al. 2024, arXiv:2404.00684).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paradigms import Generative
from paradigms.generative.decoder import Trace, decode, layers_of
from paradigms.generative.forced import sequence_scores

Array = np.ndarray


@dataclass(frozen=True)
class Seen:
    """One query and the m tokens of one name, as L layers of H heads see them; double precision."""

    states: Array  # D [L, m, h], after the norm before cross-attention
    memory: Array  # Q [n, h]
    read: tuple[Array, Array]  # W_Q and W_K of the model, [L, H, k, h] each
    attention: Array  # A as the decoder computed it, [L, H, m, n]

    @property
    def projected(self) -> tuple[Array, Array]:
        """W_Q d_i, [L, H, m, k], and W_K q_j, [L, H, n, k]: S is the inner products of both."""
        D = np.einsum("lhkx,lmx->lhmk", self.read[0], self.states)
        return D, np.einsum("lhkx,nx->lhnk", self.read[1], self.memory)


def best_name(model: Generative, query: str, document: int) -> list[int]:
    """Of the document's names the one of the largest rel. ValueError for a document without a name."""
    names = model.names(document)
    if not names:
        raise ValueError(f"{model.name} has no name for document {model.identifiers.documents[document]!r}")
    ((scores,),) = sequence_scores(model, model.tokenize([query]), [names], model.settings.score)
    return names[int(scores.argmax())]


def seen(model: Generative, query: str, name: Sequence[int]) -> Seen:
    """What the heads see of a query and this name."""
    crossing = [layer.crossing for layer in layers_of(model.decoder)]
    states: list[Tensor] = []
    hooks = [
        attention.q.register_forward_pre_hook(lambda _, inputs: states.append(inputs[0]))
        for attention in crossing
    ]
    targets, trace = model.targets([[name]]).to(model.device), Trace()
    try:
        with model.evaluating(), torch.no_grad():
            memory, past = model.begin(model.tokenize([query]).to(model.device))
            decode(model.decoder, model.embed(targets.inputs), past, trace)
    finally:
        for hook in hooks:
            hook.remove()
    D, A = torch.stack(states)[:, 0, 0], torch.stack(trace.attention)[:, 0, 0]  # [L, m, h], [L, m, H, j]
    read = _weights(crossing, "q"), _weights(crossing, "k")
    return Seen(_double(D), _double(memory[0]), read, np.swapaxes(_double(A), 1, 2))


def _weights(crossing: Sequence[Any], name: str) -> Array:
    return np.stack([_double(getattr(a, name).weight.unflatten(0, (a.heads, -1))) for a in crossing])


def _double(x: Tensor) -> Array:
    return x.detach().double().cpu().numpy()
