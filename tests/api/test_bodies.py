"""Bodies that are no proper JSON request: always a 4xx in the envelope, never a 5xx, and the server goes on."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from appliance.api.page import reference_files
from tests.api.conftest import MakeBox
from tests.api.harness import NAME, Box, assert_error

PATHS = ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"]
VALID = json.dumps(
    {"model": NAME, "messages": [{"role": "user", "content": "hi"}], "prompt": "x", "tokens": [1], "max_tokens": 1}
).encode()
JSON = {"content-type": "application/json"}
BROKEN = {
    "syntax": VALID[:-1] + b", x}", "empty": b"", "list": b"[]", "string": b'"hi"', "number": b"1", "null": b"null",
    "cp1252": VALID.replace(b"hi", b"h\x97i").replace(b'"x"', b'"\x97"'), "utf16": VALID.decode().encode("utf-16"),
    "nan": VALID.replace(b": 1}", b": NaN}"), "infinity": VALID.replace(b": 1}", b": Infinity}"),
    "overflow": VALID.replace(b": 1}", b": 1e999}"), "digits": VALID.replace(b": 1}", b": " + b"9" * 5000 + b"}"),
    "lone surrogate": VALID.replace(b"hi", b"\\ud800").replace(b'"x"', b'"\\ud800"'),
    "deep": b"[" * 100_000, "deep field": b'{"tools":' + b"[" * 200 + b"]" * 200 + b"}",
    "truncated": VALID[: len(VALID) // 2],
}  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", BROKEN)
async def test_b16_b19_broken_bodies(box: Box, path: str, name: str) -> None:
    response = await box.client.post(path, content=BROKEN[name], headers=JSON)
    if name in ("nan", "infinity", "overflow", "digits") or response.status_code != 200:
        message = assert_error(response, 400, response.json()["error"]["param"])
        assert "\x97" not in message
        assert len(message) <= 1000
    assert (await box.chat()).status_code == 200


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "content_type", ["text/plain", None, "application/x-www-form-urlencoded", "multipart/form-data"]
)
async def test_b19_wrong_content_type(box: Box, path: str, content_type: str | None) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    response = await box.client.post(path, content=VALID, headers=headers)
    assert "application/json" in assert_error(response, 400)


async def test_content_type_with_parameters(box: Box) -> None:
    headers = {"content-type": "Application/JSON; charset=utf-8"}
    assert (await box.client.post(PATHS[0], content=VALID, headers=headers)).status_code == 200


async def test_b19_duplicate_keys_last_wins(box: Box) -> None:
    body = VALID[:-1] + b', "max_tokens": 3}'
    response = await box.client.post(PATHS[0], content=body, headers=JSON)
    assert response.json()["usage"]["completion_tokens"] == 3


async def test_b50_too_large(make_box: MakeBox) -> None:
    box = await make_box(max_body_bytes=2000)
    body = VALID[:-1] + b', "user": "' + b"x" * 3000 + b'"}'
    assert "2000" in assert_error(
        await box.client.post(PATHS[0], content=body, headers=JSON), 413, code="request_too_large"
    )

    async def chunks() -> Any:
        for start in range(0, len(body), 100):
            yield body[start : start + 100]

    assert_error(await box.client.post(PATHS[0], content=chunks(), headers=JSON), 413)
    assert (await box.chat()).status_code == 200


async def test_b50_a_large_body_within_the_limit_is_judged_by_its_content(box: Box) -> None:
    response = await box.chat(messages=[{"role": "user", "content": "word " * 300_000}])
    assert_error(response, 400, "messages", "context_length_exceeded")
    assert_error(await box.chat(user="x" * 20_000_000), 413)


@pytest.mark.parametrize(
    "value",
    [None, True, 0, -1, 10**40, 1.5, -1e308, "", "x", "\x00", "😀" * 50, [], [[]], [None], {}, {"a": 1}, {"": {}},
     [[[[1]]]], {"type": 5}],
)  # fmt: skip
async def test_no_value_of_any_field_is_a_5xx(box: Box, value: Any) -> None:
    document = (await box.client.get("/openapi.json")).json()
    for path in PATHS:
        schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        refs = [schema["$ref"]] if "$ref" in schema else [ref["$ref"] for ref in schema["anyOf"]]
        for ref in refs:
            for name in document["components"]["schemas"][ref.rsplit("/", 1)[1]]["properties"]:
                response = await box.client.post(path, json=json.loads(VALID) | {name: value})
                assert response.status_code in (200, 400, 404), (path, name, response.text)
                if response.status_code != 200:
                    error = response.json()["error"]
                    assert set(error) == {"message", "type", "param", "code"}
                    # Names of types are our business, not the caller's.
                    assert not re.search(r"\.(str|int|float|bool|dict|list|function|tagged)\b", error["param"] or "")


async def test_b17_unknown_route_and_wrong_method(box: Box) -> None:
    assert_error(await box.client.get("/nothing"), 404, code="not_found")
    response = await box.client.get("/v1/chat/completions")
    assert "POST" in assert_error(response, 405, code="method_not_allowed")
    assert response.headers["allow"] == "POST"
    assert (await box.client.put("/health")).headers["allow"] == "GET, HEAD"
    assert (await box.client.put("/v1/responses/x")).headers["allow"] == "DELETE, GET"


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions/", "//v1/chat/completions", "/v1/v1/chat/completions", "/chat/completions"]
)
async def test_b50_odd_paths_are_named_and_not_redirected(box: Box, path: str) -> None:
    response = await box.client.post(f"http://box{path}", content=VALID, headers=JSON)
    assert "/v1/chat/completions" in assert_error(response, 404)


async def test_openapi_describes_the_bodies(box: Box) -> None:
    document = (await box.client.get("/openapi.json")).json()
    text = json.dumps(document)
    names = {ref.split('"')[0] for ref in text.split("#/components/schemas/")[1:]}
    assert names <= set(document["components"]["schemas"])
    assert {"ChatRequest", "CompletionRequest", "TokenizeTextRequest", "DetokenizeRequest"} <= names


async def test_openapi_describes_every_error(box: Box) -> None:
    document = (await box.client.get("/openapi.json")).json()
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert {"200", "4XX", "5XX"} == set(operation["responses"])
            schema = operation["responses"]["4XX"]["content"]["application/json"]["schema"]["$ref"]
            assert schema.endswith("/AnthropicError" if path.startswith("/v1/messages") else "/Error")
    assert "text/event-stream" in document["paths"]["/v1/completions"]["post"]["responses"]["200"]["content"]


async def test_docs_can_be_switched_off(make_box: MakeBox) -> None:
    box = await make_box(disable_fastapi_docs=True)
    for path in (*reference_files.PATHS, "/openapi.json"):
        assert_error(await box.client.get(path), 404)
