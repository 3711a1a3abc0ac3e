"""The core stands alone: what it imports, and what it does once the rooms above it are deleted."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_layers import ABOVE, ROOT

# Lines of the package that a process has imported after a statement, and the most that there may be.
MOST = {
    "import paradigms; paradigms.PARADIGMS['colbert']": 6_000,
    "import paradigms.train.loop": 5_600,
    "import paradigms.retrieve": 14_000,
}
COUNT = """
import sys
files = {module.__file__ for name, module in sys.modules.items() if name.split(".")[0] == "paradigms"}
print(sum(len(open(file, encoding="utf-8").readlines()) for file in files))
"""
# Train, save, load, index, search, fuse and measure a paradigm over the encoder in the last argument.
ALONE = """
import sys
from pathlib import Path
from accelerate import Accelerator
from paradigms import PARADIGMS, load
from paradigms.baselines.bm25 import BM25
from paradigms.data import Collection, Corpus, Problems, Split
from paradigms.evaluate import per_query
from paradigms.retrieve import Fused, Indexed
from paradigms.train.fit import fit
from paradigms.train.loop import TrainingSettings

texts = {"cat": "a cat eat fish", "bank": "the river bank", "king": "the king and the queen", "sun": "a star"}
queries = {"c": "cat food", "b": "a river", "k": "queen", "s": "sun star"}
split = Split(queries, {q: {d: 1} for q, d in zip(queries, texts)})
corpus = Corpus.of(texts)
bm25 = BM25(corpus)
run = bm25.search(queries, 4)
name, output, backbone = sys.argv[1:]
model = PARADIGMS[name](backbone, document_length=16)
model = fit(
    model, Collection("texts", corpus, {"train": split}, Problems(), ""), (split, split), (run, run), 0, 4,
    TrainingSettings(steps=2, batch_size=2), Path(output, "training"), Accelerator(cpu=True),
)
model.save_pretrained(Path(output, "model"))
model = load(Path(output, "model"))
Indexed.build(model, corpus, Path(output, "index"))
indexed = Indexed.open(Path(output, "index"), model, corpus)
found = Fused([indexed, bm25]).search(queries, 2)
assert indexed.explain(queries["c"], "cat")[0].links
print(per_query(found, split.judgements, ("nDCG@10",)).values["nDCG@10"])
"""


@pytest.mark.parametrize(("statement", "most"), MOST.items())
def test_an_import_brings_few_lines(statement: str, most: int) -> None:
    command = [sys.executable, "-c", statement + COUNT]
    printed = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout
    assert int(printed) <= most


def test_the_core_works_without_the_rooms_above_it(tiny_bert: Path, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "paradigms", tmp_path / "paradigms", ignore=shutil.ignore_patterns("__pycache__"))
    for room in set.union(*ABOVE):
        folder = tmp_path / "paradigms" / room.replace(".", "/")
        if folder.is_dir():
            shutil.rmtree(folder)
        else:
            folder.with_suffix(".py").unlink()
    output = tmp_path / "output"
    command = [sys.executable, "-c", ALONE, "colbert", str(output), str(tiny_bert)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 0, run.stderr[-2000:]
    assert run.stdout == "[1. 1. 1. 1.]\n"
