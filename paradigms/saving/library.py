"""Wrap any sentence-transformers model and compute rel(d, q) from its vectors.

    from sentence_transformers import MultiVectorEncoder

    model = wrap(MultiVectorEncoder("vidore/colpali-v1.3-hf"))
    model.score(model.encode_documents([image]), model.encode_queries(["a bar chart"]))

A `SentenceTransformer` returns one vector per text (A = 1), a `SparseEncoder` returns term weights (A aligns
equal ids), and a `MultiVectorEncoder` returns one vector per token or patch (A takes the maximum over i).
Documents may be anything that the model reads: texts, images or audio. To use a model that ships its own
code, load it yourself with `trust_remote_code=True` and then wrap it; this module never sets
`trust_remote_code`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import torch

from paradigms.align import AllPairs, EqualIds, QueryToDocument
from paradigms.core import Tokens
from paradigms.encoder.cut import Cut
from paradigms.encoder.published import MODEL
from paradigms.encoder.settings import Side
from paradigms.explanation import Explanation
from paradigms.io.checks import as_sequence, json_or_empty, read_settings
from paradigms.io.files import settle, write_json
from paradigms.model import Input, Paradigm, check_plugins, read_statistics
from paradigms.recipe import Recipe, recipe_fields
from paradigms.saving.library_encoder import LibraryEncoder

LIBRARY, RECIPE = "library", "library.json"  # of a saved model: the library's own folder, and A, Z, τ
SIMILARITIES = {  # class of the library -> similarity -> A, Z and τ
    "SentenceTransformer": {
        "cosine": Recipe("dpr", AllPairs(), "one", temperature=0.05),
        "dot": Recipe("dpr", AllPairs(), "one", temperature=1.0),
    },
    "SparseEncoder": dict.fromkeys(("dot", "cosine"), Recipe("splade", EqualIds(), "one", temperature=1.0)),
    "MultiVectorEncoder": {
        "maxsim": Recipe("colbert", QueryToDocument(), "one", temperature=1.0),
        "meanmaxsim": Recipe("colbert", QueryToDocument(), "query_tokens", temperature=0.02),
    },
}


class Library(Paradigm):
    """A paradigm whose encoder is a sentence-transformers model.

    The precision is set when the model is loaded (`model_kwargs={"dtype": "bfloat16"}`).
    """

    encoder: LibraryEncoder

    def description(self) -> dict[str, Any]:
        model = self.encoder.model
        own = {"prompts": dict(model.prompts), "dtype": str(next(model.parameters()).dtype)}
        return self.recipe.described() | vars(self.encoder.settings) | own

    def count_cut(self, texts: Sequence[str]) -> Cut | None:
        return None

    def read_part(self, texts: Sequence[str]) -> list[str]:
        return list(texts)

    def tokens(self, texts: Iterable[Input], side: Side) -> Tokens:
        texts = as_sequence(texts, f"{side}s")
        with self.evaluating(), torch.inference_mode(), torch.autocast(self.device.type, enabled=False):
            encoded = self.encoder.encode(texts, side)
            return encoded.map(lambda t: t.transpose(0, 1)) if side == "query" else encoded

    def explain_tokens(
        self, query: Input, document: Input, queries: Tokens, documents: Tokens, pool: Tokens | None = None
    ) -> Explanation:
        made = super().explain_tokens(query, document, queries, documents, pool)
        ids = None if documents.ids is None else documents.ids[documents.mask]
        return replace(made, picture=self.encoder.picture(document, ids))

    def write(self, folder: Path, *, merged: bool = False) -> None:
        self.encoder.save(folder / LIBRARY, merged=merged)
        write_json(folder / RECIPE, self.recipe.described())
        self.write_needed(folder)

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> "Library":
        folder = Path(folder)
        settle(folder)
        check_plugins(folder)
        recipe = read_settings(Recipe, folder / RECIPE, recipe_fields)
        encoder = read_library(folder / LIBRARY).encoder
        read_statistics(recipe, folder, encoder)
        return cls(recipe, encoder)


def wrap(model: Any) -> Library:
    """Make a paradigm from a SentenceTransformer, SparseEncoder or MultiVectorEncoder, with equal scores.

    Raises ValueError if rel cannot express the model's similarity (a distance), or if the model's backend
    hides the weights, from which an index recognises the model that built it.
    """
    kind = next((one.__name__ for one in type(model).__mro__ if one.__name__ in SIMILARITIES), None)
    if kind is None:
        raise ValueError(f"{type(model).__name__} is none of {', '.join(SIMILARITIES)}")
    similarity, known = str(model.similarity_fn_name), SIMILARITIES[kind]
    if similarity not in known:
        raise ValueError(f"the similarity {similarity} is no rel; there are {', '.join(known)}")
    if not any(map(prod, (weight.shape for weight in model.parameters()))):
        raise ValueError(f"the backend {model.get_backend()} hides the model's weights: open it with torch's")
    return Library(known[similarity], LibraryEncoder(model, kind, similarity))


def read_library(folder: Path) -> Library:
    """Open a folder with sentence-transformers and wrap it. Code in the folder is never run."""
    try:
        import sentence_transformers
    except ImportError as error:
        raise ValueError("the layout library needs sentence-transformers 6 (extra interop)") from error
    named = json_or_empty(folder / MODEL).get("model_type")
    heads = json_or_empty(folder / "config.json").get("architectures") or []
    many = named == "ColBERT" or any(head.endswith(("ForRetrieval", "HF_ColBERT")) for head in heads)
    kind = named if named in SIMILARITIES else "MultiVectorEncoder" if many else "SentenceTransformer"
    model = getattr(sentence_transformers, kind)(str(folder), local_files_only=True, trust_remote_code=False)
    return wrap(model)
