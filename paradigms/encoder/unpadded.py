"""Compute a batch without padding: all texts in one row, which flash attention for variable lengths takes."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from paradigms.encoder.batches import Batch, evaluated

ROUNDING = 0.05  # of the largest value, between two computations in bfloat16


def takes_rows(backbone: Any) -> bool:
    """Return whether the backbone's attention takes texts in one row."""
    return "flash" in (getattr(backbone.config, "_attn_implementation", None) or "")


def unpadded_hidden(backbone: Any, batch: Batch) -> Float[Tensor, "x l w"]:
    """Compute the backbone's first output for tokens that are attended to; it is 0 elsewhere.

    A GPU waits twice, for the lengths.
    """
    used = batch.attention_mask.bool()
    offsets = pad(used.sum(1).cumsum(0), (1, 0)).int()
    places = used.flatten().nonzero()[:, 0]
    row: dict[str, Any] = {
        name: t.flatten()[places][None] for name, t in batch.inputs().items() if name != "attention_mask"
    }
    # RoBERTa's positions begin after its padding index.
    embeddings = (part for part in backbone.modules() if hasattr(part, "position_embeddings"))
    first = next((part.padding_idx for part in embeddings if hasattr(part, "padding_idx")), -1) + 1
    row["position_ids"] = (used.cumsum(1) - 1 + first).flatten()[places][None]
    longest = used.shape[1]
    ends = {
        "cu_seq_lens_q": offsets,
        "cu_seq_lens_k": offsets,
        "max_length_q": longest,
        "max_length_k": longest,
    }
    hidden = backbone(**row, **ends)[0][0]
    rows = hidden.new_zeros(used.numel(), hidden.shape[-1])
    return rows.index_copy(0, places, hidden).view(*used.shape, -1)


def check_unpadded(backbone: Any, batch: Batch) -> None:
    """Raise ValueError if a backbone computes another output for texts in one row."""
    with evaluated(backbone), torch.no_grad():
        padded = backbone(**batch.inputs())[0] * batch.attention_mask[..., None]
        unpadded = unpadded_hidden(backbone, batch)
    if not torch.allclose(padded, unpadded, rtol=0, atol=ROUNDING * float(padded.abs().max())):
        raise ValueError(
            f"attention={backbone.config._attn_implementation!r}: {type(backbone).__name__} computes other "
            "vectors for texts in one row; leave out the setting"
        )
