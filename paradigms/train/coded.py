"""x + (x̂ − x), with no gradient through the difference: train with the codes of a compressed index.

x̂ is the version of a document token x that the index stores: its nearest centroid, plus b bits for each
dimension of the residual (`store.residuals`). The loss and its gradient are computed at x̂, and the gradient
passes to x unchanged: this is the straight-through estimator of Bengio et al. 2013 (arXiv:1308.3432). As in a
search, queries are not coded.
"""

from dataclasses import replace

from paradigms.core import Tokens
from paradigms.store.residuals import PER_CENTROID, Codec


def straight_through(documents: Tokens, bits: int) -> Tokens:
    """Replace the vectors of real tokens by their codes, from a codec trained on these vectors alone.

    The codec has one centroid per `PER_CENTROID` tokens, as in the sample that trains an index. It depends
    only on the batch, so that an interrupted training run resumes exactly.
    """
    vectors = documents.vectors.detach()[documents.mask].float().cpu()
    codec = Codec.fit(vectors, max(1, len(vectors) // PER_CENTROID), bits, seed=0)
    coded = codec.encode_vectors(vectors)
    error = documents.vectors.new_zeros(documents.vectors.shape)
    decoded = codec.decode_vectors(coded["codes"], coded["scales"], coded["centroids"])
    error[documents.mask] = (decoded - vectors).to(error)
    return replace(documents, vectors=documents.vectors + error)
