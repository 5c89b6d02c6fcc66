"""A headless Chromium, and the page open in it: what a test does there in words of the page."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, Request, Route, expect, sync_playwright

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SCREENSHOTS = Path(__file__).resolve().parents[2] / ".cache" / "screenshots"
DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}
ANSWER_WITHIN_MS = 60_000
expect.set_options(timeout=30_000)  # a busy machine is no fault of the page


@contextlib.contextmanager
def running_browser() -> Iterator[Browser]:
    """Debian's Chromium; the test is skipped where there is none."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("there is no chromium on this machine")
    # Stopped at the end of each module: its event loop must not be there when asyncio's tests run.
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


class OpenPage:
    """The page in a tab of its own, with everything that the browser complained about."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.foreign: list[str] = []
        page.on("pageerror", self._on_error)
        page.on("console", self._on_console)

    def open(self, url: str) -> None:
        """Go there; requests to anywhere else are noted."""
        self._own = (f"http://{urlsplit(url).netloc}/", "data:", "blob:")
        self.page.on("request", self._on_request)
        self.page.goto(url)

    def _on_request(self, request: Request) -> None:
        if not request.url.startswith(self._own):
            self.foreign.append(request.url)

    def _on_error(self, error: Exception) -> None:
        self.complaints.append(str(error))

    def _on_console(self, message: Any) -> None:
        # Chromium reports every answer that is an error; those are the tests' subject.
        if message.type in {"error", "warning"} and "Failed to load resource" not in message.text:
            self.complaints.append(message.text)

    def expect_status(self, text: str, within_s: float = 30) -> None:
        """Wait until the status in the bar says this."""
        expect(self.page.locator("#status-text")).to_contain_text(text, timeout=within_s * 1000)

    def fill_settings(self, **values: str) -> None:
        """Open the settings, fill these fields, close them."""
        self.page.click("#settings-button")
        for name, value in values.items():
            self.page.fill(f"#{name}", value)
        self.page.click("#settings-close")

    def make_answers_long(self) -> None:
        """From now on they go on to their max_tokens: the model does not end them before the test has looked."""
        self.page.route("**/v1/chat/completions", _ignore_eos)

    def send(self, text: str) -> None:
        """Write a message and press Enter."""
        self.page.fill("#prompt", text)
        self.page.press("#prompt", "Enter")

    def wait_for_answer(self) -> str:
        """The last answer's text, once it is complete."""
        expect(self.page.locator("#stop-button")).to_be_hidden(timeout=ANSWER_WITHIN_MS)
        return self.last(".text")

    def last(self, selector: str) -> str:
        """The text of a part of the last turn."""
        return self.page.locator(f".turn:last-child {selector}").inner_text()

    def screenshot(self, name: str) -> None:
        """Kept for people to look at."""
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SCREENSHOTS / f"{name}.png")


def _ignore_eos(route: Route, request: Request) -> None:
    route.continue_(post_data=json.dumps(json.loads(request.post_data or "") | {"ignore_eos": True}))


@contextlib.contextmanager
def open_page(browser: Browser, **options: Any) -> Iterator[OpenPage]:
    """A tab in a profile of its own. At its end nothing may have gone wrong in it, and nothing come from elsewhere."""
    context = browser.new_context(**({"viewport": DESKTOP, "color_scheme": "light"} | options))
    try:
        opened = OpenPage(context.new_page())
        yield opened
        assert opened.complaints == []
        assert opened.foreign == []
    finally:
        context.close()
