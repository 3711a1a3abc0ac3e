"""The mathematics of retrieval by vectors: published bounds, the exact laws behind them, and where they fail.

Needs numpy and scipy only; no models are involved. Scalars give floats; arrays broadcast and give arrays.
"""
