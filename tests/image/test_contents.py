"""What is in the image and what is not; its budget."""

from __future__ import annotations

import json
import os
from typing import Any

import docker
import pytest

from engine.kernels.native.targets import isas
from tests.image.container import IMAGE, Container

pytestmark = pytest.mark.exact
MAX_BYTES = 1_000_000_000


def test_it_is_small(client: docker.DockerClient) -> None:
    image = client.images.get(IMAGE)
    layers = [
        f"{layer['Size'] / 1e6:8.1f} MB  {layer['CreatedBy'][:100]}" for layer in image.history() if layer["Size"]
    ]
    print("\n".join(["", *layers]))
    assert image.attrs["Size"] <= MAX_BYTES, "\n".join(layers)


@pytest.mark.parametrize("name", ["gcc", "g++", "cc", "make", "pip", "pip3", "curl", "wget", "git"])
def test_no_tools(box: Container, name: str) -> None:
    script = f"import shutil, sys; sys.exit(shutil.which({name!r}) is not None)"
    box.run("/opt/breadbox/venv/bin/python", "-c", script)


def test_no_installer_no_cache_no_private_file(box: Container) -> None:
    script = """
import importlib.util, pathlib
assert importlib.util.find_spec("pip") is None and importlib.util.find_spec("setuptools") is None
left = [str(p) for p in map(pathlib.Path, ("/root/.cache", "/wheels", "/etc/pip.conf", "/build")) if p.is_dir()
        or p.is_file()]
left += map(str, pathlib.Path("/var/lib/apt/lists").glob("*_*"))
left += map(str, pathlib.Path("/usr/local/share/ca-certificates").glob("*"))
assert not left, left
"""
    box.run("/opt/breadbox/venv/bin/python", "-c", script, user="0")


def test_nothing_but_system_files_needs_privileges(box: Container) -> None:
    script = """
import os, pathlib
bad = []
for folder, _, names in os.walk("/opt/breadbox"):
    for name in names:
        status = os.lstat(os.path.join(folder, name))
        if status.st_mode & 0o6000 or not status.st_mode & 0o004 or status.st_mode & 0o002 and not os.path.islink(
                os.path.join(folder, name)):
            bad.append(os.path.join(folder, name))
assert not bad, bad[:10]
"""
    box.run("/opt/breadbox/venv/bin/python", "-c", script, user="0")


def test_the_list_of_packages(box: Container) -> None:
    document: dict[str, Any] = json.loads(box.run("cat", "/usr/share/breadbox/sbom.json"))
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.5")
    found = {(one.get("purl", one["type"]).split("@")[0]): one for one in document["components"]}
    assert found["pkg:pypi/torch"]["version"].startswith("2.")
    assert "pkg:deb/debian/nginx-light" in found
    licences = {name: one["licenses"][0]["license"]["name"] for name, one in found.items()}
    assert licences["machine-learning-model"] == "apache-2.0"
    assert [name for name, licence in licences.items() if licence in ("", "unknown")] == []


def test_every_compiled_package_still_loads(box: Container) -> None:
    """The build takes symbol tables out of libraries: each must still be one that can be loaded."""
    script = """
import ctypes, pathlib, torch
libraries = [p for p in pathlib.Path("/opt/breadbox/venv").rglob("*.so*") if not p.name.endswith(".py")]
assert len(libraries) > 20, libraries
for path in libraries:
    ctypes.CDLL(str(path))
"""
    box.run("/opt/breadbox/venv/bin/python", "-c", script)


def test_the_compiled_kernels_are_used(box: Container) -> None:
    assert "without the compiled CPU kernels" not in box.log
    script = "from engine.kernels.native.library import load_library; print(load_library().isa)"
    assert box.run("/opt/breadbox/venv/bin/python", "-c", script).strip() in [isa.name for isa in isas()]


def test_all_code_is_compiled(box: Container) -> None:
    """On a read-only root nothing can be compiled later, and each start would compile all that it imports."""
    script = """
import importlib.util, pathlib
missing = [str(p) for p in pathlib.Path("/opt/breadbox").rglob("*.py")
           if "site-packages/torch/" not in str(p) and not pathlib.Path(importlib.util.cache_from_source(p)).exists()]
assert not missing, (len(missing), missing[:10])
"""
    box.run("/opt/breadbox/venv/bin/python", "-c", script)


@pytest.mark.skipif(not os.environ.get("DOCKER_HOST"), reason="says something of a local engine only")
def test_the_build_left_no_secret_in_the_history(client: docker.DockerClient) -> None:
    history = json.dumps(client.images.get(IMAGE).history())
    assert "hf_token=" not in history.lower()
