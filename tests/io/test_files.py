"""Outputs appear whole or not at all: interrupted, killed and crowded writers, full disks."""

import errno
import gzip
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from paradigms.io import files
from paradigms.io.files import (
    atomic_folder,
    atomic_text,
    contents,
    lock_until_exit,
    locked,
    settle,
    sweep,
    write_text,
)


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


CONTENT = contents("content", marks=["content"])


def fill(path: Path, content: str) -> None:
    with atomic_folder(path, CONTENT) as folder:
        (folder / "content").write_text(content)


def test_text_is_written_in_full_with_its_parents_and_the_usual_mode(tmp_path):
    """Gzipped, it has the same bytes every time."""
    write_text(tmp_path / "a" / "b.txt", "é\n")
    assert (tmp_path / "a" / "b.txt").read_bytes() == "é\n".encode()
    (tmp_path / "plain").touch()
    modes = [(tmp_path / name).stat().st_mode for name in ("plain", "a/b.txt")]
    assert modes[0] == modes[1]
    for name in ("1.gz", "2.gz"):
        write_text(tmp_path / name, "text\n")
    assert (tmp_path / "1.gz").read_bytes() == (tmp_path / "2.gz").read_bytes()
    assert gzip.decompress((tmp_path / "1.gz").read_bytes()) == b"text\n"


def test_a_file_system_without_locks_is_written_with_a_warning(tmp_path, monkeypatch):
    """What another writer has begun is left alone, since nothing shows whether that writer is alive."""
    others = tmp_path / ".results.0badf00d.partial"
    (others / "fresh").mkdir(parents=True)

    def without(descriptor: int, how: int) -> None:
        raise OSError(files.LOCKLESS[0], "no locks")

    monkeypatch.setattr(files.fcntl, "flock", without)
    with pytest.warns(UserWarning, match="results is on a file system without locks"):
        folder = lock_until_exit(tmp_path / "results")
    write_text(folder / "a", "text")
    with atomic_folder(folder, contents("a")) as fresh:
        (fresh / "a").write_text("other")
    assert names(tmp_path) == [others.name, "results"]


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("failure", "message"), [(KeyboardInterrupt(), None), (FULL, "cannot be written: No space")]
)
def test_an_interrupted_or_full_disk_writer_leaves_the_old_output_alone(tmp_path, failure, message):
    write_text(tmp_path / "file", "old")
    fill(tmp_path / "folder", "old")
    stopped = pytest.raises(type(failure), match=message)
    with stopped, atomic_text(tmp_path / "file") as stream:
        stream.write("half")
        raise failure
    with stopped, atomic_folder(tmp_path / "folder", CONTENT) as folder:
        (folder / "content").write_text("half")
        raise failure
    assert names(tmp_path) == ["file", "folder"]
    assert (tmp_path / "file").read_text() == (tmp_path / "folder" / "content").read_text() == "old"


def test_a_folder_replaces_a_folder_and_what_a_link_points_to(tmp_path):
    (tmp_path / "deep" / "folder").mkdir(parents=True)
    fill(tmp_path / "deep" / "folder", "1")  # an empty one
    (tmp_path / "link").symlink_to(tmp_path / "deep" / "folder")
    fill(tmp_path / "link", "2")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "deep" / "folder" / "content").read_text() == "2"
    assert names(tmp_path) + names(tmp_path / "deep") == ["deep", "link", "folder"]


@pytest.mark.parametrize("error", [OSError(errno.EIO, "I/O error"), KeyboardInterrupt()])
def test_a_failure_between_the_two_renames_puts_the_old_folder_back(tmp_path, monkeypatch, error):
    fill(tmp_path / "folder", "old")
    replace = os.replace

    def failing(source: Path, target: Path) -> None:
        if Path(source).name == "fresh" and not Path(target).exists():
            raise error
        replace(source, target)

    monkeypatch.setattr(files.os, "replace", failing)
    with pytest.raises(type(error)):
        fill(tmp_path / "folder", "new")
    assert names(tmp_path) == ["folder"]
    assert (tmp_path / "folder" / "content").read_text() == "old"


KILLED = """
import os, signal, sys
from pathlib import Path
from paradigms.io import files

replace = os.replace
def killed(source, target):
    if Path(source).name == "fresh" and not Path(target).exists():
        os.kill(os.getpid(), signal.SIGKILL)
    replace(source, target)

if sys.argv[2] == "renaming":
    os.replace = killed
with files.atomic_folder(sys.argv[1], files.contents("content")) as folder:
    (folder / "content").write_text("new")
    if sys.argv[2] == "writing":
        os.kill(os.getpid(), signal.SIGKILL)
    if sys.argv[2] == "waiting":
        print("waiting", flush=True)
        sys.stdin.read()
"""


def writer(path: Path, moment: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", KILLED, str(path), moment]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_killed_writer_loses_nothing_and_the_next_one_clears_up(tmp_path):
    path = tmp_path / "folder"
    fill(path, "old")
    for moment in ("writing", "renaming"):
        assert writer(path, moment).wait() == -signal.SIGKILL
    assert not path.exists()  # killed between the two renames
    settle(path)
    assert (path / "content").read_text() == "old"
    fill(path, "newer")
    assert names(tmp_path) == ["folder"]


def test_a_living_writer_is_not_cleared_up_and_the_last_to_end_wins(tmp_path):
    path = tmp_path / "folder"
    process = writer(path, "waiting")
    assert process.stdout.readline() == "waiting\n"
    fill(path, "quick")
    assert (path / "content").read_text() == "quick"
    process.communicate("")
    assert process.returncode == 0
    assert (path / "content").read_text() == "new"
    assert names(tmp_path) == ["folder"]


def test_a_sweep_finishes_what_killed_writers_left_under_any_name(tmp_path):
    for leftover in (".step-4.01234567.partial", ".run.v2.89abcdef.partial"):
        (tmp_path / leftover / "fresh").mkdir(parents=True)
    (tmp_path / ".run.v2.89abcdef.partial" / "old.01234567").mkdir()
    with atomic_folder(tmp_path / "alive", contents("*")) as folder:
        sweep(tmp_path)
        (folder / "content").write_text("new")
    assert names(tmp_path) == ["alive", "run.v2"]


def litter(folder: Path, entry: str) -> None:
    (folder / entry).parent.mkdir(exist_ok=True)
    (folder / entry).write_text("mine")


@pytest.mark.parametrize("entry", ["notes.txt", "part/notes.txt", ".notes"])
def test_a_folder_with_an_entry_that_is_not_ours_is_neither_replaced_nor_removed(tmp_path, entry):
    """Whether it was there before, or came while the new content was written."""
    path, written = tmp_path / "folder", contents("content", "part/", "part/content", marks=["content"])
    for moment in ("before", "meanwhile"):
        fill(path, "old")
        refused = pytest.raises(FileExistsError, match=f"but holds {entry.partition('/')[0]}")
        if moment == "before":
            litter(path, entry)
        with refused, atomic_folder(path, written) as folder:
            litter(folder, "content")
            litter(path, entry)
        with refused:
            files.remove_folder(path, written)
        assert ((path / "content").read_text(), (path / entry).read_text()) == ("old", "mine")
        with pytest.raises(FileExistsError, match="is a file"):
            fill(path / entry, "lost")
        shutil.rmtree(path)
    assert names(tmp_path) == []


def test_leftovers_of_killed_writers_and_of_file_managers_are_replaced_and_removed(tmp_path):
    path = tmp_path / "folder"
    for ending in (lambda: fill(path, "new"), lambda: files.remove_folder(path, CONTENT)):
        fill(path, "old")
        litter(path, ".manifest.0badf00d.partial/fresh")
        litter(path, ".DS_Store")
        ending()
        assert not (path / ".DS_Store").exists()
    assert names(tmp_path) == []


def test_a_file_is_read_while_its_folder_is_replaced(tmp_path, monkeypatch):
    """Whenever the folder is back in place, a running writer moves it away again."""
    fill(tmp_path / "folder", "old")
    with pytest.raises(FileNotFoundError):
        files.read_settled(tmp_path / "none" / "content")
    away = tmp_path / ".folder.0badf00d.partial"
    away.mkdir()
    settle_folder, moved = files.settle, []

    def settled(path: Path) -> None:
        settle_folder(path)
        if len(moved) < 3:
            moved.append(os.replace(path, away / f"old.{len(moved)}"))

    monkeypatch.setattr(files, "settle", settled)
    assert files.read_settled(tmp_path / "folder" / "content") == "old"
    assert len(moved) == 3


def test_what_is_written_is_on_disk_before_its_name_and_then_the_name(tmp_path, monkeypatch):
    """A file, a folder, and the parents that are made."""
    steps, flush, replace = [], files.flush, os.replace
    monkeypatch.setattr(files, "flush", lambda path: (steps.append(path.name), flush(path)))
    monkeypatch.setattr(files.os, "replace", lambda a, b: (steps.append("rename"), replace(a, b)))
    write_text(tmp_path / "new" / "file", "x")
    assert steps == [tmp_path.name, "fresh", "rename", "new"]
    steps.clear()
    fill(tmp_path / "folder", "x")
    assert steps == ["fresh", "content", "rename", tmp_path.name]


def test_windows_is_told_in_a_sentence():
    code = "import sys; sys.modules['fcntl'] = None; import paradigms.io.files"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr
    assert said.splitlines()[-1].startswith("ImportError: retrieval-paradigms runs on Linux and macOS")


def test_many_writers_and_readers_at_once_see_whole_outputs_only(tmp_path):
    path, errors = tmp_path / "folder", []

    def write(mark: str) -> None:
        try:
            for _ in range(20):
                with atomic_folder(path, contents("*", marks=["0"])) as folder:
                    for part in range(3):
                        (folder / str(part)).write_text(mark)
                write_text(tmp_path / "file", mark * 1000)
                assert (tmp_path / "file").read_text() in {m * 1000 for m in "abc"}
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(mark,)) for mark in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert names(tmp_path) == ["file", "folder"]
    assert len({(path / str(part)).read_text() for part in range(3)}) == 1


def test_a_folder_has_one_writer(tmp_path):
    """Who holds it may ask again; another process may not."""
    results = lock_until_exit(tmp_path / "results")
    lock_until_exit(results)
    with pytest.raises(BlockingIOError, match="results is being written by another process"), locked(results):
        pass


@pytest.mark.parametrize("again", [False, True])
def test_nothing_is_written_below_a_lock_whose_folder_was_deleted(tmp_path, again):
    """Neither before the folder is created again nor after; a write in progress fails too."""
    folder = tmp_path / "run"
    lost = pytest.raises(BlockingIOError, match="run was deleted or replaced while this process")
    with locked(folder, make=True):
        write_text(folder / "a", "mine")
        with lost, atomic_folder(folder / "new", contents("*")) as fresh:
            fill(fresh, "mine")
            shutil.rmtree(folder)
            if again:
                folder.mkdir()
        with lost:
            write_text(folder / "a", "mine")
        assert not folder.exists() or not names(folder)
    with locked(folder, make=True):
        write_text(folder / "a", "the next one's")
