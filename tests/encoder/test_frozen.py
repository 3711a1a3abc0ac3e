"""upper(lower(text)) is the backbone with frozen lower layers; kept states differ by float16's rounding."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoTokenizer, Qwen3Config, Qwen3Model

from paradigms import PARADIGMS
from paradigms.encoder.frozen import SCALE, LowerStates, keys, scaled
from paradigms.encoder.text import Side, TextEncoder
from paradigms.train.fit import add_states, deleted_after, keep_states
from tests.near import assert_same, assert_within_rounding
from tests.tiny import FAMILIES

TEXTS = ["the house of a dog", "a cat", "a big river and the water under it, a long way from the sea"]
OTHERS = ["snow", "the world in winter"]


def build(backbone: Path, name: str = "colbert", **settings: Any) -> TextEncoder:
    torch.manual_seed(0)
    return PARADIGMS[name](backbone, **settings).encoder


def vectors(encoder: TextEncoder, texts: list[str], side: Side = "document") -> Tensor:
    tokens = encoder(encoder.tokenize(texts, side), side)
    return tokens.vectors[tokens.mask]


def round_states(encoder: TextEncoder) -> None:
    """Give the upper layers states as a store keeps them, in float16, whether or not there is a store."""
    lower = encoder.split.lower
    encoder.split.lower = lambda batch: scaled(lower(batch)).double() / SCALE


def keep(encoder: TextEncoder, folder: Path, texts: list[str]) -> LowerStates:
    store = encoder.split.keep_states(folder)
    store.add(texts, lambda some: encoder.tokenize(some, "document"), encoder.split.compute)
    store.open()
    return store


@pytest.mark.parametrize("kept", [False, True], ids=["computed", "kept"])
@pytest.mark.parametrize("trained", [1, 2])
@pytest.mark.parametrize("family", FAMILIES)
def test_values_and_gradients_are_those_of_the_whole_backbone_with_frozen_layers(
    checkpoints, tmp_path, family, trained, kept
):
    complete, split = build(checkpoints[family]).double(), build(checkpoints[family]).double()
    split.freeze(trained)
    names = {name for name, p in split.named_parameters() if p.requires_grad}
    if kept:
        keep(split, tmp_path, TEXTS)
        complete.freeze(trained)
        round_states(complete)
        round_states(split)
    results = []
    for encoder in (complete, split):
        for name, p in encoder.named_parameters():
            p.requires_grad_(name in names)
        out = vectors(encoder.eval(), TEXTS + OTHERS)  # of OTHERS nothing is kept
        (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
        grads = {n: p.grad for n, p in encoder.named_parameters() if p.grad is not None}
        results.append((out, grads))
    (expected, wanted), (out, grads) = results
    assert grads
    assert_same([out, grads], [expected, wanted])


def test_a_decoders_upper_layers_keep_their_attention(checkpoints, tmp_path):
    """Its layers attend to all tokens or to the nearest ones, by their number."""
    config = Qwen3Config.from_pretrained(checkpoints["qwen3"])
    config.num_hidden_layers, config.use_sliding_window, config.sliding_window = 3, True, 64
    config.layer_types = ["full_attention", "full_attention", "sliding_attention"]
    Qwen3Model(config).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(checkpoints["qwen3"]).save_pretrained(tmp_path)
    complete, split = build(tmp_path).double().eval(), build(tmp_path).double().eval()
    text = [" ".join(OTHERS * 20)]  # longer than the window, unlike the texts of the check in `freeze`
    for trained in (1, 3):
        split.freeze(trained)
        with torch.no_grad():
            assert_same(vectors(split, text), vectors(complete, text), 1.0)


def test_lower_layers_have_no_dropout_and_upper_ones_do(tiny_bert):
    encoder = build(tiny_bert).train()
    encoder.freeze(1)
    batch = encoder.tokenize(TEXTS, "document")
    assert torch.equal(encoder.split.lower(batch), encoder.split.lower(batch))
    assert not torch.equal(vectors(encoder, TEXTS), vectors(encoder, TEXTS))
    assert all(module.training for module in encoder.modules())


def test_untrained_paradigms_share_the_output_of_all_layers_and_trained_ones_do_not(
    tiny_bert, tmp_path, monkeypatch
):
    colbert, dpr = (PARADIGMS[name](tiny_bert) for name in ("colbert", "dpr"))
    given = {"document": TEXTS}, Accelerator(cpu=True)
    keep_states(colbert, 1, tmp_path, *given, untrained=True)
    keep_states(dpr, 1, tmp_path, *given)
    results = vectors(dpr.encoder, TEXTS)
    assert dpr.encoder.split.outputs is None
    assert results.requires_grad
    keep_states(dpr, 1, tmp_path, *given, untrained=True)
    monkeypatch.setattr(dpr.encoder.split, "upper", lambda *_: pytest.fail("was kept"))
    terms = dpr.encoder.backbone.config.hidden_size  # of the norm, of outputs rounded to float16
    assert_within_rounding(vectors(dpr.encoder, TEXTS), results.detach(), torch.float16, terms)
    monkeypatch.undo()
    keep_states(dpr, 1, tmp_path, *given)
    assert vectors(dpr.encoder, TEXTS).requires_grad
    next(dpr.encoder.backbone.encoder.layer[-1].parameters()).data += 1  # the lower states are the same
    assert len(dpr.encoder.split.keep_states(tmp_path)) == len(TEXTS)
    assert not len(dpr.encoder.split.keep_states(tmp_path, outputs=True))


@torch.no_grad()
def test_states_of_other_weights_are_not_read(tiny_bert, tmp_path):
    encoder = build(tiny_bert).double().eval()
    encoder.freeze(1)
    round_states(encoder)
    store = keep(encoder, tmp_path, TEXTS)
    before = vectors(encoder, TEXTS)
    encoder.backbone.encoder.layer[0].attention.self.value.weight.data.mul_(-2)
    results = vectors(encoder, TEXTS)
    encoder.split.store = None
    assert_same(results, vectors(encoder, TEXTS))
    assert len(store) == len(TEXTS)
    assert float((results - before).abs().max()) > 1e-3


def test_too_many_states_are_computed_anew_and_a_full_disk_is_told(tiny_bert, tmp_path, monkeypatch, capsys):
    encoder, folder = build(tiny_bert).double().eval(), tmp_path / "states"
    encoder.freeze(1)
    round_states(encoder)
    rounded = vectors(encoder, TEXTS)
    given = TEXTS, partial(encoder.tokenize, side="document"), encoder.split.compute, Accelerator(cpu=True)
    monkeypatch.setattr("paradigms.encoder.frozen.MOST", 100)
    store = encoder.split.keep_states(folder)
    add_states(store, *given)
    assert "States are not stored, and layers run again for every text" in capsys.readouterr().out
    assert len(store) == 0
    assert_same(vectors(encoder, TEXTS), rounded)
    monkeypatch.undo()

    def full(*_: Any) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("paradigms.encoder.frozen.save_file", full)
    with pytest.raises(OSError, match=r"states.* cannot be written: No space left on device"):
        add_states(store, *given)
    assert not list(folder.rglob("*.safetensors"))


def test_what_somebody_put_beside_states_stays(tiny_bert, tmp_path):
    encoder, place = build(tiny_bert), tmp_path / "states"
    encoder.freeze(1)
    keep(encoder, place, TEXTS)
    (place / "thesis.docx").touch()
    with pytest.warns(RuntimeWarning, match="is not removed"), deleted_after(place, Accelerator(cpu=True)):
        pass
    assert (place / "thesis.docx").exists()


@pytest.mark.parametrize(
    "harm",
    [lambda file: file.write_bytes(file.read_bytes()[:-99] + b"\0" * 99), lambda file: file.unlink()],
    ids=["overwritten", "removed"],
)
def test_a_damaged_file_is_named_and_written_again(tiny_bert, tmp_path, harm):
    encoder = build(tiny_bert)
    encoder.freeze(1)
    keep(encoder, tmp_path, TEXTS)
    (file,) = tmp_path.rglob("*.safetensors")
    complete = file.read_bytes()
    harm(file)
    again = build(tiny_bert)  # the first holds what it has read
    again.freeze(1)
    with pytest.warns(UserWarning, match=r"is damaged \(states\.safetensors"):
        assert len(keep(again, tmp_path, TEXTS)) == len(TEXTS)
    assert file.read_bytes() == complete


def test_what_cannot_be_split_or_kept_is_told(tiny_bert, tmp_path):
    encoder = build(tiny_bert)
    encoder.freeze(1)
    trained = [name for name, p in encoder.named_parameters() if p.requires_grad]
    with pytest.raises(ValueError, match="trained_layers=3: the backbone has 2 layers"):
        encoder.freeze(3)
    encoder.freeze(1)  # what failed in between has left nothing half done
    assert [name for name, p in encoder.named_parameters() if p.requires_grad] == trained
    large = torch.tensor([193_000.0])  # in flan-t5-small
    assert float(scaled(large)) / SCALE == pytest.approx(float(large), rel=2**-11)
    store = LowerStates(tmp_path / "x")
    with pytest.raises(ValueError, match="exceed 4,192,256, and are stored in float16"):
        store.add(
            TEXTS, lambda t: encoder.tokenize(t, "document"), lambda b: torch.full((len(b), 99, 2), 1e9)
        )
    wrong = build(tiny_bert)
    layers = wrong.backbone.encoder.layer
    wrong.backbone.encoder.other = torch.nn.ModuleList(layers)
    with pytest.raises(ValueError, match="BertModel has 2 lists of layers"):
        wrong.freeze(1)
    reads = build(tiny_bert)
    forward = reads.backbone.forward

    def odd(*args: Any, **named: Any) -> Any:  # its result depends on more than the last layer's input
        results = forward(*args, **named)
        results.last_hidden_state = results.last_hidden_state + len(set(reads.backbone.encoder.layer))
        return results

    reads.backbone.encoder.layer.append(layers[0])
    reads.backbone.forward = odd
    with pytest.raises(ValueError, match="cannot be split"):
        reads.freeze(1)


def test_augmented_queries_are_not_taken_for_plain_ones(tiny_bert):
    plain, attended = (
        build(tiny_bert, query_augmentation=True, attend_augmentation=attend) for attend in (False, True)
    )
    a, b = (keys(encoder.tokenize(TEXTS, "query")) for encoder in (plain, attended))
    c = keys(build(tiny_bert).tokenize(TEXTS, "query"))
    assert len({*a, *b, *c}) == 3 * len(TEXTS)
    assert keys(plain.tokenize(TEXTS[:1], "query")) == a[:1]  # whatever stands beside it
