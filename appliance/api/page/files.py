"""The page's files, read once, and the paths they are served at. Nothing here knows HTTP."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

_STATIC = Path(__file__).parent / "static"
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
INDEX_PATH = "/"


@dataclass(frozen=True)
class PageFile:
    """One file as it is sent."""

    content: bytes
    content_type: str

    @property
    def etag(self) -> str:
        """Changes when the content does, so that browsers may keep the file and ask whether it is still good."""
        return f'"{hashlib.sha256(self.content).hexdigest()[:32]}"'


def _load() -> dict[str, PageFile]:
    files = {}
    for path in sorted(_STATIC.iterdir()):
        if path.suffix in _TYPES:
            served_at = INDEX_PATH if path.name == "index.html" else f"/page/{path.name}"
            files[served_at] = PageFile(path.read_bytes(), f"{_TYPES[path.suffix]}; charset=utf-8")
    return files


FILES = _load()
PATHS = frozenset(FILES)


def with_base(file: PageFile, root_path: str) -> PageFile:
    """The index for a box that an outer proxy publishes under `root_path`: what it refers to is found there."""
    base = f'<head>\n  <base href="{root_path}/">'.encode()
    return PageFile(file.content.replace(b"<head>", base, 1), file.content_type)
