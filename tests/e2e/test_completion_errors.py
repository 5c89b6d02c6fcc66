"""Completions that fail: what is wrong is told, before a stream's first byte or, where that is too late, as its end."""

from __future__ import annotations

import threading
import time
from typing import Any

import httpx
import pytest

from tests.box.running_box import RunningBox
from tests.e2e.caller import (
    CHAT,
    COMPLETIONS,
    ENDLESS,
    VOCAB_SIZE,
    Caller,
    chat_body,
    completion_body,
    read_chunks,
    wait_until,
)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.schema"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [[1], [-1]]}, "prompt"),
        ({"prompt": [VOCAB_SIZE]}, "prompt"),
        ({"prompt": [10**30]}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [""]}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"logprobs": -2}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": "many"}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"suffix": "x"}, "suffix"),
        ({"prompt_embeds": "AAAA"}, "prompt_embeds"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"best_of": 2}, "best_of"),
        ({"use_beam_search": True}, "use_beam_search"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(box: Caller, fields: dict[str, Any], param: str) -> None:
    box.refused(COMPLETIONS, completion_body(**{"prompt": "hi"} | fields), param)


@pytest.mark.parametrize("suffix", ["", None])
def test_an_empty_suffix_is_none(box: Caller, suffix: str | None) -> None:
    assert box.complete(suffix=suffix).status_code == 200


def test_the_limit_of_prompts(odd_box: Caller) -> None:
    assert len(odd_box.complete(["a"] * 3, max_tokens=1).json()["choices"]) == 3
    assert "3" in odd_box.refused(COMPLETIONS, completion_body(["a"] * 4), "prompt")


def test_the_whole_vocabulary_where_it_is_allowed(odd_box: Caller) -> None:
    (top,) = odd_box.complete(max_tokens=1, logprobs=-1).json()["choices"][0]["logprobs"]["top_logprobs"]
    assert len(top) == VOCAB_SIZE
    odd_box.refused(COMPLETIONS, completion_body(logprobs=-2), "logprobs")


def kill_engine(box: RunningBox) -> None:
    box.find("engine", "--index 0")[-1].kill()


@pytest.fixture
def mortal(odd_processes: RunningBox, odd_box: Caller) -> Any:
    """The odd box; ready again for the next test."""

    def is_ready() -> bool:
        return odd_box.http.get("/readyz").status_code == 200

    odd_processes.wait_until(is_ready, 60)
    yield odd_box
    odd_processes.wait_until(is_ready, 60)


class Call(threading.Thread):
    """A request whose answer is read elsewhere."""

    def __init__(self, box: Caller, path: str, body: dict[str, Any]) -> None:
        super().__init__()
        self._box, self._path, self._body = box, path, body
        self.first_byte = threading.Event()
        self.status, self.text = 0, ""
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            url = self._box.url + self._path
            with httpx.stream("POST", url, json=self._body, timeout=60) as response:
                self.status = response.status_code
                for part in response.iter_text():
                    self.text += part
                    self.first_byte.set()
        except Exception as error:
            self.error = error
        self.first_byte.set()

    def finish(self) -> Call:
        self.join(60)
        assert not self.is_alive()
        assert self.error is None
        return self


LONG = {"max_tokens": 400, "logit_bias": ENDLESS}


@pytest.mark.parametrize(("path", "body"), [(CHAT, chat_body(**LONG)), (COMPLETIONS, completion_body(**LONG))])
def test_an_engine_that_dies(mortal: Caller, odd_processes: RunningBox, path: str, body: dict[str, Any]) -> None:
    streamed = Call(mortal, path, body | {"stream": True})
    assert streamed.first_byte.wait(60)
    # These wait behind it: they have not had their first token when the engine dies.
    waiting = [Call(mortal, path, body | {"stream": stream}) for stream in (False, True)]
    wait_until(lambda: mortal.metric("vllm:num_requests_waiting") == 2)
    time.sleep(0.5)  # longer than a stream may stay silent
    kill_engine(odd_processes)
    *chunks, last = read_chunks(streamed.finish().text)
    assert streamed.status == 200
    assert all("choices" in chunk for chunk in chunks)
    assert last["error"].keys() == {"message", "type", "param", "code"}
    collected, unborn = (call.finish() for call in waiting)
    assert collected.status in (500, 503)
    assert '"error"' in collected.text
    assert unborn.status == 200  # a comment had to be sent
    (event,) = read_chunks(unborn.text)
    assert event["error"]["type"] in ("server_error", "service_unavailable")


def test_a_dead_engine_is_told_by_health_and_by_every_answer(mortal: Caller, odd_processes: RunningBox) -> None:
    kill_engine(odd_processes)
    wait_until(lambda: mortal.http.get("/health").status_code == 503)
    assert mortal.http.get("/livez").status_code == 200
    assert mortal.http.get("/readyz").json()["status"] == "not ready"
    for stream in (False, True):
        response = mortal.complete(stream=stream)
        assert response.status_code in (200, 503)  # 200 where it came back meanwhile
        if response.status_code == 503:
            assert int(response.headers["retry-after"]) >= 1
            assert response.json()["error"]["code"] == "service_unavailable"
    wait_until(lambda: mortal.http.get("/health").status_code == 200, 60)
    assert mortal.complete().status_code == 200
