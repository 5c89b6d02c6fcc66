"""/v1/responses and /invocations through the real box, whose workers share what is stored."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.caller import CHAT, ENDLESS, Caller, chat_body, check_error, completion_body, parse_strictly

RESPONSES = "/v1/responses"
PAIRS = ("response.output_item", "response.content_part")  # each added, then done


def ask(text: Any = "What is the capital of France?", **fields: Any) -> dict[str, Any]:
    return {"input": text, "max_output_tokens": 12, "temperature": 0, **fields}


def read_typed(box: Caller, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a typed stream; each is named as its type says."""
    response = box.post(path, body | {"stream": True})
    assert response.status_code == 200, response.text
    events = []
    for block in response.text.split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        if not lines:
            continue
        name, data = lines
        event = parse_strictly(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    assert "[DONE]" not in response.text
    return events


def text_of(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] if item["type"] == "message" for part in item["content"])


def test_a_response(box: Caller) -> None:
    response = box.post(RESPONSES, ask(max_output_tokens=40)).json()
    assert response["id"].startswith("resp_")
    assert (response["object"], response["status"]) == ("response", "completed")
    assert "Paris" in text_of(response)
    usage = response["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


def test_the_order_of_events(box: Caller) -> None:
    events = read_typed(box, RESPONSES, ask(max_output_tokens=40))
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    for pair in PAIRS:
        assert kinds.count(f"{pair}.added") == kinds.count(f"{pair}.done") >= 1
        assert kinds.index(f"{pair}.added") < kinds.index(f"{pair}.done")
    deltas = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    assert deltas == text_of(events[-1]["response"]) == text_of(box.post(RESPONSES, ask(max_output_tokens=40)).json())


def test_too_few_tokens_are_incomplete(box: Caller) -> None:
    fields = {"max_output_tokens": 3, "logit_bias": ENDLESS}
    response = box.post(RESPONSES, ask(**fields)).json()
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert read_typed(box, RESPONSES, ask(**fields))[-1]["type"] == "response.incomplete"


def test_any_worker_goes_on_with_a_stored_response(box: Caller) -> None:
    first = box.post(RESPONSES, ask()).json()
    follow = ask("And of Italy?", previous_response_id=first["id"])
    for _ in range(6):  # two workers take turns
        assert "Rome" in text_of(box.post(RESPONSES, follow, connection="close").json())
        assert box.http.get(f"{RESPONSES}/{first['id']}").json()["id"] == first["id"]
    assert box.http.delete(f"{RESPONSES}/{first['id']}").status_code == 200
    gone = box.http.get(f"{RESPONSES}/{first['id']}")
    check_error(gone, 404, gone.json()["error"]["param"])
    assert box.post(RESPONSES, follow).status_code == 404


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"store": False, "background": True}, 400),
        ({"previous_response_id": "resp_unknown"}, 404),
        ({"input": None}, 400),
        ({"max_output_tokens": 0}, 400),
        ({"input": "hello " * 9000}, 400),
        ({"tool_choice": "required"}, 400),
    ],
)
def test_what_is_refused(box: Caller, fields: dict[str, Any], status: int) -> None:
    body = ask() | fields
    for stream in (False, True):
        response = box.post(RESPONSES, body | {"stream": stream})
        check_error(response, status, response.json()["error"]["param"])


def test_cancelling_what_is_done(box: Caller) -> None:
    done = box.post(RESPONSES, ask()).json()["id"]
    assert box.http.post(f"{RESPONSES}/{done}/cancel").status_code == 400
    assert box.http.post(f"{RESPONSES}/resp_unknown/cancel").status_code == 404


def test_invocations_equal_the_named_routes(box: Caller) -> None:
    chat = box.post("/invocations", chat_body()).json()
    assert chat["object"] == "chat.completion"
    assert chat["choices"] == box.post(CHAT, chat_body()).json()["choices"]
    text = box.post("/invocations", completion_body()).json()
    assert text["choices"] == box.complete().json()["choices"]
    assert box.stream("/invocations", chat_body()).text() == chat["choices"][0]["message"]["content"]
    check_error(box.post("/invocations", {}), 400)
