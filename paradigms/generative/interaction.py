"""Write a T5 decoder's rel as Σᵢⱼ (DᵀQ ⊙ A)ᵢⱼ + rest: exactly, or in the paper's form.

Wu et al. 2024, Eq. 11 to 16, derive rel = sum(ẼᵀQ ⊙ A) for one layer without norms, residuals and
feed-forward. With norm scales, attention and gates held fixed (`decoder.Trace`), the whole decoder is linear
in the context vectors c^{lh}_i = V_lh Q α^{lh}_i and the embedded prefix, so with D_{lhi} = V_lhᵀ
∂rel/∂c^{lh}_i

    rel(d, q) = Σ_{lhi,j} (DᵀQ ⊙ A)_{lhi,j} + Σᵢ x_iᵀ ∂rel/∂x_i,   A_{lhi,j} = α^{lh}_{ij},

with M·H·L document tokens, rows of A that sum to 1, and Z = 1. The sum is exact, but this D depends on the
query, through the norms, gates and patterns held fixed. The paper's D does not depend on it (score
query_part).
"""

from dataclasses import replace

import torch

from paradigms.core import Interaction, Tokens, similarity
from paradigms.encoder.text import Batch
from paradigms.generative.decoder import Trace, decode, layers_of, normalises_after
from paradigms.generative.identifiers import Targets
from paradigms.generative.model import PMI, Generative
from paradigms.generative.outputs import ScoreName


def decompose(
    model: Generative, sources: Batch, targets: Targets, scorer: ScoreName
) -> tuple[Tokens, Tokens, Interaction]:
    """Return D [b, n, L·H·M, h], Q [b, 1, N, h] and (S, A, Z, rest) for b queries with n identifiers each.

    Document tokens are ordered (layer, head, position); rel is the sum of the model's scores over positions.
    The score query_part has the printed form, Eq. 11 to 14: the last layer through the residual stream only,
    no norm, and D_{hi} = V_hᵀO_hᵀw_{d_i}, which depends on neither query nor prefix. All other scores are
    exact sums over all paths: the rest comes from the prefix and, for BART, from biases and positions. For
    log probabilities, the rest includes −Σᵢ log Σ_v exp logit_iv. For pointwise mutual information, it also
    includes −log p(d | "").
    """
    printed = scorer == "query_part"
    with model.evaluating(), torch.no_grad():  # contexts are held fixed: no gradient reaches the encoder
        states, memory = model.begin(sources)
    with model.evaluating(), torch.enable_grad():
        inputs = model.embed(targets.inputs).detach().requires_grad_()
        trace = Trace()
        hidden = decode(model.decoder, inputs, memory, trace)
        linear: ScoreName = "centred_logit" if scorer == "centred_logit" else "logit"
        parts = model.token_parts([hidden], targets, linear)
        paths = [hidden] if printed else [*trace.contexts, inputs]
        gradients = torch.autograd.grad(parts.sum(), paths)
    with model.evaluating(), torch.no_grad():
        if scorer == PMI:
            rel = model(sources, targets, scorer).sum(-1)
        else:
            rel = model.token_parts(model.readings([hidden], [memory], scorer), targets, scorer).sum(-1)
        crossing = [layer.cross_attention for layer in layers_of(model.decoder)]
        if printed:  # ∂rel/∂c^{lh}_i = O_lhᵀ ∂rel/∂h_i
            contexts = [(gradients[0] @ a.o.weight).unflatten(-1, (a.heads, -1)) for a in crossing]
        else:
            *contexts, prefix = gradients
            rest = (inputs * prefix).sum((-2, -1)) + (rel - parts.sum(-1))
        used = range(len(contexts))[-1:] if printed else range(len(contexts))
        values = [a.v.weight.unflatten(0, (a.heads, -1)) for a in crossing]
        D = torch.stack([torch.einsum("bnihk,hkd->bnhid", contexts[l], values[l]) for l in used], 2)
        A = torch.stack([trace.attention[l].transpose(2, 3) for l in used], 2)  # [b, n, L, H, i, j]
        mask = targets.mask[:, :, None, None].expand(D.shape[:-1])
        documents = Tokens(D.flatten(2, 4), mask.flatten(2))
        queries = Tokens(states[:, None], sources.attention_mask.bool()[:, None])
        S, valid = similarity(documents, queries)
        interaction = Interaction(S, A.flatten(2, 4).where(valid, 0), S.new_ones(S.shape[:2]))
        if printed or normalises_after(model.decoder):
            rest = rel - interaction.rel
        return documents, queries, replace(interaction, rest=rest)
