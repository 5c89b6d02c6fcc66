"""chat and complete: piped, with words, and as a conversation on a real terminal."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance import cli
from appliance.terminal.message_input import END, MessageInput
from appliance.terminal.screen import Screen
from tests.unit.bench.fake_server import FakeServer, answer, chunked, event, head, running
from tests.unit.terminal.people_server import MODEL, PeopleServer, deltas
from tests.unit.terminal.terminals import Terminal, running_in_terminal


@pytest.fixture
def server() -> Iterator[PeopleServer]:
    with running(PeopleServer()) as server:
        assert isinstance(server, PeopleServer)
        yield server


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = cli.main(words)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def pipe(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))


@pytest.mark.parametrize(
    ("words", "piped", "sent"),
    [
        (["Say", "hello"], "", "Say hello"),
        ([], "from a pipe\n", "from a pipe"),
        (["Explain:"], "a file\nof lines\n", "Explain:\n\na file\nof lines"),
    ],
)
def test_one_question(
    server: PeopleServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    words: list[str], piped: str, sent: str,
) -> None:  # fmt: skip
    pipe(monkeypatch, piped)
    flags = ["--url", server.url, "--system", "Be brief.", "--temperature", "0.5", "--max-tokens", "7"]
    assert run(capsys, "chat", *words, *flags) == (0, f"you said: {sent}\n", "")
    (body,) = server.bodies
    assert body["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": sent}]
    assert (body["model"], body["temperature"], body["max_tokens"], body["stream"]) == (MODEL, 0.5, 7, True)
    assert "authorization" not in server.headers[0]


@pytest.mark.parametrize("way", ["flag", "environment"])
def test_the_key_and_the_url_that_openai_wants(
    server: PeopleServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    pipe(monkeypatch, "")
    if way == "environment":
        monkeypatch.setenv("BREADBOX_API_KEY", "sesame,other")
        monkeypatch.setenv("BREADBOX_PORT", str(server.port))
    flags = ["--api-key", "sesame", "--url", f"{server.url}/v1/"] if way == "flag" else []
    assert run(capsys, "chat", "hi", *flags)[0] == 0
    assert server.headers[0]["authorization"] == "Bearer sesame"


def test_complete(server: PeopleServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ["--url", server.url, "--model", "mine", "--stop", "END", "--seed", "3"]
    assert run(capsys, "complete", "The story", *flags) == (0, " goes on\n", "")
    pipe(monkeypatch, "From a file")
    assert run(capsys, "complete", "--echo", *flags) == (0, "From a file goes on\n", "")
    assert [body["prompt"] for body in server.bodies] == ["The story", "From a file"]
    assert (server.bodies[0]["model"], server.bodies[0]["stop"], server.bodies[0]["seed"]) == ("mine", ["END"], 3)


def refuse(server: FakeServer, path: str, body: dict[str, Any]) -> list[bytes]:
    return [answer(400, {"error": {"message": "max_tokens must be at least 1"}})]


def fail_midway(server: FakeServer, path: str, body: dict[str, Any]) -> list[bytes]:
    parts = [event({"choices": [{"delta": {"content": "Once"}}]}), event({"error": {"message": "the engine was lost"}})]
    return [head(), chunked([*parts, event("[DONE]")])]


def break_off(server: FakeServer, path: str, body: dict[str, Any]) -> list[bytes]:
    return [head(), b"ff\r\ndata: "]


def talk_nonsense(server: FakeServer, path: str, body: dict[str, Any]) -> list[bytes]:
    return [head(), chunked([b"data: {nonsense\n\n"])]


@pytest.mark.parametrize(
    ("reply", "out", "message"),
    [
        (refuse, "", "max_tokens must be at least 1 (HTTP 400)"),
        (fail_midway, "Once\n", "the engine was lost"),
        (break_off, "", "the server closed the connection in the middle of the response"),
        (talk_nonsense, "", "the server's answer is not JSON"),
    ],
)
def test_what_goes_wrong_is_one_line(
    server: PeopleServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    reply: Any, out: str, message: str,
) -> None:  # fmt: skip
    pipe(monkeypatch, "")
    server.reply = reply
    assert run(capsys, "chat", "hi", "--url", server.url) == (1, out, f"breadbox: error: {message}\n")


def test_nothing_to_ask_and_nobody_to_ask(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, "")
    for name in ("chat", "complete"):
        status, _, error = run(capsys, name)
        assert status == 2
        assert "on standard input" in error
    assert "cannot be reached" in run(capsys, "chat", "hi", "--url", "http://127.0.0.1:1")[2]
    assert "is not a URL" in run(capsys, "chat", "hi", "--url", "nowhere")[2]


def test_a_text_cannot_drive_the_terminal() -> None:
    hostile = "red \x1b[31m bell \x07 clipboard \x1b]52;c;eA==\x07 c1 \x9b31m tab\tline\n"
    out, file = io.StringIO(), io.StringIO()
    Screen(out, is_terminal=True).write(hostile)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", out.getvalue())
    assert out.getvalue().endswith("tab\tline\n")
    Screen(file, is_terminal=False).write(hostile)
    assert file.getvalue() == hostile


def messages(*lines: str | type[BaseException]) -> MessageInput:
    """An input that reads these lines, an exception being raised."""
    left = iter([*lines, EOFError])

    def read_line(prompt: str) -> str:
        line = next(left)
        if isinstance(line, str):
            return line
        raise line

    return MessageInput(read_line)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["one"], "one"),
        (["one\\", "two\\", "three"], "one\ntwo\nthree"),
        (['"""one', "", '  two"""'], "one\n\n  two"),
        (['"""', "one", '"""'], "one"),
        (['"""all in one"""'], "all in one"),
        ([], END),
        (["one\\", KeyboardInterrupt], ""),
    ],
)
def test_messages_of_several_lines(lines: list[Any], message: str | None) -> None:
    assert messages(*lines).read("> ") == message


@pytest.fixture
def terminal(server: PeopleServer) -> Iterator[Terminal]:
    with running_in_terminal("chat", "--url", server.url) as terminal:
        terminal.expect("/help")
        terminal.expect("> ")
        yield terminal


def test_a_conversation(server: PeopleServer, terminal: Terminal, tmp_path: Path) -> None:
    def enter(line: str, expected: str) -> None:
        terminal.type(line + "\n")
        terminal.expect(expected)
        terminal.expect("> ")

    enter("first", "you said: first")
    enter("second", "2 tokens")
    assert [message["content"] for message in server.bodies[1]["messages"]] == ["first", "you said: first", "second"]
    enter("/system Be a pirate.", "system prompt set")
    enter("/set temperature 0.3", "temperature 0.3")
    enter("/set warmth 3", "there is no 'warmth'")
    enter("/set top-k many", "'many' is not a number")
    enter("/retry", "you said: second")
    assert server.bodies[2]["messages"][0] == {"role": "system", "content": "Be a pirate."}
    assert (len(server.bodies[2]["messages"]), server.bodies[2]["temperature"]) == (4, 0.3)
    enter("/undo", "forgotten: second")
    enter("/model", MODEL)
    enter("/model other", "other answers")
    enter(f"/save {tmp_path}/chat.json", "saved in")
    saved = json.loads((tmp_path / "chat.json").read_text())
    assert (saved["model"], len(saved["messages"])) == ("other", 3)
    enter("/save /nowhere/at/all", "No such file")
    enter("/new", "a new conversation")
    enter("/sing", "there is no /sing")
    enter("/help", "Ctrl-C stops")
    enter("again", "you said: again")
    assert len(server.bodies[3]["messages"]) == 2
    server.reply = refuse
    enter("oh", "max_tokens must be at least 1")
    terminal.type("/quit\n")
    assert terminal.wait() == 0


def test_reasoning_is_dim_and_only_for_eyes(
    server: PeopleServer, terminal: Terminal, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.reply = lambda *_: deltas({"reasoning": "hm, so"}, {"content": "It is 4."})
    terminal.type("2 + 2?\n")
    terminal.expect("\x1b[2mhm, so\x1b[0m")
    terminal.expect("It is 4.")
    terminal.end_input()
    assert terminal.wait() == 0
    pipe(monkeypatch, "")
    assert run(capsys, "chat", "2 + 2?", "--url", server.url)[1] == "It is 4.\n"


def test_ctrl_c_stops_the_answer_only(server: PeopleServer, terminal: Terminal) -> None:
    def never_end(server: FakeServer, path: str, body: dict[str, Any]) -> list[bytes]:
        return [head(), *[chunked([event({"choices": [{"delta": {"content": "on "}}]})])[:-5]] * 100_000, b""]

    server.reply = never_end
    terminal.type("tell me\n")
    terminal.expect("on on on")
    terminal.type("\x03")
    terminal.expect("stopped")
    terminal.expect("> ")
    server.reply = PeopleServer().reply
    terminal.type("enough\n")
    terminal.expect("you said: enough")
    assert server.bodies[-1]["messages"][1]["content"].startswith("on on on")
    terminal.end_input()
    assert terminal.wait() == 0
