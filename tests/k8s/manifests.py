"""The manifests as kustomize puts them together."""

from __future__ import annotations

import functools
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent.parent
OVERLAYS = ("base", "cpu", "gpu", "hpa", "keda", "bluegreen", "canary")


@functools.cache
def render(overlay: str) -> list[dict[str, Any]]:
    """All objects of one overlay."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed")
    folder = ROOT / "k8s" / ("base" if overlay == "base" else f"overlays/{overlay}")
    done = subprocess.run([kubectl, "kustomize", str(folder)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def of_kind(overlay: str, kind: str) -> list[dict[str, Any]]:
    """Those objects of an overlay that are of this kind."""
    return [one for one in render(overlay) if one["kind"] == kind]


def container_of(deployment: dict[str, Any]) -> dict[str, Any]:
    """A Deployment's only container."""
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return dict(container)


def environment_of(deployment: dict[str, Any]) -> dict[str, str]:
    """Its plain variables."""
    return {one["name"]: one["value"] for one in container_of(deployment)["env"] if "value" in one}
