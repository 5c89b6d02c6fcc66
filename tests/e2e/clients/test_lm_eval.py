"""lm-eval scores the box over HTTP as transformers scores the model's weights directly."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from tests.box.conftest import SMALL
from tests.box.running_box import running_box
from tests.e2e.caller import MODEL, Caller
from tests.e2e.clients.conftest import HERE, PYTHON, require, run
from tests.model.truth import load_baked_llama, true_logits

TOLERANCE = 2e-3  # of a sum of natural logarithms; other kernels add in another order


class Truth:
    """Log-likelihoods by transformers."""

    def __init__(self, baked: Path) -> None:
        torch.set_num_threads(1)  # spinning thread pools make a busy machine crawl
        self.model = load_baked_llama(baked)
        self.tokenizer = AutoTokenizer.from_pretrained(baked)

    def score(self, context: list[int], continuation: list[int]) -> tuple[float, bool]:
        """Of the continuation, and whether it is the greedy one."""
        logprobs = true_logits(self.model, context + continuation)[len(context) - 1 : -1].log_softmax(-1)
        chosen = logprobs.gather(-1, torch.tensor(continuation)[:, None]).sum()
        return float(chosen), logprobs.argmax(-1).tolist() == continuation

    def score_text(self, context: str, continuation: str) -> tuple[float, bool]:
        whole, head = (self.tokenizer.encode(text) for text in (context + continuation, context))
        return self.score(head, whole[len(head) :])


def evaluate(box: Caller, baked: Path, out: Path) -> dict[str, list[dict[str, Any]]]:
    model = f"model={MODEL},base_url={box.url}/v1/completions,tokenizer={baked},num_concurrent=2,max_retries=1"
    tasks = "breadbox_choices,breadbox_text"
    command = [PYTHON, "-m", "lm_eval", "--model", "local-completions", "--model_args", model, "--include_path", "."]
    run([*command, "--tasks", tasks, "--output_path", out, "--log_samples"], HERE / "tasks")
    samples = {}
    for task in tasks.split(","):
        (file,) = out.rglob(f"samples_{task}_*.jsonl")
        samples[task] = [json.loads(line) for line in file.read_text().splitlines()]
    return samples


@pytest.fixture
def exact_box(smollm2: Path) -> Iterator[Caller]:
    """A box in the reference precision."""
    with running_box(smollm2, flags=SMALL) as box, closing(Caller(box.url, key=None)) as caller:
        box.wait_ready()
        yield caller


def test_scores_equal_transformers(exact_box: Caller, smollm2: Path, tmp_path: Path) -> None:
    require(PYTHON)
    samples, truth = evaluate(exact_box, smollm2, tmp_path), Truth(smollm2)
    assert len(samples["breadbox_choices"]) == 6
    for sample in samples["breadbox_choices"]:
        pairs = [(each["arg_0"], each["arg_1"]) for each in sample["arguments"].values()]
        scores = [truth.score_text(*pair) for pair in pairs]
        found = [(float(score), greedy == "True") for ((score, greedy),) in sample["resps"]]
        assert [score for score, _ in found] == pytest.approx([score for score, _ in scores], abs=TOLERANCE)
        assert [greedy for _, greedy in found] == [greedy for _, greedy in scores]
        best = max(range(len(scores)), key=lambda choice: scores[choice][0])
        assert sample["acc"] == float(best == sample["doc"]["answer"])
    assert sum(sample["acc"] for sample in samples["breadbox_choices"]) >= 3  # far above chance
    for sample in samples["breadbox_text"]:
        page = sample["doc"]["page"]
        score, _ = truth.score([truth.tokenizer.bos_token_id], truth.tokenizer.encode(page))
        assert float(sample["resps"][0][0]) == pytest.approx(score, abs=TOLERANCE)
        assert math.isfinite(score)
