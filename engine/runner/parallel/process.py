"""One other rank as rank 0 sees it: a child process, the socket to it, and a thread that reads what it reports."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from queue import SimpleQueue

from engine.errors import ConfigError, EngineError, RankLostError
from engine.runner.parallel.messages import Counted, Failed, Join, Reached, Said, decode_report, encode

logger = logging.getLogger(__name__)

STOP = b""
END_S = 5.0  # how long a rank that is told to stop may take
MODULE = "engine.runner.parallel.rank"


class RankProcess:
    """Started at once, and lives no longer than the thread that does it (see `rank`).

    `on_loss` is called in the reading thread if the process ends without being told to.
    """

    def __init__(self, join: Join, on_loss: Callable[[EngineError], None]) -> None:
        self.rank = join.rank
        self._on_loss = on_loss
        self._reports: SimpleQueue[Reached | Counted | EngineError] = SimpleQueue()
        self._failure: Failed | None = None
        self._is_stopping = False
        self._connection, self._process = _start(join)
        self._thread = threading.Thread(target=self._read, name=f"rank-{self.rank}", daemon=True)
        self._thread.start()
        self.send(encode(join))

    def send(self, data: bytes) -> None:
        """Hand a message over. That the rank is gone is told otherwise."""
        with contextlib.suppress(OSError):
            self._connection.send_bytes(data)

    def wait(self, phase: str) -> None:
        """Until the rank has reached the phase. Raises what it ended with instead."""
        report = self._take()
        assert report == Reached(phase), report

    def wait_count(self) -> int:
        """The KV blocks that it has room for. Raises what it ended with instead."""
        report = self._take()
        assert isinstance(report, Counted), report
        return report.num_blocks

    def give_up(self, error: EngineError) -> None:
        """Have those who wait for this rank wait no longer: it may be waiting itself, for one that is lost."""
        self._reports.put(error)

    def tell_to_stop(self) -> None:
        """It ends after what it is computing."""
        self._is_stopping = True
        self.send(STOP)

    def end(self, patience_s: float = END_S) -> None:
        """Wait for its end; a rank that takes longer is killed."""
        self._is_stopping = True
        try:
            self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._thread.join()
        self._connection.close()

    def _take(self) -> Reached | Counted:
        report = self._reports.get()
        if isinstance(report, EngineError):
            raise report
        return report

    def _read(self) -> None:
        # An error of the socket is the end of the process, too: only it holds the other end.
        with contextlib.suppress(EOFError, OSError):
            while True:
                report = decode_report(self._connection.recv_bytes())
                if isinstance(report, Said):
                    logging.getLogger(report.logger).log(report.level, "rank %d: %s", self.rank, report.text)
                elif isinstance(report, Failed):
                    self._failure = report
                else:
                    self._reports.put(report)
        error = self._explain(self._process.wait())
        self._reports.put(error)
        if not self._is_stopping:
            self._on_loss(error)

    def _explain(self, status: int) -> EngineError:
        failure = self._failure
        if failure is not None and failure.is_config_error:
            return ConfigError(f"rank {self.rank} of tensor parallelism: {failure.error}")
        if failure is not None:
            how = f"failed: {failure.error}"
        else:
            how = f"ended with status {status}" if status >= 0 else f"was killed by {signal.Signals(-status).name}"
        is_killed = status in (-signal.SIGKILL, -signal.SIGTERM)
        message = f"rank {self.rank} of tensor parallelism (pid {self._process.pid}) {how}"
        return RankLostError(message, is_own_fault=not is_killed)


def _start(join: Join) -> tuple[Connection, subprocess.Popen[bytes]]:
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", MODULE, "--rank", str(join.rank), "--fd", str(theirs.fileno())]
    with theirs:
        process = subprocess.Popen(
            [*command, "--parent", str(os.getpid())],
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(), join.store_fd),
        )
    logger.debug("rank started rank=%d pid=%d", join.rank, process.pid)
    return Connection(ours.detach()), process
