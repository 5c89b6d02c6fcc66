"""Our supervisord: started as a child, then driven over the XML-RPC on its unix socket."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import subprocess
import sys
import xmlrpc.client
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supervisor.xmlrpc import SupervisorTransport

from appliance.supervisor.run_dir import TEMPORARY

_LAUNCHER = Path(__file__).with_name("launch.py")
_ANSWERS_WITHIN_S = 10.0
_LOOKS_EVERY_S = 0.1
_LIVE = ("STARTING", "RUNNING", "BACKOFF", "STOPPING")


class SupervisordGoneError(Exception):
    """Nobody answers on supervisord's socket."""


@dataclass(frozen=True)
class ProgramState:
    """What supervisord knows of one program."""

    name: str
    state: str  # STOPPED, STARTING, RUNNING, BACKOFF, STOPPING, EXITED, FATAL, UNKNOWN
    pid: int  # 0 when it does not run
    exit_status: int  # of its last end; -1 when a signal ended it


class Supervisord:
    """The one supervisord of a run directory."""

    def __init__(self, run_dir: Path, password: str) -> None:
        self._run_dir = run_dir
        self._password = password
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, log: int) -> int:
        """Start it with its own messages going to the open file `log`; returns its pid."""
        # The only place that is sure to be writable, for supervisord and for all that it starts.
        command = ["env", f"TMPDIR={self._run_dir / TEMPORARY}", sys.executable, "-m", "supervisor.supervisord"]
        command += ["-n", "-c", str(self._run_dir / "supervisord.conf")]
        self._process = subprocess.Popen(
            [sys.executable, "-S", str(_LAUNCHER), "--", *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # a Ctrl-C at the terminal is ours to handle
        )
        return self._process.pid

    def set_ended(self, exit_status: int) -> None:
        """Its parent reaped it (all children are reaped in one place)."""
        if self._process:
            self._process.returncode = exit_status

    async def programs(self) -> list[ProgramState]:
        """The state of every program. Raises SupervisordGoneError."""
        infos = await self._call(lambda rpc: rpc.supervisor.getAllProcessInfo(), _ANSWERS_WITHIN_S)
        return [
            ProgramState(info["name"], info["statename"], info["pid"] or 0, info["exitstatus"] or 0) for info in infos
        ]

    async def stop(self, name: str, timeout_s: float) -> None:
        """Stop a program and wait until it has ended. Raises SupervisordGoneError.

        Asked to wait itself, supervisord keeps a processor busy for as long as that takes.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while True:  # one that had just ended may have been started again
                    with contextlib.suppress(xmlrpc.client.Fault):  # it does not run, or is about to end
                        await self._call(lambda rpc: rpc.supervisor.stopProcess(name, False), _ANSWERS_WITHIN_S)
                    if not await self._is_there(name):
                        return
                    await asyncio.sleep(_LOOKS_EVERY_S)
        except TimeoutError as error:
            raise SupervisordGoneError(f"{name} did not end within {timeout_s:g} s") from error

    async def _is_there(self, name: str) -> bool:
        return any(program.name == name and program.state in _LIVE for program in await self.programs())

    async def shut_down(self) -> None:
        """Ask supervisord itself to stop whatever still runs and end. Raises SupervisordGoneError."""
        with contextlib.suppress(xmlrpc.client.Fault):  # it is about to
            await self._call(lambda rpc: rpc.supervisor.shutdown(), _ANSWERS_WITHIN_S)

    async def _call(self, call: Callable[[Any], Any], timeout_s: float) -> Any:
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.to_thread(self._call_now, call)
        except (TimeoutError, OSError, xmlrpc.client.ProtocolError, http.client.HTTPException) as error:
            raise SupervisordGoneError(str(error)) from error

    def _call_now(self, call: Callable[[Any], Any]) -> Any:
        transport = SupervisorTransport("breadbox", self._password, f"unix://{self._run_dir}/super.sock")
        try:
            return call(xmlrpc.client.ServerProxy("http://supervisord", transport=transport))
        finally:
            transport.close()
