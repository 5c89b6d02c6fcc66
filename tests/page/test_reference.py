"""/docs and /redoc in a real browser: complete without the internet, and at work behind a prefix."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.box.running_box import RunningBox, running_box
from tests.page.browser import open_page

PREFIX = "/llm"
KEY = "a-key-of-32-characters-0123456789"


@pytest.fixture(scope="module")
def prefixed(tiny: Path) -> Iterator[RunningBox]:
    """A box that an outer proxy publishes under a prefix, without the page for people."""
    flags = ["--kv-cache-memory", "4MiB", "--max-num-seqs", "4", "--root-path", PREFIX, "--disable-page"]
    with running_box(tiny, flags=flags) as box:
        box.wait_ready()
        yield box


@pytest.mark.parametrize("prefix", ["", PREFIX])
def test_swagger_shows_and_calls_the_api(browser: Browser, prefixed: RunningBox, prefix: str) -> None:
    with open_page(browser) as opened:
        page = opened.page
        opened.open(f"{prefixed.url}{prefix}/docs")
        expect(page.locator("h1, h2").filter(has_text="Breadbox").first).to_be_visible()
        expect(page.locator(".opblock-summary-path", has_text="/v1/chat/completions").first).to_be_visible()
        opened.screenshot(f"docs{prefix.replace('/', '-')}")
        models = page.locator(".opblock").filter(has=page.locator('[data-path="/v1/models"]'))
        models.locator(".opblock-summary").click()
        models.get_by_role("button", name="Try it out").click()
        models.get_by_role("button", name="Execute").click()
        expect(models.locator(".live-responses-table .response-col_status").last).to_contain_text("200")


@pytest.fixture(scope="module")
def locked(tiny: Path) -> Iterator[RunningBox]:
    """A box with keys."""
    with running_box(tiny, flags=["--api-key", KEY, "--kv-cache-memory", "4MiB", "--max-num-seqs", "4"]) as box:
        box.wait_ready()
        yield box


def test_with_keys_the_pages_ask_for_one(browser: Browser, locked: RunningBox) -> None:
    with open_page(browser) as opened:
        page = opened.page
        opened.open(f"{locked.url}/docs")
        expect(page.locator("input[type=password]")).to_be_focused()
        opened.screenshot("docs-key")
        page.fill("input[type=password]", "wrong")
        page.press("input[type=password]", "Enter")
        expect(page.get_by_role("alert")).to_have_text("the API key is not valid")
        page.fill("input[type=password]", KEY)
        page.press("input[type=password]", "Enter")
        models = page.locator(".opblock").filter(has=page.locator('[data-path="/v1/models"]'))
        models.locator(".opblock-summary").click()
        models.get_by_role("button", name="Try it out").click()
        models.get_by_role("button", name="Execute").click()
        expect(models.locator(".live-responses-table .response-col_status").last).to_contain_text("200")
        # The tab knows it now, on the other pages, too.
        page.goto(f"{locked.url}/redoc")
        expect(page.locator("h1", has_text="Breadbox")).to_be_visible()
        page.goto(f"{locked.url}/")
        expect(page.locator("#docs-link")).to_be_visible()
        expect(page.locator("#metrics-link")).to_be_hidden()


def test_redoc_shows_the_api(browser: Browser, prefixed: RunningBox) -> None:
    with open_page(browser) as opened:
        page = opened.page
        opened.open(f"{prefixed.url}{PREFIX}/redoc")
        expect(page.locator("h1", has_text="Breadbox")).to_be_visible()
        expect(page.get_by_role("menuitem").first).to_be_visible()
        # Its search runs in a worker of its own.
        page.fill("input[type=text]", "tokenize")
        expect(page.locator("[data-role='search:results']")).to_contain_text("okenize")
        opened.screenshot("redoc")
