"""Mathematics of vector retrieval: published bounds, exact laws, and cases in which bounds fail.

The package needs numpy and scipy only; no models are involved. Scalar arguments give floats; array arguments
broadcast and give arrays.
"""
