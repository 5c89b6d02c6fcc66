"""Keys: what is open, what is guarded, every spelling of a path; CORS beside keys; request ids."""

from __future__ import annotations

from typing import Any

import pytest

from appliance.api.app import ENVELOPES, ROUTERS
from appliance.api.auth import OPEN_PATHS
from tests.api.conftest import MakeBox
from tests.api.harness import NAME, Box, assert_error, read_events

KEYS = ("key-one", "key-two")
ORIGIN = "http://localhost:3000"
BODY = {"model": NAME, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
ROUTES = sorted({(route.path, method) for router, _ in ROUTERS for route in router.routes for method in route.methods})  # type: ignore[attr-defined]


@pytest.fixture
async def locked(make_box: MakeBox) -> Box:
    box: Box = await make_box(api_key=KEYS, enable_tokenizer_info_endpoint=True)
    return box


@pytest.mark.parametrize(("path", "method"), [*ROUTES, ("/docs", "GET"), ("/openapi.json", "GET"), ("/nothing", "GET")])
async def test_b41_every_route_is_guarded_unless_it_is_a_probe(locked: Box, path: str, method: str) -> None:
    response = await locked.client.request(method, path.replace("{name:path}", NAME))
    if path in OPEN_PATHS:
        assert response.status_code == 200
    elif method != "HEAD":
        if path in ENVELOPES or path.startswith("/v1/messages/"):
            assert response.status_code == 401
            assert response.json()["error"]["type"] == "authentication_error"
        else:
            assert_error(response, 401, code="invalid_api_key")
        assert response.headers["www-authenticate"] == "Bearer"
        assert response.headers["x-request-id"]


@pytest.mark.parametrize(
    "path",
    ["//v1/models", "/v1/../v1/models", "/V1/models", "/v1/models/", "/v1/models%2f", "/health/../v1/models",
     "/health/", "//health", "/health%00", "/healthz", "/HEALTH", "/version/../tokenizer_info"],
)  # fmt: skip
async def test_b41_odd_spellings_do_not_open_anything(locked: Box, path: str) -> None:
    scope_path = locked.client.build_request("GET", "http://box/")
    scope_path.url = scope_path.url.copy_with(raw_path=path.encode())
    assert (await locked.client.send(scope_path)).status_code in (401, 404)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401), ({"authorization": "Bearer key-one"}, 200), ({"authorization": "bearer key-two"}, 200),
        ({"x-api-key": "key-two"}, 200), ({"authorization": "Bearer wrong"}, 401), ({"authorization": "key-one"}, 401),
        ({"authorization": "Basic key-one"}, 401), ({"authorization": "Bearer "}, 401),
        ({"authorization": "Bearer key"}, 401),
        ({"x-api-key": ""}, 401), ({"authorization": "Bearer key-one", "x-api-key": "wrong"}, 200),
    ],
)  # fmt: skip
async def test_keys(locked: Box, headers: dict[str, str], status: int) -> None:
    response = await locked.client.get("/v1/models", headers=headers)
    assert response.status_code == status
    if status == 401:
        assert "key-one" not in response.text


async def test_keys_that_are_not_ascii(make_box: MakeBox) -> None:
    box = await make_box(api_key=("schlüssel",))
    sent = "schlüssel".encode()
    assert (await box.client.get("/v1/models", headers=[(b"authorization", b"Bearer " + sent)])).status_code == 200
    assert (await box.client.get("/v1/models", headers=[(b"authorization", b"Bearer \xff\xfe")])).status_code == 401


async def test_no_key_means_open(box: Box) -> None:
    assert (await box.client.get("/v1/models")).status_code == 200
    assert (await box.client.get("/metrics")).status_code == 200


async def test_root_path(make_box: MakeBox) -> None:
    box = await make_box(api_key=KEYS, root_path="/llm")
    for prefix in ("", "/llm"):
        assert (await box.client.get(prefix + "/health")).status_code == 200
        assert (await box.client.get(prefix + "/v1/models")).status_code == 401
        keyed = await box.client.get(prefix + "/v1/models", headers={"x-api-key": "key-one"})
        assert keyed.status_code == 200
    assert (await box.client.get("/llmhealth")).status_code == 401


@pytest.fixture
async def shared(make_box: MakeBox) -> Box:
    box: Box = await make_box(api_key=KEYS, allowed_origins=(ORIGIN,))
    return box


async def preflight(box: Box, origin: str = ORIGIN) -> Any:
    headers = {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type,x-stainless-os",
    }
    return await box.client.options("/v1/chat/completions", headers=headers)


async def test_b43_preflight_needs_no_key(shared: Box) -> None:
    response = await preflight(shared)
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == ORIGIN
    assert "POST" in response.headers["access-control-allow-methods"]
    assert "x-stainless-os" in response.headers["access-control-allow-headers"]
    assert "Origin" in response.headers["vary"]


async def test_b43_other_origins_get_nothing(shared: Box) -> None:
    response = await preflight(shared, "http://evil")
    assert_error(response, 400)
    assert "access-control-allow-origin" not in response.headers
    answer = await shared.client.get("/health", headers={"origin": "http://evil"})
    assert "access-control-allow-origin" not in answer.headers


async def test_b43_errors_and_streams_carry_cors_headers(shared: Box) -> None:
    path, origin = "/v1/chat/completions", {"origin": ORIGIN}
    refused = await shared.client.post(path, json=BODY, headers=origin)
    assert_error(refused, 401)
    keyed = origin | {"authorization": "Bearer key-one"}
    streamed = await shared.client.post(path, json=BODY | {"stream": True}, headers=keyed)
    assert read_events(streamed.text)
    wrong = await shared.client.post(path, json=BODY | {"n": 0}, headers=keyed)
    missing = await shared.client.get("/nothing", headers=keyed)
    for response in (refused, streamed, wrong, missing):
        assert response.headers.get_list("access-control-allow-origin") == [ORIGIN]
        assert "x-request-id" in response.headers["access-control-expose-headers"]
        assert len(response.headers.get_list("x-request-id")) == 1


async def test_b43_never_a_star_with_credentials(make_box: MakeBox) -> None:
    box = await make_box(allowed_origins=("*",), allow_credentials=True)
    for response in (await preflight(box), await box.client.get("/health", headers={"origin": ORIGIN})):
        assert response.headers["access-control-allow-origin"] == ORIGIN
        assert response.headers["access-control-allow-credentials"] == "true"


async def test_cors_is_off_by_default(box: Box) -> None:
    assert_error(await preflight(box), 405)
    assert "access-control-allow-origin" not in (await box.client.get("/health", headers={"origin": ORIGIN})).headers


@pytest.mark.parametrize("value", ["dup-1", "a" * 128, "trace/1:2"])
async def test_b44_clean_ids_are_echoed(box: Box, value: str) -> None:
    for path in ("/health", "/nothing"):
        assert (await box.client.get(path, headers={"x-request-id": value})).headers["x-request-id"] == value


@pytest.mark.parametrize("value", [b"x" * 200_000, b"a\x01b", "ü".encode(), b"", b"two words"])
async def test_b44_other_ids_are_replaced(box: Box, value: bytes) -> None:
    response = await box.client.get("/health", headers=[(b"x-request-id", value)])
    assert response.headers["x-request-id"].isalnum()
    assert len(response.headers["x-request-id"]) == 32


async def test_b44_object_ids_are_unique_and_the_bodys_id_is_echoed(box: Box) -> None:
    answers = [await box.chat(request_id="dup-1", stream=stream) for stream in (False, True, False)]
    assert {answer.headers["x-request-id"] for answer in answers} == {"dup-1"}
    assert len({request.request_id for request in box.engine.submitted}) == 3
    assert (await box.chat(request_id="a b")).headers["x-request-id"] != "a b"


async def test_b44_the_log_line_has_the_id_and_probes_are_not_logged(box: Box, caplog: Any) -> None:
    with caplog.at_level("INFO", "appliance.api"):
        await box.client.get("/health")
        await box.chat(request_id="trace-7")
    (line,) = (record.facts for record in caplog.records if hasattr(record, "facts"))
    assert (line["request_id"], line["method"], line["route"], line["status"]) == (
        *("trace-7", "POST", "/v1/chat/completions", 200),
    )
    assert (line["model"], line["prompt_tokens"], line["output_tokens"], line["finish"]) == ("smol", 31, 4, "length")
    assert 0 <= line["ttft_s"] <= line["duration_s"]
    assert line["itl_s"] >= 0
