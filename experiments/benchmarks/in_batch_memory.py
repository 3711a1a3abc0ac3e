"""Count the memory of in-batch scoring for batches of any size, on tensors without data.

A forward and backward pass of `in_batch_rel`, with the documents of the whole batch and the queries of two
pieces, as more pieces take no more memory. Counted are the bytes of all tensors that live at once, besides D
and Q: the pairs of a piece, a tile of S, and copies of D's gradient.
"""

from __future__ import annotations

from parts.settings import Benchmark
from studies.settings import launch

from paradigms.io.command_line import flags


@flags()
class Settings(Benchmark):
    """Settings for the report."""


launch(__name__, Settings, __doc__)  # before the slow imports

from studies.counted import score_bytes
from studies.pages import Section, publish

from paradigms.scoring import in_batch

QUERY_TOKENS = 32
DOCUMENT_TOKENS = 180
DIM = 128
BATCHES = (32, 512, 4096, 8192)  # numbers of queries
NEGATIVES = (0, 7)  # hard negatives of each query
GiB = 1 << 30


def main(settings: Settings) -> None:
    rows = [counted(batch, batch * (1 + negatives)) for batch in BATCHES for negatives in NEGATIVES]
    text = (
        f"Maximum over {DOCUMENT_TOKENS} document tokens for each of {QUERY_TOKENS} query tokens, {DIM} "
        f"dimensions in float32, a bound of {in_batch.BOUND / GiB:g} GiB. S and pairs: what the whole batch "
        "would take. peak: counted, with up to three copies of D's gradient."
    )
    publish(settings, "Memory of in-batch scores", text, {"memory": Section("Counted bytes", rows=rows)})


def counted(batch: int, documents: int) -> dict[str, float]:
    pairs = documents * QUERY_TOKENS
    peak = score_bytes(batch, documents, QUERY_TOKENS, DOCUMENT_TOKENS, DIM, in_batch.BOUND)
    return {
        "queries": batch,
        "documents": documents,
        "S, GiB": 4 * batch * pairs * DOCUMENT_TOKENS / GiB,
        "pairs, GiB": 25 * batch * pairs / GiB,
        "D's gradient, GiB": 4 * documents * DOCUMENT_TOKENS * DIM / GiB,
        "peak, GiB": peak / GiB,
    }
