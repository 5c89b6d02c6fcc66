"""Reads messages line by line: a backslash at the end goes on, three quotes hold what is in between."""

from __future__ import annotations

from collections.abc import Callable

END = None
_QUOTES = '"""'
_MORE = ". "


class MessageInput:
    """Over `input` or anything like it, which raises EOFError at the end and KeyboardInterrupt on Ctrl-C."""

    def __init__(self, read_line: Callable[[str], str]) -> None:
        self._read_line = read_line

    def read(self, prompt: str) -> str | None:
        """The next message without blanks around it, or `END`. Ctrl-C gives up what is being written."""
        try:
            return self._read_message(prompt).strip()
        except EOFError:
            return END
        except KeyboardInterrupt:
            return ""

    def _read_message(self, prompt: str) -> str:
        line = self._read_line(prompt)
        if line.strip().startswith(_QUOTES):
            return self._read_quoted(line.strip().removeprefix(_QUOTES))
        lines = []
        while line.endswith("\\"):
            lines.append(line[:-1])
            line = self._read_line(_MORE)
        return "\n".join([*lines, line])

    def _read_quoted(self, line: str) -> str:
        lines = []
        while not line.rstrip().endswith(_QUOTES):
            lines.append(line)
            line = self._read_line(_MORE)
        return "\n".join([*lines, line.rstrip().removesuffix(_QUOTES)])
