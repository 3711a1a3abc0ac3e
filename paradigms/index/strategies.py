"""A run reranked with every alignment strategy: what few-shot alignment adaptation chooses among.

Qian et al. 2022 (ALIGNER), §3.1 and §4.1: a trained model is adapted to a task by choosing the number of
document tokens that each query token aligns with, k or a share p of the document's real length.
"""

from collections.abc import Mapping
from typing import Any

from paradigms.data import Run
from paradigms.index.base import TokenIndex
from paradigms.model import Paradigm

Strategies = Mapping[str, tuple[str, Mapping[str, Any]]]
# name -> (a key of align.ALIGNMENTS, its knobs): what the paper chooses among, in the order of its Table 7.
STRATEGIES: Strategies = {f"k={k}": ("top_k", {"k": k}) for k in (1, 2, 4, 6, 8)} | {
    f"p={p:g}%": ("top_p", {"p": p / 100}) for p in (0.5, 1.0, 1.5, 2.0)
}
# And all others that it measures or trains with: Table 3, Figure 4, Table 13.
MEASURED: Strategies = {
    **STRATEGIES,
    "k=16": ("top_k", {"k": 16}),
    "p=4%": ("top_p", {"p": 0.04}),
    "p=5%": ("top_p", {"p": 0.05}),
    **{f"eps={eps:g}": ("entropic", {"k": 1, "eps": eps}) for eps in (0.01, 0.02, 0.04, 0.06, 0.1)},
}


def rerank_strategies(
    index: TokenIndex,
    paradigm: Paradigm,
    queries: Mapping[str, str],
    run: Run,
    strategies: Strategies = STRATEGIES,
    *,
    progress: bool = False,
) -> dict[str, Run]:
    """Strategy -> the run's queries and documents with rel under that strategy, best first.

    Each equals `index.rerank(paradigm.with_alignment(align, **knobs), queries, run)`; texts are encoded once.
    """
    recipes = [paradigm.with_alignment(align, **knobs).recipe for align, knobs in strategies.values()]
    runs = index.rerank_recipes(paradigm, recipes, queries, run, progress=progress)
    return dict(zip(strategies, runs, strict=True))
