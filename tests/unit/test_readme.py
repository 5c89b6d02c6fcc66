"""The README stays true: its table of knobs is the generated one, its commands and files exist."""

from __future__ import annotations

import re
from pathlib import Path

from appliance.cli import COMMANDS
from appliance.knobs_table import as_markdown

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_table_of_knobs_is_the_generated_one() -> None:
    """`breadbox config --markdown` prints what belongs between the marks."""
    table = README.split("<!-- knobs: begin -->\n", 1)[1].split("<!-- knobs: end -->", 1)[0]
    assert table.strip() == as_markdown().strip()


def code() -> str:
    """Its code blocks and inline code."""
    return "\n".join(re.findall(r"```\w*\n(.*?)```", README, re.S) + re.findall(r"`([^`\n]+)`", README))


def test_its_commands_exist() -> None:
    named = set(re.findall(r"^(?:\.venv/bin/)?breadbox ([a-z-]+)", code(), re.M))
    assert {"serve", "bake", "config"} <= named <= set(COMMANDS)


def test_its_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    assert {"run", "test"} <= set(re.findall(r"^make ([a-z-]+)", code(), re.M)) <= targets


def test_its_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", README):
        assert (ROOT / target).exists(), target
