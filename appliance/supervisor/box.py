"""The box's parent process (PID 1 in a container): starts supervisord, shows progress, forwards the wish to stop.

It reaps every child, ends the box when a program has failed for good, and stops the programs in order: readiness
turns false, the API drains, then the engines stop, nginx last. A second signal changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import resource
import secrets
import signal
import time
import xmlrpc.client
from pathlib import Path

from appliance.errors import ApplianceError
from appliance.settings import Settings
from appliance.supervisor.console import Console
from appliance.supervisor.control import ProgramState, Supervisord, SupervisordGoneError
from appliance.supervisor.drain_file import DrainFile
from appliance.supervisor.hang_watch import HangWatch
from appliance.supervisor.liveness import Liveness
from appliance.supervisor.log_pipes import LogPipe
from appliance.supervisor.nginx_log import NginxLog
from appliance.supervisor.orphans import adopt_orphans, end_orphans
from appliance.supervisor.progress_file import ProgressFile
from appliance.supervisor.readiness import EngineProgress, Readiness
from appliance.supervisor.rendering import render_box
from appliance.supervisor.run_dir import journal_path
from appliance.supervisor.watch import Watch
from engine.journal import read_journal

_STARTING_LOOK_S = 0.2
_RUNNING_LOOK_S = 1.0
_WANTED_FILES = 65536
_SUPERVISORD = "supervisord"
_KILLED = re.compile(rb" exited: (\S+) \(terminated by SIGKILL")
_EXITED = re.compile(rb" exited: (\S+) \(exit status (\d+)")


class BoxFailedError(ApplianceError):
    """The box can't go on; the message says which program and why."""


class Box:
    """One box over settings that are complete (see `appliance.derived_settings`)."""

    def __init__(self, settings: Settings, names: list[str], console: Console, greeting: str) -> None:
        assert settings.run_dir is not None
        self._settings = settings
        self._run_dir: Path = settings.run_dir
        self._console = console
        self._greeting = greeting
        self._password = secrets.token_hex(16)
        self._supervisord = Supervisord(self._run_dir, self._password)
        self._readiness = Readiness(settings, names)
        self._watch = Watch()
        self._hang_watch = HangWatch(self._run_dir, settings.engine_timeout)
        self._liveness = Liveness(self._run_dir)
        self._progress_file = ProgressFile(self._run_dir)
        self._drain_file = DrainFile(self._run_dir)
        self._pipes: dict[str, LogPipe] = {}
        self._supervisord_pid = 0
        self._orphans: set[int] = set()
        self._started_at_s = time.monotonic()
        self._start_s = 0.0

    async def run(self) -> None:
        """Run until a signal says stop. Raises BoxFailedError."""
        self._stop_requested = asyncio.Event()
        self._supervisord_ended = asyncio.Event()
        self._handle_signals()
        adopt_orphans()
        _raise_file_limit()
        os.umask(0o077)  # for the sockets and files of all programs
        # The API's workers tell it, too, when an engine is lost.
        logging.getLogger("engine.client").setLevel(logging.ERROR)
        render_box(self._settings, self._password)
        self._progress_file.write()
        self._drain_file.prepare()
        self._open_pipes()
        await self._readiness.start()
        try:
            self._start_supervisord()
            await self._look_after()
        finally:
            await self._readiness.close()
            self._console.end_progress()
            await self._stop()
            self._close_pipes()

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._request_stop)
        loop.add_signal_handler(signal.SIGCHLD, self._reap)

    def _request_stop(self) -> None:
        self._announce_stop()
        self._stop_requested.set()

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self._supervisord_pid:
                    self._supervisord.set_ended(os.waitstatus_to_exitcode(status))
                    self._supervisord_ended.set()

    def _open_pipes(self) -> None:
        programs = [f"engine-{index}" for index in range(len(self._settings.model))]
        forwards = dict.fromkeys((*programs, "api"), self._console.log)
        forwards["nginx"] = NginxLog(self._run_dir, self._console.log).read
        forwards[_SUPERVISORD] = self._log_of_supervisord
        for name, forward in forwards.items():
            self._pipes[name] = LogPipe(self._run_dir / "log" / name, forward)

    def _log_of_supervisord(self, line: bytes) -> None:
        if killed := _KILLED.search(line):
            self._watch.note_kill(killed[1].decode())
        if exited := _EXITED.search(line):
            self._watch.note_exit(exited[1].decode(), int(exited[2]))
        # It warns of programs that end with status 0 when they are told to.
        if b" stopped: " not in line:
            self._console.log(line)

    def _close_pipes(self) -> None:
        for pipe in self._pipes.values():
            pipe.close()

    def _start_supervisord(self) -> None:
        log = os.open(self._run_dir / "log" / _SUPERVISORD, os.O_WRONLY)
        try:
            self._supervisord_pid = self._supervisord.start(log)
        finally:
            os.close(log)

    async def _look_after(self) -> None:
        while not self._stop_requested.is_set():
            if self._supervisord_ended.is_set():
                raise BoxFailedError(self._words_for(_SUPERVISORD, "ended unexpectedly"))
            # Until supervisord opens its socket there is nothing to see.
            with contextlib.suppress(SupervisordGoneError, xmlrpc.client.Fault):
                await self._look()
            self._orphans = end_orphans({self._supervisord_pid}, self._orphans)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RUNNING_LOOK_S if self._watch.was_ready else _STARTING_LOOK_S):
                    await self._stop_requested.wait()

    async def _look(self) -> None:
        programs = await self._supervisord.programs()
        engines = await self._readiness.engines()
        self._progress_file.write(engines)
        failed = self._watch.look(programs, self._useful_pids(engines))
        if failed:
            raise BoxFailedError(self._words_for(failed.name, _describe(failed)))
        self._hang_watch.look(programs)
        if self._watch.was_ready:
            self._liveness.look(all(engine.is_ready for engine in engines), self._start_s)
        else:
            await self._look_whether_ready(engines)

    def _useful_pids(self, engines: list[EngineProgress]) -> set[int]:
        """Engines that are ready; also those that died at once of a request, as only their journals tell by then."""
        journals = (read_journal(journal_path(self._run_dir, index)) for index in range(len(engines)))
        worked = {journal.pid for journal in journals if journal and journal.pid and journal.in_hand}
        return worked | {engine.pid for engine in engines if engine.is_ready}

    async def _look_whether_ready(self, engines: list[EngineProgress]) -> None:
        if all(engine.is_ready for engine in engines):
            if await self._readiness.is_answering():
                self._watch.was_ready = True
                self._start_s = time.monotonic() - self._started_at_s
                self._console.end_progress()
                self._console.say(self._greeting.format(seconds=self._start_s))
                return
            self._console.progress("starting the API")
        else:
            self._show(engines)

    def _show(self, engines: list[EngineProgress]) -> None:
        # Without a percentage in the phase, a line that is not on a terminal is only written when the phase changes.
        phase = ", ".join(f"{engine.name}: {engine.phase}" for engine in engines)
        percent = sum(engine.percent for engine in engines) / len(engines)
        self._console.progress(phase, f"({percent:.0f} %)")

    def _words_for(self, program: str, what: str) -> str:
        pipe = self._pipes[program]
        pipe.read()
        reason = pipe.reason()
        return f"{program} {what}" + (f": {reason}" if reason else "")

    async def _stop(self) -> None:
        """Stop everything, in order, whatever state it is in."""
        self._announce_stop()
        if self._supervisord_pid:
            try:
                await self._stop_programs()
            except SupervisordGoneError:  # too early for its socket, or too late
                self._signal_supervisord(signal.SIGTERM)
            if not await self._supervisord_ends_within(self._settings.shutdown_timeout + 40):
                self._signal_supervisord(signal.SIGKILL)
                await self._supervisord_ended.wait()
        await self._end_orphans()

    def _announce_stop(self) -> None:
        """From now on the API says that it isn't ready, and it ends what is still running at the deadline."""
        if self._drain_file.is_written:
            return  # a second signal changes nothing
        self._progress_file.write(is_draining=True)
        self._drain_file.write(self._settings.shutdown_timeout)

    async def _stop_programs(self) -> None:
        if self._watch.was_ready and not self._supervisord_ended.is_set():
            self._console.say("stopping: running requests may finish")
        # supervisord kills what does not end in time; these limits are for one that doesn't answer.
        await self._supervisord.stop("api", self._settings.shutdown_timeout + 20)
        engines = [f"engine-{index}" for index in range(len(self._settings.model))]
        await asyncio.gather(*(self._supervisord.stop(name, 25) for name in engines))
        await self._supervisord.stop("nginx", 20)
        await self._supervisord.shut_down()

    def _signal_supervisord(self, number: signal.Signals) -> None:
        if not self._supervisord_ended.is_set():
            os.kill(self._supervisord_pid, number)

    async def _supervisord_ends_within(self, timeout_s: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._supervisord_ended.wait()
        return self._supervisord_ended.is_set()

    async def _end_orphans(self) -> None:
        """Nothing outlives the box: what is still there gets a moment, then it is killed."""
        deadline = time.monotonic() + 5.0
        while self._orphans or time.monotonic() < deadline:
            self._reap()
            self._orphans = end_orphans(set(), self._orphans, kill=time.monotonic() > deadline)
            if not self._orphans:
                return
            await asyncio.sleep(0.05)


def _describe(program: ProgramState) -> str:
    if program.state == "FATAL":
        return "cannot start"
    return f"ended with exit status {program.exit_status}" if program.exit_status > 0 else "dies again and again"


def _raise_file_limit() -> None:
    """Each client is a descriptor or two in nginx and in a worker; the programs inherit this."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED_FILES if hard == resource.RLIM_INFINITY else min(hard, _WANTED_FILES)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
