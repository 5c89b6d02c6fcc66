"""How full the queue is. Written by the scheduler, read by the IO thread, which refuses what is too much."""

from __future__ import annotations

from typing import NamedTuple


class QueueLoad(NamedTuple):
    """One moment's truth, replaced as a whole, so that a reader in another thread never sees half of it."""

    num_requests: int  # that wait
    num_tokens: int  # of theirs
    num_free_seats: int  # places in the running batch that those who wait will take in the next steps
