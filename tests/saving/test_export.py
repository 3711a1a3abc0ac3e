"""Checkpoints out: the layouts that a model is saved in, their cards, and the hub.

That sentence-transformers scores the same is tested in test_sentence_transformers.py, where it is installed.
"""

import json
import shutil
from fnmatch import fnmatch
from pathlib import Path

import pytest
import torch
import yaml
from transformers import BertForMaskedLM

import paradigms
from paradigms.cli.arguments import main
from paradigms.saving import push_to_hub
from paradigms.saving.hub import model_card, results_of
from tests.saving.test_read import scores_of
from tests.tiny import write_headed

LENGTHS = {"query_length": 12, "document_length": 16}
LAYOUT = "sentence-transformers"


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("cross_attention", {}, "is not an encoder of single texts"),
        ("xtr", {}, "supports that of ColBERT only: model.with_alignment"),
        ("aligner", {}, "supports that of ColBERT only"),
        ("coil", {}, "supports that of ColBERT only"),
        ("me_bert", {}, "queries become pooled and documents spans vectors"),
        ("dpr", {"dim": 8, "layer_norm": True}, "no module for layer_norm"),
        ("colbert", {"special_tokens": False}, "no module for special_tokens=False"),
        ("splade", {"tied_head": True, "query_terms": "own"}, "no module for query_terms=own"),
    ],
)
def test_what_it_has_no_module_for_is_refused(tiny_bert, tmp_path, name, settings, message):
    model = (paradigms.PARADIGMS | paradigms.RERANKERS)[name](tiny_bert, **LENGTHS, **settings)
    for layout, told in ((LAYOUT, message), ("gguf", "unknown layout 'gguf'")):
        with pytest.raises(ValueError, match=told):
            model.save_pretrained(tmp_path / "out", layout)
    assert not (tmp_path / "out").exists()


def configure(folder: Path, **settings: object) -> None:
    (folder / "config.json").write_text(json.dumps(settings))


@pytest.fixture
def results(tiny_bert, tmp_path):
    """A results folder as the scripts write it."""
    folder = tmp_path / "results" / "compare-x"
    model = paradigms.PARADIGMS["colbert"](tiny_bert, dim=8, **LENGTHS)
    model.save_pretrained(folder / "colbert" / "checkpoint")
    configure(folder, collection="pydocs", steps=30, tracker="none")
    (folder / "environment.json").write_text(json.dumps({"torch": "2.0"}))
    (folder / "table.md").write_text("| system | nDCG@10 |\n")
    return folder


def test_the_card_tells_data_settings_and_measures(results):
    model = paradigms.load(results / "colbert" / "checkpoint")
    assert results_of(results / "colbert" / "checkpoint") == results
    assert results_of(results / "offline") is None  # a name, whatever lies beside
    card = model_card(model, results)
    for told in ("pydocs: its training", "| steps | 30 |", '| torch | "2.0" |', "| system | nDCG@10 |"):
        assert told in card
    assert '| align | "QueryToDocument()" |' in card
    assert "tracker" not in card
    assert card.startswith("---\nlibrary_name: sentence-transformers\n")
    bare = model_card(model)
    assert "Not recorded." in bare
    assert "None recorded." in bare
    with pytest.raises(FileNotFoundError, match="not a results folder"):
        model_card(model, results.parent)


def test_a_card_is_a_table_and_tells_no_paths_of_this_machine(results):
    """A new line in a name or value could hold a licence or a heading."""
    settings = {"collection": "/home/me/data/beir", "note": "a|b", "indexes": {"x": ["/home/me/x/index"]}}
    settings |= {"backbone": "~/models/own/bert", "filter": "results/x", "options": {"marker": "/query "}}
    settings |= {"note\nlicense: mit": "a\u2028license: mit"}
    (results / "config.json").write_text(json.dumps(settings))
    card = model_card(paradigms.load(results / "colbert" / "checkpoint"), results)
    assert "home" not in card
    assert "models/own" not in card
    for told in ("beir: its training", '"a\\|b"', '{"x": ["index"]}', '"bert"', '"results/x"', '"/query "'):
        assert told in card
    table = [line for line in card.splitlines() if line.startswith("| note ")]
    assert table[0].replace("\\|", "").count("|") == 3
    assert "license: mit" in card
    assert not any(line.startswith("license") for line in card.splitlines())


@pytest.mark.parametrize(
    ("name", "tags"),
    [
        ("dpr", {"dense", "sentence-similarity"}),
        ("colbert", {"multi-vector", "late-interaction", "colbert"}),
        ("aligner", {"multi-vector", "late-interaction"}),
        ("splade", {"sparse-encoder", "sparse"}),
        ("cross_attention", {"cross-encoder", "reranker"}),
    ],
)
def test_the_metadata_of_a_card(tiny_bert, results, name, tags):
    build = (paradigms.PARADIGMS | paradigms.RERANKERS)[name]
    masked = write_headed(BertForMaskedLM, results / "masked") if name == "splade" else tiny_bert
    model = build(masked)
    configure(results, collection="hf:BeIR/scifact", backbone="offline", systems=["dpr"])
    lines = model_card(model, results)
    metadata = yaml.safe_load(lines.split("---")[1])
    assert metadata["base_model"] == "sentence-transformers/all-MiniLM-L6-v2"
    assert metadata["datasets"] == ["BeIR/scifact"]
    assert tags <= set(metadata["tags"])
    assert ("colbert" in metadata["tags"]) == (name == "colbert")
    assert metadata["pipeline_tag"] in ("sentence-similarity", "feature-extraction", "text-ranking")
    assert "license" not in metadata  # the publisher's choice
    assert "\n# license: " in lines


def test_a_card_names_no_backbone_or_collection_of_this_machine(model, tiny_bert, results):
    configure(results, collection="pydocs", backbone=str(tiny_bert))
    assert not {"base_model", "datasets"} & yaml.safe_load(model_card(model, results).split("---")[1]).keys()
    configure(results, backbone="bert-base/uncased", systems={"x": {"backbone": "other/one"}})
    assert "base_model" not in model_card(model, results)  # it may be either


@pytest.fixture
def model(tiny_bert):
    return paradigms.PARADIGMS["dpr"](tiny_bert, **LENGTHS)


def test_a_model_is_replaced_in_its_own_layout_alone(model, tiny_bert, tmp_path):
    """Another layout may be a checkpoint of theirs, or lack what ours says of training and search."""
    paradigms.RERANKERS["cross_attention"](tiny_bert, **LENGTHS).save_pretrained(tmp_path / "own")
    model.save_pretrained(tmp_path / "own")
    assert paradigms.load(tmp_path / "own").name == "dpr"
    for _ in range(2):
        model.save_pretrained(tmp_path / "out", LAYOUT)
    for folder, layout in (("out", "paradigms"), ("own", LAYOUT)):
        with pytest.raises(FileExistsError, match=r"would be replaced, but holds .* program did not write"):
            model.save_pretrained(tmp_path / folder, layout)
    (tmp_path / "out" / "training_args.bin").write_text("mine")
    with pytest.raises(FileExistsError, match=r"out would be replaced, but holds training_args\.bin"):
        model.save_pretrained(tmp_path / "out", LAYOUT)


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A folder whose folders are the repositories of the hub; each begins with three old files."""
    root = tmp_path / "hub"

    class HfApi:
        def create_repo(self, name, private, exist_ok):
            assert private
            assert exist_ok
            if name == "others/theirs":
                raise RuntimeError("403 Forbidden")
            if not (root / name).exists():
                (root / name / "1").mkdir(parents=True)
                for file in ("README.md", "paradigm.json", "1/a.bin"):
                    (root / name / file).touch()

        def upload_folder(self, repo_id, folder_path, delete_patterns):
            for file in [file for file in (root / repo_id).rglob("*") if file.is_file()]:
                if any(fnmatch(str(file.relative_to(root / repo_id)), p) for p in delete_patterns):
                    file.unlink()
            shutil.copytree(folder_path, root / repo_id, dirs_exist_ok=True)

    monkeypatch.setattr("huggingface_hub.HfApi", HfApi)
    return root


def test_push_to_hub_leaves_no_file_of_another_layout(model, tiny_bert, hub):
    """paradigms.load opens the first layout that it knows."""
    mine = hub / "me/mine"
    push_to_hub(model, "me/mine", LAYOUT)
    assert "# dpr" in (mine / "README.md").read_text()
    assert not (mine / "paradigm.json").exists()
    assert not (mine / "1/a.bin").exists()
    with pytest.raises(ValueError, match="no module for layer_norm"):
        push_to_hub(paradigms.PARADIGMS["dpr"](tiny_bert, dim=8, layer_norm=True), "me/other", LAYOUT)
    assert not (hub / "me/other").exists()
    push_to_hub(model, "me/mine")
    assert (mine / "README.md").exists()  # which is not ours to take away
    assert torch.equal(scores_of(paradigms.load(mine)), scores_of(model))


def test_export_from_the_terminal(results, tmp_path, hub, capsys):
    checkpoint, out = str(results / "colbert" / "checkpoint"), str(tmp_path / "out")
    main(["export", checkpoint, out, "--push", "me/mine"])
    assert "pydocs" in (tmp_path / "out" / "README.md").read_text()
    assert (hub / "me/mine" / "README.md").read_bytes() == (tmp_path / "out" / "README.md").read_bytes()
    assert "on the hub as me/mine" in capsys.readouterr().err
    assert paradigms.load(out).name == "colbert"
    with pytest.raises(SystemExit, match="others/theirs was not uploaded: 403 Forbidden"):
        main(["export", checkpoint, out, "--push", "others/theirs"])
    main(["export", out, str(tmp_path / "own"), "--layout", "paradigms", "--results", str(results)])
    assert "library_name: paradigms" in (tmp_path / "own" / "README.md").read_text()
    assert paradigms.load(tmp_path / "own").name == "colbert"
