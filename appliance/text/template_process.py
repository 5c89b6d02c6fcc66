"""Renders a chat template that a caller brought: in a process of its own, which has little memory and little time.

No bound within an interpreter would do: hundreds of methods and filters make something large of something small, and
some of them run for minutes before anybody looks at a clock. So the kernel keeps the bounds, and what goes over them
costs that process its life and the API worker nothing.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

from appliance.errors import InvalidRequestError, UnavailableError
from appliance.text import template_renderer
from appliance.text.template_renderer import CRASHED, PARAM, REFUSED, Rendering

logger = logging.getLogger(__name__)

_PATIENCE_S = 60.0  # beyond that, of a machine that is busy with other things
_OUT_OF_MEMORY = (CRASHED, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT)
_waiters = ThreadPoolExecutor(thread_name_prefix="template")  # its own: who waits here keeps no other work waiting


async def render_apart(rendering: Rendering) -> str:
    """The prompt for `Tokenizer.encode_chat`; the process has ended when this has, cancelled or not.

    Raises InvalidRequestError that names ``chat_template``, UnavailableError where the machine is at fault.
    """
    child = _Child()
    try:
        work = asyncio.get_running_loop().run_in_executor(_waiters, child.run, rendering)
    except RuntimeError as error:  # no thread can be started
        child.give_up()
        raise _unavailable(f"cannot be started: {error}") from None
    try:
        return await asyncio.shield(work)
    except UnavailableError as error:
        logger.warning("%s", error)
        raise
    except asyncio.CancelledError:
        child.give_up()
        await asyncio.wait([work])
        work.cancelled() or work.exception()  # nobody asks for it any more
        raise


class _Child:
    """The process, started and awaited in a thread: a fork and a failed start hold up no stream."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_given_up = False

    def run(self, rendering: Rendering) -> str:
        """As `render_apart`."""
        given = json.dumps(asdict(rendering) | {"parent": os.getpid()}).encode()
        try:
            process = self._start()
        except OSError as error:
            raise _unavailable(f"cannot be started: {error.strerror}") from None
        with process:
            try:
                output, _ = process.communicate(given, rendering.max_render_s + _PATIENCE_S)
            except subprocess.TimeoutExpired:
                raise _unavailable("has too little processor time") from None
            finally:
                process.kill()
        return _read(process.returncode, output, rendering.max_render_s)

    def give_up(self) -> None:
        """Kill it, or do not start it."""
        with self._lock:
            self._is_given_up = True
            if self._process:
                self._process.kill()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._is_given_up:
                raise InterruptedError(errno.EINTR, os.strerror(errno.EINTR))
            self._process = subprocess.Popen(
                [sys.executable, "-m", template_renderer.__name__],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            return self._process


def _read(status: int, output: bytes, max_render_s: float) -> str:
    if status == 0:
        return output.decode("utf-8", "surrogatepass")
    if status == REFUSED:
        raise InvalidRequestError(**json.loads(output))
    if status == -signal.SIGPROF:
        raise InvalidRequestError(f"the chat template took more than {max_render_s:g} s", param=PARAM)
    if status in _OUT_OF_MEMORY:
        raise InvalidRequestError("the chat template needs more memory than it may use", param=PARAM)
    raise _unavailable(f"ended with status {status}")


def _unavailable(what: str) -> UnavailableError:
    return UnavailableError(f"the process that renders the chat template {what}", retry_after_s=5.0)
