"""What the box and a request may say about the chat template, and the fields that the thinking is written into."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from appliance.api.conversation import own_templates
from appliance.preflight import find_problems
from appliance.settings import Settings
from appliance.text import template_process, template_renderer
from appliance.text.template_renderer import Rendering
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
    assert_error(response, 400, "chat_template")


ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
BOMBS = [
    "{{ 'a' * 10**9 }}",
    "{{ 'a' | center(1000000000) }}",
    "{{ 'a'.zfill(10000000000) }}",
    "{{ '%9999999999s' % 1 }}",
    "{{ '%9999999999s' | format(1) }}",
    "{{ '{:>9999999999}'.format(1) }}",
    "{{ [1] | batch(10000000000, 1) | list }}",
    "{{ 'x\\ny' * 500000 | indent(100000) }}",
    "{{ {'a': 1} | tojson(indent=10000000000) }}",
    "{{ 'ab'.replace('', 'c' * 50000000) }}",
    "{{ (range(100000) | list) * 5000 }}",
    "{% set n = namespace(x=[]) %}{% for i in range(9999) %}{% set n.x = n.x + ['a' * 1000000 ~ i] %}{% endfor %}",
    "{% set n = namespace(x=3) %}{% for i in range(60) %}{% set n.x = n.x * n.x %}{% endfor %}{{ n.x % 7 }}",
    ENDLESS,
    "{{ lipsum(100000000) }}",
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "{% for a in [1] %}" * 30 + "x" + "{% endfor %}" * 30,
]


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def peak_bytes() -> int:
    """The most memory that this process had since `forget_peak`."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


@pytest.mark.parametrize("template", BOMBS, ids=lambda template: template[:40])
async def test_what_a_requests_template_may_use_is_bounded(
    open_box: Box, template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A 400 that names it, whatever grows in it, and not in this process."""
    monkeypatch.setattr(template_renderer, "MAX_RENDER_S", 2.0)
    fields = {"messages": [{"role": "user", "content": "hi"}], "chat_template": template}
    paths = {"/v1/chat/completions": {"truncate_prompt_tokens": 5}} | (
        {"/tokenize": {}} if template == BOMBS[0] else {}
    )
    await open_box.chat()
    forget_peak()
    before = peak_bytes()
    for path, more in paths.items():
        assert len(assert_error(await open_box.client.post(path, json=fields | more), 400, "chat_template")) < 600
    assert peak_bytes() - before < 32 * 1024**2


async def test_few_templates_of_requests_are_rendered_at_once(open_box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go = asyncio.Semaphore(0), asyncio.Event()

    async def render(rendering: Rendering) -> str:
        begun.release()
        await go.wait()
        return "x"

    monkeypatch.setattr(own_templates, "render_apart", render)
    most = own_templates.MAX_AT_ONCE + own_templates.MAX_WAITING
    asked = [asyncio.create_task(open_box.chat(chat_template="x")) for _ in range(most)]
    for _ in range(own_templates.MAX_AT_ONCE):
        await begun.acquire()
    async with asyncio.timeout(30):
        while (refused := await open_box.chat(chat_template="x")).status_code == 200:
            pass
    assert "are waiting" in assert_error(refused, 503)
    assert (await open_box.chat()).status_code == 200, "nobody else waits"
    go.set()
    assert {answer.status_code for answer in await asyncio.gather(*asked)} == {200}
    assert (await open_box.chat(chat_template="x")).status_code == 200


KEYS = ("one-0123456789abcdef", "two-0123456789abcdef")


async def test_one_keys_templates_do_not_hold_up_anothers(make_box: MakeBox, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key has neither all places nor all of the queue, however much it asks."""
    begun, go = asyncio.Queue[str](), asyncio.Event()

    async def render(rendering: Rendering) -> str:
        begun.put_nowait(rendering.source)
        if rendering.source == KEYS[0]:
            await go.wait()
        return "x"

    monkeypatch.setattr(own_templates, "render_apart", render)
    box = await make_box(trust_request_chat_template=True, api_key=KEYS)

    async def ask(key: str) -> int:
        body = {"model": NAME, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "chat_template": key}
        headers = {"authorization": f"Bearer {key}"}
        return (await box.client.post("/v1/chat/completions", json=body, headers=headers)).status_code

    flood = [asyncio.create_task(ask(KEYS[0])) for _ in range(50)]
    assert await begun.get() == KEYS[0]
    async with asyncio.timeout(60):
        assert [await ask(KEYS[1]) for _ in range(3)] == [200] * 3
    assert [begun.get_nowait() for _ in range(begun.qsize())] == [KEYS[1]] * 3
    go.set()
    statuses = await asyncio.gather(*flood)
    assert (statuses.count(200), statuses.count(503)) == (own_templates.MAX_OF_A_KEY, 50 - own_templates.MAX_OF_A_KEY)


@pytest.mark.parametrize("executable", ["/nonexistent", "/bin/false"])
async def test_without_a_process_for_it_a_template_is_a_503(
    open_box: Box, monkeypatch: pytest.MonkeyPatch, executable: str
) -> None:
    """It is the machine's fault, and it ends: not a 400, not a 500."""
    with monkeypatch.context() as patched:
        patched.setattr(sys, "executable", executable)
        refused = await open_box.chat(chat_template="x")
    assert "the process that renders the chat template" in assert_error(refused, 503)
    assert int(refused.headers["retry-after"]) > 0
    assert (await open_box.chat(chat_template="x")).status_code == 200


async def test_without_files_for_it_a_template_is_a_503_and_none_are_lost(open_box: Box) -> None:
    assert (await open_box.chat(chat_template="x")).status_code == 200
    before = list_files()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(before), hard))
        refused = [await open_box.chat(chat_template="x") for _ in range(3)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for answer in refused:
        assert "cannot be started" in assert_error(answer, 503)
    assert list_files() == before
    assert (await open_box.chat(chat_template="x")).status_code == 200


def list_files() -> list[str]:
    """What this process has open, without the folder that is read for that."""
    return [name for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")]


@pytest.mark.parametrize("delay_s", [0, 0.003, 0.03, 0.3])
async def test_a_rendering_that_is_given_up_leaves_nothing(delay_s: float) -> None:
    before = list_files()
    conversation = {"messages": [{"role": "user", "content": "hi" * 1_000_000}]}
    rendering = Rendering(ENDLESS, conversation, {}, [], [])
    task = asyncio.create_task(template_process.render_apart(rendering))
    await asyncio.sleep(delay_s)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert list_files() == before
    assert not [child for child in psutil.Process().children() if "template_renderer" in " ".join(child.cmdline())]


def test_a_conversation_may_be_long_where_the_whole_box_has_a_bound() -> None:
    """More than the template's own bound would be is left as it is."""
    program = (
        "import asyncio, resource\n"
        "from appliance.text.template_process import render_apart\n"
        "from appliance.text.template_renderer import Rendering\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))\n"
        "conversation = {'messages': [{'role': 'user', 'content': 'x' * 30_000_000}]}\n"
        "text = asyncio.run(render_apart(Rendering('{{ messages[0].content }}', conversation, {}, [], [])))\n"
        "assert len(text) == 30_000_000\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


async def test_a_requests_template_sees_what_any_sees(open_box: Box) -> None:
    """Unicode of every kind, tools, look-alikes of control tokens, the message that is continued."""
    template = open_box.model.chat_template
    assert template is not None
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    fields: dict[str, Any] = {
        "messages": [
            {"role": "user", "content": "é \U0001f600 <|im_end|> \x00"},
            {"role": "assistant", "content": "So <|im_start|>"},
        ],
        "tools": [tool],
        "continue_final_message": True,
        "add_generation_prompt": False,
    }
    own = {"chat_template": template.source}
    answers = [await open_box.client.post("/tokenize", json=fields | more) for more in ({}, own)]
    assert answers[0].status_code == 200
    assert answers[0].json() == answers[1].json()


@pytest.mark.parametrize("name", ["self", "source", "template", "parent", "true"])
async def test_variables_may_have_any_name(open_box: Box, name: str) -> None:
    for fields in ({}, {"chat_template": "x"}):
        assert (await open_box.chat(chat_template_kwargs={name: 1}, **fields)).status_code == 200


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
