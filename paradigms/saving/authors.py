"""Read checkpoints in their authors' layouts: DPR, COIL, Stanford ColBERT (colbertv2.0) and XTR."""

import string
import tempfile
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from paradigms.align import PositiveEqualIds
from paradigms.coil import coil
from paradigms.encoder.backbone import load_model, load_tokenizer, quiet
from paradigms.encoder.published import MODEL, MODULES
from paradigms.io.checks import json_or_empty, naming, read_json
from paradigms.model import Paradigm
from paradigms.saving.heads import (
    ACTIVATIONS,
    POOLED,
    Head,
    dense,
    encoder_with,
    late_interaction,
    lengths,
    one_vector,
)
from paradigms.saving.weights import read_weights
from paradigms.xtr import xtr

TOWERS = {"DPRQuestionEncoder": "question_encoder", "DPRContextEncoder": "ctx_encoder"}
DPR_LENGTH = 256  # tokens per text, as the paper cuts passages
HEADS = "heads.safetensors"  # what COIL's model.pt becomes
COIL_HEADS = {f"{name}.{part}" for name in ("tok_proj", "cls_proj") for part in ("weight", "bias")}
METADATA = "artifact.metadata"
DENSE = "2_Dense"
DIM = 128  # width of published XTRs; T5 models with one vector per text have 768


def is_dpr(folder: Path) -> bool:
    return json_or_empty(folder / "config.json").get("model_type") == "dpr"


def read_dpr(folder: Path) -> Paradigm:
    """Read one of DPR's two encoders and use it for both sides; `registry.load` joins two into a pair.

    The vector is the state of [CLS], or its projection if the checkpoint has one.
    """
    import transformers

    architecture = (read_json(folder / "config.json").get("architectures") or ["none"])[0]
    if architecture not in TOWERS:
        raise ValueError(f"its architecture is {architecture}, not {' or '.join(TOWERS)}")
    encoder = getattr(load_model(getattr(transformers, architecture), folder), TOWERS[architecture])
    head = None
    if encoder.projection_dim > 0:
        head = Head(encoder.encode_proj.weight.detach(), encoder.encode_proj.bias.detach())
    with tempfile.TemporaryDirectory() as temporary:
        with quiet():
            _bert(encoder.bert_model).save_pretrained(temporary)
        load_tokenizer(folder).save_pretrained(temporary)
        limits = lengths(folder, DPR_LENGTH, DPR_LENGTH)
        return one_vector(
            encoder_with(Path(temporary), head, **POOLED, **limits, pooling="cls", normalize=False)
        )


def _bert(model: Any) -> Any:
    """Copy the weights into a `BertModel`."""
    from transformers import BertConfig, BertModel

    known = BertConfig().to_dict().keys() - {"model_type", "architectures", "transformers_version"}
    config = BertConfig(**{name: value for name, value in model.config.to_dict().items() if name in known})
    bert = BertModel(config, add_pooling_layer=False)
    bert.load_state_dict(model.state_dict())
    return bert


def is_coil(folder: Path) -> bool:
    heads = (folder / "model.pt").is_file() or (folder / HEADS).is_file()
    return heads and (folder / "config.json").is_file()


def read_coil(folder: Path) -> Paradigm:
    """Read COIL-full without layer normalisation: an encoder, and two projections in model.pt.

    Gao et al. 2021. The settings are in a pickle of objects (args.pt), which is not read. The model is
    assumed to be COIL-full as the authors published it, without [SEP] and with the lengths of MS MARCO.
    Raises ValueError if the projections differ.
    """
    with naming(folder / HEADS):
        weights = {name: t.float() for name, t in load_file(folder / HEADS).items()}
    if weights.keys() != COIL_HEADS:
        raise ValueError(f"{HEADS} or model.pt holds {sorted(weights)}, where {sorted(COIL_HEADS)} belong")
    tokens, pooled = (Head(weights[f"{n}.weight"], weights[f"{n}.bias"]) for n in ("tok_proj", "cls_proj"))
    limits = lengths(folder, 16, 128)
    model: Any = coil(folder, pooled_dim=len(pooled.weight), **limits, **tokens.settings())
    tokens.put_into(model.encoder.projection)
    pooled.put_into(model.encoder.pooled_projection)
    return model.with_alignment(PositiveEqualIds())


def is_stanford(folder: Path) -> bool:
    config = json_or_empty(folder / "config.json")
    return bool(config) and (
        (folder / METADATA).is_file() or "HF_ColBERT" in (config.get("architectures") or ())
    )


def read_stanford(folder: Path) -> Paradigm:
    """Read Stanford ColBERT: a state dict of BERT and a linear layer, with settings in artifact.metadata.

    Khattab & Zaharia 2020; Santhanam et al. 2022. Settings missing from the metadata follow the authors'
    code: marker tokens [unused0] and [unused1], queries padded with [MASK], punctuation skipped, a sum of
    maxima. A marker outside the vocabulary is the unknown token there. A document's token is skipped if it is
    padding, or the first token of a punctuation mark that is encoded alone. Raises ValueError if the linear
    layer is missing, similarities are not cosines, or the tokenizer has no place for a marker.
    """
    weights = read_weights(folder, "linear.weight")
    if not weights:
        raise ValueError("no linear.weight among the weights")
    settings = json_or_empty(folder / METADATA)
    if settings.get("similarity", "cosine") != "cosine":
        raise ValueError(f"similarity is {settings['similarity']}")
    tokenizer = load_tokenizer(folder, read_json(folder / "config.json").get("vocab_size"))
    vocabulary = tokenizer.get_vocab()
    named = tokenizer.convert_ids_to_tokens
    markers = {}
    for side, key, usual in (("query", "query_token_id", 0), ("document", "doc_token_id", 1)):
        marker = vocabulary.get(settings.get(key) or f"[unused{usual}]", tokenizer.unk_token_id)
        if marker is None:
            raise ValueError(f"the tokenizer has neither the marker of a {side} nor an unknown token")
        markers[f"{side}_marker"] = named([marker])[0]
    marks = string.punctuation if settings.get("mask_punctuation", True) else ""
    first = [tokenizer(mark, add_special_tokens=False)["input_ids"][:1] for mark in marks]
    encoder = encoder_with(
        folder,
        Head(weights["linear.weight"], None),
        **lengths(folder, settings.get("query_maxlen") or 32, settings.get("doc_maxlen") or 220),
        **markers,
        query_augmentation=True,
        attend_augmentation=bool(settings.get("attend_to_mask_tokens")),
        skip_tokens=" ".join(named(sorted({tokenizer.pad_token_id}.union(*first)))),
    )
    if not encoder.begins_specially:
        raise ValueError("the tokenizer begins a text with no special token, which a marker would follow")
    return late_interaction(encoder)


def is_xtr(folder: Path) -> bool:
    """Return whether the folder contains an XTR model: a T5 and 2_Dense, but no modules.json."""
    return _t5_with_dense(folder) and not (folder / MODULES).is_file()


def may_be_xtr(folder: Path) -> bool:
    """Return whether a folder may contain an XTR model: modules.json, a T5 and a linear layer.

    Such a folder does not record whether the model has token vectors: a model with one vector per text may
    look the same.
    """
    if not (_t5_with_dense(folder) and (folder / MODULES).is_file()):
        return False
    if json_or_empty(folder / MODEL).get("model_type"):
        return False
    head = json_or_empty(folder / DENSE / "config.json")
    linear = ACTIVATIONS.get(head.get("activation_function", "")) == "identity" and not head.get("bias", True)
    return linear and head.get("out_features") == DIM


def _t5_with_dense(folder: Path) -> bool:
    model_type = json_or_empty(folder / "config.json").get("model_type")
    return (folder / DENSE).is_dir() and model_type in ("t5", "mt5")


def read_xtr(folder: Path) -> Paradigm:
    """Read XTR (xtr-base-en, Lee et al. 2023): the encoder of a T5 and a linear layer.

    Punctuation is kept, because XTR was trained with it and with k_train of up to 320 tokens. Raises
    ValueError if the linear layer is missing.
    """
    head = dense(folder / DENSE)
    own: dict[str, Any] = {"skip": "", "k_train": 320} | head.settings() | lengths(folder, 64, 512)
    model: Any = xtr(folder, **own)
    head.put_into(model.encoder.projection)
    return model
