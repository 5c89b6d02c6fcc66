"""The short form of both fuzzers; the long form is ``python -m tests.e2e.fuzz --requests 10000``."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.box.running_box import RunningBox
from tests.e2e.caller import KEY, Caller
from tests.e2e.clients.conftest import CACHE, require, run
from tests.e2e.fuzz.bodies import VALID, make_body
from tests.e2e.fuzz.campaign import Campaign
from tests.e2e.fuzz.damage import damage
from tests.e2e.fuzz.limits import limit
from tests.e2e.fuzz.raw_http import make_request

ROOT = Path(__file__).parent.parent.parent.parent
SCHEMATHESIS = CACHE / "clients-venv" / "bin" / "schemathesis"
# What our schemas allow and what a model can do are different things: these two ask for more than a schema can say.
UNASKED = "positive_data_acceptance,negative_data_rejection"


async def test_b19_random_requests_never_fail_the_box(box: Caller, processes: RunningBox) -> None:
    def pids() -> list[int]:
        return [process.pid for process in processes.find("engine", "--index 0")]

    before = pids()
    report = await Campaign(box.url, KEY, seed=20_26).run(500)
    assert report.is_clean, report.describe()
    assert sum(report.statuses.values()) == 500
    assert report.statuses[200] > 50
    assert pids() == before


def test_b19_schemathesis_finds_nothing(box: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    require(SCHEMATHESIS)
    monkeypatch.setenv("SCHEMATHESIS_HOOKS", "tests.e2e.fuzz.schemathesis_hooks")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    command = [SCHEMATHESIS, "run", f"{box.url}/openapi.json", "--header", f"Authorization: Bearer {KEY}"]
    examples = os.environ.get("SCHEMATHESIS_EXAMPLES", "5")
    limits = ["--max-examples", examples, "--request-timeout", "60", "--workers", "2", "--seed", "1"]
    kinds = ["--checks", "all", "--exclude-checks", UNASKED, "--phases", "fuzzing", "--mode", "all"]
    output = run([*command, *kinds, "--no-color", *limits], ROOT)
    assert "FAILURES" not in output


@pytest.mark.parametrize("path", VALID)
def test_what_is_sent_is_short(path: str) -> None:
    rng = random.Random(5)
    properties = {"max_tokens": {"type": "integer"}, "n": {"type": "integer"}, "prompt": {}}
    schema = {"requestBody": {"content": {"application/json": {"schema": {"$ref": "#/x/B"}}}}}
    document = {"paths": {path: {"post": schema}}, "components": {"schemas": {"B": {"properties": properties}}}}
    for _ in range(300):
        body = limit(make_body(rng, path, document, "m"))
        if isinstance(body, dict):
            asked = [body.get(name) for name in ("max_tokens", "max_output_tokens")]
            assert not any(type(value) is int and 4 < value < 1_000_000 for value in asked)
            assert body.get("max_output_tokens") is not None


def test_the_same_seed_sends_the_same() -> None:
    for make in (lambda rng: make_request(rng, "k"), lambda rng: damage(rng, b'{"prompt": "hi", "max_tokens": 3}')):
        assert [make(random.Random(seed)) for seed in range(50)] == [make(random.Random(seed)) for seed in range(50)]
