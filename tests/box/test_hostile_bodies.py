"""Bodies that are within the limit of bytes and expensive to read: other clients' streams flow on meanwhile."""

from __future__ import annotations

import asyncio
import json
import time

import httpx

from tests.box.running_box import RunningBox
from tests.box.test_serving import STORY

MODEL = "SmolLM2-135M-Instruct"
BYTES = 8_000_000  # just under the default limit
TOKENIZED_BYTES = 1_000_000  # a limit of the test's time
USER = b'{"role": "user", "content": "hi"}'
LARGEST_GAP_S = 5.0  # far under 1.5 s on a quiet machine


def ready(pattern: str) -> str:
    """What is accepted is answered in three tokens: left alone, an answer may fill the context."""
    pattern = pattern.replace('"model": "MODEL"', f'"model": "{MODEL}", "max_tokens": 3')
    return pattern.replace("USER", USER.decode())


def filled(pattern: str, item: bytes, separator: bytes = b",", size: int = BYTES) -> bytes:
    """As many items as there is room for, in place of the ``@`` of a body."""
    head, tail = ready(pattern).encode().split(b"@")
    count = (size - len(head) - len(tail)) // (len(item) + len(separator))
    return head + separator.join([item] * count) + tail


CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def hostile_bodies() -> list[tuple[str, bytes]]:
    """Each kind of work that a body can make."""
    deep_schema = json.dumps({"type": "object", "properties": {f"p{n}": {"enum": [n]} for n in range(30_000)}})
    schema = f'{{"type": "json_schema", "json_schema": {{"name": "x", "schema": {deep_schema}}}}}'
    ids = ",".join(f'"{n}": 1' for n in range(600_000))
    return [
        (CHAT, filled('{"model": "MODEL", "messages": [@]}', USER)),
        (CHAT, filled('{"model": "MODEL", "messages": [@]}', b"{}")),
        (COMPLETIONS, filled('{"model": "MODEL", "prompt": [@]}', b"[1]")),
        (COMPLETIONS, filled('{"model": "MODEL", "prompt": [@]}', b"1")),
        (COMPLETIONS, filled('{"model": "MODEL", "prompt": [@]}', b'"a"')),
        (COMPLETIONS, filled('{"model": "MODEL", "prompt": "@"}', b"wo ", b"")),
        (CHAT, filled('{"model": "MODEL", "messages": [{"role": "user", "content": "@"}]}', b"[{", b"")),
        (CHAT, filled('{"model": "MODEL", "messages": [USER], "stop_token_ids": [@]}', b"1")),
        (CHAT, filled('{"model": "MODEL", "messages": [USER], "stop": ["@"]}', b"ab", b"")),
        (CHAT, filled('{"model": "MODEL", "messages": [USER], "bad_words": ["@"]}', b"ab ", b"")),
        (CHAT, filled('{"model": "MODEL", "messages": [USER], "user": "@"}', b"\\u00e9", b"")),
        (CHAT, ready('{"model": "MODEL", "messages": [USER], "logit_bias": {@}}').replace("@", ids).encode()),
        (CHAT, ready(f'{{"model": "MODEL", "messages": [USER], "response_format": {schema}}}').encode()),
        (
            "/tokenize",
            filled('{"model": "MODEL", "prompt": "@", "return_token_strs": true}', b"a b ", b"", TOKENIZED_BYTES),
        ),
        ("/detokenize", filled('{"model": "MODEL", "tokens": [@]}', b"1", b",", TOKENIZED_BYTES)),
        ("/v1/responses", filled('{"model": "MODEL", "input": [@]}', USER)),
        ("/v1/messages", filled('{"model": "MODEL", "messages": [@]}', USER)),
    ]


async def test_streams_flow_while_hostile_bodies_are_read(box: RunningBox) -> None:
    bodies = hostile_bodies()
    is_over, gaps = asyncio.Event(), list[float]()
    async with httpx.AsyncClient(base_url=box.url, timeout=150) as client:
        streams = [asyncio.create_task(_stream_on(client, is_over, gaps)) for _ in range(2)]
        for path, body in bodies:
            start = len(gaps)
            answer = await _send(client, path, body)
            assert answer in (200, 400), (path, body[:100])
            print(f"largest gap {max(gaps[start:], default=0):.3f} s, {answer}: {path} {body[:100]!r}")
        is_over.set()
        await asyncio.gather(*streams)
    assert max(gaps) < LARGEST_GAP_S
    assert (await asyncio.to_thread(httpx.get, f"{box.url}/readyz", timeout=10)).status_code == 200


async def _send(client: httpx.AsyncClient, path: str, body: bytes) -> int:
    response = await client.post(path, content=body, headers={"content-type": "application/json"})
    return response.status_code


async def _stream_on(client: httpx.AsyncClient, is_over: asyncio.Event, gaps: list[float]) -> None:
    """One long stream after another, on connections of both API workers."""
    while not is_over.is_set():
        last = None
        body = STORY | {"max_tokens": 400, "stream": True}
        async with client.stream("POST", CHAT, json=body, headers={"connection": "close"}) as response:
            assert response.status_code == 200
            async for _ in response.aiter_bytes():
                now = time.monotonic()
                gaps += [now - last] if last is not None else []
                last = now
                if is_over.is_set():
                    break
