"""rel(d, q) = 1/Z · Σᵢⱼ (DᵀQ ⊙ A)ᵢⱼ, computed fast; each module equals a readable reference:

| module     | computes                                                       | equals                |
|------------|----------------------------------------------------------------|-----------------------|
| in_batch   | all queries × all documents of a batch, with gradients         | core.rel              |
| fused      | the maxima that in_batch needs, on a GPU, without S (opt-in)   | core.rel              |
| scorer     | the loss functions' score of PyLate and sentence-transformers  | core.rel              |
| stored     | stored tokens, by compiled kernels or from tensors             | core.rel, imputed_rel |
| kernels    | the kernels: one alignment, or several from one S; imputed     | core.rel, imputed_rel |

`impute.imputed_rel` is the reference for scores that impute similarities missed by a token search.
If A is not formed in full, `in_batch.rel_of` (in torch) or `kernels._finish` (in numba) applies salience and
Z. `tiles` computes the kernels' products; `threads` divides their work.
`tests/scoring/test_equals_rel.py` compares every path with its reference.
"""

VECTOR = 16  # numbers that the kernels read at once; rows of a multiple of this length need no copy
