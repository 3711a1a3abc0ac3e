"""A common style for all progress bars: description, bar, count and time left."""

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from paradigms.io.terminal import Terminal


def progress_bar(visible: bool = True) -> Progress:
    """Create a rich progress display, a context manager that writes to stderr.

    visible: whether to display anything.
    """
    if not visible:
        return Progress(disable=True, auto_refresh=False)  # without a thread, in a tenth of a millisecond
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=Terminal(stderr=True))
