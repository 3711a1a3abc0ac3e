"""A decoder's rel: its states and truncated forms against transformers, the identity, vectors, files."""

from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSeq2SeqLM

from paradigms.generative.decoder import decode, remember
from paradigms.generative.identifiers import END, START, Targets
from paradigms.generative.interaction import decompose
from paradigms.generative.model import HEADS, PMI, Generative
from paradigms.generative.np_decoding import Clusters
from paradigms.generative.outputs import PLACES, Outputs, Pawa, ScoreName
from tests.near import assert_same, assert_within_rounding
from tests.tiny import SEQ2SEQ, TERMS, WIDTH
from tests.tiny_generative import generative, named, texts

SCORERS: tuple[ScoreName, ...] = ("log_probability", "logit", "centred_logit")
QUERIES = ["the lazy dog", "a king lived in the house near that river, so they say", ""]
ROWS = [[5, 9, 300, 7], [5, 9], [5, 40, 41, 42, 43], [77], [9, 9, 9]]


def one_cluster_each(model: Generative) -> Clusters:
    """Clusters that are the surface tokens themselves, with the embeddings that the decoder reads."""
    surface = sorted({START, END, *(token for row in ROWS for token in row)})
    labels = [surface.index(token) for row in ROWS for token in row]
    vectors = model.backbone.shared.weight.detach()[surface].clone()
    return Clusters(vectors, torch.tensor(surface).numpy(), torch.tensor(labels).numpy())


KINDS: dict[str, dict[str, Any]] = {
    "backbone": {},
    "own": {"tokens": "own"},
    "pawa": {"pawa_rank": 4, "pawa_layers": 2},
    "own pawa": {"tokens": "own", "pawa_rank": WIDTH},
    "place": {"softmax": "place"},
    "pawa place": {"pawa_rank": 4, "softmax": "place"},
    "clusters": {"tokens": "clusters"},
}


def make_model(kind: str, folder: Path) -> Generative:
    clusters = [one_cluster_each(generative(folder, named(ROWS)).float())] if kind == "clusters" else []
    return generative(folder, named(ROWS), *clusters, **KINDS[kind])


def sequences(model: Generative) -> Targets:
    """Every document's identifier, for each query."""
    return model.targets([[model.target(n) for n in range(len(ROWS))]] * len(QUERIES))


@pytest.mark.parametrize("family", [*SEQ2SEQ, "bart"])
def test_decoder_equals_transformers(family: str, bases: dict[str, Path]) -> None:
    model = generative(bases[family], named(ROWS))
    sources = model.tokenize(QUERIES)
    targets = model.targets([[[*row, END] for row in ROWS]] * 3)
    reference = AutoModelForSeq2SeqLM.from_pretrained(bases[family], dtype=torch.float64).eval()
    b, n, _ = targets.ids.shape
    with torch.no_grad():
        (states,) = model.decode(model.memories(sources), targets.inputs)
        logits = model.outputs(states, targets.inputs).logits
        expected = reference(
            input_ids=sources.input_ids.repeat_interleave(n, 0),
            attention_mask=sources.attention_mask.repeat_interleave(n, 0),
            decoder_input_ids=targets.inputs.flatten(0, 1),
        ).logits
    assert expected.std() > 0.1
    assert_same(logits, expected.unflatten(0, (b, n)))


@pytest.mark.parametrize(("family", "scorer"), [*zip(SEQ2SEQ, SCORERS, strict=True), ("bart", "logit")])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_rel_is_the_formula_plus_the_rest(dtype, family, scorer, bases):
    model = generative(bases[family], named(ROWS)).to(dtype)
    sources = model.tokenize(QUERIES)
    targets = sequences(model)
    documents, queries, interaction = decompose(model, sources, targets, scorer)
    scores = model(sources, targets, scorer).sum(-1).detach()
    products = interaction.similarity * interaction.alignment
    scale = float(products.abs().sum((-2, -1)).max() + interaction.rest.abs().max())
    assert_within_rounding(interaction.rel, scores, dtype, 2 * TERMS, scale)  # an encoder and a decoder
    assert documents.vectors.dtype == dtype
    matched = products.sum((-2, -1))
    assert (matched.abs() > 1e-3).all()  # or nothing is tested
    assert (interaction.rest.abs() > 1e-3).all()
    assert (interaction.normaliser == 1).all()
    S = torch.einsum("bnih,bjh->bnij", documents.vectors, queries.vectors[:, 0])
    valid = documents.mask[..., None] & queries.mask[:, :, None]
    assert_within_rounding(interaction.similarity[valid], S[valid], dtype, WIDTH)


@pytest.mark.parametrize("family", SEQ2SEQ)
def test_the_printed_form_follows_the_residual_stream(family, seq2seq):
    """Its formula is s·wᵀ times what the last cross-attention added, as transformers computes it."""
    model = generative(seq2seq[family], named(ROWS))
    sources = model.tokenize(QUERIES)
    targets = sequences(model)
    documents, _, interaction = decompose(model, sources, targets, "query_part")
    decoder = model.backbone.decoder
    assert documents.mask.shape[-1] == decoder.config.num_heads * targets.ids.shape[-1]
    added = []
    attention = decoder.block[-1].layer[1].EncDecAttention
    attention.register_forward_hook(lambda *call: added.append(call[-1][0]))
    with torch.no_grad():
        n = len(ROWS)
        inputs = {name: each.repeat_interleave(n, 0) for name, each in sources.inputs().items()}
        model.backbone(**inputs, decoder_input_ids=targets.inputs.flatten(0, 1))
    (states,) = added
    scale = model.width**-0.5 if family == "t5" else 1.0
    weights = scale * model.backbone.lm_head.weight.detach()[targets.ids]
    logits = (states.unflatten(0, (-1, n)) * weights).sum(-1).where(targets.mask, 0)
    assert_same(interaction.rel, logits.sum(-1))


def test_the_printed_form_has_documents_that_depend_on_neither_query_nor_prefix(seq2seq):
    """Wu et al. 2024, Eq. 11 to 14: its sum is the score query_part."""
    model = generative(seq2seq["t5"], named(ROWS))
    targets = sequences(model)
    sources = model.tokenize(QUERIES)
    documents, _, printed = decompose(model, sources, targets, "query_part")
    attention = model.backbone.decoder.block[-1].layer[1].EncDecAttention
    V = attention.v.weight.detach().unflatten(0, (attention.n_heads, -1))
    O = attention.o.weight.detach().unflatten(1, (attention.n_heads, -1))
    w = model.backbone.lm_head.weight.detach()[targets.ids] * model.width**-0.5
    D = torch.einsum("bnih,hoe,oed->bnoid", w, O, V).flatten(2, 3)
    assert_same(documents.vectors[documents.mask], D[documents.mask])
    assert_same(printed.rest, torch.zeros_like(printed.rest), scale=1)
    assert_same(printed.rel, model(sources, targets, "query_part").sum(-1).detach())
    exact = decompose(model, sources, targets, "logit")[0].vectors
    assert (exact[0] - exact[1]).abs().amax() > 1e-3, "the exact D depends on the query"


@pytest.mark.parametrize("kind", KINDS)
def test_scorers_are_what_their_names_say_and_have_the_identity(kind: str, seq2seq: dict[str, Path]) -> None:
    model = make_model(kind, seq2seq["t5"])
    sources = model.tokenize(QUERIES)
    targets = sequences(model)
    with torch.no_grad():
        _, memory = model.begin(sources)
        states = decode(model.backbone.decoder, model.embed(targets.inputs), memory)
        logits = replace(model.outputs(states, targets.inputs), candidates=None, allowed=None).logits
    if model.settings.softmax == "place":
        for place, alphabet in enumerate(alphabets()):
            others = [v for v in range(logits.shape[-1]) if v not in alphabet]
            logits[:, :, place, others] = torch.nan
    at = logits.gather(-1, targets.ids[..., None])[..., 0]
    rest = logits.nan_to_num(nan=-torch.inf).logsumexp(-1)
    expected = {"logit": at, "log_probability": at - rest, "centred_logit": at - logits.nanmean(-1)}
    prior = model(model.tokenize([""] * len(QUERIES)), targets).detach()
    expected[PMI] = expected["log_probability"] - prior
    for scorer, values in expected.items():
        parts = values.where(targets.mask, 0)
        assert_same(model(sources, targets, scorer).detach(), parts)
        assert_same(decompose(model, sources, targets, scorer)[2].rel, parts.sum(-1))


def alphabets() -> list[set[int]]:
    rows = [[*row, END] for row in ROWS]
    return [{row[i] for row in rows if i < len(row)} for i in range(max(map(len, rows)))]


def test_what_stands_at_no_place_has_no_probability(seq2seq: dict[str, Path]) -> None:
    """A search never writes such a token."""
    model = generative(seq2seq["t5"], named([[3, 5], [4, 6]]), softmax="place")
    sources, targets = model.tokenize(QUERIES[:1]), Targets.pad([[[3, 5, END], [3, 7, END], [300, 6, END]]])
    log_p = model(sources, targets).detach()[0]
    assert log_p.isinf().tolist() == [[False] * 3, [False, True, False], [True, False, False]]
    alone = model(sources, Targets.pad([[[3, 5, END]]])).detach()[0, 0]
    assert_same(log_p[0], alone)


@pytest.mark.parametrize("kind", ["backbone", "pawa", "clusters", "pawa place"])
def test_probabilities_are_in_float32_whatever_autocast_says(kind: str, seq2seq: dict[str, Path]) -> None:
    """In bfloat16 they would sum to 1 only to the second digit."""
    model = make_model(kind, seq2seq["t5-v1.1"]).float()
    sources = model.tokenize(QUERIES)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        _, memory = model.begin(sources)
        states = decode(model.backbone.decoder, model.embed(torch.zeros(3, 1, 1).long()), memory)
        results = model.next_scores([states], torch.zeros(3, 1, 1).long())
        scores = model(sources, sequences(model))
    assert results.dtype == scores.dtype == torch.float32
    assert_within_rounding(
        results.logsumexp(-1), torch.zeros(3, 1), torch.float32, results.shape[-1], scale=1
    )


@pytest.mark.parametrize("kind", ["pawa place", "clusters"])
def test_all_is_computed_where_the_weights_are(kind, seq2seq, monkeypatch):
    """On the device "meta", a CPU tensor is an error, and so is reading a value."""
    model = make_model(kind, seq2seq["t5"]).float()
    sources = model.tokenize(QUERIES)
    targets = sequences(model)
    states = model.begin(sources)[0].detach().to("meta")
    model, sources, targets = model.to("meta"), sources.to("meta"), targets.to("meta")
    mask = sources.attention_mask.bool()
    # transformers' encoder waits for its mask.
    monkeypatch.setattr(model, "begin", lambda _: (states, remember(model.backbone.decoder, states, mask)))
    for scorer in SCORERS:
        model(sources, targets, scorer).sum().backward()
        assert decompose(model, sources, targets, scorer)[-1].rel.device.type == "meta"
    _, memory = model.begin(sources)
    for place in range(2):
        step = decode(model.backbone.decoder, model.embed(targets.inputs[..., place : place + 1]), memory)
        memory.keep(np.zeros((len(QUERIES), len(ROWS)), int))
        assert model.next_scores([step], targets.inputs[..., : place + 1]).device.type == "meta"


def test_pawa_equals_its_materialised_matrices() -> None:
    torch.manual_seed(0)
    pawa = Pawa(30, 16, 4, 2, 0.1).double().eval()
    states, prefix = torch.randn(2, 3, 5, 16).double(), torch.randn(2, 3, 5, 16).double()
    adapted = pawa.adapt(prefix)
    outputs = Outputs(states, pawa.matrices, adapted)
    vectors = torch.einsum("vhr,bnmr->bnmvh", pawa.matrices, adapted)  # E_v a_i
    expected = torch.einsum("bnmh,bnmvh->bnmv", states, vectors)
    subset = torch.tensor([3, 4, 29])
    assert expected.std() > 0.1
    assert_same(outputs.logits, expected)
    of_subset = replace(outputs, candidates=subset)
    assert_same(of_subset.logits, expected[..., subset])
    ids = torch.randint(30, (2, 3, 5))
    chosen = vectors.take_along_dim(ids[..., None, None], 3)[..., 0, :]
    assert_same(outputs.vectors(ids), chosen)
    assert_same(outputs.score(ids, "centred_logit"), (states * chosen).sum(-1) - expected.mean(-1))


@pytest.mark.parametrize(("kind", "family"), list(zip(KINDS, cycle(SEQ2SEQ), strict=False)))
def test_every_trained_weight_gets_a_gradient(kind: str, family: str, seq2seq: dict[str, Path]) -> None:
    """DistributedDataParallel stops at a parameter without one."""
    model = make_model(kind, seq2seq[family]).train()
    model(model.tokenize(QUERIES), sequences(model)).sum().backward()
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert [name for name, p in trained.items() if p.grad is None] == []
    assert "clusters.vectors" not in trained


@pytest.mark.parametrize(("kind", "family"), list(zip(KINDS, cycle(SEQ2SEQ), strict=False)))
def test_a_model_is_saved_bit_for_bit(kind, family, seq2seq, tmp_path):
    model = make_model(kind, seq2seq[family]).float()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    model.save_pretrained(tmp_path / "saved")
    again = Generative.from_pretrained(tmp_path / "saved").eval()
    assert again.description() == model.description()
    before, after = model.state_dict(), again.state_dict()
    assert before.keys() == after.keys()
    assert [name for name in before if not torch.equal(before[name], after[name])] == []
    sources = model.tokenize(QUERIES)
    targets = sequences(model)
    assert torch.equal(model(sources, targets), again(sources, targets))


@pytest.mark.parametrize(
    ("identifiers", "settings", "message"),
    [
        (replace(named(ROWS), vocabulary=100_000), {}, "use 100000 tokens, the vocabulary of"),
        (texts([[5]]), {"softmax": "place"}, "softmax='place' cannot be used with text identifiers"),
        (named([[6], [5] * PLACES]), {"pawa_rank": 2}, f"{PLACES} positions.*'d1' has {PLACES + 1} tokens"),
        (named(ROWS), {"refresh": 5}, "tokens='clusters'"),
        (named(ROWS), {"tokens": "clusters", "pawa_rank": 4}, "choose one"),
        (named(ROWS), {"tokens": "clusters", "document_length": 1}, "document_length must be at least 2"),
    ],
)
def test_what_does_not_go_together_is_refused(seq2seq, identifiers, settings, message) -> None:
    with pytest.raises(ValueError, match=message):
        generative(seq2seq["t5"], identifiers, **settings)


@pytest.mark.parametrize(("kind", "lost"), [("own", "table"), ("clusters", "clusters.vectors")])
def test_missing_weights_are_named(kind: str, lost: str, seq2seq: dict[str, Path], tmp_path: Path) -> None:
    make_model(kind, seq2seq["t5"]).float().save_pretrained(tmp_path / "saved")
    heads = load_file(tmp_path / "saved" / HEADS)
    del heads[lost]
    save_file(heads, tmp_path / "saved" / HEADS)
    with pytest.raises(ValueError, match=f"heads.safetensors.*{lost}"):
        Generative.from_pretrained(tmp_path / "saved")


@torch.no_grad()
def test_a_memory_is_decoded_in_another_mode_than_it_was_made_in(seq2seq: dict[str, Path]) -> None:
    model = make_model("backbone", seq2seq["t5-v1.1"]).float().eval()
    sources, inputs = model.tokenize(QUERIES), torch.full((len(QUERIES), 1, 1), model.start)
    memories = model.memories(sources)
    model.decode(memories, inputs)  # looks up reordered weights
    with torch.autocast("cpu", torch.bfloat16):
        assert model.decode(memories, inputs.repeat(1, 1, 2))[0].isfinite().all()
    with torch.enable_grad():
        assert model.decode(memories, inputs.repeat(1, 1, 3))[0].requires_grad
