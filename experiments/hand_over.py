"""Load indexes into Qdrant, LanceDB, PostgreSQL or ClickHouse, in parallel; an interrupted run resumes.

The vectors in folders that experiments/encode.py or `python -m paradigms index` wrote are loaded into one
table or collection; documents are not encoded again. To divide the documents among several processes:

    ACCELERATE_USE_CPU=true accelerate launch --config_file experiments/configs/cpu_2.yaml \
        experiments/hand_over.py --indexes …

The output folder records progress: a second run hands over the remaining documents. Passwords and keys come
from the engine's environment variables, such as PGPASSWORD.
"""

from dataclasses import asdict, field
from pathlib import Path
from typing import Any, Literal

from studies.settings import Checkpoint, Computing, Output, launch, refusing

from paradigms.io.command_line import flags


@flags(precision="no")
class Settings(Output, Checkpoint, Computing):
    """Settings for the indexes, their model and the engine."""

    indexes: list[str]
    """folders of indexes that have different documents and the same model"""
    engine: Literal["qdrant", "qdrant_edge", "lancedb", "postgres", "clickhouse"]
    """qdrant: a server or cluster; qdrant_edge: a folder that one process opens"""
    place: str
    """address or folder of the engine: http://host:6333, s3://bucket/path, postgresql://user@host/database,
    http://user:password@host:8123"""
    options: dict[str, Any] = field(default_factory=dict)
    """more arguments of the engine's class; for a server also its collection or schema"""
    approximate: bool = False
    """let the engine index its vectors at the end"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.approximate and self.engine == "qdrant":
            raise SystemExit("a Qdrant server indexes by itself: leave out approximate")


launch(__name__, Settings, __doc__, processes=True)  # before the slow imports

from accelerate import Accelerator

from paradigms import Paradigm, load
from paradigms.data.texts import INDEX
from paradigms.engines import COLLECTIONS, Engine, hand_over, open_engine
from paradigms.find import Store, open_index
from paradigms.identity import identity
from paradigms.io.checks import json_or_empty
from paradigms.io.files import write_json
from paradigms.io.progress import progress_bar
from paradigms.loading import as_paradigm
from paradigms.store.columns import MANIFEST
from paradigms.train.parallel import by_main
from paradigms.train.script import begin, checksum, keep_settings

PIECE = 1024  # documents that a process hands over at once; after an interruption, one piece is repeated


def main(settings: Settings) -> None:
    accelerator, console = begin(settings)
    folders = settings.engine == "qdrant_edge" or (
        settings.engine == "clickhouse" and "://" not in settings.place
    )
    if folders and accelerator.num_processes > 1:
        raise SystemExit(f"only one process may open a folder of {settings.engine}: launch one process")
    name = COLLECTIONS.get(settings.engine)
    if name and name not in settings.options:
        example = f'{{"{name}": "notes"}}'
        raise SystemExit(f"options: name the {name}, such as {example}: a server may hold several")
    with refusing():
        paradigm = as_paradigm(load(settings.checkpoint), settings.checkpoint)
        stores = [open_index(folder_of(folder), verify=False).store for folder in settings.indexes]
        folder = Path(settings.output)

        def keep() -> None:
            states = [checksum(Path(str(store), MANIFEST)) for store in stores]
            bound_settings = asdict(settings) | {"content of indexes": states, "piece": PIECE}
            keep_settings(bound_settings, folder, free={"output", "checkpoint", "approximate", "precision"})
            engine = start_engine(settings, paradigm)  # creates the table once
            engine.claim(identity(paradigm.encoder))
            engine.close()

        by_main(keep, accelerator)
        count = load_pieces(stores, paradigm, settings, accelerator)
        accelerator.wait_for_everyone()
        if settings.approximate:
            by_main(lambda: index_all(start_engine(settings, paradigm)), accelerator)
    console.print(f"{count:,} documents with vectors in {settings.place}")
    accelerator.end_training()


def index_all(engine: Any) -> None:
    engine.approximate()
    engine.close()


def folder_of(folder: str) -> Path:
    """Return the folder of the index: `folder`, or the subfolder that `python -m paradigms index` made."""
    inner = Path(folder) / INDEX
    return inner if inner.is_dir() else Path(folder)


def load_pieces(stores: list[Store], paradigm: Paradigm, settings: Settings, launch: Accelerator) -> int:
    """Hand over the remaining documents, split among processes; return how many documents have vectors."""
    folder = Path(settings.output)
    done = {tuple(piece) for file in folder.glob("done-*.json") for piece in json_or_empty(file)["pieces"]}
    mine = folder / f"done-{launch.process_index}.json"
    ended = [tuple(piece) for piece in json_or_empty(mine).get("pieces", [])]
    pieces = [(n, row) for n, store in enumerate(stores) for row in range(0, len(store.ids), PIECE)]
    left = [piece for piece in pieces[launch.process_index :: launch.num_processes] if piece not in done]
    engine = start_engine(settings, paradigm)
    with progress_bar(launch.is_main_process) as bar:
        for n, first in bar.track(left, description="hand over"):
            rows = range(first, min(first + PIECE, len(stores[n].ids)))
            hand_over(stores[n], paradigm, engine, rows=rows)
            ended.append((n, first))
            write_json(mine, {"pieces": ended})
    engine.close()
    return sum(len(store.with_tokens()) for store in stores)


def start_engine(settings: Settings, paradigm: Paradigm) -> Engine:
    return open_engine(f"{settings.engine}:{settings.place}", paradigm, **settings.options)
