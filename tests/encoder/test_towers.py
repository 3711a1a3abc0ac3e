"""Models with an encoder per side: their description, and the signature that runs and indexes keep."""

from paradigms import PARADIGMS, Paradigm
from paradigms.encoder.settings import SIDES
from paradigms.encoder.towers import TwoTowers
from tests.near import assert_same


def pair(tiny_bert, query_length: int = 9, **query) -> Paradigm:
    """dpr with a tower for each side."""
    towers = [
        PARADIGMS["dpr"](tiny_bert, query_length=length, document_length=20, **settings).encoder
        for length, settings in ((query_length, query), (30, {}))
    ]
    return Paradigm(PARADIGMS["dpr"](tiny_bert).recipe, TwoTowers(*towers))


def test_both_towers_get_gradients_plain_and_cached(tiny_bert):
    model, gradients = pair(tiny_bert).double().eval(), []
    batch = [model.encoder.tokenize(["the sea", "old snow"], side) for side in SIDES]
    for chunk in (0, 1):
        model.zero_grad()
        queries, documents = model(*batch, chunk)
        model.score(documents, queries).square().sum().backward()
        gradients.append([p.grad for p in model.parameters()])
    assert all(bool(g.any()) for g in gradients[0][::100])
    plain, cached = gradients
    assert_same(cached, plain)
