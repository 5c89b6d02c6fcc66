"""Write the image's list of packages with versions and licences: `sbom.py FILE`.

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

MODELS = Path("/opt/breadbox/models")
APP = "/opt/breadbox/app"


def main(out: Path) -> None:
    """Collect and write."""
    out.parent.mkdir(parents=True, exist_ok=True)
    packages = [*_python(), *_debian(), *_models()]
    out.write_text(json.dumps({"format": 1, "packages": packages}, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _python() -> list[dict[str, Any]]:
    found = {one.metadata["Name"].lower(): one for one in [*distributions(), *distributions(path=[APP])]}
    return [
        {"kind": "python", "name": name, "version": one.version, "licence": _licence(one)}
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
        ["dpkg-query", "-W", "-f", "${Package} ${Version}\n"], capture_output=True, text=True, check=True
    )
    lines = (line.split(" ") for line in done.stdout.splitlines())
    return [
        {"kind": "debian", "name": name, "version": version, "licence": _debian_licence(name)}
        for name, version in lines
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
        {
            "kind": "model",
            "name": manifest["name"],
            "version": manifest["source"].get("revision") or manifest["source"].get("sha256") or "unknown",
            "source": manifest["source"]["id"],
            "licence": manifest.get("licence") or "unknown",
        }
        for manifest in manifests
    ]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
