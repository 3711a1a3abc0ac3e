"""Names that other libraries use, and what to write here: the remedy in an error's message."""

from typing import TYPE_CHECKING

SEARCHES = "Index.build(model, texts).search(query)"
ENCODES = "encode_document(texts) or encode_query(texts)"
FINDS = "search(query, k)"
GROWS = "index.store.add(model, ids, texts), then Index.open"
# Attribute -> what to write instead.
ATTRIBUTES = {
    "predict": "rank(query, documents) or similarity(queries, documents)",
    **dict.fromkeys(("embed", "embed_documents", "embed_query", "encode_text"), ENCODES),
    **dict.fromkeys(("index", "search", "add_to_index"), SEARCHES),
    "fit": "train(model, …) of paradigms.train.loop, or experiments/train.py",
    "tokenizer": "encoder.tokenizer",
    "config": "description()",
    "push_to_hub": "paradigms.saving.hub.push_to_hub(model, 'OWNER/NAME')",
    **dict.fromkeys(("retrieve", "query", "invoke", "get_scores", "get_top_n"), FINDS),
    **dict.fromkeys(("add", "add_documents", "add_texts"), GROWS),
    "save": "Index.build(model, texts, folder), which Index.open reads",
    "ntotal": "len(index.index)",
}
# Argument of `encode` -> what to write instead.
ARGUMENTS = {
    "convert_to_tensor": "encode_documents and encode_queries return tensors",
    "convert_to_numpy": "encode returns arrays",
    "is_query": "side='query'",
    "prompt_name": "side='query' or side='document', whose prompt the model has",
    "prompt": "the settings query_prompt and document_prompt",
    "normalize_embeddings": "the model's setting normalize",
    "show_progress_bar": "progress=True",
    "max_length": "the settings query_length and document_length",
}


def no_attribute(owner: object, name: str) -> AttributeError:
    """Return the error for a missing attribute, with the remedy if `ATTRIBUTES` has the name."""
    remedy = f": use {ATTRIBUTES[name]}" if name in ATTRIBUTES else ""
    return AttributeError(f"{type(owner).__name__} has no attribute {name!r}{remedy}")


def no_argument(function: str, name: str) -> TypeError:
    """Return the error for an unknown argument, with the remedy if `ARGUMENTS` has the name."""
    remedy = f": {ARGUMENTS[name]}" if name in ARGUMENTS else ""
    return TypeError(f"{function} has no argument {name!r}{remedy}")


class Guessed:
    """A base class whose missing attributes raise `no_attribute`."""

    if not TYPE_CHECKING:  # type checkers report missing attributes themselves

        def __getattr__(self, name: str) -> None:
            raise no_attribute(self, name)
