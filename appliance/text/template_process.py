"""Renders a chat template that a caller brought: in a process of its own, which has little memory and little time.

No bound within an interpreter would do: hundreds of methods and filters make something large of something small, and
some of them run for minutes before anybody looks at a clock. So the kernel keeps the bounds, and what goes over them
costs that process its life and the API worker nothing.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import json
import logging
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from appliance.errors import ApplianceError, InvalidRequestError, UnavailableError

logger = logging.getLogger(__name__)

PARAM = "chat_template"
MAX_RENDER_S = 20.0  # of processor time: a busy machine is not the template's fault
# What a template may use and write: some, and more for a longer conversation.
MEMORY_BYTES, _MEMORY_PER_BYTE = 128 * 1024**2, 32
MAX_CHARACTERS, _CHARACTERS_PER_BYTE = 1024**2, 4
_PATIENCE_S = 60.0  # beyond that, of a machine that is busy with other things
_NICENESS = 10  # whoever brings a template waits, rather than those who don't
_PR_SET_PDEATHSIG = 1
_REFUSED, _CRASHED = 3, 4  # exit statuses: the output is the reason; there is none
_OUT_OF_MEMORY = (_CRASHED, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT)
_waiters = ThreadPoolExecutor(thread_name_prefix="template")  # its own: who waits here keeps no other work waiting


@dataclass(frozen=True)
class Rendering:
    """``conversation`` holds the arguments of `ChatTemplate.render`; all of it is plain JSON data."""

    source: str
    conversation: Mapping[str, Any]
    tokenizer_config: Mapping[str, Any]
    special_tokens: list[str]
    added_tokens: list[str]
    max_render_s: float = field(default_factory=lambda: MAX_RENDER_S)


@dataclass(frozen=True)
class _Tokens:
    special_tokens: Iterable[str]
    added_tokens: Iterable[str]


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
                [sys.executable, "-m", __name__],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            return self._process


def _read(status: int, output: bytes, max_render_s: float) -> str:
    if status == 0:
        return output.decode("utf-8", "surrogatepass")
    if status == _REFUSED:
        raise InvalidRequestError(**json.loads(output))
    if status == -signal.SIGPROF:
        raise InvalidRequestError(f"the chat template took more than {max_render_s:g} s", param=PARAM)
    if status in _OUT_OF_MEMORY:
        raise InvalidRequestError("the chat template needs more memory than it may use", param=PARAM)
    raise _unavailable(f"ended with status {status}")


def _unavailable(what: str) -> UnavailableError:
    return UnavailableError(f"the process that renders the chat template {what}", retry_after_s=5.0)


def main() -> None:
    """Take a rendering from stdin, write its text, or why there is none, to stdout. Does not return."""
    from appliance.text import template_environment
    from appliance.text.chat_template import ChatTemplate

    data = sys.stdin.buffer.read()
    given = json.loads(data)
    _die_with(given.pop("parent"))
    rendering = Rendering(**given)
    template_environment.MAX_RENDERED_CHARACTERS = MAX_CHARACTERS + _CHARACTERS_PER_BYTE * len(data)
    template_environment.MAX_RENDER_S = float("inf")  # a clock on the wall; the kernel's counts what is used
    tokens = _Tokens(rendering.special_tokens, rendering.added_tokens)
    _bound(MEMORY_BYTES + _MEMORY_PER_BYTE * len(data), rendering.max_render_s)
    status = _CRASHED
    try:
        template = ChatTemplate(rendering.source, rendering.tokenizer_config, tokens)
        output, status = template.render(**rendering.conversation).encode("utf-8", "surrogatepass"), 0
    except ApplianceError as error:
        param = getattr(error, "param", None)
        # What a template cannot do with the messages is the template's fault here.
        refusal = {"message": str(error), "param": PARAM if param in (None, "messages") else param}
        output, status = json.dumps(refusal).encode(), _REFUSED
    finally:
        if status != _CRASHED:
            sys.stdout.buffer.write(output)
            sys.stdout.buffer.flush()
        # At once: with its memory used up an interpreter does not end well.
        os._exit(status)


def _die_with(parent: int) -> None:
    """With the thread that waits for this process, to be exact."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died in between, so no signal will come
        os._exit(1)


def _bound(memory_bytes: int, max_s: float) -> None:
    used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = used_bytes + memory_bytes
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(_NICENESS)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGPROF])
    signal.setitimer(signal.ITIMER_PROF, max_s)


if __name__ == "__main__":
    main()
