"""The page's files as the API serves them: headers, caching, prefix, the switch; and what must not be in them."""

from __future__ import annotations

import re

import pytest

from appliance.api.page.files import FILES
from tests.api.conftest import MakeBox
from tests.api.harness import Box, assert_error


@pytest.mark.parametrize("path", sorted(FILES))
async def test_files(box: Box, path: str) -> None:
    response = await box.client.get(path)
    assert response.status_code == 200
    assert response.content == FILES[path].content
    assert response.headers["content-type"] == FILES[path].content_type
    assert response.headers["content-security-policy"].startswith("default-src 'self'; ")
    assert "unsafe" not in response.headers["content-security-policy"]
    assert response.headers["x-content-type-options"] == "nosniff"
    again = await box.client.get(path, headers={"if-none-match": response.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    head = await box.client.head(path)
    assert (head.status_code, head.headers["etag"]) == (200, response.headers["etag"])


async def test_a_prefix_becomes_the_base(make_box: MakeBox) -> None:
    box = await make_box(root_path="/llm")
    for path in ("/", "/llm/"):
        assert '<base href="/llm/">' in (await box.client.get(path)).text
    assert (await box.client.get("/llm/page/page.js")).status_code == 200


async def test_it_can_be_switched_off(make_box: MakeBox) -> None:
    box = await make_box(disable_page=True)
    for path in FILES:
        assert_error(await box.client.get(path), 404, code="not_found")


async def test_only_its_own_files_are_served(box: Box) -> None:
    for path in ("/page", "/page/", "/page/routes.py", "/page/../files.py", "/page/index.html"):
        assert_error(await box.client.get(path), 404)


@pytest.mark.parametrize("path", sorted(FILES))
def test_nothing_that_the_policy_forbids_or_that_is_not_there(path: str) -> None:
    text = FILES[path].content.decode()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|new Function", text)
    assert not re.search(r"\son\w+=|\sstyle=|<style|<script(?! type=\"module\" src=)", text)
    assert not set(re.findall(r"https?://[\w.]+", text)) - {"http://www.w3.org"}
    for name in re.findall(r"from \"\./([\w.]+)\"", text) + re.findall(r"(?:src|href)=\"page/([\w.]+)\"", text):
        assert f"/page/{name}" in FILES


def test_every_file_is_used() -> None:
    texts = "".join(file.content.decode() for file in FILES.values())
    assert [path for path in FILES if path != "/" and path.rpartition("/")[2] not in texts] == []
