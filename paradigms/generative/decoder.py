"""Compute decoder states for identifier tokens, with T5's and BART's decoders and many sequences per query.

One layer of T5 is x += SA(x̄); x += Σ_h O_h V_h Q α_h; x += FFN(x̄), with x̄ = g ⊙ x / rms(x), Q the query's
encoder states and α_h the cross-attention of head h (Raffel et al. 2020, §2.1; Wu et al. 2024, Eq. 4 and 5).
BART normalises after each sum, with means and biases (Lewis et al. 2020, §2.1). Two things differ from
transformers' decoder: the sequences of a query share its keys and values (axes [b, n, m, h]: queries,
sequences, positions, features), and attention, norms and gates can be held fixed, which makes the decoder
linear (`Trace`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from paradigms.encoder.packed import linears

FAMILIES = ("t5", "mt5", "bart")  # supported model types
WIDE = (torch.float32, torch.float64)  # types of the compiled norm
Drop = Callable[[Tensor], Tensor]
Products = Callable[[Tensor], Sequence[Tensor]]  # from `linears`


def small_decoder(width: int, heads: int, layers: int) -> nn.Module:
    """Return a T5 v1.1 decoder with random weights, for encoder states of the given width."""
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5Stack

    config = T5Config(
        vocab_size=2,
        d_model=width,
        d_kv=max(1, width // heads),
        d_ff=2 * width,
        num_layers=layers,
        num_heads=heads,
        dropout_rate=0.0,
        feed_forward_proj="gated-gelu",
        is_decoder=True,
        is_encoder_decoder=False,
    )
    stack = T5Stack(config)
    stack.set_input_embeddings(None)  # never read
    return stack


class Attention(NamedTuple):
    """An attention module, with the same names for T5 and BART.

    The functions keep the weights, and whether there are gradients, from the moment when they were made.
    """

    q: nn.Linear
    k: nn.Linear
    v: nn.Linear
    o: nn.Linear
    heads: int
    scale: float  # factor of the scores; 1 in T5
    read: Products  # x ↦ its queries, keys and values; in cross-attention, its queries
    write: Products
    norm: nn.Module


class Feed(NamedTuple):
    """A feed-forward module; functions as in `Attention`. Two matrices are read: act(W₀ x̄) ⊙ W₁ x̄."""

    act: nn.Module
    read: Products
    write: Products
    norm: nn.Module


class Layer(NamedTuple):
    self_attention: Attention
    cross_attention: Attention
    feed: Feed


def layers_of(decoder: Any) -> list[Layer]:
    if normalises_after(decoder):
        return [
            Layer(
                _attention(each.self_attn, each.self_attn_layer_norm),
                _attention(each.encoder_attn, each.encoder_attn_layer_norm, crossing=True),
                Feed(each.activation_fn, linears(each.fc1), linears(each.fc2), each.final_layer_norm),
            )
            for each in decoder.layers
        ]
    return [
        Layer(
            _attention(first.SelfAttention, first.layer_norm),
            _attention(second.EncDecAttention, second.layer_norm, crossing=True),
            _feed(feed.DenseReluDense, feed.layer_norm),
        )
        for first, second, feed in (block.layer for block in decoder.block)
    ]


def _attention(a: Any, norm: nn.Module, *, crossing: bool = False) -> Attention:
    bart = hasattr(a, "q_proj")
    q, k, v, o = (a.q_proj, a.k_proj, a.v_proj, a.out_proj) if bart else (a.q, a.k, a.v, a.o)
    heads, scale = (a.num_heads, a.scaling) if bart else (a.n_heads, 1.0)
    read = linears(q) if crossing else linears(q, k, v)
    return Attention(q, k, v, o, heads, scale, read, linears(o), norm)


def _feed(dense: Any, norm: nn.Module) -> Feed:
    wide = (dense.wi_0, dense.wi_1) if hasattr(dense, "wi_0") else (dense.wi,)  # two in T5 v1.1
    return Feed(dense.act, linears(*wide), linears(dense.wo), norm)


def normalises_after(decoder: Any) -> bool:
    """Whether the decoder normalises after the sums, as BART does."""
    return decoder.config.model_type == "bart"


@dataclass
class Trace:
    """Intermediate values of a pass with attention, norm scales and gates held fixed.

    The output of such a pass is homogeneous and linear in (context vectors, decoder inputs).
    """

    contexts: list[Float[Tensor, "b n m heads k"]] = field(default_factory=list)  # c = V_h Q α_h, per layer
    attention: list[Float[Tensor, "b n m heads j"]] = field(default_factory=list)  # α, per layer


@dataclass
class Memory:
    """Cache for decoding b queries: each layer's cross-attention and self-attention keys and values.

    The decoder's weights and hooks must not change while a memory is in use.
    """

    mask: Bool[Tensor, "b j"]
    crossed: list[tuple[Float[Tensor, "b j heads k"], Float[Tensor, "b j heads k"]]]
    past: list[tuple[Float[Tensor, "b n t heads k"], Float[Tensor, "b n t heads k"]]]
    crossing: Float[Tensor, "b n m h"] | None = None  # Σ_h O_h V_h Q α_h of the last layer, newest positions
    layers: list[Layer] | None = None  # the decoder's, looked up once
    mode: tuple[bool, bool] | None = None  # whether gradients and autocast were on when they were
    bias: Float[Tensor, "1 heads t t"] | None = None  # of positions in self-attention

    def of_query(self, query: int) -> "Memory":
        """Return one query's memory, before any decoding."""
        row = slice(query, query + 1)
        crossed = [(keys[row], values[row]) for keys, values in self.crossed]
        return Memory(self.mask[row], crossed, [], layers=self.layers, mode=self.mode)

    def keep(self, rows: Int[np.ndarray, "b n"]) -> None:
        """Keep the given sequences of each query, as a beam search does after each step."""
        if self.past:
            old = self.past[0][0].shape[1]
            new = rows.shape[1]
            flat = (rows + old * np.arange(len(rows))[:, None]).ravel()
            if old != new or not np.array_equal(flat, np.arange(len(flat))):
                at = torch.from_numpy(flat).to(self.mask.device)
                self.past = [(_take(keys, at, new), _take(values, at, new)) for keys, values in self.past]


def _mode() -> tuple[bool, bool]:
    return torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")  # a GPU's weights are never reordered


def remember(decoder: Any, states: Float[Tensor, "b j h"], mask: Bool[Tensor, "b j"]) -> Memory:
    """Build the cache from the queries' encoder states: every cross-attention's keys and values."""
    layers = layers_of(decoder)
    crossing = [layer.cross_attention for layer in layers]
    crossed = [(_heads(a.k(states), a), _heads(a.v(states), a)) for a in crossing]
    return Memory(mask, crossed, [], layers=layers, mode=_mode())


def decode(
    decoder: Any, inputs: Float[Tensor, "b n m h"], memory: Memory, trace: Trace | None = None
) -> Float[Tensor, "b n m h"]:
    """Compute the decoder states of positions t … t + m − 1; `memory` already contains the first t positions.

    The new positions are added to `memory`. With a `trace`, intermediate values are stored there, and
    gradients treat the pass as a linear map. The returned states are the same.
    """
    config = decoder.config
    past = memory.past
    after = normalises_after(decoder)
    rate = (config.dropout if after else config.dropout_rate) * decoder.training
    weights_rate = config.attention_dropout * decoder.training if after else rate
    drop: Drop = partial(nn.functional.dropout, p=rate) if rate else nn.Identity()
    before = past[0][0].shape[2] if past else 0
    if after:
        table = decoder.embed_positions
        places = torch.arange(inputs.shape[2], device=inputs.device)
        positions = nn.functional.embedding(table.offset + before + places, table.weight)
        inputs = _norm(decoder.layernorm_embedding, inputs + positions, trace)
    x = drop(inputs)
    bias = _bias(decoder, before, inputs, memory)
    mask = memory.mask[:, None, None]
    memory.past = []

    def add(x: Tensor, norm: nn.Module, part: Callable[..., Tensor], *arguments: Any) -> Tensor:
        if after:
            return _norm(norm, x + drop(part(x, *arguments)), trace)
        return x + drop(part(_norm(norm, x, trace), *arguments))

    if memory.layers is None or memory.mode != _mode():
        memory.layers = layers_of(decoder)
        memory.mode = _mode()
    for number, layer in enumerate(memory.layers):
        to_self = layer.self_attention
        to_query = layer.cross_attention
        seen = past[number] if past else None
        crossed = memory.crossed[number]
        x = add(x, to_self.norm, _self_attention, to_self, seen, bias, memory, weights_rate, trace)
        x = add(x, to_query.norm, _cross_attention, to_query, crossed, mask, memory, weights_rate, trace)
        x = add(x, layer.feed.norm, _feed_forward, layer.feed, drop, trace)
    if after:
        return x
    return drop(_norm(decoder.final_layer_norm, x, trace))


def _self_attention(
    x: Tensor,
    attention: Attention,
    past: tuple[Tensor, Tensor] | None,
    bias: Float[Tensor, "1 heads i t"],
    memory: Memory,
    dropout: float,
    trace: Trace | None,
) -> Tensor:
    q, k, v = (_heads(part, attention) for part in attention.read(x))
    if past is not None:
        k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
    memory.past.append((k, v))
    rows = [part.flatten(0, 1).transpose(1, 2) for part in (q, k, v)]  # [b·n, heads, i or t, k]
    context = _attended(rows, bias, attention.scale, dropout, trace)[0]
    return attention.write(context.transpose(1, 2).flatten(-2).unflatten(0, x.shape[:2]))[0]


def _cross_attention(
    x: Tensor,
    attention: Attention,
    crossed: tuple[Tensor, Tensor],
    mask: Bool[Tensor, "b 1 1 j"],
    memory: Memory,
    dropout: float,
    trace: Trace | None,
) -> Tensor:
    q = _heads(attention.read(x)[0], attention).flatten(1, 2)  # the sequences of a query share its keys
    rows = [part.transpose(1, 2) for part in (q, *crossed)]  # [b, heads, n·i or j, k]
    context, weights = _attended(rows, mask, attention.scale, dropout, trace)
    context = context.transpose(1, 2).unflatten(1, x.shape[1:3])  # [b, n, i, heads, k]
    if trace is not None:
        context = context.detach().requires_grad_()
        trace.attention.append(weights.transpose(1, 2).unflatten(1, x.shape[1:3]))
        trace.contexts.append(context)
    added = attention.write(context.flatten(-2))[0]
    bias = getattr(attention.v, "bias", None)
    # BART's biases pass the softmax unchanged, as weights sum to 1.
    memory.crossing = added if bias is None else added - attention.o(bias)
    return added


def _attended(
    rows: list[Tensor], mask: Tensor, scale: float, dropout: float, trace: Trace | None
) -> tuple[Float[Tensor, "b heads i k"], Tensor]:
    """Return (softmax(s·qᵀk + mask) v, weights) for q, k, v = `rows`; a trace holds the weights fixed."""
    q, k, v = rows
    if trace is None:
        attend = nn.functional.scaled_dot_product_attention
        return attend(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scale), mask
    scores = scale * q @ k.mT
    masked = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    wide = torch.promote_types(masked.dtype, torch.float32)
    weights = masked.softmax(-1, dtype=wide).to(masked.dtype).detach()
    return weights @ v, weights


def _feed_forward(x: Tensor, feed: Feed, drop: Drop, trace: Trace | None) -> Tensor:
    wide, *inner = feed.read(x)
    gate = _activated(feed.act, wide)
    if inner:
        return feed.write(drop((gate if trace is None else gate.detach()) * inner[0]))[0]
    if trace is not None:  # act(W x̄) = (act(W x̄) / W x̄) ⊙ W x̄; the ratio is ReLU's 0/1 gate
        gate = (gate / wide).where(wide != 0, 0).detach() * wide
    return feed.write(drop(gate))[0]


def _activated(act: nn.Module, x: Tensor) -> Tensor:
    """act(x), with T5's gelu as one torch operation; transformers uses eight."""
    one = type(act).__name__ == "NewGELUActivation"
    return nn.functional.gelu(x, approximate="tanh") if one else act(x)


def _norm(norm: Any, x: Tensor, trace: Trace | None) -> Tensor:
    """Apply the norm. Without gradients, T5's norm on a CPU is one compiled loop."""
    weight = norm.weight
    if trace is not None:
        if isinstance(norm, nn.LayerNorm):
            x = x - x.mean(-1, keepdim=True)
        exact = x.to(torch.promote_types(x.dtype, torch.float32))
        eps = norm.eps if isinstance(norm, nn.LayerNorm) else norm.variance_epsilon
        scale = (exact.pow(2).mean(-1, keepdim=True) + eps).rsqrt()
        normed = weight * (x * scale.detach()).to(weight.dtype)
        return normed if getattr(norm, "bias", None) is None else normed + norm.bias
    if isinstance(norm, nn.LayerNorm):
        return norm(x)
    x = x.to(weight.dtype)
    if torch.is_grad_enabled() or weight.device.type != "cpu" or weight.dtype not in WIDE:
        return nn.functional.rms_norm(x, x.shape[-1:], weight, norm.variance_epsilon)
    from paradigms.generative.compiled import rms_norm

    x = x.detach().contiguous()
    out = torch.empty_like(x)
    rms_norm(x.numpy(), weight.detach().numpy(), norm.variance_epsilon, out.numpy())
    return out


def _bias(decoder: Any, before: int, inputs: Tensor, memory: Memory) -> Float[Tensor, "1 heads i t"]:
    """Return T5's relative position bias, shared by all layers; later positions get −∞."""
    total = before + inputs.shape[2]
    if memory.bias is None or memory.bias.shape[-1] < total:
        size = 2 * total if before else total  # a search asks for one more position at a time
        place = torch.arange(size, device=inputs.device)
        bias = inputs.new_zeros(1, 1, size, size)
        if not normalises_after(decoder):
            bias = decoder.block[0].layer[0].SelfAttention.compute_bias(size, size)
        memory.bias = bias.masked_fill(place > place[:, None], -torch.inf)
    return memory.bias[..., before:total, :total]


def _heads(x: Tensor, attention: Attention) -> Tensor:
    return x.view(*x.shape[:-1], attention.heads, -1)  # unflatten takes four times as long


def _take(
    x: Float[Tensor, "b n t heads k"], flat: Int[Tensor, " c"], m: int
) -> Float[Tensor, "b m t heads k"]:
    """Select whole rows of the first two axes, m for each b."""
    return x.flatten(0, 1).index_select(0, flat).unflatten(0, (len(x), m))
