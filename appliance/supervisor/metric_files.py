"""Room on the disk for an API worker's counts, taken before the worker begins.

The files are mapped: where they have no room on the disk, writing a count ends the process with a bus error. On a full
disk, therefore, a new worker waits while the others go on.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from pathlib import Path

logger = logging.getLogger(__name__)

KINDS = ("counter", "gauge_livesum", "histogram")  # of metrics that `appliance.metrics` has
BYTES = 1 << 16  # what prometheus_client maps at first, and several times what our series need
RETRY_S = 1.0
_FULL = (errno.ENOSPC, errno.EDQUOT)


def reserve(folder: Path, pid: int) -> None:
    """Returns once there is room, or where the file system cannot set it aside."""
    is_told = False
    while not _try_reserve(folder, pid):
        if not is_told:
            logger.error("no room for the metrics of an API worker, it waits folder=%s", folder)
            is_told = True
        time.sleep(RETRY_S)


def _try_reserve(folder: Path, pid: int) -> bool:
    try:
        for kind in KINDS:
            descriptor = os.open(folder / f"{kind}_{pid}.db", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, BYTES)
            finally:
                os.close(descriptor)
    except OSError as error:
        if error.errno in _FULL:
            return False
        logger.warning("room for metrics cannot be taken in advance folder=%s error=%s", folder, error)
    return True
