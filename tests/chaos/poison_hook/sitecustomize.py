"""Makes the engine of a box fail at a poisoned prompt.

Python runs this file first in a box that a test starts with this folder in PYTHONPATH; the product knows nothing of it.

``POISON=crash``: SIGSEGV in each step that has the prompt in it. ``POISON=hang``: the step never ends.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from typing import Any

POISON_TOKEN = 23507  # " Zimbabwe", in the default model's vocabulary


class _PoisonedRunner:
    """The engine's runner, but for that."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def execute(self, step: Any) -> Any:
        if any(POISON_TOKEN in row.prompt_token_ids for row in step.rows):
            if os.environ["POISON"] == "hang":
                threading.Event().wait()
            ctypes.string_at(0)
        return self._runner.execute(step)


def _poison() -> None:
    from engine.core import EngineCore

    make = EngineCore.__init__

    def make_poisoned(self: Any, config: Any, runner: Any, *args: Any, **more: Any) -> None:
        make(self, config, _PoisonedRunner(runner), *args, **more)

    EngineCore.__init__ = make_poisoned  # type: ignore[method-assign]


if "POISON" in os.environ and "engine" in sys.orig_argv and "--index" in sys.orig_argv:
    _poison()
