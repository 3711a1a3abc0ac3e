"""rel(d, q) = 1/Z · Σᵢⱼ Sᵢⱼ Ãᵢⱼ u_dᵢ u_qⱼ, Z = Σ A: sparse alignment with unary salience.

Qian et al. 2022 (arXiv:2211.01267), Eq. 1 to 4: ALIGNER. Ã is the pairwise alignment (top-k, top-p or
entropic), which depends on S. u is the salience of each token, which depends on the token's vector and,
through the gate's budget, the scores of the text's other tokens. The paper trains with top-1 and α^q = .5,
α^d = .4, ε = .002. If all saliences of a text are 0, or if only tokens with salience 0 align, Z is 0 and rel
is defined as 0. `Paradigm.with_alignment` sets another alignment at test time; `store.pruning` prunes by
salience.
"""

from dataclasses import dataclass
from typing import Annotated

from paradigms.align import Alignment, TopK, as_alignment
from paradigms.encoder.settings import EncoderSettings, Salience
from paradigms.io.checks import Range
from paradigms.model import paradigm
from paradigms.recipe import Recipe

# The paper's ε is .002, which gives gradients with norms of 30 to 90, clipped at 1. After 30 steps on 2,000
# pydocs documents, dev nDCG@10 (203 queries, standard error .017) is .825 with ε = .002, .835 with .2, .829
# untrained and .809 with ε falling from .2 to .002. Salience heads read unit vectors, whose h numbers are
# about 1/√h. In so few steps, they learn a gate that is alive (`evaluate/gate.py`) at a rate of 8e-3, several
# times a projection's rate (`TrainingSettings.salience_learning_rate`).
EPS = 0.2


@dataclass(frozen=True, kw_only=True)
class Aligner(EncoderSettings):
    """Settings for ALIGNER; `align` is `TopK`, `TopP` or `Entropic`.

    `salience` is entropic (Eq. 4, or `iterations` steps of Eq. 5), or one of the paper's alternatives:
    hard, relu, or relu with `salience_l1`.
    """

    align: Alignment | str = TopK(k=1)
    salience: Salience = "entropic"
    eps: Annotated[float, Range(0, 1e6, above=True)] = EPS


@paradigm(Aligner)
def aligner(settings: Aligner) -> Recipe:
    """Build ALIGNER over a backbone."""
    return Recipe("aligner", as_alignment(settings.align), "total", temperature=0.02)
