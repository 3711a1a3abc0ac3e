"""Text of others on the terminal: characters that steer it are shown, never obeyed.

A document, an id or a file name may hold ESC, and with it change the clipboard, the title or the screen.
"""

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.segment import Segment

# C0 and DEL as the pictures of them; C1, what turns the direction of text, and lone surrogates as U+FFFD.
PICTURES = {n: 0x2400 + n for n in range(32) if chr(n) not in "\t\n"} | {0x7F: 0x2421}
HIDDEN = [*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A), *range(0xD800, 0xE000)]
SHOWN: dict[int, int] = PICTURES | dict.fromkeys(HIDDEN, 0xFFFD)


def shown(text: object) -> str:
    """The text with a visible character for each that steers a terminal; lines and tabs stay."""
    return str(text).translate(SHOWN)


class Terminal(Console):
    """A console that prints every text as `shown`, its own colours apart: brackets and :names: stay text."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(markup=False, emoji=False, **settings)

    def render(self, *given: Any, **named: Any) -> Iterable[Segment]:
        for segment in super().render(*given, **named):
            yield segment if segment.control else Segment(shown(segment.text), segment.style)
