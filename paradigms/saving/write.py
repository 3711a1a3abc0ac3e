"""Write a paradigm in the layout of sentence-transformers 6 or BGE-M3, or with its backbone as an ONNX file.

For sentence-transformers, with equal scores, one vector per text becomes a SentenceTransformer, token vectors
under ColBERT's alignment a MultiVectorEncoder, and SPLADE a SparseEncoder. Other models are refused.

For ONNX, in float32 or with 8-bit products (extra `onnx`), backbone/model.onnx maps input_ids and
attention_mask to last_hidden_state, for texts of any number and length. `load` opens the folder; any program
that reads ONNX opens the file.
"""

import logging
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from safetensors.torch import save_file
from torch import Tensor, nn

from paradigms.align import EqualIds
from paradigms.bge_m3 import BgeM3
from paradigms.encoder.backbone import load_backbone, most_positions, pretrained, quiet
from paradigms.encoder.exported import INPUTS, OUTPUT, session
from paradigms.encoder.published import MODEL, MODULES, TRANSFORMER
from paradigms.encoder.published import POOLING as PUBLISHED
from paradigms.encoder.text import EncoderSettings, TextEncoder, encoder_class
from paradigms.io.checks import read_json
from paradigms.io.files import write_json
from paradigms.model import Paradigm
from paradigms.saved import ONNX
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
POOLING = {pooling: published for published, pooling in PUBLISHED.items()}
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
        raise ValueError(f"{model.name} has two encoders or another library's; sentence-transformers has one")
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
    named = [name for name, used in absent.items() if used]
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


# ONNX

EXAMPLE = (2, 7)  # texts and tokens of the traced call
CHECKED = ((1, 3), (3, 40), (5, 19))  # other shapes, in which the file has to give the same states
ROUNDING = 1e-3  # of the largest state, for float32 beside float64
EIGHT_BITS = 0.5  # norm of the difference beside that of the states: a sign of a file that is wrong


class States(nn.Module):
    """A backbone's last hidden states, as a function of tensors alone."""

    def __init__(self, backbone: Any) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, ids: Int[Tensor, "x l"], attention: Int[Tensor, "x l"]) -> Float[Tensor, "x l w"]:
        return self.backbone(input_ids=ids, attention_mask=attention)[0]


def write_onnx(model: Any, folder: Path, *, bits: int = 32) -> None:
    """Write a model into an empty folder, with every backbone as an ONNX file (one of `saved.SAVE_LAYOUTS`).

    bits: 32, or 8 for products of 8-bit weights with activations that are quantised as they come. Raises
    ValueError if the model has no text encoder that reads last hidden states, or if ONNX Runtime computes
    other states than the backbone in float64.
    """
    if not isinstance(model, Paradigm):
        raise ValueError(f"{model.name} is not an encoder of single texts, which the layout onnx needs")
    model.write(folder, merged=True)
    for place in sorted(folder.rglob("encoder.json")):
        kind = encoder_class(read_json(place)["encoder"])
        if kind._load_backbone is not TextEncoder._load_backbone:
            raise ValueError(f"{model.name} reads another output of its backbone than the last hidden states")
        _put_onnx(place.parent / "backbone", bits)


def _put_onnx(folder: Path, bits: int) -> None:
    """Replace the weights in a backbone's folder by an ONNX file."""
    backbone = load_backbone(folder).eval()
    # As `TextEncoder` reads them: T5 calls a width d_model, and RoBERTa counts rows for padding as positions.
    sizes = {name: getattr(backbone.config, name) for name in ("hidden_size", "vocab_size")}
    if (limit := most_positions(backbone)) is not None:
        sizes["max_position_embeddings"] = limit
    write_json(folder / "config.json", read_json(folder / "config.json") | sizes)
    for file in folder.glob("model*.safetensors*"):
        file.unlink()
    _export_onnx(backbone, folder / ONNX)
    double = deepcopy(backbone).double()
    _check_onnx(double, folder / ONNX, bits=32)
    if bits == 8:
        _quantise(folder / ONNX)
        _check_onnx(double, folder / ONNX, bits=8)


def _export_onnx(backbone: Any, file: Path) -> None:
    axes = {name: {0: "texts", 1: "tokens"} for name in (*INPUTS, OUTPUT)}
    example = next(_examples(backbone.config.vocab_size, EXAMPLE))
    with warnings.catch_warnings(), quiet(), torch.no_grad():
        warnings.simplefilter("ignore")  # about the tracing exporter, which needs no package but onnx
        torch.onnx.export(
            States(backbone).eval(),
            example,
            str(file),
            input_names=list(INPUTS),
            output_names=[OUTPUT],
            dynamic_axes=axes,
            dynamo=False,
        )


def _quantise(file: Path) -> None:
    """Replace the weights of products by 8-bit weights, with one scale per output."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    logging.disable(logging.WARNING)  # quantize_dynamic advises another step, on the root logger
    try:
        with tempfile.TemporaryDirectory(dir=file.parent) as temporary:
            small = Path(temporary) / ONNX
            quantize_dynamic(file, small, weight_type=QuantType.QInt8, per_channel=True)
            small.replace(file)
    finally:
        logging.disable(logging.NOTSET)


def _check_onnx(backbone: Any, file: Path, *, bits: int) -> None:
    """Raise ValueError unless the file gives the states of a float64 backbone, up to its rounding."""
    run = session(file)
    for ids, attention in _examples(backbone.config.vocab_size, *CHECKED):
        with torch.no_grad():
            expected = backbone(input_ids=ids, attention_mask=attention)[0]
        inputs = dict(zip(INPUTS, (ids.numpy(), attention.numpy()), strict=True))
        difference = (torch.from_numpy(run.run([OUTPUT], inputs)[0]) - expected) * attention[..., None]
        same = difference.abs().max() <= ROUNDING * expected.abs().max()
        if not (same if bits == 32 else difference.norm() <= EIGHT_BITS * expected.norm()):
            raise ValueError(
                f"{type(backbone).__name__} as an ONNX file of {bits} bits differs from its float64 states "
                f"by {float(difference.abs().max()):.3g} of at most {float(expected.abs().max()):.3g}"
            )


def _examples(vocabulary: int, *shapes: tuple[int, int]) -> Iterator[tuple[Tensor, Tensor]]:
    """Draw ids and attention masks [x, l], with padding after half of the last text."""
    generator = torch.Generator().manual_seed(0)
    for texts, length in shapes:
        ids = torch.randint(vocabulary, (texts, length), generator=generator)
        attention = torch.ones_like(ids)
        attention[-1, 1 + length // 2 :] = 0
        yield ids, attention
