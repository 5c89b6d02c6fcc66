"""Is /dev/shm large enough? Tensor parallelism exchanges tensors there, and torch's compilers use it."""

from __future__ import annotations

from collections.abc import Iterator

from appliance.doctor.evidence import Evidence
from appliance.doctor.findings import Finding, Severity
from appliance.memory import describe_bytes

_LITTLE_BYTES = 32 * 1024**2


def check(evidence: Evidence) -> Iterator[Finding]:
    """docker gives 64 MiB by default; what is left of it counts."""
    folder = evidence.machine.shared_memory if evidence.machine else None
    if folder is not None and folder.free_bytes < _LITTLE_BYTES:
        free = f"{describe_bytes(folder.free_bytes)} of {describe_bytes(folder.total_bytes)} are free in {folder.path}"
        yield Finding(
            "shared-memory",
            Severity.WARNING,
            "shared memory is short",
            (free,),
            "give the container more: docker's --shm-size 1g, an emptyDir of medium Memory at /dev/shm in Kubernetes",
        )
