"""/docs and /redoc as the API serves them; `tests.page.test_reference` opens them in a browser."""

from __future__ import annotations

import re

import pytest

from appliance.api.page import reference
from tests.api.conftest import MakeBox
from tests.api.harness import Box


@pytest.mark.parametrize("path", sorted(reference.PATHS))
async def test_files(box: Box, path: str) -> None:
    response = await box.client.get(path)
    assert response.status_code == 200
    assert response.content == reference.load(path).content
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
        references = re.findall(r'(?:src|href|spec-url)="([^"]+)"', text)
        assert len(references) >= 4
        for name in references:
            assert (await box.client.get(f"{prefix}/{name}")).status_code == 200
