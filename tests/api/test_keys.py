"""Keys from a file: who may do what, how much, and what the caller and the log are told."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from appliance.api import wrong_keys
from appliance.api.rate_limits import HEADERS, print_duration
from appliance.keys.api_key import digest
from appliance.keys.key_file import print_entry
from engine.messages import RequestOutput
from tests.api.conftest import MakeBox
from tests.api.harness import NAME, AsgiCall, Box, assert_error, read_events
from tests.api.scripted_engine import ScriptedEngine

PATIENCE_S = 30.0
CHAT: dict[str, Any] = {
    "model": NAME,
    "messages": [{"role": "user", "content": "hi"}],
    "max_tokens": 4,
    "temperature": 0,
}
PROMPT_TOKENS = 31
FULL = RequestOutput(
    request_id="", finish_reason="error", error="the server is full: 9 requests wait", queue_limit="max_num_queued_reqs"
)


def write_keys(folder: Path, **keys: dict[str, Any]) -> Path:
    """A file in which the secret of key `name` is `name` and some more."""
    file = folder / "keys.toml"
    entries = [print_entry(name, [digest(secret_of(name).encode())], fields) for name, fields in keys.items()]
    file.write_text("\n".join(entries))
    file.chmod(0o600)
    return file


def secret_of(name: str) -> str:
    return f"{name}-0123456789abcdef"


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret_of(name)}"}


async def chat(box: Box, key: str, **fields: Any) -> Any:
    return await box.client.post("/v1/chat/completions", json=CHAT | fields, headers=bearer(key))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path


async def open_box(make_box: MakeBox, folder: Path, engine: ScriptedEngine | None = None, **keys: Any) -> Box:
    box: Box = await make_box(engine, api_key_file=write_keys(folder, **keys), run_dir=folder / "run")
    return box


@pytest.mark.parametrize(
    ("scopes", "allowed"),
    [
        (None, {"/v1/models", f"/v1/models/{NAME}", "/v1/chat/completions", "/tokenize", "/openapi.json"}),
        (["inference"], {"/v1/chat/completions", "/tokenize", "/openapi.json"}),
        (["models"], {"/v1/models", f"/v1/models/{NAME}"}),
        (["metrics"], {"/metrics", "/load"}),
    ],
)
async def test_a_key_opens_what_its_scopes_name(
    make_box: MakeBox, folder: Path, scopes: list[str] | None, allowed: set[str]
) -> None:
    box = await open_box(make_box, folder, alice={"scopes": scopes})
    posts = {"/v1/chat/completions": CHAT, "/tokenize": {"prompt": "hi"}}
    for path in ("/v1/models", f"/v1/models/{NAME}", "/metrics", "/load", "/openapi.json", *posts):
        method = "POST" if path in posts else "GET"
        response = await box.client.request(method, path, json=posts.get(path), headers=bearer("alice"))
        if path in allowed:
            assert response.status_code == 200, path
        else:
            assert "scope" in assert_error(response, 403, code="insufficient_scope")


async def test_a_key_ends_when_its_time_is_over(make_box: MakeBox, folder: Path) -> None:
    file = write_keys(folder, alice={})
    file.write_text(file.read_text() + "expires = 2020-01-01\n")
    box = await make_box(api_key_file=file, run_dir=folder / "run")
    assert_error(await chat(box, "alice"), 401, code="expired_api_key")


async def test_a_file_without_keys_lets_nobody_in(make_box: MakeBox, folder: Path) -> None:
    box = await open_box(make_box, folder)
    assert_error(await chat(box, "alice"), 401)
    assert (await box.client.get("/health")).status_code == 200


async def test_both_kinds_of_keys_go_together(make_box: MakeBox, folder: Path, caplog: Any) -> None:
    file = write_keys(folder, alice={})
    box = await make_box(api_key=(secret_of("plain"),), api_key_file=file, run_dir=folder / "run")
    with caplog.at_level("INFO", "appliance.api"):
        for name in ("alice", "plain", "wrong"):
            await chat(box, name)
    lines = [record.facts for record in caplog.records if hasattr(record, "facts")]
    assert [(line["status"], line.get("key")) for line in lines] == [(200, "alice"), (200, "api-key-1"), (401, None)]
    assert "0123456789abcdef" not in caplog.text
    assert [request.tenant for request in box.engine.submitted] == ["alice", "api-key-1"]


async def test_requests_per_minute(make_box: MakeBox, folder: Path) -> None:
    box = await open_box(make_box, folder, alice={"requests_per_minute": 3}, bob={})
    answers = [await chat(box, "alice", stream=index == 1) for index in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert [answer.headers["x-ratelimit-remaining-requests"] for answer in answers] == ["2", "1", "0", "0"]
    assert {answer.headers["x-ratelimit-limit-requests"] for answer in answers} == {"3"}
    assert read_events(answers[1].text)
    message = assert_error(answers[3], 429, code="rate_limit_exceeded")
    assert "limit of 3 (requests_per_minute)" in message
    assert 1 <= int(answers[3].headers["retry-after"]) <= 20
    assert "x-ratelimit-limit-tokens" not in answers[0].headers
    assert len(box.engine.submitted) == 3
    # Another key, another route of the same: neither is touched.
    assert not set(HEADERS) & set((await chat(box, "bob")).headers)
    assert (await box.client.get("/v1/models", headers=bearer("alice"))).status_code == 200


async def test_tokens_per_minute(make_box: MakeBox, folder: Path) -> None:
    box = await open_box(make_box, folder, alice={"tokens_per_minute": 2 * PROMPT_TOKENS + 10})
    first = await chat(box, "alice")
    assert first.headers["x-ratelimit-remaining-tokens"] == str(PROMPT_TOKENS + 10)
    second = await chat(box, "alice")
    assert int(second.headers["x-ratelimit-remaining-tokens"]) in range(6, 10), "four were generated"
    third = await chat(box, "alice")
    assert f"the prompt has {PROMPT_TOKENS} tokens" in assert_error(third, 429)
    assert int(third.headers["retry-after"]) >= 1
    assert third.headers["x-ratelimit-reset-tokens"].endswith("s")


async def test_the_prompts_of_a_list_count_together(make_box: MakeBox, folder: Path) -> None:
    box = await open_box(make_box, folder, alice={"tokens_per_minute": 1000})
    body = {"model": NAME, "prompt": [[1, 2, 3], [4, 5]], "max_tokens": 1}
    answer = await box.client.post("/v1/completions", json=body, headers=bearer("alice"))
    assert answer.headers["x-ratelimit-remaining-tokens"] == "995"


async def test_what_a_full_queue_refuses_costs_nothing(make_box: MakeBox, folder: Path) -> None:
    engine = ScriptedEngine(refuses=FULL)
    box = await open_box(make_box, folder, engine, alice={"requests_per_minute": 1, "tokens_per_minute": PROMPT_TOKENS})
    for _ in range(3):
        assert_error(await chat(box, "alice"), 503, code="queue_full")
    engine.refuses = None
    assert (await chat(box, "alice")).status_code == 200
    assert_error(await chat(box, "alice"), 429)


async def test_what_fails_unexpectedly_costs_nothing(
    make_box: MakeBox, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = await open_box(make_box, folder, alice={"requests_per_minute": 1})
    with monkeypatch.context() as patch:
        patch.setattr(box.app.state.api.models, "get", lambda name: 1 / 0)
        for _ in range(3):
            assert_error(await chat(box, "alice"), 500)
    assert (await chat(box, "alice")).status_code == 200


async def test_a_secret_may_end_with_any_letter(make_box: MakeBox) -> None:
    secret = "0123456789-voilà"
    box = await make_box(api_key=(secret,))
    for name, value in (("authorization", f"Bearer  {secret} "), ("x-api-key", secret)):
        headers = {name.encode(): value.encode()}
        assert (await box.client.get("/v1/models", headers=headers)).status_code == 200, name


async def test_requests_at_once(make_box: MakeBox, folder: Path) -> None:
    gate = asyncio.Semaphore(0)
    engine = ScriptedEngine(gate=gate)
    box = await open_box(make_box, folder, engine, alice={"max_concurrent": 2})
    running = [asyncio.create_task(chat(box, "alice")) for _ in range(2)]
    for _ in running:
        await engine.arrivals.acquire()
    refused = await chat(box, "alice")
    assert "limit of 2 (max_concurrent)" in assert_error(refused, 429)
    assert refused.headers["retry-after"] == "1"
    for _ in range(3 * CHAT["max_tokens"]):
        gate.release()
    assert {answer.status_code for answer in await asyncio.gather(*running)} == {200}
    assert (await chat(box, "alice")).status_code == 200


async def test_a_client_that_leaves_gives_its_place_back(make_box: MakeBox, folder: Path) -> None:
    engine = ScriptedEngine(gate=asyncio.Semaphore(0))
    box = await open_box(make_box, folder, engine, alice={"max_concurrent": 1})
    call = AsgiCall(box.app, "/v1/chat/completions", CHAT | {"stream": True})
    call._scope["headers"].append((b"authorization", bearer("alice")["authorization"].encode()))
    async with call:
        await engine.arrivals.acquire()
        assert_error(await chat(box, "alice"), 429)
    engine.gate = None
    assert (await chat(box, "alice")).status_code == 200


async def test_anthropics_clients_get_their_envelope(make_box: MakeBox, folder: Path) -> None:
    box = await open_box(make_box, folder, alice={"requests_per_minute": 1})
    headers = {"x-api-key": secret_of("alice")}
    answers = [await box.client.post("/v1/messages", json=CHAT, headers=headers) for _ in range(2)]
    assert answers[0].status_code == 200
    assert answers[1].status_code == 429
    assert answers[1].json()["error"]["type"] == "rate_limit_error"
    assert answers[1].headers["x-ratelimit-limit-requests"] == "1"


async def test_refusals_are_counted_by_reason(make_box: MakeBox, folder: Path) -> None:
    box = await open_box(make_box, folder, alice={"requests_per_minute": 1}, eve={"scopes": ["models"]})
    for key in ("alice", "alice", "eve"):
        await chat(box, key)
    for reason in ("rate_limited", "unauthorized"):
        labels = {"reason": reason}
        assert box.app.state.api.metrics.registry.get_sample_value("breadbox:rejected_requests_total", labels) == 1


async def test_a_rotation_fails_no_request(make_box: MakeBox, folder: Path) -> None:
    """While both secrets are valid everybody changes over; then the old one ends."""
    box = await open_box(make_box, folder, old={})
    both = f'hash = ["sha256:{digest(secret_of("new").encode()).hex()}", "sha256:'
    file = folder / "keys.toml"
    only_old = file.read_text()
    statuses: list[int] = []

    async def ask_until(name: str, status: int) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while (await chat(box, name)).status_code != status:
            assert time.monotonic() < deadline_s
            await asyncio.sleep(0.05)

    async def keep_asking(names: list[str]) -> None:
        while names:
            statuses.append((await chat(box, names[-1])).status_code)
            await asyncio.sleep(0.01)

    names = ["old"]
    client = asyncio.create_task(keep_asking(names))
    file.write_text(only_old.replace('hash = "sha256:', both).replace('"\n', '"]\n', 2).replace('"old"]', '"old"'))
    await ask_until("new", 200)
    names.append("new")
    await asyncio.sleep(0.05)
    file.write_text(only_old.replace(digest(secret_of("old").encode()).hex(), digest(secret_of("new").encode()).hex()))
    await ask_until("old", 401)
    names.clear()
    await client
    assert set(statuses) == {200}


async def test_wrong_keys_are_slowed_and_nobody_else(
    make_box: MakeBox, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = await open_box(make_box, folder, alice={})
    hold = asyncio.Event()
    begun = asyncio.Semaphore(0)
    delays: list[float] = []

    async def sleep(delay_s: float) -> None:
        delays.append(delay_s)
        begun.release()
        await hold.wait()

    monkeypatch.setattr("appliance.api.wrong_keys.asyncio", type("Clock", (), {"sleep": staticmethod(sleep)}))
    guesses = [asyncio.create_task(chat(box, f"guess-{number}")) for number in range(8)]
    for _ in guesses:
        await begun.acquire()
    assert (await chat(box, "alice")).status_code == 200, "the right key does not wait"
    assert not any(guess.done() for guess in guesses)
    assert delays == [min(wrong_keys.FIRST_DELAY_S * 2**count, wrong_keys.MAX_DELAY_S) for count in range(8)]
    hold.set()
    assert {answer.status_code for answer in await asyncio.gather(*guesses)} == {401}
    other = bearer("guess") | {"x-forwarded-for": "10.0.0.1, 192.0.2.7"}
    await box.client.get("/v1/models", headers=other)
    assert delays[-1] == wrong_keys.FIRST_DELAY_S, "another address begins anew"


@pytest.mark.parametrize(
    ("seconds", "printed"), [(0, "0ms"), (0.12, "120ms"), (7.66, "7.66s"), (360, "6m0s"), (3723, "1h2m3s")]
)
def test_durations_are_printed_as_openai_does(seconds: float, printed: str) -> None:
    assert print_duration(seconds) == printed


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"n": 3}, {"n": 3, "stream": True}])
async def test_a_full_queue_is_a_503_before_any_byte(make_box: MakeBox, fields: dict[str, Any]) -> None:
    box = await make_box(ScriptedEngine(refuses=FULL))
    for answer in (await box.chat(**fields), await box.complete(prompt=["a", "b"], **fields)):
        assert "is full" in assert_error(answer, 503, code="queue_full")
        assert answer.headers["retry-after"] == "5"
    value = box.app.state.api.metrics.registry.get_sample_value
    assert value("breadbox:rejected_requests_total", {"reason": "queue_full"}) == 2
    labels = {"model_name": NAME, "reason": "max_num_queued_reqs"}
    assert value("vllm:admission_rejections_total", labels) == 2


async def test_what_belongs_together_says_so_to_the_engine(box: Box) -> None:
    await box.chat(n=1)
    await box.complete(prompt=["a"], n=1)
    assert [request.group for request in box.engine.submitted] == [None, None]
    await box.chat(n=2)
    await box.complete(prompt=[[1, 2], [3]], n=2)
    groups = [request.group for request in box.engine.submitted[2:]]
    assert [(group.num_requests, group.num_tokens) for group in groups if group] == [
        *[(2, 2 * PROMPT_TOKENS)] * 2,
        *[(4, 6)] * 4,
    ]
    assert len({group.group_id for group in groups if group}) == 2


async def test_tools_and_nesting_have_limits(make_box: MakeBox) -> None:
    box = await make_box(max_tools=2, max_json_depth=10)
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    assert "at most 2 tools" in assert_error(await box.chat(tools=[tool] * 3), 400, "tools")
    deep: Any = 1
    for _ in range(200):
        deep = [deep]
    assert "deeper than 10 levels" in assert_error(await box.chat(metadata=deep), 400)
