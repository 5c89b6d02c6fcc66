"""Granite 3.2: ``Here is my thought process: … Here is my response: …`` in plain words."""

from __future__ import annotations

from appliance.text.reasoning_parsers.reading_parser import ReadingReasoningParser
from appliance.text.text_reader import Reading

_THOUGHT = ("Here is my thought process:", "Here's my thought process:")
_RESPONSE = ("Here is my response:", "Here's my response:")


class GraniteParser(ReadingReasoningParser):
    """Only where the template was asked to let it think, and the text begins with the words."""

    def parse(self) -> Reading[None]:
        """One thought, then the answer."""
        if self.template_kwargs.get("thinking") and (yield from self._take_opening()):
            yield from self.reader.skip()
            if (yield from self.reader.pass_until(_RESPONSE, self.writer.reasoning)):
                yield from self.reader.skip()
            self.writer.end_thought()
        yield from self.reader.pass_rest(self.writer.content)

    def _take_opening(self) -> Reading[bool]:
        self.reader.mark()
        yield from self.reader.skip()
        for opening in _THOUGHT:
            if (yield from self.reader.take(opening)):
                self.reader.unmark()
                return True
        self.writer.content(self.reader.since_mark())
        self.reader.unmark()
        return False
