"""A scripted box for the commands for people: models, a report of readiness, metrics that grow, streams."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.unit.bench.fake_server import FakeServer, answer, chunked, event, head

MODEL = "fake-model"
READY = {"model": MODEL, "is_ready": True, "phase": "ready", "percent": 100.0}


def deltas(*pieces: dict[str, Any], finish: str = "stop", tokens: int | None = None) -> list[bytes]:
    """A chat's stream."""
    parts = [event({"choices": [{"index": 0, "delta": piece, "finish_reason": None}]}) for piece in pieces]
    parts.append(event({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}))
    usage = {"prompt_tokens": 3, "completion_tokens": len(pieces) if tokens is None else tokens}
    return [head(), chunked([b": keep-alive\n\n", *parts, event({"choices": [], "usage": usage}), event("[DONE]")])]


def echo(server: FakeServer, path: str, body: dict[str, Any]) -> list[bytes]:
    """Says what was said last."""
    if path.endswith("/completions") and "prompt" in body:
        texts = [event({"choices": [{"index": 0, "text": text}]}) for text in (" goes", " on")]
        return [head(), chunked([*texts, event("[DONE]")])]
    return deltas({"content": "you said: "}, {"content": body["messages"][-1]["content"]})


def exposition(tokens: float = 0, running: float = 1, ttft: tuple[int, int, int] = (0, 0, 0)) -> str:
    """Metrics of one model; `ttft` are the cumulative counts of the buckets 0.1, 1 and +Inf."""
    labels = f'model_name="{MODEL}",engine="0"'
    lines = ["# TYPE breadbox:build_info gauge", 'breadbox:build_info{version="9.9.9"} 1']
    for name, value in [("num_requests_running", running), ("num_requests_waiting", 2), ("kv_cache_usage_perc", 0.5)]:
        lines += [f"# TYPE vllm:{name} gauge", f"vllm:{name}{{{labels}}} {value}"]
    for name, value in [
        ("generation_tokens", tokens),
        ("prompt_tokens", 10),
        ("num_preemptions", 3),
        ("prefix_cache_hits", 1),
        ("prefix_cache_queries", 4),
    ]:
        lines += [f"# TYPE vllm:{name} counter", f"vllm:{name}_total{{{labels}}} {value}"]
    lines += ["# TYPE vllm:time_to_first_token_seconds histogram"]
    for bound, count in zip(("0.1", "1.0", "+Inf"), ttft, strict=True):
        lines.append(f'vllm:time_to_first_token_seconds_bucket{{{labels},le="{bound}"}} {count}')
    return "\n".join([*lines, ""])


@dataclass
class PeopleServer(FakeServer):
    """``report`` answers /startupz; None stands for a proxy whose API is away."""

    reply: Any = echo
    report: dict[str, Any] | None = field(default_factory=lambda: {"status": "ready", "models": [READY]})

    def _get(self, path: str) -> bytes:
        if self.report is None:
            return answer(503, {"error": {"message": "The server is starting."}})
        if path == "/startupz":
            return answer(200 if self.report["status"] == "ready" else 503, self.report)
        if path == "/metrics":
            return answer(200, (self.metrics.pop(0) if len(self.metrics) > 1 else self.metrics[0]).encode())
        return super()._get(path)
