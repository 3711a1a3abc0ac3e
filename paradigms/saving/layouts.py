"""The layouts of checkpoints that can be read, and `read_checkpoint`, which recognises them."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from paradigms.baselines.cross_attention import CrossAttention
from paradigms.encoder.published import MODULES
from paradigms.model import Paradigm
from paradigms.saving import read
from paradigms.saving.hub import files_of, safe_weights, shortened
from paradigms.saving.library import read_library


class Format(NamedTuple):
    """A checkpoint layout that can be read."""

    title: str
    recognises: Callable[[Path], bool]
    read: Callable[[Path], Paradigm | CrossAttention]


# Name -> format. The first that recognises a folder reads it.
FORMATS: dict[str, Format] = {
    "xtr": Format("XTR (a T5 with 2_Dense and no modules.json)", read.is_xtr, read.read_xtr),
    "classifier": Format("a reranker (…ForSequenceClassification)", read.is_reranker, read.read_reranker),
    "bge-m3": Format("BGE-M3 (colbert_linear.pt and sparse_linear.pt)", read.is_m3, read.read_m3),
    "sentence-transformers": Format(
        f"sentence-transformers or PyLate ({MODULES})",
        read.is_sentence_transformers,
        read.read_sentence_transformers,
    ),
    "stanford": Format(
        "Stanford ColBERT (artifact.metadata, or HF_ColBERT in config.json)",
        read.is_stanford,
        read.read_stanford,
    ),
    "dpr": Format("DPR (model_type dpr)", read.is_dpr, read.read_dpr),
    "coil": Format("COIL (model.pt)", read.is_coil, read.read_coil),
    "splade": Format("SPLADE (…ForMaskedLM)", read.is_masked, read.read_masked),
    "plain": Format("a plain encoder (config.json)", read.is_plain, read.read_plain),
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
    if layout is None and read.may_be_xtr(folder):
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
