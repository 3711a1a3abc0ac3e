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
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from paradigms.encoder.backbone import configuration
from paradigms.encoder.base import Encoder
from paradigms.encoder.layers import without_adapters
from paradigms.encoder.tokenizing import tokenizer_state
from paradigms.encoder.towers import TwoTowers
from paradigms.encoder.weights import state_of
from paradigms.io.checks import differences
from paradigms.io.files import sha256
from paradigms.io.plugins import plugin_of

Identity = dict[str, Any]
"""What makes vectors, as JSON: weights, tokenizer and plug-in are checksums, configuration and settings have
their fields."""


class Computed(NamedTuple):
    """An identity, with what the encoder's weights and tokenizer were when it was computed."""

    state: tuple[Any, ...]  # holds no weights, or those of a model that moved to a GPU would stay
    sketch: Any
    identity: Identity


_computed: WeakKeyDictionary[nn.Module, Computed] = WeakKeyDictionary()


def identity(encoder: Encoder, *, anew: bool = False) -> Identity:
    """Return what makes the encoder's document vectors.

    The result is cached until the weights, as `encoder.weights.state_of` sees them, or the tokenizer change.
    anew: read all weights, as before the identity is recorded.
    """
    document = encoder.of("document") if isinstance(encoder, TwoTowers) else encoder
    state = state_of(chain(document.parameters(), document.buffers()))
    sketch = _sketch(document.tokenizer)
    computed = _computed.get(document)
    if anew or computed is None or (computed.state, computed.sketch) != (state, sketch):
        content = {"weights": weights_of(document)} | design_of(document)
        computed = _computed[document] = Computed(state, sketch, content)
    return computed.identity | {"settings": _json(document.document_settings())}


def weights_of(module: nn.Module) -> str:
    """Return the SHA-256 of a module's weights.

    Adapters are merged into the weights, as in `save_pretrained`. A model with adapters and its merged copy
    therefore have the same checksum, if the processors round products identically.
    """
    weights = module.state_dict()
    adapted = any(".lora_" in name for name in weights)
    return checksum_of((without_adapters(module) if adapted else weights).values())


def checksum_of(weights: Iterable[Tensor]) -> str:
    """Return the SHA-256 of the numbers of all weights, in order."""
    checksum = hashlib.sha256()
    for weight in weights:
        checksum.update(weight.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return checksum.hexdigest()


def design_of(module: nn.Module) -> Identity:
    """Return what makes a module's output besides weights and settings: configuration, tokenizer, plug-in."""
    tokenizers = hashlib.sha256()
    for tokenizer in _tokenizers(module):
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


def _tokenizers(module: nn.Module) -> list[Any]:
    tokenizers = [getattr(part, "tokenizer", None) for part in module.modules()]
    return list({id(tokenizer): tokenizer for tokenizer in tokenizers if tokenizer is not None}.values())


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
