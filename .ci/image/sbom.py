"""Write the image's list of packages with versions and licences as a CycloneDX document: `sbom.py FILE`.

Those of Python and of the distribution, and the baked model with its source.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any
from urllib.parse import quote

MODELS = Path("/opt/breadbox/models")
APP = "/opt/breadbox/app"


def main(out: Path) -> None:
    """Collect and write."""
    out.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "components": [*_python(), *_debian(), *_models()],
    }
    out.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _component(kind: str, name: str, version: str, licence: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, "name": name, "version": version, "licenses": [{"license": {"name": licence}}]} | fields


def _python() -> list[dict[str, Any]]:
    found = {one.metadata["Name"].lower(): one for one in [*distributions(), *distributions(path=[APP])]}
    return [
        _component("library", name, one.version, _licence(one), purl=f"pkg:pypi/{name}@{quote(one.version)}")
        for name, one in sorted(found.items())
    ]


def _licence(package: Distribution) -> str:
    fields = package.metadata
    if expression := fields.get("License-Expression"):
        return str(expression)
    classifiers = [line.split(" :: ")[-1] for line in fields.get_all("Classifier") or () if line.startswith("License")]
    named = [name for name in classifiers if name != "OSI Approved"]
    text = (fields.get("License") or "").strip().splitlines()
    return ", ".join(named) or (text[0][:100] if text else "unknown")


def _debian() -> list[dict[str, Any]]:
    done = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Package} ${Version} ${Architecture}\n"],
        capture_output=True,
        text=True,
        check=True,
    )
    return [
        _component(
            "library",
            name,
            version,
            _debian_licence(name),
            purl=f"pkg:deb/debian/{name}@{quote(version)}?arch={machine}",
        )
        for name, version, machine in map(str.split, done.stdout.splitlines())
    ]


def _debian_licence(name: str) -> str:
    """The short names of a machine-readable copyright file; the file itself is in the image."""
    try:
        text = Path(f"/usr/share/doc/{name}/copyright").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "see /usr/share/doc"
    found = re.findall(r"^License:[ \t]*(\S.{0,60})$", text, re.MULTILINE)
    return ", ".join(dict.fromkeys(found)) or f"see /usr/share/doc/{name}/copyright"


def _models() -> list[dict[str, Any]]:
    manifests = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(MODELS.glob("*/manifest.json"))]
    return [
        _component(
            "machine-learning-model",
            manifest["name"],
            manifest["source"].get("revision") or manifest["source"].get("sha256") or "unknown",
            manifest.get("licence") or "unknown",
            properties=[{"name": "breadbox:source", "value": manifest["source"]["id"]}],
        )
        for manifest in manifests
    ]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
