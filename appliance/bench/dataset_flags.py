"""The flags that choose prompts, shared by `bench serve`, `throughput` and `compare`."""

from __future__ import annotations

import argparse
from pathlib import Path

from appliance.bench.datasets import DATASETS, DatasetOptions
from appliance.bench.flag_types import number, whole


def add_dataset_flags(parser: argparse.ArgumentParser, num_prompts: int) -> None:
    """vLLM's names for one dataset's lengths are taken as the general ones."""
    group = parser.add_argument_group("data")
    add = group.add_argument
    add("--dataset-name", choices=sorted(DATASETS), default="random", help="(default random)")
    add("--dataset-path", type=Path, metavar="FILE", help="ShareGPT JSON; for custom: JSONL with prompt, output_len")
    add("--num-prompts", type=whole(1), default=num_prompts, metavar="N", help=f"(default {num_prompts})")
    add(
        "--input-len",
        "--random-input-len",
        dest="input_len",
        type=whole(1),
        metavar="N",
        help="tokens of a random prompt (default 1024)",
    )
    add(
        *("--output-len", "--random-output-len", "--sharegpt-output-len", "--custom-output-len"),
        "--prefix-repetition-output-len",
        dest="output_len",
        type=whole(1),
        metavar="N",
        help="tokens to generate (default: the dataset's own, or 128)",
    )
    _add_shape_flags(group)


def _add_shape_flags(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    ratio = number(0, 1, may_equal=True)
    add("--random-range-ratio", type=ratio, default=0.0, metavar="X", help="lengths vary by ± this share (default 0)")
    add("--random-prefix-len", type=whole(0), default=0, metavar="N", help="tokens all random prompts begin with")
    add("--prefix-repetition-prefix-len", type=whole(1), default=256, metavar="N", help="(default 256)")
    add("--prefix-repetition-suffix-len", type=whole(1), default=256, metavar="N", help="(default 256)")
    add("--prefix-repetition-num-prefixes", type=whole(1), default=10, metavar="N", help="(default 10)")
    add("--no-oversample", action="store_true", help="a dataset with too few prompts is not repeated")


def read_dataset_options(args: argparse.Namespace) -> DatasetOptions:
    """What the flags say."""
    return DatasetOptions(
        name=args.dataset_name,
        path=args.dataset_path,
        input_len=args.input_len,
        output_len=args.output_len,
        range_ratio=args.random_range_ratio,
        prefix_len=args.random_prefix_len,
        repetition_prefix_len=args.prefix_repetition_prefix_len,
        repetition_suffix_len=args.prefix_repetition_suffix_len,
        num_prefixes=args.prefix_repetition_num_prefixes,
        may_repeat=not args.no_oversample,
    )
