"""Indexes over the token vectors of any paradigm: search end to end, rerank any run.

`exact` scores every document; approximate and compressed indexes stand beside it under the same interface.
"""

from paradigms.index.exact import ExactIndex

__all__ = ["ExactIndex"]
