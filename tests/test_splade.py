"""SPLADE and uniCOIL by their formulas, the family from BM25 to COIL as reductions, regularisers."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoTokenizer,
    BertForMaskedLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from paradigms import PARADIGMS, load
from paradigms.align import EqualIds, one
from paradigms.baselines.bm25 import BM25
from paradigms.core import Tokens, rel
from paradigms.data import Corpus
from paradigms.encoder.layers import as_terms
from paradigms.scoring.in_batch import in_batch_rel
from paradigms.train.contrastive import Contrastive
from paradigms.train.examples import Example
from paradigms.train.losses import contrastive, sparsity
from tests.near import assert_same, assert_within_rounding
from tests.tiny import built, write_headed

QUERIES = ["where is the quick fox", "the sea, the sea", ""]
DOCUMENTS = ["a quick fox in the garden and the sea", "", "snow; the stone, and the old sea", "fire"]


@pytest.fixture(scope="module")
def masked(tmp_path_factory):
    """A tiny BERT with its masked-language-model head."""
    return write_headed(BertForMaskedLM, tmp_path_factory.mktemp("masked") / "bert")


def by_transformers(folder: Path, texts: list[str]) -> Tensor:
    """max over tokens of log(1 + relu(logits)), [x, v]; 0 of an empty text."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForMaskedLM.from_pretrained(folder, dtype=torch.float64)
    rows = tokenizer(texts, padding=True, return_tensors="pt", return_token_type_ids=False)
    with torch.inference_mode():
        weights = model.eval()(**rows).logits.relu().log1p() * rows["attention_mask"][..., None]
    return weights.amax(1) * torch.tensor([[bool(text)] for text in texts])


def dense(tokens: Tokens, size: int) -> Tensor:
    """Terms [x, n, l, 1] as weights of the vocabulary, [x · n, v]."""
    assert tokens.ids is not None
    rows = tokens.vectors.squeeze(-1).where(tokens.mask, 0).flatten(0, 1)
    return rows.new_zeros(len(rows), size).scatter_add(1, tokens.ids.flatten(0, 1), rows)


def test_weights_are_those_of_the_formula(masked):
    model = PARADIGMS["splade"](masked).double()
    queries, documents = model.encode_queries(QUERIES), model.encode_documents(DOCUMENTS)
    q, d = by_transformers(masked, QUERIES), by_transformers(masked, DOCUMENTS)
    assert_same(dense(documents, d.shape[1]), d)
    assert_same(model.score(documents, queries), q @ d.T)
    own = torch.zeros_like(q)
    for row, text in zip(own, QUERIES, strict=True):
        row[model.encoder.tokenizer(text, add_special_tokens=False)["input_ids"]] = 1
    for terms, expected in (("own", q * own), ("ones", own)):
        results = PARADIGMS["splade"](masked, query_terms=terms).double().encode_queries(QUERIES)
        assert_same(dense(results, q.shape[1]).double(), expected)
    cut = dense(PARADIGMS["splade"](masked, most_terms=5).double().encode_documents(DOCUMENTS), d.shape[1])
    assert_same(cut, d * (d >= d.topk(5).values[:, -1:]))


@pytest.mark.parametrize(
    ("name", "kind", "config"),
    [("llama", LlamaForCausalLM, LlamaConfig), ("qwen3", Qwen3ForCausalLM, Qwen3Config)],
)
def test_decoders_weigh_terms_by_their_next_tokens(name, kind, config, checkpoints, tmp_path):
    """The weights are those of the formula, whatever pads a text; training moves the head and its layers."""
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(checkpoints[name])
    padded = config.from_pretrained(checkpoints[name], initializer_range=1.0, vocab_size=len(tokenizer) + 3)
    kind(padded).save_pretrained(tmp_path / "lm")
    tokenizer.save_pretrained(tmp_path / "lm")
    reference = AutoModelForCausalLM.from_pretrained(tmp_path / "lm", dtype=torch.float64).eval()
    rows = []
    for text in DOCUMENTS:
        with torch.inference_mode():
            ids = tokenizer(text, return_tensors="pt").input_ids
            logits = reference(ids).logits[0, :, : len(tokenizer)]  # the embeddings are padded
            rows.append(logits.relu().log1p().amax(0) * bool(text))
    model = PARADIGMS["splade"](tmp_path / "lm").double()
    assert_same(dense(model.encode_documents(DOCUMENTS), len(rows[0])), torch.stack(rows))
    model.encoder.freeze(1)
    model.encoder.train()(model.encoder.tokenize(QUERIES, "query"), "query").vectors.sum().backward()
    trained = {name for name, weight in model.named_parameters() if weight.grad is not None}
    assert any("layers.1." in name for name in trained)
    assert not any("layers.0." in name or "embed" in name for name in trained)
    assert any("lm_head" in name for name in trained)


@pytest.mark.parametrize(("family", "scale"), [("bert", 1.0), ("t5", 32**-0.5), ("mt5", 32**-0.5)])
def test_a_backbone_without_the_head_is_refused_or_tied(family, scale, checkpoints):
    with pytest.raises(ValueError, match=r"language-model head: .* or set tied_head"):
        PARADIGMS["splade"](checkpoints[family])
    tied = built("splade", checkpoints[family]).double()
    assert (tied.encoder.scale or 1.0) == pytest.approx(scale)
    scale = float(tied.encoder.scale or 1.0)  # rounded to float32
    states = tied.encoder.backbone(**tied.encoder.tokenize(["fox"], "document").inputs())[0]
    logits = scale * states @ tied.encoder.backbone.get_input_embeddings().weight.T + tied.encoder.bias
    expected = logits.detach().amax(1).relu().log1p()
    assert_same(dense(tied.encode_documents(["fox"]), expected.shape[1]), expected)


def test_a_checkpoint_without_t5s_factor_is_refused(checkpoints, tmp_path):
    PARADIGMS["splade"](checkpoints["t5"], tied_head=True).save_pretrained(tmp_path)
    (heads,) = tmp_path.glob("**/heads.safetensors")
    weights = load_file(heads)
    del weights["scale"]
    save_file(weights, heads)
    with pytest.raises(ValueError, match=r"holds {.*}, but its settings need {'scale': \(\)}"):
        load(tmp_path)


def test_saved_with_its_settings(masked, tmp_path):
    model = PARADIGMS["splade"](masked, most_terms=9)
    model.save_pretrained(tmp_path / "saved")
    again = load(tmp_path / "saved")
    assert torch.equal(again.encode_documents(DOCUMENTS).vectors, model.encode_documents(DOCUMENTS).vectors)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"truncate": 4, "skip": ","}, "SPLADE has no truncate, skip"),
        ({"most_terms": 0}, "most_terms must be at least 1"),
        ({"document_sparsity": -1.0}, "document_sparsity must be at least 0"),
    ],
)
def test_wrong_settings_are_refused(masked, settings, message):
    with pytest.raises(ValueError, match=message):
        PARADIGMS["splade"](masked, **settings)


# --- reductions -----------------------------------------------------------------------------------------


def weights(x: int, v: int, seed: int, share: float = 0.3) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    there = torch.rand(x, v, generator=random) < share
    return torch.rand(x, v, generator=random, dtype=torch.float64) * there


def sides(d: Tensor, q: Tensor) -> tuple[Tokens, Tokens]:
    return as_terms(d), as_terms(q).map(lambda t: t.transpose(0, 1))


def test_bm25_is_equal_ids_with_its_weights():
    bm25 = BM25(dict(zip("abcd", DOCUMENTS, strict=True)))
    counts = torch.zeros(len(QUERIES), len(bm25.vocabulary))
    for row, text in zip(counts, QUERIES, strict=True):
        for term in bm25.vocabulary.keys() & {*bm25.terms(text)}:
            row[bm25.vocabulary[term]] = bm25.terms(text).count(term)
    results = rel(*sides(torch.from_numpy(bm25.matrix().toarray()), counts), EqualIds(), one)
    run = bm25.search({text: text for text in QUERIES}, 4)
    expected = torch.tensor([[run[text].get(id, 0.0) for id in "abcd"] for text in QUERIES])
    assert_within_rounding(results, expected, torch.float32, 10)  # words of a query


def test_unicoil_is_coil_with_one_dimension(tiny_bert):
    """Σⱼ wⱼ · max_{i: id(i) = id(j)} wᵢ of w = relu(W h + b): Lin and Ma 2021."""
    settings = {"dim": 1, "pooled_dim": 0, "activation": "relu", "projection_bias": True}
    torch.manual_seed(0)
    model = PARADIGMS["coil"](tiny_bert, **settings).double().eval()
    encoder = model.encoder
    results = model.score(model.encode_documents(DOCUMENTS), model.encode_queries(QUERIES))

    def weighed(text: str) -> tuple[Tensor, Tensor]:
        batch = encoder.tokenize([text], "document")
        with torch.no_grad():
            states = encoder.backbone(**batch.inputs())[0][0]
            w = (states @ encoder.projection.weight[0] + encoder.projection.bias).relu()
        return batch.input_ids[0][batch.counts[0]], w[batch.counts[0]]

    for b, query in enumerate(QUERIES):
        for n, document in enumerate(DOCUMENTS):
            (q_ids, q), (d_ids, d) = weighed(query), weighed(document)
            expected = sum(u * d[d_ids == j].max() for j, u in zip(q_ids, q, strict=True) if j in d_ids)
            assert_same(results[b, n], expected, scale=1)


def test_weights_are_scored_in_training_as_rel_in_values_and_gradients():
    """Terms that come more than once, as in uniCOIL, too."""
    random = torch.Generator().manual_seed(0)
    results = []
    for x, n, l in ((1, 6, 9), (4, 1, 7)):
        vectors = torch.rand(x, n, l, 1, generator=random, dtype=torch.float64).requires_grad_()
        mask = torch.rand(x, n, l, generator=random) < 0.8
        results.append(Tokens(vectors, mask, torch.randint(0, 6, (x, n, l), generator=random)))
    scores = [f(*results, EqualIds(), one) for f in (rel, in_batch_rel)]
    assert_same(*scores)
    gradients = [torch.autograd.grad(s.square().sum(), [t.vectors for t in results]) for s in scores]
    for a, b in zip(*gradients, strict=True):
        assert_same(a, b)
    negative = replace(results[0], vectors=-results[0].vectors)  # which is no matrix product
    assert_same(
        in_batch_rel(negative, results[1], EqualIds(), one), rel(negative, results[1], EqualIds(), one)
    )


# --- what makes terms few -------------------------------------------------------------------------------


def test_regularisers_are_those_of_the_papers():
    w = weights(8, 30, 2)
    mean, share = w.mean(0), (w > 0).double().mean(0)
    activ = share.where(share > 0, 1e-300)
    activ = (1 / (1 + (activ ** math.log(2, 0.1) - 1) ** 10)).where(share > 0, 0)
    expected = {"flops": mean.square().sum(), "l1": mean.sum(), "df_flops": (activ * mean).square().sum()}
    for kind, value in expected.items():
        assert_same(sparsity(as_terms(w), kind), value)
    assert activ[share < 0.1].max() < 0.5 < activ[share > 0.1].min()


def test_sparsity_joins_the_loss_and_rises_quadratically(masked):
    corpus = Corpus(list("abcd"), DOCUMENTS)
    examples = [Example(QUERIES[0], 0, (3,), (0,)), Example(QUERIES[1], 2, (1,), (2,))]
    options = {"query_sparsity": 0.5, "document_sparsity": 0.25, "sparsity": "l1"}
    model = PARADIGMS["splade"](masked, **options).double().eval()
    objective = Contrastive(model, corpus, examples)
    batch = objective.collate(examples)
    queries, documents = model(batch.queries, batch.documents)
    scores = model.score(documents, queries)
    plain = contrastive(scores, torch.arange(2), batch.excluded(batch.positions), 1.0)
    few = 0.5 * queries.vectors.sum() / 2 + 0.25 * documents.vectors.sum() / 4
    for step, share in ((0, 1 / 16), (1, 1 / 4), (3, 1), (9, 1)):
        objective.prepare(step, 12)
        assert_same(objective.loss(model, batch), plain + share * few)


def test_an_explanation_names_the_terms_of_its_tokens(masked):
    """Rounding decides whether a term of weight near 0 is there; here a change of the bias does."""
    model = PARADIGMS["splade"](masked, tied_head=True)
    queries, documents = model.encode_queries(QUERIES[:1]), model.encode_documents(DOCUMENTS[:1])
    assert isinstance(model.encoder.bias, Tensor)
    with torch.no_grad():
        model.encoder.bias += 0.2
    explained = model.explain_tokens(QUERIES[0], DOCUMENTS[0], queries, documents)
    names = model.encoder.tokenizer.convert_ids_to_tokens
    assert documents.ids is not None
    assert explained.document_tokens == names(documents.ids[documents.mask].tolist())
    assert explained.links
    assert all(explained.document_tokens[i] == explained.query_tokens[j] for i, j, *_ in explained.links)
