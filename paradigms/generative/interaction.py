"""rel of a T5 decoder as Σᵢⱼ (DᵀQ ⊙ A)ᵢⱼ + rest: the exact identity, its truncations, and the paper's form.

Wu et al. 2024, Eq. 11 to 16, derive rel = sum(ẼᵀQ ⊙ A) for one layer without norms, residuals and
feed-forward. With norm scales, attention and gates held fixed (`decoder.Trace`), the whole decoder is linear
in the context vectors c^{lh}_i = V_lh Q α^{lh}_i and the embedded prefix, so with D_{lhi} = V_lhᵀ
∂rel/∂c^{lh}_i

    rel(d, q) = Σ_{lhi,j} (DᵀQ ⊙ A)_{lhi,j} + Σᵢ x_iᵀ ∂rel/∂x_i,   A_{lhi,j} = α^{lh}_{ij},

with M·H·L document tokens, rows of A that sum to 1, and Z = 1.
"""

from dataclasses import replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from paradigms.core import Interaction, Tokens, similarity
from paradigms.encoder.text import Batch
from paradigms.generative.decoder import Attention, Trace, decode, layers_of
from paradigms.generative.identifiers import Targets
from paradigms.generative.model import Generative
from paradigms.generative.outputs import ScoreName

# exact: all paths. direct: the contexts of all layers, through the residual stream only. last: the same for
# the last layer only. naive: the last layer with attention averaged and vectors summed over heads, as in the
# paper's Eq. 13 and its public code: M document tokens, and the sum does not equal rel.
Form = Literal["exact", "direct", "last", "naive"]


def decompose(
    model: Generative, sources: Batch, targets: Targets, scorer: ScoreName, form: Form = "exact"
) -> tuple[Tokens, Tokens, Interaction]:
    """D [b, n, L·H·M, h], Q [b, 1, N, h] and S, A, Z, rest for b queries with n identifiers each.

    Document tokens are ordered (layer, head, position). Except for the naive form, rel is the sum of the
    model's scores over positions. The exact form computes the rest from the prefix; in the truncated forms,
    and for BART (biases and positions), the rest is the difference. For log probabilities the rest includes
    −Σᵢ log Σ_v exp logit_iv.
    """
    with model.evaluating(), torch.no_grad():  # contexts are held fixed: no gradient reaches the encoder
        states, memory = model.begin(sources)
    with model.evaluating(), torch.enable_grad():
        inputs = model.embed(targets.inputs).detach().requires_grad_()
        trace = Trace()
        hidden = decode(model.decoder, inputs, memory, trace)
        linear: ScoreName = "logit" if scorer == "log_probability" else scorer
        parts = model.token_parts(hidden, targets, linear)
        paths = [*trace.contexts, inputs] if form == "exact" else [hidden]
        gradients = torch.autograd.grad(parts.sum(), paths)
    with model.evaluating(), torch.no_grad():
        rel = model.token_parts(hidden, targets, scorer).sum(-1)
        if form == "exact":
            *contexts, prefix = gradients
            rest = (inputs * prefix).sum((-2, -1)) + (rel - parts.sum(-1))
        else:
            contexts = _residual_path(model, gradients[0], trace)
        crossing = [layer.cross_attention for layer in layers_of(model.decoder)]
        used = range(len(contexts))[-1:] if form in ("last", "naive") else range(len(contexts))
        D = torch.stack([_vectors(crossing[layer], contexts[layer]) for layer in used], 2)
        A = torch.stack([trace.attention[layer].transpose(2, 3) for layer in used], 2)  # [b, n, L, H, i, j]
        if form == "naive":
            D, A = D.sum(3, keepdim=True), A.mean(3, keepdim=True)
        mask = targets.mask[:, :, None, None].expand(D.shape[:-1])
        documents = Tokens(D.flatten(2, 4), mask.flatten(2))
        queries = Tokens(states[:, None], sources.attention_mask.bool()[:, None])
        S, valid = similarity(documents, queries)
        interaction = Interaction(S, A.flatten(2, 4).where(valid, 0), S.new_ones(S.shape[:2]))
        if form in ("direct", "last") or trace.scale is None:
            rest = rel - interaction.rel
        elif form == "naive":
            rest = torch.zeros_like(rel)
        return documents, queries, replace(interaction, rest=rest)


def _residual_path(model: Generative, gradient: Tensor, trace: Trace) -> list[Tensor]:
    """∂rel/∂c^{lh}_i through the residual stream only: O_lhᵀ u_i with u_i = g ⊙ ∂rel/∂h_i / rms_i."""
    if trace.scale is None:
        raise ValueError(
            f"{model.name} normalises after each layer, as BART does: only the form 'exact' is defined"
        )
    stream = gradient * model.decoder.final_layer_norm.weight * trace.scale
    crossing = [layer.cross_attention for layer in layers_of(model.decoder)]
    return [(stream @ a.o.weight).unflatten(-1, (a.heads, -1)) for a in crossing]


def _vectors(attention: Attention, gradient: Tensor) -> Float[Tensor, "b n heads m h"]:
    """D_{lhi} = V_lhᵀ ∂rel/∂c^{lh}_i of one layer."""
    values = attention.v.weight.unflatten(0, (attention.heads, -1))
    return torch.einsum("bnihk,hkd->bnhid", gradient, values)
