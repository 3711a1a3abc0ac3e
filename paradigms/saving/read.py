"""Read checkpoints of other libraries and of papers' authors as paradigms with equal scores.

Formats: sentence-transformers (one vector, many, or sparse) and PyLate, DPR, COIL, Stanford ColBERT, XTR,
BGE-M3, and plain transformers. Each reader raises ValueError for a part that no paradigm supports.
"""

import logging
import string
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from paradigms.align import AllPairs, PositiveEqualIds, QueryToDocument
from paradigms.baselines.cross_attention import SequenceClassifier
from paradigms.bge_m3 import bge_m3
from paradigms.coil import coil
from paradigms.encoder.backbone import load_heads, load_model, load_tokenizer, positions, pretrained, quiet
from paradigms.encoder.published import MODEL, MODULES, TRANSFORMER, modules, pooling, prompts
from paradigms.encoder.settings import LONGEST
from paradigms.encoder.text import EncoderSettings, TextEncoder
from paradigms.encoder.tokenizing import call_tokenizer
from paradigms.io.checks import json_or_empty, naming, read_json
from paradigms.model import Paradigm
from paradigms.recipe import Recipe
from paradigms.splade import splade
from paradigms.xtr import xtr

ACTIVATIONS = {
    "torch.nn.modules.linear.Identity": "identity",
    "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.activation.ReLU": "relu",
}
POOLED = {"query_vectors": "pooled", "document_vectors": "pooled"}
LENGTH = 512  # longest text in tokens, if the encoder allows as many

logger = logging.getLogger(__name__)


# Heads: the linear maps after an encoder become the one projection of a paradigm.


@dataclass
class Head:
    """The map x ↦ activation(weight · x + bias)."""

    weight: Tensor
    bias: Tensor | None
    activation: str = "identity"

    def then(self, other: "Head") -> "Head":
        """Compose the maps: this one, then the other. Raises ValueError if an activation lies between."""
        if self.activation != "identity":
            raise ValueError(f"linear layers with {self.activation} between them do not merge into one")
        bias = None if self.bias is None else other.weight @ self.bias
        if other.bias is not None:
            bias = other.bias if bias is None else bias + other.bias
        return Head(other.weight @ self.weight, bias, other.activation)

    def settings(self) -> dict[str, Any]:
        """The fields of `EncoderSettings` for this projection."""
        bias = self.bias is not None
        return {"dim": len(self.weight), "projection_bias": bias, "activation": self.activation}

    def put_into(self, projection: nn.Linear | None) -> None:
        assert projection is not None
        with torch.no_grad():
            projection.weight.copy_(self.weight)
            if self.bias is not None:
                projection.bias.copy_(self.bias)


def read_weights(folder: Path, *names: str) -> dict[str, Tensor]:
    """Read tensors by name, in float32, from those safetensors files that exist in a folder."""
    tensors: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with naming(file):
            tensors |= {name: t.float() for name, t in load_file(file).items() if name in names}
    return tensors


def dense(folder: Path) -> Head:
    """Read a Dense module of sentence-transformers or PyLate: linear, activation, and perhaps a residual."""
    config = read_json(folder / "config.json")
    activation = ACTIVATIONS.get(config.get("activation_function", "torch.nn.modules.activation.Tanh"))
    if activation is None:
        raise ValueError(f"{folder.name} has the activation {config['activation_function']}")
    weights = read_weights(folder, "linear.weight", "linear.bias", "residual.weight")
    if "linear.weight" not in weights or (config.get("bias", True) and "linear.bias" not in weights):
        raise ValueError(f"{folder.name} lacks the weights of its linear layer")
    weight = weights["linear.weight"]
    if config.get("use_residual"):
        if activation != "identity":
            raise ValueError(f"{folder.name} has a residual and {activation}, which do not merge")
        weight = weight + weights.get("residual.weight", torch.eye(len(weight)))
    return Head(weight, weights.get("linear.bias"), activation)


def encoder_with(folder: Path, head: Head | None, **settings: Any) -> TextEncoder:
    """Load the backbone in a folder, with a head; without a head, vectors have the backbone's width."""
    projected = {"dim": None} if head is None else head.settings()
    encoder = TextEncoder(folder, EncoderSettings(**settings | projected))
    if head is not None:
        head.put_into(encoder.projection)
    return encoder


def lengths(folder: Path, query: int = LENGTH, document: int = LENGTH) -> dict[str, Any]:
    """Return the settings of both lengths, in tokens, limited to the positions of a folder's encoder."""
    limit = positions(folder) or LONGEST
    return {"query_length": min(query, limit), "document_length": min(document, limit)}


def late_interaction(encoder: TextEncoder, *, mean: bool = False) -> Paradigm:
    """Make a ColBERT model: rel is the sum (or mean) over query tokens of their best similarities."""
    normalise, temperature = ("query_tokens", 0.02) if mean else ("one", 1.0)
    return Paradigm(Recipe("colbert", QueryToDocument(), normalise, temperature=temperature), encoder)


def one_vector(encoder: TextEncoder) -> Paradigm:
    """Make a DPR from the encoder: rel is the cosine or inner product of two vectors."""
    temperature = 0.05 if encoder.settings.normalize else 1.0
    return Paradigm(Recipe("dpr", AllPairs(), "one", temperature=temperature), encoder)


# sentence-transformers and PyLate: a chain of modules. PyLate's prefixes become marker settings. Up to
# version 3, PyLate wrote only Transformer and Dense, and normalised vectors without a Normalize module.

PYLATE, MULTI = "ColBERT", "MultiVectorEncoder"  # model_type of token vectors
COMMUTES = ("cls", "mean", "last")  # pooling that commutes with a linear map
AUGMENTED, READ = 32, 180  # tokens per query and per document, if a PyLate folder does not set them


@dataclass
class Chain:
    """Settings collected from a folder's modules."""

    backbone: Path
    pooling: str = ""  # "" = token vectors
    head: Head | None = None
    normalize: bool = False
    mask: dict[str, Any] = field(default_factory=dict)  # of MultiVectorMask
    sparse: bool = False  # SpladePooling of the logits


def read_sentence_transformers(folder: Path) -> Paradigm:
    """Read one of the library's three kinds of models, or PyLate's."""
    config = json_or_empty(folder / MODEL)
    parts = chain(folder)
    settings = json_or_empty(parts.backbone / TRANSFORMER)
    if settings.get("do_lower_case"):
        check_lower_case(parts.backbone)
    # PyLate 1.6 over version 5.3 writes no model_type.
    kind = config.get("model_type", PYLATE if "do_query_expansion" in config else "")
    if parts.sparse:
        return _sparse(parts, config, settings)
    if (kind in (PYLATE, MULTI)) == bool(parts.pooling):
        raise ValueError(f"model_type is {config.get('model_type')}, and pooling {parts.pooling or 'none'}")
    if parts.pooling:
        return _single(parts, config, settings)
    return _multi(parts, config, settings, pylate=kind == PYLATE)


def _similarity(config: dict[str, Any], *allowed: str) -> str:
    """Return the model's similarity, by default the first one. Raises ValueError for one not allowed."""
    similarity = str(config.get("similarity_fn_name") or allowed[0]).lower()
    if similarity not in allowed:
        raise ValueError(f"similarity is {similarity}")
    return similarity


def _sparse(parts: Chain, config: dict[str, Any], settings: dict[str, Any]) -> Paradigm:
    """SPLADE: an encoder followed by SpladePooling alone."""
    _similarity(config, "dot")
    if parts.head is not None or parts.normalize or parts.pooling:
        raise ValueError("SpladePooling has other modules after it")
    options: dict[str, Any] = prompts(config) | augmentation(settings, parts.backbone)
    return splade(parts.backbone, most_terms=config.get("max_active_dims"), **options)


def _single(parts: Chain, config: dict[str, Any], settings: dict[str, Any]) -> Paradigm:
    cosine = _similarity(config, "cosine", "dot") == "cosine"
    options: dict[str, Any] = prompts(config) | POOLED | augmentation(settings, parts.backbone)
    options |= {"normalize": parts.normalize or cosine, "pooling": parts.pooling}
    options["truncate"] = config.get("truncate_dim")
    if options["truncate"] and parts.normalize and not cosine:
        raise ValueError("truncate_dim after Normalize: the vectors' inner products are no cosines")
    return one_vector(encoder_with(parts.backbone, parts.head, **options))


def _multi(parts: Chain, config: dict[str, Any], settings: dict[str, Any], *, pylate: bool) -> Paradigm:
    mean = _similarity(config, "maxsim", "meanmaxsim") == "meanmaxsim"
    options: dict[str, Any] = prompts(config) | augmentation(settings | config, parts.backbone, pylate)
    skip = skipped(config if pylate else parts.mask, parts.backbone, pylate)
    normalize = parts.normalize or pylate
    encoder = encoder_with(parts.backbone, parts.head, **options, normalize=normalize, skip_tokens=skip)
    return late_interaction(encoder, mean=mean)


def chain(folder: Path) -> Chain:
    """Read the modules of a folder, in order."""
    steps = modules(folder)
    if not steps or steps[0][0] not in ("Transformer", "MLMTransformer"):
        raise ValueError(f"the first module is {steps[0][0] if steps else 'missing'}, not Transformer")
    parts = Chain(steps[0][1])
    for kind, place in steps[1:]:
        if parts.normalize and kind in ("Pooling", "Dense"):
            raise ValueError(f"a {kind} after Normalize")
        if kind == "Pooling":
            parts.pooling = pooling(place)
            head = parts.head
            if head is not None and (head.activation != "identity" or parts.pooling not in COMMUTES):
                raise ValueError(f"{parts.pooling} pooling of projected tokens")
        elif kind == "Dense":
            parts.head = dense(place) if parts.head is None else parts.head.then(dense(place))
        elif kind == "Normalize":
            parts.normalize = True
        elif kind == "MultiVectorMask":
            parts.mask = read_json(place / "config.json")
        elif kind == "SpladePooling":
            config = read_json(place / "config.json")
            ways = [config.get("pooling_strategy", "max"), config.get("activation_function", "relu")]
            if ways != ["max", "relu"]:
                raise ValueError(f"SpladePooling by {' and '.join(ways)}, not by max and relu")
            parts.sparse = True
        elif kind != "Dropout":
            raise ValueError(f"{kind} is a module that no paradigm supports")
    return parts


def text_length(settings: dict[str, Any], backbone: Path) -> int:
    """Return the maximum number of tokens in a text: the smallest limit of module, tokenizer and encoder."""
    limit = positions(backbone) or LENGTH
    of_tokenizer = json_or_empty(backbone / "tokenizer_config.json").get("model_max_length")
    limits = [settings.get("max_seq_length"), of_tokenizer]
    return min([limit, LONGEST, *(int(length) for length in limits if length and length < 1e6)])


def augmentation(settings: dict[str, Any], backbone: Path, pylate: bool = False) -> dict[str, Any]:
    """Return the lengths of texts, and whether [MASK] pads queries and is attended to.

    A side's own length counts even if the tokenizer's is shorter.
    """
    length = settings.get("query_length") or (AUGMENTED if pylate else None)
    if pylate:
        augments = settings.get("do_query_expansion", True)
        attends = settings.get("attend_to_expansion_tokens")
    else:
        expansion = settings.get("query_expansion")
        augments = expansion is not None
        attends = expansion and expansion.get("attend")
        if expansion:
            length = expansion["length"]
            token = expansion.get("token")
            if expansion.get("strategy") != "fixed":
                raise ValueError(f"query expansion by the strategy {expansion.get('strategy')}")
            if token is not None and token != load_tokenizer(backbone).mask_token:
                raise ValueError(f"query expansion with the token {token}")
    longest = text_length(settings, backbone)
    limit = positions(backbone) or LONGEST
    return {
        "query_length": min(length or longest, limit),
        "document_length": min(settings.get("document_length") or (READ if pylate else longest), limit),
        "query_augmentation": augments,
        "attend_augmentation": bool(augments and attends),
    }


def skipped(mask: dict[str, Any], backbone: Path, pylate: bool) -> str:
    """Return the document skip list, as `EncoderSettings.skip_tokens`.

    A word outside the vocabulary is the unknown token for PyLate, and left out by sentence-transformers.
    """
    words = mask.get("skiplist_words")
    words = list(string.punctuation if pylate else "") if words is None else words
    if words and mask.get("skiplist_tasks", ["document"]) != ["document"]:
        raise ValueError(f"the skip list is of {' and '.join(mask['skiplist_tasks'])}")
    if mask.get("keep_only_token_ids"):
        raise ValueError("only some token ids are kept")
    if not words:
        return ""
    tokenizer = load_tokenizer(backbone, read_json(backbone / "config.json").get("vocab_size"))
    vocabulary = tokenizer.get_vocab()
    unknown = tokenizer.unk_token_id if pylate else None
    ids = {vocabulary.get(word, unknown) for word in words} - {None}
    tokens = tokenizer.convert_ids_to_tokens(sorted(ids))
    spaced = next((token for token in tokens if token.split() != [token]), None)
    if spaced is not None:
        raise ValueError(f"the skip list has {spaced!r}, a token with a space")
    return " ".join(tokens)


def check_lower_case(backbone: Path) -> None:
    """Raise ValueError if the tokenizer distinguishes the case of letters, which a module removes."""
    tokenizer = load_tokenizer(backbone)
    if call_tokenizer(tokenizer, "Ab")["input_ids"] != call_tokenizer(tokenizer, "ab")["input_ids"]:
        raise ValueError("texts are put in lower case before a case-sensitive tokenizer")


# Layouts of papers' authors.

TOWERS = {"DPRQuestionEncoder": "question_encoder", "DPRContextEncoder": "ctx_encoder"}
DPR_LENGTH = 256  # tokens per text, as the paper cuts passages
COIL_HEADS = "heads.safetensors"  # what COIL's model.pt becomes
COIL_WEIGHTS = {f"{name}.{part}" for name in ("tok_proj", "cls_proj") for part in ("weight", "bias")}
METADATA = "artifact.metadata"
DENSE = "2_Dense"
DIM = 128  # width of published XTRs; T5 models with one vector per text have 768


def read_dpr(folder: Path) -> Paradigm:
    """Read one of DPR's two encoders and use it for both sides; `loading.load` joins two into a pair."""
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
        pooled = POOLED | {"pooling": "cls"}
        return one_vector(encoder_with(Path(temporary), head, **pooled, **limits, normalize=False))


def _bert(model: Any) -> Any:
    """Copy the weights into a `BertModel`."""
    from transformers import BertConfig, BertModel

    fields = BertConfig().to_dict().keys() - {"model_type", "architectures", "transformers_version"}
    config = BertConfig(**{name: value for name, value in model.config.to_dict().items() if name in fields})
    bert = BertModel(config, add_pooling_layer=False)
    bert.load_state_dict(model.state_dict())
    return bert


def read_coil(folder: Path) -> Paradigm:
    """Read COIL-full without layer normalisation: an encoder, and two projections in model.pt.

    Gao et al. 2021. The settings are in a pickle of objects (args.pt), which is not read: they are assumed to
    be those of the published COIL-full, without [SEP] and with the lengths of MS MARCO.
    """
    with naming(folder / COIL_HEADS):
        weights = {name: t.float() for name, t in load_file(folder / COIL_HEADS).items()}
    if weights.keys() != COIL_WEIGHTS:
        needed = sorted(COIL_WEIGHTS)
        raise ValueError(f"{COIL_HEADS} or model.pt holds {sorted(weights)}, where {needed} belong")
    tokens = Head(weights["tok_proj.weight"], weights["tok_proj.bias"])
    pooled = Head(weights["cls_proj.weight"], weights["cls_proj.bias"])
    model: Any = coil(folder, pooled_dim=len(pooled.weight), **lengths(folder, 16, 128), **tokens.settings())
    tokens.put_into(model.encoder.projection)
    pooled.put_into(model.encoder.pooled_projection)
    return model.with_alignment(PositiveEqualIds())


def read_stanford(folder: Path) -> Paradigm:
    """Read Stanford ColBERT: a state dict of BERT and a linear layer, with settings in artifact.metadata.

    Khattab & Zaharia 2020; Santhanam et al. 2022. Settings missing from the metadata follow the authors'
    code. A marker outside the vocabulary is the unknown token there. A document's token is skipped if it is
    padding, or the first token of a punctuation mark that is encoded alone.
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
    first = [call_tokenizer(tokenizer, mark, add_special_tokens=False)["input_ids"][:1] for mark in marks]
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


def read_xtr(folder: Path) -> Paradigm:
    """Read XTR (xtr-base-en, Lee et al. 2023): the encoder of a T5 and a linear layer.

    Punctuation is kept, because XTR was trained with it and with k_train of up to 320 tokens.
    """
    head = dense(folder / DENSE)
    model: Any = xtr(folder, skip="", k_train=320, **head.settings(), **lengths(folder, 64, 512))
    head.put_into(model.encoder.projection)
    return model


# BGE-M3: an encoder and two heads, which are pickled state dicts of linear layers.

M3_MODULES = {"colbert_linear": "token_projection", "sparse_linear": "term_projection"}  # file -> module


def read_m3(folder: Path) -> Paradigm:
    """Read BGE-M3. Raises ValueError if a head's shape is not BGE-M3's, such as fewer dimensions."""
    length = text_length({}, folder)
    model: Any = bge_m3(folder, pooling="cls", query_length=length, document_length=length)
    for name, head in M3_MODULES.items():
        module = getattr(model.encoder, head)
        load_heads(module, module.state_dict(), folder / f"{name}.safetensors")
    return model


# transformers: `architectures` in config.json determines the reader.

HEADLESS = ("Model", "ForPreTraining", "ForMaskedLM", "ForConditionalGeneration")  # heads that may be dropped


def read_plain(folder: Path) -> Paradigm:
    """Read an encoder with mean pooling."""
    if not list(folder.glob("*.safetensors")):
        raise ValueError("no *.safetensors with its weights")
    check_encoder(folder)
    return one_vector(encoder_with(folder, None, **POOLED, **lengths(folder), pooling="mean"))


def check_encoder(folder: Path) -> None:
    """Raise ValueError if the model is generative or has a head trained for another task."""
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_MASKED_LM_MAPPING,
        MODEL_FOR_TEXT_ENCODING_MAPPING,
    )

    config = pretrained(AutoConfig, folder)
    masked = type(config) in MODEL_FOR_MASKED_LM_MAPPING and not config.is_encoder_decoder
    encodes = masked and not getattr(config, "is_decoder", False)
    if not encodes and type(config) not in MODEL_FOR_TEXT_ENCODING_MAPPING:
        raise ValueError(
            f"model_type {config.model_type} is not a text encoder: to train one from it, name the folder as "
            "the backbone of a paradigm, PARADIGMS['dpr'](folder)"
        )
    for name in config.architectures or []:
        if not name.endswith(HEADLESS) or name.endswith("LMHeadModel"):
            raise ValueError(f"{name} is not a text encoder: save the encoder below its head separately")


def read_masked(folder: Path) -> Paradigm:
    """Read SPLADE with its head, which layout "plain" drops. Raises ValueError if weights are missing."""
    logger.warning("%s is read as SPLADE, by its masked-language-model head; layout 'plain' drops it", folder)
    return splade(folder, **lengths(folder))


def read_reranker(folder: Path) -> SequenceClassifier:
    """Read a reranker. Raises ValueError for several outputs, a prompt, or modules after the classifier."""
    further = [kind for kind, _ in modules(folder)[1:]] if (folder / MODULES).is_file() else []
    if further:
        raise ValueError(f"{', '.join(further)} after a sequence classifier")
    if json_or_empty(folder / MODEL).get("default_prompt_name"):
        raise ValueError("a prompt before every pair")
    return SequenceClassifier(folder)
