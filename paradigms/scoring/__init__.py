"""rel(d, q) = 1/Z · Σᵢⱼ (DᵀQ ⊙ A)ᵢⱼ, fast. The readable law is `core.rel`; each module here equals a law:

| module     | computes                                                       | equals                |
|------------|----------------------------------------------------------------|-----------------------|
| in_batch   | all queries × all documents of a batch, with gradients         | core.rel              |
| fused      | the maxima that in_batch needs, on a GPU without S (opt-in)    | core.rel              |
| scorer     | the loss functions' score of PyLate and sentence-transformers  | core.rel              |
| stored     | stored tokens, by compiled kernels or from tensors             | core.rel, imputed_rel |
| kernels    | the kernels: one alignment, or several from one S; imputed     | core.rel, imputed_rel |

`impute.imputed_rel` is the law of scores that fill in what a token search did not find. Where A is not formed
in full, `in_batch.rel_of` is the one place of salience and Z in torch, and `_finish` of the kernels in numba.
`tiles` and `machine` compute products and divide work for the kernels. `tests/scoring/test_equals_rel.py`
ties every path to its law.
"""
