"""What the box and a request may say about the chat template, and the fields that the thinking is written into."""

from __future__ import annotations

from typing import Any

import pytest

from appliance.preflight import find_problems
from appliance.settings import Settings
from tests.api.conftest import MakeBox
from tests.api.harness import NAME, Box, assert_error, read_events
from tests.api.scripted_engine import ScriptedEngine

VARIABLES = "{{ messages[-1].content }}|{{ mood }}|{{ enable_thinking }}|{{ documents }}"


async def rendered(box: Box, **fields: Any) -> str:
    answer = await box.chat(return_prompt_text=True, **fields)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["prompt_text"])


@pytest.fixture
async def open_box(make_box: MakeBox) -> Box:
    settings = {"trust_request_chat_template": True, "default_chat_template_kwargs": {"mood": "dull"}}
    box: Box = await make_box(**settings)
    return box


async def test_a_requests_template_is_refused_by_default(box: Box) -> None:
    fields: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "chat_template": VARIABLES}
    for path in ("/v1/chat/completions", "/tokenize"):
        response = await box.client.post(path, json={"model": NAME, **fields})
        assert "--trust-request-chat-template" in assert_error(response, 400, "chat_template")


async def test_a_trusted_template_renders_the_prompt(open_box: Box) -> None:
    assert await rendered(open_box, chat_template=VARIABLES) == "hi|dull||None"
    tokens = await open_box.client.post(
        "/tokenize", json={"messages": [{"role": "user", "content": "hi"}], "chat_template": "x"}
    )
    assert tokens.json()["count"] == 1


async def test_variables_the_request_wins_over_effort_over_the_box(open_box: Box) -> None:
    fields = {"chat_template": VARIABLES}
    assert await rendered(open_box, **fields, chat_template_kwargs={"mood": "gay"}) == "hi|gay||None"
    assert await rendered(open_box, **fields, reasoning_effort="none") == "hi|dull|False|None"
    kwargs = {"enable_thinking": True}
    assert await rendered(open_box, **fields, reasoning_effort="none", chat_template_kwargs=kwargs) == (
        "hi|dull|True|None"
    )
    documents = [{"title": "a"}]
    assert await rendered(open_box, **fields, documents=documents) == "hi|dull||[{'title': 'a'}]"


async def test_the_boxs_effort_gives_way_to_the_requests(make_box: MakeBox) -> None:
    box = await make_box(trust_request_chat_template=True, default_chat_template_kwargs={"enable_thinking": True})
    assert await rendered(box, chat_template=VARIABLES) == "hi||True|None"
    assert await rendered(box, chat_template=VARIABLES, reasoning_effort="none") == "hi||False|None"


@pytest.mark.parametrize("template", ["{% if %}", "{{ raise_exception('no') }}", "{{ messages.a.b }}", "{{ 1/0 }}"])
async def test_a_wrong_template_is_a_400(open_box: Box, template: str) -> None:
    response = await open_box.chat(chat_template=template)
    assert response.status_code == 400
    assert response.json()["error"]["param"] in ("chat_template", "messages")


@pytest.mark.parametrize("name", ["messages", "tools", "chat_template", "add_generation_prompt", "tokenize"])
async def test_reserved_names_are_refused(box: Box, name: str) -> None:
    assert name in assert_error(await box.chat(chat_template_kwargs={name: 1}), 400, "chat_template_kwargs")
    problems = find_problems(Settings(default_chat_template_kwargs={name: 1}))
    assert any("--default-chat-template-kwargs" in problem and name in problem for problem in problems)


THINKING = "<think>hm</think>so"


@pytest.mark.parametrize(("flag", "names"), [(False, {"reasoning"}), (True, {"reasoning", "reasoning_content"})])
async def test_the_fields_of_the_thinking(make_box: MakeBox, box: Box, flag: bool, names: set[str]) -> None:
    script = box.model.tokenizer.encode(THINKING, False)
    engine = ScriptedEngine(rule=lambda request, position: [*script, 2][min(position, len(script))])
    thinker = await make_box(engine, reasoning_parser="deepseek_r1", emit_reasoning_content=flag)
    message = (await thinker.chat(max_tokens=40)).json()["choices"][0]["message"]
    assert message["content"] == "so"
    assert {name: message[name] for name in message if name.startswith("reasoning")} == dict.fromkeys(names, "hm")
    deltas = [
        event["choices"][0]["delta"] for event in read_events((await thinker.chat(max_tokens=40, stream=True)).text)
    ]
    for name in ("reasoning", "reasoning_content"):
        assert "".join(delta.get(name, "") for delta in deltas) == ("hm" if name in names else "")
    quiet = (await thinker.chat(max_tokens=40, include_reasoning=False)).json()["choices"][0]["message"]
    assert not any(name.startswith("reasoning") for name in quiet)


@pytest.mark.parametrize(("header", "priority"), [("-5", -5), (" 7 ", 7), ("x", 3), ("1.5", 3), ("", 3)])
async def test_a_priority_in_a_header_wins(box: Box, header: str, priority: int) -> None:
    for path, extra in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/completions", {"prompt": "x"}),
    ):
        body = {"max_tokens": 1, "priority": 3, **extra}
        assert (await box.client.post(path, json=body, headers={"x-vllm-priority": header})).status_code == 200
    assert [request.priority for request in box.engine.submitted] == [priority] * 2
    huge = {"x-vllm-priority": "9" * 20}
    assert_error(await box.client.post("/v1/completions", json={"prompt": "x"}, headers=huge), 400, "priority")


async def test_thinking_that_is_not_included_is_counted_only(make_box: MakeBox, box: Box) -> None:
    script = box.model.tokenizer.encode(THINKING, False)
    engine = ScriptedEngine(rule=lambda request, position: [*script, 2][min(position, len(script))])
    thinker = await make_box(engine, reasoning_parser="deepseek_r1")
    fields = {"max_tokens": 40, "logprobs": True, "return_token_ids": True}
    whole = (await thinker.chat(**fields)).json()
    assert whole["choices"][0]["token_ids"] == [*script, 2]
    num_thinking = whole["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert 0 < num_thinking < len(script)
    quiet = (await thinker.chat(**fields, include_reasoning=False)).json()
    options = {"include_usage": True}
    streamed = read_events(
        (await thinker.chat(**fields, include_reasoning=False, stream=True, stream_options=options)).text
    )
    choices = [chunk["choices"][0] for chunk in streamed if chunk["choices"]]
    assert [token for choice in choices for token in choice.get("token_ids", ())] == quiet["choices"][0]["token_ids"]
    assert len(quiet["choices"][0]["token_ids"]) == len(quiet["choices"][0]["logprobs"]["content"])
    assert len(quiet["choices"][0]["token_ids"]) == len(script) + 1 - num_thinking
    assert streamed[-1]["usage"] == quiet["usage"] == whole["usage"]
    assert "completion_tokens_details" not in (await box.chat()).json()["usage"]
