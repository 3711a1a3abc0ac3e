"""The mathematics of retrieval by vectors: published bounds, the exact laws behind them, and where they fail.

numpy and scipy only; nothing here knows of models. Scalars give floats, arrays broadcast and give arrays.
"""
