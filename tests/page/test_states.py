"""The page while the box is not simply ready: starting, away, locked, failing; and text that is not harmless."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Route, expect

from tests.box.proxy import running_proxy
from tests.box.running_box import RunningBox, running_box
from tests.page.browser import PHONE, OpenPage, open_page

KEY = "a-key-of-32-characters-0123456789"
HOSTILE = """<img src=x onerror="document.title='broken'"> **bold** <script>document.title='broken'</script>

[a](https://example.com/x) [b](javascript:document.title='broken')

1. one
   - inner
2. two

> said

# Head

```html
<b onclick="document.title='broken'">x</b>
```

`<i>code</i>` and *slant*"""


@pytest.fixture(scope="module")
def starting(tiny: Path) -> Iterator[RunningBox]:
    """A box that asks for a key; at first it is hardly there."""
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    with running_box(tiny, flags=["--api-key", KEY, "--kv-cache-memory", "64MiB", "--chat-template", template]) as box:
        yield box


@pytest.fixture
def locked(starting: RunningBox) -> RunningBox:
    """The same, ready."""
    starting.wait_ready()
    return starting


@pytest.fixture
def page_of_locked(browser: Browser, locked: RunningBox) -> Iterator[OpenPage]:
    """Its page, with the key."""
    with open_page(browser) as opened:
        opened.open(locked.url)
        opened.page.fill("#key", KEY)
        opened.page.press("#key", "Enter")
        expect(opened.page.locator("#model-facts")).to_contain_text("KV cache")
        yield opened


def test_it_can_be_opened_before_anything_is_there(browser: Browser, starting: RunningBox) -> None:
    starting.wait_until(lambda: _answers(starting.url), 30)
    with open_page(browser) as opened:
        opened.open(starting.url)
        # From the proxy's own page through the API's start to the engine's, without a hand on it.
        opened.expect_status("Ready", 60)
        expect(opened.page.locator("#key-panel")).to_be_visible()
    with open_page(browser, viewport=PHONE) as opened, running_proxy() as settings:
        opened.open(f"http://127.0.0.1:{settings.port}/")
        expect(opened.page.locator("h1")).to_have_text("Breadbox is starting")
        opened.screenshot("starting-phone")


def _answers(url: str) -> bool:
    try:
        return httpx.get(url).status_code > 0
    except httpx.TransportError:
        return False


def test_the_proxys_page_is_for_early_visitors_only() -> None:
    html = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    with (
        running_proxy(root_path="/llm") as settings,
        httpx.Client(base_url=f"http://127.0.0.1:{settings.port}") as client,
    ):
        for path in ("/", "/?x=1", "/llm/"):
            response = client.get(path, headers=html)
            assert (response.status_code, response.headers["content-type"]) == (503, "text/html; charset=utf-8")
            assert response.headers["retry-after"] == "1"
            assert "default-src 'none'" in response.headers["content-security-policy"]
            assert 'http-equiv="refresh"' in response.text
        for method, path, headers in [
            ("GET", "/", {"accept": "*/*"}),
            ("POST", "/", html),
            ("GET", "/v1/models", html),
        ]:
            response = client.request(method, path, headers=headers)
            assert response.status_code == 503, path
            assert response.json()["error"]["code"] == "service_unavailable"
        assert client.get("/.breadbox-starting", headers=html).json()["error"]["code"] == "not_found"
    with running_proxy(disable_page=True) as settings:
        response = httpx.get(f"http://127.0.0.1:{settings.port}/", headers=html)
        assert response.json()["error"]["code"] == "service_unavailable"


def test_it_asks_for_the_key_and_keeps_it_in_the_tab_only(browser: Browser, locked: RunningBox) -> None:
    with open_page(browser) as opened:
        page = opened.page
        opened.open(locked.url)
        expect(page.locator("#key-panel")).to_be_visible()
        expect(page.locator("#key")).to_be_focused()
        expect(page.locator("#key-problem")).to_be_hidden()
        expect(page.locator("#model-name")).to_have_text("–")
        opened.screenshot("key")
        page.fill("#key", "wrong")
        page.press("#key", "Enter")
        expect(page.locator("#key-problem")).to_have_text("The API key is not valid")
        assert page.input_value("#key") == ""
        page.fill("#prompt", "Hello")
        expect(page.locator("#send-button")).to_be_disabled()
        page.fill("#key", KEY)
        page.press("#key", "Enter")
        expect(page.locator("#key-panel")).to_be_hidden()
        expect(page.locator("#send-button")).to_be_enabled()
        expect(page.locator("figure.chart").first).to_contain_text("0 running")
        opened.fill_settings(max_tokens="3")
        page.press("#prompt", "Enter")
        opened.wait_for_answer()
        expect(page.locator(".turn:last-child .error")).to_be_hidden()

        page.reload()
        expect(page.locator("#model-facts")).to_contain_text("KV cache")
        assert KEY not in page.evaluate("JSON.stringify(localStorage) + document.cookie + location.href")
        page.click("#key-button")
        page.click("#key-forget")
        expect(page.locator("#key-hint")).to_contain_text("asks for a key")
        assert KEY not in page.evaluate("JSON.stringify(sessionStorage)")


def test_copied_requests_do_not_hold_the_key(page_of_locked: OpenPage) -> None:
    page = page_of_locked.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    for button in ("#curl-button", "#python-button"):
        page.evaluate("navigator.clipboard.writeText('')")
        page.click(button)
        expect(page.locator("#notice")).to_contain_text("Copied")
        text = page.evaluate("navigator.clipboard.readText()")
        assert "BREADBOX_API_KEY" in text
        assert KEY not in text


def _report(*models: dict[str, Any]) -> Callable[[Route], None]:
    return lambda route: route.fulfill(status=503, json={"status": "not ready", "models": list(models)})


def test_a_long_start_is_shown(page_of_locked: OpenPage) -> None:
    page = page_of_locked.page
    loading = {"model": "Large-70B-Instruct", "is_ready": False, "phase": "loading weights", "percent": 42.0}
    ready = {"model": "Small-1B-Instruct", "is_ready": True, "phase": "ready", "percent": 100.0}
    page.route("**/startupz", _report(loading | {"seconds": {"starting": 3.4}}, ready | {"seconds": {}}))
    page.reload()
    page_of_locked.expect_status("Loading weights 42 %")
    expect(page.locator("#starts li").first).to_contain_text("Loading weights 42 % · 3 s")
    expect(page.locator("#starts progress").first).to_have_attribute("value", "42")
    expect(page.locator("#examples")).to_be_hidden()
    page.fill("#prompt", "Hello")
    expect(page.locator("#send-button")).to_be_disabled()
    page_of_locked.screenshot("loading")
    failed = {"phase": "failed", "error": "the weights need 140 GB, the device has 80 GB: --dtype or a smaller model"}
    page.unroute("**/startupz")
    page.route("**/startupz", _report(loading | failed | {"seconds": {}}))
    page_of_locked.expect_status("The engine has failed")
    expect(page.locator("#starts .error")).to_contain_text("140 GB")
    page_of_locked.screenshot("failed")


def test_a_box_that_is_away_comes_back(page_of_locked: OpenPage) -> None:
    page = page_of_locked.page
    page.route("**/*", lambda route: route.abort())
    page_of_locked.expect_status("Not reachable")
    expect(page.locator("#start-title")).to_have_text("The box cannot be reached")
    page_of_locked.screenshot("away")
    page.unroute("**/*")
    page_of_locked.expect_status("Ready")
    expect(page.locator("#welcome")).to_be_visible()


def _stream(*deltas: dict[str, str], end: str = "data: [DONE]\n\n") -> Callable[[Route], None]:
    events = [json.dumps({"choices": [{"index": 0, "delta": delta}]}) for delta in deltas]
    body = "".join(f"data: {event}\n\n" for event in events) + end
    return lambda route: route.fulfill(headers={"content-type": "text/event-stream"}, body=body)


def test_a_models_text_is_never_markup(page_of_locked: OpenPage) -> None:
    page = page_of_locked.page
    page.route("**/v1/chat/completions", _stream({"content": HOSTILE}))
    page_of_locked.send("<b>me</b>")
    page_of_locked.wait_for_answer()
    text = page.locator(".turn:last-child .text")
    expect(text.locator("strong")).to_have_text("bold")
    expect(text.locator("em")).to_have_text("slant")
    expect(text.locator("ol > li")).to_have_count(2)
    expect(text.locator("ol ul > li")).to_have_text("inner")
    expect(text.locator("blockquote")).to_have_text("said")
    expect(text.locator("h3")).to_have_text("Head")
    expect(text.locator("pre code")).to_contain_text("<b onclick")
    expect(text.locator("p code")).to_have_text("<i>code</i>")
    assert text.locator("img, script, i, pre b").count() == 0
    assert [link.get_attribute("href") for link in text.locator("a").all()] == ["https://example.com/x"]
    expect(page.locator(".said")).to_have_text("<b>me</b>")
    assert page.title() == "Breadbox"
    page_of_locked.screenshot("markdown")


def test_reasoning_is_folded(page_of_locked: OpenPage) -> None:
    page = page_of_locked.page
    page.route("**/v1/chat/completions", _stream({"reasoning": "Let me think."}, {"content": "It is 4."}))
    page_of_locked.send("2 + 2?")
    assert page_of_locked.wait_for_answer() == "It is 4."
    expect(page.locator(".thought")).to_be_hidden()
    page.click(".reasoning summary")
    expect(page.locator(".thought")).to_have_text("Let me think.")
    page_of_locked.screenshot("reasoning")


@pytest.mark.parametrize(
    ("end", "message"),
    [
        ('data: {"error": {"message": "the engine was lost"}}\n\ndata: [DONE]\n\n', "the engine was lost"),
        ("", "The connection broke before the answer was complete."),
    ],
)
def test_a_stream_that_breaks_keeps_its_text(page_of_locked: OpenPage, end: str, message: str) -> None:
    page = page_of_locked.page
    page.route("**/v1/chat/completions", _stream({"content": "Once upon"}, end=end))
    page_of_locked.send("A story")
    assert page_of_locked.wait_for_answer() == "Once upon"
    assert page_of_locked.last(".error") == message
    page.unroute("**/v1/chat/completions")
    page.route("**/v1/chat/completions", _stream({"content": "Once upon a time."}))
    page.click("[data-retry]")
    expect(page.locator(".turn:last-child .text")).to_have_text("Once upon a time.")
    expect(page.locator(".turn:last-child .error")).to_be_hidden()


def test_metrics_on_another_port(page_of_locked: OpenPage) -> None:
    page = page_of_locked.page
    page.route("**/metrics", lambda route: route.fulfill(status=404, json={"error": {"message": "no such route"}}))
    page.reload()
    expect(page.locator("#charts-problem")).to_have_text("The metrics are not served on this port.")
    expect(page.locator("#charts")).to_be_hidden()
    expect(page.locator("#welcome")).to_be_visible()


def test_one_of_several_models_is_chosen(page_of_locked: OpenPage) -> None:
    page = page_of_locked.page
    cards = [{"id": name, "root": root, "max_model_len": 1000} for name, root in [("a", "a"), ("b", "b"), ("b2", "b")]]
    page.route("**/v1/models", lambda route: route.fulfill(json={"data": cards}))
    page.route("**/v1/chat/completions", _stream({"content": "Yes."}))
    page.reload()
    expect(page.locator("#model-name")).to_have_text("a")
    page.click("#settings-button")
    page.select_option("#model", "b2")
    page.click("#settings-close")
    expect(page.locator("#model-name")).to_have_text("b2")
    expect(page.locator("#model-facts")).to_contain_text("Also calledb")
    with page.expect_request("**/v1/chat/completions") as asked:
        page_of_locked.send("Is it you?")
    assert json.loads(asked.value.post_data or "")["model"] == "b2"
    page_of_locked.wait_for_answer()
    assert page_of_locked.last(".who") == "b2"
    page.reload()
    expect(page.locator("#model-name")).to_have_text("b2")


FIGURES = """async () => {
    const { History, parseMetrics } = await import("/page/metrics.js");
    const history = new History("m");
    const scrape = (tokens, counts, more = "") => parseMetrics(`# HELP x y
vllm:num_requests_running{engine="0",model_name="m"} 3
vllm:num_requests_running{engine="0",model_name="other \\\\"}{"} 5
vllm:generation_tokens_total{model_name="m"} ${tokens}
vllm:time_to_first_token_seconds_bucket{le="0.1",model_name="m"} ${counts[0]}
vllm:time_to_first_token_seconds_bucket{le="1.0",model_name="m"} ${counts[1]}
vllm:time_to_first_token_seconds_bucket{le="+Inf",model_name="m"} ${counts[2]}
${more}`);
    history.add(scrape(100, [0, 0, 0]), 1000);
    history.add(scrape(150, [10, 20, 20]), 1002);
    history.add(scrape(20, [10, 20, 20]), 1004);
    history.addGap(1006);
    history.add(scrape(60, [10, 20, 20]), 1400);
    return history.points.map((point) => [point.time, point.running, point.tokensPerS, point.ttft50, point.ttft95]);
}"""


def test_figures_of_the_charts(page_of_locked: OpenPage) -> None:
    points = page_of_locked.page.evaluate(FIGURES)
    # After five minutes the old points are gone.
    assert points == [[1400, 3, None, None, None]]
    points = page_of_locked.page.evaluate(FIGURES.replace("1400", "1008"))
    assert [point[:3] for point in points] == [
        [1000, 3, None],
        [1002, 3, 25],
        [1004, 3, 0],
        [1006, None, None],
        [1008, 3, None],
    ]
    assert points[1][3:] == [pytest.approx(0.1), pytest.approx(0.1 + 0.9 * 0.9)]
    assert points[4][3:] == [None, None]
