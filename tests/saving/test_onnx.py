"""Models whose backbone is an ONNX file: equal vectors, other weights, and what cannot be exported."""

import shutil

import pytest
import torch

import paradigms
from paradigms.encoder.exported import ExportedBackbone
from paradigms.identity import differing, identity
from tests import needs
from tests.near import assert_within_rounding
from tests.tiny import DECODERS, FAMILIES

pytestmark = needs.onnx
LENGTHS = {"query_length": 12, "document_length": 16}
TEXTS = ["A cat is an animal.", "", "water and a river " * 9, "fish"]


def vectors(model, texts):
    return model.encode_documents(texts).vectors.flatten(0, 1)


@pytest.mark.parametrize("family", sorted({*FAMILIES, *DECODERS}))
def test_an_exported_model_has_the_same_vectors(family, checkpoints, tmp_path):
    torch.manual_seed(0)
    model = paradigms.PARADIGMS["colbert"](checkpoints[family], **LENGTHS, dim=8).eval()
    folder = paradigms.export(model, "onnx", tmp_path / "out")
    again = paradigms.load(folder, for_search=True)
    assert isinstance(again.encoder.backbone, ExportedBackbone)
    assert not list(folder.rglob("model.safetensors"))
    for texts in (TEXTS, TEXTS[:1]):  # padded, and of another shape
        mask = model.encode_documents(texts).mask[0]
        assert_within_rounding(vectors(again, texts)[mask], vectors(model, texts)[mask], torch.float32, 512)
    with pytest.raises(ValueError, match="exported to ONNX"):
        again.save_pretrained(tmp_path / "saved")
    with pytest.raises(ValueError, match="exported to ONNX: train"):
        again.train()(again.encoder.tokenize(TEXTS, "query"), again.encoder.tokenize(TEXTS, "document"))


def test_8_bits_are_other_vectors_and_another_identity(tiny_bert, tmp_path):
    model = paradigms.PARADIGMS["dpr"](tiny_bert, **LENGTHS).eval()
    folders = [paradigms.export(model, layout, tmp_path / layout) for layout in ("onnx", "onnx-int8")]
    full, eight = map(paradigms.load, folders)
    similarity = (vectors(full, TEXTS) * vectors(eight, TEXTS)).sum(-1)[[0, 2, 3]]
    assert bool((similarity < 1 - 1e-6).any())
    assert bool((similarity > 0.9).all())
    assert "weights" in differing(identity(full.encoder), identity(eight.encoder))


def test_other_files_are_refused(tiny_bert, tmp_path):
    model = paradigms.PARADIGMS["dpr"](tiny_bert, **LENGTHS)
    model.save_pretrained(tmp_path / "trained")
    with pytest.raises(FileExistsError):
        paradigms.export(model, "onnx", tmp_path / "trained")
    folder = paradigms.export(model, "onnx", tmp_path / "out")
    paradigms.export(model, "onnx", folder)  # replaces its own
    shutil.copy(folder / "backbone" / "config.json", folder / "backbone" / "model.onnx")
    with pytest.raises(ValueError, match=r"model\.onnx"):
        paradigms.load(folder)


def test_a_backbone_with_another_output_is_refused(checkpoints, tmp_path):
    splade = paradigms.PARADIGMS["splade"](checkpoints["bert"], **LENGTHS, tied_head=True)
    with pytest.raises(ValueError, match="reads another output of its backbone"):
        paradigms.export(splade, "onnx", tmp_path / "out")
