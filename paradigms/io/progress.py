"""One style for all progress bars: description, bar, count, time left."""

from collections.abc import Iterable, Iterator
from typing import Any, cast

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from paradigms.io.terminal import Terminal


class _Silent:
    """A Progress that shows and counts nothing, so that it costs a search of a millisecond no time."""

    def __enter__(self) -> "_Silent":
        return self

    def __exit__(self, *error: object) -> None: ...

    def add_task(self, *given: Any, **named: Any) -> int:
        return 0

    advance = update = add_task

    def track(self, sequence: Iterable[Any], *given: Any, **named: Any) -> Iterator[Any]:
        return iter(sequence)


def progress_bar(shown: bool = True) -> Progress:
    """A rich progress display, used as a context manager. It writes to stderr, so output can be piped."""
    if not shown:
        return cast(Progress, _Silent())
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=Terminal(stderr=True))
