"""`explain` splits a decoder's rel into token pairs that add up to it, under readable names."""

from pathlib import Path

import numpy as np
import pytest
import torch

from paradigms.data import Corpus
from paradigms.explanation import Explanation
from paradigms.generative.dsi import dsi
from paradigms.generative.identifiers import END, Targets
from paradigms.generative.interaction import decompose
from paradigms.generative.model import Generative
from paradigms.generative.outputs import ScoreName
from paradigms.generative.retriever import GenerativeRetriever
from paradigms.generative.seal import seal
from paradigms.view.report import AlignmentExample, Report, write_report
from tests.near import assert_same
from tests.tiny import SEQ2SEQ
from tests.tiny_generative import generative, log_p, named, texts

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


def test_a_document_without_a_name_gives_nothing(seq2seq: dict[str, Path]) -> None:
    model = generative(seq2seq["t5"], texts([[20, 21], [], [22, 23]]))
    assert explain(model, 1) == []
    assert len(explain(model, 2)) == 1


@pytest.fixture
def corpus() -> Corpus:
    ids = [f"d{n}" for n in range(4)]
    titles = ["red fox", "stone bridge", "winter snow", "song bird"]
    documents = [
        "the red fox did run",
        "the old bridge is stone",
        "the snow is cold",
        "a bird did sing a song",
    ]
    return Corpus(ids, documents, titles)


def test_an_own_vocabulary_is_shown_by_its_digits(seq2seq, tiny_bert, corpus):
    model = dsi(seq2seq["t5-v1.1"], corpus, embedder=tiny_bert, branching=2).double()
    (shown,) = explain(model, 2)
    adds_up(shown)
    digits = [str(token) for token in model.identifiers[2].tolist()]
    assert shown.document_tokens == digits + ["end"] * (model.identifiers.end is not None)


@pytest.mark.parametrize("settings", [{"pawa_rank": 3}, {"tokens": "clusters"}])
def test_other_output_vectors_add_up_too(seq2seq, corpus, settings):
    torch.manual_seed(0)
    model = seal(seq2seq["t5"], corpus, span=3, **settings).double()
    (shown,) = explain(model, 3)
    adds_up(shown)
    text = model.tokenizer.convert_ids_to_tokens(model.tokenize([corpus[3]]).input_ids[0].tolist())
    at = [x for x in range(len(text)) if text[x : x + 3] == shown.document_tokens]
    assert at  # a window of the document, in words, whatever the tokens are that the decoder writes
    assert at[0] % 3 == 0


def test_pages_of_decoders_show_their_rest(seq2seq, tmp_path):
    model = generative(seq2seq["t5-v1.1"], named(NAMES))
    hard = Explanation("hard", "S", ["a", "b"], ["c"], [(0, 1, 2.0, 1.0)], 1.0, 2.0)
    for systems, rest in (([hard], False), ([hard, *explain(model, 0)], True)):
        example = AlignmentExample("q", "d0", QUERY, "text", True, systems)
        report = Report("title", "summary", curves={"hard": {1: 0.5}}, alignments=[example])
        write_report(tmp_path / "report.html", report)
        page = (tmp_path / "report.html").read_text()
        assert ("</sub> + rest," in page) == rest
        assert ("The rest is what" in page) == rest
