"""Indexes that several processes build have the bytes of a build by one, also if killed and resumed."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import PartialState
from safetensors.numpy import load_file

from paradigms import PARADIGMS, Paradigm
from paradigms.core import Tokens
from paradigms.data import load_collection, read_run, write_run
from paradigms.encoder.batches import Batch
from paradigms.encoder.settings import Side
from paradigms.find import Store, kinds
from paradigms.retrieve import Indexed
from paradigms.store import building, shards
from paradigms.store.kind import LENGTHS
from paradigms.store.pruning import TokenReduction
from paradigms.store.residuals import Residuals
from paradigms.train import script
from tests.experiments.scripts import run as run_script
from tests.forks import fork_group
from tests.near import assert_within_rounding
from tests.store.test_storage import contents, names, opened, stopping
from tests.tiny import WORDS as TEXT
from tests.tiny import write_collection

WORDS = TEXT.split()
SHARD = 8
TEXTS = [" ".join(WORDS[(7 * n + 3 * w) % len(WORDS)] for w in range(1 + 5 * n % 13)) for n in range(60)]
IDS = [f"d{n}" for n in range(60)]
BUILT = (kinds.exact(), kinds.compressed(lists=4), kinds.faiss(), kinds.lemur(width=16))
KINDS = {kind.name: kind for kind in BUILT}


@pytest.fixture(autouse=True)
def alike(monkeypatch):
    """Small shards, and as many threads as processes that are started have."""
    monkeypatch.setattr(shards, "SHARD", SHARD)
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def model(tiny_bert, tmp_path_factory):
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("model") / "colbert"
    PARADIGMS["colbert"](tiny_bert, document_length=16).save_pretrained(folder)
    return folder


def build(paradigm: Paradigm, folder: Path, kind: str = "exact", **options: Any) -> Any:
    return Store.build(KINDS[kind], paradigm, IDS, TEXTS, folder, batch_size=3, **options)


def watched(paradigm: Paradigm, before: Callable[[], object] = lambda: None) -> list[None]:
    """An item for each text that the paradigm encodes from now on; `before` is called before each batch."""
    encoded: list[None] = []
    original = paradigm.tokens
    lock = threading.Lock()  # a model encodes in one thread at a time: it is set to evaluate and back

    def tokens(texts: Sequence[str], side: Side, batch: Batch) -> Tokens:
        before()
        with lock:
            encoded.extend([None] * len(texts))
            return original(texts, side, batch)

    paradigm.tokens = tokens
    return encoded


def wait_for(what: Callable[[], object]) -> None:
    started = time.monotonic()
    while not what():
        assert time.monotonic() < started + 60
        time.sleep(0.01)


def stored_documents(folder: Path) -> int:
    """How many documents an interrupted build has stored."""
    files = (folder.with_name(f".{folder.name}.building") / building.SHARDS).glob(f"*{building.STORED}")
    return sum(len(load_file(file)[LENGTHS]) for file in files)


def collection(folder: Path) -> Path:
    """TEXTS in BEIR layout; of every tenth a query is judged."""
    folder.mkdir()
    judged = range(9, 60, 10)
    write_collection(folder, TEXTS, TEXTS, {"test": judged})
    write_run(folder / "some.run", {f"q{n}": {f"d{m}": -float(m) for m in range(n)} for n in judged})
    return folder


def encode_with(model: Path, folder: Path) -> None:
    places = {"collection": folder / "data", "output": folder / "encoded"}
    run_script("encode", checkpoint=model, precision="no", **places)


def rerank_with(model: Path, folder: Path, **options: object) -> None:
    run = folder / "data" / "some.run"
    common = {"checkpoint": model, "collection": folder / "data", "run": run, "output": folder / "reranked"}
    run_script("rerank", **(common | options))


def worker(model: str, folder: str, dies: str = "") -> None:
    """One of two processes that build an index and run the scripts; the second may be killed."""
    state, root, taken = PartialState(cpu=True), Path(folder), Path(folder, "taken")
    shards.SHARD = SHARD
    paradigm = Paradigm.from_pretrained(model)

    def before() -> None:
        if dies and state.is_main_process:
            wait_for(taken.exists)
        elif dies:  # in the middle of a shard, when others are stored
            taken.touch()
            wait_for(lambda: stored_documents(root / "index") > SHARD)
            os.kill(os.getpid(), signal.SIGKILL)

    encoded = watched(paradigm, before)
    assert build(paradigm, root / "index", launch=state).ids == IDS
    (root / f"{state.process_index}.json").write_text(json.dumps(encoded))
    PartialState.destroy_process_group = lambda self, group=None: None
    if not state.is_main_process:  # receives what the other has read
        script.load_collection = None
    encode_with(Path(model), root)
    rerank_with(Path(model), root)
    state.wait_for_everyone()


def launch(folder: Path, *arguments: str) -> list[tuple[int, str]]:
    """Start two processes of `worker`; return each one's exit status and output."""
    group = fork_group(folder / "log", 2, worker, *arguments, ACCELERATE_USE_CPU="true")
    return [process.ended() for process in group]


@pytest.mark.slow
def test_two_processes_leave_the_bytes_of_one_though_one_was_killed(model, tmp_path):
    """The first start ends with an error when one of them dies; the second goes on where that was."""
    collection(tmp_path / "data")
    (other, said), (killed, _) = launch(tmp_path, str(model), str(tmp_path), "dies")
    assert (other, killed) == (1, -signal.SIGKILL), said
    assert names(tmp_path) == [".index.building", "data", "taken"]
    before = stored_documents(tmp_path / "index")
    done = launch(tmp_path, str(model), str(tmp_path))
    assert [code for code, _ in done] == [0, 0], done
    alone = build(Paradigm.from_pretrained(model), tmp_path / "alone" / "index")
    assert contents(tmp_path / "index") == contents(alone.folder)
    encoded = [item for rank in (0, 1) for item in json.loads((tmp_path / f"{rank}.json").read_text())]
    assert len(encoded) == len(TEXTS) - before < len(TEXTS) - SHARD
    assert [said.count("Index: ") for _, said in done] == [1, 0]
    assert [said.count("Reranked run: ") for _, said in done] == [1, 0]
    (tmp_path / "alone" / "data").symlink_to(tmp_path / "data")
    encode_with(model, tmp_path / "alone")
    rerank_with(model, tmp_path / "alone")
    assert contents(tmp_path / "encoded" / "index") == contents(tmp_path / "alone" / "encoded" / "index")
    reranked = [read_run(at / "reranked" / "reranked.run") for at in (tmp_path, tmp_path / "alone")]
    assert reranked[0] == reranked[1]
    assert not list(tmp_path.glob(".*"))


class Member:
    """One process of a launch."""

    def __init__(self, rank: int, barrier: threading.Barrier) -> None:
        self.process_index, self.num_processes, self.wait_for_everyone = rank, barrier.parties, barrier.wait


def together(world: int, build: Callable[..., object]) -> list[BaseException]:
    """`build(launch=…)` in `world` threads; the first that fails ends all, as a launcher does."""
    barrier, failed = threading.Barrier(world), []

    def run(rank: int) -> None:
        torch.set_num_threads(1)  # of this thread
        try:
            build(launch=Member(rank, barrier))
        except BaseException as error:
            failed.append(error)
            barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [error for error in failed if not isinstance(error, threading.BrokenBarrierError)]


@pytest.mark.parametrize(("kind", "worlds"), [("exact", (1, 3)), *((kind, (3, 2)) for kind in KINDS)])
@pytest.mark.slow
def test_any_number_of_processes_goes_on_with_what_others_stored(model, tmp_path, kind, worlds):
    paradigm = Paradigm.from_pretrained(model)
    expected = build(paradigm, tmp_path / "whole", kind)
    encoded = watched(paradigm)
    make, folder = partial(Store.build, KINDS[kind]), tmp_path / "index"
    for world, after in zip(worlds, (30, 50), strict=True):
        errors = together(
            world,
            lambda after=after, **of: make(paradigm, IDS, stopping(TEXTS, after), folder, batch_size=3, **of),
        )
        assert errors
        assert {type(error) for error in errors} == {KeyboardInterrupt}
    done = stored_documents(folder)
    assert done >= 30 // SHARD * SHARD
    encoded.clear()
    assert not together(2, lambda **of: make(paradigm, IDS, TEXTS, folder, batch_size=3, **of))
    assert len(encoded) == len(TEXTS) - done
    assert contents(folder) == contents(expected.folder)
    assert names(tmp_path) == ["index", "whole"]


Documents = dict[str, str]
CHANGES: dict[str, Callable[[Documents], Documents]] = {  # of the documents, after an interruption
    "nothing": lambda texts: texts,
    "a text": lambda texts: texts | {"d9": "a lion, and no other word"},
    "an id": lambda texts: {id.replace("d9", "x"): text for id, text in texts.items()},
    "a new first document": lambda texts: {"x": "a lion"} | texts,
    "a deletion": lambda texts: {id: text for id, text in texts.items() if id != "d20"},
    "fewer than are stored": lambda texts: dict(list(texts.items())[:30]),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "pruning": {"keep": 0.5},
    "the batch size": {"batch_size": 5},
    "weights": {},
}


@pytest.mark.parametrize("kind", ["exact", "compressed"])
@pytest.mark.parametrize("change", [*CHANGES, *OPTIONS, "the kind"])
def test_an_interrupted_build_resumes_with_what_still_fits(model, tmp_path, kind, change):
    """The result is one made anew; only shards with other documents, settings or weights are encoded."""
    paradigm, texts, of = Paradigm.from_pretrained(model), dict(zip(IDS, TEXTS, strict=True)), KINDS[kind]
    with pytest.raises(KeyboardInterrupt):
        Store.build(of, paradigm, IDS, stopping(TEXTS, 50), tmp_path / "index", batch_size=3)
    assert 50 - SHARD < stored_documents(tmp_path / "index") <= 50

    def windows(texts: Documents) -> dict[bytes, list[str]]:
        common = {"reduction": TokenReduction(), "batch_size": 3, "precision": "no"}
        planned = shards.text_shards(paradigm, texts.keys(), texts.values(), **common)
        return {shard.source: shard.ids for shard in planned}

    count = len(list((tmp_path / ".index.building" / "shards").iterdir()))
    stored = list(windows(texts))[:count]
    texts = CHANGES.get(change, CHANGES["nothing"])(texts)
    if change == "weights":
        with torch.no_grad():
            next(paradigm.parameters()).add_(0.5)
    if change == "the kind":
        of = KINDS["faiss"]
    options = {"batch_size": 3} | OPTIONS.get(change, {})
    fresh = Store.build(of, paradigm, list(texts), list(texts.values()), tmp_path / "fresh", **options)
    encoded = watched(paradigm)
    resumed = Store.build(of, paradigm, list(texts), list(texts.values()), tmp_path / "index", **options)
    assert contents(resumed.folder) == contents(fresh.folder)
    assert names(tmp_path) == ["fresh", "index"]
    new = [len(ids) for source, ids in windows(texts).items() if change in OPTIONS or source not in stored]
    assert len(encoded) == sum(new)
    assert change in OPTIONS or sum(new) <= 10 + 3 * SHARD  # 10 documents came after the interruption


@pytest.mark.parametrize("change", ["nothing", "texts", "a deletion", "fine codes"])
@pytest.mark.parametrize("sampled", [True, False])
def test_a_codec_is_trained_again_on_documents_that_changed(model, tmp_path, monkeypatch, sampled, change):
    """It was trained on a sample or, with an unknown number of documents, on the first ones."""
    monkeypatch.setattr("paradigms.store.build.HELD", 3)
    monkeypatch.setattr("paradigms.store.build.SHARD", SHARD)
    paradigm, texts = Paradigm.from_pretrained(model), dict(zip(IDS, TEXTS, strict=True))
    kind = KINDS["compressed"]
    trained: list[None] = []
    encoded = 0 if sampled else 20
    train, encode = Residuals.train, paradigm.tokens

    def stopped(texts: Sequence[str], side: Side, batch: Batch) -> Tokens:
        nonlocal encoded
        encoded += len(texts)
        if encoded > 70:
            raise KeyboardInterrupt
        return encode(texts, side, batch)

    def make(folder: Path, texts: Documents) -> Store:
        documents = list(texts.values()) if sampled else iter(texts.values())
        return Store.build(kind, paradigm, list(texts), documents, folder, batch_size=3)

    monkeypatch.setattr(Residuals, "train", lambda *given: trained.append(train(*given)))
    with monkeypatch.context() as patch:
        patch.setattr(paradigm, "tokens", stopped)
        with pytest.raises(KeyboardInterrupt):
            make(tmp_path / "index", texts)
    assert len(trained) == 1
    if change == "fine codes":
        kind = kinds.compressed(lists=4, fine_bits=8)
    elif change == "texts":
        texts = {id: f"{text} lion" for id, text in texts.items()}
    else:
        texts = CHANGES[change](texts)
    resumed = make(tmp_path / "index", texts)
    assert len(trained) == (1 if change == "nothing" else 2)
    assert contents(resumed.folder) == contents(make(tmp_path / "fresh", texts).folder)


@pytest.mark.parametrize("kind", ["exact", "compressed"])
def test_an_interrupted_addition_resumes_and_deletes_in_its_commit(model, tmp_path, kind):
    paradigm, ids, texts = Paradigm.from_pretrained(model), [*IDS[20:], "d3"], [*TEXTS[20:], "a lion"]
    index, uninterrupted = (build(paradigm, tmp_path / name, kind) for name in ("index", "whole"))
    gone = ["d3", *IDS[20:]]
    before = contents(index.folder)
    with pytest.raises(KeyboardInterrupt):
        index.add(paradigm, ids, stopping(texts, 35), instead_of=gone, batch_size=3)
    assert contents(index.folder) == before
    with pytest.raises(ValueError, match="document 'd4' already exists"):
        index.add(paradigm, ["d4"], ["a lion"], instead_of=gone)
    with pytest.raises(KeyError, match="'x' is not in the index"):
        index.add(paradigm, ids, texts, instead_of=["x"])
    encoded = watched(paradigm)
    index = index.add(paradigm, ids, texts, instead_of=gone, state={"mine": 1}, batch_size=3)
    assert len(encoded) <= 41 - 35 + SHARD
    uninterrupted = uninterrupted.add(paradigm, ids, texts, instead_of=gone, state={"mine": 1}, batch_size=3)
    assert contents(index.folder) == contents(uninterrupted.folder)
    assert names(tmp_path) == ["index", "whole"]
    assert index.compact().ids == [*IDS[:3], *IDS[4:20], *ids]
    assert opened(index.folder).manifest["mine"] == 1


def test_a_second_writer_is_refused_whatever_its_documents(model, tmp_path):
    paradigm = Paradigm.from_pretrained(model)

    def texts() -> Iterator[str]:
        for given in (TEXTS, TEXTS[::-1]):
            with pytest.raises(BlockingIOError, match=r"\.index\.building is being written by"):
                Store.build(kinds.exact(), paradigm, IDS, given, tmp_path / "index", batch_size=3)
        yield from TEXTS

    index = Store.build(kinds.exact(), paradigm, IDS, texts(), tmp_path / "index", batch_size=3)
    assert contents(index.folder) == contents(build(paradigm, tmp_path / "alone").folder)


def test_a_failed_build_leaves_nothing_and_keeps_what_another_left(model, tmp_path):
    paradigm = Paradigm.from_pretrained(model)

    def stops() -> None:
        raise KeyboardInterrupt

    watched(paradigm, stops)
    with pytest.raises(KeyboardInterrupt):
        build(paradigm, tmp_path / "index")
    assert names(tmp_path) == []
    (tmp_path / ".index.building").mkdir()
    (tmp_path / ".index.building" / "manifest.json").write_text("{")  # of one that stopped at its beginning
    again = Paradigm.from_pretrained(model)
    assert contents(build(again, tmp_path / "index").folder) == contents(build(again, tmp_path / "b").folder)


def test_what_was_encoded_is_compared_and_reranked(model, tmp_path, capsys, monkeypatch):
    data = collection(tmp_path / "data")
    encode_with(model, tmp_path)
    before = contents(tmp_path / "encoded")
    encode_with(model, tmp_path)
    assert "Encoded before: 60 documents" in capsys.readouterr().out
    assert contents(tmp_path / "encoded") == before
    rerank_with(model, tmp_path)
    fresh = read_run(tmp_path / "reranked" / "reranked.run")
    common = {"collection": data, "output": tmp_path / "compared", "steps": 0, "depth": 5, "tracker": "none"}
    system = {"checkpoint": str(model), "index": str(tmp_path / "encoded")}
    common |= {"systems": json.dumps({"colbert": system}), "precision": "no"}
    with monkeypatch.context() as patch:
        patch.setattr("paradigms.store.shards.ahead", None)  # nothing is encoded again
        rerank_with(model, tmp_path, index=tmp_path / "encoded")
        again = read_run(tmp_path / "reranked" / "reranked.run")
        assert_within_rounding(again, fresh, torch.float16, 1, scale=1)  # of cosines
    run_script("compare", **common)
    assert not (tmp_path / "compared" / "colbert" / "index").exists()
    assert json.loads((tmp_path / "compared" / "colbert" / "costs.json").read_text())["encode s"] is None
    paradigm, queries = Paradigm.from_pretrained(model), load_collection(data).split("test").queries
    expected = Indexed.open(tmp_path / "encoded" / "index", paradigm).search(queries, 5)
    write_run(tmp_path / "found.run", expected, tag="colbert")
    compared = tmp_path / "compared" / "runs" / "colbert.retrieve.run"
    assert compared.read_bytes() == (tmp_path / "found.run").read_bytes()


def test_checksums_of_parts_add_up_to_the_checksum_of_the_whole(model: Path) -> None:
    paradigm = Paradigm.from_pretrained(model)

    def checksum(rows: Sequence[int], texts: Sequence[str] = TEXTS) -> int:
        ids = [IDS[row] for row in rows]
        store = Store.build(kinds.compressed(lists=2), paradigm, ids, [texts[row] for row in rows])
        return store.checksum()

    total = checksum(range(60))
    assert (checksum(range(0, 60, 2)) + checksum(range(59, 0, -2))) % (1 << 64) == total
    assert checksum(range(59)) != total
    assert checksum(range(60), [*TEXTS[:-1], TEXTS[0]]) != total
