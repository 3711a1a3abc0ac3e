"""BERT's own forward pass beside transformers', and models that open without transformers."""

import json
import subprocess
import sys
from copy import deepcopy

import pytest
import torch
from transformers import AutoTokenizer, BertConfig, BertModel

from paradigms import PARADIGMS, load
from paradigms.encoder.bert import Light, fast_forward, last_hidden
from paradigms.encoder.precision import autocast
from paradigms.encoder.sources import packaged
from paradigms.encoder.tokenizing import LightTokenizer
from paradigms.identity import differing, identity
from tests.near import assert_same, assert_within_rounding

CPU = torch.device("cpu")
TEXTS = [
    "A cat is an animal.",
    "",
    "Über naïve cafés, 漢字 and [MASK] ##x " * 9,
    "water",
    "\u200b\x00 emoji 🙂 \t tab",
]


def random_bert(seed: int = 0, **changes) -> BertModel:
    """A BERT whose every weight, norms and biases too, is random."""
    torch.manual_seed(seed)
    sizes = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = BertConfig(**sizes | {"intermediate_size": 64, "max_position_embeddings": 24} | changes)
    model = BertModel(config, add_pooling_layer=False).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(0, 0.3)
    return model


def inputs(types: bool = False) -> dict[str, torch.Tensor]:
    ids = torch.randint(0, 99, (3, 11), generator=torch.Generator().manual_seed(1))
    attention = torch.ones_like(ids)
    attention[1, 4:] = 0
    attention[2, 2:5] = 0  # [MASK] tokens of a query need not be attended to
    more = {"token_type_ids": (torch.arange(11) > 5).long().expand(3, -1)} if types else {}
    return {"input_ids": ids, "attention_mask": attention} | more


@pytest.mark.parametrize("types", [False, True])
@torch.no_grad()
def test_the_pass_is_that_of_transformers(types):
    model = random_bert().double()
    forward = fast_forward(model, "no")
    assert forward is not None
    assert_same(forward(**inputs(types)), model(**inputs(types))[0])


@pytest.mark.parametrize(("precision", "dtype"), [("no", torch.float32), ("bf16", torch.bfloat16)])
@torch.no_grad()
def test_a_pass_is_within_its_rounding(precision, dtype):
    model = random_bert()
    with autocast(CPU, precision):
        results = last_hidden(model, inputs())
    assert results.dtype == dtype
    assert_within_rounding(results, model.double()(**inputs())[0], dtype, 64)  # norms cancel older errors


@pytest.mark.parametrize("precision", ["no", "bf16"])
@torch.no_grad()
def test_copies_of_weights_are_those_of_now(precision):
    """A change through .data, as of an average of weights, does not count as one for autograd."""
    model = random_bert()
    with autocast(CPU, precision):
        for part in ("value.weight", "query.bias", "output.dense.weight", "LayerNorm.weight"):
            before = last_hidden(model, inputs())
            for name, weight in model.encoder.named_parameters():
                if name.endswith(part):
                    weight.data.mul_(-2)
            after = last_hidden(model, inputs())
            assert not torch.equal(after, before)
            assert torch.equal(after, last_hidden(deepcopy(model), inputs()))


@pytest.mark.parametrize("changes", [{"hidden_act": "relu"}, {"is_decoder": True}])
@torch.no_grad()
def test_other_berts_are_transformers_own(changes):
    model = random_bert(**changes)
    assert fast_forward(model, "no") is None
    assert_same(last_hidden(model.double(), inputs()), model(**inputs())[0])


@pytest.mark.parametrize("lacking", ["config", "weight", "size"])
def test_what_light_does_not_know_is_left_to_transformers(lacking, tmp_path):
    model = random_bert(**({"hidden_act": "relu"} if lacking == "config" else {}))
    state = model.state_dict()
    if lacking == "weight":
        del state["encoder.layer.1.output.dense.bias"]
    model.save_pretrained(tmp_path, state_dict=state)
    if lacking == "size":
        file = tmp_path / "config.json"
        file.write_text(file.read_text().replace('"vocab_size": 99', '"vocab_size": 98'))
    assert Light.read(tmp_path) is None


@pytest.mark.parametrize("name", ["offline", "colbert", "splade"])
def test_a_model_opened_to_search_encodes_the_same(name, tmp_path):
    options = {"colbert": {"dim": 16}, "splade": {"tied_head": True}}
    if name in options:
        PARADIGMS[name]("offline", **options[name]).save_pretrained(tmp_path / name)
    place = "offline" if name == "offline" else tmp_path / name
    full, light = load(place), load(place, for_search=True)
    assert isinstance(light.encoder.backbone, Light)
    assert isinstance(light.encoder.tokenizer, LightTokenizer)
    assert not differing(identity(light.encoder), identity(full.encoder))
    for side in ("query", "document"):
        batches = [model.encoder.tokenize(TEXTS, side) for model in (full, light)]
        assert torch.equal(batches[0].input_ids, batches[1].input_ids)
        assert torch.equal(batches[0].counts, batches[1].counts)
        assert light.encoder.labels(TEXTS[2], side) == full.encoder.labels(TEXTS[2], side)
    light, full = light.double(), full.double()
    assert_same(light.encode_queries(TEXTS).vectors, full.encode_queries(TEXTS).vectors)
    assert light.count_cut(TEXTS) == full.count_cut(TEXTS)
    with pytest.raises(ValueError, match="without for_search to save it"):
        light.save_pretrained(tmp_path / "saved")
    with pytest.raises(ValueError, match="without for_search to train it"):
        light.train()(light.encoder.tokenize(TEXTS, "query"), light.encoder.tokenize(TEXTS, "document"))


OPTIONS = {"do_lower_case": False, "tokenize_chinese_chars": False, "strip_accents": False}
OPTIONS |= {"split_special_tokens": True, "truncation_side": "left"}
OPTIONS |= {"added_tokens_decoder": {"5": {"content": "fish", "special": True}}}


@pytest.mark.parametrize("option", OPTIONS)
def test_a_tokenizer_with_other_options_is_left_to_transformers(option, tmp_path):
    """transformers makes the normaliser by tokenizer_config.json, whatever tokenizer.json has."""
    AutoTokenizer.from_pretrained(packaged("offline")).save_pretrained(tmp_path)
    assert LightTokenizer.read(tmp_path) is not None
    file = tmp_path / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {option: OPTIONS[option]}))
    assert LightTokenizer.read(tmp_path) is None


SEARCH = """
import gc, sys
from paradigms.cli.arguments import main
main(["search", sys.argv[1], "a river"])
slow = {"transformers", "numba", "scipy", "accelerate", "faiss", "jsonargparse", "datasets"}
assert gc.isenabled() and gc.get_freeze_count() > 100_000  # no collection reads the modules again
print(sorted(slow & set(sys.modules)))
"""


def test_search_for_one_vector_imports_neither_transformers_nor_compilers(tmp_path):
    (tmp_path / "notes.txt").write_text("The bank of a river.")
    program = [sys.executable, "-c"]
    arguments = ["index", "notes.txt", "--paradigm", "dpr", "--kind", "exact", "--output", "made"]
    index = f"from paradigms.cli.arguments import main; main({arguments})"
    subprocess.run([*program, index], cwd=tmp_path, check=True, capture_output=True)
    done = subprocess.run(
        [*program, SEARCH, "made"], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert "bank of a river" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"
