"""What the engine is at right now, in a mapped file that survives it: the beat of its busy loop and what is in hand.

The engine writes, in microseconds and without a system call. Two others read: the box's parent process, which ends an
engine whose beat stands still, and the next engine, which learns from it whose requests the dead one was working on
(`engine.autopsy`) and how long its steps took.
"""

from __future__ import annotations

import enum
import hashlib
import logging
import mmap
import os
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from engine.step_allowance import NUM_SIZES

logger = logging.getLogger(__name__)

MAX_IN_HAND = 8192
KEY_BYTES = 8
_MAGIC = b"breadbx1"
_HEADER = struct.Struct("<8sIIdQQI")  # magic, pid, activity, allowance_s, beat, OOM kills before it, requests in hand
_ENTRY = struct.Struct(f"<{KEY_BYTES}sI")  # key, output tokens
_BEAT = struct.Struct("<IdQ")  # activity, allowance_s, beat
_COUNT = struct.Struct("<I")
_COUNT_OFFSET = _HEADER.size - _COUNT.size
_STEP_SECONDS = struct.Struct(f"<{NUM_SIZES}d")
_STEPS_OFFSET = _HEADER.size + MAX_IN_HAND * _ENTRY.size
_SIZE = _STEPS_OFFSET + _STEP_SECONDS.size


class Activity(enum.IntEnum):
    """What the main thread is doing."""

    LOADING = 0
    IDLE = 1  # it still beats about once a second
    WORKING = 2  # in one step


@dataclass(frozen=True, slots=True)
class InHand:
    """A request that was being worked on, and how many output tokens it had."""

    key: bytes
    num_output_tokens: int


@dataclass(frozen=True, slots=True)
class JournalState:
    """What a journal says. ``beat`` changes as long as the engine gets anywhere, within ``allowance_s``."""

    pid: int
    activity: Activity
    allowance_s: float
    beat: int
    num_oom_kills: int  # on this machine, when the engine started
    in_hand: list[InHand]
    step_seconds: tuple[float, ...]  # as `StepAllowance` has learned them


def make_key(request_id: str) -> bytes:
    """A request's name in the journal: the same in every engine that works on it."""
    return hashlib.blake2b(request_id.encode(), digest_size=KEY_BYTES).digest()


class Journal:
    """Written by the busy loop's thread alone. Without a path it is only for this process."""

    def __init__(self, path: Path | None = None, *, allowance_s: float = 0.0) -> None:
        before = read_journal(path) if path else None
        self.step_seconds = before.step_seconds if before else ()
        self._map = _make_map(path)
        for size, seconds in enumerate(self.step_seconds):
            self.keep_seconds(size, seconds)
        self._default_allowance_s = self._allowance_s = allowance_s  # 0 = any time
        self._activity = Activity.LOADING
        self._beat = 0
        self._beat_at_s = time.monotonic()
        _HEADER.pack_into(
            self._map, 0, _MAGIC, os.getpid(), self._activity, allowance_s, self._beat, count_oom_kills(), 0
        )

    @property
    def is_late(self) -> bool:
        """Whether the main thread has got nowhere for half of what it may take. Read from the IO thread, too."""
        if self._activity is Activity.LOADING or not self._allowance_s:
            return False
        return time.monotonic() - self._beat_at_s > self._allowance_s / 2

    def load(self) -> None:
        """Loading gets on."""
        self._write(Activity.LOADING, self._default_allowance_s)

    def idle(self) -> None:
        """Between steps, or nothing to do."""
        self._write(Activity.IDLE, self._default_allowance_s)

    def work(self, in_hand: Iterable[tuple[bytes, int]], allowance_s: float) -> None:
        """A step begins that may take so long, with these keys and numbers of output tokens."""
        self.hold(in_hand)
        self._write(Activity.WORKING, allowance_s)

    def hold(self, in_hand: Iterable[tuple[bytes, int]]) -> None:
        """These are in hand, and no others. Whenever the process dies, what is read is right or empty."""
        entries = [_ENTRY.pack(key, num_tokens) for key, num_tokens in in_hand][:MAX_IN_HAND]
        _COUNT.pack_into(self._map, _COUNT_OFFSET, 0)
        if not entries:
            return
        self._map[_HEADER.size : _HEADER.size + len(entries) * _ENTRY.size] = b"".join(entries)
        _COUNT.pack_into(self._map, _COUNT_OFFSET, len(entries))

    def keep_seconds(self, size: int, seconds: float) -> None:
        """Keep what a step of this size took for the next engine."""
        struct.pack_into("<d", self._map, _STEPS_OFFSET + 8 * size, seconds)

    def close(self) -> None:
        """The engine ends in good order: there is no death to look into."""
        struct.pack_into("<I", self._map, len(_MAGIC), 0)

    def _write(self, activity: Activity, allowance_s: float) -> None:
        self._beat += 1
        self._beat_at_s = time.monotonic()
        self._activity, self._allowance_s = activity, allowance_s
        _BEAT.pack_into(self._map, len(_MAGIC) + 4, activity, allowance_s, self._beat)


def read_journal(path: Path) -> JournalState | None:
    """The journal of the engine that writes it, or wrote it last; None where there is none."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    if len(data) != _SIZE or not data.startswith(_MAGIC):
        return None
    _, pid, activity, allowance_s, beat, num_oom_kills, count = _HEADER.unpack_from(data)
    entries = _ENTRY.iter_unpack(data[_HEADER.size : _HEADER.size + min(count, MAX_IN_HAND) * _ENTRY.size])
    in_hand = [InHand(key, num_tokens) for key, num_tokens in entries]
    step_seconds = _STEP_SECONDS.unpack_from(data, _STEPS_OFFSET)
    return JournalState(pid, Activity(activity), allowance_s, beat, num_oom_kills, in_hand, step_seconds)


def count_oom_kills() -> int:
    """Processes that the kernel has killed for want of memory since the machine was started; 0 where it doesn't say."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def _make_map(path: Path | None) -> mmap.mmap:
    if path is None:
        return mmap.mmap(-1, _SIZE)
    # A new file in the old one's place: whoever reads sees one engine's journal, never two mixed.
    fresh = path.with_suffix(".fresh")
    try:
        with fresh.open("w+b") as file:
            file.write(_MAGIC.ljust(_SIZE, b"\0"))  # a hole in the file would be found on a full disk, by a signal
            file.flush()
            mapped = mmap.mmap(file.fileno(), _SIZE)
        fresh.replace(path)
    except OSError as error:
        logger.warning("no journal, a hanging engine will not be noticed path=%s error=%s", path, error)
        return mmap.mmap(-1, _SIZE)
    return mapped
