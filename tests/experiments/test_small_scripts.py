"""Scripts that are no studies, and small ones: each end to end, and what its results promise."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import build_paper
import fewer_bytes
import generate_queries
import gpu
import pytest
import torch
from studies.pages import Section, print_sections

from paradigms import PARADIGMS
from paradigms.data import load_collection
from paradigms.io.checks import read_json
from paradigms.io.command_line import folder_name
from paradigms.train.losses import contrastive
from tests import needs
from tests.experiments.scripts import published, run
from tests.tiny import WORDS, write_collection


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    words = WORDS.split()
    texts = [" ".join(words[5 * n : 5 * n + 6]) for n in range(10)]
    return write_collection(tmp_path_factory.mktemp("words"), texts, texts, {"test": range(3)})


def test_queries_become_a_training_split(collection, seq2seq, tmp_path, monkeypatch):
    settings = {"model": str(seq2seq["t5"]), "collection": str(collection), "output": str(tmp_path)}
    settings |= {"queries": 2, "rank": 0}
    monkeypatch.setattr(generate_queries, "BATCH", 4)
    monkeypatch.setattr(generate_queries, "LENGTH", 8)
    generate_queries.main(generate_queries.Settings(**settings))
    built = load_collection(tmp_path / "collection")
    train = built.split("train")
    assert train.queries
    assert built.split("test").judgements == load_collection(collection).split("test").judgements
    pairs = [json.loads(line) for line in (tmp_path / "pairs.jsonl").read_text().splitlines()]
    assert [row["query"] for row in pairs] == list(train.queries.values())
    assert [{row["document"]: 1} for row in pairs] == list(train.judgements.values())
    file = tmp_path / "written.jsonl"
    full = file.read_text()
    file.write_text("".join(full.splitlines(keepends=True)[:1]) + full.splitlines()[1][:9])
    generate_queries.main(generate_queries.Settings(**settings))
    assert file.read_text() == full


def test_the_round_trip_keeps_queries_that_find_their_document(collection):
    corpus = load_collection(collection).corpus
    good, bad = ("d3", corpus[3]), ("d4", corpus[9])
    settings = generate_queries.Settings(model="", rank=1)
    assert generate_queries.found_again(corpus, [good, bad], settings) == [good]


def test_tables_and_findings_of_a_page():
    page = """# A
## Findings

| finding | page |
|---|---|
| One [better](x.md) than two | [page](y.md#z) |

## B

| a | b |
|---|---:|
| `x` | 1\\|2 |
|  | 3 |

Reproduced:

| a |
|---|
| 4 |
"""
    assert build_paper.findings(page) == ["One better than two."]
    assert build_paper.tables(page)["B"] == [
        {"title": "", "rows": [["a", "b"], ["x", "1|2"], ["", "3"]]},
        {"title": "Reproduced", "rows": [["a"], ["4"]]},
    ]


def test_a_narrow_terminal_names_the_columns_that_it_does_not_show(monkeypatch, capsys):
    row = {"system": "dpr"} | {f"k{n}": f"0.12{n} [0.012, 0.345]" for n in range(5)}
    for width in range(20, 120):
        monkeypatch.setenv("COLUMNS", str(width))
        print_sections([Section("Heading", rows=[row])])
        shown, _, rest = capsys.readouterr().out.partition("Also")
        for n in range(5):
            assert (f"0.12{n} " in shown) == (f"k{n}" in shown) == (f"k{n}" not in rest), width
    assert not rest


@pytest.mark.parametrize("text", ["paper", "imputation"])
def test_the_figures_of_a_paper_are_published(text):
    """Also where typst is absent, a study that is replaced must not leave the paper without its figure."""
    figures = build_paper.FIGURE.findall((build_paper.SITE / f"{text}.typ").read_text(encoding="utf-8"))
    assert [name for name in figures if not (build_paper.ROOT / name).is_file()] == []


@needs.typst
@pytest.mark.parametrize("text", ["paper", "imputation"])
def test_a_paper_is_set(tmp_path, text):
    run("build_paper", text=text, output=tmp_path / "out" / "paper.pdf")
    assert (tmp_path / "out" / "paper.pdf").read_bytes().startswith(b"%PDF")


CHEAP = {"fp16_scaler": "needs a GPU"} | dict.fromkeys(("in_batch_scores", "dropout_replay"), "passed")


def outcomes(folder: Path) -> dict[str, str]:
    (file,) = folder.glob("gpu-*.json")
    return {row["check"]: row["outcome"] for row in read_json(file)["sections"]["checks"]["rows"]}


def test_cheap_checks_pass_once(tmp_path, monkeypatch):
    """They are written, and only a check that failed runs again."""
    calls: list[str] = []

    def broken(place: gpu.Place) -> gpu.Rows:
        """Does it work?"""
        calls.append("broken")
        raise ValueError("no")

    checks = {name: gpu.CHECKS[name] for name in CHEAP} | {"broken": broken}
    monkeypatch.setattr(gpu, "CHECKS", checks)
    settings = gpu.Settings(output=str(tmp_path))
    assert gpu.main(settings) == 1
    assert outcomes(tmp_path) == CHEAP | {"broken": "failed"}
    for name in CHEAP:
        monkeypatch.setitem(checks, name, broken)
    assert gpu.main(settings) == 1
    assert calls == ["broken"] * 2


def other_dropout(encode: Callable[..., Any], *parts: torch.Tensor, **_: Any) -> Any:
    """`checkpoint` without the state of the random generator."""
    return torch.utils.checkpoint.checkpoint(encode, *parts, use_reentrant=False, preserve_rng_state=False)


def read_loss(*arguments: Any) -> torch.Tensor:
    loss = contrastive(*arguments)
    assert loss.item() > 0
    return loss


def other_rounds(place: gpu.Place, **changes: Any) -> SimpleNamespace:
    """Trainings of which the first value of a setting has a last loss of 1, and another value 6% more."""
    first = {"precision": "no", "parts": 1}
    return SimpleNamespace(last=1.0 if changes.items() & first.items() else 1.06, rate=1.0, peak=0)


SABOTAGED: dict[str, tuple[str, str, Any, str]] = {  # check: device, what is replaced, by what, the error
    "dropout_replay": ("cpu", "paradigms.encoder.batches.checkpoint", other_dropout, "no: states differ by"),
    "host_waits": ("cpu", "paradigms.train.contrastive.contrastive", read_loss, "1 waits in"),
    "fp16_scaler": ("cuda", "gpu.Place.train", other_rounds, "losses differ by 6.0e-02"),
    "parts": ("cpu", "gpu.Place.train", other_rounds, "losses differ by 6.0e-02"),
}


@pytest.mark.parametrize("check", SABOTAGED)
def test_a_wrong_computation_fails_its_check(check, monkeypatch):
    device, replaced, wrong, message = SABOTAGED[check]
    monkeypatch.setattr(replaced, wrong)
    monkeypatch.setattr(gpu, "ROOT", gpu.ROOT / "tests")  # so that what this file reads counts as ours
    outcome, _, section = gpu.outcome(check, torch.device(device))
    assert outcome == "failed"
    assert message in section.rows[0]["error"]


@pytest.mark.slow
def test_every_way_is_measured_certified_and_drawn(words, tiny_bert, tmp_path):
    torch.manual_seed(0)
    model = str(tmp_path / "model")
    PARADIGMS["colbert"](tiny_bert, query_length=8, document_length=16).save_pretrained(model)
    out = tmp_path / "out"
    flags = {"collections": [str(words)], "documents": 30, "queries": 5, "model": model}
    settings = fewer_bytes.Settings(**flags, output=str(out))
    fewer_bytes.main(settings)
    own = out / folder_name(settings.collections[0])
    rows = json.loads((own / "fewer.json").read_text())["answer"]
    full = rows[0]
    assert (full["certified"], full["unchanged"]) == (5, 5)
    assert full["error"] < 1e-4  # the rounding error of sums
    for row in rows:
        assert row["violations"] == 0
        assert len(row["nDCG@10"]) == row["queries"] == 5
        assert row["documents"] == 30
        assert row["bytes/document"] < full["bytes/document"] or row["kind"] in ("all tokens", "bits")
    before = {file: file.stat().st_mtime_ns for file in own.rglob("*.json")}
    fewer_bytes.main(settings)
    assert before == {file: file.stat().st_mtime_ns for file in own.rglob("*.json")}
    assert published(out) >= {"fewer", "ways"}
