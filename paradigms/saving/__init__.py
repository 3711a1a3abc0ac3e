"""Read other libraries' checkpoints as paradigms with equal scores; write them if the format allows this.

Each format recognises a folder by its files and reads all of the folder's parts. A part that no paradigm
supports causes an error that names the part. Pickled weights are read only on request, by `torch.load` with
weights_only, which runs no code.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from paradigms.baselines.cross_attention import CrossAttention
from paradigms.encoder.published import MODULES
from paradigms.model import Paradigm
from paradigms.saving import authors, m3, plain
from paradigms.saving.layouts import push_to_hub
from paradigms.saving.library import read_library, wrap
from paradigms.saving.sentence_transformers import is_sentence_transformers, read_sentence_transformers
from paradigms.saving.weights import described, safe_weights


class Format(NamedTuple):
    """A checkpoint layout that can be read."""

    title: str
    recognises: Callable[[Path], bool]
    read: Callable[[Path], Paradigm | CrossAttention]


# Name -> format. The first that recognises a folder reads it.
FORMATS: dict[str, Format] = {
    "xtr": Format("XTR (a T5 with 2_Dense and no modules.json)", authors.is_xtr, authors.read_xtr),
    "classifier": Format("a reranker (…ForSequenceClassification)", plain.is_reranker, plain.read_reranker),
    "bge-m3": Format("BGE-M3 (colbert_linear.pt and sparse_linear.pt)", m3.is_m3, m3.read_m3),
    "sentence-transformers": Format(
        f"sentence-transformers or PyLate ({MODULES})", is_sentence_transformers, read_sentence_transformers
    ),
    "stanford": Format(
        "Stanford ColBERT (artifact.metadata, or HF_ColBERT in config.json)",
        authors.is_stanford,
        authors.read_stanford,
    ),
    "dpr": Format("DPR (model_type dpr)", authors.is_dpr, authors.read_dpr),
    "coil": Format("COIL (model.pt)", authors.is_coil, authors.read_coil),
    "splade": Format("SPLADE (…ForMaskedLM)", plain.is_masked, plain.read_masked),
    "plain": Format("a plain encoder (config.json)", plain.is_plain, plain.read_plain),
    "library": Format(
        "any model of sentence-transformers, run by that library (on request)",
        lambda folder: False,
        read_library,
    ),
}


def read_checkpoint(
    folder: Path, *, layout: str | None = None, pickled: bool = False
) -> Paradigm | CrossAttention:
    """Read a paradigm or reranker from a folder in any of `FORMATS`.

    layout: a key of `FORMATS`; None recognises the layout by its files. Raises ValueError if files are
    missing, not supported or ambiguous.
    """
    if layout is not None and layout not in FORMATS:
        raise ValueError(f"unknown layout {layout!r}; there are {', '.join(FORMATS)}")
    if layout is None and authors.may_be_xtr(folder):
        raise ValueError(
            f"{folder} may be XTR, with one vector per token, or a model with one vector per text: say "
            "which with layout='xtr' or layout='sentence-transformers' (at the terminal --model-layout)"
        )
    formats = [FORMATS[layout]] if layout else [form for form in FORMATS.values() if form.recognises(folder)]
    if not formats:
        known = "; ".join(form.title for form in FORMATS.values())
        raise ValueError(f"{folder} is not a checkpoint of {known}: it holds {described(folder)}")
    with safe_weights(folder, pickled) as safe:
        try:
            return formats[0].read(safe)
        except (ValueError, FileNotFoundError) as error:
            raise ValueError(f"{folder}, in the format of {formats[0].title}: {error}") from error
