"""Whether a box that nobody asks anything holds anything."""

from __future__ import annotations

import httpx

_HELD = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")


def is_at_rest(url: str) -> bool:
    """No request runs or waits, and no block of the KV cache is in use."""
    text = httpx.get(f"{url}/metrics", timeout=10).raise_for_status().text
    values = [float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.split("{")[0] in _HELD]
    return len(values) >= len(_HELD) and not any(values)
