"""The engine's death is a pause: short forms of `tests.chaos.kills`, and a poison request in a real box."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.box.conftest import SMALL
from tests.box.running_box import RunningBox, gauge, running_box
from tests.chaos.kills import run_killings

POISON_HOOK = Path(__file__).parent / "poison_hook"
POISON = "Zimbabwe"  # see the hook
PATIENCE_S = 300.0


@pytest.mark.exact
@pytest.mark.parametrize(("how", "requests", "kills"), [("kill", 40, 3), ("stop", 28, 1), ("terminate", 28, 1)])
def test_every_answer_is_right_at_the_first_asking(shipped_model: Path, how: str, requests: int, kills: int) -> None:
    outcome = run_killings(shipped_model, requests, kills, how, seed=requests)
    assert outcome.problems == []
    assert outcome.num_kills == kills
    assert outcome.restarts >= kills
    assert outcome.resumed > 0


@contextmanager
def poisoned_box(model: Path, how: str, *flags: str) -> Iterator[RunningBox]:
    """A box whose engine fails at the poison: with a signal ("crash"), or by never ending the step ("hang")."""
    environment = {"PYTHONPATH": str(POISON_HOOK), "POISON": how}
    with running_box(model, flags=[*SMALL, "--engine-wait", "300", *flags], environment=environment) as box:
        box.wait_ready()
        yield box


def ask(box: RunningBox, prompt: str, **fields: Any) -> httpx.Response:
    body = {"prompt": prompt, "max_tokens": 40, "temperature": 0, "ignore_eos": True, **fields}
    return httpx.post(f"{box.url}/v1/completions", json=body, timeout=PATIENCE_S)


def text_of(response: httpx.Response) -> str:
    return str(response.json()["choices"][0]["text"])


def ask_beside_poison(box: RunningBox, poison: Sequence[dict[str, Any]]) -> list[httpx.Response]:
    """What the poison gets, while six others get what is right."""
    prompts = [f"{number} bottles of milk and {number + 1} of" for number in range(6)]
    expected = [text_of(ask(box, prompt)) for prompt in prompts]
    bodies = [{"prompt": prompt} for prompt in prompts] + list(poison)
    with ThreadPoolExecutor(len(bodies)) as pool:
        answers = list(pool.map(lambda body: ask(box, **body), bodies))
    assert list(map(text_of, answers[: len(prompts)])) == expected
    return answers[len(prompts) :]


def test_a_poison_request_costs_two_engines_and_only_itself_fails(shipped_model: Path) -> None:
    with poisoned_box(shipped_model, "crash", "--api-workers", "2") as box:
        check_refusal(*ask_beside_poison(box, [{"prompt": f"The {POISON} is"}]))
        assert gauge(box, "breadbox:restarts_total", "engine-0") == 2
        check_refusal(ask(box, f"The {POISON} is"))  # as its client tries again, under another name
        assert gauge(box, "breadbox:restarts_total", "engine-0") == 2
        assert "Segmentation fault" in box.output  # the next engine tells of what the one before it died
        streamed = {"prompt": f"A {POISON} was", "stream": True}
        check_streamed_refusal(*ask_beside_poison(box, [streamed]))
        assert gauge(box, "breadbox:restarts_total", "engine-0") == 4


def test_a_request_that_makes_the_engine_hang_is_poison_too(shipped_model: Path) -> None:
    with poisoned_box(shipped_model, "hang", "--engine-timeout", "5") as box:
        check_refusal(*ask_beside_poison(box, [{"prompt": f"The {POISON} is"}]))
        assert gauge(box, "breadbox:restarts_total", "engine-0") >= 2  # more where the machine itself hangs for 5 s


def check_refusal(response: httpx.Response) -> None:
    assert response.status_code == 500
    assert response.headers["x-should-retry"] == "false"
    assert response.json()["error"]["code"] == "poison_request"


def check_streamed_refusal(response: httpx.Response) -> None:
    """Its status depends on whether a sign of life had to be sent before."""
    if response.status_code == 500:
        check_refusal(response)
        return
    assert response.status_code == 200
    events = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    assert json.loads(events[-2])["error"]["code"] == "poison_request"
