"""Print what pyproject.toml asks for, without the project itself: `requirements.py [EXTRA …]`.

So that an image's layer of packages only changes when they do, not with every line of code.
"""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
extras = project["optional-dependencies"]
print("\n".join([*project["dependencies"], *(line for extra in sys.argv[1:] for line in extras[extra])]))
