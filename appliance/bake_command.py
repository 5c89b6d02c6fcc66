"""`breadbox bake`: calls `appliance.bake` and shows how far it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from appliance import bake
from appliance.baked_model import BakedModel
from appliance.errors import BakeError
from appliance.supervisor.console import Console

_PHASES = {"download": "downloading", "digest": "checking digests", "read": "reading", "weights": "writing weights"}


def bake_model(
    source: str, out: Path, dtype: str, revision: str | None, name: str | None, force: bool, quantization: str
) -> int:
    """Bake with progress. Raises BakeError."""
    console = Console()
    try:
        path = bake.bake(
            source,
            out,
            dtype=dtype,
            revision=revision,
            name=name,
            progress=_show_on(console),
            force=force,
            quantization=quantization,
        )
    finally:
        console.end_progress()
    for note in BakedModel(path).manifest["weights"].get("notes", ()):
        console.say(note)
    console.say(f"baked {source} into {path}")
    return 0


def verify_model(path: Path) -> int:
    """Check a folder's digests with progress. Raises BakeError that lists what is wrong."""
    console = Console()
    try:
        problems = bake.verify(path, _show_on(console))
    finally:
        console.end_progress()
    if problems:
        raise BakeError(f"{path}: " + "; ".join(problems))
    console.say(f"{path} is as it was baked")
    return 0


def _show_on(console: Console) -> Callable[[str, float], None]:
    def show(phase: str, fraction: float) -> None:
        console.progress(_PHASES.get(phase, phase), f"({100 * fraction:.0f} %)")

    return show
