"""rel(d, q) = 1/Z · Σᵢⱼ (DᵀQ ⊙ A)ᵢⱼ, fast. `core.rel` is the readable law; each module equals a law:

| module     | computes                                                       | equals                |
|------------|----------------------------------------------------------------|-----------------------|
| in_batch   | all queries × all documents of a batch, with gradients         | core.rel              |
| fused      | the maxima that in_batch needs, on a GPU without S (opt-in)    | core.rel              |
| scorer     | the loss functions' score of PyLate and sentence-transformers  | core.rel              |
| stored     | stored tokens, by compiled kernels or from tensors             | core.rel, imputed_rel |
| kernels    | the kernels: one alignment, or several from one S; imputed     | core.rel, imputed_rel |

`impute.imputed_rel` is the law of scores that impute the similarities which a token search did not retrieve.
Where A is not formed in full, salience and Z are applied in one place in torch (`in_batch.rel_of`) and one
in numba (`kernels._finish`). `tiles` computes the kernels' products; `threads` divides their work.
`tests/scoring/test_equals_rel.py` compares every path with its law.
"""

VECTOR = 16  # numbers that the kernels read at once; rows with a multiple of these need no copy
