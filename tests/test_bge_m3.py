"""BGE-M3: one rel of three readouts, by the paper's formulas; training, indexes, checkpoint layout."""

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer

import paradigms
from paradigms import PARADIGMS, Paradigm
from paradigms.bge_m3 import PARTS, part_of
from paradigms.core import Tokens, interact, pad_tokens, rel
from paradigms.data import Corpus
from paradigms.encoder.precision import autocast
from paradigms.retrieve import Indexed
from paradigms.saving.hub import model_card
from paradigms.train.contrastive import Contrastive
from paradigms.train.examples import Example
from paradigms.train.losses import LossSettings
from paradigms.train.state import start_of
from tests.near import assert_same
from tests.tiny import WIDTH, write_checkpoint, write_roberta

QUERIES = ["where is the quick fox, the fox", "[PAD] [MASK] the sea, the sea", ""]
DOCUMENTS = [
    "a quick fox in the garden and the sea; the fox",
    "",
    "[PAD] the [CLS] [MASK], the old sea",
    "fire",
]
W = {"dense_weight": 0.4, "sparse_weight": 0.2, "token_weight": 0.7}
SHARES = {"dense": (1.0, 0.4), "sparse": (0.1, 0.2), "tokens": (1.0, 0.7)}  # λ and w


def write_m3(folder: Path, family: str = "bert") -> Path:
    """What a hub folder of BGE-M3 holds: an encoder, its tokenizer and two pickled linear layers."""
    if family == "bert":
        write_checkpoint("bert", folder)
    else:
        write_roberta(folder, "sentencepiece")
    torch.manual_seed(1)
    for name, out in (("colbert_linear", WIDTH), ("sparse_linear", 1)):
        head = nn.Linear(WIDTH, out)
        nn.init.constant_(head.bias, 0.4)  # most terms have a weight above 0
        torch.save(head.state_dict(), folder / f"{name}.pt")
    return folder


def by_the_paper(folder: Path, w: dict[str, float] = W) -> Tensor:
    """s = w₁ s_dense + w₂ s_lex + w₃ s_mul (Chen et al. 2024, §3.3), in float64, pair by pair."""
    model = AutoModel.from_pretrained(folder).eval().double()
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def linear(name: str, x: Tensor) -> Tensor:
        head = torch.load(folder / f"{name}_linear.pt", weights_only=True)
        return nn.functional.linear(x, head["weight"].double(), head["bias"].double())

    @torch.no_grad()
    def readouts(text: str) -> tuple[Tensor, dict[int, float], Tensor]:
        encoded = tokenizer(text, return_tensors="pt")
        hidden, ids = model(**encoded).last_hidden_state[0], encoded["input_ids"][0].tolist()
        unused = {getattr(tokenizer, f"{name}_token_id") for name in ("cls", "sep", "unk", "pad")}
        lexical: dict[int, float] = {}
        for id, weight in zip(ids, linear("sparse", hidden).relu()[:, 0].tolist(), strict=True):
            if id not in unused:
                lexical[id] = max(lexical.get(id, 0.0), weight)
        unit = nn.functional.normalize
        return unit(hidden[0], dim=-1), lexical, unit(linear("colbert", hidden[1:]), dim=-1)

    scores = torch.zeros(len(QUERIES), len(DOCUMENTS), dtype=torch.float64)
    for b, query in enumerate(QUERIES):
        for n, document in enumerate(DOCUMENTS):
            if query and document:  # of an empty text, rel is 0
                (q, lq, Q), (d, ld, D) = readouts(query), readouts(document)
                lexical = sum(weight * ld.get(id, 0.0) for id, weight in lq.items())
                many = (Q @ D.T).amax(-1).mean()
                scores[b, n] = w["dense_weight"] * (q @ d) + w["sparse_weight"] * lexical
                scores[b, n] += w["token_weight"] * many
    return scores


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_m3(tmp_path_factory.mktemp("m3") / "model")


@pytest.fixture
def model(folder: Path) -> Paradigm:
    return opened(folder)


def opened(folder: Path) -> Paradigm:
    model = paradigms.load(folder, pickled=True)
    vars(model.encoder.settings).update(W)  # they are frozen
    return model.eval()


def sides(model: Paradigm) -> tuple[Tokens, Tokens]:
    wide = copy.deepcopy(model).double()
    return wide.encode_documents(DOCUMENTS), wide.encode_queries(QUERIES)


def part_scores(D: Tokens, Q: Tokens) -> dict[str, Tensor]:
    """The scores of each part alone."""
    return {
        part: rel(part_of(D, part), part_of(Q, part), recipe.align, recipe.normalise_function)
        for part, recipe in PARTS.items()
    }


@pytest.mark.parametrize("family", ["bert", "xlm-roberta"])
def test_a_checkpoint_of_its_layout_scores_as_the_paper_says(tmp_path, family):
    folder = write_m3(tmp_path / family, family)
    model = opened(folder)
    assert model.document_length == {"bert": 512, "xlm-roberta": 64}[family]
    D, Q = sides(model)
    assert_same(model.score(D, Q), by_the_paper(folder))
    with pytest.raises(ValueError, match="pickled weights"):
        paradigms.load(folder)


def test_rel_is_the_sum_of_its_parts_and_A_is_block_diagonal(model):
    """The law: one rel, three blocks, which padding and the other parts do not change."""
    D, Q = sides(model)
    full = model.score(D, Q)
    parts = part_scores(D, Q).values()
    assert_same(sum(parts), full)
    assert all(part.abs().max() > 0 for part in parts)
    built = interact(D, Q, model.align, model.normalise)
    kinds_d, kinds_q = (torch.where(t.ids >= 0, 0, t.ids) for t in (D, Q))
    assert not built.alignment[(kinds_d[..., :, None] != kinds_q[..., None, :])].any()
    assert set(built.alignment.unique().tolist()) == {0.0, 1.0}
    assert_same(model.score(pad_tokens(D, 60), pad_tokens(Q, 50)), full)


def test_one_part_alone(folder, model):
    for name in W:
        weights = dict.fromkeys(W, 0.0) | {name: 1.0}
        vars(model.encoder.settings).update(weights)
        assert_same(model.score(*sides(model)), by_the_paper(folder, weights))
    with pytest.raises(ValueError, match="one of dense_weight"):
        PARADIGMS["bge_m3"](folder, **dict.fromkeys(W, 0.0))
    with pytest.raises(ValueError, match="BGE-M3 has no other"):
        PARADIGMS["bge_m3"](folder, dim=8)


def test_the_loss_is_that_of_the_sum_and_of_each_part(model):
    model.double()
    corpus = Corpus.of(dict(zip("abcd", DOCUMENTS, strict=True)))
    examples = [Example(QUERIES[0], 0, (), (0,)), Example(QUERIES[1], 2, (), (2,))]
    objective = Contrastive(model, corpus, examples)
    batch = objective.collate(examples)
    loss = objective.loss(model, batch)
    Q, D = model(batch.queries, batch.documents)
    target, tau = torch.tensor([0, 1]), model.recipe.temperature

    def of(scores: Tensor) -> Tensor:
        return nn.functional.cross_entropy(scores / tau, target)

    expected = of(rel(D, Q, model.align, model.normalise))
    for part, scores in part_scores(D, Q).items():
        share, w = SHARES[part]
        expected = expected + share * of(scores / w)
    assert_same(loss, expected / 4)
    loss.backward()
    for name in ("token_projection", "term_projection", "backbone.embeddings.word_embeddings"):
        assert model.encoder.get_submodule(name).weight.grad.abs().max() > 0
    with pytest.raises(ValueError, match="matryoshka"):
        Contrastive(model, corpus, examples).configure(LossSettings(matryoshka=[8]))


@pytest.mark.parametrize("in_batch", [True, False])
def test_the_sum_teaches_each_part(model, in_batch):
    model.double()
    corpus = Corpus.of(dict(zip("abcd", DOCUMENTS, strict=True)))
    examples = [Example(QUERIES[0], 0, (1,), (0,)), Example(QUERIES[1], 2, (1,), (2, 1))]
    objective = Contrastive(model, corpus, examples).configure(LossSettings(in_batch=in_batch))
    batch = objective.collate(examples)
    supervised = objective.loss(model, batch)
    object.__setattr__(model.encoder.settings, "self_distillation", True)
    loss = objective.loss(model, batch)
    Q, D = model(batch.queries, batch.documents)  # documents a, c, b, b; b is relevant to the second query
    candidates = ([0, 1, 2, 3], [1, 0]) if in_batch else ([0, 2], [1, 3])
    tau = model.recipe.temperature
    teacher = rel(D, Q, model.align, model.normalise).detach() / tau
    learned = 0.0
    for part, scores in part_scores(D, Q).items():
        share, w = SHARES[part]
        for n, places in enumerate(candidates):
            p = teacher[n, places].softmax(0)
            cross_entropy = nn.functional.cross_entropy(scores[n, places] / w / tau, p)
            learned = learned + share * (cross_entropy + (p * p.log()).sum()) / 2
    expected = (supervised + learned / 3) / 2
    assert_same(loss, expected)
    weight = model.encoder.token_projection.weight  # the teacher passes no gradient
    assert_same(*(torch.autograd.grad(each, weight, retain_graph=True)[0] for each in (loss, expected)))


def test_one_index_has_all_three(model):
    texts = dict(zip("abcd", DOCUMENTS, strict=True))
    full = Indexed.build(model, texts, precision="no")
    run = full.search(dict(zip("qrs", QUERIES, strict=True)), 4)
    expected = {id: score for id, score, _ in model.rank(QUERIES[0], texts)}
    assert run["q"] == pytest.approx({id: expected[id] for id in "acd"}, abs=5e-3)
    assert run["s"] == {}
    (explained,) = full.explain(QUERIES[0], "a")
    joined = {(explained.query_tokens[j], explained.document_tokens[i]) for i, j, _, _ in explained.links}
    assert {("[dense]", "[dense]"), ("=fox", "=fox")} <= joined


def test_written_in_its_layout_and_in_ours(model, folder, tmp_path):
    model.save_pretrained(tmp_path / "ours")
    model.save_pretrained(tmp_path / "theirs", layout="bge-m3", card=model_card(model, layout="bge-m3"))
    for again in (opened(tmp_path / "theirs"), paradigms.load(tmp_path / "ours")):
        assert_same(again.score(*sides(again)), by_the_paper(folder))
    with pytest.raises(ValueError, match="is not BGE-M3"):
        PARADIGMS["dpr"](folder).save_pretrained(tmp_path / "dpr", layout="bge-m3")
    start = start_of(model, tmp_path)  # of a training, which the heads belong to
    assert start_of(opened(tmp_path / "theirs"), tmp_path) == start
    head = {"weight": torch.zeros(WIDTH, WIDTH), "bias": torch.zeros(WIDTH)}
    torch.save(head, tmp_path / "theirs/colbert_linear.pt")
    assert start_of(opened(tmp_path / "theirs"), tmp_path) != start
    torch.save({name: weight[:3] for name, weight in head.items()}, tmp_path / "theirs/colbert_linear.pt")
    with pytest.raises(ValueError, match=r"colbert_linear\.safetensors holds"):
        paradigms.load(tmp_path / "theirs", pickled=True)


def test_terms_are_weighed_in_float32_under_autocast(folder):
    model = paradigms.load(folder, pickled=True).eval()
    with torch.inference_mode(), autocast(model.device, "bf16"):
        weights = part_of(model.encoder(model.encoder.tokenize(DOCUMENTS, "document"), "document"), "sparse")
    kept = weights.vectors[weights.mask]
    assert (kept.bfloat16() != kept).all()
