"""`make audit`: no known vulnerabilities in what is installed, and no secrets in what is under version control.

Without the advisory service (no network, or a mirror that has no advisories) a line says so and the rest is checked.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BINARIES = Path(sys.executable).parent
# Long lists of numbers and digests, and what looks like a password in the tests of passwords.
NOT_SCANNED = ("tests/unit/golden/", "tests/e2e/clients/requirements.txt", "LICENSE")
NOT_LOOKED_FOR = ("KeywordDetector", "IPPublicDetector")


def main() -> int:
    """Exit status: 1 where something was found."""
    is_safe = check_packages()
    return 0 if check_secrets() and is_safe else 1


def check_packages() -> bool:
    """Ask the package index for advisories about every installed package."""
    command = [BINARIES / "pip-audit", "--format", "json", "--progress-spinner", "off", "--skip-editable"]
    result = subprocess.run([*command, "--timeout", "20"], capture_output=True, text=True, cwd=ROOT)
    try:
        packages = json.loads(result.stdout)["dependencies"]
    except (ValueError, KeyError):
        print(f"packages: not audited, no advisories can be had: {_last_line(result.stderr)}")
        return True
    audited = [package for package in packages if "skip_reason" not in package]
    if not audited:
        print(f"packages: not audited, the index has no advisories for any of the {len(packages)} packages")
        return True
    print(f"packages: {len(audited)} of {len(packages)} audited")
    found = [(package, advisory) for package in audited for advisory in package["vulns"]]
    for package, advisory in found:
        fixed = ", ".join(advisory["fix_versions"]) or "none"
        print(f"  {package['name']} {package['version']}: {advisory['id']}, fixed in {fixed}", file=sys.stderr)
    return not found


def check_secrets() -> bool:
    """Look for keys and tokens in every file that git knows."""
    listing = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, cwd=ROOT)
    if listing.returncode:
        print("secrets: not looked for, this is no git checkout")
        return True
    files = [name for name in listing.stdout.split("\0") if name and not name.startswith(NOT_SCANNED)]
    files = [name for name in files if (ROOT / name).is_file()]
    plugins = [word for name in NOT_LOOKED_FOR for word in ("--disable-plugin", name)]
    command = [BINARIES / "detect-secrets-hook", "--no-verify", *plugins, *files]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    print(f"secrets: {len(files)} files, {'found' if result.returncode else 'none'}")
    print(result.stdout + result.stderr, end="", file=sys.stderr)
    return result.returncode == 0


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["pip-audit said nothing"])[-1][:300]


if __name__ == "__main__":
    sys.exit(main())
