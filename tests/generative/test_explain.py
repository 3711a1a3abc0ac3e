"""`explain` splits a decoder's rel into token pairs that add up to it, under readable names."""

from pathlib import Path

import numpy as np
import pytest

from paradigms.explanation import Explanation
from paradigms.generative.identifiers import END, Targets
from paradigms.generative.interaction import decompose
from paradigms.generative.model import Generative
from paradigms.generative.outputs import ScoreName
from paradigms.generative.retriever import GenerativeRetriever
from tests.near import assert_same
from tests.tiny import SEQ2SEQ
from tests.tiny_generative import generative, log_p, named

QUERY = "the quick red fox did run over the stone bridge"
NAMES = [[20, 21, 22], [20, 23], [24, 25, 26, 27]]
SCORERS: tuple[ScoreName, ...] = ("log_probability", "logit", "centred_logit")


def explain(model: Generative, position: int) -> list[Explanation]:
    return GenerativeRetriever(model).explain(QUERY, model.identifiers.documents[position])


def product(shown: Explanation) -> np.ndarray:
    """S ⊙ A of the links, [document tokens, query tokens]."""
    found = np.zeros((len(shown.document_tokens), len(shown.query_tokens)))
    for i, j, s, a in shown.links:
        found[i, j] = s * a
    return found


def adds_up(shown: Explanation) -> None:
    parts = product(shown) / shown.Z
    assert_same(parts.sum() + shown.rest, shown.rel, scale=np.abs(parts).sum() + abs(shown.rest))
    weights = np.zeros_like(product(shown))
    for i, j, _, a in shown.links:
        weights[i, j] = a
    assert_same(weights.sum(1), np.ones(len(weights)))  # each token of the name attends to the whole query


@pytest.mark.parametrize(("family", "score"), list(zip(SEQ2SEQ, SCORERS, strict=True)))
def test_products_and_rest_are_rel(seq2seq: dict[str, Path], family: str, score: ScoreName) -> None:
    model = generative(seq2seq[family], named(NAMES), score=score)
    for position, name in enumerate(NAMES):
        (shown,) = explain(model, position)
        adds_up(shown)
        assert_same(shown.rel, log_p(model, QUERY, [*name, END], score), scale=1)
        assert len(shown.document_tokens) == len(name) + 1


def test_a_shown_token_has_the_share_of_all_layers_and_heads(seq2seq: dict[str, Path]) -> None:
    """The mean of their attention, and their products' sum."""
    model = generative(seq2seq["t5-v1.1"], named(NAMES))
    (shown,) = explain(model, 0)
    targets = Targets.pad([[[*NAMES[0], END]]])
    interaction = decompose(model, model.tokenize([QUERY]), targets, "log_probability")[-1]
    S, A = (x[0, 0].reshape(4, 4, -1).numpy() for x in (interaction.similarity, interaction.alignment))
    expected = sum(S[head] * A[head] for head in range(4))  # 2 layers of 2 heads, 4 places
    assert_same(product(shown), expected)
    for i, j, _, a in shown.links:
        assert_same(a, sum(A[head, i, j] for head in range(4)) / 4)
