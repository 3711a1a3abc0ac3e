"""Load pretrained backbones: any Hugging Face encoder, given by hub name or local folder."""

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from paradigms.encoder.batches import switched_on
from paradigms.encoder.bert import Light
from paradigms.encoder.sources import check_on_hub, packaged
from paradigms.encoder.tokenizing import LightTokenizer, spell_in_bytes
from paradigms.io.checks import check_files, check_header, json_or_empty, naming
from paradigms.io.files import sha256
from paradigms.saved import ONNX

ADAPTER = "holds an adapter of peft: merge it first (merge_and_unload, then save_pretrained)"
SIZE = re.compile("layer|group|bucket|size|position|head|dim|width|length|d_")  # config keys that are sizes

# Fields of a config.json that do not change what an encoder computes, besides those named after dropout.
WITHOUT_EFFECT = """
    _name_or_path architectures bos_token_id chunk_size_feed_forward cls_token_id decoder_start_token_id dtype
    eos_token_id gradient_checkpointing id2label initializer_factor initializer_range label2id mask_token_id
    output_attentions output_hidden_states problem_type return_dict sep_token_id tie_word_embeddings
    torch_dtype transformers_version use_cache
""".split()  # noqa: SIM905

_for_search: ContextVar[bool] = ContextVar("for_search", default=False)
_without_weights: ContextVar[bool] = ContextVar("without_weights", default=False)
# Contexts in which models are loaded only to encode texts, plain BERTs without transformers; and in which
# they have their shapes on the meta device, and no weights (`parallel.built`).
for_search = partial(switched_on, _for_search)
without_weights = partial(switched_on, _without_weights)


def pretrained(kind: Any, name: str | Path, **settings: Any) -> Any:
    """Call transformers' `kind.from_pretrained` for a folder or hub name, without running custom code.

    Every checkpoint is loaded through this function. Raises FileNotFoundError if the checkpoint does not
    exist, and ValueError, with the checkpoint's name, if it cannot be read or requires custom code.
    """
    local = Path(name).is_dir()
    if Path(name).is_absolute() and not local:
        raise FileNotFoundError(f"the backbone {name} is a path, and this folder does not exist")
    if not local:
        check_on_hub(str(name))
    try:
        with quiet(), naming(name):
            if local:
                check_files(Path(name))
            return kind.from_pretrained(name, trust_remote_code=False, local_files_only=local, **settings)
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise ValueError(f"{name} needs custom code from its folder, which is never run") from error


def positions(name: str | Path) -> int | None:
    """Return `most_positions` of a checkpoint's encoder, of which only the shapes are built."""
    if _for_search.get():
        light = json_or_empty(Path(name) / "config.json")
        if light.get("model_type") == "bert" and isinstance(light.get("max_position_embeddings"), int):
            return int(light["max_position_embeddings"])
    from transformers import AutoConfig, AutoModel

    if Path(name).is_dir():
        _check_config(Path(name))
    config = pretrained(AutoConfig, name)
    if getattr(config, "max_position_embeddings", None) is None:
        return None
    with torch.device("meta"):
        return most_positions(AutoModel.from_config(config))


def most_positions(model: nn.Module) -> int | None:
    """Return the number of tokens that an encoder has positions for; None means no limit.

    A table of positions that has a row for padding, as in RoBERTa and MPNet, numbers tokens from the row
    after it.
    """
    config: Any = model.config
    limit: int | None = getattr(config, "max_position_embeddings", None)
    tables = (part for name, part in model.named_modules() if name.endswith("position_embeddings"))
    padding = (getattr(table, "padding_idx", None) for table in tables)
    # With a row for padding, as in RoBERTa and MPNet, a table numbers tokens from the row after it.
    shift = next((row + 1 for row in padding if row is not None), 0)
    return None if limit is None else limit - shift


def configuration(module: nn.Module) -> dict[str, Any]:
    """Return the fields of config.json that change a module's output, for each pretrained model in it."""
    fields: dict[str, Any] = {}
    owners: list[str] = []
    for name, part in module.named_modules():
        config = getattr(part, "config", None)
        if config is None or any(name.startswith(f"{owner}.") or not owner for owner in owners):
            continue  # a model's parts share its configuration
        owners.append(name)
        for key, value in (config.to_dict() if hasattr(config, "to_dict") else vars(config)).items():
            if key not in WITHOUT_EFFECT and "dropout" not in key:
                fields[f"{name}.{key}".lstrip(".")] = value
    return fields


def check_backbone(name: str | Path) -> None:
    """Check that a backbone exists. Raises the same errors as `packaged` and `pretrained`."""
    from transformers import AutoConfig

    pretrained(AutoConfig, packaged(name))


def load_model(kind: Any, name: str | Path, optional: str = "\0") -> Any:
    """Load a transformers model in float32, from safetensors only.

    optional: name prefix of weights that may be missing. Raises ValueError if other weights are missing or
    pickled, if the config refers to code or to larger sizes than the weights have, and for peft adapters,
    because saving would write only the adapter.
    """
    if Path(name).is_dir():
        _check_config(Path(name))
    if _without_weights.get():
        from transformers import AutoConfig

        build = getattr(kind, "from_config", None) or kind._from_config  # AutoModel and the like; others
        with torch.device("meta"):
            return build(pretrained(AutoConfig, name), dtype=torch.float32)
    options = {"use_safetensors": True, "dtype": torch.float32, "output_loading_info": True}
    model, report = pretrained(kind, name, **options)
    if getattr(model, "_hf_peft_config_loaded", False):
        raise ValueError(f"{name} {ADAPTER}")
    missing = sorted(key for key in report["missing_keys"] if not key.startswith(optional))
    if missing:
        raise ValueError(
            f"{name} lacks weights of {type(model).__name__}, such as {missing[0]}, which would be random"
        )
    for part in model.modules():
        if type(part).__name__ == "XmodAdapter":  # whose output is assigned to rows of its input's type
            part.register_forward_hook(_to_type_of_inputs)
    return model


def _to_type_of_inputs(_: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
    return output.to(inputs[0].dtype)


def _check_config(folder: Path) -> None:
    """Raise ValueError for an adapter, or if config.json names code or a larger model than its weights.

    The number of tensors limits the number of layers, and the total number of weights limits every size:
    building a larger model could take hours or fill the memory.
    """
    check_files(folder)
    if (folder / "adapter_config.json").is_file():
        raise ValueError(f"{folder} {ADAPTER}")
    shapes = []
    for file in sorted(folder.glob("*.safetensors")):
        with naming(file), safe_open(file, "pt") as tensors:
            shapes += [tensors.get_slice(key).get_shape() for key in tensors.keys()]  # noqa: SIM118
    pickled = next(folder.glob("pytorch_model*.bin"), None)
    if not shapes and pickled is not None:
        raise ValueError(f"{folder} holds pickled weights, {pickled.name}: convert them to safetensors")
    total = sum(math.prod(shape) for shape in shapes)
    for key, value in json_or_empty(folder / "config.json").items():
        if key.endswith("attn_implementation") and "/" in str(value):
            raise ValueError(f"{folder / 'config.json'}: {key}={value!r:.200} is code, which is never run")
        most = len(shapes) if "layer" in key or "group" in key else total
        if SIZE.search(key) and isinstance(value, int) and shapes and value > most:
            raise ValueError(f"{folder / 'config.json'}: {key}={value:.6g} is more than its weights have")


def load_backbone(name: str | Path) -> Any:
    """Load a checkpoint's encoder in float32, without its pooler or any decoder.

    The pooler's weights would have no gradient, which DistributedDataParallel rejects. Raises the same errors
    as `load_model`. Within `for_search`, a plain BERT is read without transformers. A folder with model.onnx
    is opened for inference (`exported`).
    """
    if (Path(name) / ONNX).is_file():
        from paradigms.encoder.exported import ExportedBackbone

        check_files(Path(name))
        return ExportedBackbone(Path(name))
    if _for_search.get() and Path(name).is_dir():
        _check_config(Path(name))
        with naming(name):
            light = Light.read(Path(name))
        if light is not None:
            return light
    from transformers import AutoConfig, AutoModel, AutoModelForTextEncoding
    from transformers.models.auto.modeling_auto import MODEL_FOR_TEXT_ENCODING_MAPPING

    halves = type(pretrained(AutoConfig, name)) in MODEL_FOR_TEXT_ENCODING_MAPPING
    model = load_model(AutoModelForTextEncoding if halves else AutoModel, name, optional="pooler.")
    if getattr(model, "pooler", None) is not None:
        model.pooler = None
    return without_cache(model)


def without_cache(model: Any) -> Any:
    """Have a decoder keep no layer's keys and values, without changing the configuration that is saved."""
    if getattr(model.config, "use_cache", False):
        model.register_forward_pre_hook(_without_cache, with_kwargs=True)
    return model


def _without_cache(_: Any, places: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    return places, named | {"use_cache": False}


def load_tokenizer(name: str | Path, entries: int | None = None) -> Any:
    """Load a checkpoint's tokenizer, which pads on the right and spells unknown characters in bytes.

    entries: number of tokens that the model embeds, by default the config's vocab_size. Raises ValueError if
    there is no padding token, or if the tokenizer has far fewer tokens, as without its files.
    """
    if _for_search.get() and entries is not None and Path(name).is_dir():
        with naming(name):
            light = LightTokenizer.read(Path(name))
        if light is not None and entries / 2 <= len(light):
            return light
    from transformers import AutoConfig, AutoTokenizer

    try:
        tokenizer = pretrained(AutoTokenizer, name)
    except ValueError as error:
        raise ValueError(f"{name} has no tokenizer: {error}") from error
    entries = pretrained(AutoConfig, name).vocab_size if entries is None else entries
    if len(tokenizer) < entries / 2:
        raise ValueError(
            f"the tokenizer of {name} has {len(tokenizer)} tokens, but its encoder embeds {entries}: "
            "tokenizer.json (or vocab.txt, spiece.model) is missing or belongs to another model"
        )
    if tokenizer.pad_token_id is None and tokenizer.eos_token_id is not None:
        tokenizer.pad_token = tokenizer.eos_token  # as many decoders are trained; no token attends to padding
    if tokenizer.pad_token_id is None:
        raise ValueError(f"the tokenizer of {name} has no pad_token, which batches of texts need")
    tokenizer.padding_side = "right"  # place 0 is pooled as [CLS]
    spell_in_bytes(tokenizer)
    return tokenizer


def load_heads(module: nn.Module, expected: Mapping[str, Tensor], file: Path) -> None:
    """Load the weights outside the backbone from a file. Raises ValueError unless they match `expected`.

    The module's `heads_read` is then the file's checksum.
    """
    with naming(file):
        check_header(file)
        saved = load_file(file)
    shapes, needed = ({n: tuple(t.shape) for n, t in w.items()} for w in (saved, expected))
    if shapes != needed:
        wrong = dict(sorted(shapes.items() - needed.items()))
        lacking = dict(sorted(needed.items() - shapes.items()))
        raise ValueError(f"{file} holds {wrong}, but its settings need {lacking}")
    module.load_state_dict(saved, strict=False)
    module.__dict__["heads_read"] = sha256(file)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' progress bars and its report on unused weights."""
    from transformers.utils import logging as hf_logging

    verbosity = hf_logging.get_verbosity()
    bar = hf_logging.is_progress_bar_enabled()
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        hf_logging.set_verbosity(verbosity)
        if bar:
            hf_logging.enable_progress_bar()
