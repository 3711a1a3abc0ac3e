"""The rooms above the core: what the core uses of them by name, each imported when it is first used.

The core is all that a dense paradigm needs to be trained, indexed, searched and measured. It imports none of
the rooms above it, which can therefore be deleted one by one; using an entry of a deleted room raises
ModuleNotFoundError.
"""

from importlib import import_module
from operator import attrgetter
from typing import Any

# Name -> the module of the package that defines it.
ROOMS = {
    "PARADIGMS": "registry",  # of the core: paradigms register their encoders, which lie below them
    "dsi": "generative.dsi",
    "genre": "generative.genre",
    "seal": "generative.seal",
    "ripor": "generative.ripor",
    "Generative": "generative.model",
    "Generative.from_pretrained": "generative.model",
    "GenerativeRetriever": "generative.retriever",
    "cross_attention": "baselines.cross_attention",
    "CrossAttention": "baselines.cross_attention",
    "CrossAttention.from_pretrained": "baselines.cross_attention",
    "Library.from_pretrained": "saving.library",
    "read_checkpoint": "saving.layouts",
    "download": "saving.hub",
    "safe_weights": "saving.hub",
    "write_sentence_transformers": "saving.write",
    "write_m3": "saving.write",
    "write_onnx": "saving.write",
    "model_card": "saving.hub",
    "framed": "view",
    "explanations_of": "view",
}


class Entry:
    """A function or class of a room, imported when it is called or inspected. name: a key of `ROOMS`."""

    def __init__(self, name: str) -> None:
        self.__name__ = self.__qualname__ = name
        self.__module__ = f"paradigms.{ROOMS[name]}"

    @property
    def __wrapped__(self) -> Any:
        """The function or class itself, which `inspect.signature` reads."""
        return attrgetter(self.__name__)(import_module(self.__module__))

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        return self.__wrapped__(*arguments, **settings)
