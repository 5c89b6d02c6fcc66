"""What one key's flood does to another key: its times alone, beside the flood, and beside one that its limits bound.

``python -m tests.chaos.fairness``; the ratios are for a machine with nothing else to do.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from appliance.keys.api_key import digest, make_secret
from appliance.keys.key_file import print_entry
from tests.box.running_box import running_box
from tests.chaos.__main__ import DEFAULT_MODEL
from tests.chaos.asking import make_session
from tests.chaos.overload import percentile

_FLAGS = ["--kv-cache-memory", "1GiB", "--api-workers", "2"]
_NEARLY_NONE = 2  # requests of a bounded flood at once
_PROMPT = "Tell me all that you know of the number "
_NUMBERS = 5  # in a prompt, of some twenty tokens each
_SETTLED_S = 2.0


@dataclass
class Times:
    """Of the quiet key's requests, in seconds."""

    name: str
    first_token_s: list[float] = field(default_factory=list)
    whole_s: list[float] = field(default_factory=list)

    def describe(self, alone: Times) -> str:
        """p50 and p99 with their ratios to those alone."""
        parts = []
        for what, mine, other in (
            ("TTFT", self.first_token_s, alone.first_token_s),
            ("E2E", self.whole_s, alone.whole_s),
        ):
            for percent in (50, 99):
                value, base = percentile(mine, percent), percentile(other, percent)
                parts.append(f"{what} p{percent} {value * 1000:.0f} ms ({value / base if base else 0:.1f}x)")
        return f"{self.name:<22} {', '.join(parts)}"


class Client:
    """One key's requests, each with a prompt of its own."""

    def __init__(self, session: aiohttp.ClientSession, max_tokens: int) -> None:
        self._session = session
        self._body = {"max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "stream": True}
        self._number = 0
        self.num_tokens = 0  # of whole answers

    async def ask(self, times: Times | None = None) -> None:
        """One stream to its end; refusals wait for as long as they are told."""
        self._number += 1
        body = self._body | {"prompt": _PROMPT + f"{time.time_ns() + self._number} " * _NUMBERS}
        started = time.monotonic()
        async with self._session.post("/v1/completions", json=body) as response:
            if response.status in (429, 503):
                await asyncio.sleep(float(response.headers["retry-after"]))
                return
            response.raise_for_status()
            first_token_s = None
            async for _ in response.content.iter_any():
                first_token_s = first_token_s or time.monotonic() - started
        self.num_tokens += self._body["max_tokens"]
        if times is not None and first_token_s is not None:
            times.first_token_s.append(first_token_s)
            times.whole_s.append(time.monotonic() - started)

    async def measure(self, name: str, count: int) -> Times:
        """One request after the other."""
        times = Times(name)
        for _ in range(count):
            await self.ask(times)
        return times

    @contextlib.asynccontextmanager
    async def flooding(self, concurrency: int) -> AsyncIterator[None]:
        """As many at once as `concurrency` says, again and again."""

        async def ask_on() -> None:
            while True:
                await self.ask()

        tasks = [asyncio.create_task(ask_on()) for _ in range(concurrency)]
        await asyncio.sleep(_SETTLED_S)
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def measure(
    url: str, secrets: dict[str, str], args: argparse.Namespace, say: Callable[[str], None]
) -> list[Times]:
    """Alone, beside a flood, and beside one of a key with a limit."""
    results: list[Times] = []
    async with contextlib.AsyncExitStack() as stack:
        sessions = {name: await stack.enter_async_context(make_session(url, secrets[name])) for name in secrets}
        clients = {name: Client(session, args.max_tokens) for name, session in sessions.items()}
        quiet = clients["quiet"]
        say(f"{args.requests} requests of the quiet key in each of three phases")
        await quiet.measure("warm", 3)
        results.append(await quiet.measure("alone", args.requests))
        say(results[0].describe(results[0]))
        for name in ("flood", "bounded"):
            async with clients[name].flooding(args.concurrency):
                started, before = time.monotonic(), clients[name].num_tokens
                results.append(await quiet.measure(f"beside {name} of {args.concurrency}", args.requests))
                rate = (clients[name].num_tokens - before) / (time.monotonic() - started)
            say(f"{results[-1].describe(results[0])}, {name} itself {rate:.0f} tokens/s")
    return results


def main() -> int:
    """Exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.fairness", description=__doc__)
    parser.add_argument("--requests", type=int, default=30, help="of the quiet key, in each phase [30]")
    parser.add_argument("--concurrency", type=int, default=64, help="of the flood [64]")
    parser.add_argument("--max-concurrent", type=int, default=_NEARLY_NONE, help="limit of the bounded flood's key [2]")
    parser.add_argument("--fair-step-tokens", type=int, default=4, metavar="N", help="the box's flag [4]")
    parser.add_argument("--max-tokens", type=int, default=32, help="of each answer [32]")
    parser.add_argument("--model", type=Path, default=DEFAULT_MODEL, help="baked model folder [the default model]")
    args = parser.parse_args()

    def say(line: str) -> None:
        print(line, flush=True)

    secrets = {name: make_secret() for name in ("quiet", "flood", "bounded")}
    limits = {"bounded": {"max_concurrent": args.max_concurrent}}
    entries = [print_entry(name, [digest(secrets[name].encode())], limits.get(name, {})) for name in secrets]
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write("\n".join(entries))
        file.flush()
        say("starting a box")
        flags = [*_FLAGS, "--api-key-file", file.name, "--fair-step-tokens", str(args.fair_step_tokens)]
        with running_box(args.model, flags=flags) as box:
            box.wait_ready()
            asyncio.run(measure(box.url, secrets, args, say))
    return 0


if __name__ == "__main__":
    sys.exit(main())
