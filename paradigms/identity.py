"""What makes a document's vectors, as data: weights, configuration, tokenizer, settings and plug-in.

Everything that stores a model's output records the model's `identity`: indexes, stored states of frozen
layers, checkpoints of a training run, and the collections of engines. A model that would compute other
vectors is refused, by an error that names what differs (`differing`). The alignment A, the normaliser Z and
the query's settings are not included, so XTR can search what ColBERT stored.
"""

import hashlib
import inspect
import json
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from paradigms.encoder.backbone import configuration
from paradigms.encoder.base import Encoder
from paradigms.encoder.layers import without_adapters
from paradigms.encoder.tokenizing import tokenizer_state
from paradigms.encoder.weights import state_of
from paradigms.io.checks import differences
from paradigms.io.files import sha256
from paradigms.io.plugins import plugin_of

Identity = dict[str, Any]
"""What makes vectors, as JSON: weights, tokenizer and plug-in are checksums, configuration and settings have
their fields."""


# An encoder's weights and tokenizer when its identity was computed, and the identity. The first holds no
# weights, or those of a model that moved to a GPU would stay.
_computed: WeakKeyDictionary[nn.Module, tuple[tuple[Any, ...], Any, Identity]] = WeakKeyDictionary()


def identity(encoder: Encoder, *, anew: bool = False) -> Identity:
    """Return what makes the encoder's document vectors.

    The result is cached until the weights, as `encoder.weights.state_of` sees them, or the tokenizer change.
    A model with adapters and its merged copy have the same identity, if processors round products
    identically. anew: read all weights, as before the identity is recorded.
    """
    document = encoder.of("document")
    state = state_of(chain(document.parameters(), document.buffers()))
    sketch = _sketch(document.tokenizer)
    computed = _computed.get(document)
    if anew or computed is None or computed[:2] != (state, sketch):
        weights = document.state_dict()
        if any(".lora_" in name for name in weights):  # merged, as in `save_pretrained`
            weights = without_adapters(document)
        content = {"weights": checksum_of(weights.values())} | design_of(document)
        computed = _computed[document] = state, sketch, content
    return computed[2] | {"settings": _json(document.document_settings())}


def checksum_of(weights: Iterable[Tensor]) -> str:
    """Return the SHA-256 of the numbers of all weights, in order."""
    checksum = hashlib.sha256()
    for weight in weights:
        checksum.update(weight.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return checksum.hexdigest()


def design_of(module: nn.Module) -> Identity:
    """Return what makes a module's output besides weights and settings: configuration, tokenizer, plug-in."""
    tokenizers = hashlib.sha256()
    parts = (getattr(part, "tokenizer", None) for part in module.modules())
    for tokenizer in {id(tokenizer): tokenizer for tokenizer in parts if tokenizer is not None}.values():
        tokenizers.update(tokenizer_state(tokenizer).encode("utf-8", "surrogatepass"))
    design = {"configuration": _json(configuration(module)), "tokenizer": tokenizers.hexdigest()}
    plugin = plugin_of(type(module))
    return design | ({"plug-in": sha256(Path(inspect.getfile(type(module))))} if plugin else {})


def differing(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Describe what differs between two identities, as `io.checks.differences` does; "" if nothing does.

    A field of the configuration that only one has is new in a version of transformers, and is not compared.
    """
    part = "configuration"
    old = recorded.get(part, {})
    new = now.get(part, {})
    if shared := old.keys() & new.keys():
        recorded = {**recorded, part: {key: old[key] for key in shared}}
        now = {**now, part: {key: new[key] for key in shared}}
    return differences(recorded, now)


def _sketch(tokenizer: Any) -> Any:
    """Return the parts of a tokenizer that can be replaced or extended, except its long vocabulary."""
    entries = len(tokenizer) if hasattr(tokenizer, "__len__") else 0  # a processor of images has none
    backend = getattr(tokenizer, "backend_tokenizer", None)
    parts = (getattr(backend, name, None) for name in ("normalizer", "pre_tokenizer", "post_processor"))
    return id(tokenizer), entries, *(part and part.__getstate__() for part in parts)


def _json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert values to what a JSON file returns for them."""
    converted: dict[str, Any] = json.loads(json.dumps(values, default=str))
    return converted
