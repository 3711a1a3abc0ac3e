"""An error in work that the first of two processes does alone ends both with the same message."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import encode
import pytest
import train
from accelerate import Accelerator
from rich.console import Console

from paradigms.baselines.bm25 import BM25
from paradigms.data import Collection, Problems, Run
from paradigms.find import Store, kinds
from paradigms.store import shards
from paradigms.train import negatives
from paradigms.train.fit import DevMeasure, dev_measure
from paradigms.train.parallel import by_main
from tests import launch
from tests.near import assert_same_run
from tests.train.test_mining import CORPUS, SPLIT, dense


def full_disk(*arguments: Any, **named: Any) -> Any:
    raise OSError("no space left")


def one_acts(accelerator: Accelerator, backbone: Path, folder: Path) -> None:
    """Both processes get the result or the error, also a SystemExit."""
    assert by_main(lambda: accelerator.process_index + 7, accelerator) == 7
    for kind in (OSError, ValueError, FloatingPointError, KeyError, SystemExit):

        def fail(kind: type[BaseException] = kind) -> None:
            raise kind("other settings")

        with pytest.raises(kind, match="other settings"):
            by_main(fail, accelerator)

    def unheard_of() -> None:
        raise LookupError("lost")

    with pytest.raises(LookupError if accelerator.is_main_process else RuntimeError, match="lost"):
        by_main(unheard_of, accelerator)


def shares_the_teachers_work(accelerator: Accelerator, backbone: Path, folder: Path) -> None:
    reranked: list[str] = []

    def rerank(queries: dict[str, str], run: Run, *, progress: bool) -> Run:
        reranked.extend(run)
        return {q: {d: float(len(q) + len(d)) for d in documents} for q, documents in run.items()}

    scores = negatives.scored_once(
        folder / "shared.run", lambda: SimpleNamespace(rerank=rerank), {}, accelerator, pairs=2
    )
    pairs = {f"q{n}": ["d1", "d12"] for n in range(5)}
    assert scores(pairs) == {q: {"d12": 5.0, "d1": 4.0} for q in pairs}
    assert reranked == [f"q{n}" for n in range(accelerator.process_index, 5, 2)]  # its own share
    assert scores(pairs) == scores({})
    assert len(reranked) <= 3


def shares_the_mining(accelerator: Accelerator, backbone: Path, folder: Path) -> None:
    """Two processes encode and search their shares, with the run of one."""
    model = dense(backbone)
    encoded: list[str] = []
    tokenize = model.encoder.tokenize
    model.encoder.tokenize = lambda texts, side: encoded.extend(texts) or tokenize(texts, side)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "SHARD", 8)
        mined = negatives.mined_run(lambda: model, CORPUS, SPLIT, folder / "mining", accelerator)
    assert_same_run(mined, negatives.mine(dense(backbone), CORPUS, SPLIT, 100))
    documents = set(encoded).intersection(CORPUS)
    assert 0 < len(documents) < len(CORPUS)
    assert not (folder / "mining" / "mined").exists()


def writes_parts_alone(accelerator: Accelerator, backbone: Path, folder: Path) -> None:
    """Each of two processes encodes two of four parts, with the bytes of one process."""
    model = dense(backbone)
    built: list[str] = []
    build = Store.build

    def one(kind: Any, paradigm: Any, ids: list[str], texts: Any, place: Path, **options: Any) -> Store:
        assert options["launch"] is None
        built.append(place.name)
        return build(kind, paradigm, ids, texts, place, **options)

    arguments = encode.Settings(checkpoint="none", output=str(folder / "parts"), parts=4)
    collection = Collection("tiny", CORPUS, {"train": SPLIT}, Problems(), "1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "build", one)
        encode.encode(model, collection, arguments, accelerator, Console(quiet=True))
    assert built == [f"index-{n}-of-4" for n in range(accelerator.process_index, 4, 2)]
    for n, place in enumerate(encode.index_places(folder / "parts", 4)):
        rows = slice(30 * n // 4, 30 * (n + 1) // 4)
        alone = folder / f"alone-{accelerator.process_index}-{n}"
        build(kinds.exact(), model, CORPUS.ids[rows], CORPUS[rows], alone, precision="no")
        vectors = [next(where.glob("vectors*.bin")).read_bytes() for where in (place, alone)]
        assert vectors[0] == vectors[1]


def opens_sources(accelerator: Accelerator, backbone: Path, folder: Path) -> None:
    """One process makes the files of pairs, and both open them."""
    rows = folder / "rows.jsonl"
    if accelerator.is_main_process:
        rows.write_text('{"query": "q", "positive": "a"}\n{"query": "r", "positive": "b"}\n')
    accelerator.wait_for_everyone()
    arguments: Any = SimpleNamespace(sources=[{"pairs": str(rows), "share": 2}], mixing=1.0, seed=0)
    with pytest.MonkeyPatch.context() as patch:
        if not accelerator.is_main_process:
            patch.setattr(train, "stored_rows", full_disk)
        (part,) = train.parts_of(arguments, dense(backbone), folder / "sources", accelerator)
    assert [example.query for example in part.objective.examples] == ["q", "r"]
    assert list(part.objective.corpus) == ["a", "b"]
    assert part.share == 2


def shares_bm25(accelerator: Accelerator, backbone: Path, folder: Path) -> None:
    """One process builds the index, when something is searched, and each searches for half of the queries."""
    built: list[BM25] = []
    build = BM25.__init__

    def noted(self: BM25, *arguments: Any, **named: Any) -> None:
        built.append(self)
        build(self, *arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BM25, "__init__", noted)
        with negatives.SharedBM25(CORPUS, folder / "bm25", accelerator) as shared:
            assert shared.search({}, 5) == {}
            assert not built
            assert not shared.folder.exists()
            results = shared.search(SPLIT.queries, 5)
            assert shared.search(SPLIT.queries, 5) == results
    assert len(built) == accelerator.is_main_process
    assert results == BM25(CORPUS).search(SPLIT.queries, 5)
    accelerator.wait_for_everyone()
    assert not shared.folder.exists()


def shares_dev_queries(accelerator: Accelerator, backbone: Path, folder: Path) -> None:
    """Each process encodes half of the dev queries, and both have the values of one process."""
    model = dense(backbone)
    encoded: list[str] = []
    tokenize = model.encoder.tokenize
    model.encoder.tokenize = lambda texts, side: encoded.extend(texts) or tokenize(texts, side)
    measure = dev_measure(CORPUS, SPLIT, {}, 4, accelerator)
    values = measure(model)
    mine = [query for query in list(measure.pool)[accelerator.process_index :: 2] if measure.pool[query]]
    assert [query for query, text in measure.queries.items() if text in encoded] == mine
    assert values.tolist() == DevMeasure(CORPUS, SPLIT, {}, 4, "no")(dense(backbone)).tolist()


CHECKS = (
    one_acts,
    shares_the_teachers_work,
    shares_the_mining,
    writes_parts_alone,
    opens_sources,
    shares_bm25,
    shares_dev_queries,
)


@pytest.fixture(scope="module")
def outcomes(tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which two processes noted how the checks ended."""
    folder = tmp_path_factory.mktemp("main")
    launch.forked(CHECKS, tiny_bert, folder)
    return folder


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_two_processes(outcomes: Path, check: Callable[..., None]) -> None:
    launch.passed(check, outcomes)
