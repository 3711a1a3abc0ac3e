"""Write a paradigm in the layout of sentence-transformers 6 or BGE-M3, which gives equal scores there.

One vector per text becomes a SentenceTransformer, token vectors under ColBERT's alignment a
MultiVectorEncoder, and SPLADE a SparseEncoder. Other models are refused.
"""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from paradigms.align import EqualIds
from paradigms.bge_m3 import BgeM3
from paradigms.encoder.backbone import pretrained
from paradigms.encoder.published import MODEL, MODULES, TRANSFORMER
from paradigms.encoder.published import POOLING as PUBLISHED
from paradigms.encoder.text import EncoderSettings, TextEncoder
from paradigms.io.files import write_json
from paradigms.model import Paradigm
from paradigms.saving.read import ACTIVATIONS, M3_MODULES, POOLED, encoder_with, one_vector
from paradigms.splade import Splade, SpladeSettings

PACKAGE = "sentence_transformers"
TYPES = {
    "Transformer": f"{PACKAGE}.base.modules.transformer.Transformer",
    "Dense": f"{PACKAGE}.base.modules.dense.Dense",
    "Normalize": f"{PACKAGE}.base.modules.normalize.Normalize",
    "Pooling": f"{PACKAGE}.sentence_transformer.modules.pooling.Pooling",
    "SpladePooling": f"{PACKAGE}.sparse_encoder.modules.splade_pooling.SpladePooling",
    "MultiVectorMask": f"{PACKAGE}.multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask",
}
POOLING = {ours: theirs for theirs, ours in PUBLISHED.items()}
SIMILARITY = {"one": "maxsim", "query_tokens": "meanmaxsim"}  # Z -> the sum of maxima or their mean


def write_sentence_transformers(model: Any, folder: Path) -> None:
    """Write a model into an empty folder; this is one of the `saved.SAVE_LAYOUTS`.

    Raises ValueError if sentence-transformers has no module for the kind of model or a setting.
    """
    if not isinstance(model, Paradigm):
        raise ValueError(f"{model.name} is not an encoder of single texts, which sentence-transformers needs")
    encoder = model.encoder
    settings = encoder.settings
    if not isinstance(encoder, TextEncoder):
        raise ValueError(
            f"{model.name} has two encoders or another library's; sentence-transformers has one for both"
        )
    sparse = isinstance(encoder, Splade)
    multi = not sparse and "pooled" not in (settings.query_vectors, settings.document_vectors)
    refuse(model, multi, sparse)
    encoder.save(folder / "own", merged=True)
    for file in (folder / "own" / "backbone").iterdir():
        shutil.move(file, folder / file.name)
    shutil.rmtree(folder / "own")
    name = "token_embeddings" if multi else "sentence_embedding"
    vectors = {"module_input_name": name, "module_output_name": name}
    modules: list[tuple[str, dict[str, Any]]] = []
    if sparse:
        modules.append(("SpladePooling", {"pooling_strategy": "max", "activation_function": "relu"}))
    elif not multi:
        width = encoder.backbone.config.hidden_size
        modules.append(("Pooling", {"embedding_dimension": width, "pooling_mode": POOLING[settings.pooling]}))
    if encoder.projection is not None:
        modules.append(("Dense", dense_config(encoder) | vectors))
    if multi:
        modules.append(("MultiVectorMask", {"skiplist_words": encoder.skipped}))
    if settings.normalize:
        modules.append(("Normalize", vectors))
    rows = [{"idx": 0, "name": "0", "path": "", "type": TYPES["Transformer"]}]
    for n, (kind, config) in enumerate(modules, 1):
        path = f"{n}_{kind}"
        rows.append({"idx": n, "name": str(n), "path": path, "type": TYPES[kind]})
        write_json(folder / path / "config.json", config)
        if kind == "Dense":
            assert encoder.projection is not None
            weights = {f"linear.{k}": w.contiguous() for k, w in encoder.projection.state_dict().items()}
            save_file(weights, folder / path / "model.safetensors")
    write_json(folder / MODULES, rows)
    write_json(folder / TRANSFORMER, transformer_config(settings, sparse))
    write_json(folder / MODEL, model_config(model, multi))
    register_markers(encoder, folder)


def refuse(model: Paradigm, multi: bool, sparse: bool) -> None:
    """Raise ValueError if the model needs something that no sentence-transformers module supports."""
    encoder: Any = model.encoder
    s: Any = encoder.settings
    recipe = model.recipe
    if sparse:
        from transformers import MODEL_FOR_MASKED_LM_MAPPING

        absent = {
            f"query_terms={s.query_terms}": s.query_terms != "all",
            "tied_head": s.tied_head,
            "a decoder's head": type(encoder.backbone.config) not in MODEL_FOR_MASKED_LM_MAPPING,
            f"the alignment {recipe.align}": not isinstance(recipe.align, EqualIds),
        }
    else:
        if not (
            recipe.align.is_maxsim() and recipe.normalise in SIMILARITY
            if multi
            else recipe.align.is_maximum(1)
        ):
            raise ValueError(
                f"{recipe.name} has the alignment {recipe.align} with Z = {recipe.normalise}, and "
                "sentence-transformers supports that of ColBERT only: "
                "model.with_alignment(QueryToDocument(), 'query_tokens') scores as it will there"
            )
        if {s.query_vectors, s.document_vectors} != {"all" if multi else "pooled"}:
            raise ValueError(
                f"queries become {s.query_vectors} and documents {s.document_vectors} vectors: "
                "sentence-transformers supports one vector per text, or one per token"
            )
        absent = {
            f"the encoder {s.encoder!r}": type(encoder) is not TextEncoder,
            "layer_norm": s.layer_norm,
            "truncate": s.truncate,
            "pooled_dim": s.pooled_dim,
            "salience": s.salience != "none",
            "special_tokens=False": multi and not s.special_tokens,
        }
    named = [name for name, there in absent.items() if there]
    if named:
        raise ValueError(f"sentence-transformers has no module for {', '.join(named)}")


def dense_config(encoder: TextEncoder) -> dict[str, Any]:
    assert encoder.projection is not None
    activation = {name: path for path, name in ACTIVATIONS.items()}[encoder.settings.activation]
    return {
        "in_features": encoder.projection.in_features,
        "out_features": encoder.projection.out_features,
        "bias": encoder.projection.bias is not None,
        "activation_function": activation,
    }


def transformer_config(settings: EncoderSettings, sparse: bool) -> dict[str, Any]:
    """Make the Transformer module's configuration: lengths and query augmentation."""
    augmented: dict[str, Any] = {"query_length": settings.query_length}
    if settings.query_augmentation:
        strategy = {"strategy": "fixed", "attend": settings.attend_augmentation, "token": None}
        augmented = {"query_expansion": strategy | {"length": settings.query_length}}
    return {
        "transformer_task": "fill-mask" if sparse else "feature-extraction",
        "modality_config": {
            "text": {"method": "forward", "method_output_name": "logits" if sparse else "last_hidden_state"}
        },
        "module_output_name": "token_embeddings",
        "document_length": settings.document_length,
    } | augmented


def model_config(model: Paradigm, multi: bool) -> dict[str, Any]:
    """Make the model's configuration: the similarity, and markers and prompts as prompts."""
    s = model.encoder.settings
    single = "cosine" if s.normalize else "dot"
    if isinstance(s, SpladeSettings):
        kind: dict[str, Any] = {"model_type": "SparseEncoder", "max_active_dims": s.most_terms}
    else:
        kind = {"model_type": "MultiVectorEncoder" if multi else "SentenceTransformer"}
    return kind | {
        "__version__": {PACKAGE: "6.0.0"},
        "prompts": {
            "query": s.query_marker + s.query_prompt,
            "document": s.document_marker + s.document_prompt,
        },
        "default_prompt_name": None,
        "similarity_fn_name": SIMILARITY[model.recipe.normalise] if multi else single,
    }


def register_markers(encoder: TextEncoder, folder: Path) -> None:
    """Register markers in the vocabulary as special tokens, so that the tokenizer never splits them."""
    markers = [encoder.settings.query_marker, encoder.settings.document_marker]
    tokens = [marker for marker in markers if marker]
    if tokens:
        from transformers import AutoTokenizer

        tokenizer = pretrained(AutoTokenizer, folder)
        tokenizer.add_tokens(tokens, special_tokens=True)
        tokenizer.save_pretrained(folder)


def write_m3(model: Any, folder: Path) -> None:
    """Write a model in BGE-M3's layout (one of `saved.SAVE_LAYOUTS`).

    sentence-transformers can open the folder for its dense vector. The layout does not store how the three
    parts are weighted in rel. Raises ValueError unless the model is a `bge_m3` with the pooling cls.
    """
    encoder = getattr(model, "encoder", None)
    if not isinstance(encoder, BgeM3) or encoder.settings.pooling != "cls":
        raise ValueError(f"{model.name} is not BGE-M3 with the pooling cls, which this layout is for")
    settings: dict[str, Any] = POOLED | {"pooling": "cls"}
    settings["query_length"] = encoder.settings.query_length
    settings["document_length"] = encoder.settings.document_length
    with tempfile.TemporaryDirectory() as temporary:
        encoder.save(Path(temporary), merged=True)
        dense = one_vector(encoder_with(Path(temporary) / "backbone", None, **settings))
    write_sentence_transformers(dense, folder)
    for name, head in M3_MODULES.items():
        weights = getattr(encoder, head).state_dict()
        torch.save({key: weight.cpu() for key, weight in weights.items()}, folder / f"{name}.pt")
