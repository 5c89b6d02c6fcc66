"""Chat answers: shape, messages in every legal form, logprobs, n, lengths, and what is refused."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from appliance.api.served_model import SamplingDefaults
from tests.api.conftest import MakeBox
from tests.api.harness import NAME, Box, assert_error
from tests.api.scripted_engine import ScriptedEngine

IMAGE = {"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/x.png"}}
USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "get_number", "parameters": {"type": "object", "properties": {}}}}


async def test_answer_shape(box: Box) -> None:
    answer = (await box.chat(model="alias")).json()
    assert answer["object"] == "chat.completion"
    assert answer["model"] == NAME
    assert answer["id"].startswith("chatcmpl-")
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": " red red red red", "refusal": None},
            "logprobs": None,
            "finish_reason": "length",
            "stop_reason": None,
        }
    ]
    usage = answer["usage"]
    assert usage["completion_tokens"] == 4
    assert usage["total_tokens"] == usage["prompt_tokens"] + 4
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}


async def test_openai_sdk_parses_both_modes(box: Box) -> None:
    client = openai.AsyncOpenAI(base_url="http://box/v1", api_key="x", http_client=box.client, max_retries=0)
    answer = await client.chat.completions.create(model=NAME, messages=[USER], max_tokens=3, temperature=0)
    stream = await client.chat.completions.create(model=NAME, messages=[USER], max_tokens=3, temperature=0, stream=True)
    text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert text == answer.choices[0].message.content == " red red red"
    assert [model.id async for model in client.models.list()] == [NAME, "alias"]
    with pytest.raises(openai.NotFoundError) as missing:
        await client.chat.completions.create(model="no-such", messages=[USER])
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        await client.chat.completions.create(model=NAME, messages=[USER], temperature=9)
    assert bad.value.param == "temperature"


async def test_b01_nulls_and_extras(box: Box) -> None:
    response = await box.chat(
        messages=[{"role": "user", "content": "hi", "name": "bob"}],
        max_tokens=None, max_completion_tokens=8, tools=None, tool_choice=None, response_format=None,
        stream_options=None, store=False, metadata={"a": "b"}, service_tier="auto", user="u1",
        parallel_tool_calls=True, n=None, seed=None, logit_bias=None, top_logprobs=None, whatever=[1],
    )  # fmt: skip
    assert response.json()["usage"]["completion_tokens"] == 8


async def test_b17_unknown_model_lists_the_names(box: Box) -> None:
    message = assert_error(await box.chat(model="no-such-model"), 404, "model", "model_not_found")
    assert NAME in message
    assert "alias" in message
    assert (await box.chat(model=None)).json()["model"] == NAME


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"), ("hi", "messages"), ({}, "messages"), ({"role": "user", "content": "hi"}, "messages"),
        ([{"content": "hi"}], "messages[0].role"), ([USER, {"role": "banana", "content": "x"}], "messages[1].role"),
        ([{"role": ["user"], "content": "x"}], "messages[0].role"), (["hi"], "messages[0]"),
        ([{"role": "user"}], "messages[0].content"), ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": []}], "messages[0].content"),
        ([{"role": "user", "content": [IMAGE]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": [7]}], "messages[0].content[0]"),
        ([{"role": "user", "content": "x", "name": 7}], "messages[0].name"),
        ([USER, {"role": "assistant", "tool_calls": "x"}], "messages[1].tool_calls"),
        ([USER, {"role": "assistant", "tool_calls": [3]}], "messages[1].tool_calls[0]"),
        ([USER, {"role": "assistant", "tool_calls": [{"function": {}}]}], "messages[1].tool_calls[0].function.name"),
    ],
)  # fmt: skip
async def test_b11_b13_b14_wrong_messages_are_named(box: Box, messages: Any, param: str) -> None:
    assert_error(await box.chat(messages=messages), 400, param)
    assert (await box.chat()).status_code == 200


async def test_b11_missing_messages(box: Box) -> None:
    response = await box.client.post("/v1/chat/completions", json={"model": NAME})
    assert assert_error(response, 400, "messages") == "messages is required"
    assert (await box.chat(messages=[{"role": "user", "content": ""}])).status_code == 200


async def prompt_tokens(box: Box, *messages: dict[str, Any], **fields: Any) -> int:
    answer = await box.chat(messages=list(messages), **fields)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["usage"]["prompt_tokens"])


@pytest.mark.parametrize("role", ["user", "system", "developer", "tool"])
async def test_b13_content_parts(box: Box, role: str) -> None:
    one, two = {"type": "text", "text": "Remember the word BANANA."}, {"type": "text", "text": "What is the word?"}
    whole = await prompt_tokens(box, {"role": role, "content": f"{one['text']} {two['text']}"})
    assert abs(await prompt_tokens(box, {"role": role, "content": [one, two]}) - whole) <= 2
    single = await prompt_tokens(box, {"role": role, "content": one["text"]})
    assert await prompt_tokens(box, {"role": role, "content": [one]}) == single


async def test_b14_developer_is_system(box: Box) -> None:
    text = "Answer only with the word BANANA."
    prompts = []
    for role in ("system", "developer"):
        await box.chat(messages=[{"role": role, "content": text}, USER])
        prompts.append(box.engine.submitted[-1].prompt_token_ids)
    assert prompts[0] == prompts[1]


async def test_b35_calls_and_results_reach_the_prompt(box: Box) -> None:
    def turns(name: str, result: str, **content: Any) -> list[dict[str, Any]]:
        call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": "{}"}}
        assistant = {"role": "assistant", "tool_calls": [call], "refusal": None, "function_call": None} | content
        return [USER, assistant, {"role": "tool", "tool_call_id": "c1", "content": result}]

    base = await prompt_tokens(box, *turns("get_number", "42.69", content=None))
    assert await prompt_tokens(box, *turns("get_number", "42.69")) == base
    assert await prompt_tokens(box, *turns("get_number", "42.69", content="")) == base
    assert await prompt_tokens(box, *turns("get_number", "42.69 one two three four five")) >= base + 5
    assert await prompt_tokens(box, *turns("get_some_other_number", "42.69")) != base
    assert await prompt_tokens(box, *turns("get_number", "42.69"), tools=[TOOL]) > base


async def test_imitated_control_tokens_stay_text(box: Box) -> None:
    await box.chat(messages=[{"role": "user", "content": "<|im_end|>"}])
    ends = box.engine.submitted[-1].prompt_token_ids.count(2)
    await box.chat(messages=[{"role": "user", "content": "x"}])
    assert box.engine.submitted[-1].prompt_token_ids.count(2) == ends


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "ghost"}}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "ghost"}}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "maybe"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "auto"}, "tool_choice"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"function": {"name": 1}}]}, "tools[0].function.name"),
        ({"tools": 3}, "tools"),
    ],
)  # fmt: skip
async def test_b34_tool_choice_is_checked(box: Box, fields: dict[str, Any], param: str) -> None:
    assert_error(await box.chat(**fields), 400, param)
    assert_error(await box.chat(**fields, stream=True), 400, param)


async def test_b34_tools_without_choice(box: Box) -> None:
    assert (await box.chat(tools=[])).status_code == 200
    bare = await prompt_tokens(box, USER)
    assert await prompt_tokens(box, USER, tools=[TOOL], tool_choice="none") > bare


@pytest.mark.parametrize(("top", "expected"), [(None, 0), (0, 0), (5, 5), (20, 20)])
async def test_b07_logprobs(box: Box, top: int | None, expected: int) -> None:
    answer = (await box.chat(logprobs=True, top_logprobs=top)).json()
    content = answer["choices"][0]["logprobs"]["content"]
    assert len(content) == 4
    assert content[0]["token"] == " red"
    assert bytes(content[0]["bytes"]) == b" red"
    for entry in content:
        values = [top_entry["logprob"] for top_entry in entry["top_logprobs"]]
        assert len(values) == expected
        assert values == sorted(values, reverse=True)
        assert all(-9999.0 <= value <= 0 for value in values)
    if expected:
        assert values[-1] == -9999.0
        assert content[0]["top_logprobs"][0]["logprob"] == content[0]["logprob"]


@pytest.mark.parametrize("top", [21, 100_000, -1, "5", 2.5])
async def test_b07_too_many_logprobs(box: Box, top: Any) -> None:
    assert_error(await box.chat(logprobs=True, top_logprobs=top), 400, "top_logprobs")
    assert_error(await box.chat(top_logprobs=5), 400, "top_logprobs")
    assert_error(await box.chat(logprobs=3), 400, "logprobs")


async def test_whole_vocabulary_where_allowed(make_box: MakeBox) -> None:
    box = await make_box(max_logprobs=-1)
    assert (await box.chat(logprobs=True, top_logprobs=30, max_tokens=1)).status_code == 200
    assert (await box.chat(prompt_logprobs=-1, max_tokens=1)).status_code == 200
    assert box.engine.submitted[-1].sampling.prompt_logprobs == -1


async def test_tokens_as_token_ids(box: Box) -> None:
    answer = await box.chat(logprobs=True, top_logprobs=1, return_tokens_as_token_ids=True)
    entry = answer.json()["choices"][0]["logprobs"]["content"][0]
    assert entry["token"] == entry["top_logprobs"][0]["token"] == "token_id:2382"


async def test_prompt_logprobs(box: Box) -> None:
    answer = (await box.chat(prompt_logprobs=2, return_token_ids=True, return_prompt_text=True)).json()
    ids = answer["prompt_token_ids"]
    first, *rest = answer["prompt_logprobs"]
    assert first is None
    assert len(rest) == len(ids) - 1
    assert rest[0][str(ids[1])] == {"logprob": -0.5, "rank": 1, "decoded_token": box.model.tokenizer.token_str(ids[1])}
    assert answer["choices"][0]["token_ids"] == [2382] * 4
    assert answer["prompt_text"].startswith("<|im_start|>system")
    assert_error(await box.chat(prompt_logprobs=1, stream=True), 400, "prompt_logprobs")
    assert_error(await box.chat(prompt_logprobs=21), 400, "prompt_logprobs")


async def test_b20_n_choices_have_their_own_seeds(box: Box) -> None:
    fields = {"n": 3, "seed": 42, "temperature": 1.0}
    texts = [[c["message"]["content"] for c in (await box.chat(**fields)).json()["choices"]] for _ in range(2)]
    assert len(set(texts[0])) == 3
    assert texts[0] == texts[1]
    assert sorted(r.sampling.seed for r in box.engine.submitted[:3]) == [42, 43, 44]
    assert (await box.chat(n=2, temperature=0)).status_code == 200
    await box.chat()
    await box.chat()
    assert len({r.sampling.seed for r in box.engine.submitted[-2:]}) == 2


async def test_b02_over_long_prompt(box: Box) -> None:
    for fields in ({"max_tokens": None}, {"max_tokens": 16}):
        response = await box.chat(messages=[{"role": "user", "content": "hello " * 8392}], **fields)
        message = assert_error(response, 400, "messages", "context_length_exceeded")
        assert "8192" in message
        assert any(int(word) > 8392 for word in message.split() if word.isdecimal())
    response = await box.chat(messages=[{"role": "user", "content": "x" * 1_900_000}])
    assert "at least" in assert_error(response, 400, "messages", "context_length_exceeded")
    assert not box.engine.submitted


async def test_lengths(make_box: MakeBox) -> None:
    box = await make_box(max_model_len=64)
    used = await prompt_tokens(box, USER)
    assert (await box.chat(max_tokens=None)).json()["usage"]["total_tokens"] == 64
    assert (await box.chat(max_tokens=64)).json()["usage"]["completion_tokens"] == 64 - used
    assert_error(await box.chat(max_tokens=65), 400, "max_tokens")
    for wrong in (0, -1, 10**30):
        assert_error(await box.chat(max_tokens=wrong), 400, "max_tokens")
        assert_error(await box.chat(max_completion_tokens=wrong), 400, "max_completion_tokens")
    kept = await box.chat(messages=[{"role": "user", "content": "a b c d " * 99}], truncate_prompt_tokens=-1)
    assert kept.json()["usage"] == {**kept.json()["usage"], "prompt_tokens": 63, "completion_tokens": 1}


async def test_defaults_of_the_model(box: Box) -> None:
    box.model.defaults = SamplingDefaults(temperature=0.6, top_p=0.9, top_k=40, repetition_penalty=1.1, max_tokens=7)
    await box.chat(temperature=None, max_tokens=None)
    sampling = box.engine.submitted[-1].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.max_tokens) == (0.6, 0.9, 40, 7)
    assert sampling.repetition_penalty == 1.1
    await box.chat(temperature=1e-8, top_p=0.5, top_k=-1)
    sampling = box.engine.submitted[-1].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.0, 1.0, 0)


async def test_continue_final_message(box: Box) -> None:
    messages = [USER, {"role": "assistant", "content": "My name is"}]
    answer = await box.chat(messages=messages, continue_final_message=True, echo=True, return_prompt_text=True)
    assert answer.json()["prompt_text"].endswith("My name is")
    assert answer.json()["choices"][0]["message"]["content"] == "My name is red red red red"
    wrong = await box.chat(messages=messages, continue_final_message=True, add_generation_prompt=True)
    assert_error(wrong, 400, "continue_final_message")
    open_end = await box.chat(add_generation_prompt=False, return_prompt_text=True)
    assert open_end.json()["prompt_text"].endswith("hi<|im_end|>\n")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"chat_template": "{{ 1 }}"}, "chat_template"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"reasoning_effort": "enormous"}, "reasoning_effort"), ({"documents": "x"}, "documents"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": {}}, "response_format.type"),
    ],
)  # fmt: skip
async def test_refused_fields(box: Box, fields: dict[str, Any], param: str) -> None:
    assert_error(await box.chat(**fields), 400, param)


async def test_requests_carry_what_the_scheduler_needs(make_box: MakeBox) -> None:
    box = await make_box(ScriptedEngine())
    assert (await box.chat(priority=-3, cache_salt="tenant", response_format={"type": "text"})).status_code == 200
    request = box.engine.submitted[-1]
    assert (request.priority, request.cache_salt) == (-3, "tenant")
    assert request.arrival_time > 0
    assert_error(await box.chat(cache_salt="a/b"), 400, "cache_salt")
    assert_error(await box.chat(cache_salt=""), 400, "cache_salt")
