"""The engine process: the socket first, then the model, then the busy loop. `serve` is all that others need.

The IO thread answers before torch is even imported; loading runs in the main thread. Heavy imports are lazy for that.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING

from engine import autopsy
from engine.config import EngineConfig
from engine.errors import ConfigError, EngineError, RankLostError
from engine.journal import Journal
from engine.server.busy_loop import BusyLoop
from engine.server.io_thread import InboxItem, IOThread, Stop, Wake
from engine.server.queue_gate import QueueGate
from engine.server.status import Status
from engine.suspects import Suspects

if TYPE_CHECKING:
    from engine.core import EngineCore
    from engine.step import Progress, Runner

    MakeRunner = Callable[[EngineConfig, Progress], Runner]

__all__ = ["EngineServer", "make_core", "serve"]

logger = logging.getLogger(__name__)

EXIT_OK = 0
EXIT_FAULT = 1  # worth a restart
EXIT_CONFIG = 2  # the next start would end the same way

# The IO thread asks for the interpreter lock while a step is being prepared; the default of 5 ms is a token's time.
_SWITCH_INTERVAL_S = 0.0005


def make_core(
    config: EngineConfig, progress: Progress, make_runner: MakeRunner | None, journal: Journal, suspects: Suspects
) -> EngineCore:
    """Load the model. Raises ConfigError where it or the configuration cannot be served."""
    from engine.core import EngineCore

    if make_runner is None:
        from engine.runner import make_runner as load_runner

        make_runner = load_runner
    return EngineCore(config, make_runner(config, progress), journal=journal, suspects=suspects)


def _take_over(journal_path: Path | None) -> Suspects:
    """Learn from what the engine before this one left behind."""
    if journal_path is None:
        return Suspects()
    death = autopsy.examine(journal_path)
    suspects = Suspects(journal_path.with_suffix(".suspects"))
    if death is not None:
        suspects.take_death(death)
    return suspects


class _Stopped(BaseException):
    """A signal came while loading, which is broken off."""


class EngineServer:
    """One engine: IO thread, loading, busy loop. `run` in the main thread; `stop` from any thread or signal handler."""

    def __init__(self, config: EngineConfig, make_runner: MakeRunner | None = None) -> None:
        self.is_loading = False
        self._config = config
        self._make_runner = make_runner
        self._inbox: SimpleQueue[InboxItem] = SimpleQueue()
        self.status = Status()
        self._gate = QueueGate(config.max_num_queued_reqs, config.max_num_queued_tokens, config.max_num_seqs)
        self._io = IOThread(config.socket_path, self.status, self._inbox, self._gate)
        self._suspects = _take_over(config.journal_path)  # only now: an engine that lives has the socket
        self._journal = Journal(config.journal_path, allowance_s=config.engine_timeout_s)
        self.status.journal = self._journal

    def run(self) -> int:
        """Load, then step until stopped. Returns the exit code; errors are logged, not raised."""
        self._io.start()
        try:
            core = self._load()
            with contextlib.closing(core), self._reporting(core):
                BusyLoop(core, self._inbox, self._io, self._gate, self._journal).run()
        except EngineError as error:
            return self._fail(error)
        except Exception as error:
            logger.exception("engine failed")
            autopsy.leave_note(self._config.journal_path, f"{type(error).__name__}: {error}")
            self.status.set_failed(f"{type(error).__name__}: {error}")
            return EXIT_FAULT
        finally:
            self.is_loading = False
            self.status.set_stopping()
            self._io.stop()
        self._journal.close()
        logger.info("engine stopped")
        return EXIT_OK

    def stop(self) -> None:
        """End the busy loop; what runs is left to the next engine. Safe in a signal handler."""
        self.status.set_stopping()
        self._inbox.put(Stop())

    def _load(self) -> EngineCore:
        self.is_loading = True
        core = make_core(self._config, self.status.progress, self._make_runner, self._journal, self._suspects)
        core.on_grammar(lambda: self._inbox.put(Wake()))
        core.on_fault(self._take_fault)
        core.warm_up()
        self._gate.watch(lambda: core.queue_load)
        # What was made so far lives as long as the process: the collector need not look at it again.
        gc.collect()
        gc.freeze()
        self.status.set_ready(core.info, core, core.metrics.render)
        self._io.wake()
        core.metrics.record_startup(self.status.phase_seconds)
        self.is_loading = False
        logger.info(
            "engine ready model=%s socket=%s device=%s dtype=%s max_model_len=%d num_blocks=%d seconds=%.1f",
            self._config.served_model_name,
            self._config.socket_path,
            core.info.device,
            core.info.dtype,
            core.info.max_model_len,
            core.info.num_blocks,
            sum(self.status.phase_seconds.values()),
        )
        return core

    @contextlib.contextmanager
    def _reporting(self, core: EngineCore) -> Iterator[None]:
        from engine.server.reporter import Reporter

        reporter = Reporter(core, self._config.log_stats_interval_s)
        reporter.start()
        try:
            yield
        finally:
            reporter.stop()

    def _take_fault(self, fault: EngineError) -> None:
        """In the thread that noticed it: the main thread may be waiting for what never comes."""
        if isinstance(fault, RankLostError) and fault.is_own_fault:
            autopsy.leave_note(self._config.journal_path, str(fault))
        self._inbox.put(Stop(fault))

    def _fail(self, error: EngineError) -> int:
        self.status.set_failed(str(error))
        logger.error("engine %s error=%s", "cannot start" if self.is_loading else "failed", error)
        return EXIT_CONFIG if isinstance(error, ConfigError) else EXIT_FAULT


def serve(config: EngineConfig, make_runner: MakeRunner | None = None) -> int:
    """Be the engine process until SIGTERM or SIGINT. Returns the exit code: 0 stopped, 1 fault, 2 cannot be served."""
    logging.basicConfig(
        level=config.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr
    )
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    try:
        server = EngineServer(config, make_runner)
    except ConfigError as error:
        logger.error("engine cannot start error=%s", error)
        return EXIT_CONFIG
    if config.journal_path is not None:
        autopsy.note_faults(config.journal_path)
    handler = _SignalHandler(server)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handler)
    try:
        return server.run()
    except _Stopped:
        logger.info("engine stopped while loading phase=%r", server.status.phase)
        return EXIT_OK


class _SignalHandler:
    """Stops the server: between steps once it runs, at once while it loads."""

    def __init__(self, server: EngineServer) -> None:
        self._server = server

    def __call__(self, number: int, frame: FrameType | None) -> None:
        is_loading = self._server.is_loading
        self._server.stop()
        if is_loading:
            raise _Stopped
