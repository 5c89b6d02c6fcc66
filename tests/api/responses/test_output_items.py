"""Property: whatever a generation says, the events are well formed and tell the same as the collected items."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from appliance.api.responses.output_items import OutputItems
from appliance.text.events import Content, Event, Finish, Reasoning, ToolCallArguments, ToolCallStart
from tests.api.responses.reading import check_items

_text = st.text(max_size=4)
_call = st.lists(st.text(max_size=4), max_size=4)
_turn = st.one_of(
    _text.map(lambda text: [Content(text)]),
    _text.map(lambda text: [Reasoning(text, token_ids=[1])]),
    _call.map(lambda pieces: [ToolCallStart(0, "c", "f"), *(ToolCallArguments(0, piece) for piece in pieces)]),
)
_said = st.lists(_turn, max_size=12).map(lambda turns: [event for turn in turns for event in turn])


def joined(events: list[Event]) -> list[tuple[str, str]]:
    """The texts of runs of events of one kind."""
    runs: list[tuple[str, str]] = []
    for event in events:
        match event:
            case ToolCallStart():
                runs.append(("function_call", ""))
            case Content(text=text) | Reasoning(text=text) if text:
                kind = "message" if isinstance(event, Content) else "reasoning"
                runs += [] if runs and runs[-1][0] == kind else [(kind, "")]
                runs[-1] = (kind, runs[-1][1] + text)
            case ToolCallArguments(text=text):
                runs[-1] = ("function_call", runs[-1][1] + text)
    return runs or [("message", "")]


def text_of(item: dict[str, Any]) -> str:
    return str(item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"])


@given(_said, st.sampled_from(["stop", "length"]))
def test_events_and_items_agree(said: list[Event], reason: str) -> None:
    output = OutputItems(None, include_reasoning=True)
    told = [event for one in [*said, Finish(reason)] for event in output.add(one)]
    assert check_items(told) == output.items
    assert [(item["type"], text_of(item)) for item in output.items] == joined(said)
    assert output.items[-1]["status"] == ("incomplete" if reason == "length" else "completed")
    assert len({item["id"] for item in output.items}) == len(output.items)
