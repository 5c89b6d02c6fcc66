"""One file a class of trouble; each has ``check(evidence)``, which yields what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from appliance.doctor.checks import (
    clock,
    crashes,
    cut_generations,
    disk,
    file_descriptors,
    low_throughput,
    out_of_memory,
    out_of_memory_at_start,
    reachability,
    shared_memory,
    slow_adapters,
    slow_first_token,
    stream_stutter,
    token_spikes,
)
from appliance.doctor.evidence import Evidence
from appliance.doctor.findings import Finding

Check = Callable[[Evidence], Iterator[Finding]]

CHECKS: dict[str, Check] = {
    "reachable and ready": reachability.check,
    "memory at start": out_of_memory_at_start.check,
    "memory at run time": out_of_memory.check,
    "time to first token": slow_first_token.check,
    "spikes between tokens": token_spikes.check,
    "throughput": low_throughput.check,
    "crashes": crashes.check,
    "adapter switches": slow_adapters.check,
    "smooth streams": stream_stutter.check,
    "whole generations": cut_generations.check,
    "disk": disk.check,
    "file descriptors": file_descriptors.check,
    "shared memory": shared_memory.check,
    "clock": clock.check,
}
