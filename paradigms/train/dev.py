"""The dev measure: nDCG@10 of reranking a few candidates of many dev queries, cheap enough to repeat."""

import hashlib
import math

from paradigms.baselines.cross_attention import CrossAttention
from paradigms.data import Corpus, Run, Split, best_first
from paradigms.evaluate import per_query
from paradigms.evaluate.reranking import rerank
from paradigms.generative.model import Generative
from paradigms.model import Paradigm


class DevMeasure:
    """paradigm → (mean nDCG@10, its standard error) over dev queries.

    Candidates are the first `depth` documents of `run` and the relevant ones; queries are drawn by hash.
    """

    def __init__(
        self, corpus: Corpus, split: Split, run: Run, queries: int, depth: int, precision: str
    ) -> None:
        drawn = sorted(split.queries, key=lambda q: hashlib.sha256(q.encode("utf-8", "replace")).digest())
        self.corpus, self.precision = corpus, precision
        self.queries = {query: split.queries[query] for query in sorted(drawn[:queries])}
        self.judgements = {query: split.judgements[query] for query in self.queries}
        self.pool = candidates({q: run.get(q, {}) for q in self.queries}, self.judgements, depth)

    def __call__(self, paradigm: Paradigm | Generative | CrossAttention) -> tuple[float, float]:
        reranked = rerank(paradigm, self.queries, self.corpus, self.pool, precision=self.precision)
        values = per_query(reranked, self.judgements, ("nDCG@10",)).values["nDCG@10"]
        error = values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else 0.0
        return float(values.mean()), float(error)


def candidates(run: Run, judgements: dict[str, dict[str, int]], depth: int) -> Run:
    """Rerank mode: per query of `run` its first `depth` documents, and every relevant one (at the end)."""
    result: Run = {}
    for query, scores in run.items():
        top = best_first(scores, depth)
        worst = min(top.values(), default=0.0)
        gold = [d for d, grade in sorted(judgements.get(query, {}).items()) if grade > 0 and d not in top]
        result[query] = top | {d: worst - 1 - n for n, d in enumerate(gold)}
    return result
