"""The page of a running box in a real browser: what it shows, and everything one can do in its chat."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest
from playwright.sync_api import Browser, expect

from tests.box.running_box import RunningBox, gauge
from tests.page.browser import PHONE, OpenPage, open_page

NAMELESS = """() => [...document.querySelectorAll("button, input, select, textarea, a, img, svg[role=img]")]
    .filter((e) => !(e.labels?.length || e.getAttribute("aria-label") || e.textContent.trim() || e.hasAttribute("alt")))
    .map((e) => e.outerHTML)"""
CONTRASTS = """() => {
    const style = getComputedStyle(document.documentElement);
    const luminance = (name) => {
        const hex = style.getPropertyValue(name).trim().slice(1);
        const parts = [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16) / 255);
        const [r, g, b] = parts.map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const grounds = ["--ground", "--surface", "--sunk"];
    const pairs = ["--text", "--muted", "--accent"].flatMap((text) => grounds.map((ground) => [text, ground]));
    pairs.push(["--on-accent", "--accent"], ["--bad", "--bad-soft"], ["--text", "--accent-soft"]);
    return pairs.map(([text, ground]) => {
        const [light, dark] = [luminance(text), luminance(ground)].sort((a, b) => b - a);
        return [text, ground, (light + 0.05) / (dark + 0.05)];
    });
}"""


def test_it_shows_the_model_and_the_load(opened: OpenPage) -> None:
    page = opened.page
    expect(page.locator("#welcome h2")).to_be_visible()
    expect(page.locator("#model-name")).to_have_text("SmolLM2-135M-Instruct")
    expect(page.locator("#model-facts")).to_contain_text("8,192 tokens")
    expect(page.locator("#model-facts")).to_contain_text("KV cache")
    for chart, value in [("Requests", "0 running"), ("Tokens per second", "0 written"), ("KV cache", "0 % of all")]:
        expect(page.locator("figure.chart", has_text=chart).first).to_contain_text(value)
    assert page.locator("path.line[d^=M]").count() >= 5
    opened.screenshot("desktop-light")
    page.emulate_media(color_scheme="dark")
    opened.screenshot("desktop-dark")


def test_it_streams_an_answer_and_remembers_over_a_reload(opened: OpenPage) -> None:
    page = opened.page
    opened.fill_settings(temperature="0", max_tokens="40", system="You are a baker. Answer in one sentence.")
    opened.send("What is bread made of?")
    expect(page.locator(".turn:last-child .text")).not_to_be_empty()
    first = opened.wait_for_answer()
    assert len(first.split()) > 3
    figures = opened.last(".figures")
    assert "tokens/s" in figures
    assert "first token after" in figures
    expect(page.locator("#announcer")).to_have_text(first, use_inner_text=True)
    expect(page.locator("figure.chart", has_text="Time to first token")).to_contain_text(re.compile(r"\d m?s"))

    page.reload()
    opened.expect_status("Ready")
    assert opened.last(".text") == first
    with page.expect_request("**/v1/chat/completions") as asked:
        opened.send("And what else?")
    body = json.loads(asked.value.post_data or "")
    assert [message["role"] for message in body["messages"]] == ["system", "user", "assistant", "user"]
    assert (body["temperature"], body["max_tokens"], body["model"]) == (0, 40, "SmolLM2-135M-Instruct")
    assert "top_p" not in body
    opened.wait_for_answer()
    opened.screenshot("chat")
    page.click("#new-button")
    expect(page.locator(".turn")).to_have_count(0)
    expect(page.locator("#prompt")).to_be_focused()


def test_keys_of_the_keyboard(opened: OpenPage) -> None:
    page = opened.page
    page.focus("#prompt")
    page.keyboard.press("Enter")
    expect(page.locator(".turn")).to_have_count(0)
    opened.fill_settings(max_tokens="5")
    page.focus("#prompt")
    page.keyboard.type("one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    assert page.input_value("#prompt") == "one\ntwo"
    page.keyboard.press("Enter")
    expect(page.locator(".turn.user")).to_have_text("one\ntwo", use_inner_text=True)
    opened.wait_for_answer()
    expect(page.locator("#prompt")).to_be_focused()


@pytest.mark.parametrize("how", ["button", "Escape"])
def test_a_stopped_answer_is_kept_and_the_engine_freed(opened: OpenPage, box: RunningBox, how: str) -> None:
    page = opened.page
    opened.make_answers_long()
    opened.fill_settings(temperature="0", max_tokens="4000")
    opened.send("Write a very long story about a baker and list every bread that she bakes.")
    expect(page.locator(".turn:last-child .text")).not_to_be_empty()
    if how == "button":
        page.click("#stop-button")
    else:
        page.keyboard.press("Escape")
    text = opened.wait_for_answer()
    assert text
    assert "stopped" in opened.last(".figures")
    box.wait_until(lambda: gauge(box, "vllm:num_requests_running") == 0, 20)
    # A chat that is cleared while it is answered stops as well.
    opened.send("Go on.")
    expect(page.locator("#stop-button")).to_be_visible()
    page.click("#new-button")
    expect(page.locator(".turn")).to_have_count(0)
    box.wait_until(lambda: gauge(box, "vllm:num_requests_running") == 0, 20)


def test_an_error_is_told_in_the_servers_words_and_can_be_overcome(opened: OpenPage) -> None:
    page = opened.page
    opened.fill_settings(max_tokens="999999")
    opened.send("Hello")
    opened.wait_for_answer()
    assert opened.last(".error") == "max_tokens must be at most the context length of 8192 tokens"
    opened.screenshot("error")
    opened.fill_settings(max_tokens="3")
    page.click(".turn:last-child [data-retry]")
    expect(page.locator(".turn:last-child .error")).to_be_hidden()
    assert opened.wait_for_answer()
    expect(page.locator(".turn")).to_have_count(2)
    # What the browser itself can see is told before anything is sent.
    opened.fill_settings(temperature="9")
    opened.send("Hello")
    expect(page.locator("#notice")).to_contain_text("Temperature")
    expect(page.locator(".turn")).to_have_count(2)


def test_requests_can_be_taken_away(opened: OpenPage) -> None:
    page = opened.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    opened.fill_settings(temperature="0", max_tokens="4", top_k="5", system='It\'s a "test" with $HOME and `this`')
    page.fill("#prompt", "Say 'yes' \\ or \"no\"\nplease")
    page.click("#curl-button")
    expect(page.locator("#notice")).to_contain_text("curl command")
    curl = page.evaluate("navigator.clipboard.readText()")
    streamed = subprocess.run(["bash", "-c", curl], capture_output=True, text=True, timeout=60, check=True).stdout
    assert streamed.strip().endswith("data: [DONE]")
    page.click("#python-button")
    expect(page.locator("#notice")).to_contain_text("Python program")
    program = page.evaluate("navigator.clipboard.readText()")
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert printed.stdout.strip()


def test_a_chart_tells_the_past(opened: OpenPage) -> None:
    page = opened.page
    chart = page.locator("figure.chart").first
    expect(chart.locator(".chart-ago")).to_have_text("")
    chart.locator("svg").hover()
    expect(chart.locator(".chart-ago")).to_contain_text("s ago")
    assert "running 0" in (chart.locator("svg").get_attribute("aria-label") or "")


def test_a_pointer_that_was_there_before_the_points_is_seen(opened: OpenPage) -> None:
    charts = """(async () => {
        const { Chart } = await import("./page/charts.js");
        const spec = { title: "One", format: String, least: 1, series: [{ key: "one", label: "of one" }] };
        const chart = new Chart(document.body, spec);
        const svg = document.body.lastElementChild.querySelector("svg");
        svg.dispatchEvent(new PointerEvent("pointermove", { clientX: svg.getBoundingClientRect().right }));
        chart.show([{ time: 10, one: 1 }], 13);
        return document.body.lastElementChild.querySelector(".chart-ago").textContent;
    })()"""
    assert opened.page.evaluate(charts) == "3 s ago"


def test_everything_has_a_name_and_enough_contrast(opened: OpenPage) -> None:
    page = opened.page
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert [pair for pair in page.evaluate(CONTRASTS) if pair[2] < 4.5] == []
    page.click("#settings-button")
    assert page.evaluate(NAMELESS) == []
    opened.screenshot("settings-dark")
    page.keyboard.press("Escape")
    expect(page.locator("#settings")).to_be_hidden()
    expect(page.locator("#settings-button")).to_be_focused()
    page.emulate_media(reduced_motion="reduce")
    assert page.evaluate("getComputedStyle(document.querySelector('.dot')).animationName") == "none"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone(browser: Browser, box: RunningBox, scheme: str) -> None:
    options = {"viewport": PHONE, "color_scheme": scheme, "has_touch": True, "is_mobile": True}
    with open_page(browser, **options, device_scale_factor=2) as opened:
        page = opened.page
        opened.open(box.url)
        opened.expect_status("Ready")
        opened.fill_settings(temperature="0", max_tokens="30")
        opened.send("Name three breads.")
        opened.wait_for_answer()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        opened.screenshot(f"phone-{scheme}")
        expect(page.locator(".side")).to_be_hidden()
        page.tap(".tabs [data-view=load]")
        expect(page.locator(".chat")).to_be_hidden()
        expect(page.locator("figure.chart")).to_have_count(4)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        opened.screenshot(f"phone-load-{scheme}")


@contextmanager
def held_up(box: RunningBox, killed: int) -> Iterator[None]:
    """Keep the next engine from starting: it is back too soon to be looked at."""
    engines: list[psutil.Process] = []

    def has_come() -> bool:
        engines[:] = [each for each in box.find("engine", "--index") if each.pid != killed]
        return bool(engines)

    box.wait_until(has_come, 30)
    engines[0].suspend()
    try:
        yield
    finally:
        engines[0].resume()


def test_an_answer_goes_on_after_the_engine_was_killed(opened: OpenPage, box: RunningBox) -> None:
    page = opened.page
    opened.make_answers_long()
    opened.fill_settings(temperature="0", max_tokens="500")
    (engine,) = box.find("engine", "--index")
    opened.send("Tell me everything about sourdough bread.")
    expect(page.locator(".turn:last-child .text")).not_to_be_empty()
    engine.kill()
    with held_up(box, engine.pid):
        opened.expect_status("restarting")
        expect(page.locator(".turn:last-child .waiting")).to_contain_text("goes on when it is back")
        before = opened.last(".text")
        opened.screenshot("restarting")
    opened.expect_status("Ready", 60)
    longer = re.compile(rf"[\s\S]{{{len(' '.join(before.split())) + 20},}}")
    expect(page.locator(".turn:last-child .text")).to_have_text(longer)
    page.keyboard.press("Escape")  # it is long, and a busy machine slow
    assert opened.wait_for_answer().startswith(before[:20])
    expect(page.locator(".turn:last-child .error")).to_be_hidden()
    opened.fill_settings(max_tokens="5")
    opened.send("Thank you.")
    opened.wait_for_answer()
    expect(page.locator(".turn:last-child .error")).to_be_hidden()
