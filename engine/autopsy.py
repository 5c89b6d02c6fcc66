"""What did the engine before this one die of, and what was it working on? Asked once, by the next engine, at its start.

A death counts as the engine's own fault where somebody left a note: the fault handler (SIGSEGV, SIGABRT, …), an
exception that ended it, the box's parent process that found it hanging, or the kernel that counts what it kills for
want of memory. A SIGKILL or SIGTERM from outside leaves none, so no request is blamed for it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
from dataclasses import dataclass
from pathlib import Path

from engine.journal import InHand, count_oom_kills, read_journal

logger = logging.getLogger(__name__)

MAX_NOTE_CHARS = 4000
OUT_OF_MEMORY = "the kernel killed it for want of memory"


@dataclass(frozen=True, slots=True)
class Death:
    """How an engine ended. ``fault`` is None where it was ended from outside."""

    fault: str | None
    in_hand: list[InHand]


def note_path(journal_path: Path) -> Path:
    """The file for notes on the fault that ends the engine of this journal."""
    return journal_path.with_suffix(".fault")


def leave_note(journal_path: Path | None, text: str) -> None:
    """Say why the engine of this journal ends, or is about to be ended."""
    if journal_path is None:
        return
    with contextlib.suppress(OSError), note_path(journal_path).open("a", encoding="utf-8") as file:
        file.write(text.rstrip() + "\n")


def examine(journal_path: Path) -> Death | None:
    """The death of the engine that wrote this journal; None where there was none. Its notes are logged and removed."""
    state = read_journal(journal_path)
    note = _take_note(journal_path)
    if state is None or not state.pid:
        return None
    if note is None and count_oom_kills() > state.num_oom_kills:
        note = OUT_OF_MEMORY
    if note is not None:
        logger.error("the engine before this one failed pid=%d num_in_hand=%d: %s", state.pid, len(state.in_hand), note)
    return Death(note, state.in_hand)


def note_faults(journal_path: Path) -> None:
    """From here on a fatal signal leaves a note, with the stacks of all threads."""
    try:
        file = note_path(journal_path).open("a", encoding="utf-8")
    except OSError as error:
        logger.warning("faults will not be noted path=%s error=%s", journal_path, error)
    else:
        faulthandler.enable(file)  # keeps the file open


def _take_note(journal_path: Path) -> str | None:
    try:
        note = note_path(journal_path).read_text(encoding="utf-8", errors="replace").strip()
        note_path(journal_path).unlink()
    except OSError:
        return None
    return note[:MAX_NOTE_CHARS] or None
