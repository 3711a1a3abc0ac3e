"""Plan the memory of one GPU in a training of ColBERT, and of in-batch scores.

Nothing is trained and no weight is read. The encoder runs on tensors without data, which count the
activations of a text; in-batch scores are counted in the same way. Everything else follows from these counts,
the number of weights and the settings. The sizes are those of texts of the full length.
"""

from dataclasses import replace
from itertools import product
from typing import Any, Literal

from studies.settings import Output, at_least, launch

from paradigms.io.command_line import flags


@flags()
class Settings(Output):
    """Settings for the encoder and the training."""

    model: str = ""
    """folder with an encoder's config.json; offline; or a type of transformers in its default size, such as
    bert or mistral. Empty: the rows of the page"""
    gpus: int = 8
    batch: int = 4096
    """queries in a step of all GPUs"""
    negatives: int = 0
    """hard negatives of each query"""
    query_length: int = 32
    document_length: int = 180
    dim: int = 128
    chunk: int = 0
    """texts whose activations are held at once, with cached gradients; 0: all"""
    recompute: bool = False
    """hold only the inputs of layers"""
    shards: bool = False
    """weights, moments and gradients in shards (fsdp.yaml)"""
    precision: Literal["no", "bf16"] = "bf16"
    score_bytes: int = 1 << 30
    """bound of the memory for in-batch scores"""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, gpus=1, batch=1, negatives=0, query_length=1, document_length=1, dim=1, chunk=0)
        if self.batch % self.gpus:
            raise SystemExit(f"batch={self.batch} is not divisible by gpus={self.gpus}")


launch(__name__, Settings, __doc__)  # before the slow imports

from studies.counted import Counted, built, counted, score_bytes
from studies.pages import Rows, Section, publish

from paradigms.align import Alignment, AllPairs, PoolTopK, TopK

# Name -> A whose in-batch scores are counted; None: ColBERT's.
ALIGNMENTS: dict[str, Alignment | None] = {
    "maximum": None,
    "k = 2": TopK(2),
    "XTR": PoolTopK(0.005),
    "all pairs": AllPairs(),
}
IN_PIECES = ["maximum", "k = 2", "XTR"]  # the others are computed again in tiles
GB = 1e9
GiB = 1 << 30
# The rows of the page: name -> what differs from the defaults of the settings.
CASES: dict[str, dict[str, Any]] = {
    "MiniLM ColBERT, MS MARCO": {"model": "offline", "gpus": 1, "batch": 256},
    "7B decoder": {"model": "mistral", "batch": 1024, "chunk": 8, "recompute": True, "shards": True},
    "BERT-base, 64 GPUs": {"model": "bert", "gpus": 64},
}


def main(settings: Settings) -> None:
    cases = {settings.model: settings}
    if not settings.model:
        cases = {name: replace(settings, **changes) for name, changes in CASES.items()}
    memory: Rows = []
    for name, case in cases.items():
        backbone = built(case.model)
        query = counted(backbone, case.query_length, case)
        document = counted(backbone, case.document_length, case)
        parts = parts_of(case, query, document)
        memory.append({"training": name, "GPUs": case.gpus} | {f"{k}, GB": v / GB for k, v in parts.items()})
    publish(
        settings,
        "Plan of a training",
        "Counted on tensors without data.",
        {
            "memory": Section(
                "Memory of one GPU",
                "moments: AdamW's. peak: the largest of the memory in the forward pass, after scoring and in "
                "the backward pass.",
                memory,
            ),
            "scores": Section(
                "In-batch scores, for batches of one process",
                f"Counted, for vectors in float32 and a bound of {settings.score_bytes / GiB:g} GiB. "
                "maximum: ColBERT's and COIL's A, and ALIGNER's with k = 1. XTR: k_train is .005 of the "
                "batch's tokens. S: of the whole batch. of it bounded: the largest of the first three "
                "peaks, less two copies of D's gradient and three of the scores.",
                score_rows(settings),
            ),
        },
    )


def score_rows(settings: Settings) -> Rows:
    """Count the memory of in-batch scores by numbers of queries and hard negatives."""
    s = settings
    rows: Rows = []
    for queries, negatives in product((32, 512, 4096, 8192), (0, 7)):
        documents = queries * (1 + negatives)
        lengths = s.query_length, s.document_length
        row = {"queries": queries, "documents": documents}
        sizes = {"S": 4 * queries * documents * lengths[0] * lengths[1]}
        sizes["D's gradient"] = 4 * documents * lengths[1] * s.dim
        for name, align in ALIGNMENTS.items():
            sizes[f"peak, {name}"] = score_bytes(queries, documents, *lengths, s.dim, s.score_bytes, align)
        gradients = 2 * sizes["D's gradient"] + 3 * 4 * queries * documents
        sizes["of it bounded"] = max(sizes[f"peak, {name}"] for name in IN_PIECES) - gradients
        rows.append(row | {f"{name}, GiB": size / GiB for name, size in sizes.items()})
    return rows


def passages_of(settings: Settings) -> tuple[int, int]:
    """Return the queries and the documents of one GPU in a step."""
    queries = settings.batch // settings.gpus
    return queries, queries * (1 + settings.negatives)


def texts_at_once(texts: int, settings: Settings) -> int:
    return min(texts, settings.chunk or texts)


def parts_of(settings: Settings, query: Counted, document: Counted) -> dict[str, float]:
    """Return the bytes of each part of a GPU's memory, and the peak."""
    s = settings
    queries, documents = passages_of(s)
    weights = 4 * query.weights
    part = weights / s.gpus if s.shards else weights
    rest = 4 * (query.weights - sum(query.layers)) if s.shards else 0  # gathered for the whole step
    layer = 4 * max(query.layers, default=0) if s.shards else 0
    # Parts of a batch use each weight, so gradients are whole until the last part's backward pass.
    gradients = weights + (part if s.shards else 0)
    buckets = weights if s.gpus > 1 and not s.shards else 0
    several = 1 if not s.shards else 2  # passes that keep copies of their own
    activations = texts_at_once(queries, s) * query.text + texts_at_once(documents, s) * document.text
    activations += several * query.copies
    if s.recompute:
        activations += texts_at_once(documents, s) * document.layer
    cached = texts_at_once(documents, s) < documents
    again = activations if cached else texts_at_once(queries, s) * query.text  # beside whole gradients
    token = 4 * s.dim + 9  # vector, id and mask
    pool = documents * s.document_length * token * (s.gpus if s.gpus > 1 else 0)
    local = (documents * s.document_length + queries * s.query_length) * token
    scores = score_bytes(queries, documents * s.gpus, s.query_length, s.document_length, s.dim, s.score_bytes)
    encoding = 3 * layer + activations
    scoring = activations + local + pool + scores
    # A layer is gathered into a buffer, and copied: in the forward pass beside the buffer of the last one.
    backward = 2 * layer + gradients + again
    return {
        "weights": part + rest + 3 * layer,
        "moments": 2 * part,
        "gradients": gradients + buckets,
        "activations": activations,
        "pool": pool + local,
        "scores": scores,
        "peak": 3 * part + rest + buckets + max(encoding, scoring, backward),
    }
