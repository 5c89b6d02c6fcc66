"""Requests that bring their own chat template, in a real worker: bounded there, and no other request feels it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import psutil

from tests.box.running_box import running_box

FLAGS = ["--kv-cache-memory", "4MiB", "--max-num-seqs", "8", "--api-workers", "1", "--trust-request-chat-template"]
TIMEOUT_S = 150
GROWS = "{% set n = namespace(x=[]) %}{% for i in range(9999) %}{% set n.x = n.x + ['a' * 1000000 ~ i] %}{% endfor %}"
PLAIN = "{{ messages[0].content }}{% if false %}{{ 'a' * 10**9 }}{% endif %}"


def body(template: str) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": "Once"}], "max_tokens": 2, "chat_template": template}


async def test_a_template_that_grows_costs_the_worker_nothing(tiny: Path) -> None:
    with running_box(tiny, flags=FLAGS) as box:
        box.wait_ready()
        worker: psutil.Process = box.find("gunicorn")[-1]
        async with httpx.AsyncClient(base_url=box.url, timeout=TIMEOUT_S) as client:
            path = "/v1/chat/completions"
            assert (await client.post(path, json=body(PLAIN))).status_code == 200
            before = worker.memory_info().rss
            asked = [asyncio.create_task(client.post(path, json=body(GROWS))) for _ in range(2)]
            answer = await client.post("/v1/completions", json={"prompt": "Once", "max_tokens": 2})
            assert answer.status_code == 200
            for answer in await asyncio.gather(*asked):
                assert (answer.status_code, answer.json()["error"]["param"]) == (400, "chat_template")
            assert worker.memory_info().rss - before < 32 * 1024**2
            assert worker.is_running()
            assert (await client.post(path, json=body(PLAIN))).status_code == 200
        assert not [process for process in box.process.children(recursive=True) if "template" in str(process.cmdline())]
