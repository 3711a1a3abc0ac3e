"""experiments/trained_methods.py: a run on tiny encoders."""

import json
from pathlib import Path

import pytest
from trained_methods import CONTROLS

from tests.experiments import scripts


@pytest.mark.slow
def test_every_method_stands_beside_its_control(tiny_bert: Path, tmp_path: Path) -> None:
    words = scripts.write_words(tmp_path)
    options = scripts.SMALL | {"backbone": tiny_bert}
    output = tmp_path / "out"
    scripts.run("trained_methods", **options, output=output, collections=f"[{words}]", depth=20)
    names = scripts.published(output)
    name = next(name for name in names if not name.endswith("training"))
    assert names == {name, f"{name}-training"}
    rows = {row["method"]: row for row in json.loads((output / f"{name}.json").read_text())}
    assert {method.split(", pool")[0] for method in rows} == {*CONTROLS}
    vectors = [rows[f"nested numbers of vectors{way}"]["bytes (vectors)"] for way in ("", ", pool = 8")]
    assert not vectors[0].endswith("(1.0)")
    assert vectors[1].endswith("(1.0)")
