"""Public faults of other servers, B01 to B20: what a request may say and what it is answered."""

from __future__ import annotations

import json
import math
import socket
import statistics
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import psutil
import pytest

from tests.box.running_box import RunningBox
from tests.e2e.caller import (
    CANARY,
    CHAT,
    COMPLETIONS,
    CONTEXT,
    ENDLESS,
    KEY,
    MODEL,
    Caller,
    chat_body,
    check_error,
    completion_body,
    exchange,
    parse_strictly,
    text_of,
)

JSON = {"content-type": "application/json"}
USER = {"role": "user", "content": "hi"}


@pytest.fixture(autouse=True)
def unharmed(box: Caller) -> Any:
    """After each of these the box answers as before."""
    yield
    box.check_canary()


@pytest.fixture
def client(box: Caller) -> Any:
    with openai.OpenAI(base_url=f"{box.url}/v1", api_key=KEY, timeout=60, max_retries=0) as client:
        yield client


def texts(answer: Any) -> list[str | None]:
    return [text_of(choice) for choice in answer.json()["choices"]]


def test_b01_nulls_and_everyday_extras_in_a_completion(box: Caller) -> None:
    nulls = dict.fromkeys(("max_tokens", "n", "stop", "seed", "logit_bias", "logprobs", "stream", "top_p"))
    response = box.post(COMPLETIONS, {"model": MODEL, "prompt": "test", "temperature": 0, **nulls, "user": "u1"})
    assert response.status_code == 200
    assert response.json()["usage"]["completion_tokens"] <= 16


def test_b01_nulls_and_everyday_extras_in_a_chat(box: Caller) -> None:
    nulls = dict.fromkeys(("max_tokens", "tools", "tool_choice", "response_format", "stream_options"))
    extras = {"store": False, "metadata": {"a": "b"}, "service_tier": "auto", "user": "u1", "parallel_tool_calls": True}
    messages = [{"role": "user", "content": "hi", "name": "bob"}]
    body = {"model": MODEL, "messages": messages, "max_completion_tokens": 8, **nulls, **extras}
    response = box.post(CHAT, body)
    assert response.status_code == 200
    assert response.json()["usage"]["completion_tokens"] <= 8


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.replace(",", " ").replace("-", " -").split() if word.lstrip("-").isdecimal()]


@pytest.mark.parametrize("limit", [{}, {"max_tokens": 16}])
def test_b02_an_over_long_prompt(box: Caller, limit: dict[str, int]) -> None:
    text = "hello " * (CONTEXT + 200)
    bodies = [
        (CHAT, {"model": MODEL, "messages": [{"role": "user", "content": text}], **limit}, "messages"),
        (COMPLETIONS, {"model": MODEL, "prompt": text, **limit}, "prompt"),
    ]
    for path, body, param in bodies:
        message = box.refused(path, body, param, code="context_length_exceeded")
        found = numbers(message)
        assert CONTEXT in found
        assert max(found) >= CONTEXT + 200
        assert min(found) >= 0


def test_b02_one_token_under_the_limit_works(odd_box: Caller) -> None:
    answer = odd_box.complete([19556] * 1023, max_tokens=1)
    assert answer.json()["usage"] == answer.json()["usage"] | {"prompt_tokens": 1023, "completion_tokens": 1}
    refused = odd_box.complete([19556] * 1024, max_tokens=1)
    assert numbers(check_error(refused, 400, "prompt", "context_length_exceeded"))[:2] == [1024, 1024]


@pytest.mark.parametrize("n", [0, -1, 129, 10**9, 2**70, "2", 1.5, True])
def test_b04_n_out_of_range(box: Caller, processes: RunningBox, n: Any) -> None:
    def memory() -> int:
        return sum(process.memory_info().rss for process in workers)

    workers = [psutil.Process(process.pid) for process in processes.find("gunicorn")]
    before = memory()
    for path, body in ((CHAT, chat_body), (COMPLETIONS, completion_body)):
        box.refused(path, body(n=n, max_tokens=1), "n")
    assert memory() - before < 50 * 2**20


def test_b04_best_of_is_not_ignored(box: Caller) -> None:
    box.refused(COMPLETIONS, completion_body(n=2, best_of=1), "best_of")
    assert box.complete(n=2, best_of=2, max_tokens=1).status_code == 200


def test_b05_a_bias_decides(box: Caller) -> None:
    red = {"2382": 100}
    assert texts(box.complete("Colour:", max_tokens=3, logit_bias=red)) == [" red red red"]
    plain = texts(box.complete("Colour:", max_tokens=3))
    assert texts(box.complete("Colour:", max_tokens=3, logit_bias={})) == plain
    (winner,) = box.complete("Colour:", max_tokens=1, return_token_ids=True).json()["choices"][0]["token_ids"]
    banned = {"logit_bias": {str(winner): -100}, "return_token_ids": True}
    assert winner not in box.complete("Colour:", max_tokens=3, **banned).json()["choices"][0]["token_ids"]
    assert texts(box.complete("Colour:", max_tokens=3)) == plain


@pytest.mark.parametrize("bias", [{"49152": 5}, {"abc": 5}, {"-1": 5}, {"2382": 101}])
def test_b05_a_bad_bias_is_named(box: Caller, bias: dict[str, Any]) -> None:
    message = box.refused(COMPLETIONS, completion_body("Colour:", logit_bias=bias), "logit_bias")
    assert next(iter(bias)) in message


def test_b07_limits_and_dependency_of_top_logprobs(box: Caller) -> None:
    assert "20" in box.refused(CHAT, chat_body(logprobs=True, top_logprobs=100_000), "top_logprobs")
    box.refused(COMPLETIONS, completion_body(logprobs=100_000), "logprobs")
    assert "logprobs" in box.refused(CHAT, chat_body(top_logprobs=5), "top_logprobs")
    printed = box.chat(logprobs=True, max_tokens=2).json()["choices"][0]["logprobs"]["content"]
    assert [token["top_logprobs"] for token in printed] == [[], []]


def test_b07_nothing_is_infinite(box: Caller) -> None:
    sampling = {"top_p": 0.05, "temperature": 0.2, "logit_bias": {"2382": -100}, "seed": 1}
    response = box.chat(logprobs=True, top_logprobs=5, **sampling)
    for token in parse_strictly(response.text)["choices"][0]["logprobs"]["content"]:
        top = [other["logprob"] for other in token["top_logprobs"]]
        assert top == sorted(top, reverse=True)
        assert all(math.isfinite(value) and value <= 0 for value in [*top, token["logprob"]])
        same = [other["logprob"] for other in token["top_logprobs"] if other["bytes"] == token["bytes"]]
        assert same in ([], [token["logprob"]])


def test_b08_choices_are_in_the_prompts_order(box: Caller) -> None:
    body = completion_body(["1 2 3 4", "A B C D"], n=2, echo=True)
    answer = box.both(COMPLETIONS, body)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    begins = ["1 2 3 4", "1 2 3 4", "A B C D", "A B C D"]
    assert all(text_of(choice).startswith(begin) for choice, begin in zip(answer["choices"], begins, strict=True))  # type: ignore[union-attr]
    alone = [box.complete(prompt, echo=True).json() for prompt in ("1 2 3 4", "A B C D")]
    assert answer["usage"]["prompt_tokens"] == sum(each["usage"]["prompt_tokens"] for each in alone)
    assert [text_of(answer["choices"][index]) for index in (0, 2)] == [text_of(each["choices"][0]) for each in alone]


def test_b08_ids_are_a_prompt(box: Caller) -> None:
    echoed = box.complete([19556], max_tokens=2, echo=True)
    assert str(texts(echoed)[0]).startswith("Hello")
    assert texts(box.complete("Hello", max_tokens=2, echo=True)) == texts(echoed)
    two = box.complete([[19556], [33, 330]], max_tokens=2).json()
    assert [choice["index"] for choice in two["choices"]] == [0, 1]
    assert two["usage"]["prompt_tokens"] == 3


@pytest.mark.parametrize("prompt", [[], ["a", [1]], [[1], "a"], [1, "a"], [1, None], [[[1]]], [True], [1.5], {}])
def test_b08_other_prompts_are_refused(box: Caller, prompt: Any) -> None:
    box.refused(COMPLETIONS, completion_body(prompt), "prompt")


def test_b10_an_echoed_prompt_has_logprobs(box: Caller) -> None:
    def score(word: str) -> tuple[float, dict[str, list[Any]], str]:
        body = completion_body(f"The capital of France is {word}", max_tokens=1, logprobs=1, echo=True)
        answer = box.post(COMPLETIONS, body).json()
        choice = answer["choices"][0]
        printed = choice["logprobs"]
        size = answer["usage"]["prompt_tokens"] + 1
        assert {len(printed[name]) for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")} == {size}
        assert printed["token_logprobs"][0] is None
        assert printed["top_logprobs"][0] is None
        assert all(math.isfinite(value) and value <= 0 for value in printed["token_logprobs"][1:])
        assert "".join(printed["tokens"]) == choice["text"]
        return sum(printed["token_logprobs"][5:-1]), printed, choice["text"]

    assert score("Paris")[0] > score("banana")[0]


def test_b10_without_any_output(box: Caller) -> None:
    body = completion_body("The capital of France is Paris", max_tokens=0, logprobs=1, echo=True)
    answer = box.both(COMPLETIONS, body)
    assert text_of(answer["choices"][0]) == "The capital of France is Paris"
    assert len(answer["choices"][0]["logprobs"]["tokens"]) == answer["usage"]["prompt_tokens"]
    assert answer["usage"]["completion_tokens"] == 0


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": []}, "messages"),
        ({}, "messages"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role"),
        ({"messages": "hi"}, "messages"),
        ({"messages": {}}, "messages"),
        ({"messages": [USER, {}]}, "messages[1].role"),
    ],
)
def test_b11_empty_messages(box: Caller, body: dict[str, Any], param: str) -> None:
    box.refused(CHAT, {"model": MODEL, **body}, param)


def test_b11_empty_content_is_legal(box: Caller) -> None:
    assert box.chat("").status_code == 200


REMEMBER = ["Remember the word BANANA.", "What is the word?"]


def parts(*words: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": word} for word in words]


def test_b13_parts_are_joined(box: Caller) -> None:
    def prompt_tokens(content: Any, role: str = "user") -> int:
        messages = (
            [{"role": role, "content": content}, USER] if role != "user" else [{"role": role, "content": content}]
        )
        response = box.post(CHAT, {"model": MODEL, "messages": messages, "max_tokens": 8, "temperature": 0})
        assert response.status_code == 200, response.text
        return int(response.json()["usage"]["prompt_tokens"])

    assert abs(prompt_tokens(parts(*REMEMBER)) - prompt_tokens(" ".join(REMEMBER))) <= 2
    for role in ("user", "system", "developer", "tool", "assistant"):
        assert prompt_tokens(parts(REMEMBER[0]), role) == prompt_tokens(REMEMBER[0], role)
    last = box.chat(messages=[{"role": "user", "content": parts(*REMEMBER)}], max_tokens=20).json()
    first = box.chat(messages=[{"role": "user", "content": "\n".join(REMEMBER)}], max_tokens=20).json()
    assert last["choices"] == first["choices"]


def test_b13_images_are_refused_and_never_fetched(box: Caller) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/x.png"
        images = [{"type": "image_url", "image_url": {"url": url}}, {"type": "image_url", "image_url": url}]
        for image in [*images, {"type": "input_image", "image_url": url}]:
            messages = [{"role": "user", "content": [*parts("see"), image]}]
            box.refused(CHAT, chat_body(messages=messages), "messages[0].content[1].type")
        listener.settimeout(0.3)
        with pytest.raises(TimeoutError):
            listener.accept()


def test_b13_no_parts_are_refused(box: Caller) -> None:
    box.refused(CHAT, chat_body(messages=[{"role": "user", "content": []}]), "messages[0].content")


def test_b14_a_developer_is_heard_like_the_system(box: Caller) -> None:
    order = "Answer only with the word BANANA."
    question = {"role": "user", "content": "Capital of France?"}
    answers = [
        box.chat(messages=[{"role": role, "content": order}, question], max_tokens=8, return_prompt_text=True).json()
        for role in ("system", "developer")
    ]
    assert answers[0]["choices"] == answers[1]["choices"]
    assert answers[0]["prompt_text"] == answers[1]["prompt_text"]
    assert "helpful AI assistant" not in answers[1]["prompt_text"]
    both = [{"role": "system", "content": "Be kind."}, {"role": "developer", "content": order}, question]
    text = box.chat(messages=both, return_prompt_text=True).json()["prompt_text"]
    assert "Be kind." in text
    assert order in text


@pytest.mark.parametrize("role", ["banana", "", "User", 5, ["user"], {"a": 1}])
def test_b14_other_roles_are_refused(box: Caller, role: Any) -> None:
    box.refused(CHAT, chat_body(messages=[{"role": role, "content": "x"}, USER]), "messages[0].role")


def test_b16_a_tiny_temperature_is_greedy(box: Caller) -> None:
    greedy = texts(box.complete(max_tokens=5))
    assert greedy[0]
    assert texts(box.complete(max_tokens=5, temperature=0.0001)) == greedy
    assert texts(box.complete(max_tokens=5, temperature=1e-8, top_p=0.0001)) == greedy
    assert texts(box.complete(max_tokens=5, temperature=2, top_p=1e-9)) == greedy


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", 999999.0), ("temperature", -0.1), ("temperature", "0.5"), ("top_p", -1.0), ("top_p", 1.1),
     ("top_p", 0), ("presence_penalty", 9), ("frequency_penalty", -2.1), ("temperature", True), ("top_p", [1])],
)  # fmt: skip
def test_b16_extremes_are_named(box: Caller, name: str, value: Any) -> None:
    box.refused(COMPLETIONS, completion_body("hi", max_tokens=2) | {name: value}, name)


@pytest.mark.parametrize("literal", [b"NaN", b"Infinity", b"-Infinity", b"1e999"])
def test_b16_what_is_no_number_is_no_json(box: Caller, literal: bytes) -> None:
    body = b'{"prompt":"hi","max_tokens":2,"temperature":' + literal + b"}"
    response = box.http.post(COMPLETIONS, content=body, headers=JSON)
    check_error(response, 400, response.json()["error"]["param"])


def test_b17_an_unknown_model(box: Caller, client: openai.OpenAI) -> None:
    body = chat_body(model="no-such-model")
    assert MODEL in box.refused(CHAT, body, "model", 404, "model_not_found")
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(**body)
    assert (caught.value.param, caught.value.code) == ("model", "model_not_found")


@pytest.mark.parametrize(
    ("fields", "param"), [({"messages": USER}, "messages"), ({"temperature": "hot"}, "temperature")]
)
def test_b17_a_wrong_field(box: Caller, client: openai.OpenAI, fields: dict[str, Any], param: str) -> None:
    body = chat_body(**fields)
    box.refused(CHAT, body, param)
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**body)
    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"


def test_b17_unknown_routes_and_wrong_methods(box: Caller) -> None:
    check_error(box.http.get("/nowhere"), 404, code="not_found")
    check_error(box.http.get(CHAT), 405, code="method_not_allowed")
    check_error(box.http.put(CHAT, json={}), 405)


@pytest.mark.parametrize(
    "line",
    [b"BREW /version HTTP/1.1", b"GET /version?\xff HTTP/1.1", b"GET /\xc3\xbc HTTP/1.1", b"GET /%zz HTTP/1.1",
     b"GET /version HTTP/1.1\r\nX-A: \x01", b"GET /version HTTP/1.1\r\nX-A: \x7f", b"GET /version HTTP/1.1\r\nX A: 1",
     b"get /version HTTP/1.1", b"TRACE /version HTTP/1.1", b"CONNECT x:1 HTTP/1.1", b"GET /version HTTP/4.0"],
)  # fmt: skip
def test_b17_what_is_hardly_http(box: Caller, line: bytes) -> None:
    head, _, body = exchange(box, line + b"\r\nHost: x\r\nConnection: close\r\n\r\n").partition(b"\r\n\r\n")
    assert head.split(b" ")[1] in (b"400", b"405", b"505")
    lines = head.lower().split(b"\r\n")
    assert b"content-type: application/json" in lines
    assert any(line.startswith(b"x-request-id: ") for line in lines)
    assert json.loads(body)["error"].keys() == {"message", "type", "param", "code"}


VALID = b'{"model":"%s","messages":[{"role":"user","content":"hi"}],"max_tokens":2}' % MODEL.encode()
BROKEN = {
    "a syntax error": VALID[:-1] + b", x}",
    "nothing": b"",
    "a list": b"[]",
    "a string": b'"hi"',
    "cp1252": VALID.replace(b"hi", b"h\x97i"),
    "UTF-16": VALID.decode().encode("utf-16"),
    "a lone surrogate": VALID.replace(b"hi", b"\\ud83d"),
    "nothing but brackets": b"[" * 50_000,
}


@pytest.mark.parametrize("name", BROKEN)
def test_b19_malformed_bytes(box: Caller, name: str) -> None:
    response = box.http.post(CHAT, content=BROKEN[name], headers=JSON)
    message = check_error(response, 400)
    assert "\x97" not in message
    assert len(message) < 300


def test_b19_odd_but_clear_bytes(box: Caller) -> None:
    marked = box.http.post(CHAT, content=b"\xef\xbb\xbf" + VALID, headers=JSON)
    assert marked.status_code in (200, 400)
    for headers in ({"content-type": "text/plain"}, {}):
        assert "application/json" in check_error(box.http.post(CHAT, content=VALID, headers=headers), 400)
    twice = VALID[:-1] + b',"max_tokens":3,"logit_bias":{"2":-100,"0":-100}}'
    response = box.http.post(CHAT, content=twice, headers=JSON)
    assert response.json()["usage"]["completion_tokens"] == 3


def once(box: Caller, **fields: Any) -> list[str | None]:
    return texts(box.complete("Once", max_tokens=12, temperature=1.0, **fields))


def test_b20_seeds_out_of_range(box: Caller) -> None:
    for seed in (2**64, 2**63, -(2**63) - 1):
        box.refused(COMPLETIONS, completion_body("Once", seed=seed), "seed")


@pytest.mark.exact
def test_b20_a_seed_means_the_same_text(box: Caller) -> None:
    alone = [once(box, seed=seed) for seed in range(1, 6)]
    assert len({text for (text,) in alone}) >= 2
    assert once(box, seed=3) == alone[2]
    assert once(box, seed=-1) == once(box, seed=-1)
    with ThreadPoolExecutor(8) as pool:
        crowd = [pool.submit(once, box, seed=seed) for seed in (1, 2, 3, 4, 5, 11, 12, 13)]
        assert [each.result() for each in crowd[:5]] == alone


def test_b20_no_seed_means_any_text(box: Caller) -> None:
    assert len({once(box)[0] for _ in range(5)}) >= 2


@pytest.mark.exact
def test_b20_choices_of_one_seed_differ_and_repeat(box: Caller) -> None:
    first = once(box, seed=7, n=3)
    assert len(set(first)) == 3
    assert once(box, seed=7, n=3) == first
    assert once(box, seed=7)[0] == first[0]


def test_b20_the_canary_is_as_fast_as_ever(box: Caller) -> None:
    times = [box.post(CHAT, CANARY).elapsed.total_seconds() for _ in range(5)]
    assert statistics.median(times) < 5
    assert box.chat(max_tokens=1, logit_bias=ENDLESS).status_code == 200
