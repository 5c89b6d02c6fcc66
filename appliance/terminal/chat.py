"""`breadbox chat`: a conversation at the terminal, or one question and its answer where there is none."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from collections.abc import Callable
from pathlib import Path

from appliance.bench.http_response import HttpError
from appliance.errors import SettingsError
from appliance.terminal.answer import CHAT_PATH, Answer, AnswerReader
from appliance.terminal.box_server import BoxServer, add_server_flags, find_server
from appliance.terminal.conversation import Conversation
from appliance.terminal.message_input import END, MessageInput
from appliance.terminal.sampling_flags import add_sampling_flags, sampling_of, set_sampling
from appliance.terminal.screen import Screen


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument(
        "message", nargs="*", metavar="MESSAGE", help="ask this and end; what is piped in comes after it"
    )
    parser.add_argument("--model", metavar="NAME", help="default: the first that the box serves")
    parser.add_argument("--system", default="", metavar="TEXT", help="system prompt")
    add_sampling_flags(parser)
    add_server_flags(parser)


def run_chat(args: argparse.Namespace) -> int:
    """One answer for words or piped text, else a conversation until /quit."""
    server, screen = find_server(args), Screen()
    piped = "" if sys.stdin.isatty() else sys.stdin.read().strip()
    message = "\n\n".join(part for part in (" ".join(args.message), piped) if part)
    if not message and not sys.stdin.isatty():
        raise SettingsError(["chat needs a message, as words or on standard input"])
    model = args.model or asyncio.run(server.first_model())
    chat = Chat(server, screen, Conversation(model, args.system, sampling_of(args)))
    if message:
        chat.ask(message)
    else:
        load_line_editing()
        chat.run(MessageInput(input))
    return 0


class Chat:
    """Asks, shows, and obeys the commands, which are the methods behind `COMMANDS`."""

    def __init__(self, server: BoxServer, screen: Screen, conversation: Conversation) -> None:
        self._server = server
        self._screen = screen
        self._conversation = conversation
        self._reader = AnswerReader(server, screen)

    def run(self, messages: MessageInput) -> None:
        """Until the input ends or /quit."""
        self._screen.note(f"{self._conversation.model} at {self._server.url}; /help tells what else you can do", "dim")
        while (text := messages.read("> ")) is not END:
            if text.startswith("/"):
                if not self._obey(text):
                    return
            elif text:
                self._try(text)

    def ask(self, text: str) -> None:
        """Show the answer, however far it comes. Raises HttpError and KeyboardInterrupt."""
        self._conversation.say(text)
        answer = Answer()
        try:
            # A runner of its own for each answer: Ctrl-C ends the answer, not the conversation.
            asyncio.run(self._reader.read(CHAT_PATH, self._conversation.body(), answer))
        finally:
            self._conversation.answer(answer.text)
            if answer.text and not answer.text.endswith("\n"):
                self._screen.line()
        if self._screen.is_terminal:
            self._screen.note(answer.describe(), "dim")

    def _try(self, text: str) -> None:
        try:
            self.ask(text)
        except HttpError as error:
            self._screen.note(str(error), "red")
            self._screen.note("/retry asks again", "dim")
        except KeyboardInterrupt:
            self._screen.note("stopped", "yellow")

    def _obey(self, line: str) -> bool:
        """False where the conversation is over."""
        name, _, rest = line[1:].partition(" ")
        if name in {"quit", "exit", "bye"}:
            return False
        command = COMMANDS.get(name)
        if command is None:
            self._screen.note(f"there is no /{name}; /help shows what there is", "red")
        else:
            try:
                command[0](self, rest.strip())
            except (ValueError, OSError, HttpError) as error:
                self._screen.note(str(error), "red")
        return True

    def _help(self, _: str) -> None:
        for name, (_run, usage, meaning) in COMMANDS.items():
            self._screen.line(f"  {f'/{name} {usage}':<24} {meaning}")
        self._screen.line(f"  {'/quit':<24} end (also Ctrl-D)")
        self._screen.line('  A line that ends with \\ goes on; """ begins and ends a message of several lines.')
        self._screen.line("  Ctrl-C stops an answer.")

    def _set_system(self, text: str) -> None:
        self._conversation.system = text
        self._screen.note("system prompt set" if text else "no system prompt", "dim")

    def _set(self, text: str) -> None:
        name, _, value = text.partition(" ")
        if name:
            set_sampling(self._conversation.sampling, name, value.strip())
        shown = ", ".join(f"{name} {value}" for name, value in self._conversation.sampling.items())
        self._screen.note(shown or "everything is the model's default", "dim")

    def _set_model(self, name: str) -> None:
        if name:
            self._conversation.model = name
            self._screen.note(f"{name} answers", "dim")
            return
        for card in asyncio.run(self._server.get_json("/v1/models"))["data"]:
            self._screen.line(f"  {card['id']}")

    def _start_anew(self, _: str) -> None:
        self._conversation.turns.clear()
        self._screen.note("a new conversation", "dim")

    def _retry(self, _: str) -> None:
        question = self._conversation.take_back()
        if question is None:
            raise ValueError("nothing has been asked yet")
        self._try(question)

    def _undo(self, _: str) -> None:
        question = self._conversation.take_back()
        self._screen.note("nothing to take back" if question is None else f"forgotten: {question}", "dim")

    def _save(self, name: str) -> None:
        if not name:
            raise ValueError("/save needs a FILE")
        self._conversation.save(Path(name).expanduser())
        self._screen.note(f"saved in {name}", "dim")


COMMANDS: dict[str, tuple[Callable[[Chat, str], None], str, str]] = {
    "help": (Chat._help, "", "this list"),
    "new": (Chat._start_anew, "", "forget everything that was said"),
    "retry": (Chat._retry, "", "ask the last question again"),
    "undo": (Chat._undo, "", "forget the last question and its answer"),
    "system": (Chat._set_system, "[TEXT]", "set the system prompt, or take it away"),
    "set": (
        Chat._set,
        "[NAME VALUE]",
        "set a sampling parameter such as temperature (default: the model's), or show them",
    ),
    "model": (Chat._set_model, "[NAME]", "choose a model, or list them"),
    "save": (Chat._save, "FILE", "write the conversation as the JSON of a request"),
}


def load_line_editing() -> None:
    """Arrow keys and history for `input`, where Python has them."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - being imported is what it does
