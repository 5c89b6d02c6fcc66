"""Keys, request ids and plugins in front of every route."""

from __future__ import annotations

import httpx
import pytest

from tests.e2e.caller import CHAT, ORIGIN, Caller, chat_body, check_error

OPEN = ["/health", "/ping", "/version", "/livez", "/readyz", "/startupz"]


def test_no_key_is_needed_where_none_is_set(odd_box: Caller) -> None:
    for path in ("/v1/models", "/metrics", "/load", *OPEN):
        assert odd_box.http.get(path).status_code == 200


@pytest.mark.parametrize("path", OPEN)
def test_probes_are_open(box: Caller, path: str) -> None:
    assert httpx.get(box.url + path).status_code == 200


def test_keys(box: Caller) -> None:
    def status(**headers: str) -> int:
        return httpx.get(box.url + "/v1/models", headers=headers).status_code

    assert status() == 401
    assert status(authorization="Bearer wrong") == 401
    assert status(authorization="Basic e2e-key") == 401
    for key in ("e2e-key", "second-key"):
        assert status(authorization=f"Bearer {key}") == 200
        assert status(authorization=f"bEARER  {key}") == 200
    assert status(**{"x-api-key": "e2e-key"}) == 200
    refused = httpx.get(box.url + "/v1/models")
    check_error(refused, 401, code="invalid_api_key")
    assert refused.headers["www-authenticate"] == "Bearer"


def test_every_route_but_the_probes_is_guarded(box: Caller) -> None:
    document = box.http.get("/openapi.json").json()
    operations = [(path, method) for path, methods in document["paths"].items() for method in methods]
    assert len(operations) > 10
    for path, method in [*operations, ("/v2/rerank", "post"), ("/nothing", "get")]:
        url = box.url + path.replace("{name}", "x").replace("{response_id}", "x")
        assert httpx.request(method, url).status_code == (200 if path in OPEN else 401), path


def test_request_ids(box: Caller) -> None:
    mine = {"x-request-id": "trace-1"}
    made = set()
    for path in ("/health", "/v1/models", "/nothing"):
        assert box.http.get(path, headers=mine).headers.get_list("x-request-id") == ["trace-1"]
        made.add(box.http.get(path).headers["x-request-id"])
    assert len(made) == 3
    assert box.post(CHAT, chat_body(stream=True), **mine).headers.get_list("x-request-id") == ["trace-1"]


def test_a_plugin_sees_every_answer(odd_box: Caller) -> None:
    for response in (odd_box.chat(), odd_box.chat(stream=True), odd_box.http.get("/nothing")):
        assert response.headers["x-stamp"] == "class"


def test_cors_denies_by_default(odd_box: Caller) -> None:
    headers = {"origin": ORIGIN, "access-control-request-method": "POST"}
    assert "access-control-allow-origin" not in odd_box.http.options(CHAT, headers=headers).headers
    assert "access-control-allow-origin" not in odd_box.http.get("/health", headers=headers).headers


def test_a_priority_in_a_header(box: Caller) -> None:
    for value in ("-5", "x", "9" * 10):
        assert box.post(CHAT, chat_body(), **{"x-vllm-priority": value}).status_code == 200
