"""Do long answers end before their time: by max_tokens, by the context, or because somebody on the way gives up?"""

from __future__ import annotations

import re
from collections.abc import Iterator

from appliance.doctor.evidence import Evidence
from appliance.doctor.findings import Finding, Severity

_MANY = 0.1
_MOST = 0.5
_ENOUGH = 10  # requests, before a share says something
_SHORT_S = 300
_UNITS = {"ms": 0.001, "": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def check(evidence: Evidence) -> Iterator[Finding]:
    """By how requests end, by our own stream, and by the proxies' timeouts."""
    causes = [*_given_up(evidence), *_too_short(evidence), *_timeouts(evidence.proxy_configs), *_probe(evidence)]
    if causes:
        advice = "; ".join(dict.fromkeys(advice for _, advice in causes))
        facts = tuple(fact for fact, _ in causes)
        yield Finding("cut-generations", Severity.WARNING, "answers are cut off", facts, advice)


def _shares(evidence: Evidence) -> dict[str, float]:
    ends = evidence.recent("vllm:e2e_request_latency_seconds").by_label("vllm:request_success_total", "finished_reason")
    total = sum(ends.values())
    return {reason: count / total for reason, count in ends.items()} if total >= _ENOUGH else {}


def _given_up(evidence: Evidence) -> Iterator[tuple[str, str]]:
    share = _shares(evidence).get("abort", 0.0)
    if share > _MANY:
        p99 = evidence.after.quantile("http_request_duration_seconds", 0.99)
        yield (
            f"{100 * share:.0f} % of the requests were given up by their clients; the longest took about {p99:g} s",
            "raise the timeouts of clients and proxies (60 s is a common default), or stream, so that something comes",
        )


def _too_short(evidence: Evidence) -> Iterator[tuple[str, str]]:
    share = _shares(evidence).get("length", 0.0)
    samples = evidence.recent("vllm:e2e_request_latency_seconds")
    asked, made = samples.mean("vllm:request_params_max_tokens"), samples.mean("vllm:request_generation_tokens")
    # Where the answer is shorter than was asked for, it was the context that ended it.
    if share > _MOST and made < 0.9 * asked:
        yield (
            f"{100 * share:.0f} % of the answers ended for their length, after {made:.0f} of {asked:.0f} tokens",
            "prompt and answer do not fit together: raise --max-model-len, or shorten prompts",
        )


def _timeouts(configs: dict[str, str]) -> Iterator[tuple[str, str]]:
    for path, text in configs.items():
        if "proxy_pass" not in text:
            continue
        seconds = _read_timeout_s(text)
        if seconds < _SHORT_S:
            yield (
                f"{path} gives an answer up after {seconds:g} s of silence (proxy_read_timeout)",
                "set proxy_read_timeout and proxy_send_timeout to an hour",
            )


def _read_timeout_s(text: str) -> float:
    """The longest of a file: other locations may be in a hurry."""
    found = re.findall(r"^\s*proxy_read_timeout\s+(\d+)(ms|s|m|h|d)?\s*;", text, re.MULTILINE)
    return max((int(number) * _UNITS[unit] for number, unit in found), default=60.0)


def _probe(evidence: Evidence) -> Iterator[tuple[str, str]]:
    if evidence.probe and not evidence.probe.error and not evidence.probe.is_complete:
        yield "a small stream ended without its [DONE]", "look for a proxy or a load balancer that cuts connections"
