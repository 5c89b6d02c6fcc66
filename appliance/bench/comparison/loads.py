"""The loads that servers are compared on: L1 to L5, always the same work, and conversations at a rate.

==== ======================================================================================================
L1   prompt 128, output 128, one at a time, 4 requests
L2   prompt 128, output 128, 8 at a time, 32 requests
L3   prompt 128, output 128, 32 at a time, 64 requests
L4   prompt 2048, output 16, one at a time, 3 requests
L5   1024 tokens of system message and 32 more, output 32, in four phases: ``distinct`` (8 with system messages of
     their own, 4 at a time), ``cold`` (1), ``warm`` (3 with the same system message, one at a time), ``shared``
     (16 with another common system message, 4 at a time)
R2   conversations of ShareGPT at 2 requests/s (any rate), Poisson arrivals
==== ======================================================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from appliance.bench.arrival import Arrival
from appliance.bench.comparison.chat_prompts import ChatPrompts, Messages
from appliance.bench.datasets import Sample
from appliance.bench.load import PreparedRequest
from appliance.bench.request_body import BodyOptions, make_body

FIXED_LOADS = {
    # prompt tokens, output tokens, at once, requests
    "L1": (128, 128, 1, 4),
    "L2": (128, 128, 8, 32),
    "L3": (128, 128, 32, 64),
    "L4": (2048, 16, 1, 3),
}
LOAD_NAMES = (*FIXED_LOADS, "L5")
_SYSTEM_TOKENS, _OWN_TOKENS, _L5_OUTPUT_TOKENS = 1024, 32, 32


@dataclass(frozen=True)
class Chat:
    """One request of a load."""

    messages: Messages
    num_prompt_tokens: int
    num_output_tokens: int


@dataclass(frozen=True)
class Phase:
    """Requests that are measured together; ``times`` are their arrivals, all at once if empty."""

    name: str
    chats: list[Chat]
    max_concurrency: int | None
    times: list[float] = field(default_factory=list)

    def prepare(self, path: str, options: BodyOptions) -> list[PreparedRequest]:
        """For one server. Each answer has exactly the length asked for, where the server can do that."""
        times = self.times or [0.0] * len(self.chats)
        return [
            PreparedRequest(path, _make_exact_body(options, chat), chat.num_prompt_tokens, at_s)
            for chat, at_s in zip(self.chats, times, strict=True)
        ]


def _make_exact_body(options: BodyOptions, chat: Chat) -> bytes:
    length = {"ignore_eos": True, "min_tokens": chat.num_output_tokens}
    exact = BodyOptions(options.model, True, {"temperature": 0, **length}, extra=options.extra)
    return make_body(exact, chat.messages, chat.num_output_tokens)


@dataclass(frozen=True)
class Load:
    """A named load with its phases, in order."""

    name: str
    about: str
    phases: list[Phase]


def make_fixed_load(name: str, prompts: ChatPrompts, share: float = 1.0) -> Load:
    """L1 … L5; ``share`` cuts the number of requests for a quick look."""
    if name == "L5":
        return _make_prefix_load(prompts)
    length, output, at_once, count = FIXED_LOADS[name]
    count = max(1, round(count * share))
    about = f"prompt {length}, output {output}, {at_once} at a time, {count} requests"
    return Load(
        name, about, [Phase("all", _chats(prompts, [prompts.make(length) for _ in range(count)], output), at_once)]
    )


def _make_prefix_load(prompts: ChatPrompts) -> Load:
    def extend(system: Messages, count: int) -> list[Messages]:
        return [prompts.extend(system, _OWN_TOKENS) for _ in range(count)]

    distinct = [prompts.extend(prompts.make_system(_SYSTEM_TOKENS), _OWN_TOKENS) for _ in range(8)]
    single = extend(prompts.make_system(_SYSTEM_TOKENS), 4)
    shared = extend(prompts.make_system(_SYSTEM_TOKENS), 16)
    groups = (("distinct", distinct, 4), ("cold", single[:1], 1), ("warm", single[1:], 1), ("shared", shared, 4))
    phases = [Phase(name, _chats(prompts, chats, _L5_OUTPUT_TOKENS), at_once) for name, chats, at_once in groups]
    return Load("L5", "1024 tokens of shared system message + 32, output 32", phases)


def make_rate_load(rate: float, samples: Sequence[Sample], seed: int) -> Load:
    """Single-turn chats with these prompts and answer lengths."""
    chats = [
        Chat([{"role": "user", "content": sample.prompt}], sample.num_prompt_tokens, sample.num_output_tokens)
        for sample in samples
    ]
    times = Arrival(rate).times(len(chats), seed)
    about = f"ShareGPT at {rate:g} requests/s, {len(chats)} requests"
    return Load(f"R{rate:g}", about, [Phase("all", chats, None, times)])


def make_warmup(prompts: ChatPrompts, load: Load) -> Phase:
    """A few short requests, as many at once as the load has but at most 4, with text that is never measured."""
    at_once = min(load.phases[0].max_concurrency or 4, 4)
    return Phase("warm-up", _chats(prompts, [prompts.make(128) for _ in range(at_once)], 8), at_once)


def _chats(prompts: ChatPrompts, messages: Sequence[Messages], output: int) -> list[Chat]:
    return [Chat(chat, prompts.count(chat), output) for chat in messages]
