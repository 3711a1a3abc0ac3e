"""x + (x̂ − x) without a gradient of the difference: training with the codes of a compressed index.

x̂ is what the index stores of a document's token x: its nearest centroid and b bits for each dimension of
the rest (`store.residuals`). The loss and its gradient are those at x̂, and the gradient passes to x
unchanged: the straight-through estimator of Bengio et al. 2013 (arXiv:1308.3432). Queries are not coded, as
in an index.
"""

from dataclasses import replace

from paradigms.core import Tokens
from paradigms.store.residuals import PER_CENTROID, Codec


def straight_through(documents: Tokens, bits: int) -> Tokens:
    """Replace the vectors of real tokens by those of a codec that is trained on them alone.

    It has a centroid for `PER_CENTROID` tokens, as the sample that trains an index has. It depends on the
    batch alone, so that an interrupted training resumes exactly.
    """
    vectors = documents.vectors.detach()[documents.mask].float().cpu()
    codec = Codec.fit(vectors, max(1, len(vectors) // PER_CENTROID), bits, seed=0)
    coded = codec.encode_vectors(vectors)
    error = documents.vectors.new_zeros(documents.vectors.shape)
    decoded = codec.decode_vectors(coded["codes"], coded["scales"], coded["centroids"])
    error[documents.mask] = (decoded - vectors).to(error)
    return replace(documents, vectors=documents.vectors + error)
