"""What goes to the terminal: colours only if it is one, and never a control character that came from elsewhere."""

from __future__ import annotations

import sys
from typing import TextIO

_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_KEPT = {ord("\n"), ord("\t")}
# The C0 and C1 control characters: with these a text could rewrite the screen or the clipboard.
_CONTROLS = {code: None for code in (*range(32), *range(127, 160)) if code not in _KEPT}


class Screen:
    """Writes to stdout; says on stderr what is not the answer itself."""

    def __init__(self, out: TextIO | None = None, notes: TextIO | None = None, is_terminal: bool | None = None) -> None:
        self._out = out or sys.stdout
        self._notes = notes or sys.stderr
        self.is_terminal = self._out.isatty() if is_terminal is None else is_terminal

    def style(self, text: str, *styles: str) -> str:
        """`text` in these styles, where there are any."""
        if not self.is_terminal or not text:
            return text
        return f"\x1b[{';'.join(_STYLES[style] for style in styles)}m{text}\x1b[0m"

    def write(self, text: str, *styles: str) -> None:
        """A piece of the answer, at once. To a file it goes as it is."""
        shown = text.translate(_CONTROLS) if self.is_terminal else text
        self._out.write(self.style(shown, *styles) if styles else shown)
        self._out.flush()

    def line(self, text: str = "", *styles: str) -> None:
        """A whole line."""
        self.write(text, *styles)
        self._out.write("\n")
        self._out.flush()

    def note(self, text: str, *styles: str) -> None:
        """A remark beside the answer."""
        text = text.translate(_CONTROLS)
        self._notes.write((self.style(text, *styles) if self._notes.isatty() and styles else text) + "\n")
        self._notes.flush()

    def draw(self, lines: list[str]) -> None:
        """Replace the whole screen; the lines are ours and may hold styles."""
        self._out.write("\x1b[H" + "".join(f"{line}\x1b[K\r\n" for line in lines) + "\x1b[J")
        self._out.flush()
