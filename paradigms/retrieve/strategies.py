"""Candidate alignments for few-shot adaptation.

Qian et al. 2022 (ALIGNER), §3.1 and §4.1: a trained model is adapted to a task by choosing how many document
tokens each query token aligns with: k tokens, or a share p of the document's length.
"""

from collections.abc import Mapping

from paradigms.align import Alignment, Entropic, TopK, TopP
from paradigms.data import Run
from paradigms.retrieve.indexed import Indexed

Strategies = Mapping[str, Alignment]
# The paper's choices, in the order of its Table 7.
STRATEGIES: Strategies = {f"k={k}": TopK(k) for k in (1, 2, 4, 6, 8)} | {
    f"p={p:g}%": TopP(p / 100) for p in (0.5, 1.0, 1.5, 2.0)
}
# The same, with all other alignments that the paper measures or trains with: Table 3, Figure 4, Table 13.
MEASURED: Strategies = {
    **STRATEGIES,
    "k=16": TopK(16),
    "p=4%": TopP(0.04),
    "p=5%": TopP(0.05),
    **{f"eps={eps:g}": Entropic(k=1, eps=eps) for eps in (0.01, 0.02, 0.04, 0.06, 0.1)},
}


def rerank_strategies(
    indexed: Indexed,
    queries: Mapping[str, str],
    run: Run,
    strategies: Strategies = STRATEGIES,
    *,
    progress: bool = False,
) -> dict[str, Run]:
    """Rerank a run with each strategy, encoding queries once; return a dictionary, strategy → run."""
    recipes = [indexed.model.with_alignment(align).recipe for align in strategies.values()]
    return dict(zip(strategies, indexed.rankings(queries, run, recipes, progress=progress), strict=True))
