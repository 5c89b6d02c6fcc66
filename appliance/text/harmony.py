"""gpt-oss's harmony format: messages on channels, each with a header and perhaps a recipient.

``<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json
<|message|>{…}<|call|>``. Analysis is the thinking, final (and commentary to nobody) the answer.
"""

from __future__ import annotations

import re
from typing import Protocol

from appliance.text.text_reader import Emit, Reading, TextReader

CHANNEL, START, MESSAGE = "<|channel|>", "<|start|>", "<|message|>"
END, CALL, RETURN, CONSTRAIN = "<|end|>", "<|call|>", "<|return|>", "<|constrain|>"
MARKERS = (CHANNEL, START, MESSAGE, END, CALL, RETURN, CONSTRAIN)

_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_CHANNEL = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")


class HarmonyOutput(Protocol):
    """Where the messages go."""

    def content(self, text: str) -> None:
        """Text of the answer."""

    def reasoning(self, text: str) -> None:
        """Text of the thinking."""

    def start(self, name: str) -> None:
        """A function is called."""

    def arguments(self, text: str) -> None:
        """Text of the call's arguments."""


def read_harmony(reader: TextReader, output: HarmonyOutput) -> Reading[None]:
    """Read messages to the end of the text. Text outside of any message is content."""
    while True:
        opening = yield from reader.pass_until((CHANNEL, START, MESSAGE, END, CALL, RETURN), output.content)
        if opening is None:
            return
        if opening in (END, CALL, RETURN):
            continue
        if opening == MESSAGE:
            reader.unread(opening)
            opening = ""
        header, found = yield from reader.read_until((MESSAGE, END, CALL, RETURN))
        if found == MESSAGE:
            emit = _destination(opening + header, output)
            yield from reader.pass_until((END, CALL, RETURN, START), emit, drops_cut_marker=True)


def _destination(header: str, output: HarmonyOutput) -> Emit:
    recipient = _RECIPIENT.search(header)
    if recipient and recipient.group(1).startswith("functions."):
        output.start(recipient.group(1).removeprefix("functions."))
        return output.arguments
    channel = _CHANNEL.search(header)
    is_thinking = recipient is not None or (channel is not None and channel.group(1) == "analysis")
    return output.reasoning if is_thinking else output.content
