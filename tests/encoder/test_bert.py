"""BERT's own forward pass beside transformers', and models that open without transformers."""

import math
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel

from paradigms import PARADIGMS, load
from paradigms.encoder import int8, loops
from paradigms.encoder.backbone import load_backbone, load_tokenizer, packaged
from paradigms.encoder.bert import Light, fast_forward, last_hidden
from paradigms.encoder.precision import autocast
from paradigms.encoder.tokenizing import LightTokenizer, token_rows
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


@torch.no_grad()
def test_a_pass_in_bfloat16_is_within_its_rounding():
    model = random_bert()
    with autocast(CPU, "bf16"):
        found = last_hidden(model, inputs())
    assert found.dtype == torch.bfloat16
    assert_within_rounding(found, model(**inputs())[0], torch.bfloat16, 16)  # norms cancel older errors


@pytest.mark.parametrize("scale", [1e-3, 1, 30])
def test_compiled_loops_are_their_definitions(scale):
    """Each loop equals torch, up to its polynomials and to the rounding of ties."""
    torch.manual_seed(0)
    found, x = torch.randn(5, 70) * scale, torch.randn(5, 70)
    found[1] = 0
    scales, bias, weight = torch.rand(5) + 0.5, torch.randn(70), torch.randn(70)
    sums = (found.double() * scales[:, None] + bias).float()

    def rounded(wanted, run, rows):
        new = np.zeros(5, np.float32)
        out = np.zeros((5, 70), np.uint8)
        run(out, new)
        largest = wanted.abs().amax(1) / int8.LARGEST
        assert_within_rounding(torch.from_numpy(new), largest, torch.float32, rows)
        steps = torch.from_numpy(out).float() - int8.ZERO - wanted / largest.clamp_min(int8.LEAST)[:, None]
        assert steps.abs().max() <= 0.51

    numbers = [t.numpy() for t in (scales, bias)]
    rounded(found, lambda *out: loops.quantise(found.numpy(), *out), 4)
    wanted = torch.nn.functional.gelu(sums)
    rounded(wanted, lambda *out: loops.activate(found.numpy().copy(), *numbers, *out), 1000)
    wanted = torch.nn.functional.layer_norm(x + sums, (70,), weight, bias, 1e-12)
    state, norm = x.numpy().copy(), (weight.numpy(), numbers[1], np.float32(1e-12))
    rounded(wanted, lambda *out: loops.normalise(found.numpy(), *numbers, state, *norm, *out), 1000)
    assert_within_rounding(torch.from_numpy(state), wanted, torch.float32, 1000)
    loops.finish(found.numpy(), *numbers)
    assert_within_rounding(found, sums, torch.float32, 4)


def test_the_compiled_attention_is_torchs():
    torch.manual_seed(0)
    qkv, keep, out = torch.randn(3, 7, 3, 2, 5), torch.ones(3, 7), torch.zeros(3, 7, 2, 5)
    keep[1, 4:], keep[2, ::2] = 0, 0
    qkv[2, ::2, 1] *= 100  # keys that are left out may be the largest
    q, k, v = qkv.double().permute(2, 0, 3, 1, 4)
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, keep[:, None, None].bool())
    loops.attend(qkv.numpy(), keep.numpy(), np.float32(5**-0.5), out.numpy())
    assert_within_rounding(out, wanted.transpose(1, 2), torch.float32, 100)


def test_the_compiled_softmax_is_torchs():
    S, keep = torch.randn(3, 4, 37).mul(8).bfloat16(), torch.ones(3, 37)
    keep[1, 5:], keep[2, ::2] = 0, 0
    S[2, :, ::2] = 900.0  # keys that are left out may be the largest
    wanted = (S.float() / 3).masked_fill(keep[:, None] == 0, -torch.inf).softmax(-1)
    loops.softmax(S.view(torch.uint16).numpy(), keep.numpy(), np.float32(math.log2(math.e) / 3))
    assert_within_rounding(S.float(), wanted, torch.bfloat16, 1)
    assert bool((S[wanted == 0] == 0).all())


@torch.no_grad()
def test_a_text_in_8_bits_does_not_depend_on_the_others():
    model, batch = random_bert(), {name: rows.repeat(2, 1) for name, rows in inputs().items()}
    with autocast(CPU, "int8"):  # a large batch takes a product per head, a text alone one loop
        whole = last_hidden(model, batch)
        alone = last_hidden(model, {name: rows[1:2, :4] for name, rows in batch.items()})
    wanted = model(**batch)[0]
    assert_within_rounding(alone[0], whole[1, :4], torch.bfloat16, 16)
    kept = batch["attention_mask"].bool()
    assert 0 < float((whole - wanted)[kept].norm() / wanted[kept].norm()) < 0.05


@torch.no_grad()
def test_changed_weights_change_the_pass():
    model = random_bert().double()
    before = last_hidden(model, inputs())
    changes = [
        lambda: model.encoder.layer[0].output.dense.weight.mul_(2),
        lambda: setattr(model.encoder.layer[1].output, "dense", torch.nn.Linear(64, 32, dtype=torch.float64)),
        lambda: model.load_state_dict(random_bert(2).double().state_dict(), assign=True),
    ]
    for change in changes:
        change()
        found = last_hidden(model, inputs())
        assert_same(found, model(**inputs())[0])
        assert not torch.equal(found, before)
        before = found


@pytest.mark.parametrize("precision", ["no", "bf16", "int8"])
@pytest.mark.parametrize("part", ["value.weight", "query.bias", "output.dense.weight", "LayerNorm.weight"])
@torch.no_grad()
def test_copies_of_weights_are_those_of_now(precision, part):
    """A change through .data, as of an average of weights, does not count as one for autograd."""
    model = random_bert()
    with autocast(CPU, precision):
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


def test_training_is_transformers_own():
    model = random_bert()
    assert fast_forward(model, "no") is None  # which records gradients
    with torch.no_grad():
        assert fast_forward(model, "no") is not None
        assert fast_forward(model.train(), "no") is None


@torch.no_grad()
def test_a_light_bert_is_what_transformers_reads(tmp_path):
    model = random_bert()
    model.save_pretrained(tmp_path)
    light = Light.read(tmp_path)
    assert light is not None
    theirs = model.state_dict()
    assert list(light.state_dict()) == list(theirs)
    assert all(torch.equal(weight, theirs[name]) for name, weight in light.state_dict().items())
    assert_same(last_hidden(light.double(), inputs()), model.double()(**inputs())[0])


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


@pytest.mark.parametrize("name", ["offline", "colbert"])
def test_a_model_opened_to_search_encodes_the_same(name, tmp_path):
    if name == "colbert":
        PARADIGMS["colbert"]("offline", dim=16).save_pretrained(tmp_path / "colbert")
    place = "offline" if name == "offline" else tmp_path / "colbert"
    whole, light = load(place), load(place, for_search=True)
    assert isinstance(light.encoder.backbone, Light)
    assert isinstance(light.encoder.tokenizer, LightTokenizer)
    assert not differing(identity(light.encoder), identity(whole.encoder))
    for side in ("query", "document"):
        batches = [model.encoder.tokenize(TEXTS, side) for model in (whole, light)]
        assert torch.equal(batches[0].input_ids, batches[1].input_ids)
        assert torch.equal(batches[0].counts, batches[1].counts)
        assert light.encoder.labels(TEXTS[2], side) == whole.encoder.labels(TEXTS[2], side)
    light, whole = light.double(), whole.double()
    assert_same(light.encode_queries(TEXTS).vectors, whole.encode_queries(TEXTS).vectors)
    assert light.count_cut(TEXTS) == whole.count_cut(TEXTS)
    with pytest.raises(ValueError, match="without for_search to save it"):
        light.save_pretrained(tmp_path / "saved")
    with pytest.raises(ValueError, match="without for_search to train it"):
        light.train()(light.encoder.tokenize(TEXTS, "query"), light.encoder.tokenize(TEXTS, "document"))


def test_token_rows_are_those_of_transformers(checkpoints):
    for folder in (*checkpoints.values(), packaged("offline")):
        tokenizer = load_tokenizer(folder)
        for whole in (False, True):
            wanted = tokenizer(
                TEXTS,
                padding="max_length" if whole else True,
                truncation=True,
                max_length=13,
                return_special_tokens_mask=True,
                return_tensors="pt",
            )
            found = token_rows(tokenizer, TEXTS, 13, full=whole)
            names = ("input_ids", "attention_mask", "special_tokens_mask")
            for name, rows in zip(names, found, strict=True):
                assert torch.equal(rows, wanted[name]), (folder, name)


@pytest.mark.parametrize("option", ["do_lower_case", "tokenize_chinese_chars", "strip_accents"])
def test_a_tokenizer_with_other_options_is_left_to_transformers(option, tmp_path):
    """transformers makes the normaliser by tokenizer_config.json, whatever tokenizer.json has."""
    AutoTokenizer.from_pretrained(packaged("offline")).save_pretrained(tmp_path)
    assert LightTokenizer.read(tmp_path) is not None
    file = tmp_path / "tokenizer_config.json"
    text = file.read_text()
    changed = text.replace(f'"{option}": true', f'"{option}": false')
    changed = changed.replace(f'"{option}": null', f'"{option}": false')
    assert changed != text
    file.write_text(changed)
    assert LightTokenizer.read(tmp_path) is None


SEARCH = """
import gc, sys
from paradigms.cli.arguments import main
main(["search", sys.argv[1], "a river"])
slow = {"transformers", "numba", "scipy", "accelerate", "faiss", "jsonargparse", "datasets"}
assert gc.isenabled() and gc.get_freeze_count() > 100_000  # no collection reads the modules again
print(sorted(slow & set(sys.modules)))
"""


def test_search_imports_neither_transformers_nor_compilers(tmp_path):
    (tmp_path / "notes.txt").write_text("The bank of a river.")
    program = [sys.executable, "-c"]
    index = "from paradigms.cli.arguments import main; main(['index', 'notes.txt', '--output', 'made'])"
    subprocess.run([*program, index], cwd=tmp_path, check=True, capture_output=True)
    done = subprocess.run(
        [*program, SEARCH, "made"], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert "bank of a river" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


def test_backbones_are_whole_outside_of_search(tiny_bert: Path):
    assert isinstance(load_backbone(tiny_bert), type(AutoModel.from_pretrained(tiny_bert)))
