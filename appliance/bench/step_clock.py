"""Where the time of a step goes: the library's calls and ops, the runner around them, the scheduler around that."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from engine.core import EngineCore
from engine.messages import RequestOutput
from engine.step import Runner, RunnerInfo, StepInput, StepOutput

if TYPE_CHECKING:
    from engine.kernels.native.library import Library

# calls of the library beside the layers → what they are
_CALLS = {"unpack_rows": "embedding", "linear": "head", "linear_argmax": "head", "draw": "draw", "penalise": "draw"}
AROUND = ("inputs, glue", "scheduling, update", "messages")  # what is no kernel

Times = dict[str, float]
"""Seconds of a step by part."""


class ClockedLibrary:
    """The library's seconds by part; while it is in use, a few of the loaded library's methods are wrapped."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._seconds: Times = {}

    def __enter__(self) -> ClockedLibrary:
        for name, part in _CALLS.items():
            setattr(self._library, name, self._clocked(getattr(self._library, name), part))
        self.take()
        return self

    def __exit__(self, *_: object) -> None:
        for name in _CALLS:
            delattr(self._library, name)  # what the instance had on top of its class

    def take(self) -> Times:
        """Seconds since the last call."""
        taken = self._library.op_seconds() | self._seconds
        self._seconds = {}
        return taken

    def _clocked(self, call: Callable[..., Any], part: str) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            started_s = time.perf_counter()
            result = call(*args)
            self._seconds[part] = self._seconds.get(part, 0.0) + time.perf_counter() - started_s
            return result

        return run


class ClockedRunner:
    """A runner that notes how long its last step took."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.last_s = 0.0

    @property
    def info(self) -> RunnerInfo:
        """The runner's."""
        return self._runner.info

    def execute(self, step: StepInput) -> StepOutput:
        """Run the step."""
        started_s = time.perf_counter()
        result = self._runner.execute(step)
        self.last_s = time.perf_counter() - started_s
        return result


def clock_step(core: EngineCore, runner: ClockedRunner, library: ClockedLibrary) -> tuple[list[RequestOutput], Times]:
    """One step, and its parts, which add up to the whole; messages are encoded as the engine's process does."""
    library.take()
    started_s = time.perf_counter()
    outputs = core.step()
    stepped_s = time.perf_counter()
    for output in outputs:
        msgspec.msgpack.encode(output)
    ended_s = time.perf_counter()
    times = library.take()
    inputs, scheduling, messages = AROUND
    times[inputs] = runner.last_s - sum(times.values())
    times[scheduling] = stepped_s - started_s - runner.last_s
    times[messages] = ended_s - stepped_s
    return outputs, times
