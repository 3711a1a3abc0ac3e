"""A common style for all progress bars: description, bar, count and time left."""

from collections.abc import Iterable, Iterator
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from paradigms.io.terminal import Terminal


class _Silent(Progress):
    """A progress bar that displays nothing, for searches that take milliseconds."""

    def add_task(self, *args: Any, **kwargs: Any) -> TaskID:
        return TaskID(0)

    def advance(self, *args: Any, **kwargs: Any) -> None:
        pass

    def update(self, *args: Any, **kwargs: Any) -> None:
        pass

    def track(self, sequence: Iterable[Any], *args: Any, **kwargs: Any) -> Iterator[Any]:
        return iter(sequence)


_SILENT = _Silent(disable=True)


def progress_bar(visible: bool = True) -> Progress:
    """Create a rich progress display, a context manager that writes to stderr.

    visible: whether to display anything.
    """
    if not visible:
        return _SILENT
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=Terminal(stderr=True))
