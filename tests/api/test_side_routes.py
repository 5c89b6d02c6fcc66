"""Models, tokenizer, probes, metrics: the routes beside generation."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from appliance import __version__
from appliance.api import metrics
from appliance.api.state import ApiState
from appliance.metrics import merge_expositions
from tests.api.conftest import MakeBox
from tests.api.harness import NAME, Box, assert_error
from tests.api.scripted_engine import ScriptedEngine

USER = [{"role": "user", "content": "hi"}]


async def test_models(make_box: MakeBox) -> None:
    box = await make_box(names=["org/model", "alias"])
    cards = (await box.client.get("/v1/models")).json()
    assert cards["object"] == "list"
    assert [card["id"] for card in cards["data"]] == ["org/model", "alias"]
    assert {card["root"] for card in cards["data"]} == {"org/model"}
    assert cards["data"][0]["max_model_len"] == 8192
    assert (await box.client.get("/v1/models")).json() == cards
    for card in cards["data"]:
        assert (await box.client.get(f"/v1/models/{card['id']}")).json() == card
    assert_error(await box.client.get("/v1/models/other"), 404, "model", "model_not_found")


async def test_a_shorter_context_of_the_engine_is_adopted(make_box: MakeBox) -> None:
    box = await make_box(ScriptedEngine(max_model_len=100))
    await box.model.adopt_engine_facts()
    assert (await box.client.get("/v1/models")).json()["data"][0]["max_model_len"] == 100


async def test_tokenize_text(box: Box) -> None:
    answer = (await box.client.post("/tokenize", json={"prompt": " red red", "return_token_strs": True})).json()
    assert answer == {"count": 2, "max_model_len": 8192, "tokens": [2382, 2382], "token_strs": ["Ġred", "Ġred"]}
    plain = (await box.client.post("/tokenize", json={"model": NAME, "prompt": ""})).json()
    assert (plain["tokens"], plain["token_strs"]) == ([], None)
    assert (await box.client.post("/tokenize", json={"prompt": "word " * 20_000})).json()["count"] > 8192
    assert_error(await box.client.post("/tokenize", json={"prompt": "x", "model": "other"}), 404, "model")
    assert_error(await box.client.post("/tokenize", json={}), 400, "prompt")


async def test_tokenize_chat_is_what_chat_uses(box: Box) -> None:
    await box.chat(messages=USER)
    used = box.engine.submitted[-1].prompt_token_ids
    assert (await box.client.post("/tokenize", json={"messages": USER})).json()["tokens"] == used
    open_end = {"messages": USER, "add_generation_prompt": False}
    assert used[: (await box.client.post("/tokenize", json=open_end)).json()["count"]] != used
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert (await box.client.post("/tokenize", json={"messages": USER, "tools": tools})).json()["count"] > len(used)
    assert_error(await box.client.post("/tokenize", json={"messages": [{"role": "x"}]}), 400, "messages[0].role")


@pytest.mark.parametrize("text", ["Hello 😀 你好", "<|im_start|>user", "  two  spaces \n"])
async def test_detokenize_is_the_inverse(box: Box, text: str) -> None:
    tokens = (await box.client.post("/tokenize", json={"prompt": text})).json()["tokens"]
    assert (await box.client.post("/detokenize", json={"tokens": tokens})).json() == {"prompt": text}


async def test_detokenize_checks_ids(box: Box) -> None:
    assert_error(await box.client.post("/detokenize", json={"tokens": [1, -1]}), 400, "tokens[1]")
    assert_error(await box.client.post("/detokenize", json={"tokens": [49152]}), 400, "tokens")
    assert_error(await box.client.post("/detokenize", json={"tokens": [2**63]}), 400, "tokens[0]")
    assert_error(await box.client.post("/detokenize", json={"tokens": "x"}), 400, "tokens")


async def test_tokenizer_info(make_box: MakeBox) -> None:
    assert_error(await (await make_box()).client.get("/tokenizer_info"), 404)
    box = await make_box(enable_tokenizer_info_endpoint=True)
    info = (await box.client.get("/tokenizer_info")).json()
    assert "<|im_start|>" in info["chat_template"]
    assert info["eos_token"] == "<|im_end|>"
    assert info["tokenizer_class"]


async def test_version(box: Box) -> None:
    assert (await box.client.get("/version")).json() == {"version": __version__}


async def test_b46_probes_of_a_ready_box(box: Box) -> None:
    response = await box.client.get("/health")
    assert (response.status_code, response.content) == (200, b"")
    for path in ("/livez", "/readyz", "/startupz", "/ping"):
        assert (await box.client.get(path)).status_code == 200
    assert (await box.client.post("/ping")).status_code == 200
    assert (await box.client.head("/health")).status_code == 200
    assert (await box.client.get("/readyz")).json()["models"][0]["phase"] == "ready"


async def test_b46_probes_of_a_loading_box(make_box: MakeBox) -> None:
    box = await make_box(ScriptedEngine(is_ready=False))
    assert (await box.client.get("/livez")).status_code == 200
    for path in ("/health", "/ping", "/readyz", "/startupz"):
        response = await box.client.get(path)
        assert response.status_code == 503
        model = response.json()["models"][0]
        assert (model["phase"], model["percent"], model["is_ready"]) == ("loading weights", 40.0, False)
        assert model["seconds"] == {"starting": 0.1}


async def test_b46_liveness_is_false_once_only_a_new_container_would_help(make_box: MakeBox, tmp_path: Path) -> None:
    box = await make_box(ScriptedEngine(is_ready=False), run_dir=tmp_path)
    assert (await box.client.get("/livez")).status_code == 200
    (tmp_path / "stuck").touch()
    response = await box.client.get("/livez")
    assert (response.status_code, response.json()["status"]) == (503, "stuck")


async def test_b47_a_draining_box_takes_nothing_new(make_box: MakeBox, tmp_path: Path) -> None:
    box = await make_box(run_dir=tmp_path)
    assert (await box.client.get("/readyz")).status_code == 200
    (tmp_path / "draining").touch()
    response = await box.client.get("/readyz")
    assert (response.status_code, response.json()["status"]) == (503, "draining")
    assert (await box.client.get("/livez")).status_code == 200
    refused = await box.chat()
    assert_error(refused, 503)
    assert refused.headers["retry-after"]


async def test_metrics(make_box: MakeBox) -> None:
    box = await make_box()
    await box.chat()
    await box.chat(temperature=9)
    await box.client.get("/secret/prompt")
    await box.client.get("/health")
    response = await box.client.get("/metrics")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    samples = {
        (sample.name, sample.labels.get("handler"), sample.labels.get("status")): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }
    assert samples["http_requests_total", "/v1/chat/completions", "2xx"] == 1
    assert samples["http_requests_total", "/v1/chat/completions", "4xx"] == 1
    assert samples["http_requests_total", "none", "4xx"] == 1
    assert samples["http_request_duration_seconds_count", "/v1/chat/completions", None] == 2
    assert samples["vllm:num_requests_running", None, None] == 0
    assert "secret" not in response.text
    assert "/health" not in response.text


async def test_metrics_without_the_engine(make_box: MakeBox) -> None:
    box = await make_box(ScriptedEngine(is_ready=False))
    response = await box.client.get("/metrics")
    assert response.status_code == 200
    assert "breadbox:server_load" in response.text
    assert "vllm:num_requests" not in response.text


async def test_scrapes_at_once_share_a_collection(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    num_collections, is_collecting, may_end = 0, asyncio.Event(), asyncio.Event()

    async def collect(state: ApiState, *, openmetrics: bool) -> str:
        nonlocal num_collections
        num_collections += 1
        is_collecting.set()
        await may_end.wait()
        return f"collection {num_collections}"

    monkeypatch.setattr(metrics, "collect", collect)
    scrapes = metrics.SharedScrapes(box.app.state.api)
    early = [asyncio.create_task(scrapes.get(openmetrics=False)) for _ in range(25)]
    await is_collecting.wait()
    late = [asyncio.create_task(scrapes.get(openmetrics=False)) for _ in range(25)]
    may_end.set()
    assert set(await asyncio.gather(*early)) == {"collection 1"}
    assert set(await asyncio.gather(*late)) == {"collection 2"}, "nobody gets what was collected before he asked"


def test_expositions_of_several_engines_are_one() -> None:
    head = ("# HELP a_total A.", "# TYPE a_total counter", "# TYPE b gauge")
    texts = [f'{head[0]}\n{head[1]}\na_total{{e="{e}"}} 1.0\n{head[2]}\nb{{e="{e}"}} 2.0\n' for e in "01"]
    merged = merge_expositions(texts)
    assert [merged.count(line) for line in head] == [1, 1, 1]
    families = {family.name: len(family.samples) for family in text_string_to_metric_families(merged)}
    assert families == {"a": 2, "b": 2}
    assert merge_expositions(["", ""]) == ""


WORKER = """
from appliance.metrics import ApiMetrics
metrics = ApiMetrics()
metrics.requests.labels("/x", "GET", "2xx").inc()
print(metrics.render())
"""


def test_any_worker_answers_for_all(tmp_path: Path) -> None:
    environ = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    texts = [subprocess.check_output([sys.executable, "-c", WORKER], env=environ, text=True) for _ in range(2)]
    for count, text in enumerate(texts, start=1):
        assert f'http_requests_total{{handler="/x",method="GET",status="2xx"}} {count}.0' in text


async def test_load_tracking_can_be_switched_off(make_box: MakeBox) -> None:
    box = await make_box(enable_server_load_tracking=False)
    await box.chat()
    assert (await box.client.get("/load")).json() == {"server_load": 0}


async def test_engines_follow_the_lifespan(box: Box) -> None:
    assert box.engine.is_started
    assert json.loads((await box.chat()).text)["choices"]
