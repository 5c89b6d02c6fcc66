"""/docs and /redoc as the API serves them; `tests.page.test_reference` opens them in a browser."""

from __future__ import annotations

import re

import pytest

from appliance.api.page import reference_files
from tests.api.conftest import MakeBox
from tests.api.harness import Box


@pytest.mark.parametrize("path", sorted(reference_files.PATHS))
async def test_files(box: Box, path: str) -> None:
    response = await box.client.get(path)
    assert response.status_code == 200
    assert response.content == reference_files.load(path).content
    policy = response.headers["content-security-policy"]
    assert policy.startswith("default-src 'self'; ")
    assert "script-src" not in policy  # what is by default: only files of the box
    assert not re.search(r"https?:", policy)
    again = await box.client.get(path, headers={"if-none-match": response.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert (await box.client.head(path)).status_code == 200


@pytest.mark.parametrize("path", ["/docs", "/redoc"])
async def test_what_a_page_refers_to_is_served_under_every_prefix(make_box: MakeBox, path: str) -> None:
    box = await make_box(root_path="/llm", disable_page=True)
    for prefix in ("", "/llm"):
        text = (await box.client.get(prefix + path)).text
        references = re.findall(r'(?:src|href)="([^"]+)"', text)
        assert len(references) >= 5
        for name in references:
            assert (await box.client.get(f"{prefix}/{name}")).status_code == 200


async def test_the_pages_are_open_and_the_description_is_not(make_box: MakeBox) -> None:
    """A browser sends no key by itself; what the pages show, it gets for the key that they ask for."""
    box = await make_box(api_key=("key-one",), disable_page=True)
    for path in sorted(reference_files.PATHS):
        for method in ("GET", "HEAD"):
            assert (await box.client.request(method, path)).status_code == 200, path
    for path in ("/openapi.json", "/docs/", "/redoc/", "/docs/openapi.json", "//docs", "/DOCS"):
        url = box.client.build_request("GET", "http://box/")
        url.url = url.url.copy_with(raw_path=path.encode())
        assert (await box.client.send(url)).status_code == 401, path
    assert (await box.client.get("/openapi.json", headers={"x-api-key": "key-one"})).status_code == 200
    off = await make_box(api_key=("key-one",), disable_fastapi_docs=True)
    for path in sorted(reference_files.PATHS):
        assert (await off.client.get(path)).status_code == 404
    assert (await off.client.get("/openapi.json")).status_code == 401
