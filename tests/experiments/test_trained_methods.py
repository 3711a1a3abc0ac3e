"""experiments/trained_methods.py: a run on tiny encoders."""

import json
from pathlib import Path

import pytest
from trained_methods import CONTROLS
from transformers import BertForMaskedLM

from tests.experiments import scripts
from tests.tiny import write_headed


@pytest.mark.slow
def test_every_method_stands_beside_its_control(tiny_bert: Path, tmp_path: Path) -> None:
    words = scripts.write_words(tmp_path)
    headed = write_headed(BertForMaskedLM, tmp_path / "headed")
    options = scripts.SMALL | {"backbone": tiny_bert, "splade": headed}
    output = tmp_path / "out"
    scripts.run("trained_methods", **options, output=output, collections=f"[{words}]", depth=20)
    names = scripts.published(output)
    name = next(name for name in names if not name.endswith("training"))
    assert names == {name, f"{name}-training"}
    rows = {row["method"]: row for row in json.loads((output / f"{name}.json").read_text())}
    assert {method.partition(", pool")[0] for method in rows} == {*CONTROLS}
    nested = [rows[f"nested numbers of vectors{way}"] for way in ("", ", pool = 2", ", pool = 8")]
    assert nested[0]["vectors/document"] > nested[1]["vectors/document"] > nested[2]["vectors/document"] == 1
