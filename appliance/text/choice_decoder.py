"""The text side of one choice: engine outputs in, events out. Detokenize → stop strings → parse.

Keeps what a resumed request must not repeat; talking to the engine is `appliance.generation`'s job.
"""

from __future__ import annotations

from collections.abc import Sequence

from appliance.text.detokenizer import Detokenizer
from appliance.text.events import Content, Event, Finish, Reasoning
from appliance.text.output_parser import OutputParser
from appliance.text.stop_matcher import StopMatcher
from appliance.text.tokenizer import Tokenizer
from engine.messages import RequestOutput, TokenLogprobs


class ChoiceDecoder:
    """``token_ids`` holds every token that counts so far: none after the one that completed a stop string.

    ``min_tokens``: a stop string counts only where it completes after that many tokens. ``include_stop`` shows the
    matched string or the stop token's text. An unfinished character at the very end is left out of the text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        skip_special_tokens: bool = True,
        is_text_start: bool = False,
        min_tokens: int = 0,
        parser: OutputParser | None = None,
    ) -> None:
        markers = (tokenizer.token_id(marker) for marker in (parser.markers if parser else ()))
        self._detokenizer = Detokenizer(
            tokenizer,
            skip_special_tokens=skip_special_tokens,
            is_text_start=is_text_start,
            kept_special_ids=[id for id in markers if id is not None],
        )
        self._stops = StopMatcher(stop, include_stop=include_stop)
        self._include_stop = include_stop
        self._min_tokens = min_tokens
        self._parser = parser
        self._pending_ids: list[int] = []
        self._pending_logprobs: list[TokenLogprobs] | None = None
        self.token_ids: list[int] = []
        self.is_finished = False

    def feed(self, output: RequestOutput) -> list[Event]:
        """The events that one output of the engine makes certain; the last one is `Finish` when the choice ends."""
        ids = output.token_ids
        hides_last = output.finish_reason == "stop" and not (self._include_stop or output.ends_in_text)
        text, num_used, stop = self._read(ids[:-1] if hides_last else ids)
        if stop is not None:
            self._count(output, num_used)
            return self._events(text, Finish("stop", stop))
        self._count(output, len(ids))
        if output.finish_reason is None:
            return self._events(text, None)
        return self._events(text + self._stops.flush(), Finish(output.finish_reason, output.stop_reason))

    def _read(self, ids: list[int]) -> tuple[str, int, str | None]:
        """The certain text of some tokens, how many were read, and the stop string that the last of these completes."""
        shown = ""
        num_before = len(self.token_ids)
        for num_read, token_id in enumerate(ids, 1):
            text = self._detokenizer.push(token_id)
            stop = None
            if text and self._stops.has_any:
                is_armed = num_before + num_read > self._min_tokens
                text, stop = self._stops.feed(text, is_armed=is_armed)
            shown += text
            if stop is not None:
                return shown, num_read, stop
        return shown, len(ids), None

    def _count(self, output: RequestOutput, num_used: int) -> None:
        ids = output.token_ids if num_used == len(output.token_ids) else output.token_ids[:num_used]
        self.token_ids += ids
        self._pending_ids += ids
        if output.logprobs is not None:
            self._pending_logprobs = (self._pending_logprobs or []) + output.logprobs[:num_used]

    def _events(self, text: str, finish: Finish | None) -> list[Event]:
        if self._parser is None and finish is None:
            return [self._take_content(text)] if text else []
        events = self._parse(text, finish)
        for event in events:
            if isinstance(event, Content | Reasoning):
                self._attach(event)
                break
        if finish is not None:
            self.is_finished = True
            if self._pending_ids:
                events.append(self._take_content(""))
            if finish.finish_reason == "stop" and self._parser and self._parser.has_calls:
                finish.finish_reason = "tool_calls"
            events.append(finish)
        return events

    def _parse(self, text: str, finish: Finish | None) -> list[Event]:
        if self._parser is None:
            return [Content(text)] if text else []
        events = self._parser.feed(text) if text else []
        if finish is None:
            return events
        is_cut = finish.finish_reason != "stop" or isinstance(finish.stop_reason, str)
        return events + self._parser.finish(is_cut=is_cut)

    def _take_content(self, text: str) -> Content:
        content = Content(text, self._pending_ids, self._pending_logprobs)
        self._pending_ids, self._pending_logprobs = [], None
        return content

    def _attach(self, event: Content | Reasoning) -> None:
        event.token_ids, event.logprobs = self._pending_ids, self._pending_logprobs
        self._pending_ids, self._pending_logprobs = [], None
