"""What a running box writes: one line a request, statistics while there is work, nothing of probes and scrapes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import httpx

from tests.box.running_box import RunningBox, running_box
from tests.observability.load import complete, scrape

TINY = ["--kv-cache-memory", "4MiB", "--max-num-seqs", "8", "--log-format", "json", "--log-stats-interval", "0.5"]


def test_one_line_a_request_with_its_id(box: RunningBox) -> None:
    complete(box, max_tokens=60, headers={"x-request-id": "trace-text"})
    box.wait_until(lambda: "request request_id=trace-text" in box.output, 30)
    (line,) = (line for line in box.output.splitlines() if "request request_id=trace-text" in line)
    facts = dict(re.findall(r"(\w+)=(\S+)", line))
    assert facts.items() >= {"status": "200", "prompt_tokens": "2", "output_tokens": "60", "finish": "length"}.items()
    assert 0 < float(facts["ttft_s"]) < float(facts["duration_s"])
    assert float(facts["itl_s"]) > 0
    (begin,) = (line for line in box.output.splitlines() if "request begins request_id=trace-text" in line)
    assert " max_tokens=60 " in begin


def test_statistics_while_there_is_work(box: RunningBox) -> None:
    complete(box, max_tokens=60)
    box.wait_until(lambda: re.search(r"stats .*output_tokens_per_s=[1-9]", box.output) is not None, 60)


def test_probes_scrapes_and_texts_are_not_logged(box: RunningBox) -> None:
    for path in ("/health", "/livez", "/readyz", "/version", "/load"):
        httpx.get(box.url + path, timeout=10)
    scrape(box)
    complete(box, prompt="a quite secret prompt", headers={"x-request-id": "after-probes"})
    box.wait_until(lambda: "request request_id=after-probes" in box.output, 30)
    assert not re.search(r"route=/(health|livez|readyz|version|load|metrics)", box.output)
    assert "quite secret" not in box.output


def test_json_lines_and_the_proxys_own_answers(tiny: Path) -> None:
    with running_box(tiny, flags=[*TINY, "--max-body-bytes", "100000"]) as box:
        box.wait_ready()
        model = httpx.get(f"{box.url}/v1/models", timeout=20).json()["data"][0]["id"]
        complete(box, model=model, prompt="One", headers={"x-request-id": "by-the-api"})
        huge = b"x" * 200_000
        answer = httpx.post(f"{box.url}/v1/completions", content=huge, headers={"x-request-id": "by-nginx"}, timeout=60)
        assert answer.status_code == 413
        box.wait_until(lambda: "by-nginx" in box.output and "stats " in box.output, 60)
        box.process.terminate()
        assert box.wait_ended() == 0
        lines = [json.loads(line) for line in box.output.splitlines() if line.startswith("{")]
    by_id = {line.get("request_id"): line for line in lines if line["message"] == "request"}
    assert by_id["by-the-api"].items() >= {"program": "api", "status": 200, "model": model}.items()
    assert by_id["by-nginx"].items() >= {"program": "nginx", "status": 413}.items()
    assert any(line["program"] == "engine-0" and line["message"].startswith("stats ") for line in lines)
