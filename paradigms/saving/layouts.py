"""The layouts of checkpoints that can be read, and `read_checkpoint`, which recognises them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from paradigms.baselines.cross_attention import CrossAttention
from paradigms.encoder.published import MODEL, MODULES
from paradigms.io.checks import json_or_empty
from paradigms.model import Paradigm
from paradigms.saving import read
from paradigms.saving.hub import files_of, safe_weights, shortened
from paradigms.saving.library import read_library


class Format(NamedTuple):
    """A checkpoint layout that can be read."""

    title: str
    recognises: Callable[[Path], bool]
    read: Callable[[Path], Paradigm | CrossAttention]


def _config(folder: Path) -> dict[str, Any]:
    return json_or_empty(folder / "config.json")


def _has(folder: Path, *names: str) -> bool:
    """Return whether a folder has a file of one of these names."""
    return any((folder / name).is_file() for name in names)


def _headed(folder: Path, head: str) -> bool:
    """Return whether config.json names an architecture with this head."""
    config = _config(folder)
    return "model_type" in config and any(name.endswith(head) for name in config.get("architectures") or [])


def _t5_with_dense(folder: Path) -> bool:
    return (folder / read.DENSE).is_dir() and _config(folder).get("model_type") in ("t5", "mt5")


def may_be_xtr(folder: Path) -> bool:
    """Return whether a folder may be XTR: a model with one vector per text may have the same files."""
    named = json_or_empty(folder / MODEL).get("model_type")
    if named or not _t5_with_dense(folder) or not _has(folder, MODULES):
        return False
    head = _config(folder / read.DENSE)
    activation = read.ACTIVATIONS.get(head.get("activation_function", ""))
    return activation == "identity" and not head.get("bias", True) and head.get("out_features") == read.DIM


# Name -> format. The first that recognises a folder reads it.
FORMATS: dict[str, Format] = {
    "xtr": Format(
        "XTR (a T5 with 2_Dense and no modules.json)",
        lambda folder: _t5_with_dense(folder) and not _has(folder, MODULES),
        read.read_xtr,
    ),
    "classifier": Format(
        "a reranker (…ForSequenceClassification)",
        lambda folder: _headed(folder, "ForSequenceClassification"),
        read.read_reranker,
    ),
    "bge-m3": Format(
        "BGE-M3 (colbert_linear.pt and sparse_linear.pt)",
        lambda folder: all(_has(folder, f"{name}.pt", f"{name}.safetensors") for name in read.M3_MODULES),
        read.read_m3,
    ),
    "sentence-transformers": Format(
        f"sentence-transformers or PyLate ({MODULES})",
        lambda folder: _has(folder, MODULES),
        read.read_sentence_transformers,
    ),
    "stanford": Format(
        "Stanford ColBERT (artifact.metadata, or HF_ColBERT in config.json)",
        lambda folder: (
            bool(_config(folder))
            and (_has(folder, read.METADATA) or "HF_ColBERT" in (_config(folder).get("architectures") or ()))
        ),
        read.read_stanford,
    ),
    "dpr": Format(
        "DPR (model_type dpr)", lambda folder: _config(folder).get("model_type") == "dpr", read.read_dpr
    ),
    "coil": Format(
        "COIL (model.pt)",
        lambda folder: _has(folder, "model.pt", read.COIL_HEADS) and _has(folder, "config.json"),
        read.read_coil,
    ),
    "splade": Format(
        "SPLADE (…ForMaskedLM)", lambda folder: _headed(folder, "ForMaskedLM"), read.read_masked
    ),
    "plain": Format(
        "a plain encoder (config.json)", lambda folder: "model_type" in _config(folder), read.read_plain
    ),
    "library": Format(
        "any model of sentence-transformers, run by that library (on request)",
        lambda folder: False,
        read_library,
    ),
}


def read_checkpoint(
    folder: Path, *, layout: str | None = None, pickled: bool = False
) -> Paradigm | CrossAttention:
    """Read a paradigm or reranker from a folder. layout: a key of `FORMATS`; None = by the folder's files.

    Raises ValueError if files are missing, not supported or ambiguous.
    """
    if layout is not None and layout not in FORMATS:
        raise ValueError(f"unknown layout {layout!r}; there are {', '.join(FORMATS)}")
    if layout is None and may_be_xtr(folder):
        raise ValueError(
            f"{folder} may be XTR, with one vector per token, or a model with one vector per text: say "
            "which with layout='xtr' or layout='sentence-transformers' (at the terminal --model-layout)"
        )
    formats = [FORMATS[layout]] if layout else [form for form in FORMATS.values() if form.recognises(folder)]
    if not formats:
        titles = "; ".join(form.title for form in FORMATS.values())
        raise ValueError(f"{folder} is not a checkpoint of {titles}: it holds {shortened(files_of(folder))}")
    with safe_weights(folder, pickled) as safe:
        try:
            return formats[0].read(safe)
        except (ValueError, FileNotFoundError) as error:
            raise ValueError(f"{folder}, in the format of {formats[0].title}: {error}") from error
