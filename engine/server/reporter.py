"""Tells now and then how the engine does, in one log line, and keeps its counts for the process that comes after."""

from __future__ import annotations

import logging
import threading
import time
from typing import Protocol

from engine.metrics import EngineMetrics, Totals
from engine.server.status import Gauges

logger = logging.getLogger(__name__)

KEEP_INTERVAL_S = 2.0


class Reported(Gauges, Protocol):
    """What is told of an `EngineCore`."""

    metrics: EngineMetrics


class Reporter(threading.Thread):
    """Runs from `start` to `stop`. ``log_interval_s`` 0 = no line."""

    def __init__(self, core: Reported, log_interval_s: float) -> None:
        super().__init__(name="engine-reporter", daemon=True)
        self._core = core
        self._log_interval_s = log_interval_s
        self._stopped = threading.Event()
        self._last = core.metrics.totals()
        self._last_s = time.monotonic()

    def stop(self) -> None:
        """Keep the counts once more and end."""
        self._stopped.set()
        if self.ident is not None:
            self.join()

    def run(self) -> None:
        """Until stopped."""
        while not self._stopped.wait(self._wait_s()):
            self._core.metrics.keep()
            if self._log_interval_s and time.monotonic() >= self._last_s + self._log_interval_s:
                self.log()
        self._core.metrics.keep()

    def _wait_s(self) -> float:
        if not self._log_interval_s:
            return KEEP_INTERVAL_S
        return min(KEEP_INTERVAL_S, max(self._last_s + self._log_interval_s - time.monotonic(), 0.0))

    def log(self) -> None:
        """One line about the time since the last one; of an engine that had nothing to do only to debuggers."""
        now, now_s = self._core.metrics.totals(), time.monotonic()
        core, last, seconds = self._core, self._last, now_s - self._last_s
        is_idle = now == last and not core.num_running and not core.num_waiting
        logger.log(
            logging.DEBUG if is_idle else logging.INFO,
            "stats prompt_tokens_per_s=%.1f output_tokens_per_s=%.1f running=%d waiting=%d "
            "kv_cache_usage=%.1f%% prefix_cache_hit_rate=%s preemptions=%d",
            (now.prompt_tokens - last.prompt_tokens) / seconds,
            (now.output_tokens - last.output_tokens) / seconds,
            core.num_running,
            core.num_waiting,
            100 * core.kv_cache_usage,
            _hit_rate(last, now),
            now.preemptions - last.preemptions,
        )
        self._last, self._last_s = now, now_s


def _hit_rate(last: Totals, now: Totals) -> str:
    num_queried = now.queried_tokens - last.queried_tokens
    return f"{100 * (now.hit_tokens - last.hit_tokens) / num_queried:.1f}%" if num_queried else "none"
