"""Indexes over the token vectors of any paradigm: search end to end, rerank any run.

`store` keeps the tokens, all or by `pruning` the most salient; `exact` scores every document. Approximate and
compressed indexes stand beside it under the same interface.
"""

from paradigms.index.exact import ExactIndex

__all__ = ["ExactIndex"]
