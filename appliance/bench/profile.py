"""`breadbox bench profile`: where a step's time goes on a CPU, and how long a stream waits for a long prompt."""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from appliance.bench.flag_types import whole
from appliance.bench.in_process import add_engine_flags, load_config, load_engine_settings
from appliance.bench.progress import Progress
from appliance.bench.step_clock import AROUND, ClockedLibrary, ClockedRunner, Times, clock_step
from appliance.errors import ApplianceError, SettingsError
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.messages import GenerateRequest, SamplingParams


def add_profile_flags(parser: argparse.ArgumentParser) -> None:
    """Sizes of the steps that are looked at."""
    group = parser.add_argument_group("steps")
    add = group.add_argument
    add(
        "--batch-sizes", type=whole(1), nargs="+", default=[1, 32], metavar="N", help="decoding together (default 1 32)"
    )
    add("--input-len", type=whole(1), default=128, metavar="N", help="tokens of their prompts (default 128)")
    add("--prefill-len", type=whole(1), default=512, metavar="N", help="tokens of a prompt by itself (default 512)")
    add("--num-steps", type=whole(1), default=40, metavar="N", help="decode steps of each batch (default 40)")
    add("--long-prompt-len", type=whole(1), default=2048, metavar="N", help="prompt that a stream meets (default 2048)")
    add("--repeat", type=whole(1), default=5, metavar="N", help="such prompts, of either kind (default 5)")
    add("--temperature", type=float, default=0.0, help="0: greedy (default); else tokens are drawn")
    add("--markdown", action="store_true", help="a table for a README")
    add("--disable-tqdm", "--no-progress", dest="no_progress", action="store_true", help="no progress bar")
    add_engine_flags(parser)


@dataclass(frozen=True)
class Profile:
    """Medians of the parts of one kind of step, in seconds."""

    name: str
    parts: Times

    @property
    def total_s(self) -> float:
        """The whole step."""
        return sum(self.parts.values())

    @property
    def around_s(self) -> float:
        """What is no kernel."""
        return sum(self.parts[part] for part in AROUND)


@dataclass(frozen=True)
class Gaps:
    """Between two tokens of a running stream, in seconds: the largest of each prompt, and without one."""

    beside_prompt: list[float]
    alone: list[float]


class Profiler:
    """One engine, and a fresh scheduler for each measurement."""

    def __init__(self, config: EngineConfig, args: argparse.Namespace) -> None:
        from engine.runner import make_runner  # torch is only for those who compute

        self._config, self._args = config, args
        self._runner = ClockedRunner(make_runner(config, implementation="cpu"))
        self._rng = random.Random(config.seed)  # noqa: S311 - prompts, not secrets

    def decode(self, batch_size: int, library: ClockedLibrary) -> Profile:
        """Steps of `batch_size` requests that all decode."""
        core = self._start()
        num_tokens = self._args.num_steps + batch_size * self._args.input_len  # all are still there at the end
        self._add(core, batch_size, self._args.input_len, min(num_tokens, self._room(self._args.input_len)))
        steps: list[Times] = []
        while len(steps) < self._args.num_steps and core.has_work():
            outputs, times = clock_step(core, self._runner, library)
            if len(outputs) == batch_size:
                steps.append(times)
        return Profile(f"decode {batch_size}", _medians(steps))

    def prefill(self, library: ClockedLibrary) -> Profile:
        """All steps of a prompt, together."""
        prompts: list[Times] = []
        for _ in range(self._args.repeat):
            core, whole_prompt = self._start(), dict[str, float]()
            self._add(core, 1, self._args.prefill_len, 1)
            while core.has_work():
                for part, seconds in clock_step(core, self._runner, library)[1].items():
                    whole_prompt[part] = whole_prompt.get(part, 0.0) + seconds
            prompts.append(whole_prompt)
        return Profile(f"prefill {self._args.prefill_len}", _medians(prompts))

    def gaps(self) -> Gaps:
        """A stream of one request, which long prompts join one after the other."""
        core, gaps = self._start(), Gaps([], [])
        self._add(core, 1, self._args.input_len, self._room(self._args.input_len), "stream")
        for _ in range(self._args.repeat):
            gaps.alone.append(max(_step_s(core) for _ in range(10)))
            self._add(core, 1, self._args.long_prompt_len, 1, "prompt")
            steps = []
            while core.num_running + core.num_waiting > 1:
                steps.append(_step_s(core))
            gaps.beside_prompt.append(max(steps, default=0.0))
        return gaps

    def _start(self) -> EngineCore:
        return EngineCore(self._config, self._runner)

    def _room(self, num_prompt_tokens: int) -> int:
        room = self._runner.info.max_model_len - num_prompt_tokens
        if room < 1:
            raise ApplianceError(f"prompts of {num_prompt_tokens} tokens leave no room: give smaller lengths")
        return room

    def _add(self, core: EngineCore, count: int, num_prompt_tokens: int, num_tokens: int, name: str = "r") -> None:
        vocab_size = self._runner.info.vocab_size
        for index in range(count):
            prompt = [self._rng.randrange(vocab_size) for _ in range(num_prompt_tokens)]
            sampling = SamplingParams(
                max_tokens=num_tokens, seed=index, temperature=self._args.temperature, ignore_eos=True
            )
            request = GenerateRequest(
                request_id=f"{name}-{self._rng.getrandbits(32)}", prompt_token_ids=prompt, sampling=sampling
            )
            refused = core.add(request)
            if refused is not None:
                raise ApplianceError(f"the engine refused a request: {refused.error}")


def run_profile(args: argparse.Namespace) -> int:
    """Measure and print. Raises ApplianceError, ConfigError."""
    from engine.kernels.native.library import load_library

    config = load_config(load_engine_settings(args), prefix_caching=False)
    if config.async_scheduling:
        raise SettingsError(["--async-scheduling: steps that overlap have no parts that add up to the whole"])
    profiler = Profiler(config, args)
    with Progress("measurements", len(args.batch_sizes) + 2, is_shown=not args.no_progress) as progress:
        profiles = []
        with ClockedLibrary(load_library()) as library:
            for batch_size in args.batch_sizes:
                profiles.append(profiler.decode(batch_size, library))
                progress.step()
            profiles.append(profiler.prefill(library))
            progress.step()
        gaps = profiler.gaps()
        progress.step()
    print(format_profiles(profiles, args.markdown), flush=True)
    print(format_gaps(gaps, args.long_prompt_len, config.max_num_batched_tokens), flush=True)
    return 0


def format_profiles(profiles: Sequence[Profile], is_markdown: bool) -> str:
    """Milliseconds and shares of each part of each kind of step."""
    parts = list(dict.fromkeys(part for profile in profiles for part in profile.parts))
    rows = [["part", *(profile.name for profile in profiles)]]
    rows += [[part, *(_cell(profile.parts.get(part, 0.0), profile.total_s) for profile in profiles)] for part in parts]
    rows.append(["whole", *(f"{profile.total_s * 1e3:.2f} ms" for profile in profiles)])
    rows.append(["around the kernels", *(f"{profile.around_s * 1e3:.2f} ms" for profile in profiles)])
    if is_markdown:
        rows.insert(1, ["---"] * len(rows[0]))
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return "\n".join("".join(f"{cell:<20}" for cell in row).rstrip() for row in rows)


def format_gaps(gaps: Gaps, num_prompt_tokens: int, token_budget: int) -> str:
    """One line for people."""
    beside, alone = statistics.median(gaps.beside_prompt), statistics.median(gaps.alone)
    return (
        f"Largest gap of a stream while a prompt of {num_prompt_tokens} tokens is computed: {beside * 1e3:.0f} ms "
        f"(worst of {len(gaps.beside_prompt)}: {max(gaps.beside_prompt) * 1e3:.0f} ms; "
        f"without it: {alone * 1e3:.1f} ms; steps of up to {token_budget} tokens)"
    )


def _cell(seconds: float, total_s: float) -> str:
    return f"{seconds * 1e3:.2f} ms {100 * seconds / total_s:.0f}%"


def _medians(steps: Sequence[Times]) -> Times:
    if not steps:
        raise ApplianceError("the batch never decoded together: give a larger KV cache, or fewer requests")
    return {part: statistics.median(times.get(part, 0.0) for times in steps) for part in steps[0]}


def _step_s(core: EngineCore) -> float:
    started_s = time.perf_counter()
    core.step()
    return time.perf_counter() - started_s
