"""One logging set-up for all processes of a box: stderr, one line an event, as text or as JSON.

Events with facts (a request that ended, say) are logged by `log_facts`: ``name key=value …`` in text, keys of the
object in JSON.
"""

from __future__ import annotations

import logging
import logging.config
import re
import sys
from collections.abc import Mapping
from typing import Any

import msgspec

_FORMAT = "%(asctime)s %(levelname)-7s PROGRAM[%(process)d] %(name)s: %(message)s"
_PLAIN = re.compile(r"[^\s=\"]+")


def configure_logging(level: str, program: str = "box", log_format: str = "text") -> None:
    """Set up the root logger of this process, which is (part of) `program`."""
    logging.config.dictConfig(logging_config(level, program, log_format))


def logging_config(level: str, program: str, log_format: str = "text") -> dict[str, Any]:
    """For logging.config.dictConfig; gunicorn's and uvicorn's own loggers are included."""
    # With a handler of their own, as uvicorn's worker takes over the handlers of gunicorn's loggers.
    # What they say about their start and end is only of interest when one looks for a fault.
    own = {"level": "DEBUG" if level == "debug" else "WARNING", "handlers": ["stderr"], "propagate": False}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"()": FORMATTERS[log_format], "program": program}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "stream": sys.stderr, "formatter": "line"}},
        "root": {"level": level.upper(), "handlers": ["stderr"]},
        "loggers": {"gunicorn.error": own, "gunicorn.access": own, "uvicorn.error": own, "uvicorn.access": own},
    }


def log_facts(logger: logging.Logger, level: int, event: str, facts: Mapping[str, Any]) -> None:
    """Log an event with its facts; those that are None are left out."""
    if logger.isEnabledFor(level):
        known = {name: value for name, value in facts.items() if value is not None}
        logger.log(level, "%s", event, extra={"facts": known})


class TextFormatter(logging.Formatter):
    """For people."""

    def __init__(self, program: str) -> None:
        super().__init__(_FORMAT.replace("PROGRAM", program))

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line, with the facts behind the message."""
        facts = getattr(record, "facts", {})
        pairs = "".join(f" {name}={_as_text(value)}" for name, value in facts.items())
        return super().formatMessage(record) + pairs


class JsonFormatter(logging.Formatter):
    """For programs: one object a line."""

    def __init__(self, program: str) -> None:
        super().__init__()
        self._program = program

    def format(self, record: logging.LogRecord) -> str:
        """The object."""
        line = {
            "time": f"{self.formatTime(record, '%Y-%m-%dT%H:%M:%S')}.{int(record.msecs):03d}",
            "level": record.levelname,
            "program": self._program,
            "pid": record.process,
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


FORMATTERS: dict[str, type[logging.Formatter]] = {"text": TextFormatter, "json": JsonFormatter}


def _as_text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if value < 1 else f"{value:.3f}"
    text = str(value)
    return text if _PLAIN.fullmatch(text) else msgspec.json.encode(text).decode()
