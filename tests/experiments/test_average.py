"""Means over collections, each with the same weight: CQADupStack's parts."""

from pathlib import Path

import average
import pytest

HEADER = "system,stage,query,measure,value\n"


def part(folder: Path, values: dict[str, list[float]]) -> str:
    folder.mkdir()
    rows = [
        f"{system},retrieve,q{n},nDCG@10,{value}\n"
        for system, of in values.items()
        for n, value in enumerate(of)
    ]
    rows += [row.replace("retrieve", "rerank") for row in rows]
    (folder / "per_query.csv").write_text(HEADER + "".join(rows))
    return str(folder)


def test_parts_weigh_the_same_whatever_their_queries(tmp_path: Path):
    folders = [
        part(tmp_path / "android", {"bm25": [1.0, 0.0, 0.5, 0.5], "dpr": [1.0] * 4}),
        part(tmp_path / "english", {"bm25": [0.0], "dpr": [0.0]}),
    ]
    for given in (folders, [str(tmp_path)]):
        average.main(average.Settings(folders=given, output=str(tmp_path / "out")))
        rows = (tmp_path / "out" / "table.csv").read_text().splitlines()
        means = {row.split(",")[1]: float(row.split(",")[3]) for row in rows[1:]}
        assert means == {"bm25": 0.25, "dpr": 0.5}
        assert len(rows) == 5  # a header, two systems in two stages


def test_what_a_part_lacks_is_named(tmp_path: Path):
    folders = [part(tmp_path / "a", {"bm25": [1.0], "dpr": [1.0]}), part(tmp_path / "b", {"bm25": [1.0]})]
    with pytest.raises(SystemExit, match=r"/b has other measures of dpr, retrieve, than .*/a"):
        average.main(average.Settings(folders=folders))
    with pytest.raises(SystemExit, match=r"folders: nowhere without per_query.csv"):
        average.Settings(folders=["nowhere", folders[0]])
