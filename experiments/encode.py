"""Encode a collection with a saved paradigm into an index; a second run resumes an interrupted one.

To divide the documents among several processes or GPUs:

    accelerate launch --config_file experiments/configs/gpus.yaml experiments/encode.py --checkpoint FOLDER

If all processes compute identically, the index is byte-identical for any number of processes and
interruptions. The output folder must be on a disk that all processes share. It will contain index/,
config.json and environment.json. compare.py takes this folder as the `index` of a system, and rerank.py with
--index.

--parts 4 writes four indexes, each with a quarter of the documents, which `retrieve.Merged` searches as one.
With at least as many parts as processes, each process reads, hashes, encodes and writes whole parts alone.
Machines without a shared disk each encode one part, with --part 0, 1, …; then copy or link the folders
index-N-of-4 into one folder, with one of the config.json files.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Any

from studies.settings import (
    Checkpoint,
    Computing,
    IndexKind,
    OneCollection,
    Output,
    PassageLength,
    launch,
    refusing,
)

from paradigms.io.command_line import flags, folder_name


@flags()
class Settings(OneCollection, Checkpoint, PassageLength, IndexKind, Output, Computing):
    """Settings for the collection, the model and the index."""

    options: dict[str, Any] = field(default_factory=dict)
    """settings of the index, such as '{"bits": 2}'"""
    parts: int = 0
    """number of indexes among which to divide the documents (`retrieve.Merged`); 0: one index"""
    part: int = -1
    """encode only this part, from 0; -1: all parts"""

    def __post_init__(self) -> None:
        if self.index not in INDEXES:
            raise SystemExit(f"index must be one of {', '.join(INDEXES)}, got {self.index!r}")
        if self.part >= max(1, self.parts):
            raise SystemExit(f"part must be below parts, {self.parts}, got {self.part}")


launch(__name__, Settings, __doc__, processes=True)  # before the slow imports

from accelerate import Accelerator
from rich.console import Console

from paradigms import Paradigm, load
from paradigms.cli.indexed import is_indexed, open_folder, same_texts
from paradigms.data import Collection, Corpus
from paradigms.data.pieces import Pieces
from paradigms.engines import EngineRetriever
from paradigms.find import INDEXES, Store
from paradigms.identity import identity
from paradigms.io.files import write_json
from paradigms.loading import as_paradigm
from paradigms.retrieve import Indexed, Merged
from paradigms.train.parallel import by_main
from paradigms.train.script import begin, environment, keep_settings, open_collection


def main(settings: Settings) -> None:
    with refusing("options: ", options=True):
        INDEXES[settings.index](**settings.options)
    with refusing():
        paradigm = as_paradigm(load(settings.checkpoint), settings.checkpoint)
    named = f"results/encode-{paradigm.name}-{folder_name(settings.collection)}"
    settings = replace(settings, output=settings.output or named)
    folder = Path(settings.output)
    (accelerator, console) = begin(settings)
    collection = open_collection(settings.collection, settings.documents or None, console)
    paradigm = paradigm.to(accelerator.device)

    def keep() -> None:
        bound_settings = asdict(settings) | {"precision": accelerator.mixed_precision}
        bound_settings |= {"fingerprint": collection.fingerprint, "identity": identity(paradigm.encoder)}
        keep_settings(bound_settings, folder, free={"output", "checkpoint", "part"})

    by_main(keep, accelerator)
    with refusing():
        encode(paradigm, collection, settings, accelerator, console)
    accelerator.end_training()


def encode(
    paradigm: Paradigm, collection: Collection, settings: Settings, launch: Accelerator, console: Console
) -> None:
    """Build the collection's index, or its parts, in the output folder; resume a partial index."""
    folder = Path(settings.output)
    places = index_places(folder, settings.parts)
    parts = [n for n in range(len(places)) if settings.part in (-1, n)]
    if all(places[n].is_dir() for n in parts):
        count, _, checksum = sizes_of([places[n] for n in parts], paradigm)
        console.print(f"Encoded before: {count:,} documents in {folder}, checksum {checksum:016x}")
        return
    corpus = Pieces(collection.corpus, settings.passages).corpus
    if len(corpus) < len(places):
        raise ValueError(f"{len(corpus)} documents do not fill {len(places)} parts")
    cut = paradigm.count_cut(corpus) if launch.is_main_process else None
    if cut and cut.cut:
        console.print(cut.summary + ("" if settings.passages else ". --passages splits them"))
    began = time.perf_counter()
    kind = INDEXES[settings.index](**settings.options)
    missing = by_main(lambda: [n for n in parts if not places[n].is_dir()], launch)
    apart = 1 < launch.num_processes <= len(missing)  # each process encodes and writes whole parts
    for n in missing[launch.process_index :: launch.num_processes] if apart else missing:
        rows = range(len(corpus) * n // len(places), len(corpus) * (n + 1) // len(places))
        ids = [corpus.ids[row] for row in rows]
        texts = map(corpus.__getitem__, rows)
        options: dict[str, Any] = {"precision": launch.mixed_precision}
        options |= {"progress": launch.is_main_process, "launch": None if apart else launch}
        Store.build(kind, paradigm, ids, texts, places[n], **options)
        tuned = Indexed.open(places[n], paradigm, corpus.only(ids)).tuned
        if apart:
            tuned()
        else:
            by_main(tuned, launch)
    launch.wait_for_everyone()
    if launch.is_main_process:
        seconds = time.perf_counter() - began
        write_json(folder / "environment.json", environment(launch) | {"seconds": seconds})
        count, size, checksum = sizes_of([places[n] for n in parts], paradigm)
        console.print(
            f"{count:,} documents in {seconds:.0f} s with {launch.num_processes} process(es), "
            f"{size / max(1, count):,.0f} bytes each, checksum {checksum:016x}. Index: "
            f"{', '.join(str(places[n]) for n in parts)}"
        )


def index_places(folder: Path, parts: int) -> list[Path]:
    """Return the folders of an index's parts, or of the whole index if `parts` is 0."""
    return [folder / f"index-{n}-of-{parts}" for n in range(parts)] if parts else [folder / "index"]


def sizes_of(folders: Sequence[Path], paradigm: Paradigm) -> tuple[int, int, int]:
    """Return documents, bytes and checksum of indexes. Raises ValueError if another model built one."""
    indexes = [Indexed.open(folder, paradigm) for folder in folders]
    documents = sum(len(one.index) for one in indexes)
    checksum = sum(one.index.store.checksum() for one in indexes) % (1 << 64)
    return documents, sum(one.size_in_bytes() for one in indexes), checksum


def open_encoded(
    folder: str | Path,
    paradigm: Paradigm,
    collection: Collection,
    passages: int = 0,
    corpus: Corpus | None = None,
) -> Indexed | Merged | EngineRetriever:
    """Open an index that this script made in a folder, including all of its parts, or the command `index`.

    corpus: the documents or passages, for explanations.

    Raises ValueError if the index was built from other weights, documents or passage lengths, and
    FileNotFoundError if there is no finished index.
    """
    if is_indexed(folder):
        opened = open_folder(folder, paradigm)
        if not same_texts(opened.pieces.corpus, corpus or Pieces(collection.corpus, passages).corpus):
            raise ValueError(f"{folder} holds other documents, or passages of other words: index it again")
        return opened.index
    file = Path(folder) / "config.json"
    if not file.is_file():
        raise FileNotFoundError(f"{file} is missing: {folder} is not what experiments/encode.py writes")
    stored_settings = json.loads(file.read_text(encoding="utf-8"))
    places = index_places(Path(folder), stored_settings.get("parts", 0))
    if (words := stored_settings.get("passages", 0)) != passages:
        other = f"{words} words, not {passages} (0: whole documents): give both the same --passages"
        raise ValueError(f"{folder} holds passages of {other}")
    if stored_settings["fingerprint"] != collection.fingerprint:
        raise ValueError(f"{folder} holds another version of {collection.name}: encode the collection again")
    if len(places) == 1:
        return Indexed.open(places[0], paradigm, corpus)
    return Merged.open(places, paradigm, corpus)
