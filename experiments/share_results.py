"""Publish the per-query values from a results folder of compare.py as a dataset, on disk or on the hub.

Writes per_query.parquet (columns collection, stage, system, query, measure and value) and README.md, the
dataset card, to the output folder. The dataset contains query ids but no texts, because the texts are covered
by their collection's licence. --push uploads the folder to the hub.
"""

from pathlib import Path

from studies.settings import ResultsFolder, launch, refusing

from paradigms.io.command_line import flags


@flags()
class Settings(ResultsFolder):
    """Settings for the results, and the destination of the dataset."""

    output: str = ""
    """folder of the dataset; empty: dataset in the results folder"""
    push: str = ""
    """OWNER/NAME of a dataset on the hub, which is created, private, if it is missing"""
    license: str = ""
    """the dataset's license, as an identifier from the hub; empty: left to the publisher"""

    def __post_init__(self) -> None:
        self.output = self.output or str(Path(self.results, "dataset"))


launch(__name__, Settings, __doc__, device=False)  # before the slow imports

from io import BytesIO

import pyarrow
import pyarrow.csv
import pyarrow.parquet

from paradigms.io.checks import json_or_empty
from paradigms.io.command_line import folder_name
from paradigms.io.files import lock_until_exit, replace_file, write_text
from paradigms.io.terminal import Terminal
from paradigms.saving.hub import LICENSE, datasets_of

FILE = "per_query.csv"
COLUMNS = ("stage", "system", "query", "measure")
PARQUET = "per_query.parquet"


def main(settings: Settings) -> None:
    if not Path(settings.results, FILE).is_file():
        raise SystemExit(f"results: {settings.results} without {FILE} of compare.py")
    with refusing():
        config = json_or_empty(Path(settings.results, "config.json"))
        rows = table(Path(settings.results, FILE), folder_name(str(config.get("collection", ""))))
        folder = lock_until_exit(settings.output)
        temporary = folder / f".{PARQUET}.partial"
        pyarrow.parquet.write_table(rows, temporary)
        replace_file(temporary, folder / PARQUET)
        write_text(folder / "README.md", card(settings, config, rows))
    console = Terminal()
    console.print(f"{rows.num_rows:,} values: {folder / PARQUET}", soft_wrap=True)
    if settings.push:
        from huggingface_hub import HfApi

        api = HfApi()
        api.create_repo(settings.push, private=True, exist_ok=True, repo_type="dataset")
        files = [PARQUET, "README.md"]
        api.upload_folder(
            repo_id=settings.push, folder_path=str(folder), repo_type="dataset", allow_patterns=files
        )
        console.print(f"On the hub as {settings.push}")


def table(file: Path, collection: str) -> pyarrow.Table:
    """Read per_query.csv and add a column with the collection.

    Raises ValueError, naming the file, if it is damaged.
    """
    types = dict.fromkeys(COLUMNS, pyarrow.string()) | {"value": pyarrow.float64()}
    convert = pyarrow.csv.ConvertOptions(column_types=types, include_columns=list(types))
    parse = pyarrow.csv.ParseOptions(newlines_in_values=True)
    try:
        rows = pyarrow.csv.read_csv(BytesIO(file.read_bytes()), parse_options=parse, convert_options=convert)
    except (pyarrow.ArrowInvalid, pyarrow.ArrowKeyError) as error:
        raise ValueError(f"{file}: {error}") from error
    return rows.add_column(0, "collection", [pyarrow.array([collection] * len(rows), pyarrow.string())])


def card(settings: Settings, config: dict[str, object], rows: pyarrow.Table) -> str:
    results_table = Path(settings.results, "table.md")
    systems = ", ".join(sorted({str(name) for name in rows["system"].to_pylist()}))
    lines = [
        "---",
        f"license: {settings.license}" if settings.license else LICENSE,
        *(f"source_datasets:\n- {name}" for name in datasets_of(config)),
        "tags:",
        "- retrieval",
        "- evaluation",
        "configs:",
        "- config_name: default",
        f"  data_files: {PARQUET}",
        "---",
        "",
        f"# A comparison on {folder_name(str(config.get('collection', '')))}",
        "",
        "Every measure of every query and system, by retrieval-paradigms: the columns are collection, stage,",
        f"system, query (its id), measure and value. Systems: {systems}.",
        "",
        results_table.read_text(encoding="utf-8") if results_table.is_file() else "",
    ]
    return "\n".join(lines)
