"""Ends an engine that hangs, so that supervisord starts another and the API workers go on with it.

An engine's busy loop leaves a beat in its journal (`engine.journal`). One whose beat stands still for longer than what
it is doing may take is killed; so is one that was stopped by a signal, which by itself would never go on. Time in which
it waits for a processor does not count: a machine that has too much to do is no reason to do it all again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from appliance.process_stat import read_stat
from appliance.supervisor.control import ProgramState
from appliance.supervisor.run_dir import journal_path
from engine.autopsy import leave_note
from engine.journal import Activity, JournalState, read_journal

logger = logging.getLogger(__name__)

# Where the whole box stood still (a paused container, a machine asleep), one look must not count for all that time.
MAX_LOOK_S = 2.0
MIN_START_S = 600.0
START_FACTOR = 10
_STOPPED = "T"


@dataclass
class _Silence:
    """How long one engine process has shown no sign of life."""

    sign: tuple[int, int] = (0, 0)  # pid and beat
    seconds: float = 0.0
    queued_s: dict[str, float] = field(default_factory=dict)  # by thread: how long it has waited for a processor

    def take(self, sign: tuple[int, int], elapsed_s: float, queued_s: dict[str, float]) -> None:
        """One more look; while the slowest thread waits for a processor, the others may wait for that thread."""
        waits = (total_s - self.queued_s.get(thread, total_s) for thread, total_s in queued_s.items())
        counted_s = max(0.0, elapsed_s - max(waits, default=0.0))
        self.seconds = self.seconds + counted_s if sign == self.sign else 0.0
        self.sign, self.queued_s = sign, queued_s


class HangWatch:
    """Looks at all engines, one look after another. ``timeout_s`` 0 = never kills."""

    def __init__(self, run_dir: Path, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._run_dir = run_dir
        self._timeout_s = timeout_s
        self._clock = clock
        self._looked_at_s = clock()
        self._silences: dict[str, _Silence] = {}

    def look(self, programs: Collection[ProgramState]) -> list[str]:
        """Kill the engines among `programs` that hang; returns their names."""
        now_s = self._clock()
        elapsed_s = min(now_s - self._looked_at_s, MAX_LOOK_S)
        self._looked_at_s = now_s
        engines = [program for program in programs if program.name.startswith("engine-") and program.pid]
        return [program.name for program in engines if self._timeout_s and self._end_if_hanging(program, elapsed_s)]

    def _end_if_hanging(self, program: ProgramState, elapsed_s: float) -> bool:
        path = journal_path(self._run_dir, int(program.name.rpartition("-")[2]))
        journal = read_journal(path)
        if journal is not None and journal.pid != program.pid:
            journal = None  # it has only just been started
        silence = self._silences.setdefault(program.name, _Silence())
        silence.take((program.pid, journal.beat if journal else 0), elapsed_s, _queued_seconds(program.pid))
        is_stopped = read_stat(program.pid)[:1] == [_STOPPED]
        if silence.seconds <= (self._timeout_s if is_stopped else self._limit_s(journal)):
            return False
        what = f"no sign of life for {silence.seconds:.0f} s"
        logger.error("%s %s, killed pid=%d is_stopped=%s", program.name, what, program.pid, is_stopped)
        if not is_stopped:  # that is no request's doing
            leave_note(path, f"{what} in a step" if journal and journal.activity is Activity.WORKING else what)
        silence.seconds = 0.0
        with contextlib.suppress(ProcessLookupError):
            os.kill(program.pid, signal.SIGKILL)
        return True

    def _limit_s(self, journal: JournalState | None) -> float:
        if journal is None or journal.activity is Activity.LOADING:
            return max(MIN_START_S, START_FACTOR * self._timeout_s)
        return max(journal.allowance_s, self._timeout_s)


def _queued_seconds(pid: int) -> dict[str, float]:
    """How long each thread of a process has waited for a processor so far; empty where the kernel doesn't say."""
    queued = {}
    for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            queued[file.parent.name] = int(file.read_text().split()[1]) / 1e9
    return queued
