"""The examples, run as a reader would, on a tiny encoder."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from paradigms import PARADIGMS, load
from paradigms.align import ALIGNMENTS, as_alignment
from paradigms.cli.arguments import main
from paradigms.encoder.text import ENCODERS
from paradigms.io.plugins import LOADED, load_plugins
from paradigms.recipe import Recipe
from tests import test_laws as laws
from tests.experiments.scripts import SMALL
from tests.forks import fork
from tests.launch import on_two_machines
from tests.near import assert_within_rounding
from tests.scoring import test_equals_rel as equals_rel
from tests.tiny import WORDS

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "experiments" / "examples"
TEXTS = {"fish": "the fish in the sea", "fire": "fire and warm wood", "snow": "cold snow on ice"}
PLUGINS = ("soft_colbert", "weighted_colbert")
LENGTHS = '{"query_length": 16, "document_length": 24}'


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def commanded(log: Path, *command: object) -> str:
    """Run `python -m paradigms` in a separate process; return what it prints."""
    code, said = fork(log, main, [str(word) for word in command]).ended()
    assert code == 0, said[-3000:]
    return said


@pytest.fixture
def registries():
    """Restore the registries after the test."""
    before = [(registry, dict(registry)) for registry in (ALIGNMENTS, ENCODERS, PARADIGMS)]
    yield
    for registry, known in before:
        registry.clear()
        registry.update(known)  # type: ignore[arg-type]
    for file in LOADED:
        sys.modules.pop(file.stem)
    LOADED.clear()


@pytest.mark.parametrize("name", PLUGINS)
def test_a_plugin_is_saved_indexed_and_searched_in_other_processes(registries, tiny_bert, tmp_path, name):
    file = EXAMPLES / f"{name}.py"
    load_plugins([file, file])
    torch.manual_seed(0)
    model = PARADIGMS[name](tiny_bert, dim=8, query_length=16, document_length=24)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.05 * torch.randn_like(weight))
    model.save_pretrained(tmp_path / "saved")
    again = load(tmp_path / "saved", plugin=file)
    assert type(again.encoder) is type(model.encoder)
    query, texts = "the cold sea", list(TEXTS.values())
    wanted = model.score(model.encode_documents(texts), model.encode_queries([query]))
    assert torch.equal(again.score(again.encode_documents(texts), again.encode_queries([query])), wanted)

    rows = [json.dumps({"_id": id, "text": text}) for id, text in TEXTS.items()]
    (tmp_path / "texts.jsonl").write_text("\n".join(rows))
    plugin = ["--plugin", file]
    built = ["--model", tmp_path / "saved", "--output", tmp_path / "made"]
    commanded(tmp_path / "log", "index", tmp_path / "texts.jsonl", *built, *plugin)
    said = commanded(tmp_path / "log", "search", tmp_path / "made", query, "--format", "jsonl", *plugin)
    ranked = [json.loads(line) for line in said.splitlines() if line.startswith("{")]  # or of the log
    expected = dict(zip(TEXTS, wanted[0].tolist(), strict=True))
    # Means of cosines; the terminal encodes in bf16 where processors compute in it.
    assert_within_rounding({row["id"]: row["score"] for row in ranked}, expected, torch.bfloat16, 1, scale=1)


@pytest.mark.slow
def test_every_process_of_a_launch_has_the_plugin(words, tiny_bert, tmp_path):
    """Two processes of nodes_2.yaml, each with a tokenising worker, train a paradigm with a new D."""
    file, output = EXAMPLES / "weighted_colbert.py", tmp_path / "out"
    (tmp_path / "train.yaml").write_text("paradigm: weighted_colbert\nworkers: 1\nsteps: 9\n")
    flags = SMALL | {"collection": words, "backbone": tiny_bert, "output": output, "options": LENGTHS}
    given = [f"--{name}={value}" for name, value in (flags | {"plugin": file}).items()]
    said = on_two_machines("experiments/train.py", "--config", str(tmp_path / "train.yaml"), *given)
    assert "".join(said).count("2 process(es)") == 1
    assert json.loads((output / "environment.json").read_text())["processes"] == 2
    assert (output / "training/checkpoints/step-2/progress.json").is_file()
    assert json.loads((output / "environment.json").read_text())["plug-in weighted_colbert.py"]
    assert json.loads((output / "checkpoint" / "encoder.json").read_text())["encoder"] == "weighted"


def test_a_new_alignment_obeys_the_laws(registries):
    load_plugins(EXAMPLES / "soft_colbert.py")
    case = laws.Case(as_alignment("Softmax(tau=0.5)"), "query_tokens")
    for law in (
        laws.test_padding_changes_nothing,
        laws.test_order_of_candidates_and_tokens_does_not_matter,
        laws.test_slices_of_queries_and_candidates_score_the_same,
        laws.test_empty_texts_score_zero_and_harm_nothing,
    ):
        law(case)
    equals_rel.test_in_batch(Recipe("soft", case.A, "query_tokens"), salience=True, real=0.7)


def test_train_on_own_pairs(tiny_bert, tmp_path, capsys):
    words = WORDS.split()
    texts = [" ".join(words[n : n + 6]) for n in range(12)]
    rows = [
        {"query": text[:5], "document": text, "negatives": [texts[n - 6]]} for n, text in enumerate(texts)
    ]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    main = example("train_on_own_pairs").main
    main(str(tmp_path / "pairs.jsonl"), str(tiny_bert), str(tmp_path / "out"), steps=2)
    assert (tmp_path / "out" / "checkpoint" / "paradigm.json").is_file()
    assert capsys.readouterr().out.count("\n  ") == 9  # three documents of three queries
