"""Fixtures shared by the tests: tiny checkpoints, written once a session."""

import gc
import os
import re
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import hypothesis
import jaxtyping
import psutil
import pytest
import torch
from accelerate.state import AcceleratorState

from paradigms.encoder.sources import PACKAGED, Packaged
from tests import browser
from tests.experiments.scripts import write_words
from tests.near import compute_throughout_in_float64
from tests.tiny import DECODERS, FAMILIES, SEQ2SEQ, write_checkpoint, write_seq2seq

# Tests compute on CPUs, also where GPUs are; `make gpu` names one.
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
# The same examples in every run, so a failure is the change's own; no limit in seconds.
hypothesis.settings.register_profile("fixed", derandomize=True, deadline=None, max_examples=50)
hypothesis.settings.load_profile("fixed")
# Rooms by the seconds that their files take: a worker that begins a long one last leaves the others idle.
SLOW = ("experiments", "attack", "train", "encoder", "generative", "engines", "find", "store")
# Rooms of whole jobs, which take half the time without checks of shapes: the other rooms make these.
JOBS = ("cli", "data", "experiments", "serve")


README = Path(__file__).with_name("README.md")
PROCESS = psutil.Process()
CPU = pytest.StashKey[float]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seconds", action="store_true", help="write CPU seconds by room into tests/README.md")


def cpu_seconds() -> float:
    """CPU time of this process, its children and the fork server's."""
    times = [process.cpu_times() for process in (PROCESS, *PROCESS.children())]
    return sum(t.user + t.system + t.children_user + t.children_system for t in times)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note at the end of a test the CPU time since the end of the one before, its fixtures' included."""
    report = yield
    if call.when == "teardown" and item.config.getoption("seconds"):
        now = cpu_seconds()
        report.cpu = now - item.session.stash[CPU]
        item.session.stash[CPU] = now
    return report


def write_seconds(reports: list[pytest.TestReport]) -> None:
    """Fill the rows of tests/README.md, each of which begins with a room, with tests and CPU seconds."""
    rooms: dict[str, list[pytest.TestReport]] = {}
    for report in reports:
        folders = report.nodeid.split("::")[0].split("/")[1:-1]
        rooms.setdefault(folders[0] if folders else "root", []).append(report)
    text = README.read_text(encoding="utf-8")
    for room, ended in [*rooms.items(), ("all", reports)]:
        quick = [report for report in ended if "slow" not in report.keywords]
        cells = [len(quick), *(f"{sum(r.cpu for r in part):.0f}" for part in (quick, ended))]
        row = re.compile(rf"^(\| `?{room}`? \| [^|]*\|).*$", re.MULTILINE)
        text = row.sub(lambda found, cells=cells: f"{found[1]} {' | '.join(map(str, cells))} |", text)
    README.write_text(text, encoding="utf-8")


def pytest_collection_modifyitems(session: pytest.Session, items: list[pytest.Item]) -> None:
    session.stash[CPU] = cpu_seconds()
    order = {room: n for n, room in enumerate(SLOW)}
    items.sort(key=lambda item: order.get(item.path.parent.name, len(SLOW)))


def pytest_unconfigure() -> None:
    gc.unfreeze()  # or libraries tell at exit that they leak


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A line for each reason to skip; with --seconds, the table of tests/README.md."""
    if terminalreporter.config.getoption("seconds"):
        every = [report for reports in terminalreporter.stats.values() for report in reports]
        write_seconds([report for report in every if getattr(report, "when", "") == "teardown"])
    skipped = Counter(report.longrepr[-1] for report in terminalreporter.stats.get("skipped", []))
    for reason, count in sorted(skipped.items()):
        terminalreporter.write_line(f"{count} skipped: {reason.removeprefix('Skipped: ')}")


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory):
    """family -> folder of a tiny checkpoint, for every family of `tiny.FAMILIES` and `tiny.DECODERS`."""
    root = tmp_path_factory.mktemp("checkpoints")
    return {family: write_checkpoint(family, root / family) for family in {*FAMILIES, *DECODERS}}


@pytest.fixture(scope="session")
def seq2seq(tmp_path_factory):
    """family -> folder of a tiny encoder-decoder, for every family of `tiny.SEQ2SEQ`."""
    root = tmp_path_factory.mktemp("seq2seq")
    return {family: write_seq2seq(family, root / family) for family in SEQ2SEQ}


@pytest.fixture(scope="session")
def words(tmp_path_factory):
    """Folder of a collection of forty documents; queries q0 to q29 train, q30 to q39 test."""
    return write_words(tmp_path_factory.mktemp("words", numbered=False))


@pytest.fixture(scope="session")
def tiny_bert(checkpoints):
    """Folder of a tiny BERT: the backbone to take where the family does not matter."""
    return checkpoints["bert"]


@pytest.fixture
def tiny_offline(tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name "offline" stands for a tiny BERT."""
    package = tmp_path / "tiny_offline"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "model").symlink_to(tiny_bert)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(PACKAGED, "offline", Packaged(package.name, package.name))


@pytest.fixture(autouse=True, scope="module")
def shapes(request: pytest.FixtureRequest) -> None:
    """Shapes are checked but in rooms of whole jobs."""
    jaxtyping.config.update("jaxtyping_disable", request.path.parent.name in JOBS)


@pytest.fixture(autouse=True, scope="module")
def little_garbage() -> None:
    """Garbage collections, of which accelerate makes hundreds, pass over what was there before the module."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def threads():
    """torch has as many threads after a test as before it."""
    before = torch.get_num_threads()
    yield
    if torch.get_num_threads() != before:
        torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="session")
def arithmetic():
    """Models compute in the type of their weights."""
    with pytest.MonkeyPatch.context() as patch:
        compute_throughout_in_float64(patch)
        patch.setattr("paradigms.encoder.precision._native_on_cpu", lambda: False)  # as tests/forks.py does
        yield


@pytest.fixture(autouse=True, scope="session")
def quick_figures():
    """Figures are drawn once, where they stand: to find the layout matplotlib would draw each twice."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("matplotlib.layout_engine.ConstrainedLayoutEngine.execute", lambda *_: None)
        yield


@pytest.fixture(autouse=True, scope="module")
def own_accelerate_state():
    """accelerate keeps its precision in the process and its environment: no module inherits another's."""
    before = {name: value for name, value in os.environ.items() if name.startswith("ACCELERATE_")}
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    for name in [name for name in os.environ if name.startswith("ACCELERATE_")]:
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture(scope="module")
def tab():
    """A page in a real browser, for tests that need one (`browser.needed`)."""
    page = browser.Page()
    yield page
    page.close()
