"""Blue/green: the script moves the Service, waits for what runs, and only then takes the old pods away."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.k8s.manifests import ROOT

SWITCH = ROOT / "k8s/overlays/bluegreen/switch"
# Stands in for kubectl: notes what it is told; pods exist; `exec` ends as DRAIN_STATUS says.
KUBECTL = """#!/bin/bash
echo "$*" >> "$NOTES"
case "$*" in
    *"get pods"*) echo "pod/${@: -3:1}-1"; echo "pod/${@: -3:1}-2" ;;
    *exec*) exit "$DRAIN_STATUS" ;;
esac
"""


def switch(folder: Path, *words: str, drain_status: int = 0) -> tuple[int, list[str]]:
    kubectl, notes = folder / "kubectl", folder / "notes"
    kubectl.write_text(KUBECTL)
    kubectl.chmod(0o755)
    notes.touch()
    environment = {"KUBECTL": str(kubectl), "NOTES": str(notes), "DRAIN_STATUS": str(drain_status), "WAIT_S": "5"}
    done = subprocess.run(
        [str(SWITCH), *words], env=os.environ | environment, capture_output=True, timeout=60, check=False
    )
    return done.returncode, notes.read_text().splitlines()


def test_the_order(tmp_path: Path) -> None:
    status, calls = switch(tmp_path, "green", "models")
    assert status == 0
    assert all(call.startswith("-n models ") for call in calls)
    verbs = [call.split()[2] for call in calls]
    assert verbs == ["rollout", "get", "patch", "get", "exec", "exec", "scale"]
    assert '"breadbox/colour":"green"' in calls[2]
    assert all(
        "breadbox/colour=blue" in call and "breadbox drain --settle 10 --timeout 5" in call for call in calls[4:6]
    )
    assert calls[-1].endswith("scale deployment/breadbox-blue --replicas=0")


def test_pods_stay_while_something_runs(tmp_path: Path) -> None:
    status, calls = switch(tmp_path, "blue", drain_status=1)
    assert status == 1
    assert not any("scale" in call for call in calls)


@pytest.mark.parametrize("words", [(), ("red",)])
def test_a_wrong_colour(tmp_path: Path, words: tuple[str, ...]) -> None:
    assert switch(tmp_path, *words) == (2, [])
