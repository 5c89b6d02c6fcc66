"""A box as a user starts it: `breadbox serve` in a process of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil

from tests.box.proxy import free_port, short_dir

READY_WITHIN_S = 90
ENDS_WITHIN_S = 60


class RunningBox:
    """Its process, its output, its run directory's parent folder (which must be empty when it has ended)."""

    def __init__(
        self, folder: Path, models: list[Path], flags: list[str], environment: dict[str, str] | None = None
    ) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.folder = folder
        self._output = (folder / "output").open("w+b")
        (folder / "run").mkdir()
        command = [sys.executable, "-m", "appliance", "serve", *map(str, models)]
        command += ["--host", "127.0.0.1", "--port", str(self.port), *flags]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("BREADBOX_")}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env=inherited | {"XDG_RUNTIME_DIR": str(folder / "run")} | (environment or {}),
            start_new_session=True,
        )
        self.process = psutil.Process(self._process.pid)

    @property
    def output(self) -> str:
        """Everything it said so far, on stdout and stderr."""
        return (self.folder / "output").read_text(errors="replace")

    @property
    def run_dir(self) -> Path:
        """Where its sockets are."""
        (path,) = (self.folder / "run").iterdir()
        return path

    def wait_ready(self) -> None:
        """Until it says so."""
        self.wait_until(lambda: "Breadbox is ready" in self.output, READY_WITHIN_S)

    def wait_until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """Look again and again, as long as the box lives."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert self._process.poll() is None, f"the box ended with {self._process.returncode}:\n{self.output}"
            assert time.monotonic() < deadline, f"not within {timeout_s} s:\n{self.output}"
            time.sleep(0.05)

    def signal(self, number: signal.Signals) -> None:
        """To the whole process group, as a terminal does it."""
        os.killpg(self._process.pid, number)

    def wait_ended(self) -> int:
        """Its exit status."""
        return self._process.wait(ENDS_WITHIN_S)

    def find(self, *words: str) -> list[psutil.Process]:
        """Its processes whose command lines have all these words, oldest first."""
        found = []
        for process in self.process.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                line = " ".join(process.cmdline())
                if all(word in line for word in words) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return sorted(found, key=psutil.Process.create_time)

    def end(self) -> None:
        """Whatever state it is in."""
        descendants = self.process.children(recursive=True) if self._process.poll() is None else []
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            for process in [*descendants, self.process]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            self._process.wait()
        self._output.close()


@contextlib.contextmanager
def running_box(
    *models: Path, flags: list[str] | None = None, environment: dict[str, str] | None = None
) -> Iterator[RunningBox]:
    """Start a box (not yet ready) and end it."""
    with short_dir() as folder:
        box = RunningBox(folder, list(models), flags or [], environment)
        try:
            yield box
        finally:
            box.end()


def gauge(box: RunningBox, name: str, label: str = "") -> float:
    """The sum of a metric's samples (those with this label)."""
    lines = httpx.get(f"{box.url}/metrics", timeout=10).text.splitlines()
    samples = [line for line in lines if line.split("{")[0].split(" ")[0] == name and label in line]
    assert samples, f"{name} is not among the metrics"
    return sum(float(line.rsplit(" ", 1)[1]) for line in samples)
