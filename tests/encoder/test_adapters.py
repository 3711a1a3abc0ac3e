"""Low-rank adapters: trained apart, merged into the weights when a paradigm is saved."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from paradigms import PARADIGMS, Paradigm, load
from paradigms.identity import differing, identity
from tests.near import assert_within_rounding
from tests.tiny import FAMILIES, TERMS, randomised

TEXTS = ["the sea", "a bird flew over the island in the morning light"]


def adapted(name: str, backbone: Path, seed: int = 0, **settings: Any) -> Paradigm:
    """A paradigm whose adapters and heads are away from where they start."""
    torch.manual_seed(seed)
    settings = {"lora_rank": 2, "document_length": 20} | settings
    return randomised(PARADIGMS[name](backbone, **settings))


@pytest.mark.parametrize("dora", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_paradigm_has_its_adapters_merged(checkpoints, tmp_path, family, dora):
    paradigm = adapted("aligner", checkpoints[family], dora=dora)
    before = {name: weight.clone() for name, weight in paradigm.state_dict().items()}
    paradigm.save_pretrained(tmp_path / "saved")
    assert all(torch.equal(weight, before[name]) for name, weight in paradigm.state_dict().items())
    merged = Paradigm.from_pretrained(tmp_path / "saved")
    assert not differing(identity(paradigm.encoder), identity(merged.encoder))  # an index serves both
    results, expected = (p.double().encode_documents(TEXTS) for p in (merged, paradigm))
    plain = PARADIGMS["aligner"](checkpoints[family], document_length=20).double().encode_documents(TEXTS)
    assert float((expected.vectors - plain.vectors).abs().max()) > 0.05
    for mine, theirs in ((results.vectors, expected.vectors), (results.salience, expected.salience)):
        assert_within_rounding(mine, theirs, torch.float32, TERMS)  # merged weights are rounded to it
    assert merged.encoder.settings.lora_rank == 0
    assert not merged.encoder.settings.dora
    assert all(weight.requires_grad for weight in merged.parameters())
    # A merged one is an encoder like any other, and can be adapted again.
    again = PARADIGMS["aligner"](tmp_path / "saved" / "backbone", lora_rank=2, document_length=20)
    assert any(".lora_" in name for name, _ in again.named_parameters())


def test_a_merged_folder_opens_without_peft(tiny_bert, tmp_path, monkeypatch):
    paradigm = adapted("colbert", tiny_bert)
    paradigm.save_pretrained(tmp_path / "saved")
    (tmp_path / "apart").mkdir()
    paradigm.write(tmp_path / "apart")
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ImportError, match="peft"):
        load(tmp_path / "apart")
    load(tmp_path / "saved")


def test_a_name_chooses_what_is_adapted(tiny_bert, tmp_path):
    paradigm = adapted("dpr", tiny_bert, lora_targets=r".*attention\.self\.(query|value)")
    trained = {name for name, weight in paradigm.named_parameters() if ".lora_" in name}
    assert {name.split(".")[-4] for name in trained} == {"query", "value"}
    assert len(trained) == 2 * 2 * 2  # layers, names, and A and B
    paradigm.write(tmp_path)
    loaded = Paradigm.from_pretrained(tmp_path)
    assert torch.equal(loaded.encode_queries(TEXTS).vectors, paradigm.encode_queries(TEXTS).vectors)
