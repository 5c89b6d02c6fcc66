"""What was compiled lately, by content: matchers at their start, and the errors of what does not compile."""

from __future__ import annotations

import threading
from collections import OrderedDict

from llguidance import LLMatcher

MAX_ENTRIES = 256
MAX_SOURCE_BYTES = 2 << 20  # a large compiled grammar takes about 150 bytes for each byte of its source

Key = tuple[str, str, str | None]  # kind, source, whitespace


class GrammarCache:
    """Least recently used goes first; bounded by count and by bytes of source. Safe between threads."""

    def __init__(self, max_entries: int = MAX_ENTRIES, max_source_bytes: int = MAX_SOURCE_BYTES) -> None:
        self._max_entries = max_entries
        self._max_source_bytes = max_source_bytes
        self._entries: OrderedDict[Key, LLMatcher | str] = OrderedDict()
        self._lock = threading.Lock()
        self._num_bytes = 0

    def get(self, key: Key) -> LLMatcher | str | None:
        """The matcher (to be copied, not used) or error of a grammar, None where it is not known."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
            return entry

    def put(self, key: Key, entry: LLMatcher | str) -> None:
        """Remember; forget what that leaves no room for."""
        with self._lock:
            if key in self._entries:
                return
            self._entries[key] = entry
            self._num_bytes += len(key[1])
            while len(self._entries) > self._max_entries or self._num_bytes > self._max_source_bytes:
                (_, source, _), _ = self._entries.popitem(last=False)
                self._num_bytes -= len(source)

    def __len__(self) -> int:
        return len(self._entries)
