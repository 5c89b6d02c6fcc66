"""What the process of `template_process` runs: bounds itself, renders one chat template, and ends.

A module of its own, as little as that takes: each such request waits for its imports.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from appliance.errors import ApplianceError

PARAM = "chat_template"
MAX_RENDER_S = 20.0  # of processor time: a busy machine is not the template's fault
# What a template may use and write: some, and more for a longer conversation.
MEMORY_BYTES, _MEMORY_PER_BYTE = 128 * 1024**2, 32
MAX_CHARACTERS, _CHARACTERS_PER_BYTE = 1024**2, 4
_NICENESS = 10  # whoever brings a template waits, rather than those who don't
_PR_SET_PDEATHSIG = 1
REFUSED, CRASHED = 3, 4  # exit statuses: the output is the reason; there is none


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
    status = CRASHED
    try:
        template = ChatTemplate(rendering.source, rendering.tokenizer_config, tokens)
        output, status = template.render(**rendering.conversation).encode("utf-8", "surrogatepass"), 0
    except ApplianceError as error:
        param = getattr(error, "param", None)
        # What a template cannot do with the messages is the template's fault here.
        refusal = {"message": str(error), "param": PARAM if param in (None, "messages") else param}
        output, status = json.dumps(refusal).encode(), REFUSED
    finally:
        if status != CRASHED:
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
