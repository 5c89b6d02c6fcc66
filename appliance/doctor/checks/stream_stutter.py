"""Do streams arrive in lumps, though the engine makes token after token? Then somebody on the way holds them back."""

from __future__ import annotations

import re
from collections.abc import Iterator

from appliance.doctor.evidence import Evidence, Probe
from appliance.doctor.findings import Finding, Severity

_FEW_ARRIVALS = 0.25  # of the chunks
_LATE_START = 0.7  # of the whole time, before anything came
_MIN_CHUNKS = 8
_ADVICE = (
    "in every proxy on the way: no buffering (nginx: proxy_buffering off; it also heeds our X-Accel-Buffering header), "
    "no gzip for text/event-stream, HTTP/1.1 to the box"
)


def check(evidence: Evidence) -> Iterator[Finding]:
    """By a stream of our own, and by the proxies' configuration."""
    facts = [*(_judge(evidence.probe) if evidence.probe else ()), *_read_configs(evidence.proxy_configs)]
    if facts:
        yield Finding("stream-stutter", Severity.WARNING, "streams do not flow", tuple(facts), _ADVICE)


def _judge(probe: Probe) -> Iterator[str]:
    if probe.error or probe.num_chunks < _MIN_CHUNKS or not probe.is_telling:
        return
    first, last = probe.arrivals_s[0], probe.arrivals_s[-1]
    if len(probe.arrivals_s) < _FEW_ARRIVALS * probe.num_chunks or (first > _LATE_START * last and last > 1):
        yield (
            f"{probe.num_chunks} chunks of a stream came in {len(probe.arrivals_s)} pieces, "
            f"the first after {first:.2f} s of {last:.2f} s"
        )
        if probe.headers.get("content-encoding"):
            yield f"the stream was compressed on the way ({probe.headers['content-encoding']})"
        if probe.headers.get("via"):
            yield f"it came via {probe.headers['via']}"


def _read_configs(configs: dict[str, str]) -> Iterator[str]:
    for path, text in configs.items():
        if "proxy_pass" not in text:
            continue
        if not re.search(r"^\s*proxy_buffering\s+off\s*;", text, re.MULTILINE):
            yield f"{path} does not switch proxy_buffering off"
        if not re.search(r"^\s*proxy_http_version\s+1\.1\s*;", text, re.MULTILINE):
            yield f"{path} does not set proxy_http_version 1.1"
        if re.search(r"^\s*gzip\s+on\s*;", text, re.MULTILINE) and "text/event-stream" in text:
            yield f"{path} compresses text/event-stream"
