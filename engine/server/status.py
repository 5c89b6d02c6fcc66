"""What an engine process says about itself: phase, progress, facts. Written by the main thread, read by the IO thread.

Each write replaces one attribute, so a reader sees the old value or the new one, never half of it.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec

from engine.journal import Journal
from engine.messages import EngineInfo

if TYPE_CHECKING:
    from engine.step import RunnerInfo

logger = logging.getLogger(__name__)


class Gauges(Protocol):
    """The part of `EngineCore` that may be read from the IO thread at any time."""

    @property
    def num_running(self) -> int:
        """Requests that take part in steps."""

    @property
    def num_waiting(self) -> int:
        """Requests that wait for their first step, or for one after a preemption."""

    @property
    def kv_cache_usage(self) -> float:
        """Share of the KV blocks in use, 0 … 1."""


@dataclass(frozen=True, slots=True)
class _Ready:
    info: RunnerInfo
    gauges: Gauges


class Status:
    """State of one engine process, from its first moment to its last."""

    def __init__(self) -> None:
        self.engine_id = uuid.uuid4().hex
        self.phase = "starting"
        self.percent = 0.0
        self.error: str | None = None
        self.phase_seconds: dict[str, float] = {}
        self.metrics_text: Callable[[bool], str] = lambda openmetrics: ""
        self.journal = Journal()
        self._phase_start_s = time.monotonic()
        self._ready: _Ready | None = None
        self._unavailable: str | None = None

    def progress(self, phase: str, percent: float) -> None:
        """Take a report of loading: a `Progress`."""
        self.journal.load()
        self.percent = min(max(percent, 0.0), 100.0)
        if phase != self.phase:
            self._enter(phase)

    def set_ready(self, info: RunnerInfo, gauges: Gauges, metrics_text: Callable[[bool], str]) -> None:
        """From here on requests are taken. `metrics_text` renders the metrics, as OpenMetrics where it gets True."""
        self.metrics_text = metrics_text
        self._ready = _Ready(info, gauges)
        self.progress("ready", 100.0)

    def set_failed(self, error: str) -> None:
        """Loading ended with `error`; the process is about to exit."""
        self.error = error
        self._ready = None
        self._enter("failed")

    def set_stopping(self) -> None:
        """From here on requests are refused; what runs is being ended."""
        self._unavailable = "the engine is stopping"

    @property
    def unavailable(self) -> str | None:
        """Why no request can be taken now, None where one can."""
        if self._ready is None:
            return f"the engine is not ready: {self.phase}, {self.percent:.0f} %"
        return self._unavailable

    def make_info(self, call_id: int) -> EngineInfo:
        """The answer to an InfoRequest."""
        is_late = self.journal.is_late
        info = EngineInfo(
            call_id=call_id,
            engine_id=self.engine_id,
            pid=os.getpid(),
            phase="not responding" if is_late else self.phase,
            percent=self.percent,
            is_ready=self.unavailable is None and not is_late,
            phase_seconds=self.phase_seconds,
            error=self.error,
        )
        ready = self._ready
        return info if ready is None else _with_facts(info, ready)

    def _enter(self, phase: str) -> None:
        now_s = time.monotonic()
        seconds = round(now_s - self._phase_start_s, 3)
        self.phase_seconds = {**self.phase_seconds, self.phase: seconds}
        logger.info("phase ended phase=%r seconds=%.3f next=%r percent=%.0f", self.phase, seconds, phase, self.percent)
        self._phase_start_s = now_s
        self.phase = phase


def _with_facts(info: EngineInfo, ready: _Ready) -> EngineInfo:
    return msgspec.structs.replace(
        info,
        max_model_len=ready.info.max_model_len,
        vocab_size=ready.info.vocab_size,
        block_size=ready.info.block_size,
        num_gpu_blocks=ready.info.num_blocks,
        dtype=ready.info.dtype,
        device=ready.info.device,
        num_running=ready.gauges.num_running,
        num_waiting=ready.gauges.num_waiting,
        kv_cache_usage=ready.gauges.kv_cache_usage,
    )
