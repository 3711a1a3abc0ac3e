"""Print untrusted text safely: control characters are displayed, never executed.

Otherwise a document, id or file name that contains ESC could change the clipboard, the title or the screen.
"""

import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.segment import Segment

# C0 and DEL become their control pictures; C1, bidirectional controls and lone surrogates become U+FFFD.
PICTURES = {n: 0x2400 + n for n in range(32) if chr(n) not in "\t\n"} | {0x7F: 0x2421}
HIDDEN = [*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A), *range(0xD800, 0xE000)]
VISIBLE: dict[int, int] = PICTURES | dict.fromkeys(HIDDEN, 0xFFFD)


def printable(text: object) -> str:
    """Replace control characters, except line breaks and tabs, with visible characters."""
    return str(text).translate(VISIBLE)


@contextmanager
def interruptible(advice: str = "") -> Iterator[None]:
    """Exit with a one-line message and code 130 on Ctrl-C; a second Ctrl-C kills the program immediately.

    advice: how to continue, printed after the word "interrupted".
    """
    try:
        yield
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        print(f"\ninterrupted{advice and f'; {advice}'}", file=sys.stderr)
        raise SystemExit(130) from None


class Terminal(Console):
    """A rich console that prints text safely (`printable`), without interpreting markup or :emoji: names."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(markup=False, emoji=False, **settings)

    def render(self, *args: Any, **kwargs: Any) -> Iterable[Segment]:
        for segment in super().render(*args, **kwargs):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)
