"""One logging set-up for all processes of a box: stderr, one line an event, level and program in front."""

from __future__ import annotations

import logging.config
import sys
from typing import Any

_FORMAT = "%(asctime)s %(levelname)-7s PROGRAM[%(process)d] %(name)s: %(message)s"


def configure_logging(level: str, program: str = "box") -> None:
    """Set up the root logger of this process, which is (part of) `program`."""
    logging.config.dictConfig(logging_config(level, program))


def logging_config(level: str, program: str) -> dict[str, Any]:
    """For logging.config.dictConfig; gunicorn's and uvicorn's own loggers are included."""
    # With a handler of their own, as uvicorn's worker takes over the handlers of gunicorn's loggers.
    # What they say about their start and end is only of interest when one looks for a fault.
    own = {"level": "DEBUG" if level == "debug" else "WARNING", "handlers": ["stderr"], "propagate": False}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"format": _FORMAT.replace("PROGRAM", program)}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "stream": sys.stderr, "formatter": "line"}},
        "root": {"level": level.upper(), "handlers": ["stderr"]},
        "loggers": {"gunicorn.error": own, "gunicorn.access": own, "uvicorn.error": own, "uvicorn.access": own},
    }
