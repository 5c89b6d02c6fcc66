"""An engine core over the default model's vocabulary, whose runner draws any token that a row allows."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.messages import GenerateRequest, Grammar, RequestOutput, SamplingParams, TokenLogprobs, merge_outputs
from engine.step import RunnerInfo, StepInput, StepOutput, StepRow

VOCAB_SIZE = 49152
EOS = 2
Choose = Callable[[StepRow, np.ndarray], int]


def allowed_ids(row: StepRow) -> np.ndarray:
    """The token ids that the row's mask allows."""
    assert row.token_mask is not None
    return np.flatnonzero(np.unpackbits(row.token_mask.view(np.uint8), bitorder="little"))


CLOSERS = (18, 109, 77, 23597, EOS)  # quotes, braces, brackets: without them strings and lists hardly end


def draw_any(row: StepRow, ids: np.ndarray) -> int:
    """A token that depends on the mask, seed and position alone; closing ones are likely, so that outputs end."""
    rng = random.Random(f"{row.sampling.seed}/{len(row.output_token_ids)}")
    closers = [token_id for token_id in CLOSERS if token_id in ids]
    if closers and rng.random() < 0.4:
        return rng.choice(closers)
    return int(rng.choice(ids))


class MaskRunner:
    """Implements `engine.step.Runner` without a model: only the mask says what comes next."""

    def __init__(self, choose: Choose = draw_any, **facts: Any) -> None:
        self.choose = choose
        self._free: Callable[[StepRow], int] = lambda row: 1000 + len(row.output_token_ids)
        self.num_steps = 0
        defaults: dict[str, Any] = {
            "num_blocks": 4096,
            "block_size": 16,
            "max_model_len": 8192,
            "vocab_size": VOCAB_SIZE,
            "eos_token_ids": frozenset({EOS}),
            "dtype": "float32",
            "device": "cpu",
        }
        self.info = RunnerInfo(**(defaults | facts))

    def execute(self, step: StepInput) -> StepOutput:
        self.num_steps += 1
        token_ids = [[self._next(row)] if row.samples else [] for row in step.rows]
        logprobs = [
            [_logprobs(row, token_id) for token_id in ids] if row.sampling.logprobs is not None else None
            for row, ids in zip(step.rows, token_ids, strict=True)
        ]
        return StepOutput(token_ids, logprobs)

    def _next(self, row: StepRow) -> int:
        if row.token_mask is None:
            return self._free(row)
        ids = allowed_ids(row)
        assert len(ids), "nothing is allowed"
        return self.choose(row, ids)


def _logprobs(row: StepRow, token_id: int) -> TokenLogprobs:
    count = row.sampling.logprobs or 0
    return TokenLogprobs(token_id, -0.5, 1, [(token_id, -0.5), *((500 + i, -1.5) for i in range(count))][:count])


class Engine:
    """A core that can be waited for while a grammar is compiled."""

    def __init__(self, model: Path, choose: Choose = draw_any, **knobs: Any) -> None:
        facts = {name: knobs.pop(name) for name in list(knobs) if name in RunnerInfo.__dataclass_fields__}
        self.runner = MaskRunner(choose, **facts)
        config = EngineConfig(model_path=model, socket_path=Path("engine.sock"), **knobs)
        self.core = EngineCore(config, self.runner)
        self._woken = threading.Event()
        self.core.on_grammar(self._woken.set)

    def run(self, *requests: GenerateRequest) -> dict[str, RequestOutput]:
        """The merged output of each request."""
        merged: dict[str, RequestOutput] = {}
        for request in requests:
            refusal = self.core.add(request)
            if refusal is not None:
                merged[request.request_id] = refusal
        while self.core.num_running or self.core.num_waiting:
            for output in self.step():
                if output.request_id in merged:
                    merge_outputs(merged[output.request_id], output)
                else:
                    merged[output.request_id] = output
        return merged

    def step(self) -> list[RequestOutput]:
        """A step, as the busy loop does it: it sleeps while there is nothing to do."""
        while not self.core.has_work():
            assert self._woken.wait(20), "never woken"
            self._woken.clear()
        return self.core.step()

    def run_one(self, grammar: Grammar | None, **fields: Any) -> RequestOutput:
        """The merged output of a request."""
        request = make_request(grammar, **fields)
        return self.run(request)[request.request_id]


def make_request(grammar: Grammar | None, request_id: str = "r", **fields: Any) -> GenerateRequest:
    names = SamplingParams.__struct_fields__
    sampling = {name: fields.pop(name) for name in list(fields) if name in names}
    return GenerateRequest(
        request_id=request_id,
        prompt_token_ids=fields.pop("prompt_token_ids", [1, 2, 3]),
        sampling=SamplingParams(**({"max_tokens": 2000, "seed": 0, "grammar": grammar} | sampling)),
        **fields,
    )


def schema_grammar(schema: Any, **fields: Any) -> Grammar:
    return Grammar(kind="json_schema", source=json.dumps(schema), **({"param": "response_format"} | fields))
