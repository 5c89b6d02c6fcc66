"""`breadbox bench accuracy`: how close other precisions of a model are to a reference, on real text.

Every model reads the same texts; at every position its logits are compared with the reference's:

* top-1 agreement: share of positions where both find the same token likeliest
* KL: mean of sum p (log p - log q) over positions, p the reference's distribution, q the other's, in nats
* logit errors: mean and largest absolute difference, of logits that are centred on their mean (a constant is no error)
* perplexity: exp of the mean negative log-probability of the tokens that are really there
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from appliance.baked_model import BakedModel
from appliance.bench.flag_types import whole
from appliance.bench.in_process import add_engine_flags, load_config, load_engine_settings
from appliance.bench.progress import Progress
from appliance.bench.real_text import corpus_words
from appliance.bench.result_file import write_record
from appliance.errors import ApplianceError, SettingsError
from appliance.text.tokenizer import Tokenizer
from engine.messages import SamplingParams
from engine.step import StepInput, StepRow

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from engine.runner.model_runner import ModelRunner

    Array = npt.NDArray[np.floating]


@dataclass
class Accuracy:
    """One model's figures; the reference's own have no errors."""

    model: str
    num_positions: int = 0
    num_agreed: int = 0
    kl_nats: float = 0.0  # sums over positions; the properties are means
    logit_error: float = 0.0
    max_logit_error: float = 0.0
    nll_nats: float = 0.0

    @property
    def top1(self) -> float:
        return self.num_agreed / self.num_positions

    @property
    def kl(self) -> float:
        return self.kl_nats / self.num_positions

    @property
    def mean_logit_error(self) -> float:
        return self.logit_error / self.num_positions

    @property
    def perplexity(self) -> float:
        return math.exp(self.nll_nats / self.num_positions)

    def add(self, reference: Array, logits: Array, targets: Sequence[int]) -> None:
        """Count the positions of [T, vocab] logits whose following tokens are `targets`."""
        import numpy as np

        reference, logits = (each.astype(np.float64) for each in (reference, logits))
        reference, logits = (each - each.mean(axis=1, keepdims=True) for each in (reference, logits))
        p, q = _log_softmax(reference), _log_softmax(logits)
        error = np.abs(logits - reference)
        self.num_positions += len(targets)
        self.num_agreed += int((reference.argmax(axis=1) == logits.argmax(axis=1)).sum())
        self.kl_nats += float((np.exp(p) * (p - q)).sum())
        self.logit_error += float(error.mean(axis=1).sum())
        self.max_logit_error = max(self.max_logit_error, float(error.max()))
        self.nll_nats -= float(q[np.arange(len(targets)), list(targets)].sum())


def add_accuracy_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of `breadbox bench accuracy`."""
    add_engine_flags(parser)
    parser.add_argument("--num-texts", type=whole(1), default=12, metavar="N", help="texts (default 12)")
    parser.add_argument("--text-len", type=whole(2), default=192, metavar="N", help="tokens of each (default 192)")
    parser.add_argument("--output-json", type=Path, metavar="FILE", help="write the figures to a file")


def run_accuracy(args: argparse.Namespace) -> int:
    """Compare every model after the first with the first, and print the table."""
    if len(args.models) < 2:
        raise SettingsError(["name a reference and at least one model to compare with it"])
    folders = [load_engine_settings(_with_model(args, model)).settings.model[0] for model in args.models]
    texts = _texts(Tokenizer.load(BakedModel(Path(folders[0]))), args.num_texts, args.text_len)
    with Progress("texts read", len(args.models) * len(texts)) as progress:
        reference = list(_read(args, args.models[0], texts, progress))
        results = []
        for model in args.models:
            accuracy = Accuracy(Path(model).name)
            read = reference if model == args.models[0] else _read(args, model, texts, progress)
            for tokens, ours, theirs in zip(texts, reference, read, strict=True):
                if ours.shape != theirs.shape:
                    raise ApplianceError(f"{model}: its vocabulary is not that of {args.models[0]}")
                accuracy.add(ours[:-1], theirs[:-1], tokens[1:])
            results.append(accuracy)
    print(_table(results))
    if args.output_json:
        write_record(args.output_json, {"models": [dataclasses.asdict(each) for each in results]})
    return 0


def _texts(tokenizer: Tokenizer, count: int, length: int) -> list[list[int]]:
    """Successive pieces of the corpus, each of exactly `length` tokens."""
    ids = tokenizer.encode(" ".join(corpus_words()), add_special_tokens=False)
    if len(ids) < count * length:
        raise SettingsError([f"--num-texts x --text-len must be at most {len(ids)}: there is no more text"])
    step = len(ids) // count
    return [ids[start : start + length] for start in range(0, count * step, step)]


def _with_model(args: argparse.Namespace, model: str) -> argparse.Namespace:
    return argparse.Namespace(**{**vars(args), "models": [model]})


def _read(args: argparse.Namespace, model: str, texts: Sequence[list[int]], progress: Progress) -> Iterator[Array]:
    """Logits [T, vocab] of each text."""
    from engine.runner import make_runner  # torch is only for those who compute

    runner = cast("ModelRunner", make_runner(load_config(load_engine_settings(_with_model(args, model)), False)))
    try:
        for tokens in texts:
            yield _logits(runner, tokens)
            progress.step()
    finally:
        runner.close()


def _logits(runner: ModelRunner, tokens: list[int]) -> Array:
    blocks = list(range(-(-len(tokens) // runner.info.block_size)))
    row = StepRow("text", tokens, [], 0, len(tokens), blocks, SamplingParams(max_tokens=1, seed=0), samples=False)
    logits: Array = runner.compute_logits(StepInput([row])).numpy()
    return logits


def _log_softmax(logits: Array) -> Array:
    import numpy as np

    shifted = logits - logits.max(axis=1, keepdims=True)
    result: Array = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result


def _table(results: Sequence[Accuracy]) -> str:
    lines = [
        "| model | top-1 agreement | KL (nats) | mean logit error | largest | perplexity |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    lines.extend(
        f"| {one.model} | {one.top1:.2%} | {one.kl:.2g} | {one.mean_logit_error:.3g} | {one.max_logit_error:.3g} "
        f"| {one.perplexity:.3f} |"
        for one in results
    )
    return "\n".join([*lines, "", f"{results[0].num_positions} positions; the reference is {results[0].model}."])
