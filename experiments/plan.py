"""Plan a training and an encoding of ColBERT: memory of a GPU, bytes it sends, FLOPs and hours.

Nothing is trained and no weight is read. The encoder runs on tensors without data, which count the
activations of a text and its FLOPs; in-batch scores are counted in the same way. Everything else follows from
these counts, the number of weights and the settings. The sizes are those of texts of the full length.
"""

from dataclasses import field, replace
from itertools import product
from typing import Any, Literal

from studies.settings import Output, at_least, launch

from paradigms.io.command_line import flags


@flags()
class Settings(Output):
    """Settings for the encoder, the training and the passages."""

    model: str = ""
    """folder with an encoder's config.json; offline; or a type of transformers in its default size, such as
    bert or mistral. Empty: the rows of the page"""
    gpus: int = 8
    pairs: float = 1e7
    """queries to train on, each with one relevant document"""
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
    passages: list[float] = field(default_factory=lambda: [8.8e6, 1e9])
    """numbers of passages to encode"""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, gpus=1, batch=1, negatives=0, query_length=1, document_length=1, dim=1, chunk=0)
        if self.batch % self.gpus:
            raise SystemExit(f"batch={self.batch} is not divisible by gpus={self.gpus}")


launch(__name__, Settings, __doc__)  # before the slow imports

from studies.counted import Counted, built, counted, score_bytes
from studies.pages import Rows, Section, publish

from paradigms.align import Alignment, AllPairs, PoolTopK

# Name -> A whose in-batch scores are counted; None: ColBERT's.
ALIGNMENTS: dict[str, Alignment | None] = {
    "maximum": None,
    "XTR": PoolTopK(0.005),
    "all pairs": AllPairs(),
}
TERAFLOPS = 150.0  # 10¹² FLOPs that a GPU is assumed to sustain in a second
IN_PIECES = ["maximum", "XTR"]  # the others are computed again in tiles
GB = 1e9
GiB = 1 << 30
# The rows of the page: name -> what differs from the defaults of the settings.
CASES: dict[str, dict[str, Any]] = {
    "MiniLM ColBERT, MS MARCO": {"model": "offline", "gpus": 1, "pairs": 5e5, "batch": 256,
                                 "passages": [8.8e6]},
    "7B decoder": {"model": "mistral", "batch": 1024, "chunk": 8, "recompute": True, "shards": True,
                   "passages": [8.8e6]},
    "BERT-base, 10⁹ passages": {"model": "bert", "gpus": 64, "passages": [1e9]},
}  # fmt: skip


def main(settings: Settings) -> None:
    cases = {settings.model: settings}
    if not settings.model:
        cases = {name: replace(settings, **changes) for name, changes in CASES.items()}
    memory: Rows = []
    sent: Rows = []
    work: Rows = []
    encoding: Rows = []
    for name, case in cases.items():
        backbone = built(case.model)
        query = counted(backbone, case.query_length, case)
        document = counted(backbone, case.document_length, case)
        parts = parts_of(case, query, document)
        memory.append({"training": name, "GPUs": case.gpus} | {f"{k}, GB": v / GB for k, v in parts.items()})
        for row in collectives(case, query):
            sent.append({"training": name} | row)
        work.append({"training": name} | effort(case, query, document))
        encoding += [{"encoder": name} | row for row in encodings(case, document)]
    text = f"Rate: {TERAFLOPS:g} TFLOP/s for each GPU, which is an assumption and not a measurement."
    publish(
        settings,
        "Plan of a training",
        text,
        {
            "memory": Section("Memory of one GPU", "moments: AdamW's. peak: the largest of the memory in "
                              "the forward pass, after scoring and in the backward pass.", memory),
            "sent": Section("Collectives of a step", "GB sent by each GPU if processes form a ring.", sent),
            "work": Section("Training", "", work),
            "scores": Section(
                "In-batch scores, for batches of one process",
                f"Counted, for vectors in float32 and a bound of {settings.score_bytes / GiB:g} GiB. "
                "maximum: ColBERT's and COIL's A, and ALIGNER's with k = 1. XTR: k_train is .005 of the "
                "batch's tokens. S: of the whole batch. of it bounded: the largest of the first two "
                "peaks, less two copies of D's gradient and three of the scores.",
                score_rows(settings),
            ),
            "encoding": Section("Encoding", "Bytes of token vectors in float16 and in 2 bits.", encoding),
        },
    )  # fmt: skip


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


def collectives(settings: Settings, query: Counted) -> Rows:
    """List a step's collectives: how many, the bytes of their whole tensors, and the GB that a GPU sends."""
    s = settings
    if s.gpus == 1:
        return []
    queries, documents = passages_of(s)
    tokens = s.gpus * documents * s.document_length
    parts = [-(-texts // texts_at_once(texts, s)) for texts in (queries, documents)]
    passes = sum(3 * count - 1 for count in parts)  # all parts but the last are encoded again
    layers = 4 * sum(query.layers)
    rest = 4 * query.weights - layers
    share = (s.gpus - 1) / s.gpus
    # name, calls, bytes, and how often a GPU sends as many
    rows: list[tuple[str, int, int, float]] = [
        ("all-gather of documents", 5, tokens * (4 * s.dim + 9) + s.gpus * (16 + 8 * documents), share),
        ("reduce-scatter of documents' gradients", 1, tokens * 4 * s.dim, share),
    ]
    if s.shards:
        rows += [
            ("all-gather of weights", passes * len(query.layers) + 1, passes * layers + rest, share),
            ("reduce-scatter of gradients", len(query.layers) + 1, layers + rest, share),
        ]
    else:
        rows += [
            ("all-reduce of gradients", buckets(layers + rest), layers + rest, 2 * share),
            ("broadcast of buffers", 1, query.buffers, 1),
        ]
    return [
        {"collective": name, "calls": calls, "bytes": size, "GB sent": size * times / GB}
        for name, calls, size, times in rows
    ]


def buckets(size: int) -> int:
    """Estimate the number of buckets in which DistributedDataParallel sums gradients: 1 MiB, then 25 each."""
    return 1 + max(0, -(-(size - (1 << 20)) // (25 << 20)))


def effort(settings: Settings, query: Counted, document: Counted) -> dict[str, float]:
    """Return the steps, FLOPs and hours of a training."""
    s = settings
    queries, documents = passages_of(s)
    tokens = queries * s.query_length * documents * s.document_length * s.gpus**2
    flops: float = 2 * tokens * s.dim
    for texts, text in ((queries, query), (documents, document)):
        # A backward pass is two; parts of a batch but the last are encoded again (`collectives`).
        passes = 4 + int(s.recompute) - min(1, texts_at_once(texts, s) / texts)
        flops += passes * s.gpus * texts * text.flops
    steps = -(-int(s.pairs) // s.batch)
    hours = flops * steps / (1e12 * TERAFLOPS * s.gpus) / 3600
    row = {"pairs": int(s.pairs), "batch": s.batch, "steps": steps}
    return row | {"PFLOP a step": flops / 1e15, "hours": hours}


def encodings(settings: Settings, document: Counted) -> Rows:
    """Return the hours and bytes for each number of passages."""
    s = settings
    rows: Rows = []
    for passages in s.passages:
        hours = passages * document.flops / (1e12 * TERAFLOPS * s.gpus) / 3600
        tokens = passages * s.document_length
        row = {"passages": int(passages), "GPUs": s.gpus, "hours": hours}
        row["float16, GB"] = tokens * 2 * s.dim / GB
        rows.append(row | {"2 bits, GB": tokens * (s.dim / 4 + 7) / GB})
    return rows
