"""Requests that bring their own chat template, in a real worker: bounded there, and no other request feels it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from appliance.text.template_renderer import MAX_RENDER_S
from tests.box.running_box import RunningBox, running_box

FLAGS = ["--kv-cache-memory", "4MiB", "--max-num-seqs", "8", "--api-workers", "1", "--trust-request-chat-template"]
PATIENCE_S = 300  # a starved machine is slow; what never comes is still found
NUM_TRIES = 20
PATH = "/v1/chat/completions"
GROWS = "{% set n = namespace(x=[]) %}{% for i in range(9999) %}{% set n.x = n.x + ['a' * 1000000 ~ i] %}{% endfor %}"
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
PLAIN = "{{ messages[0].content }}{% if false %}{{ 'a' * 10**9 }}{% endif %}"


@pytest.fixture(scope="module")
def box(tiny: Path) -> Iterator[RunningBox]:
    with running_box(tiny, flags=FLAGS) as box:
        box.wait_ready()
        yield box


@pytest.fixture
async def client(box: RunningBox) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=box.url, timeout=PATIENCE_S) as client:
        yield client


async def ask(client: httpx.AsyncClient, template: str) -> httpx.Response:
    """As a client does who asks again when the machine is too busy."""
    body = {"messages": [{"role": "user", "content": "Once"}], "max_tokens": 2, "chat_template": template}
    for _ in range(NUM_TRIES):
        answer = await client.post(PATH, json=body)
        if answer.status_code != 503:
            break
        await asyncio.sleep(float(answer.headers["retry-after"]))
    return answer


def find_renderers(box: RunningBox) -> list[psutil.Process]:
    return box.find("template_renderer")


async def catch_renderer(box: RunningBox) -> psutil.Process:
    """Once it is at its template: it has made itself nicer then."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            for process in find_renderers(box):
                with contextlib.suppress(psutil.NoSuchProcess):
                    if process.nice() > box.process.nice():
                        return process
            await asyncio.sleep(0.02)


async def check_ends_early(process: psutil.Process) -> None:
    """Somebody ends it, rather than its own bound."""
    used_s = 0.0
    with contextlib.suppress(psutil.NoSuchProcess):
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            used_s = sum(process.cpu_times()[:2])
            await asyncio.sleep(0.02)
    assert used_s < MAX_RENDER_S * 0.75


async def test_a_template_that_grows_costs_the_worker_nothing(box: RunningBox, client: httpx.AsyncClient) -> None:
    worker = box.find("gunicorn")[-1]
    assert (await ask(client, PLAIN)).status_code == 200
    before = worker.memory_info().rss
    asked = [asyncio.create_task(ask(client, GROWS)) for _ in range(2)]
    answer = await client.post("/v1/completions", json={"prompt": "Once", "max_tokens": 2})
    assert answer.status_code == 200
    for answer in await asyncio.gather(*asked):
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "chat_template")
    assert worker.memory_info().rss - before < 32 * 1024**2
    assert worker.is_running()
    assert (await ask(client, PLAIN)).status_code == 200
    assert not find_renderers(box)


async def test_a_client_that_leaves_takes_its_rendering_along(box: RunningBox, client: httpx.AsyncClient) -> None:
    asked = asyncio.create_task(ask(client, ENDLESS))
    process = await catch_renderer(box)
    asked.cancel()
    await check_ends_early(process)
    assert (await ask(client, PLAIN)).status_code == 200


async def test_a_worker_that_is_killed_takes_its_rendering_along(box: RunningBox, client: httpx.AsyncClient) -> None:
    asked = asyncio.create_task(ask(client, ENDLESS))
    process = await catch_renderer(box)
    box.find("gunicorn")[-1].kill()
    await check_ends_early(process)
    asked.cancel()
    assert (await ask(client, PLAIN)).status_code == 200
