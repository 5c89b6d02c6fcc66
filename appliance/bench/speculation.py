"""How well a server guessed ahead during a load, from two scrapes of its /metrics."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from appliance.bench.http_client import HttpServer
from appliance.bench.http_response import HttpError

_PREFIX = "vllm:spec_decode_num_"
_SAMPLE = re.compile(r"^(vllm:spec_decode_num_\w+?)(?:_total)?(?:\{(.*)\})? ([^ ]+)")
_POSITION = re.compile(r'position="(\d+)"')

Counters = Mapping[str, float]


@dataclass(frozen=True)
class SpeculationStats:
    """Counts over one load; ``position_rates[p]`` is the share of drafts whose token at p was accepted."""

    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    position_rates: list[float]

    @property
    def acceptance_rate(self) -> float:
        """Share of the draft tokens."""
        return self.num_accepted_tokens / max(1, self.num_draft_tokens)

    @property
    def acceptance_length(self) -> float:
        """Tokens a draft's step brought, the model's own included."""
        return 1 + self.num_accepted_tokens / max(1, self.num_drafts)


async def scrape(server: HttpServer) -> Counters:
    """The counters now; empty where the server has none."""
    try:
        status, body = await server.get("/metrics")
    except HttpError:
        return {}
    return parse_counters(body.decode(errors="replace")) if status == 200 else {}


def parse_counters(text: str) -> Counters:
    """Counters of speculation in a Prometheus exposition, summed over their labels but for the position."""
    counters: defaultdict[str, float] = defaultdict(float)
    for line in text.splitlines():
        match = _SAMPLE.match(line) if line.startswith(_PREFIX) else None
        if match and not match[1].endswith("_created"):
            position = _POSITION.search(match[2] or "")
            counters[match[1].removeprefix(_PREFIX) + (f":{position[1]}" if position else "")] += float(match[3])
    return dict(counters)


def compare(before: Counters, after: Counters) -> SpeculationStats | None:
    """What happened in between; None where nothing was drafted."""
    grown = {name: value - before.get(name, 0.0) for name, value in after.items()}
    num_drafts = round(grown.get("drafts", 0))
    if num_drafts <= 0:
        return None
    positions = sorted(int(name.partition(":")[2]) for name in grown if name.startswith("accepted_tokens_per_pos:"))
    return SpeculationStats(
        num_drafts=num_drafts,
        num_draft_tokens=round(grown.get("draft_tokens", 0)),
        num_accepted_tokens=round(grown.get("accepted_tokens", 0)),
        position_rates=[grown[f"accepted_tokens_per_pos:{position}"] / num_drafts for position in positions],
    )
