"""`breadbox complete`: lets the model go on with a text, as it is, without a chat's turns."""

from __future__ import annotations

import argparse
import asyncio
import sys

from appliance.errors import SettingsError
from appliance.terminal.answer import COMPLETIONS_PATH, Answer, AnswerReader
from appliance.terminal.box_server import BoxServer, add_server_flags, find_server
from appliance.terminal.sampling_flags import add_sampling_flags, sampling_of
from appliance.terminal.screen import Screen


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("prompt", nargs="*", metavar="PROMPT", help="the text to go on with; default: standard input")
    parser.add_argument("--model", metavar="NAME", help="default: the first that the box serves")
    parser.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end before this (repeatable)")
    parser.add_argument("--echo", action="store_true", help="print the prompt, too")
    add_sampling_flags(parser)
    add_server_flags(parser)


def run_complete(args: argparse.Namespace) -> int:
    """Print the completion; the figures go to a terminal only."""
    prompt = " ".join(args.prompt) or ("" if sys.stdin.isatty() else sys.stdin.read())
    if not prompt:
        raise SettingsError(["complete needs a PROMPT, as words or on standard input"])
    screen, answer = Screen(), Answer()
    asyncio.run(_complete(find_server(args), screen, args, prompt, answer))
    screen.line()
    if screen.is_terminal:
        screen.note(answer.describe(), "dim")
    return 0


async def _complete(server: BoxServer, screen: Screen, args: argparse.Namespace, prompt: str, answer: Answer) -> None:
    body = {"model": args.model or await server.first_model(), "prompt": prompt, **sampling_of(args)}
    if args.stop:
        body["stop"] = args.stop
    if args.echo:
        screen.write(prompt, "dim")
    await AnswerReader(server, screen).read(COMPLETIONS_PATH, body, answer)
