"""Property: whatever a generation says, the events are well formed and tell the same as the collected blocks."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from appliance.api.messages.answer_blocks import AnswerBlocks
from appliance.text.events import Content, Event, Finish, Reasoning, ToolCallArguments, ToolCallStart
from tests.api.messages.reading import fold_blocks

_text = st.text(max_size=4)
_arguments = st.dictionaries(st.text(max_size=3), st.integers(), max_size=3).map(json.dumps)


def call(arguments: str, cut: int) -> list[Event]:
    """A call whose arguments come in two pieces."""
    return [ToolCallStart(0, "c", "f"), ToolCallArguments(0, arguments[:cut]), ToolCallArguments(0, arguments[cut:])]


_turn = st.one_of(
    _text.map(lambda text: [Content(text)]),
    _text.map(lambda text: [Reasoning(text)]),
    st.builds(call, _arguments, st.integers(0, 8)),
    st.just([ToolCallStart(0, "c", "f"), ToolCallArguments(0, '{"x": ')]),
)
_said = st.lists(_turn, max_size=12).map(lambda turns: [event for turn in turns for event in turn])


@given(_said)
def test_events_and_blocks_agree(said: list[Event]) -> None:
    answer = AnswerBlocks(shows_thinking=True)
    told = [event for one in [*said, Finish("stop")] for event in answer.add(one)]
    assert fold_blocks(told) == answer.blocks
    assert answer.blocks
    text = "".join(block["text"] for block in answer.blocks if block["type"] == "text")
    assert text == "".join(event.text for event in said if isinstance(event, Content))
    thinking = "".join(block["thinking"] for block in answer.blocks if block["type"] == "thinking")
    assert thinking == "".join(event.text for event in said if isinstance(event, Reasoning))
    assert answer.has_calls == any(isinstance(event, ToolCallStart) for event in said)
