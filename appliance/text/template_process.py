"""Renders a chat template that a caller brought: in a process of its own, which has little memory and little time.

No bound within an interpreter would do: hundreds of methods and filters make something large of something small, and
some of them run for minutes before anybody looks at a clock. So the kernel keeps the bounds, and what goes over them
costs that process its life and the API worker nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from appliance.errors import ApplianceError, InvalidRequestError

PARAM = "chat_template"
MAX_RENDER_S = 20.0  # of processor time: a busy machine is not the template's fault
# What a template may use and write: some, and more for a longer conversation.
MEMORY_BYTES, _MEMORY_PER_BYTE = 128 * 1024**2, 32
MAX_CHARACTERS, _CHARACTERS_PER_BYTE = 1024**2, 4
_PATIENCE_S = 60.0  # beyond that, of a machine that is busy with other things
_NICENESS = 10  # whoever brings a template waits, rather than those who don't
_REFUSED = 3  # exit status: the output is the reason


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
    """The prompt for `Tokenizer.encode_chat`. Raises InvalidRequestError that names ``chat_template``."""
    given = await asyncio.to_thread(lambda: json.dumps(asdict(rendering)).encode())
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __name__), stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(rendering.max_render_s + _PATIENCE_S):
            output, _ = await process.communicate(given)
    except TimeoutError:
        raise InvalidRequestError("the chat template took too long", param=PARAM) from None
    finally:
        if process.returncode is None:
            process.kill()
    if process.returncode == -signal.SIGPROF:
        raise InvalidRequestError(f"the chat template took more than {rendering.max_render_s:g} s", param=PARAM)
    if process.returncode == _REFUSED:
        raise InvalidRequestError(**json.loads(output))
    if process.returncode != 0:
        raise InvalidRequestError("the chat template needs more memory than it may use", param=PARAM)
    return output.decode("utf-8", "surrogatepass")


def main() -> int:
    """Take a rendering from stdin, write its text, or why there is none, to stdout. Returns the exit status."""
    from appliance.text import template_environment
    from appliance.text.chat_template import ChatTemplate

    given = sys.stdin.buffer.read()
    rendering = Rendering(**json.loads(given))
    template_environment.MAX_RENDERED_CHARACTERS = MAX_CHARACTERS + _CHARACTERS_PER_BYTE * len(given)
    _bound(MEMORY_BYTES + _MEMORY_PER_BYTE * len(given), rendering.max_render_s)
    tokens = _Tokens(rendering.special_tokens, rendering.added_tokens)
    try:
        text = ChatTemplate(rendering.source, rendering.tokenizer_config, tokens).render(**rendering.conversation)
    except ApplianceError as error:
        param = getattr(error, "param", None)
        # What a template cannot do with the messages is the template's fault here.
        refusal = {"message": str(error), "param": PARAM if param in (None, "messages") else param}
        sys.stdout.write(json.dumps(refusal))
        return _REFUSED
    sys.stdout.buffer.write(text.encode("utf-8", "surrogatepass"))
    return 0


def _bound(memory_bytes: int, max_s: float) -> None:
    used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used_bytes + memory_bytes,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(_NICENESS)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGPROF])
    signal.setitimer(signal.ITIMER_PROF, max_s)


if __name__ == "__main__":
    sys.exit(main())
