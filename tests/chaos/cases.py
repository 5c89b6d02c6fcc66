"""The requests of the chaos load: every protocol, streamed and not, each with one right answer (greedy or seeded)."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

WORDS = ("Paris", "Oslo", "sea", "red", "blue", "cat", "dog", "moon", "bread", "box", "tree", "river", "stone", "cloud")
FREE_ANSWER = {"logit_bias": {"2": -100, "0": -100}}  # the end-of-text tokens are forbidden: all tokens come
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "is_big": {"type": "boolean"}},
    "required": ["name", "is_big"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Oslo"]}, "days": {"enum": [1, 2, 3]}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}


@dataclass(frozen=True)
class Case:
    """One request; `name` says what is special about it."""

    name: str
    path: str
    body: dict[str, Any]

    @property
    def is_stream(self) -> bool:
        """Whether the answer comes as events."""
        return bool(self.body.get("stream"))


def make_cases(seed: int, model: str, copies: int = 2) -> list[Case]:
    """Each kind of request, with `copies` different prompts, once streamed and once not; the same for the same seed."""
    rng = random.Random(seed)
    cases = []
    for _ in range(copies):
        for kind, make in _KINDS.items():
            path, body = make(rng, _words(rng))
            body["model"] = model
            cases.append(Case(kind, path, body))
            cases.append(Case(f"{kind}, streamed", path, body | {"stream": True}))
    return cases


def _words(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.choice((3, 8, 40))))


def _chat(rng: random.Random, words: str, **fields: Any) -> tuple[str, dict[str, Any]]:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": f"Tell me of {words}"}], "temperature": 0}
    return "/v1/chat/completions", body | {"max_tokens": rng.choice((8, 24, 48))} | fields


def _completion(rng: random.Random, words: str, **fields: Any) -> tuple[str, dict[str, Any]]:
    return "/v1/completions", {
        "prompt": f"{words} is",
        "max_tokens": rng.choice((8, 24, 48)),
        "temperature": 0,
    } | fields


def _seeded(rng: random.Random) -> dict[str, Any]:
    return {"temperature": 0.9, "top_p": 0.95, "seed": rng.randrange(2**31)} | FREE_ANSWER


def _schema_format() -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}


def _forced_call(rng: random.Random) -> dict[str, Any]:
    named = {"type": "function", "function": {"name": "get_weather"}}
    return {"tools": [TOOL], "tool_choice": rng.choice([named, "required"]), "max_tokens": 60}


def _messages(rng: random.Random, words: str) -> tuple[str, dict[str, Any]]:
    messages = [{"role": "user", "content": f"Tell me of {words}"}]
    return "/v1/messages", {"messages": messages, "max_tokens": 16, "temperature": 0}


def _response(rng: random.Random, words: str) -> tuple[str, dict[str, Any]]:
    return "/v1/responses", {"input": f"Tell me of {words}", "max_output_tokens": 16, "temperature": 0, "store": False}


_KINDS: dict[str, Any] = {
    "greedy chat": _chat,
    "long chat": lambda rng, words: _chat(rng, words, max_tokens=120, **FREE_ANSWER),
    "seeded chat": lambda rng, words: _chat(rng, words, **_seeded(rng)),
    "logprobs": lambda rng, words: _chat(rng, words, logprobs=True, top_logprobs=3),
    "three choices": lambda rng, words: _chat(rng, words, n=3, **_seeded(rng)),
    "stop strings": lambda rng, words: _chat(rng, words, stop=[".", " the"], max_tokens=48),
    "schema": lambda rng, words: _chat(rng, words, response_format=_schema_format(), max_tokens=60),
    "forced call": lambda rng, words: _chat(rng, words, **_forced_call(rng)),
    "completion": lambda rng, words: _completion(rng, words, **FREE_ANSWER),
    "seeded completion": lambda rng, words: _completion(rng, words, logprobs=2, **_seeded(rng)),
    "penalties": lambda rng, words: _completion(rng, words, presence_penalty=1, repetition_penalty=1.3),
    "regex": lambda rng, words: _completion(rng, words, structured_outputs={"regex": "[a-f]{4,30}x"}, max_tokens=40),
    "messages": _messages,
    "response": _response,
}
