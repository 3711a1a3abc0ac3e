"""Identifier tokens → decoder states: the T5 decoder as retrieval needs it, from a checkpoint's own weights.

One layer is x += SA(x̄); x += Σ_h O_h V_h Q α_h; x += FFN(x̄), with x̄ = g ⊙ x / rms(x), Q the query's encoder
states and α_h the cross-attention of head h (Raffel et al. 2020, §2.1; Wu et al. 2024, Eq. 4 and 5).

Beside the decoder of transformers it has what this library needs and that one has not: the sequences of one
query share its keys and values (axes [b, n, m, h] as everywhere: queries, sequences, places, features), and
it can be run with attention patterns, norms and gates held fixed, where it is linear (`Trace`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

FAMILIES = ("t5", "mt5")  # model types whose decoder this is


def check_family(backbone: str | Path) -> None:
    """ValueError where a checkpoint, a hub name or a folder, is none of these models."""
    from transformers import AutoConfig

    found = AutoConfig.from_pretrained(backbone, trust_remote_code=False).model_type
    if found not in FAMILIES:
        raise ValueError(f"{backbone} is a {found}; generative paradigms need one of {', '.join(FAMILIES)}")


@dataclass
class Trace:
    """A pass with attention patterns, norm scales and gates held fixed, and what such a pass went through.

    Held fixed they make the decoder's output homogeneous linear in (context vectors, decoder inputs).
    """

    contexts: list[Float[Tensor, "b n m heads k"]] = field(default_factory=list)  # c = V_h Q α_h, per layer
    attention: list[Float[Tensor, "b n m heads j"]] = field(default_factory=list)  # α, per layer
    scale: Float[Tensor, "b n m 1"] | None = None  # 1 / rms of the last norm


@dataclass
class Memory:
    """What decoding keeps of b queries: per layer the cross-attention's keys and values, and the past's."""

    mask: Bool[Tensor, "b j"]
    crossed: list[tuple[Float[Tensor, "b j heads k"], Float[Tensor, "b j heads k"]]]
    past: list[tuple[Float[Tensor, "b n t heads k"], Float[Tensor, "b n t heads k"]]]

    def keep(self, rows: Int[Tensor, "b n"]) -> None:
        """Go on with these of each query's sequences: what a beam search does after each step."""
        self.past = [(_take(keys, rows), _take(values, rows)) for keys, values in self.past]


def remember(decoder: Any, states: Float[Tensor, "b j h"], mask: Bool[Tensor, "b j"]) -> Memory:
    """Q, as every layer's cross-attention sees it."""
    crossed = []
    for block in decoder.block:
        attention = block.layer[1].EncDecAttention
        crossed.append((_heads(attention.k, states, attention), _heads(attention.v, states, attention)))
    return Memory(mask, crossed, [])


def decode(
    decoder: Any, inputs: Float[Tensor, "b n m h"], memory: Memory, trace: Trace | None = None
) -> Float[Tensor, "b n m h"]:
    """States of places t … t + m − 1, after the t places that `memory` has seen; it then has seen these too.

    With a `trace` the pass is the linear one and leaves its parts there; values and outputs are the same.
    """
    drop = _dropout(decoder)
    x = drop(inputs)
    past = memory.past
    before = past[0][0].shape[2] if past else 0
    bias = _position_bias(decoder, before, inputs.shape[2])
    memory.past = []
    for layer, block in enumerate(decoder.block):
        own, crossing, feed = block.layer
        x = x + drop(_self_attention(own, x, past[layer] if past else None, bias, memory, drop, trace))
        x = x + drop(_cross_attention(crossing, x, memory.crossed[layer], memory.mask, drop, trace))
        x = x + drop(_feed_forward(feed, x, drop, trace))
    if trace is not None:
        trace.scale = _inverse_rms(decoder.final_layer_norm, x)
    return drop(_norm(decoder.final_layer_norm, x, trace))


def _self_attention(
    sublayer: Any,
    x: Tensor,
    past: tuple[Tensor, Tensor] | None,
    bias: Tensor,
    memory: Memory,
    drop: Callable[[Tensor], Tensor],
    trace: Trace | None,
) -> Tensor:
    attention, normed = sublayer.SelfAttention, _norm(sublayer.layer_norm, x, trace)
    q, k, v = (_heads(part, normed, attention) for part in (attention.q, attention.k, attention.v))
    if past is not None:
        k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
    memory.past.append((k, v))
    weights = _softmax(torch.einsum("bnihk,bnthk->bnhit", q, k) + bias)
    weights = weights.detach() if trace is not None else drop(weights)
    return attention.o(torch.einsum("bnhit,bnthk->bnihk", weights, v).flatten(-2))


def _cross_attention(
    sublayer: Any,
    x: Tensor,
    crossed: tuple[Tensor, Tensor],
    mask: Tensor,
    drop: Callable[[Tensor], Tensor],
    trace: Trace | None,
) -> Tensor:
    attention, (k, v) = sublayer.EncDecAttention, crossed
    q = _heads(attention.q, _norm(sublayer.layer_norm, x, trace), attention)
    scores = torch.einsum("bnihk,bjhk->bnihj", q, k).masked_fill(~mask[:, None, None, None], -torch.inf)
    weights = _softmax(scores)
    weights = weights.detach() if trace is not None else drop(weights)
    context = torch.einsum("bnihj,bjhk->bnihk", weights, v)
    if trace is not None:
        context = context.detach().requires_grad_()
        trace.attention.append(weights)
        trace.contexts.append(context)
    return attention.o(context.flatten(-2))


def _feed_forward(sublayer: Any, x: Tensor, drop: Callable[[Tensor], Tensor], trace: Trace | None) -> Tensor:
    dense, normed = sublayer.DenseReluDense, _norm(sublayer.layer_norm, x, trace)
    if hasattr(dense, "wi_0"):  # v1.1: act(W₀ x̄) ⊙ W₁ x̄
        gate, linear = dense.act(dense.wi_0(normed)), dense.wi_1(normed)
    else:  # v1.0: act(W x̄) = (act(W x̄) / W x̄) ⊙ W x̄, for ReLU a gate of 0 and 1
        linear = dense.wi(normed)
        gate = (dense.act(linear) / linear).where(linear != 0, 0) if trace is not None else None
    if trace is not None:
        gate = gate.detach()
    return dense.wo(drop(dense.act(linear) if gate is None else gate * linear))


def _norm(norm: Any, x: Tensor, trace: Trace | None) -> Tensor:
    scale = _inverse_rms(norm, x)
    return norm.weight * (x * (scale if trace is None else scale.detach())).to(norm.weight.dtype)


def _inverse_rms(norm: Any, x: Tensor) -> Tensor:
    exact = x.to(torch.promote_types(x.dtype, torch.float32))
    return (exact.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon).rsqrt()


def _position_bias(decoder: Any, before: int, places: int) -> Float[Tensor, "1 heads i t"]:
    """The first layer's relative position bias, which all layers use; −∞ for places yet to come."""
    attention, total = decoder.block[0].layer[0].SelfAttention, before + places
    bias = attention.compute_bias(total, total)[..., before:, :]
    place = torch.arange(total, device=bias.device)
    return bias.masked_fill(place > place[before:, None], -torch.inf)


def _heads(linear: nn.Module, x: Tensor, attention: Any) -> Tensor:
    return linear(x).unflatten(-1, (attention.n_heads, attention.key_value_proj_dim))


def _softmax(scores: Tensor) -> Tensor:
    return scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(scores.dtype)


def _dropout(decoder: Any) -> Callable[[Tensor], Tensor]:
    rate = decoder.config.dropout_rate if decoder.training else 0.0
    return lambda x: nn.functional.dropout(x, rate) if rate else x


def _take(x: Float[Tensor, "b n t heads k"], rows: Int[Tensor, "b m"]) -> Float[Tensor, "b m t heads k"]:
    """x[b, rows[b]]: whole rows are copied at once, many times faster than element by element."""
    first = x.shape[1] * torch.arange(len(rows), device=rows.device)[:, None]
    return x.flatten(0, 1).index_select(0, (rows + first).flatten()).unflatten(0, rows.shape)
