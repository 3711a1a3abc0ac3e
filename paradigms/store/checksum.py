"""Hash a model's weights, to ensure that an index is searched only with the model that built it."""

import hashlib
from weakref import WeakKeyDictionary

import torch
from torch import nn

from paradigms.encoder.backbone import without_adapters
from paradigms.model import Paradigm

_known: WeakKeyDictionary[nn.Module, tuple[list[tuple[int, int]], str]] = WeakKeyDictionary()


def weights_checksum(paradigm: Paradigm) -> str:
    """Return the SHA-256 of all encoder weights as hexadecimal digits; it does not depend on the alignment.

    Adapters are merged into the weights before hashing, as in `save_pretrained`. A model with adapters and
    its merged copy can therefore share an index, provided that the processors round products identically. The
    hash is cached until a weight is replaced or changed in place. Changes through `.data` are not detected,
    and steps of a fused optimizer are detected only in `train`.
    """
    state_dict = paradigm.encoder.state_dict()
    weights = list(state_dict.values())
    known, state = _known.get(paradigm.encoder), None
    if not any(weight.is_inference() for weight in weights):  # inference tensors have no version counter
        state = [(weight.data_ptr(), weight._version) for weight in weights]
        if known is not None and known[0] == state:
            return known[1]
    adapted = any(".lora_" in name for name in state_dict)
    checksum = hashlib.sha256()
    for weight in without_adapters(paradigm.encoder).values() if adapted else weights:
        checksum.update(weight.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    if state is not None:
        _known[paradigm.encoder] = state, checksum.hexdigest()
    return checksum.hexdigest()
