"""Build and search inverted lists of documents in blocks, compiled by numba.

A block is `BLOCK` consecutive documents. For each term in a block, a cell stores the largest weight and the
start of the term's postings. A search skips blocks whose largest weights cannot reach the k-th score:
block-max pruning (Mallia et al. 2024, arXiv:2405.01117), which is exact here. A frequent term is stored as a
dense array of its weights in all documents, including zeros, because an array is faster to read than
postings.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
import heapq
from typing import NamedTuple, no_type_check

import numpy as np
from scipy.sparse import csr_array

from paradigms.io.compiled import cached_njit

BLOCK = 512  # documents; smaller blocks are pruned more often, larger blocks are read faster
FREQUENT = 0.25  # share of the documents above which a term is stored densely


class Postings(NamedTuple):
    """Postings and cells. Cells are sorted by term, then block; postings are sorted by cell, then document.

    A code is an index into a table of weights.
    """

    terms: np.ndarray  # [v + 1] where each term's cells begin
    blocks: np.ndarray  # [c] each cell's block
    largest: np.ndarray  # [c] the code of each cell's largest weight
    first: np.ndarray  # [c + 1] where each cell's postings begin
    packed: np.ndarray  # [p] position of the document in its block · 2^16 + code of the weight
    rows: np.ndarray  # [v] each term's row in `dense`, or −1 if the term has postings
    dense: np.ndarray  # [f, blocks · BLOCK] weights
    number: int  # number of blocks


def inverted(
    ids: np.ndarray, codes: np.ndarray, table: np.ndarray, offsets: np.ndarray, living: np.ndarray
) -> Postings:
    """Make the postings of all documents that are not deleted.

    ids, codes: [t], one per token. table: the weight of each code, ascending. offsets: [n + 1], the start of
    each document's tokens. living: [n], False for deleted documents. If an id occurs more than once in a
    document, the largest code is used. Codes with weight 0 are left out.
    """
    begins = offsets.astype(np.int32 if len(ids) < 1 << 31 else np.int64)
    counting = codes * np.repeat(living, np.diff(offsets))
    # Postings by term, then document.
    matrix = csr_array((counting, ids, begins), (len(living), int(ids.max(initial=-1)) + 1)).tocsc()
    matrix.eliminate_zeros()
    starts = matrix.indptr.astype(np.int64)
    frequent = np.diff(starts) > max(BLOCK, FREQUENT * len(living))
    rows = np.where(frequent, np.cumsum(frequent) - 1, -1)
    number = -(-len(living) // BLOCK)
    dense = np.zeros((int(frequent.sum()), number * BLOCK), np.float32)
    cells = np.zeros_like(starts)
    count = len(matrix.indices)
    # Parts of `np.empty` that are never written take no memory.
    blocks = np.empty(count, np.int32)
    largest = np.zeros(count, codes.dtype)
    first = np.empty(count + 1, np.int64)
    packed = np.empty(count - int(np.diff(starts)[frequent].sum()), np.uint32)
    postings = matrix.indices, matrix.data, starts
    used = _fill(*postings, table, rows, cells, blocks, largest, first, packed, dense)
    blocks, largest, first = blocks[: cells[-1]], largest[: cells[-1]], first[: cells[-1] + 1]
    return Postings(cells, blocks, largest, first, packed[:used], rows, dense, number)


@no_type_check
@cached_njit(nogil=True)
def _fill(documents, weights, starts, table, rows, cells, blocks, largest, first, packed, dense):
    """Fill the cells and postings, merging a document's repeated terms; return the number of postings."""
    cell = -1
    used = 0
    for v in range(starts.shape[0] - 1):
        block = -1
        before = -1
        for p in range(starts[v], starts[v + 1]):
            document = documents[p]
            weight = weights[p]
            if document // BLOCK != block:
                block = document // BLOCK
                cell += 1
                blocks[cell] = block
                first[cell] = used
            posting = np.uint32(((document % BLOCK) << 16) | weight)
            if rows[v] >= 0:
                dense[rows[v], document] = max(dense[rows[v], document], table[weight])
            elif document == before:
                packed[used - 1] = max(packed[used - 1], posting)
            else:
                packed[used] = posting
                used += 1
            largest[cell] = max(largest[cell], weight)
            before = document
        cells[v + 1] = cell + 1
    first[cell + 1] = used
    return used


@no_type_check
@cached_njit(nogil=True)
def top_rows(postings, table, terms, weights, k, rows, scores):
    """Find the k best documents; write their rows and scores, and return how many were written.

    terms [m], weights [m] > 0: the query. Documents that were among the k best only temporarily are also
    written, those without a query term are not. Bounds and scores are summed in the same order, so rounding
    cannot put a score above its bound. The block with the largest bound is searched first.
    """
    bounds = np.zeros(postings.number, np.float32)
    cells = np.full((postings.number, terms.shape[0]), -1, np.int64)
    for m in range(terms.shape[0]):
        for cell in range(postings.terms[terms[m]], postings.terms[terms[m] + 1]):
            bounds[postings.blocks[cell]] += weights[m] * table[postings.largest[cell]]
            cells[postings.blocks[cell], m] = cell
    heap = [np.float32(0)] * k  # the k best scores, the smallest first
    count = 0
    sums = np.empty(BLOCK, np.float32)
    start = np.argmax(bounds)
    for n in range(-1, postings.number):
        block = start if n < 0 else n
        if n == start or bounds[block] <= 0 or bounds[block] < heap[0]:
            continue
        sums[:] = 0
        for m in range(terms.shape[0]):
            cell = cells[block, m]
            weight = weights[m]
            row = postings.rows[terms[m]]
            if row >= 0:
                here = postings.dense[row, block * BLOCK : (block + 1) * BLOCK]
                for place in range(BLOCK):
                    sums[place] += weight * here[place]
            elif cell >= 0:
                for posting in postings.packed[postings.first[cell] : postings.first[cell + 1]]:
                    sums[posting >> np.uint32(16)] += weight * table[posting & np.uint32(0xFFFF)]
        for place in range(BLOCK):
            score = sums[place]
            if score > 0 and score >= heap[0]:
                rows[count] = block * BLOCK + place
                scores[count] = score
                count += 1
                if score > heap[0]:
                    heapq.heapreplace(heap, score)
    return count
