"""What the tests talk through: requests with defaults, streams taken apart, and what holds for every answer."""

from __future__ import annotations

import json
import math
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

MODEL = "SmolLM2-135M-Instruct"
ALIAS = "smol"
KEY = "e2e-key"
ORIGIN = "http://localhost:3000"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
VOCAB_SIZE, CONTEXT = 49152, 8192
RED, BLUE, NEWLINE, SPACE = 2382, 4461, 198, 216
ENDLESS = {"2": -100, "0": -100}  # the end-of-text tokens are forbidden: exactly max_tokens tokens come
CANARY = {"messages": [{"role": "user", "content": "Say OK"}], "max_tokens": 4, "temperature": 0}
FAST_S = 5.0  # a second on an idle machine


@dataclass
class Stream:
    """A finished stream of chat or completion chunks."""

    response: httpx.Response
    chunks: list[dict[str, Any]]
    arrivals: list[float] = field(default_factory=list)

    def choices(self, index: int = 0) -> list[dict[str, Any]]:
        """The pieces of one choice."""
        return [choice for chunk in self.chunks for choice in chunk["choices"] if choice["index"] == index]

    def text(self, index: int = 0) -> str:
        """All text of one choice."""
        return "".join(_piece(choice) for choice in self.choices(index))

    def finish(self, index: int = 0) -> str:
        """Its finish_reason, which must come exactly once and last."""
        reasons = [choice["finish_reason"] for choice in self.choices(index)]
        assert all(reason is None for reason in reasons[:-1]), reasons
        assert reasons[-1], reasons
        return str(reasons[-1])

    def tool_calls(self, index: int = 0) -> list[dict[str, Any]]:
        """Its calls, put together as every client does."""
        calls: list[dict[str, Any]] = []
        for choice in self.choices(index):
            for delta in choice.get("delta", {}).get("tool_calls", ()):
                if "id" in delta:
                    assert delta["index"] == len(calls)
                    calls.append({"id": delta["id"], "type": "function", "function": {"name": "", "arguments": ""}})
                function = calls[delta["index"]]["function"]
                function["name"] += delta["function"].get("name", "")
                function["arguments"] += delta["function"].get("arguments", "")
        return calls

    @property
    def usage(self) -> dict[str, Any]:
        """The usage chunk's."""
        (chunk,) = [chunk for chunk in self.chunks if not chunk["choices"]]
        usage: dict[str, Any] = chunk["usage"]
        return usage


def _piece(choice: dict[str, Any]) -> str:
    return choice.get("text", "") if "text" in choice else choice["delta"].get("content") or ""


def read_chunks(text: str) -> list[dict[str, Any]]:
    """The JSON of a stream's events, which must end with [DONE] and hold nothing but data lines and comments."""
    assert text.endswith("data: [DONE]\n\n"), text[-200:]
    events = [event for event in text.split("\n\n") if event and not event.startswith(":")]
    assert all(event.startswith("data: ") and "\n" not in event for event in events), text
    assert events.count("data: [DONE]") == 1
    return [parse_strictly(event.removeprefix("data: ")) for event in events[:-1]]


def parse_strictly(text: str) -> Any:
    """JSON without NaN and Infinity."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def check_error(
    response: httpx.Response, status: int, param: str | None = None, code: str | None = None, within_s: float = FAST_S
) -> str:
    """The one envelope and nothing of the inside, soon; returns the message."""
    assert response.status_code == status, response.text[:500]
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    assert response.elapsed.total_seconds() < within_s
    assert set(response.json()) == {"error"}
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert isinstance(error["type"], str)
    assert error["code"] is None or isinstance(error["code"], str)
    assert error["param"] == param, error
    assert code is None or error["code"] == code, error
    for inside in ("Traceback", "/home/", str(Path(__file__).parents[2]), ".py", "Error(", "pydantic", "<class"):
        assert inside not in error["message"]
    return str(error["message"])


class Caller:
    """One client of one box."""

    def __init__(self, url: str, key: str | None = KEY) -> None:
        self.url = url
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self.http = httpx.Client(base_url=url, headers=headers, timeout=120)
        self.canary_text = ""

    def close(self) -> None:
        """Let go of its connections."""
        self.http.close()

    def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        """A JSON request."""
        return self.http.post(path, json=body, headers=headers)

    def chat(self, content: str = "hi", **fields: Any) -> httpx.Response:
        """A chat; 4 greedy tokens unless the fields say otherwise."""
        return self.post(CHAT, chat_body(content, **fields))

    def complete(self, prompt: Any = "The capital of France is", **fields: Any) -> httpx.Response:
        """A completion; 4 greedy tokens unless the fields say otherwise."""
        return self.post(COMPLETIONS, completion_body(prompt, **fields))

    def stream(self, path: str, body: dict[str, Any]) -> Stream:
        """A stream read to its end."""
        with self.http.stream("POST", path, json=body | {"stream": True}) as response:
            started, parts, arrivals = time.monotonic(), [], []
            for part in response.iter_bytes():
                parts.append(part)
                arrivals.append(time.monotonic() - started)
        assert response.status_code == 200, b"".join(parts)
        assert response.headers["content-type"].startswith("text/event-stream")
        return Stream(response, read_chunks(b"".join(parts).decode("utf-8", "strict")), arrivals)

    def both(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The answer, which must be the same streamed and not: texts, calls, finish reasons, usage."""
        response = self.post(path, body)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = parse_strictly(response.text)
        stream = self.stream(path, body | {"stream_options": {"include_usage": True}})
        for choice in answer["choices"]:
            index = choice["index"]
            assert stream.text(index) == (text_of(choice) or "")
            assert stream.finish(index) == choice["finish_reason"]
            assert list(map(_call, stream.tool_calls(index))) == list(map(_call, calls_of(choice)))
        counts = ("prompt_tokens", "completion_tokens", "total_tokens")
        assert [stream.usage[name] for name in counts] == [answer["usage"][name] for name in counts]
        return answer

    def refused(self, path: str, body: Any, param: str | None, status: int = 400, code: str | None = None) -> str:
        """Refused with the same status and words whether streamed or not; returns the message."""
        message = check_error(self.post(path, body), status, param, code)
        if isinstance(body, dict):
            streamed = self.post(path, body | {"stream": True})
            assert check_error(streamed, status, param, code) == message
        return message

    def check_canary(self) -> None:
        """The box still gives its first answer to a fixed request."""
        response = self.post(CHAT, CANARY)
        assert response.status_code == 200, response.text
        text = response.json()["choices"][0]["message"]["content"]
        self.canary_text = self.canary_text or text
        assert text == self.canary_text

    def samples(self, name: str, *labels: str) -> Iterator[float]:
        """The values of a metric's series that have all these labels (as ``name="value"``)."""
        for line in self.http.get("/metrics").text.splitlines():
            head, _, value = line.rpartition(" ")
            if head.split("{")[0] == name and all(label in head for label in labels):
                yield float(value)

    def metric(self, name: str, *labels: str) -> float:
        """Their sum."""
        return math.fsum(self.samples(name, *labels))

    def count_tokens(self, messages: list[dict[str, Any]], **fields: Any) -> int:
        """How many tokens a chat's prompt has."""
        response = self.post("/tokenize", {"messages": messages, **fields})
        assert response.status_code == 200, response.text
        return int(response.json()["count"])


def chat_body(content: str = "hi", **fields: Any) -> dict[str, Any]:
    """A chat request."""
    base = {"model": MODEL, "messages": [{"role": "user", "content": content}], "max_tokens": 4, "temperature": 0}
    return base | fields


def completion_body(prompt: Any = "The capital of France is", **fields: Any) -> dict[str, Any]:
    """A completion request."""
    return {"model": MODEL, "prompt": prompt, "max_tokens": 4, "temperature": 0} | fields


def text_of(choice: dict[str, Any]) -> str | None:
    """The text of a collected choice of either route."""
    text: str | None = choice["text"] if "text" in choice else choice["message"]["content"]
    return text


def calls_of(choice: dict[str, Any]) -> list[dict[str, Any]]:
    """The tool calls of a collected choice."""
    calls = choice.get("message", {}).get("tool_calls")
    assert calls is None or calls, "an empty list of calls"
    return calls or []


def _call(call: dict[str, Any]) -> tuple[str, str]:
    return call["function"]["name"], call["function"]["arguments"]


def exchange(box: Caller, request: bytes) -> bytes:
    """Raw bytes, and everything that comes back until the connection ends."""
    address = urlsplit(box.url)
    with socket.create_connection((address.hostname, address.port), timeout=60) as connection:
        connection.sendall(request)
        data = b""
        while part := connection.recv(65536):
            data += part
    return data


def wait_until(condition: Any, within_s: float = 10.0) -> None:
    """Look again and again."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s} s"
        time.sleep(0.05)
