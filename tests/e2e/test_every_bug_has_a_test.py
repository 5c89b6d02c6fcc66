"""Each entry of the list of public faults is in the name of some test."""

from __future__ import annotations

import re
from pathlib import Path

BUGS = (1, 2, 4, 5, 7, 8, 10, 11, 13, 14, 16, 17, 19, 20, 22, 23, 25, 26, 28, 29, 31, 32, 34, 35, 37, 38, 40, 41, 43,
        44, 46, 47, 49, 50)  # fmt: skip
TESTS = Path(__file__).parent.parent


def numbers(folder: Path) -> set[int]:
    names = re.findall(r"def test_((?:b\d\d_)+)", "\n".join(file.read_text() for file in folder.rglob("test_*.py")))
    return {int(number) for name in names for number in re.findall(r"\d\d", name)}


def test_every_bug_has_a_test() -> None:
    assert set(BUGS) <= numbers(TESTS)


def test_and_one_against_the_real_box() -> None:
    # What a stop does to streams is shown where boxes are started and stopped.
    assert set(BUGS) <= numbers(TESTS / "e2e") | numbers(TESTS / "box")
