"""Keys and limits over two API workers: exact, fair, and free again when a worker is killed. Counted, never timed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from appliance.keys.api_key import digest
from appliance.keys.key_file import print_entry
from tests.box.running_box import RunningBox, running_box

MODEL = "SmolLM2-135M-Instruct"
SEATS, PLACES = 2, 20
PLAIN_KEYS = ("first-0123456789abcdef", "second-0123456789abcdef")
FLAGS = [
    *("--kv-cache-memory", "768MiB", "--api-workers", "2"),
    *("--max-num-seqs", str(SEATS), "--max-num-queued-reqs", str(PLACES)),
    *("--api-key", PLAIN_KEYS[0], "--api-key", PLAIN_KEYS[1]),
]
KEYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "flood": {},
    "few": {"max_concurrent": 3},
    "seldom": {"requests_per_minute": 4},
    "watcher": {"scopes": ["metrics"]},
}
PATIENCE_S = 120.0
# The end-of-text tokens are forbidden, so that an answer is as long as was asked for.
SHORT: dict[str, Any] = {
    "model": MODEL,
    "prompt": "Once upon a time",
    "logit_bias": {"2": -100, "0": -100},
    "max_tokens": 8,
}
ENDLESS = SHORT | {"max_tokens": 8000, "stream": True}


def secret_of(name: str) -> str:
    return f"{name}-0123456789abcdef"


def write_keys(file: Path, names: list[str]) -> None:
    entries = [print_entry(name, [digest(secret_of(name).encode())], KEYS.get(name, {})) for name in names]
    file.write_text("\n".join(entries))


@contextlib.contextmanager
def rotated(file: Path, old: str, new: str) -> Iterator[None]:
    """While in here another secret is the key."""
    before = file.read_text()
    file.write_text(before.replace(digest(old.encode()).hex(), digest(new.encode()).hex()))
    try:
        yield
    finally:
        file.write_text(before)


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("keys") / "keys.toml"
    write_keys(file, list(KEYS))
    file.chmod(0o600)
    return file


@pytest.fixture(scope="module")
def box(shipped_model: Path, key_file: Path) -> Iterator[RunningBox]:
    with running_box(shipped_model, flags=[*FLAGS, "--api-key-file", str(key_file)]) as box:
        box.wait_ready()
        yield box


@pytest.fixture
async def client(box: RunningBox) -> AsyncIterator[httpx.AsyncClient]:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)  # each request picks a worker anew
    async with httpx.AsyncClient(base_url=box.url, timeout=PATIENCE_S, limits=limits) as client:
        yield client


async def ask(client: httpx.AsyncClient, name: str, **fields: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {secret_of(name)}"}
    return await client.post("/v1/completions", json=SHORT | fields, headers=headers)


@contextlib.asynccontextmanager
async def endless_streams(client: httpx.AsyncClient, name: str, count: int) -> AsyncIterator[None]:
    """As many streams as the box has seats, or more; those that have one have begun."""
    begun = asyncio.Semaphore(0)

    async def run() -> None:
        headers = {"authorization": f"Bearer {secret_of(name)}"}
        with contextlib.suppress(httpx.TransportError):
            async with client.stream("POST", "/v1/completions", json=ENDLESS, headers=headers) as response:
                async for line in response.aiter_lines():
                    if line.startswith("data: {"):
                        begun.release()

    tasks = [asyncio.create_task(run()) for _ in range(count)]
    try:
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(min(count, SEATS)):
                await begun.acquire()
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def wait_until(condition: Any) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not await condition():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.1)


def num_in_flight(box: RunningBox) -> int:
    """As the workers have it written down, over all keys."""
    total = 0
    for record in (box.run_dir / "keys").glob("*.json"):
        with contextlib.suppress(ValueError):
            total += sum(json.loads(record.read_bytes().strip(b"\0 ")).get("in_flight", {}).values())
    return total


async def test_a_rate_is_kept_over_both_workers(client: httpx.AsyncClient) -> None:
    begin_s = time.monotonic()
    answers = await asyncio.gather(*(ask(client, "seldom") for _ in range(20)))
    statuses = Counter(answer.status_code for answer in answers)
    assert set(statuses) == {200, 429}
    leaked = (time.monotonic() - begin_s) * 4 / 60
    assert 4 <= statuses[200] <= 4 + leaked
    refused = [answer for answer in answers if answer.status_code == 429]
    assert all(1 <= int(answer.headers["retry-after"]) <= 15 for answer in refused)
    assert all(answer.json()["error"]["code"] == "rate_limit_exceeded" for answer in refused)
    assert all(answer.headers["x-ratelimit-limit-requests"] == "4" for answer in answers)


async def test_killed_workers_give_back_what_they_held(box: RunningBox, client: httpx.AsyncClient) -> None:
    async with endless_streams(client, "few", 3):

        async def are_counted() -> bool:
            return num_in_flight(box) == 3

        await wait_until(are_counted)
        answer = await ask(client, "few")
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
        master, *workers = box.find("gunicorn")
        for worker in workers:
            worker.kill()

        async def is_served() -> bool:
            with contextlib.suppress(httpx.TransportError):
                return (await ask(client, "few")).status_code == 200
            return False

        await wait_until(is_served)
    assert master.is_running()


async def test_a_full_queue_refuses_exactly_what_is_too_much(box: RunningBox, client: httpx.AsyncClient) -> None:
    """Ten times what may wait, while nothing moves: as many as may wait do, all others are refused meanwhile."""
    async with endless_streams(client, "plain", SEATS):
        asked = [asyncio.create_task(ask(client, "plain", stream=number % 2 == 0)) for number in range(10 * PLACES)]
        refused = []
        for answer in asyncio.as_completed(asked):
            refused.append(await answer)
            if len(refused) == 9 * PLACES:
                break
        assert {(answer.status_code, answer.headers["retry-after"]) for answer in refused} == {(503, "5")}
        assert {answer.json()["error"]["code"] for answer in refused} == {"queue_full"}
        health = await asyncio.gather(*(client.get(path) for path in ("/health", "/livez", "/readyz")))
        assert {answer.status_code for answer in health} == {200}
        assert (await ask(client, "flood", prompt=["a", "b"])).status_code == 503
    answers = await asyncio.gather(*asked)
    assert Counter(answer.status_code for answer in answers) == {200: PLACES, 503: 9 * PLACES}
    assert (await ask(client, "plain")).status_code == 200
    headers = {"authorization": f"Bearer {secret_of('watcher')}"}
    metrics = (await client.get("/metrics", headers=headers)).text
    (line,) = re.findall(r'breadbox:rejected_requests_total\{reason="queue_full"\} (\S+)', metrics)
    assert float(line) == 9 * PLACES + 1


async def look_up(client: httpx.AsyncClient, secret: str, response_id: str) -> set[tuple[int, str]]:
    """What a key gets to see of a response by every way that there is, from both workers."""
    headers, path = {"authorization": f"Bearer {secret}"}, f"/v1/responses/{response_id}"
    body = {"model": MODEL, "input": "More.", "max_output_tokens": 1, "previous_response_id": response_id}
    answers = []
    for _ in range(4):
        answers += [await client.get(path, headers=headers), await client.post(f"{path}/cancel", headers=headers)]
        answers += [await client.post("/v1/responses", json=body, headers=headers)]
    return {(answer.status_code, answer.text.replace(response_id, "ID")[:200]) for answer in answers}


@pytest.mark.parametrize("mine", [secret_of("plain"), PLAIN_KEYS[0]])
@pytest.mark.parametrize("other", [secret_of("flood"), PLAIN_KEYS[1]])
async def test_a_stored_response_is_its_keys_own(client: httpx.AsyncClient, mine: str, other: str) -> None:
    headers = {"authorization": f"Bearer {mine}"}
    body = {"model": MODEL, "input": "hi", "max_output_tokens": 2}
    response_id = (await client.post("/v1/responses", json=body, headers=headers)).json()["id"]
    path = f"/v1/responses/{response_id}"
    assert await look_up(client, other, response_id) == await look_up(client, other, "resp_" + "0" * 32)
    assert (await client.delete(path, headers={"authorization": f"Bearer {other}"})).status_code == 404
    # Its own key finds it in both workers, and continues it.
    assert {status for status, _ in await look_up(client, mine, response_id)} == {200, 400}
    assert (await client.delete(path, headers=headers)).status_code == 200


async def test_a_stored_response_outlives_secret_and_workers(
    box: RunningBox, client: httpx.AsyncClient, key_file: Path
) -> None:
    old, new = secret_of("plain"), "rotated-0123456789abcdef"
    body = {"model": MODEL, "input": "hi", "max_output_tokens": 2}
    answer = await client.post("/v1/responses", json=body, headers={"authorization": f"Bearer {old}"})
    response_id = answer.json()["id"]

    async def is_found() -> bool:
        with contextlib.suppress(httpx.TransportError):
            return {status for status, _ in await look_up(client, new, response_id)} == {200, 400}
        return False

    with rotated(key_file, old, new):
        for worker in box.find("gunicorn")[1:]:
            worker.kill()
        await wait_until(is_found)

    async def is_back() -> bool:
        return {status for status, _ in await look_up(client, old, response_id)} == {200, 400}

    await wait_until(is_back)


async def test_a_flood_does_not_hold_up_another_key(client: httpx.AsyncClient) -> None:
    flood = [asyncio.create_task(ask(client, "flood", max_tokens=16)) for _ in range(SEATS + PLACES - 2)]
    await asyncio.wait(flood, return_when=asyncio.FIRST_COMPLETED)
    for _ in range(3):
        assert (await ask(client, "plain", max_tokens=1)).status_code == 200
    num_done = sum(task.done() for task in flood)
    assert {answer.status_code for answer in await asyncio.gather(*flood)} == {200}
    assert num_done < len(flood) - SEATS, "the quiet key waited for the whole flood"


async def test_keys_change_without_a_failed_request(box: RunningBox, client: httpx.AsyncClient, key_file: Path) -> None:
    names, statuses = ["plain"], Counter[int]()

    async def keep_asking() -> None:
        while names:
            statuses[(await ask(client, names[-1], max_tokens=1)).status_code] += 1

    async def wait_for(name: str, status: int) -> None:
        """Over both workers, as far as some tries in a row can tell."""

        async def all_agree() -> bool:
            answers = await asyncio.gather(*(ask(client, name, max_tokens=1) for _ in range(4)))
            return {answer.status_code for answer in answers} == {status}

        await wait_until(all_agree)

    clients = [asyncio.create_task(keep_asking()) for _ in range(3)]
    write_keys(key_file, [*KEYS, "fresh"])
    await wait_for("fresh", 200)
    names.append("fresh")
    await asyncio.sleep(0.5)
    write_keys(key_file, ["fresh", "watcher"])
    await wait_for("plain", 401)
    names.clear()
    await asyncio.gather(*clients)
    assert set(statuses) == {200}
    lines = [line for line in box.output.splitlines() if " request " in line and " key=fresh" in line]
    assert lines
    assert "0123456789abcdef" not in box.output
