"""What nginx answers on /readyz and /startupz while the API can't: the same report, written by the box's parent."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path

from appliance.supervisor.readiness import EngineProgress

PROGRESS_FILE = "progress.json"


class ProgressFile:
    """The file in the run directory; it is only written when it changes, and nobody sees half of it."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / PROGRESS_FILE
        self._engines: Sequence[EngineProgress] = ()
        self._text = ""
        self._status = "not ready"

    def write(self, engines: Sequence[EngineProgress] | None = None, *, is_draining: bool = False) -> None:
        """Tell how far the engines are (None: as before). A box that once drains stays draining.

        On a full disk the file stays as it was until the next look, and the box goes on.
        """
        self._engines = self._engines if engines is None else engines
        self._status = "draining" if is_draining else self._status
        text = json.dumps({"status": self._status, "models": [_report(engine) for engine in self._engines]}) + "\n"
        if text == self._text:
            return
        fresh = self._path.with_suffix(".new")
        with contextlib.suppress(OSError):
            fresh.write_text(text, encoding="utf-8")
            fresh.rename(self._path)
            self._text = text


def _report(engine: EngineProgress) -> dict[str, object]:
    return {
        "model": engine.name,
        "is_ready": engine.is_ready,
        "phase": engine.phase,
        "percent": engine.percent,
        "seconds": dict(engine.seconds),
        "error": None,
    }
